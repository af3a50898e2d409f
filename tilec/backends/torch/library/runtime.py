"""The calls of the table, as generated programs make them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from tilec.backends.torch.certainty import askable, finite

Tensor = torch.Tensor
_VECTOR = 16  # elements that torch takes at a time at most: what is left over of a row goes by how threads share rows


def softmax_and_statistics(x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """With the greatest element, and the sum of the exponentials of what the others are below it."""
    y = torch.softmax(x, dims[0])
    return y, x.amax(dims[0]), y.amax(dims[0]).reciprocal_()  # the greatest's own exponential is 1


def softmax_gradient(c: Tensor, x: Tensor, greatest: Tensor, total: Tensor, dims: Sequence[int]) -> tuple[Tensor]:
    """Through torch's own routine where its last bits do not depend on the number of threads."""
    (dim,) = dims
    y = (x - greatest.unsqueeze(dim)).exp_().div_(total.unsqueeze(dim))
    return (_by_softmax(c, y, dim),)


def _by_softmax(c: Tensor, y: Tensor, dim: int) -> Tensor:
    """The gradient by the argument of a softmax that is y."""
    if dim < y.dim() - 1 or y.shape[dim] % _VECTOR == 0:
        return torch._softmax_backward_data(c, y, dim, y.dtype)
    weighed = c * y
    return torch.addcmul(weighed, y, weighed.sum(dim, keepdim=True), value=-1, out=weighed)


def log_softmax_and_logarithms(x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor] | None:
    """With the logarithm of each row's sum. None where one is not finite: torch's rows are NaN there."""
    y = torch.log_softmax(x, dims[0])
    logarithm = x.amax(dims[0]) - y.amax(dims[0])
    return (y, logarithm) if finite(logarithm) else None


def log_softmax_gradient(c: Tensor, x: Tensor, logarithm: Tensor, dims: Sequence[int]) -> tuple[Tensor] | None:
    if not finite(logarithm):
        return None
    y = x - logarithm.unsqueeze(dims[0])
    return (torch._log_softmax_backward_data(c, y, dims[0], y.dtype),)


