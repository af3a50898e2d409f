"""softplus, logaddexp and sigmoid: accurate from the smallest to the largest, and right where nothing is added."""

import os

import pytest
import torch

import tilec

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
INFINITY = float("inf")
EDGES = torch.tensor([INFINITY, -INFINITY, float("nan"), 0.0, -0.0, 1e-45, -1e-45, 1e-40, 100.0, -87.5, -103.0, -3e38])
SOFTPLUS = tilec.compile("function (X[N]) -> (Y) { Y[i : N] = softplus(X[i]); }", backend="triton")
BOTH = tilec.compile("function (A[N], B[M]) -> (Y) { Y[i, j : N, M] = logaddexp(A[i], B[j]); }", backend="triton")


def units(got, exact):
    """Errors in units in the last place of the exact value."""
    digits, least = {torch.float32: (24, -125), torch.float64: (53, -1021)}[got.dtype]
    exponent = torch.frexp(exact).exponent.clamp(min=least) - digits
    return (got.double() - exact).abs() / torch.ldexp(torch.ones_like(exact), exponent)


@pytest.mark.parametrize(
    "x", [torch.linspace(-110, 110, 100_001), *(s * torch.logspace(-45, 2, 10_000) for s in (1, -1))]
)
def test_softplus_is_at_most_two_units_off(x):
    wide = x.double()
    exact = torch.logaddexp(wide, torch.zeros_like(wide))
    assert units(SOFTPLUS(x), exact).max() < 2.1
    assert units(SOFTPLUS(wide), exact).max() <= 3  # torch's own is rounded too


def test_logaddexp_is_as_accurate_as_torch():
    """Where the two terms cancel, an error of the sum is one of the greater term."""
    generator = torch.Generator().manual_seed(0)
    a, b = (20 * torch.randn(60, generator=generator) for _ in range(2))
    exact = torch.logaddexp(a.double()[:, None], b.double())
    error = (BOTH(a, b).double() - exact).abs()
    top = torch.maximum(a[:, None], b).abs().clamp(min=1)
    assert (error / top).max() <= 2.0**-22
    assert torch.equal(BOTH(a, b), BOTH(b, a).T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_infinities_nan_and_the_smallest(dtype):
    x = EDGES.to(dtype)
    zeros = torch.zeros_like(x)
    torch.testing.assert_close(SOFTPLUS(x), torch.logaddexp(x, zeros), equal_nan=True, rtol=3e-7, atol=2e-45)
    torch.testing.assert_close(BOTH(x, x), torch.logaddexp(x[:, None], x), equal_nan=True, rtol=3e-7, atol=2e-45)


@pytest.mark.parametrize("x", [torch.linspace(-110, 110, 100_001), EDGES])
def test_sigmoid_has_no_branches(x):
    f = tilec.compile(
        "function (X[N]) -> (Y, Z) { Y[i : N] = sigmoid(X[i]); Z[i : N] = silu(X[i]); }", backend="triton"
    )
    assert "div_rn" not in f.lower(x).source()
    for dtype in (torch.float32, torch.float64):
        wide = x.to(dtype).double()
        for got, exact in zip(f(x.to(dtype)), (wide.sigmoid(), torch.nn.functional.silu(wide)), strict=True):
            assert torch.equal(got.isnan(), exact.isnan())
            kept = exact.isfinite() & ~(wide < -87)  # silu is x times what is subnormal there
            assert units(got[kept], exact[kept]).max() < 4
