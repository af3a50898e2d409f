"""Values chosen by tests and by indices, as generated programs call it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Tensor = torch.Tensor
_BITS = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
_COMPARED = (torch.float32, torch.float64, torch.int32, torch.int16, torch.int8, torch.uint8)
_FEW = 16  # results for each test, from which on the tests are looked at first
_FEWEST = 8192  # elements from which on it pays


def compared(test: Callable[..., Tensor], a: Tensor, b: Tensor | float) -> Tensor:
    """`test(a, b)` of tensors of one type, or a tensor and a number. On a CPU torch goes element by element where the
    result is a truth, several at a time where it is of the operands' type."""
    most = max(t.numel() for t in (a, b) if isinstance(t, Tensor))
    if a.dtype not in _COMPARED or a.device.type != "cpu" or most < _FEWEST:
        return test(a, b)
    shape = torch.broadcast_shapes(a.shape, b.shape) if isinstance(b, Tensor) else a.shape
    like = next(t for t in (a, b) if isinstance(t, Tensor) and t.numel() == most)
    kept = like.shape == shape  # else torch's result would be laid out as the operand that has all points
    found = test(a, b, out=torch.empty_like(like) if kept else like.new_empty(shape))
    return found.view(torch.bool) if found.element_size() == 1 else found.to(torch.bool)


def choose(condition: Tensor, a: Tensor | float, b: Tensor | float, out: Tensor | None = None) -> Tensor:
    """`torch.where(condition, a, b)`, bit for bit; one of `a` and `b` is a tensor of the result's type. On a CPU torch
    branches at each element; operations on bits do not."""
    like = a if isinstance(a, Tensor) else b
    assert isinstance(like, Tensor)
    bits = _BITS.get(like.dtype)
    most = max(t.numel() for t in (condition, a, b) if isinstance(t, Tensor))
    if bits is None or like.device.type != "cpu" or most < _FEWEST:
        return torch.where(condition, a, b, **({} if out is None else {"out": out}))  # type: ignore[arg-type]
    if condition.numel() * _FEW <= most and condition.all():
        whole = isinstance(a, Tensor) and out is None and a.numel() == most
        if whole and a.shape == torch.broadcast_shapes(a.shape, condition.shape):  # type: ignore[union-attr]
            return a  # type: ignore[return-value]
    if like is b:
        condition, a, b = ~condition, b, a
    chosen = condition.view(torch.int8).neg().to(bits)  # all bits, or none
    x, y = like.resolve_neg().view(bits), _bits(b, like.dtype, bits)
    if y is None:
        result = x & chosen
    else:
        result = x ^ y
        spread = torch.broadcast_shapes(result.shape, chosen.shape) != result.shape
        result = (result & chosen if spread else result.bitwise_and_(chosen)).bitwise_xor_(y)
    result = result.view(like.dtype)
    return result if out is None else out.copy_(result)


def _bits(x: Tensor | float, dtype: torch.dtype, bits: torch.dtype) -> Tensor | int | None:
    """The bits of a value; None where all are zero."""
    if isinstance(x, Tensor):
        return x.resolve_neg().view(bits)
    return int(torch.tensor(x, dtype=dtype).view(bits)) or None


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
    """Whether all elements of tensors are from a first to a last one; no where a device would have to be asked."""
    for t, first, last in tests:
        if t.device.type != "cpu":
            return False
        if t.numel():
            least, most = torch.aminmax(t)
            if least.item() < first or most.item() > last:
                return False
    return True
