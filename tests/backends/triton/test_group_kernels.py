"""What the kernels of statements together are like: blocks, walks, vectors, what is compiled."""

import re

import pytest
import torch
from support.allocated import allocated
from support.layers import DROPOUT, LAYERS, inputs
from support.lowering import kernels, launches, specs

import tilec


def test_few_long_rows_are_split_over_programs():
    layer = LAYERS["layer norm"]
    f = tilec.compile(layer.source, backend="triton")
    found = kernels(f, *(tilec.spec(s) for s in layer.shapes(2, 2**20)))
    assert all(len(k) <= 2 for k in found) and len(found) > 2


def test_one_row_is_one_kernel():
    """Variables of a single value link statements as others do."""
    for name in ("layer norm", "RMS norm", "softmax"):
        layer = LAYERS[name]
        f = tilec.compile(layer.source, backend="triton")
        given = [tilec.spec(s) for s in layer.shapes(1, 8192)]
        assert len(kernels(f, *given)) == len(kernels(f.grad(), *given, tilec.spec((1, 8192)))) == 1
    apart = "function (X[1, N], Z[1, M]) -> (A, B) { A[i, j] = X[i, j] + 1; B[i, k] = Z[i, k] * 2; }"
    assert launches(apart, (1, 1000), (1, 10**6)) == [("A",), ("B",)]


def test_statistics_that_wait_for_the_same_exchange_stand_together():
    """The gradient of a layer norm has four sums over a row, of which two need the mean: two exchanges."""
    layer = LAYERS["layer norm"]
    given = [tilec.spec(s) for s in (*layer.shapes(4096, 8192), (4096, 8192))]
    source = tilec.compile(layer.source, backend="triton").grad().lower(*given, target="sm_90").source()
    (first, *_) = source.split("def program")
    body = first[first.index("DX_rows" if "def DX_rows" in first else "_rows(") :]
    assert body.count("add_two_)") == 3 and "tl.sum(value" not in body  # one of them combines the partial sums


def test_what_a_block_needs_is_read_before_functions_that_look_at_all_of_it():
    layer = LAYERS["snake"]
    f = tilec.compile(layer.source, backend="triton")
    given = [tilec.spec(s) for s in ((16, 512, 8192), (512,))]
    source = f.grad().lower(*given, given[0], target="sm_90").source()
    loop = source[source.index("for first in range(0, n_") :]
    assert max(loop.index("tl.load(X"), loop.index("tl.load(DY")) < loop.index("sine_(")
    assert "+ row[:, None] *" in loop  # batch and channel lie in memory as rows follow each other
    forward = f.lower(*given, target="sm_90")
    assert "num_warps=1" in forward.source()  # nobody waits for another warp
    body = forward.asm("ptx").split(".entry")[1]
    assert "bar.sync" not in body and "ld.global.v4" in body


def test_a_quotient_by_what_a_row_shares_has_no_division_inside():
    layer = LAYERS["softmax"]
    lowered = tilec.compile(layer.source, backend="triton").lower(tilec.spec((64, 1000)), target="sm_90")
    assert "times_inverse_" in lowered.source()
    assert lowered.asm("ptx").count("div.rn.f32") <= 4  # rows of a block; a thread has 32 elements


def test_rows_vectorize_at_widths_that_sixteen_does_not_divide():
    layer = LAYERS["layer norm"]
    f = tilec.compile(layer.source, backend="triton")
    for width, wide in ((1000, True), (1023, False), (50257, True)):
        ptx = f.lower(*(tilec.spec(s) for s in layer.shapes(64, width)), target="sm_90").asm("ptx")
        assert ("ld.global.v4" in ptx) == wide


