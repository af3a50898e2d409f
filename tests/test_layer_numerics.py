"""Layers where careless forms lose everything: far from zero, at the ends of the range, at infinities."""

from __future__ import annotations

import math

import pytest
import torch

import tilec

NORM = """function (X[N, D]) -> (Y) {
    M[i] = mean(X[i, j]);
    R[i] = rsqrt(mean((X[i, j] - M[i]) * (X[i, j] - M[i])) + 0.00001);
    Y[i, j] = (X[i, j] - M[i]) * R[i];
}"""
SOFTMAX = "Y[i, j] = exp(X[i, j] - max(X[i, k])) / sum(exp(X[i, k] - max(X[i, l])))"
LOG_SOFTMAX = """function (X[N, D]) -> (Y) {
    M[i] = max(X[i, k]);
    Y[i, j] = X[i, j] - M[i] - logsumexp(X[i, k] - M[i]);
}"""
SOFTMAX_16 = """function (X[N, D]) -> (Y) {
    Z[i, j] = exp(float32(X[i, j]) - max(X[i, k])) / sum(exp(float32(X[i, k]) - max(X[i, l])));
    Y = as_type(Z, X);
}"""
MASKED = """function (X[N, D]) -> (Y) {
    M[i] = max(i >= j ? X[i, j]);
    S[i] = sum(i >= j ? exp(X[i, j] - M[i]));
    Y[i, j] = i >= j ? exp(X[i, j] - M[i]) / S[i] : 0;
}"""


def with_gradient(f, x: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.detach().requires_grad_()
    y = f(x)
    return y.detach(), torch.autograd.grad(y, x, d.to(y.dtype))[0]


def compare(f, theirs, x: torch.Tensor, floor: float = 4) -> None:
    """Errors against float64 at most twice torch's own, in the value and in the gradient."""
    d = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    exact = with_gradient(theirs, x.double(), d)
    for ours, other, e in zip(with_gradient(f, x, d), with_gradient(theirs, x, d), exact, strict=True):
        scale = e.abs().max()
        limit = max(2 * float((other - e).abs().max()), floor * torch.finfo(x.dtype).eps * float(scale))
        assert torch.isfinite(ours).all() and float((ours - e).abs().max()) <= limit


@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4])
def test_a_variance_far_from_zero(offset: float) -> None:
    x = offset + torch.randn(16, 300, generator=torch.Generator().manual_seed(0))
    compare(tilec.compile(NORM), lambda t: torch.nn.functional.layer_norm(t, (300,)), x)


def test_a_variance_that_is_computed_in_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_LIBRARY", "0")
    x = 1e4 + torch.randn(600, 400, generator=torch.Generator().manual_seed(0))
    assert "slab" in tilec.compile(NORM).lower(x).source()
    compare(tilec.compile(NORM), lambda t: torch.nn.functional.layer_norm(t, (400,)), x)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4, 1e30])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_at_any_scale(name: str, scale: float) -> None:
    f = tilec.compile(SOFTMAX if name == "softmax" else LOG_SOFTMAX)
    x = scale * torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    compare(f, lambda t: getattr(torch, name)(t, 1), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_softmax_of_16_bits(dtype: torch.dtype) -> None:
    x = (10 * torch.randn(20, 30, generator=torch.Generator().manual_seed(0))).to(dtype)
    compare(tilec.compile(SOFTMAX_16), lambda t: torch.softmax(t, 1), x, floor=0.5)


def test_ends_of_the_range() -> None:
    inf, big = math.inf, 3e38
    rows = torch.tensor([[big, big, -big], [-big, -big, -big], [-inf, 0, -inf], [-inf, 1e4, 1e4]])
    halves = torch.tensor([[0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1, 0], [0, 0.5, 0.5]])
    torch.testing.assert_close(tilec.compile(SOFTMAX)(rows), halves)
    torch.testing.assert_close(tilec.compile("O[i] = logsumexp(X[i, k])")(rows), torch.logsumexp(rows, 1))
    _, g = with_gradient(tilec.compile(SOFTMAX), rows, torch.tensor([1.0, 2, 4]).expand(4, 3))
    _, theirs = with_gradient(lambda t: torch.softmax(t, 1), rows, torch.tensor([1.0, 2, 4]).expand(4, 3))
    torch.testing.assert_close(g, theirs)


def test_a_mask_leaves_no_nan_in_the_gradient() -> None:
    x = 50 * torch.randn(9, 9, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(9, 9, dtype=torch.bool).tril()
    compare(tilec.compile(MASKED), lambda t: torch.softmax(t.masked_fill(~mask, -math.inf), 1), x)
