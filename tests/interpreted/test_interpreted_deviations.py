"""Means and variances of rows that are walked block by block, found in one walk: as exact as in two."""

import os
from dataclasses import replace

import pytest
import torch
from support.layers import LAYERS, exact, inputs
from support.tiers import slow_but

import tilec
from tilec.backends.triton.fusion import members
from tilec.backends.triton.rows import rows
from tilec.backends.triton.rows import tiling as rows_tiling

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
VARIANCE = """function (X[R, C], W[R, C]) -> (V, D) {
    M[r] = mean(X[r, c]);
    V[r] = mean((X[r, c] - M[r]) * (X[r, c] - M[r]));
    D[r] = +(W[r, c] * (X[r, c] - M[r]));
    Y[r, c] = (X[r, c] - M[r]) * rsqrt(V[r] + 1.0);
}"""
BLOCK = 8


@pytest.fixture(params=[BLOCK, 64], ids=["blocks of 8", "blocks of 64"])
def looped(request, monkeypatch):
    def short(group, strides, types):
        t = rows_tiling.choose_row_tiling(group, strides, types)
        return replace(t, columns=min(t.columns, request.param)) if t.form == "looped" else t

    monkeypatch.setattr(rows, "choose_row_tiling", short)
    for module in (members, rows_tiling):
        monkeypatch.setattr(module, "ON_CHIP", 32)
    return request.param


def walks(source, *tensors):
    text = tilec.compile(source, backend="triton").lower(*tensors).source()
    return text.count("for first in range(") - text.count("range(0, 1, BN)")


def norm(x, w, b):
    return tilec.compile(LAYERS["layer norm"].source, backend="triton")(x, w, b)


def test_a_variance_has_no_walk_of_its_own(looped):
    x, w, b = inputs(LAYERS["layer norm"], 5, 100)
    assert walks(LAYERS["layer norm"].source, x, w, b) == 2
    other = LAYERS["layer norm"].source.replace("(X[r, c] - M[r]) * (X[r, c] - M[r])", "X[r, c] * M[r] * X[r, c]")
    assert walks(other, x, w, b) == 3
    of_another = """function (X[R, C], Z[R, C]) -> (Y) {
        M[r] = mean(Z[r, c]);
        V[r] = mean((X[r, c] - M[r]) * (X[r, c] - M[r]));
        Y[r, c] = X[r, c] * V[r];
    }"""
    assert walks(of_another, x, x) == 3
    some = LAYERS["layer norm"].source.replace("- M[r]));", "- M[r])), c < 50;")
    assert walks(some, x, w, b) == 3


@pytest.mark.parametrize("offset", slow_but((0.0, 1e2, 1e4, -1e6), (1e2, -1e6)))
@pytest.mark.covering
def test_far_from_zero(looped, offset):
    """Errors at most twice those of torch, in the value and in the gradient."""
    layer = LAYERS["layer norm"]
    given = inputs(layer, 6, 300)
    given[0] = offset + given[0]
    value, cotangent, gradient = exact(layer, given)
    leaves = [t.detach().requires_grad_() for t in given]
    theirs = layer.formula(*leaves)
    their_gradient = torch.autograd.grad(theirs, leaves, cotangent)
    ours = tilec.compile(layer.source, backend="triton")
    mine, my_gradient = ours(*given), ours.grad()(*given, cotangent)
    for got, other, want in zip((mine, *my_gradient), (theirs, *their_gradient), (value, *gradient), strict=True):
        scale = float(want.abs().max())
        limit = max(2 * float((other - want).abs().max()), 4 * torch.finfo(got.dtype).eps * scale)
        assert float((got - want).abs().max()) <= limit


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.covering
def test_first_blocks_unlike_the_rest(looped, dtype):
    """The mean of the first block far from the row's, single outliers, rows that do not vary at all."""
    x = torch.randn(6, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    x[0, :8] += 1000
    x[1, 0] = 3e3
    x[2, 199] = -3e3
    x[3] = 3.140625
    x[4, 8:] += 1000
    x, w = x.to(dtype), torch.randn(6, 200).to(dtype)
    v, d = tilec.compile(VARIANCE, backend="triton")(x, w)
    m = x.double().mean(1).to(dtype).double()[:, None]
    far = x.double() - m
    eps = torch.finfo(dtype).eps
    assert (v >= 0).all()
    torch.testing.assert_close(v.double(), (far * far).mean(1), rtol=(16 + 800 / looped) * eps, atol=1e3 * eps * eps)
    bound = 32 * eps * (w.double() * far).abs().sum(1)
    held = torch.finfo(torch.float32).eps if dtype.itemsize == 2 else eps
    spread = held * 200 * w.double().abs().sum(1) * (far.abs().amax(1) / 25)
    assert ((d.double() - (w.double() * far).sum(1)).abs() <= bound + spread + 1e-12).all()


def test_infinities_nan_and_overflow_come_out_as_in_two_walks(looped):
    x = torch.randn(9, 100, generator=torch.Generator().manual_seed(0))
    x[0, 3], x[1, 90], x[2, 5], x[3, 95] = float("inf"), float("-inf"), float("nan"), float("nan")
    x[4, 2], x[4, 70] = float("inf"), float("-inf")
    x[5] *= 1e30
    x[6] = 2.0**100
    x[7] = 3e38
    x[8, 50] = 1e25
    w = torch.randn(9, 100, generator=torch.Generator().manual_seed(1))
    v, d = tilec.compile(VARIANCE, backend="triton")(x, w)
    m = x.mean(1, keepdim=True)
    want = ((x - m) * (x - m)).mean(1)
    torch.testing.assert_close(v, want, rtol=1e-5, atol=0, equal_nan=True)
    assert torch.equal(d[:5].isnan(), torch.ones(5, dtype=torch.bool)) and d[[5, 6, 8]].isfinite().all()
    y = norm(x, torch.ones(100), torch.zeros(100))
    theirs = (x - m) * torch.rsqrt(want + 1e-5)[:, None]
    torch.testing.assert_close(y, theirs, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_two_runs_give_the_same_bits(looped):
    x, w, b = inputs(LAYERS["layer norm"], 3, 150)
    assert torch.equal(norm(x, w, b), norm(x, w, b))
