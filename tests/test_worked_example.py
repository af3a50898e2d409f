"""The strided dilated convolution: against torch, and against its derivative written out by hand in two other forms."""

from __future__ import annotations

import pytest
import torch

import tilec

CONVOLUTION = """
function (I[N, H, W, CI], K[KH, KW, CI, CO]) -> (O) {
    O[n, y, x, co : N, H/3, W/3, CO] = +(I[n, 3*y + 2*j, 3*x + 2*i, ci] * K[j, i, ci, co]);
}
"""

# The derivative of the mean of the convolution's values (2x3x3x7, so 1/126 each), sizes and all.
MEAN_DERIVATIVE = """
function (X_I_0[X_I_0_0, X_I_0_1, X_I_0_2, X_I_0_3], X_I_1[X_I_1_0, X_I_1_1, X_I_1_2, X_I_1_3]) -> (X_T4, X_T6) {
    X_T1 = 0.007936507936507936;
    X_T2[n, y, x, co : 2, 3, 3, 7] = +(X_T1[]);
    X_T3[n, 2*j + 3*y, 2*i + 3*x, ci : 2, 9, 9, 5] = +(X_T2[n, y, x, co] * X_I_0[j, i, ci, co]);
    X_T4 = ident(X_T3);
    X_T5[j, i, ci, co : 2, 2, 5, 7] = +(X_I_1[n, 2*j + 3*y, 2*i + 3*x, ci] * X_T2[n, y, x, co]);
    X_T6 = ident(X_T5);
}
"""

INPUT_DERIVATIVE = """
function (DO[N, OH, OW, CO], K[KH, KW, CI, CO]) -> (DI) {
    DI[n, 3*y + 2*j, 3*x + 2*i, ci : N, 3*OH, 3*OW, CI] = +(DO[n, y, x, co] * K[j, i, ci, co]);
}
"""


def torch_convolution(image: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """The same by torch; reads past the right and bottom border are zeros."""
    height, width = (n // 3 for n in image.shape[1:3])
    bottom, right = (2 * (k - 1) + 1 + 2 for k in kernel.shape[:2])
    x = torch.nn.functional.pad(image.permute(0, 3, 1, 2), (0, right, 0, bottom))
    y = torch.nn.functional.conv2d(x, kernel.permute(3, 2, 0, 1), stride=3, dilation=2)
    return y[:, :, :height, :width].permute(0, 2, 3, 1)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize(
    "size", [(9, 9, 2, 2), (57, 31, 3, 3), (8, 10, 1, 5), (3, 3, 4, 4), (2, 2, 1, 1), (20, 7, 2, 3)]
)
@pytest.mark.covering
def test_value_and_gradient_are_torchs(size: tuple[int, ...], dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    h, w, kh, kw = size
    image = torch.randn(2, h, w, 5, dtype=dtype, requires_grad=True)
    kernel = torch.randn(kh, kw, 5, 7, dtype=dtype, requires_grad=True)
    ours, theirs = tilec.compile(CONVOLUTION)(image, kernel), torch_convolution(image, kernel)
    d = torch.randn_like(theirs)
    pairs = zip(
        (ours, *torch.autograd.grad(ours, (image, kernel), d), *tilec.compile(CONVOLUTION).grad()(image, kernel, d)),
        (theirs, *torch.autograd.grad(theirs, (image, kernel), d) * 2),
        strict=True,
    )
    for a, b in pairs:
        torch.testing.assert_close(
            a, b, rtol=0, atol=tolerance * max(1.0, float(b.detach().abs().max()) if b.numel() else 0)
        )


def test_the_derivative_of_the_mean() -> None:
    torch.manual_seed(0)
    image = torch.randn(2, 9, 9, 5, requires_grad=True)
    kernel = torch.randn(2, 2, 5, 7, requires_grad=True)
    d_image, d_kernel = tilec.compile(MEAN_DERIVATIVE)(kernel.detach(), image.detach())
    tilec.compile(CONVOLUTION)(image, kernel).mean().backward()
    torch.testing.assert_close(d_image, image.grad)
    torch.testing.assert_close(d_kernel, kernel.grad)


def test_the_derivative_of_the_input() -> None:
    torch.manual_seed(0)
    image, kernel = torch.randn(2, 9, 12, 5), torch.randn(2, 2, 5, 7)
    d_out = torch.randn(2, 3, 4, 7)
    ours = tilec.compile(CONVOLUTION).grad("I")(image, kernel, d_out)
    torch.testing.assert_close(tilec.compile(INPUT_DERIVATIVE)(d_out, kernel), ours)
