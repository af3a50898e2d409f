"""Two convolutions that are separate operations elsewhere and the same sentence here: grouped, and transposed."""

import torch
from checks import Checks

import tilec

grouped = tilec.compile("""
function (I[N, H, W, G, CI], K[KH, KW, G, CI, CO]) -> (O) {
    O[n, y, x, g, co : N, H - KH + 1, W - KW + 1, G, CO] = +(I[n, y + j, x + i, g, ci] * K[j, i, g, ci, co]);
}
""")
transposed = tilec.compile("""
function (I[N, H, W, CI], K[KH, KW, CI, CO]) -> (O) {
    O[n, 2*y + j, 2*x + i, co : N, 2*H + KH - 2, 2*W + KW - 2, CO] = +(I[n, y, x, ci] * K[j, i, ci, co]);
}
""")


def torch_grouped(image: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    n, h, w, g, ci = image.shape
    kh, kw, _, _, co = kernel.shape
    weight = kernel.permute(2, 4, 3, 0, 1).reshape(g * co, ci, kh, kw)
    y = torch.nn.functional.conv2d(image.reshape(n, h, w, g * ci).permute(0, 3, 1, 2), weight, groups=g)
    return y.permute(0, 2, 3, 1).reshape(n, h - kh + 1, w - kw + 1, g, co)


def torch_transposed(image: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    x, weight = image.permute(0, 3, 1, 2), kernel.permute(2, 3, 0, 1)
    return torch.nn.functional.conv_transpose2d(x, weight, stride=2).permute(0, 2, 3, 1)


def check(checks: Checks, name: str, f: tilec.Function, reference, image: torch.Tensor, kernel: torch.Tensor) -> None:
    image.requires_grad_(), kernel.requires_grad_()
    theirs = reference(image, kernel)
    d = torch.randn_like(theirs)
    checks.equal(f"{name}: value", f(image, kernel), theirs, 1e-5)
    wanted = torch.autograd.grad(theirs, (image, kernel), d)
    for what, ours, other in zip(("image", "kernel"), f.grad()(image, kernel, d), wanted, strict=True):
        checks.equal(f"{name}: gradient of the {what}", ours, other, 1e-5)
    image, kernel = image.detach(), kernel.detach()
    checks.time(name, lambda: f(image, kernel), lambda: reference(image, kernel))


def main() -> None:
    checks = Checks("Grouped and transposed convolution")
    torch.manual_seed(0)
    check(checks, "grouped", grouped, torch_grouped, torch.randn(2, 20, 21, 4, 8), torch.randn(3, 3, 4, 8, 8))
    check(checks, "transposed", transposed, torch_transposed, torch.randn(2, 14, 15, 16), torch.randn(3, 3, 16, 8))
    checks.finish()


if __name__ == "__main__":
    main()