def layer_norm_and_statistics(
    x: Tensor, scale: Tensor | None, shift: Tensor | None, dims: Sequence[int], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """With means and variances; `dims` are the last ones."""
    y, mean, reciprocal = torch.native_layer_norm(x, x.shape[dims[0] :], _normal(scale), _normal(shift), eps)
    mean, variance = _moments(x, mean, reciprocal, dims, eps)
    return y, mean.view(x.shape[: dims[0]]), variance.view(x.shape[: dims[0]])


def _moments(x: Tensor, mean: Tensor, reciprocal: Tensor, dims: Sequence[int], eps: float) -> tuple[Tensor, Tensor]:
    """Means and variances of what a norm gives beside its result."""
    variance = reciprocal.pow(-2).sub_(eps)
    exact = askable(variance) and (variance.numel() == 0 or float(variance.amin()) > eps)
    if not exact:  # what is left of it beside eps
        mean = x.mean(tuple(dims), keepdim=True)  # torch's is NaN where an element is infinite
        variance = (x - mean).square_().mean(tuple(dims), keepdim=True)
    return mean, variance


def layer_norm_gradient(
    c: Tensor, x: Tensor, mean: Tensor, reciprocal: Tensor, scale: Tensor | None, dims: Sequence[int]
) -> tuple[Tensor]:
    """The input's; those of scale and shift depend on the number of threads in torch."""
    shape = (*x.shape[: dims[0]], *[1] * len(dims))
    statistics = mean.reshape(shape), reciprocal.reshape(shape)
    found = torch.ops.aten.native_layer_norm_backward(
        c, x, x.shape[dims[0] :], *statistics, _normal(scale), None, [True, False, False]
    )
    return (found[0],)


def group_norm_and_statistics(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, alone: bool
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Of [images, groups, channels of a group, pixels], with means and variances of each group, which nothing reads
    where the first is wanted `alone`. None where torch's sum of two products may be NaN for an infinity."""
    n, g, c, s = x.shape
    flat = scale.contiguous().view(g * c), shift.contiguous().view(g * c)
    y, mean, reciprocal = torch.native_group_norm(x.reshape(n, g * c, s).contiguous(), *flat, n, g * c, s, g, eps)
    if alone:
        return (y.view(n, g, c, s), mean, reciprocal) if finite(scale, 1 / reciprocal) else None
    mean, variance = _moments(x, mean.view(n, g, 1, 1), reciprocal.view(n, g, 1, 1), (2, 3), eps)
    return (y.view(n, g, c, s), mean.view(n, g), variance.view(n, g)) if finite(scale, variance) else None


def group_norm_gradient(
    d: Tensor, x: Tensor, scale: Tensor, mean: Tensor, reciprocal: Tensor, count: int
) -> tuple[Tensor, ...] | None:
    """The first so many of the input's and those of scale and shift; likewise."""
    n, g, c, s = x.shape
    operands = (t.reshape(n, g * c, s).contiguous() for t in (d, x))
    statistics = mean.contiguous(), reciprocal.contiguous(), scale.contiguous().view(g * c)
    backward = torch.ops.aten.native_group_norm_backward
    dx, *others = backward(*operands, *statistics, n, g * c, s, g, [True] * 3)
    found = dx.view(n, g, c, s), *(t.view(g, c) for t in others)
    return found[:count] if finite(scale, 1 / reciprocal, *others) else None


def batch_norm_and_statistics(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, alone: bool
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Of [images, channels, pixels], with means and variances of each channel; likewise."""
    flat = scale.contiguous(), shift.contiguous()
    y, mean, reciprocal = torch.native_batch_norm(x.contiguous(), *flat, None, None, True, 0.0, eps)
    if alone:
        return (y, mean, reciprocal) if finite(scale, 1 / reciprocal) else None
    mean, variance = _moments(x, mean.view(1, -1, 1), reciprocal.view(1, -1, 1), (0, 2), eps)
    return (y, mean.view(-1), variance.view(-1)) if finite(scale, variance) else None


def batch_norm_gradient(
    d: Tensor, x: Tensor, scale: Tensor, mean: Tensor, reciprocal: Tensor, scaled: bool
) -> tuple[Tensor, ...] | None:
    """The input's and the sums of which those of scale and shift are made, the first one `scaled` by the reciprocal;
    likewise."""
    statistics = scale.contiguous(), None, None, mean.contiguous(), reciprocal.contiguous()
    backward = torch.ops.aten.native_batch_norm_backward
    dx, by_scale, by_shift = backward(d.contiguous(), x.contiguous(), *statistics, True, 0.0, [True] * 3)
    found = dx, by_scale if scaled else by_scale / reciprocal, by_shift
    return found if finite(scale, 1 / reciprocal, *found[1:]) else None


def _normal(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.contiguous()


_CERTIFIED = 1 / 8  # of the squared lengths: what cancels leaves the difference at least 21 of 24 bits
_MOST_BELOW = 1 / 16  # of the elements
_TOGETHER = 2**17  # elements


def squared_distances(x: Tensor, y: Tensor) -> tuple[Tensor] | None:
    """Of the rows of two matrices, through a product of what is left without their middle; what is small beside what
    cancels is computed difference by difference. None where much is, or a value is not finite."""
    exact = x.dtype == torch.float64 or torch.get_float32_matmul_precision() == "highest"
    if x.device.type != "cpu" or not exact or not x.numel():
        return None
    middle = y.mean(1, keepdim=True)
    u, v = x - middle, y - middle
    own, others = u.square().sum(2, keepdim=True), v.square().sum(2).unsqueeze(1)
    out = x.new_empty((x.shape[0], x.shape[1], y.shape[1]))
    step = max(1, _TOGETHER // (x.shape[0] * y.shape[1]))
    for n in range(0, x.shape[1], step):
        rows = slice(n, n + step)
        lengths = own[:, rows] + others
        part = torch.baddbmm(lengths, u[:, rows], v.mT, alpha=-2)
        margin = torch.sub(part, lengths, alpha=_CERTIFIED)
        least = float(margin.amin())
        if not least >= 0:
            b, i, j = torch.nonzero(margin < 0, as_tuple=True)
            if math.isnan(least) or len(b) > _MOST_BELOW * margin.numel():
                return None
            part[b, i, j] = (x[b, i + n] - y[b, j]).square_().sum(1)
        out[:, rows] = part
    return (out,) if finite(own, others) else None


def attention_and_logarithms(
    q: Tensor, k: Tensor, v: Tensor, scale: float | Tensor, causal: bool, mask: Tensor | None, terms: bool
) -> tuple[Tensor, Tensor] | None:
    """And the logarithm of each row's sum. None on other devices, and where a value is not finite: torch takes rows
    without a weight for zeros, their logarithms too, and multiplies what is not seen by zero."""
    if q.device.type != "cpu" or not finite(v) or not math.isfinite(scale := float(scale)):
        return None
    blind = _blind(mask)
    if terms and blind is not None:
        return None
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def call(m: Tensor | None, *given: Tensor) -> tuple[Tensor, Tensor]:
        o, logarithm = forward(*given, 0.0, causal, attn_mask=m, scale=scale)
        return o, logarithm if blind is None else logarithm.masked_fill_(blind, 1)

    o, logarithm = _of_parts(call, mask, (_dense(q), _for_each(k, q), _for_each(v, q)))
    if not finite(logarithm) or bool(((logarithm == 0) & (o == 0).all(-1)).any()):  # all scores may be -inf
        return None
    if blind is not None:
        logarithm.unflatten(0, (-1, len(blind))).masked_fill_(blind, -math.inf)
    return o, logarithm


def _blind(mask: Tensor | None) -> Tensor | None:
    """Which rows of a mask see nothing; None where each sees something."""
    if mask is None or not mask.numel():
        return None
    blind = mask.amax(-1) == -math.inf
    return blind if bool(blind.any()) else None


def attention_gradient(
    *operands: Tensor, scale: float | Tensor, causal: bool, mask: Tensor | None, terms: bool
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Of queries, keys and values; likewise."""
    q, k, v, c, o, logarithm = operands
    if q.device.type != "cpu" or not finite(q, k, v, c, o) or not math.isfinite(scale := float(scale)):
        return None
    blind = None if terms else _blind(mask)
    if blind is not None:  # no weight there, whatever number the logarithm is
        logarithm = logarithm.clone()
        logarithm.unflatten(0, (-1, len(blind))).masked_fill_(blind, 0)
    if not finite(logarithm):
        return None
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    given = _dense(c), _dense(q), _for_each(k, q), _for_each(v, q), _dense(o), logarithm
    dq, dk, dv = _of_parts(lambda m, *t: backward(*t, 0.0, causal, attn_mask=m, scale=scale), mask, given)
    if not finite(dq, dk, dv):  # an infinite score where the mask is too, or logarithms that float32 rounds by much
        return None
    return dq, dk.sum(1), dv.sum(1)


def _of_parts(call: Callable[..., Sequence[Tensor]], mask: Tensor | None, operands: Sequence[Tensor]) -> list[Tensor]:
    """The results of a call for as many of the first axis at a time as the mask has, one for all aside."""
    count = operands[0].shape[0]
    step = count if mask is None or mask.shape[0] == 1 else mask.shape[0]
    parts = [call(mask, *(t[n : n + step] for t in operands)) for n in range(0, count, step)]
    return list(parts[0][:3]) if len(parts) == 1 else [torch.cat(some) for some in zip(*parts, strict=True)]


def _for_each(t: Tensor, q: Tensor) -> Tensor:
    """Keys or values for each group of queries that share them."""
    return _dense(t)[:, None].expand(-1, q.shape[1], -1, -1)


def _dense(t: Tensor) -> Tensor:
    """With the elements of a row side by side: torch's attention takes them for that, and reads past them elsewhere."""
    return t if t.stride(-1) == 1 else t.contiguous()