def test_draws_take_a_quarter_of_the_generator():
    given = tilec.spec((64, 1000)), tilec.spec((64, 1000)), tilec.spec((), "int64")
    ptx = tilec.compile(DROPOUT, backend="triton").lower(*given, target="sm_90").asm("ptx")
    each = """function (X[R, C], Z[R, C], S[]) -> (Y) {
        Y[r, c] = (rand(S, 3 * c + C * r) < 0.9 ? X[r, c] / 0.9 : 0.0) + Z[r, c];
    }"""
    slow = tilec.compile(each, backend="triton").lower(*given, target="sm_90").asm("ptx")
    assert 2 * ptx.count("mul.hi") <= slow.count("mul.hi")


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.covering
@pytest.mark.one_in(4)
def test_layers_compile(name, dtype, target):
    layer = LAYERS[name]
    f = tilec.compile(layer.source, backend="triton")
    given = specs(inputs(layer, 6, 72, dtype))
    lowered = f.lower(*given, target=target)
    assert lowered.asm("cubin")
    (out,) = lowered.outputs
    assert f.grad().lower(*given, tilec.spec(out.shape, out.dtype), target=target).asm("cubin")


def test_the_number_of_partial_rows_can_be_set(monkeypatch):
    layer = LAYERS["layer norm"]
    f = tilec.compile(layer.source, backend="triton").grad()
    given = [tilec.spec(s) for s in (*layer.shapes(4096, 1024), (4096, 1024))]
    assert allocated(f.lower(*given, target="sm_90"))["DW_parts"][0] == (264, 1024)
    monkeypatch.setenv("TILEC_PARTIAL_ROWS", "48")
    assert allocated(f.lower(*given, target="sm_90"))["DW_parts"][0] == (48, 1024)


def test_the_gradient_of_a_cross_entropy_is_one_kernel():
    source = """function (X[R, V], T[R]) -> (L) {
        Z[r] = logsumexp(X[r, v]);
        P[r : R] = X[r, T[r]];
        L[] = mean(Z[r] - P[r]);
    }"""
    f = tilec.compile(source, backend="triton")
    given = [tilec.spec((64, 1000)), tilec.spec((64,), "int64")]
    assert len(kernels(f, *given)) == 2
    assert len(kernels(f.grad(), *given, tilec.spec(()))) == 1


def test_what_rows_and_columns_read_is_read_through():
    source = """function (S[N, N], K[N], G[N]) -> (Y) {
        H[i] = +(G[i]);
        D[i, i : N, N] = +(-G[i]);
        B[i, j] = H[j] * exp(S[i, j] - K[j]);
        A[i, j] = H[i] * exp(S[i, j]);
        Y[i, j] = D[i, j] + A[i, j] + B[i, j];
    }"""
    f = tilec.compile(source, backend="triton")
    assert len(kernels(f, tilec.spec((640, 640)), tilec.spec((640,)), tilec.spec((640,)))) == 1


def test_rows_under_way_fit_into_shared_memory():
    layer = LAYERS["layer norm"]
    f = tilec.compile(layer.source, backend="triton").grad()
    for width, dtype, stages in (
        (1024, "float32", 4),
        (8192, "bfloat16", 4),
        (16384, "float32", 2),
        (16384, "float64", 1),
    ):
        given = [tilec.spec(s, dtype) for s in (*layer.shapes(4096, width), (4096, width))]
        source = f.lower(*given, target="sm_80").source()
        assert f"num_stages={stages})" in source.split("def program")[1]


BATCH_NORM = """function (X[N, P, C], G[C], B[C]) -> (Y) {
    M[c] = mean(X[n, p, c]);
    V[c] = mean((X[n, p, c] - M[c]) * (X[n, p, c] - M[c]));
    Y[n, p, c] = (X[n, p, c] - M[c]) * rsqrt(V[c] + 0.00001) * G[c] + B[c];
}"""


