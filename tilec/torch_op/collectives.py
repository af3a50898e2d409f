"""What the ranks of a process group do together: exchange boxes of tensors, and reduce parts.

torch's functional collectives, so that compilers can trace them. An exchange carries bytes, whatever the element type.
"""

from __future__ import annotations

from typing import Any

import torch

from tilec.distributed.placements import Box, count, overlap, shape_of

_ORDERED = {torch.float32: torch.int32, torch.float64: torch.int64}


def exchange(local: torch.Tensor, have: tuple[Box, ...], need: tuple[Box, ...], rank: int, group: Any) -> torch.Tensor:
    """The rank's box of `need` of a tensor whose boxes `have` the ranks hold; this one holds `local`."""
    ranks = len(have)
    even = len({shape_of(h) for h in have}) == 1
    if even and all(shape_of(n) == shape_of(need[0]) for n in need) and _gathers(have, need):
        return _gathered(local, have, group)
    sent = [count(overlap(have[rank], need[r])) * (r != rank) for r in range(ranks)]
    taken = [count(overlap(have[r], need[rank])) * (r != rank) for r in range(ranks)]
    pieces = [_cut(local, have[rank], overlap(have[rank], need[r])).reshape(-1) for r in range(ranks) if sent[r]]
    out = local.new_empty(shape_of(need[rank]))
    size = local.element_size()
    packed = torch.cat(pieces) if pieces else local.new_empty(0)
    received = _all_to_all(_bytes(packed), [n * size for n in taken], [n * size for n in sent], group)
    flat = received.view(local.dtype)
    for r, part in enumerate(flat.split(taken)):
        box = overlap(have[r], need[rank])
        if r == rank:
            if count(box):
                _cut(out, need[rank], box).copy_(_cut(local, have[rank], box))
        elif taken[r]:
            _cut(out, need[rank], box).copy_(part.view(shape_of(box)))
    return out


def send(t: torch.Tensor, source: int, target: int, rank: int, ranks: int, group: Any) -> torch.Tensor:
    """What `target` gets is the tensor of `source`; the others keep theirs."""
    flat = _bytes(t.reshape(-1))
    size = flat.numel()
    taken = [size * (rank == target and r == source) for r in range(ranks)]
    sent = [size * (rank == source and r == target) for r in range(ranks)]
    received = _all_to_all(flat if rank == source else flat[:0], taken, sent, group)
    return received.view(t.dtype).view(t.shape) if rank == target else t


def _gathers(have: tuple[Box, ...], need: tuple[Box, ...]) -> bool:
    """Does every rank need all, of a tensor that is held in equal parts?"""
    size = sum(map(count, have))
    return all(count(n) == size for n in need)


def _gathered(local: torch.Tensor, have: tuple[Box, ...], group: Any) -> torch.Tensor:
    dim = next((d for d in range(local.dim()) if len({h[d] for h in have}) > 1), 0)
    shape = [n * len(have) if d == dim else n for d, n in enumerate(local.shape)]
    if not local.numel():
        return local.new_empty(shape)
    return gather(local, len(have), group).movedim(0, dim).reshape(shape)


def gather(local: torch.Tensor, ranks: int, group: Any) -> torch.Tensor:
    """All ranks' tensors of one shape behind one another, along a new first dimension."""
    if not local.numel():
        return local.new_empty((ranks, *local.shape))
    op = torch.ops._c10d_functional
    flat = _bytes(local.reshape(-1))
    gathered = op.wait_tensor(op.all_gather_into_tensor(flat, ranks, group.group_name))
    return gathered.view(local.dtype).view(ranks, *local.shape)


def _all_to_all(packed: torch.Tensor, taken: list[int], sent: list[int], group: Any) -> torch.Tensor:
    op = torch.ops._c10d_functional
    return op.wait_tensor(op.all_to_all_single(packed, taken, sent, group.group_name))


def _bytes(flat: torch.Tensor) -> torch.Tensor:
    return flat.contiguous().view(torch.uint8)


def _cut(t: torch.Tensor, held: Box, box: Box) -> torch.Tensor:
    return t[tuple(slice(start - low, stop - low) for (start, stop), (low, _) in zip(box, held, strict=True))]


def reduce(part: torch.Tensor, reduction: str, ranks: int, group: Any) -> torch.Tensor:
    """All ranks' parts put together, on each. Extrema of floating values go as integers in the same order, in which NaN
    is above, or below, every number: libraries differ in what they make of NaN."""
    if reduction == "avg":
        return _all_reduce(part, "sum", group) / ranks
    if reduction not in ("max", "min"):
        return _all_reduce(part, reduction, group)
    dtype = part.dtype
    if dtype == torch.bool:
        return _all_reduce(part.view(torch.uint8), reduction, group).view(torch.bool)
    if not dtype.is_floating_point:
        return _all_reduce(part.to(torch.int32) if dtype == torch.int16 else part, reduction, group).to(dtype)
    wide = part if dtype in _ORDERED else part.float()
    sign = 1 if reduction == "max" else -1
    keys = _ordered(wide * sign)  # a least value is the greatest of the negated ones
    return (_ordered_back(_all_reduce(keys, "max", group), wide.dtype) * sign).to(dtype)


def _ordered(t: torch.Tensor) -> torch.Tensor:
    bits = torch.where(t.isnan(), torch.nan, t).contiguous().view(_ORDERED[t.dtype])
    return torch.where(bits < 0, bits ^ torch.iinfo(bits.dtype).max, bits)


def _ordered_back(keys: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.where(keys < 0, keys ^ torch.iinfo(keys.dtype).max, keys).view(dtype)


def _all_reduce(t: torch.Tensor, reduction: str, group: Any) -> torch.Tensor:
    op = torch.ops._c10d_functional
    return op.wait_tensor(op.all_reduce(t.contiguous(), reduction, group.group_name))
