"""Pools, stencils, resizes, rearrangements."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tilec.bench.suite.convolutions import first, last
from tilec.bench.suite.workload import Formula, Workload

KIND = "window"
IMAGE_SIZES = "I: N H W C"
PLANES = {"N": (2, 16, 32), "H": (8, 56, 112), "W": (6, 56, 112), "C": (3, 64, 64)}
FIELD = {"H": (9, 2048, 8192), "W": (7, 2048, 8192)}


def _laplacian(x: torch.Tensor) -> torch.Tensor:
    p = F.pad(x, (1, 1, 1, 1))
    return p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * x


def _periodic(x: torch.Tensor) -> torch.Tensor:
    return x.roll(1, 0) + x.roll(-1, 0) + x.roll(1, 1) + x.roll(-1, 1) - 4 * x


def _blur(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    image = F.conv2d(x[None, None], k[None, None, :, None], padding=(k.shape[0] // 2, 0))
    return F.conv2d(image, k[None, None, None], padding=(0, k.shape[0] // 2))[0, 0]


def _variation(x: torch.Tensor) -> torch.Tensor:
    return (x[1:] - x[:-1]).abs().mean() + (x[:, 1:] - x[:, :-1]).abs().mean()


def _largest(window: int, stride: int, padding: int) -> Formula:
    """A maximum pool that shares a tie's gradient, as ours does: `F.max_pool2d` gives it to the first."""

    def largest(i: torch.Tensor) -> torch.Tensor:
        padded = F.pad(i, (0, 0, padding, padding, padding, padding), value=-torch.inf)
        windows = padded.unfold(1, window, stride).unfold(2, window, stride)
        return windows.amax((-2, -1))

    return largest


def _average(i: torch.Tensor) -> torch.Tensor:
    return last(F.avg_pool2d(first(i), 2))


WORKLOADS = (
    Workload("max pool 3x3, stride 2", KIND, """function (I[N, H, W, C]) -> (O) {
        O[n, y, x, c : N, (H - 1) / 2 + 1, (W - 1) / 2 + 1, C] = >(I[n, 2*y + j - 1, 2*x + i - 1, c]), j < 3, i < 3;
    }""", lambda i: last(F.max_pool2d(first(i), 3, 2, 1)), (IMAGE_SIZES,), PLANES,
             "float32", checked_by=_largest(3, 2, 1)),
    Workload("max pool 2x2", KIND, """function (I[N, H, W, C]) -> (O) {
        O[n, y, x, c : N, H/2, W/2, C] = >(I[n, 2*y + j, 2*x + i, c]), j < 2, i < 2;
    }""", lambda i: last(F.max_pool2d(first(i), 2)), (IMAGE_SIZES,), PLANES,
             "float32", checked_by=_largest(2, 2, 0)),
    Workload("average pool 2x2", KIND, """function (I[N, H, W, C]) -> (O) {
        O[n, y, x, c : N, H/2, W/2, C] = mean(I[n, 2*y + j, 2*x + i, c]), j < 2, i < 2;
    }""", _average, (IMAGE_SIZES,), PLANES),
    Workload("average over the image", KIND,
             "function (I[N, H, W, C]) -> (O) { O[n, c : N, C] = mean(I[n, y, x, c]); }",
             lambda i: i.mean((1, 2)), (IMAGE_SIZES,), PLANES),
    Workload("five-point stencil", KIND, """function (X[H, W]) -> (Y) {
        Y[y, x : H, W] = pad(X[y - 1, x], 0) + pad(X[y + 1, x], 0) + pad(X[y, x - 1], 0) + pad(X[y, x + 1], 0)
            - 4 * X[y, x];
    }""", _laplacian, ("X: H W",), FIELD, "float32"),
    Workload("periodic stencil", KIND, """function (X[H, W]) -> (Y) {
        Y[y, x : H, W] = X[(y - 1) % H, x] + X[(y + 1) % H, x] + X[y, (x - 1) % W] + X[y, (x + 1) % W] - 4 * X[y, x];
    }""", _periodic, ("X: H W",), FIELD, "float32"),
    Workload("separable blur of width 7", KIND, """function (X[H, W], K[7]) -> (Y) {
        V[y, x : H, W] = +(X[y + j - 3, x] * K[j]);
        Y[y, x : H, W] = +(V[y, x + i - 3] * K[i]);
    }""", _blur, ("X: H W", "K: 7"), {"H": (9, 1024, 4096), "W": (7, 1024, 4096)}, "float32", wrt=("X",)),
    Workload("total variation", KIND, """function (X[H, W]) -> (Y) {
        A[] = mean(abs(X[y + 1, x] - X[y, x]));
        B[] = mean(abs(X[y, x + 1] - X[y, x]));
        Y = A + B;
    }""", _variation, ("X: H W",), FIELD, "float32"),
    Workload("bilinear resize, twice", KIND, """function (I[N, H, W, C]) -> (O) {
        V[n, y, x, c : N, 2*H, W, C] = y % 2 == 0
            ? 0.25 * I[n, clamp(y/2 - 1, 0, H - 1), x, c] + 0.75 * I[n, y/2, x, c]
            : 0.75 * I[n, (y - 1)/2, x, c] + 0.25 * I[n, clamp((y + 1)/2, 0, H - 1), x, c];
        O[n, y, x, c : N, 2*H, 2*W, C] = x % 2 == 0
            ? 0.25 * V[n, y, clamp(x/2 - 1, 0, W - 1), c] + 0.75 * V[n, y, x/2, c]
            : 0.75 * V[n, y, (x - 1)/2, c] + 0.25 * V[n, y, clamp((x + 1)/2, 0, W - 1), c];
    }""", lambda i: last(F.interpolate(first(i), scale_factor=2, mode="bilinear")), (IMAGE_SIZES,), PLANES),
    Workload("nearest resize, twice", KIND, """function (I[N, H, W, C]) -> (O) {
        O[n, 2*y + j, 2*x + i, c : N, 2*H, 2*W, C] = I[n, y, x, c], j < 2, i < 2;
    }""", lambda i: last(F.interpolate(first(i), scale_factor=2)), (IMAGE_SIZES,), PLANES),
    Workload("pixel shuffle, 2", KIND, """function (I[N, H, W, D, 2, 2]) -> (O) {
        O[n, 2*y + j, 2*x + i, d : N, 2*H, 2*W, D] = I[n, y, x, d, j, i];
    }""", lambda i: last(F.pixel_shuffle(first(i, 3), 2)), ("I: N H W D 2 2",),
             {"N": (2, 16, 16), "H": (4, 64, 128), "W": (3, 64, 128), "D": (3, 16, 32)}),
    Workload("columns of windows (im2col)", KIND, """function (I[N, H, W, C]) -> (O) {
        O[n, y, x, j, i, c : N, H - 2, W - 2, 3, 3, C] = I[n, y + j, x + i, c];
    }""", lambda i: i.unfold(1, 3, 1).unfold(2, 3, 1).permute(0, 1, 2, 4, 5, 3).contiguous(),
             (IMAGE_SIZES,),
             {**PLANES, "C": (3, 32, 32)}),
    Workload("transposition of the last axes", KIND,
             "function (X[B, I, J]) -> (Y) { Y[b, j, i : B, J, I] = X[b, i, j]; }",
             lambda x: x.mT.contiguous(), ("X: B I J",), 
             {"B": (2, 16, 64), "I": (5, 1024, 2048), "J": (3, 1024, 2048)}),
)  # fmt: skip
