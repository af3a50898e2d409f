"""torch's convolutions and their gradients, in the layouts and types that it is fast in."""

from __future__ import annotations

import torch

from tilec.backends.torch.certainty import finite
from tilec.backends.torch.exponentials import Ints

Tensor = torch.Tensor
SHORTEST_FRAME, MOST_OVERLAP = 64, 4


def convolution(x: Tensor, k: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> Tensor:
    """torch's convolution of [N, C, ...] with [C', C / groups, ...]."""
    if _widen(x, k):
        return convolution(x.float(), k.float(), stride, padding, dilation, groups).to(x.dtype)
    if _are_frames(x, k, stride, padding, dilation):
        return (x[:, 0].unfold(1, k.shape[2], stride[0]) @ k[:, 0].mT).mT
    zero = [0] * len(stride)
    return torch.convolution(_alone(x), _beside(x, k), None, stride, padding, dilation, False, zero, groups)


def convolution_input(
    g: Tensor, shape: Ints, k: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    """The gradient of `convolution` by x, of that shape. Of a channel each it is a convolution by the kernel turned
    round, which takes torch a 14th of the time on a CPU."""
    if _widen(g, k):
        return convolution_input(g.float(), shape, k.float(), stride, padding, dilation, groups).to(g.dtype)
    around = [d * (n - 1) - p for n, d, p in zip(k.shape[2:], dilation, padding, strict=True)]
    whole = [n + a - p for n, a, p in zip(g.shape[2:], around, padding, strict=True)]
    alone = k.shape[:2] == (groups, 1) and set(stride) == {1} and min(around) >= 0 and whole == list(shape[2:])
    if alone and g.device.type == "cpu" and g.numel():
        return convolution(g, k.flip(*range(2, k.dim())), stride, around, dilation, groups)
    x = _empty(shape, g)
    return _backward(g, x, _beside(g, k), stride, padding, dilation, groups, 0)


def convolution_kernel(
    g: Tensor, x: Tensor, shape: Ints, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    """The gradient of `convolution` by k, of that shape."""
    if _widen(g, x):
        return convolution_kernel(g.float(), x.float(), shape, stride, padding, dilation, groups).to(g.dtype)
    return _backward(g, x, _empty(shape, x), stride, padding, dilation, groups, 1)


def convolution_gradients(
    g: Tensor, x: Tensor, k: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int, transposed: bool = False
) -> tuple[Tensor, Tensor]:
    """The gradients of `convolution` by x and by k; `transposed`: those of `convolution_input`, of x and g's shape."""
    if _widen(g, x):
        by = convolution_gradients(g.float(), x.float(), k.float(), stride, padding, dilation, groups, transposed)
        return by[0].to(g.dtype), by[1].to(g.dtype)
    left = [0] * len(stride)  # of g's elements, behind those that the last window reaches
    if transposed:
        spatial = zip(g.shape[2:], x.shape[2:], k.shape[2:], stride, padding, dilation, strict=True)
        left = [n + 2 * p - d * (w - 1) - 1 - s * (m - 1) for n, m, w, s, p, d in spatial]
    backward, wanted = torch.ops.aten.convolution_backward, [True, True, False]
    k = _beside(x, k)
    return backward(_alone(g), _alone(x), k, None, stride, padding, dilation, transposed, left, groups, wanted)[:2]


def _backward(g, x, k, stride, padding, dilation, groups, which):
    zero, mask = [0] * len(stride), [which == 0, which == 1, False]
    backward = torch.ops.aten.convolution_backward
    return backward(_alone(g), _alone(x), k, None, stride, padding, dilation, False, zero, groups, mask)[which]


def _widen(a: Tensor, b: Tensor) -> bool:
    """Whether a convolution of these is one in float32: on the CPU, of float16, and of bfloat16 with infinities, which
    oneDNN multiplies by zeros where it fills pairs of terms up."""
    return a.device.type == "cpu" and (a.dtype is torch.float16 or a.dtype is torch.bfloat16 and not finite(a, b))


def _are_frames(x: Tensor, k: Tensor, stride: Ints, padding: Ints, dilation: Ints) -> bool:
    """Whether the windows are long frames of one signal that hardly overlap, as those of a spectrum: stored one after
    the other they are a matrix, whose product takes a GPU a quarter of the time."""
    few = k.dim() == 3 and k.shape[1] == x.shape[1] == 1 and (*padding, *dilation) == (0, 1)
    return few and k.shape[2] >= SHORTEST_FRAME and k.shape[2] <= MOST_OVERLAP * stride[0] and x.is_cuda


def _alone(x: Tensor) -> Tensor:
    """The same elements, where one image has a stride that is less than its size: torch takes channels that lie
    innermost for others then, and gradients by kernels in float64 are wrong."""
    if x.shape[0] != 1 or x.stride(0) >= x.numel() or _format(x) is torch.contiguous_format:
        return x
    return x.as_strided(x.shape, (x.numel(), *x.stride()[1:]))


def _empty(shape: Ints, beside: Tensor) -> Tensor:
    """A tensor of which only shape and layout matter, laid out like the other one."""
    return torch.empty(shape, dtype=beside.dtype, device=beside.device, memory_format=_format(beside))


def _beside(x: Tensor, k: Tensor) -> Tensor:
    """The kernel in the layout that goes with x. One stored as [height, width, in, out] is a matrix to transpose, which
    torch does much faster than the same permutation of four dimensions."""
    if x.dim() != 4 or _format(x) is torch.contiguous_format or k.is_contiguous(memory_format=torch.channels_last):
        return k
    stored = k.permute(2, 3, 1, 0)
    if not stored.is_contiguous():
        return k
    height, width, ins, outs = stored.shape
    return stored.flatten(0, 2).mT.contiguous().view(outs, height, width, ins).permute(0, 3, 1, 2)


def _format(t: Tensor) -> torch.memory_format:
    if t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous():
        return torch.channels_last
    if t.dim() == 5 and t.is_contiguous(memory_format=torch.channels_last_3d) and not t.is_contiguous():
        return torch.channels_last_3d
    return torch.contiguous_format
