"""Programs in 16 bits on a CUDA device: those that once failed to compile, or lost more than their type does."""

from __future__ import annotations

import pytest
import torch
from support.half_precision import CASES, check

import tilec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CONVOLUTION = "function (I[N, H, W, C], K[P, Q, C, O]) -> (Y) {{ Y[n, y, x, o : N, {}, {}, O] = +({}); }}"
REPAIRED = {
    "a stride in the kernel": CONVOLUTION.format("H - 4", "W - 2", "I[n, y + 2*j, x + 2*i, c] * K[j, i, c, o]"),
    "a stride in the image": CONVOLUTION.format("H/2", "W", "I[n, 2*y + j, x + i, c] * K[j, i, c, o]"),
    "a transposed convolution": CONVOLUTION.format("2*H", "W", "I[n, (y - j)/2, x - i, c] * K[j, i, c, o]"),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case: str, dtype: torch.dtype) -> None:
    check(case, dtype, "triton", "cuda")


@pytest.mark.parametrize("case", REPAIRED)
def test_sums_that_are_not_finite_are_recomputed_by_residue_class(case: str) -> None:
    """With torch's own convolutions among the candidates, whose zeros meet an infinity."""
    f, exact = tilec.compile(REPAIRED[case]), tilec.compile(REPAIRED[case], backend="torch")
    image, kernel = torch.randn(2, 9, 11, 3), torch.randn(3, 2, 3, 4)
    image[1, 4, 5, 1] = float("inf")
    y = exact(image.double(), kernel.double())
    torch.testing.assert_close(f(image.cuda(), kernel.cuda()).cpu().double(), y, rtol=1e-4, atol=1e-4, equal_nan=True)
    cotangent = torch.randn(y.shape)
    cotangent.view(-1)[7] = float("inf")
    kernel.view(-1)[5] = 0.0
    given = (image, kernel, cotangent)
    wanted = exact.grad()(*(t.double() for t in given))
    for g, w in zip(f.grad()(*(t.cuda() for t in given)), wanted, strict=True):
        torch.testing.assert_close(g.cpu().double(), w, rtol=1e-4, atol=1e-3, equal_nan=True)
