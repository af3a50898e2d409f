"""What kernels read as it lies in memory, and what they do not store."""

from __future__ import annotations

import re

import tilec
from tilec.lowered import Lowered


def lowered(source: str, *shapes: tuple[int, ...], gradient: bool = False) -> Lowered:
    function = tilec.compile(source)
    return (function.grad() if gradient else function).lower(*map(tilec.spec, shapes), target="sm_90")


def test_a_sum_of_all_elements_walks_the_largest_tensor() -> None:
    """Weights come first in the body, and rows of 432 elements are what the other two variables name."""
    source = "function (P[B, H, Q], A[Q], W[H]) -> (L) { L[] = +(W[h] * abs(A[q] * P[b, h, q])); }"
    text = lowered(source, (65536, 48, 9), (9,), (48,)).source()
    assert "P + red[None, :]" in text


def test_columns_are_not_held_for_sums_of_rows() -> None:
    source = """function (X[N, D]) -> (Z, R) {
        M[d] = mean(X[n, d]); Z[n, d] = X[n, d] - M[d]; R[n] = sum(Z[n, d] * Z[n, d]);
    }"""
    blocks = [int(n) for n in re.findall(r"_rows\[.*BN=(\d+)", lowered(source, (16384, 512)).source())]
    assert blocks and max(blocks) <= 512


def test_points_of_many_elements_take_few_rows() -> None:
    source = """function (X[P, 3], T[M, 3, 3], C[M, 3, 3]) -> (Q) {
        A[p, m, e] = sum(C[m, e, a] * (X[p, a] - T[m, e, a]));
        S[p, m, e] = sum(pow(X[p, a] - T[m, e, a] - A[p, m, e] * C[m, e, a], 2));
        I[p, m, e] = sign(A[p, m, e]);
        Q[p, m] = sum(I[p, m, e]) >= 2 ? min(A[p, m, e]) : min(S[p, m, e]);
    }"""
    text = lowered(source, (8192, 3), (1024, 3, 3), (1024, 3, 3)).source()
    (rows,) = re.findall(r"Q_rows\[.*BM=(\d+), BN=4, num_warps=4", text)
    assert int(rows) <= 512


def test_gradients_of_rows_beside_those_of_all_rows_are_one_kernel() -> None:
    source = """function (U[3, N]) -> (F) {
        V[i : N] = U[1, i] / U[0, i];
        F[k, i : 3, N - 1] = V[i] * U[k, i] - U[k, i + 1] * U[2, i];
    }"""
    found = lowered(source, (3, 1 << 20), (3, (1 << 20) - 1), gradient=True)
    assert len(found.kernels) == 1


def test_what_spreads_a_smaller_tensor_is_not_stored() -> None:
    source = """function (K[N, N]) -> (C) {
        R[i] = mean(K[i, j]); S[j] = mean(K[i, j]); C[i, j] = K[i, j] - R[i] - S[j];
    }"""
    found = lowered(source, (2048, 2048), (2048, 2048), gradient=True)
    assert found.cost().bytes_moved <= 4 * 2048 * 2048 * 4


def test_sums_across_rows_that_nearly_fill_a_block_have_one_each() -> None:
    """Blocks of 64 sums of 56 channels would begin inside of images, and read parts of two."""
    source = "function (I[N, H, W, C]) -> (O) { O[n, c : N, C] = mean(I[n, y, x, c]); }"
    for channels, own in ((56, True), (64, False), (33, False)):
        text = lowered(source, (32, 104, 144, channels)).source()
        assert ("BM=1, BN=64, BR=64" in text) == own
