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
