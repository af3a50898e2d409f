"""Values chosen by tests and by indices, as generated programs call it; all but one of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import torch

from tilec import knobs
from tilec.backends.torch.certainty import askable
from tilec.native import native

Tensor = torch.Tensor
_BITS = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
_BLENDED = (torch.float32, torch.float64)
_COMPARED = (torch.float32, torch.float64, torch.int32, torch.int16, torch.int8, torch.uint8)
_FEWEST = 8192  # elements from which on it pays
_TESTS = {test: n for n, test in enumerate((torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge))}  # as in C++


def compared(test: Callable[..., Tensor], a: Tensor, b: Tensor | float) -> Tensor:
    """`test(a, b)` of tensors of one type, or a tensor and a number. On a CPU torch goes element by element where the
    result is a truth, several at a time where it is of the operands' type."""
    most = max(t.numel() for t in (a, b) if isinstance(t, Tensor))
    if a.device.type != "cpu" or most < _FEWEST:
        return test(a, b)
    library = native()
    found = library and library.compared(_TESTS[test], a, _number(b, a.dtype))
    if found is not None:
        return found
    if a.dtype not in _COMPARED:
        return test(a, b)
    shape = _broadcast(a.shape, b.shape) if isinstance(b, Tensor) else a.shape
    like = next(t for t in (a, b) if isinstance(t, Tensor) and t.numel() == most)
    kept = like.shape == shape  # else torch's result would be laid out as the operand that has all points
    found = test(a, b, out=torch.empty_like(like) if kept else like.new_empty(shape))
    return found.view(torch.bool) if found.element_size() == 1 else found.to(torch.bool)


@lru_cache(4096)
def _broadcast(*shapes: torch.Size) -> torch.Size:
    """`torch.broadcast_shapes`, which takes longer than what many of these do."""
    return shapes[0] if len({*shapes}) == 1 else torch.broadcast_shapes(*shapes)


Slices = tuple[slice, ...]  # of a tensor's dimensions; `()`: all of it
SlicedTensor = Tensor | tuple[Tensor, Slices]
_COMBINATIONS = {torch.maximum: 0, torch.minimum: 1, torch.add: 2}  # as in C++, where equalities and bits follow
_EQUALITIES, _BITS_SET, _CHOSEN = 3, 4, 5


def combine_slices(combine: Callable[..., Tensor], fresh: bool, *classes: tuple) -> None:
    """Combine parts of tensors with values, one after the other: (tensor, part, ...) each, of parts (slices, 0,
    values). `fresh`: each first part is all of its tensor, and what that holds does not count."""
    if _combined(_COMBINATIONS[combine], fresh, classes):
        return
    for total, *parts in classes:
        for own, block in _blocks(total, parts):
            if fresh:
                (_, _, (x,)), *block = block
                y = block[0][2][0] if block and block[0][0] is own else own
                if y is not own and x.shape == y.shape == own.shape and x.dtype == own.dtype:
                    combine(x, y, out=own)
                    block = block[1:]
                else:
                    own.copy_(x)
            for part, _, (x,) in block:
                combine(part, x, out=part)


def extremum_and_places(combine: Callable[..., Tensor], total: Tensor, places: Tensor, *parts: tuple) -> None:
    """The largest or smallest values of parts in `total`, as `combine_slices` has it, and in `places` the sum of the
    numbers of those that equal it: (slices, number, values) each."""
    if _combined(_COMBINATIONS[combine], True, ((total, *parts),), places):
        return
    combine_slices(combine, True, (total, *parts))
    tests = ((slices, torch.eq, n, x, (total, slices) if slices else total) for slices, n, x in parts)
    places.copy_(weighed_tests(places.dtype, *tests))


