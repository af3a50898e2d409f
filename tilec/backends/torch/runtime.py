"""What generated programs call beside torch: strided windows, padded reads, reductions that torch spells otherwise."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import numpy as np
import torch

from tilec.backends.torch.certainty import askable
from tilec.backends.torch.certainty import below_infinity as below_infinity
from tilec.backends.torch.certainty import finite as finite
from tilec.backends.torch.exponentials import exponential_product as exponential_product
from tilec.backends.torch.exponentials import exponential_step as exponential_step
from tilec.backends.torch.exponentials import log_factor as log_factor
from tilec.backends.torch.exponentials import log_product as log_product
from tilec.backends.torch.exponentials import log_step as log_step
from tilec.backends.torch.exponentials import right_factor as right_factor
from tilec.backends.torch.expr import philox as philox
from tilec.backends.torch.keyed_products import multiplied_as_stored
from tilec.backends.torch.keyed_products import products_by_key as products_by_key
from tilec.backends.torch.library.convolutions import convolution as convolution
from tilec.backends.torch.library.convolutions import convolution_gradients as convolution_gradients
from tilec.backends.torch.library.convolutions import convolution_input as convolution_input
from tilec.backends.torch.library.convolutions import convolution_kernel as convolution_kernel
from tilec.backends.torch.library.runtime import attention_and_logarithms as attention_and_logarithms
from tilec.backends.torch.library.runtime import attention_gradient as attention_gradient
from tilec.backends.torch.library.runtime import batch_norm_and_statistics as batch_norm_and_statistics
from tilec.backends.torch.library.runtime import batch_norm_gradient as batch_norm_gradient
from tilec.backends.torch.library.runtime import group_norm_and_statistics as group_norm_and_statistics
from tilec.backends.torch.library.runtime import group_norm_gradient as group_norm_gradient
from tilec.backends.torch.library.runtime import layer_norm_and_statistics as layer_norm_and_statistics
from tilec.backends.torch.library.runtime import layer_norm_gradient as layer_norm_gradient
from tilec.backends.torch.library.runtime import log_softmax_and_logarithms as log_softmax_and_logarithms
from tilec.backends.torch.library.runtime import log_softmax_gradient as log_softmax_gradient
from tilec.backends.torch.library.runtime import softmax_and_statistics as softmax_and_statistics
from tilec.backends.torch.library.runtime import softmax_gradient as softmax_gradient
from tilec.backends.torch.library.runtime import squared_distances as squared_distances
from tilec.backends.torch.selection import add_rows as add_rows
from tilec.backends.torch.selection import add_where_bits as add_where_bits
from tilec.backends.torch.selection import add_where_equal as add_where_equal
from tilec.backends.torch.selection import all_within as all_within
from tilec.backends.torch.selection import between_limits as between_limits
from tilec.backends.torch.selection import choose as choose
from tilec.backends.torch.selection import chosen_by as chosen_by
from tilec.backends.torch.selection import combine_slices as combine_slices
from tilec.backends.torch.selection import compared as compared
from tilec.backends.torch.selection import count_equal as count_equal
from tilec.backends.torch.selection import divided_by_bits as divided_by_bits
from tilec.backends.torch.selection import elements_at as elements_at
from tilec.backends.torch.selection import extremum_and_places as extremum_and_places
from tilec.backends.torch.selection import product_of_others as product_of_others
from tilec.backends.torch.selection import taken as taken
from tilec.backends.torch.selection import weighed_tests as weighed_tests
from tilec.native import native

Tensor = torch.Tensor


def iota(low: int, extent: int, position: int, rank: int, device: torch.device) -> Tensor:
    """The integers low, low + 1, ... along dimension `position` of `rank`."""
    shape = [1] * rank
    if rank:
        shape[position] = extent
    return torch.arange(low, low + extent, device=device).view(shape)


def window(t: Tensor, sizes: Sequence[int], start: Sequence[int], steps: Sequence[Sequence[int]]) -> Tensor:
    """View of t whose element (d0, d1, ...) is `t[start + sum(d_i * steps[i])]`, every one inside t.

    Dimensions that move backward in memory are flipped, which copies.
    """
    strides = t.stride()
    offset = t.storage_offset()
    for first, stride in zip(start, strides, strict=True):
        offset += first * stride
    moves = []
    backward = []
    for d, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        move = 0
        for count, stride in zip(step, strides, strict=True):
            move += count * stride
        if move < 0:
            backward.append(d)
            offset += (size - 1) * move
            move = -move
        moves.append(move)
    view = t.as_strided(sizes, moves, offset)
    return view.flip(backward) if backward else view


def owned(t: Tensor, of: Tensor) -> Tensor:
    """A contiguous tensor that shares no memory with the other one."""
    shared = t.untyped_storage().data_ptr() == of.untyped_storage().data_ptr()
    return t.clone(memory_format=torch.contiguous_format) if shared else t.contiguous()


def put(t: Tensor, room: Tensor) -> None:
    """Into the memory that was given for it, where it is not there already."""
    if t is not room:
        room.copy_(t)


def extend(t: Tensor, low: Sequence[int], high: Sequence[int], value: float) -> Tensor:
    """The elements low..high of each dimension, inclusive, `value` where that lies outside t."""
    amounts: list[int] = []
    for size, first, last in zip(reversed(t.shape), reversed(low), reversed(high), strict=True):
        amounts += (-first, last + 1 - size)
    if not any(amounts):
        return t
    if t.numel() == 0:
        return t.new_full([last + 1 - first for first, last in zip(low, high, strict=True)], value)
    if min(amounts) < 0:  # crop first, as a view: torch's pad copies, and refuses to crop all of a dimension
        start = [max(first, 0) for first in low]
        count = [min(last + 1, n) - f for f, last, n in zip(start, high, t.shape, strict=True)]
        if min(count) <= 0:
            return t.new_full([last + 1 - first for first, last in zip(low, high, strict=True)], value)
        t = t[tuple(slice(f, f + n) for f, n in zip(start, count, strict=True))]
        amounts = [max(a, 0) for a in amounts]
        if not any(amounts):
            return t
    return torch.nn.functional.pad(t, amounts, value=value)


class _Memory:
    """A tensor as NumPy asks for one: an array of it keeps this, and so the tensor."""

    def __init__(self, t: Tensor):
        self.owner = t
        strides = tuple(n * t.element_size() for n in t.stride())
        kind = np.dtype(str(t.dtype).removeprefix("torch.")).str
        self.__array_interface__ = {
            **{"version": 3, "shape": tuple(t.shape), "typestr": kind, "strides": strides},
            "data": (t.data_ptr(), False),
        }


def array_in(t: Tensor) -> np.ndarray:
    """An array in a tensor's memory on the CPU. `Tensor.numpy` leaves a storage behind that cannot be resized any more,
    as FSDP does with that of parameters."""
    return np.asarray(_Memory(t))


def running(x: Tensor, tests: Tensor, scale: Tensor | None, axis: int, falling: bool) -> Tensor:
    """Along an axis, each element of `x` and, where `tests` are true or, if they are values, equal to the one before,
    what the element before has, times the `scale`; `falling`: the one after in place of the one before."""
    tensors = [None if t is None else t.expand(x.shape).contiguous() for t in (x, tests, scale)]
    library = native() if x.device.type == "cpu" else None
    found = library and library.running(*tensors, axis, falling)
    if found is not None:
        return cast(Tensor, found)
    places = range(x.shape[axis])[:: -1 if falling else 1]
    if tests.dtype != torch.bool:
        tests = tests == tests.roll(-1 if falling else 1, axis)
    total = torch.empty_like(x, memory_format=torch.contiguous_format)
    before = torch.zeros_like(x.select(axis, 0)) if places else x
    for k in places:
        term = before if scale is None else before * scale.select(axis, k)
        before = torch.add(x.select(axis, k), torch.where(tests.select(axis, k), term, 0), out=total.select(axis, k))
    return total


def rows(t: Tensor, falling: bool = False) -> Sequence[np.ndarray]:
    """The rows of a tensor on the CPU as arrays that share its memory, from the last to the first where `falling`."""
    array = array_in(t)
    if array.ndim == 1:
        array = array[:, None]  # an element of a vector would be a number, not a view
    return list(array[::-1] if falling else array)


def in_rows(t: Tensor) -> Tensor:
    """The tensor laid out so that what steps along the first dimension read lies side by side, on the CPU."""
    strided = t.device.type == "cpu" and t.dim() > 1 and t.shape[-1] > 1 and t.stride(-1) != 1
    return t.contiguous() if strided else t


SCANS: dict[
    str, tuple[Callable[..., Tensor], Callable[..., Tensor], float, float]
] = {  # times, plus, and the elements that leave a state alone
    "real": (torch.mul, torch.add, 1.0, 0.0),
    "log": (torch.add, torch.logaddexp, 0.0, -math.inf),
    "max-plus": (torch.add, torch.maximum, 0.0, -math.inf),
    "min-plus": (torch.add, torch.minimum, 0.0, math.inf),
}


def affine_scan(out: Tensor, start: Tensor, a: Tensor, b: Tensor, falling: bool, semiring: str) -> bool:
    """Fill `out` [steps, lanes...] with the states h = a x h + b after `start`, from the last step if `falling`.

    `a` and `b` broadcast to out's shape. False where the result may not be what step by step comes out: where it holds
    an infinity or NaN that a composition of steps could have made, or where that cannot be asked.
    """
    if not askable(out):
        return False
    times, plus, one, zero = SCANS[semiring]
    steps, lanes = out.shape[0], out.shape[1:]
    length = max(1, math.isqrt(steps))
    chunks = -(-steps // length)
    scale, offset = (torch.full((chunks * length, *lanes), x, dtype=out.dtype, device=out.device) for x in (one, zero))
    for target, source in ((scale, a), (offset, b)):
        source = source.expand(out.shape)
        target[:steps] = source.flip(0) if falling else source
    scale, offset = (t.view(chunks, length, *lanes).transpose(0, 1).contiguous() for t in (scale, offset))
    for k in range(1, length):
        plus(times(scale[k], offset[k - 1]), offset[k], out=offset[k])
        times(scale[k], scale[k - 1], out=scale[k])
    heads = torch.empty((chunks, *lanes), dtype=out.dtype, device=out.device)
    heads[0] = start
    for k in range(1, chunks):
        plus(times(scale[-1, k - 1], heads[k - 1]), offset[-1, k - 1], out=heads[k])
    states = plus(times(scale, heads), offset).transpose(0, 1).reshape(chunks * length, *lanes)[:steps]
    if semiring == "real":
        certified = finite(states)
    else:
        certified = below_infinity(-states if semiring == "min-plus" else states)
    if certified:
        out.copy_(states.flip(0) if falling else states)
    return certified


def still(t: Tensor, rank: int) -> Tensor:
    """A tensor over time and lanes that is the same at all times, without its time; one of rank 0 has none."""
    return t[0] if rank and t.dim() == rank else t


def number_as(t: Tensor, dtype: torch.dtype) -> Tensor:
    """A Python number's tensor in another type; one that is kept for later calls keeps its conversions too."""
    conversions = getattr(t, "conversions", None)
    if conversions is None:
        return t.to(dtype)
    found = conversions.get(dtype)
    if found is None:
        found = conversions[dtype] = t.to(dtype)
    return found


