"""Kernels in 16 bits, interpreted on the CPU: programs that once failed to compile, or lost more than their type."""

import os

import pytest
import torch
from support.half_precision import CASES, check

import tilec

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.one_in(3)
def test_values_and_gradients(case, dtype):
    check(case, dtype, "triton", "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
def test_casts_to_bfloat16_and_back_round_as_hardware_does(dtype):
    numbers = torch.tensor([1.00390625, 1.01171875, -3.3, 257, 2.0**-130, 255, float("inf"), float("nan")]).double()
    x = (numbers if dtype.is_floating_point else numbers[:6]).to(dtype)
    there = tilec.compile("function (X) -> (Y) { Y = bfloat16(X) * 1; }", backend="triton")
    torch.testing.assert_close(there(x), x.bfloat16(), rtol=0, atol=0, equal_nan=True)
    back = tilec.compile(f"function (X) -> (Y) {{ Y = {str(dtype)[6:]}(X); }}", backend="triton")
    torch.testing.assert_close(back(x.bfloat16()[:6]), x.bfloat16()[:6].to(dtype), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_at_their_ends():
    """As torch has them, in both widths."""
    ends = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 100.0, -100.0, 1e-30])
    for name in ("softplus", "sigmoid", "silu", "tanh", "relu", "erf", "abs", "exp", "expm1", "atan", "recip", "gelu"):
        f, g = (tilec.compile(f"function (X) -> (Y) {{ Y = {name}(X); }}", backend=b) for b in ("triton", "torch"))
        for x in (ends, ends.double()) if name != "gelu" else (ends[1:],):  # torch's own is NaN at infinity
            torch.testing.assert_close(f(x), g(x), rtol=1e-5, atol=1e-37, equal_nan=True, msg=name)


def test_a_maximum_is_found_again_whoever_computed_what_it_was_made_of():
    """What is compared with an extremum is computed from 16-bit values as stored, in the kernel of the extremum too."""
    text = (
        "function (A[N], B[N], W[M]) -> (Y)"
        " { T[i] = A[i] / (2 + B[i] * B[i]); Y[i : N] = max(erf(B[i]) - W[4*i/3] * T[i]); }"
    )
    g = torch.Generator().manual_seed(0)
    a, b, w = (torch.randn(n, generator=g).to(torch.bfloat16) for n in (48, 48, 63))
    got, expected = (
        tilec.compile(text, backend=name).grad(("W",))(a, b, w, torch.ones(48, dtype=torch.bfloat16))
        for name in ("triton", "torch")
    )
    torch.testing.assert_close(got, expected, rtol=0.02, atol=0)


def test_a_maximum_that_was_kept_is_found_again():
    f = tilec.compile(
        "function (X[N, M], W[M]) -> (Y) { S[i] = sum(exp(X[i, j])); Y[i] = max(X[i, j] * W[j] / S[i]); }",
        backend="triton",
    )
    g = torch.Generator().manual_seed(0)
    x = torch.randn(24, 8, generator=g).to(torch.bfloat16).requires_grad_()
    f(x, torch.rand(8, generator=g).to(torch.bfloat16) + 0.5).sum().backward()
    assert (x.grad.abs().sum(1) > 0).all()
