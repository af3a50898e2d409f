"""Rows that begin anywhere in a vector: read and stored in vectors, and element by element at their ends."""

import os
from dataclasses import replace

import pytest
import torch
from support.allocated import shapes
from support.layers import LAYERS, exact, inputs

import tilec
from tilec.backends.triton.fusion import members
from tilec.backends.triton.rows import alignment_peeling, rows, walks
from tilec.backends.triton.rows import tiling as rows_tiling

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)


HELD = ["held, a row a program", "held, two rows", "held, walked"]


@pytest.fixture(autouse=True, params=[1, 4, *HELD], ids=["a row a program", "four rows", *HELD])
def way(monkeypatch, request):
    """Rows of 40 columns are long, and blocks hold 16 of them; or a block holds all, and programs may walk the rows."""
    if request.param in HELD:
        monkeypatch.setattr(alignment_peeling, "FEWEST_VECTORS", 4)
        monkeypatch.setattr(walks, "LEAST_PARTED", 16)
        parts = 9 if request.param == "held, walked" else 0
        monkeypatch.setattr(rows, "odd", lambda t, group, types: replace(t, parts=t.parts or parts))

        def hold(group, strides, types):
            t = rows_tiling.choose_row_tiling(group, strides, types)
            rows_, most = 2 if request.param == "held, two rows" else 1, group.count(group.rows)
            return replace(t, rows=rows_, parts=min(most, 19) if t.parts else 0) if t.form == "whole" else t

        monkeypatch.setattr(rows, "choose_row_tiling", hold)
        return request.param

    def choose(group, strides, types):
        t = rows_tiling.choose_row_tiling(group, strides, types)
        if t.form == "whole" or t.rows * t.columns <= 16:
            return t
        rows_ = request.param if t.form == "looped" else 1
        return replace(
            t, rows=rows_, columns=min(t.columns, 16), parts=min(group.count(group.rows), 19) if t.parts else 0
        )

    monkeypatch.setattr(rows, "choose_row_tiling", choose)
    for module in (members, rows_tiling):
        monkeypatch.setattr(module, "ON_CHIP", 32)
    return request.param


@pytest.mark.parametrize(
    ("name", "width", "dtype"),
    [
        *((name, 51, torch.float32) for name in ("layer norm", "RMS norm", "softmax", "bias and SiLU")),
        *(("layer norm", width, torch.bfloat16) for width in (35, 49, 66)),
        ("softmax", 35, torch.float64),
    ],
    ids=str,
)
@pytest.mark.covering
@pytest.mark.one_in(3)
def test_layers(name, width, dtype):
    layer = LAYERS[name]
    given = inputs(layer, 7, width, dtype)
    f = tilec.compile(layer.source, backend="triton")
    value, cotangent, gradient = exact(layer, given)
    tolerance = {torch.float32: 2e-5, torch.float64: 1e-11, torch.bfloat16: 0.06}[dtype]
    got = (f(*given), *(r if isinstance(r := f.grad()(*given, cotangent.to(dtype)), tuple) else (r,)))
    for mine, theirs in zip(got, (value, *gradient), strict=True):
        scale = max(1.0, theirs.abs().max().item())
        torch.testing.assert_close(mine.double(), theirs, rtol=tolerance, atol=tolerance * scale)


def kernels(name, width, dtype=torch.float32):
    layer = LAYERS[name]
    given = inputs(layer, 21, width, dtype)
    f = tilec.compile(layer.source, backend="triton")
    return f.lower(*given).source(), f.grad().lower(*given, given[0]).source()