def clamped(index: int, size: int) -> int:
    """The nearest position inside."""
    return min(max(index, 0), size - 1)


def maximum(a: Tensor | int, b: Tensor | int) -> Tensor:
    """The greater of two indices, at least one of them a tensor."""
    return torch.clamp(a, min=b) if isinstance(a, Tensor) else torch.clamp(cast(Tensor, b), min=a)


def minimum(a: Tensor | int, b: Tensor | int) -> Tensor:
    """The lesser of two indices, at least one of them a tensor."""
    return torch.clamp(a, max=b) if isinstance(a, Tensor) else torch.clamp(cast(Tensor, b), max=a)


def turned(t: Tensor, dim: int, start: int, count: int) -> Tensor:
    """`count` elements along a dimension from `start` on, going round; a view where no element comes twice."""
    size = t.shape[dim]
    pieces = []
    while count > 0:
        length = min(size - start, count)
        pieces.append(t.narrow(dim, start, length))
        start, count = 0, count - length
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)


def divide_integers(a: Tensor | int, b: Tensor | int) -> Tensor:
    """Truncating division, 0 where the divisor is. The least integer by -1 is itself, which would end the process."""
    a, b = _both(a, b)
    zero, negative = b == 0, (b == -1) & (b < 0)
    quotient = torch.div(a, b.masked_fill(zero | negative, 1), rounding_mode="trunc")
    return torch.where(negative, -quotient, quotient).masked_fill(zero, 0)


