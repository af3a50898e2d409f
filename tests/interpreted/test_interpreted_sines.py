"""Sines and cosines of blocks: accurate near zero and far from it, whatever else is in the block."""

import math
import os

import pytest
import torch

import tilec

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
SOURCE = "function (X[R, C]) -> (S, K) { S[r, c] = sin(X[r, c]); K[r, c] = cos(X[r, c]); }"


def both(x):
    return tilec.compile(SOURCE, backend="triton")(x)


def units(got, exact):
    """Errors in units in the last place of the exact value."""
    _, exponent = torch.frexp(exact)
    return (got.double() - exact).abs() / torch.ldexp(
        torch.ones((), dtype=torch.float64), exponent.clamp(min=-125) - 24
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("range_", [1e-6, 1.0, 10.0, 1e3, 1e5, 1e30])
def test_at_most_two_units_off(range_):
    x = (
        (torch.rand(64, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2 - 1) * range_
    ).float()
    s, k = both(x)
    assert units(s, torch.sin(x.double())).max() < 2.1
    assert units(k, torch.cos(x.double())).max() < 2.1


def test_near_the_zeros_of_both():
    """Multiples of pi / 2 as near as float32 has them, where the reduction must keep every digit."""
    x = (torch.arange(-60000, 60000, dtype=torch.float64) * (math.pi / 2)).float().reshape(120, 1000)
    s, k = both(x)
    assert units(s, torch.sin(x.double())).max() < 2.3
    assert units(k, torch.cos(x.double())).max() < 2.3


def test_one_far_element_does_not_change_the_others():
    x = torch.linspace(-50, 50, 1000).reshape(1, 1000)
    far = x.clone()
    far[0, 17], far[0, 500], far[0, 501], far[0, 999] = 1e30, float("inf"), float("nan"), -2e5
    near = torch.ones(1000, dtype=torch.bool)
    near[[17, 500, 501, 999]] = False
    for mine, other, function in zip(both(far), both(x), (torch.sin, torch.cos), strict=True):
        assert torch.equal(mine[0, near], other[0, near])
        torch.testing.assert_close(mine, function(far), equal_nan=True, rtol=3e-7, atol=0)


def test_zeros_keep_their_signs_and_tiny_values_are_themselves():
    x = torch.tensor([[0.0, -0.0, 1e-40, -1e-40, 1e-20, 0.5]])
    s, k = both(x)
    assert torch.equal(s[0, :5], x[0, :5]) and torch.equal(s.signbit(), x.signbit())
    assert torch.equal(k[0, :5], torch.ones(5))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_types(dtype):
    x = (torch.randn(7, 40, dtype=torch.float64) * 100).to(dtype)
    for mine, theirs in zip(both(x), (torch.sin(x), torch.cos(x)), strict=True):
        torch.testing.assert_close(mine, theirs)
    source = "function (A[R], X[R, C]) -> (Y) { Y[r, c] = X[r, c] * sin(A[r]) + cos(A[0]); }"
    a = x[:, 0].contiguous()
    y = tilec.compile(source, backend="triton")(a, x)
    torch.testing.assert_close(y, tilec.compile(source, backend="torch")(a, x))


SUMS = {
    "rows": ("O[i] = sum(cos(X[i, k] - 3) * 2 + 1)", (3, 300)),
    "all": ("O = sum(sin(X[i]))", (3000,)),
    "pairs": ("O[i, j] = sum(sin(X[i, k] * W[k, j]) * V[k])", (5, 40), (40, 7), (40,)),
    "windows": (
        "function (I[N, H, C], K[T, C, D]) -> (O) { O[n, y, d : N, H, D] = +(sin(I[n, y + t, c] * K[t, c, d])); }",
        (2, 12, 16), (3, 16, 32),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_sums_are_added_up_again_where_terms_are_far(name):
    source, *shapes = SUMS[name]
    f, exact = (tilec.compile(source, backend=backend) for backend in ("triton", "torch"))
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(shape, generator=generator) for shape in shapes]
    text = f.lower(*given).source()
    assert "sine_or_nan_(" in text and "libdevice." in text
    for value in (1.0, 2.0**21, math.inf, math.nan):  # powers of two, whose products are exact
        given[0].view(-1)[3] = value
        wanted = exact(*(t.double() for t in given))
        for other in given[1:]:
            other.view(-1)[3 if name != "windows" else 100] = 0.5
        wanted = exact(*(t.double() for t in given))
        found = f(*given)
        assert torch.equal(found.isnan(), wanted.isnan())
        finite = wanted.isfinite()
        if value == 2.0**21 and len(shapes) > 1:
            finite = torch.zeros_like(finite)  # products of it are rounded by more than their sines tell
        torch.testing.assert_close(found[finite].double(), wanted[finite], rtol=1e-5, atol=1e-5)


def test_sines_that_a_sum_may_lose_are_the_librarys():
    """A comparison is false of what is no number."""
    a, b = torch.randn(40, 50) * 1e6, torch.randn(50, 30)
    for body in ("sin(A[i, k] * B[k, j]) > 0 ? 1 : 0", "abs(sin(A[i, k] * B[k, j]))"):
        f = tilec.compile(f"C[i, j] = sum({body})", backend="triton")
        assert "or_nan_" not in f.lower(a, b).source()
        torch.testing.assert_close(f(a, b), tilec.compile(f.source, backend="torch")(a, b).to(f(a, b).dtype))