@pytest.mark.one_in(3)  # of the ways to take rows
def test_odd_widths_alone_are_aligned(way):
    """Rows that are held are read in place where a thread reads two elements at once."""
    in_place = {(50, torch.float32), (52, torch.bfloat16)} if way in HELD else set()
    for width, dtype, aligned in (
        (51, torch.float32, True), (50, torch.float32, True), (52, torch.float32, False),
        (52, torch.bfloat16, True), (51, torch.float64, True), (50, torch.float64, False), (20, torch.float32, False),
    ):  # fmt: skip
        forward, backward = kernels("layer norm", width, dtype)
        aligned = aligned and (width, dtype) not in in_place
        assert ("origin" in forward) == aligned == ("origin" in backward)


def test_sums_over_rows_take_rows_that_begin_alike(way):
    _, backward = kernels("layer norm", 51)
    step = 8 if way == "held, two rows" else 4
    assert "start += down % 4" in backward and f"range(start, end, {step}" in backward
    assert (16, 51) in shapes(backward)  # a multiple of 4 of the parts there may be


@pytest.mark.one_in(3)
def test_strided_rows_and_views_of_a_larger_tensor():
    """Rows apart by an odd step, a first element that is no vector's, inputs whose rows begin unlike each other."""
    layer = LAYERS["softmax"]
    f = tilec.compile(layer.source, backend="triton")
    large = torch.randn(7, 57)
    for x in (large[2:, 3:50], large[1:, :49], torch.randn(47, 5).T, large[:5, 8:55]):
        torch.testing.assert_close(f(x), torch.softmax(x, 1))
        d = torch.randn(x.shape)
        leaf = x.detach().double().requires_grad_()
        (want,) = torch.autograd.grad(torch.softmax(leaf, 1), leaf, d.double())
        torch.testing.assert_close(f.grad()(x, d).double(), want, rtol=1e-5, atol=1e-6)


def test_neighbouring_rows_do_not_leak():
    x = torch.randn(9, 51)
    x[2], x[5, 0], x[5, 50] = float("nan"), float("inf"), float("nan")
    y = tilec.compile(LAYERS["layer norm"].source, backend="triton")(x, torch.ones(51), torch.zeros(51))
    bad = torch.tensor([r in (2, 5) for r in range(9)])
    assert y[bad].isnan().all() and y[~bad].isfinite().all()


@pytest.mark.one_in(3)
def test_two_runs_give_the_same_bits():
    f = tilec.compile(LAYERS["layer norm"].source, backend="triton")
    given = inputs(LAYERS["layer norm"], 6, 51)
    first = (f(*given), *f.grad()(*given, given[0]))
    assert all(torch.equal(a, b) for a, b in zip(first, (f(*given), *f.grad()(*given, given[0])), strict=True))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("dtype", "own"), [(torch.float32, 4), (torch.float64, 2)])
@pytest.mark.covering
def test_each_tensor_is_read_to_the_end_of_its_own_16_bytes(dtype, own):
    """Beside an output of which 16 bytes are more elements."""
    source = "function (X[R, C]) -> (Y) { M[r] = max(X[r, c]); Y[r, c] = float16(exp(X[r, c] - M[r])); }"
    x = torch.randn(5, 83, dtype=dtype)
    function = tilec.compile(source, backend="triton")
    assert f"(place // {own} * {own}) < span" in function.lower(x).source()
    torch.testing.assert_close(function(x), torch.exp(x - x.amax(1, keepdim=True)).half(), rtol=2e-3, atol=1e-6)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.int8, torch.bool])
@pytest.mark.covering
def test_blocks_no_longer_than_a_vector(dtype):
    source = """function (X[R, C], B[R, C]) -> (Y) {
        M[r] = mean(X[r, c]);
        V[r] = mean((X[r, c] - M[r]) * (X[r, c] - M[r]));
        Y[r, c] = (X[r, c] - M[r]) * rsqrt(V[r] + 1.0) + float32(B[r, c]);
    }"""
    x, b = torch.randn(51, 64).t(), torch.randint(0, 2, (64, 51)).to(dtype)
    found, wanted = (tilec.compile(source, backend=name)(x, b) for name in ("triton", "torch"))
    torch.testing.assert_close(found, wanted)
