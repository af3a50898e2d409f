"""How rows and maps are spread over programs."""

import re

import pytest

import tilec

SOFTMAX = """function (X[N, C]) -> (Y) {
    M[n : N] = max(X[n, c]); E[n, c : N, C] = exp(X[n, c] - M[n]); S[n : N] = sum(E[n, c]);
    Y[n, c : N, C] = E[n, c] / S[n]; }"""
SCALED = "function (X[N, C], G[C], A[N]) -> (Y) { Y[n, c : N, C] = X[n, c] * G[c] + A[n]; }"


def blocks(source, *given):
    text = tilec.compile(source, backend="triton").lower(*given, target="sm_90").source()
    return [tuple(map(int, found)) for found in re.findall(r"BM=(\d+), BN=(\d+), num_warps=(\d+)", text)]


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "alone"),
    [
        (2**18, 91, "bfloat16", True),
        (2**18, 91, "float32", True),
        (2**16, 251, "bfloat16", True),
        (2**18, 96, "bfloat16", False),  # vectors: a warp has rows of its own as it is
        (2**16, 512, "bfloat16", False),
        (2**18, 31, "float32", False),  # no wider than a warp
        (2**15, 1023, "bfloat16", False),
        (512, 91, "bfloat16", False),  # few programs
    ],
)
def test_short_rows_that_begin_anywhere_have_a_warp(rows, columns, dtype, alone):
    ((down, wide, warps),) = blocks(SOFTMAX, tilec.spec((rows, columns), dtype))
    assert (warps == 1) == alone and (not alone or down * wide == 1024)


@pytest.mark.parametrize(
    ("columns", "block"), [(384, 128), (768, 256), (1000, 1024), (512, 512), (200, 256), (3072, 1024)]
)
def test_blocks_of_maps_leave_few_columns_out(columns, block):
    given = (
        tilec.spec((30000, columns), "bfloat16"),
        tilec.spec((columns,), "bfloat16"),
        tilec.spec((30000,), "bfloat16"),
    )
    ((_, wide, _),) = blocks(SCALED, *given)
    assert wide == block


@pytest.mark.parametrize(("samples", "block"), [(32, (64, 64, 8)), (2048, (64, 16, 4))])
def test_few_programs_have_more_under_way(samples, block):
    """Rows that memory runs across, of two tensors: 64 neighbours a program."""
    source = """function (X[N, P, C], Y[N, P, C]) -> (Z) {
        S[n, c : N, C] = sum(X[n, p, c] * Y[n, p, c]); Z[n, p, c : N, P, C] = X[n, p, c] * S[n, c] + Y[n, p, c]; }"""
    assert blocks(source, *[tilec.spec((samples, 3136, 384), "bfloat16")] * 2) == [block]