def _blocks(total: Tensor, parts: Sequence[tuple]) -> Iterator[tuple[Tensor, list[tuple]]]:
    """A tensor and its parts as (tensor, number, operands), a block of the outermost axis at a time where all parts
    have all of that."""
    found = [(total[s] if s else total, n, [_elements(x) for x in operands]) for s, n, *operands in parts]
    axis = next((d for d, n in enumerate(total.shape) if n > 1), 0)
    rows = total.shape[axis] if total.dim() else 1
    step = max(1, knobs.BLOCK.value * rows // max(1, 2 * total.numel()))
    if step >= rows or any(part.shape[axis] < rows for part, *_ in found):
        yield total, found
        return
    spread = [(part, n, [x.expand(part.shape) for x in operands]) for part, n, operands in found]
    for first in range(0, rows, step):
        end = min(step, rows - first)
        own = total.narrow(axis, first, end)
        yield (
            own,
            [
                (own if part is total else part.narrow(axis, first, end), n, [x.narrow(axis, first, end) for x in xs])
                for part, n, xs in spread
            ],
        )


def weighed_tests(
    dtype: torch.dtype, *tests: tuple[Slices, Callable[..., Tensor], int, SlicedTensor, SlicedTensor]
) -> Tensor:
    """The sum of `test(a, b)` times a number, for each, in a part of the elements; all sums are numbers that float32
    has. Some part is of all elements: `()`."""
    read = [(slices, test, n, _elements(a), _elements(b)) for slices, test, n, a, b in tests if not slices]
    shape = _broadcast(*(t.shape for *_, a, b in read for t in (a, b)))
    like = read[0][3]
    if all(test is torch.eq for _, test, *_ in tests):
        found = like.new_empty(shape, dtype=dtype)
        if _combined(_EQUALITIES, True, ((found, *((slices, n, a, b) for slices, _, n, a, b in tests)),)):
            return found
    total, room = (like.new_zeros(shape, dtype=torch.float32) for _ in range(2))
    read += [(slices, test, n, _elements(a), _elements(b)) for slices, test, n, a, b in tests if slices]
    for slices, test, n, a, b in read:
        sums, values = (total[slices], room[slices]) if slices else (total, room)
        # several at a time where the result is of the operands' type
        fits = a.dtype == room.dtype and _broadcast(a.shape, b.shape) == sums.shape
        sums.add_(test(a, b, out=values) if fits else test(a, b), alpha=n)
    return total.to(torch.int16).to(torch.int8).view(dtype) if dtype == torch.uint8 else total.to(dtype)


def add_where_bits(fresh: bool, *classes: tuple) -> None:
    """Add values to parts of tensors where integers have the bit of a number: (tensor, part, ...) each, of parts
    (slices, number, integers, values). `fresh`: to zeros, and each first part is all of its tensor."""
    if _combined(_BITS_SET, fresh, classes):
        return
    for total, *parts in classes:
        for own, block in _blocks(total, parts):
            if fresh:
                own.zero_()
            for part, n, (bits, a) in block:
                part.add_(choose((bits & n) != 0, a, 0.0))


def add_where_equal(fresh: bool, *classes: tuple) -> None:
    """The same where two tensors are equal: parts (slices, 0, a tensor, another, values)."""
    if not _combined(_CHOSEN, fresh, classes):
        _add_each(fresh, classes, lambda x, y, a: chosen_by(torch.eq, x, y, a, 0.0))


def count_equal(fresh: bool, *classes: tuple) -> None:
    """The same of ones: parts (slices, 1, a tensor, another)."""
    if not _combined(_EQUALITIES, fresh, classes):
        _add_each(fresh, classes, lambda x, y: compared(torch.eq, x, y).view(torch.int8))


def _add_each(fresh: bool, classes: tuple, value: Callable[..., Tensor]) -> None:
    for total, *parts in classes:
        for _, block in _blocks(total, parts):
            for k, (part, _, operands) in enumerate(block):
                (part.copy_ if fresh and k == 0 else part.add_)(value(*operands))


def divided_by_bits(x: Tensor, bits: Tensor, first: int, out: Tensor | None = None) -> Tensor:
    """`x` divided by the integers that stand in bits from the `first` on."""
    library = native() if x.device.type == "cpu" else None
    found = library and library.shares(x, bits, first, out)
    return torch.div(x, (bits >> first).to(x.dtype), out=out) if found is None else found


def _elements(operand: SlicedTensor) -> Tensor:
    return operand if isinstance(operand, Tensor) else operand[0][operand[1]]


def _combined(combination: int, fresh: bool, classes: tuple, places: Tensor | None = None) -> bool:
    library = native() if classes[0][0].device.type == "cpu" else None
    return library is not None and library.combined(combination, fresh, places, classes)


def choose(condition: Tensor, a: Tensor | float, b: Tensor | float, out: Tensor | None = None) -> Tensor:
    """`torch.where(condition, a, b)`, bit for bit; one of `a` and `b` is a tensor of the result's type. On a CPU torch
    branches at each element; operations on bits do not."""
    like = a if isinstance(a, Tensor) else b
    assert isinstance(like, Tensor)
    bits = _BITS.get(like.dtype)
    most = max(t.numel() for t in (condition, a, b) if isinstance(t, Tensor))
    if like.device.type != "cpu" or most < _FEWEST:
        return _where(condition, a, b, like.dtype, out)
    library = native()
    found = library and library.chosen(condition, _number(a, like.dtype), _number(b, like.dtype), out)
    if found is not None:
        return found
    if bits is None:
        return _where(condition, a, b, like.dtype, out)
    mask = condition.view(torch.int8)
    if like.dtype in _BLENDED:
        return _blended(mask.to(like.dtype), a, b, out)
    x, y = (torch.as_tensor(t, dtype=like.dtype).resolve_neg().view(bits) for t in (a, b))
    result = ((x ^ y) & mask.neg().to(bits)).bitwise_xor_(y).view(like.dtype)
    return result if out is None else out.copy_(result)


def _where(condition: Tensor, a: Tensor | float, b: Tensor | float, dtype: torch.dtype, out: Tensor | None) -> Tensor:
    if out is None:
        return torch.where(condition, a, b)
    return torch.where(condition, _number(a, dtype), _number(b, dtype), out=out)


def chosen_by(
    test: Callable[..., Tensor],
    x: Tensor,
    y: Tensor | float,
    a: Tensor | float,
    b: Tensor | float,
    out: Tensor | None = None,
) -> Tensor:
    """`choose(test(x, y), a, b)`, without a tensor of truths where all are of one type."""
    like = a if isinstance(a, Tensor) else b
    assert isinstance(like, Tensor)
    small = max(t.numel() for t in (like, x, y) if isinstance(t, Tensor)) < _FEWEST
    if not small and like.device.type == "cpu" and (library := native()) is not None:
        numbers = _number(y, x.dtype), _number(a, like.dtype), _number(b, like.dtype)
        found = library.chosen_by(_TESTS[test], x, *numbers, out)
        if found is not None:
            return found
    if x.dtype != like.dtype or x.dtype not in _BLENDED or like.device.type != "cpu" or small:
        return choose(compared(test, x, y), a, b, out)
    laid, shape = x, x.shape
    if isinstance(y, Tensor) and x.shape != y.shape:
        laid, shape = x if x.numel() > y.numel() else y, _broadcast(x.shape, y.shape)
    room = torch.empty_like(laid) if laid.shape == shape else x.new_empty(shape)
    return _blended(test(x, y, out=room), a, b, out)


def between_limits(g: Tensor, x: Tensor, least: float, most: float, out: Tensor | None = None) -> Tensor:
    """`g` where `x` is between limits, half of it on one of them, and zero elsewhere; a limit that is infinite has no
    edge."""
    library = native() if g.device.type == "cpu" else None
    found = library and library.inside(g, x, least, most, out)
    if found is not None:
        return found
    edges = [compared(torch.eq, x, limit) for limit in (least, most) if math.isfinite(limit)]
    within = compared(torch.ge, x, least) & compared(torch.le, x, most)
    half = choose(edges[0] if len(edges) == 1 else edges[0] | edges[1], g * 0.5, g)
    return choose(within, half, 0.0, out)


def _blended(mask: Tensor, a: Tensor | float, b: Tensor | float, out: Tensor | None) -> Tensor:
    """`a` where a mask of zeros and ones is 1, else `b`, bit for bit: torch's threshold has no branches. The mask is
    written over."""
    bits = _BITS[mask.dtype]
    first, other = (x if isinstance(x, Tensor) else _filled(x, mask.dtype) for x in (a, b))
    if first is None and other is None:
        first = torch.zeros((), dtype=mask.dtype)
    kept = torch.ops.aten.threshold_backward
    if first is None or other is None:
        one = other if first is None else first
        mask = torch.eq(mask, 0, out=mask) if first is None else mask
        assert one is not None
        return kept(one, mask, 0.5) if out is None else kept(one, mask, 0.5, grad_input=out)
    found = kept(first, mask, 0.5)
    torch.eq(mask, 0, out=mask)
    same = mask.shape == other.shape or not other.dim()
    rest = kept(other, mask, 0.5, grad_input=mask) if same else kept(other, mask, 0.5)
    x, y = found.view(bits), rest.view(bits)
    if out is not None and out.dtype == mask.dtype:
        torch.bitwise_or(x, y, out=out.view(bits))
        return out
    whole = x.shape == y.shape or x.numel() > y.numel() and x.shape == _broadcast(x.shape, y.shape)
    return (x.bitwise_or_(y) if whole else x | y).view(mask.dtype)


def _number(x: Tensor | float, dtype: torch.dtype) -> Tensor:
    return x if isinstance(x, Tensor) else torch.full((), x, dtype=dtype)


def _filled(x: float, dtype: torch.dtype) -> Tensor | None:
    """A number as a tensor; None for a zero without a sign."""
    return None if x == 0 and math.copysign(1, x) == 1 else torch.full((), x, dtype=dtype)


def elements_at(t: Tensor, *index: Tensor | int) -> Tensor:
    """`t[index]`, for which torch would ask a device for the value of an index of rank 0."""
    if t.device.type == "cpu":
        return t[index]
    dims = [i.dim() for i in index if isinstance(i, Tensor)]
    result = t[tuple([i.reshape(1) if isinstance(i, Tensor) and i.dim() == 0 else i for i in index])]
    return result[0] if dims and not any(dims) else result


def taken(t: Tensor, axis: int, dims: Sequence[int], *index: Tensor | int) -> Tensor:
    """`t` with the axes from `axis` on, as many as there are indices, looked up; of the indices only `dims` have more
    than one value, and these stand in their place. Rows are copied whole, where indices of all axes at once would go
    element by element."""
    last = axis + len(index) - 1
    at: Tensor | int = 0
    for i, size in zip(index, t.shape[axis : last + 1], strict=True):
        at = i if isinstance(at, int) and at == 0 else at * size + i
    assert isinstance(at, Tensor)
    shape = [at.shape[d] for d in dims]
    if last > axis:
        flat = all(t.stride(d) == t.stride(d + 1) * t.shape[d + 1] for d in range(axis, last))
        if not flat:
            tensors = torch.broadcast_tensors(*(torch.as_tensor(i, device=t.device) for i in index))
            return t[(slice(None),) * axis + tuple(i.reshape(shape) for i in tensors)]
        t = t.flatten(axis, last)
    found = t.index_select(axis, at.reshape(-1))
    return found if len(shape) == 1 else found.view(*t.shape[:axis], *shape, *t.shape[axis + 1 :])


def all_within(*tests: tuple[Tensor, int, int]) -> bool:
    """Whether there are elements of tensors and all are from a first to a last one; no where a device would have to be
    asked."""
    for t, first, last in tests:
        if t.device.type != "cpu" or not t.numel():
            return False
        library = native()
        inside = library and library.within(t, first, last)
        if inside is not None:
            if not inside:
                return False
            continue
        least, most = torch.aminmax(t)
        if least.item() < first or most.item() > last:
            return False
    return True


def add_rows(total: Tensor, at: Tensor, values: Tensor) -> None:
    """Add rows of values to those rows of `total` that `at` says, in order."""
    library = native() if total.device.type == "cpu" else None
    if library is None or not library.add_rows(total, at, values):
        total.index_add_(0, at, values)


def product_of_others(x: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Along a dimension, of all elements but the one at each place: the product of all by the element, where that is
    neither zero nor infinite anywhere, else that of those before and those after."""
    x = x.to(dtype)
    if dtype.is_floating_point and x.numel() and askable(x):
        total = x.prod(dim, keepdim=True)
        least, most = torch.aminmax(total.abs())
        if least >= torch.finfo(dtype).tiny and most < math.inf:
            return total / x
    one = torch.ones_like(x.narrow(dim, 0, min(1, x.shape[dim])))
    before, after = (
        torch.cat((one, t.narrow(dim, 0, max(0, x.shape[dim] - 1))), dim).cumprod(dim, dtype=dtype)
        for t in (x, x.flip(dim))
    )
    return before * after.flip(dim)
