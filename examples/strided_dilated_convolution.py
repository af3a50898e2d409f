"""A convolution with stride 3 and dilation 2, written as one line, and both of its gradients, which nobody wrote."""

import torch
from checks import Checks

import tilec

SOURCE = """
function (I[N, H, W, CI], K[KH, KW, CI, CO]) -> (O) {
    O[n, y, x, co : N, H/3, W/3, CO] = +(I[n, 3*y + 2*j, 3*x + 2*i, ci] * K[j, i, ci, co]);
}
"""

convolution = tilec.compile(SOURCE)
gradient = convolution.grad()


def torch_convolution(image: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """The same with torch: channels second, and zeros to the right, as Tile's rule for out-of-range reads implies."""
    height, width = (n // 3 for n in image.shape[1:3])
    bottom = 3 * (height - 1) + 2 * (kernel.shape[0] - 1) + 1 - image.shape[1]
    right = 3 * (width - 1) + 2 * (kernel.shape[1] - 1) + 1 - image.shape[2]
    x = torch.nn.functional.pad(image.permute(0, 3, 1, 2), (0, max(0, right), 0, max(0, bottom)))
    y = torch.nn.functional.conv2d(x, kernel.permute(3, 2, 0, 1), stride=3, dilation=2)
    return y[:, :, :height, :width].permute(0, 2, 3, 1)


def main() -> None:
    checks = Checks("Strided dilated convolution" + SOURCE.rstrip())
    print("\nIts gradient, as Tile:\n" + gradient.tile.strip() + "\n")
    torch.manual_seed(0)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        image = torch.randn(2, 32, 31, 16, dtype=dtype, requires_grad=True)
        kernel = torch.randn(3, 3, 16, 24, dtype=dtype, requires_grad=True)
        ours, theirs = convolution(image, kernel), torch_convolution(image, kernel)
        d_out = torch.randn_like(theirs)
        checks.equal(f"value, {dtype}", ours, theirs, tolerance)
        d_image, d_kernel = torch.autograd.grad(theirs, (image, kernel), d_out)
        ours_image, ours_kernel = gradient(image.detach(), kernel.detach(), d_out)
        checks.equal("  gradient of the image", ours_image, d_image, tolerance)
        checks.equal("  gradient of the kernel", ours_kernel, d_kernel, tolerance)
        through_autograd = torch.autograd.grad(ours, (image, kernel), d_out)
        checks.equal("  gradient of the image through torch.autograd", through_autograd[0], d_image, tolerance)

    image, kernel = torch.randn(8, 57, 57, 64), torch.randn(3, 3, 64, 64)
    checks.time("forward, 8x57x57x64", lambda: convolution(image, kernel), lambda: torch_convolution(image, kernel))
    image.requires_grad_(), kernel.requires_grad_()
    theirs = torch_convolution(image, kernel)
    d_out = torch.randn_like(theirs)
    arguments = image.detach(), kernel.detach(), d_out
    checks.time(
        "both gradients",
        lambda: gradient(*arguments),
        lambda: torch.autograd.grad(theirs, (image, kernel), d_out, retain_graph=True),
    )
    checks.finish()


if __name__ == "__main__":
    main()