def modulo_integers(a: Tensor | int, b: Tensor | int) -> Tensor:
    """Floor modulo, 0 where the divisor is."""
    a, b = _both(a, b)
    zero = b == 0
    return torch.remainder(a, b.masked_fill(zero, 1)).masked_fill(zero, 0)


def _both(a: Tensor | int, b: Tensor | int) -> tuple[Tensor, Tensor]:
    like = a if isinstance(a, Tensor) else b
    assert isinstance(like, Tensor)
    left, right = (
        x if isinstance(x, Tensor) else torch.full((), x, dtype=like.dtype, device=like.device) for x in (a, b)
    )
    left, right = torch.broadcast_tensors(left, right)
    return left, right


def prod(x: Tensor, dims: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Product over several dimensions that follow each other."""
    return x.flatten(dims[0], dims[-1]).prod(dims[0], dtype=dtype)


class _Switch:
    """A switch of torch's, which all threads share: set by the first of several at a time, and back by the last."""

    lock = threading.Lock()
    inside, before = 0, False


@contextlib.contextmanager
def own_precision() -> Iterator[None]:
    """cuDNN in the precision that torch.get_float32_matmul_precision() asks of matrix products: it has a switch of its
    own, which lets float32 convolutions round their operands by default."""
    cudnn, wanted = torch.backends.cudnn, torch.get_float32_matmul_precision() != "highest"
    with _Switch.lock:
        if not _Switch.inside:
            _Switch.before = cudnn.allow_tf32
        _Switch.inside += 1
        if cudnn.allow_tf32 != wanted:
            cudnn.allow_tf32 = wanted
    try:
        yield
    finally:
        with _Switch.lock:
            _Switch.inside -= 1
            if not _Switch.inside and cudnn.allow_tf32 != _Switch.before:
                cudnn.allow_tf32 = _Switch.before


def multiply(a: Tensor, b: Tensor, float32_result: bool = False, bias: Tensor | None = None) -> Tensor:
    """Matrix product of operands, 16-bit ones summed in float32, and a bias for each column; `float32_result` leaves
    the result in float32.

    A CPU without 16-bit matrix instructions is faster in float32, and float16 has no fast product on any.
    """
    x, y = (a, b) if multiplied_as_stored(a) and not float32_result else (a.float(), b.float())
    result = torch.matmul(x, y) if bias is None else torch.addmm(bias.to(x.dtype), x, y)
    return result if float32_result else result.to(a.dtype)


def scaled_product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Matrix product times a number: one pass over the result, rounded once, where torch has that."""
    if not multiplied_as_stored(a):
        return scaled_product(a.float(), b.float(), scale).to(a.dtype)
    if a.dim() != b.dim() or a.shape[:-2] != b.shape[:-2] or a.dim() > 3:
        return torch.matmul(a, b) * scale
    times = torch.addmm if a.dim() == 2 else torch.baddbmm
    return times(a.new_empty(()), a, b, beta=0, alpha=scale)


def placed(t: Tensor, dim: int, first: int, size: int, identity: float, rising: bool) -> Tensor:
    """`size` elements along a dimension, those of t from place `first` on. Where t has none, an element that all
    terms (past the last one of a sum that rises) or none of them make up."""
    at = torch.arange(first, first + size, device=t.device)
    outside = at < 0 if rising else at >= t.shape[dim]
    shape = [1] * t.dim()
    shape[dim] = size
    return t.index_select(dim, at.clamp(0, t.shape[dim] - 1)).masked_fill(outside.view(shape), identity)


def confined(t: Tensor, axis: int, start: int, count: int, outside: float) -> Tensor:
    """t with `outside` in the place of all elements but `count` from `start` on along an axis."""
    result = torch.full_like(t, outside)
    result.narrow(axis, start, count).copy_(t.narrow(axis, start, count))
    return result


def gelu_in_any_layout(x: Tensor) -> Tensor:
    """`torch.nn.functional.gelu`, whose float32 on a CPU has two roundings: oneDNN's of more than one contiguous
    element, and another. Here every layout has the first, so that an extremum is found again by comparison."""
    apply = torch.nn.functional.gelu
    if x.device.type != "cpu" or x.dtype != torch.float32 or x.is_contiguous() and x.numel() > 1:
        return apply(x)
    if x.numel() <= 1:
        return apply(x.reshape(-1).repeat(2))[: x.numel()].reshape(x.shape)
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    y = apply(x.permute(order).contiguous())
    return y.permute([order.index(d) for d in range(x.dim())])


def add_scaled(x: Tensor, y: Tensor, alpha: float, out: Tensor | None = None) -> Tensor:
    """`x + alpha * y`, rounded alike whatever the layouts are: torch's own call rounds twice where y's elements repeat
    along a row, and once elsewhere, as a product of tensors does."""
    if x.shape == y.shape and 0 not in y.stride() or not y.is_floating_point():
        return torch.add(x, y, alpha=alpha, out=out)
    return torch.addcmul(x, y, torch.scalar_tensor(alpha, dtype=y.dtype, device=y.device), out=out)


def gelu_gradient(g: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
    """`torch.ops.aten.gelu_backward`, of which oneDNN's takes no gradient smaller than x."""
    if g.shape != x.shape:
        g, x = torch.broadcast_tensors(g, x)
    return torch.ops.aten.gelu_backward(g, x) if out is None else torch.ops.aten.gelu_backward(g, x, grad_input=out)
