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


def test_the_library_is_called_where_blocks_are_not_values_at_hand():
    a, b = torch.randn(40, 50), torch.randn(50, 30)
    source = "C[i, j] = +(sin(A[i, k] * B[k, j]))"
    f = tilec.compile(source, backend="triton")
    assert (
        "sine_(" not in f.lower(a, b).source()
        and "near_sine_" in tilec.compile(SOURCE, backend="triton").lower(a).source()
    )
    torch.testing.assert_close(f(a, b), torch.sin(a[:, :, None] * b).sum(1), rtol=1e-4, atol=1e-4)
