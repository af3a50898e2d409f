"""Pooling: maximum with its gradient shared among ties, average over the elements that are there, and overlapping."""

import torch
from checks import Checks

import tilec

maximum = tilec.compile("""
function (I[N, H, W, C]) -> (O) { O[n, y, x, c : N, H/2, W/2, C] = >(I[n, 2*y + j, 2*x + i, c]), j < 2, i < 2; }
""")
average = tilec.compile("""
function (I[N, H, W, C]) -> (O) {
    O[n, y, x, c : N, (H + 1)/2, (W + 1)/2, C] = mean(I[n, 2*y + j - 1, 2*x + i - 1, c]), j < 3, i < 3;
}
""")


def main() -> None:
    checks = Checks("Pooling\n  " + maximum.tile.strip().replace("\n", "\n  "))
    torch.manual_seed(0)
    image = torch.randn(2, 18, 17, 8, requires_grad=True)
    nchw = image.permute(0, 3, 1, 2)
    pool = torch.nn.functional
    theirs = pool.max_pool2d(nchw, 2).permute(0, 2, 3, 1)
    d = torch.randn_like(theirs)
    checks.equal("maximum: value", maximum(image), theirs, 0)
    checks.equal("maximum: gradient", maximum.grad()(image, d), torch.autograd.grad(theirs, image, d)[0], 1e-6)
    theirs = pool.avg_pool2d(nchw, 3, stride=2, padding=1, count_include_pad=False).permute(0, 2, 3, 1)
    d = torch.randn_like(theirs)
    checks.equal("average: value", average(image), theirs, 1e-6)
    checks.equal("average: gradient", average.grad()(image, d), torch.autograd.grad(theirs, image, d)[0], 1e-6)
    big = torch.randn(8, 64, 64, 32)
    checks.time("maximum, 8x64x64x32", lambda: maximum(big), lambda: pool.max_pool2d(big.permute(0, 3, 1, 2), 2))
    checks.finish()


if __name__ == "__main__":
    main()