def test_statistics_of_few_channels_over_many_rows_are_sums_over_programs():
    shape, channels = (64, 3136, 256), tilec.spec((256,))
    f = tilec.compile(BATCH_NORM, backend="triton")
    given = tilec.spec(shape), channels, channels
    found = kernels(f.grad(), *given, tilec.spec(shape))
    assert ("V_sum", "DV_total") in found and ("GX", "GX_1", "DX") in found, found
    assert not any({"M_sum", "V_sum"} <= set(k) for k in found), "four programs would walk X"
    forward = f.lower(*given, target="sm_90").kernels
    assert ("M_sum", "V_sum_away", "V_sum_squares") in [k.statements for k in forward], "one walk for both"
    combining = [k for k in forward if {"M_sum", "V_sum"} <= set(k.statements)]
    assert len(combining) == 1 and "tl.load(X " not in combining[0].source
    few = tilec.spec((8, 16, 256)), channels, channels
    assert len(kernels(f, *few)) == 1, "launches would cost more than what the other programs would gain"


def test_blocks_over_windows_have_neighbours_and_few_columns_to_spare():
    window = "O[n, y, x, c : N, H, W, C] = +(I[n, y + j, x + i, c] * K[j, i, c]);"
    f = tilec.compile(f"function (I[N, H, W, C], K[3, 3, C]) -> (O) {{ {window} }}", backend="triton")
    for channels, block in ((144, "BM=32, BN=32"), (96, "BM=32, BN=32"), (128, "BM=8, BN=128"), (64, "BM=16, BN=64")):
        lowered = f.lower(tilec.spec((2, 28, 28, channels)), tilec.spec((3, 3, channels)), target="sm_90")
        assert f"{block}, UNROLL=3" in lowered.source(), channels


@pytest.mark.parametrize(("dtype", "elements"), [("bfloat16", 4096), ("float32", 1024)])
def test_programs_of_16_bit_maps_have_more_elements(dtype, elements):
    """Where there are many of them: a program's places are worked out once for all of its elements."""
    f = tilec.compile("function (X[N, C], M[C]) -> (Y) { Y[n, c : N, C] = X[n, c] - M[c]; }", backend="triton")

    def block(rows: int) -> int:
        source = f.lower(tilec.spec((rows, 256), dtype), tilec.spec((256,), dtype), target="sm_90").source()
        (bm,) = re.findall(r"BM=(\d+), BN=256", source)
        return int(bm) * 256

    assert block(200_000) == elements and block(2000) == 1024


@pytest.mark.parametrize(("width", "masked"), [(65536, False), (66000, True)])
def test_walks_of_whole_blocks_are_not_masked(width, masked):
    f = tilec.compile(LAYERS["layer norm"].source, backend="triton")
    given = [tilec.spec(s, "float32") for s in ((64, width), (width,), (width,))]
    assert ("col_in" in f.lower(*given, target="sm_90").source()) == masked


IMAGE = "function (I[N, H, W, C]) -> (O) {"
WALKS = {  # what is walked, and how
    "a pool": (
        f"{IMAGE} O[n, y, x, c : N, H/2, W/2, C] = >(I[n, 2*y + j - 1, 2*x + i - 1, c]), j < 3, i < 3; }}",
        {"float32": "tl.static_range(0, 3)", "bfloat16": "tl.static_range(0, 3)"},
    ),
    "means": (
        f"{IMAGE} O[n, c : N, C] = mean(I[n, y, x, c]); }}",
        {"float32": "range(red_from, red_end, BR)", "bfloat16": "tl.range(red_from, red_end, BR, num_stages=3)"},
    ),
    "moments": (
        f"{IMAGE} M[c : C] = mean(I[n, y, x, c]); O[c : C] = mean((I[n, y, x, c] - M[c]) * (I[n, y, x, c] - M[c])); }}",
        {"float32": "BM, num_stages=4)", "bfloat16": "BM, num_stages=4)"},
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", WALKS)
def test_how_memory_is_walked(name, dtype):
    source, walks = WALKS[name]
    text = tilec.compile(source, backend="triton").lower(tilec.spec((32, 112, 112, 64), dtype), target="sm_90").source()
    assert walks[dtype] + ":" in text
