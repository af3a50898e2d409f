"""What the ranks of a process group do together: exchange boxes of tensors, and reduce parts.

torch's functional collectives, so that compilers can trace them. An exchange carries bytes, whatever the element type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilec.distributed.placements import IndexBox, count, overlap, shape_of

_ORDERED = {torch.float32: torch.int32, torch.float64: torch.int64}


@dataclass(frozen=True)
class Exchange:
    """A tensor of which the ranks hold the boxes `have`, this one as `local`, and shall hold the boxes `need`."""

    local: torch.Tensor
    have: tuple[IndexBox, ...]
    need: tuple[IndexBox, ...]

    @property
    def gathers(self) -> bool:
        """Does every rank need all, of a tensor that is held in equal parts?"""
        whole = sum(map(count, self.have))
        return whole > 0 and len({shape_of(h) for h in self.have}) == 1 and all(count(n) == whole for n in self.need)

    def sent(self, rank: int) -> list[torch.Tensor]:
        """What goes to each rank, this one aside."""
        mine = self.have[rank]
        boxes = [overlap(mine, n) for n in self.need]
        return [
            _cut(self.local, mine, b).reshape(-1) if r != rank else self.local.new_empty(0) for r, b in enumerate(boxes)
        ]

    def taken(self, rank: int) -> list[int]:
        """The bytes that come from each rank, this one aside."""
        size = self.local.element_size()
        return [size * count(overlap(h, self.need[rank])) * (r != rank) for r, h in enumerate(self.have)]

    def kept(self, rank: int) -> torch.Tensor:
        """The rank's box, in which what comes from others is missing."""
        need, own = self.need[rank], overlap(self.have[rank], self.need[rank])
        out = self.local.new_empty(shape_of(need))
        if count(own):
            _cut(out, need, own).copy_(_cut(self.local, self.have[rank], own))
        return out

    def fill(self, out: torch.Tensor, pieces: Sequence[torch.Tensor], rank: int) -> None:
        """Put the bytes that came from each rank into the rank's box."""
        need = self.need[rank]
        for held, piece in zip(self.have, pieces, strict=True):
            if piece.numel():
                box = overlap(held, need)
                aligned = piece if piece.storage_offset() % out.element_size() == 0 else piece.clone()
                _cut(out, need, box).copy_(aligned.view(out.dtype).view(shape_of(box)))


def exchange(given: Sequence[Exchange], rank: int, group: Any) -> list[torch.Tensor]:
    """The rank's boxes, by one collective for those that all ranks need whole and one for the others."""
    whole = [e for e in given if e.gathers]
    found = dict(zip(map(id, whole), _gathered(whole, group), strict=True))
    others = [e for e in given if not e.gathers]
    found.update(zip(map(id, others), _exchanged(others, rank, group), strict=True))
    return [found[id(e)] for e in given]


def _exchanged(given: Sequence[Exchange], rank: int, group: Any) -> list[torch.Tensor]:
    """What the rank keeps is copied while the rest is under way."""
    if not given:
        return []
    sent = [list(map(_bytes, e.sent(rank))) for e in given]
    taken = [e.taken(rank) for e in given]
    ranks = range(len(given[0].have))
    pieces = [s[r] for r in ranks for s in sent]
    there = [p for p in pieces if p.numel()]
    packed = there[0] if len(there) == 1 else torch.cat(pieces)
    totals = [sum(s[r].numel() for s in sent) for r in ranks], [sum(t[r] for t in taken) for r in ranks]
    op = torch.ops._c10d_functional
    received = op.all_to_all_single(packed, totals[1], totals[0], group.group_name)
    found = [e.kept(rank) for e in given]
    came = iter(op.wait_tensor(received).split([t[r] for r in ranks for t in taken]))
    by_rank = [[next(came) for _ in given] for _ in ranks]
    for k, (e, out) in enumerate(zip(given, found, strict=True)):
        e.fill(out, [by_rank[r][k] for r in ranks], rank)
    return found


def _gathered(given: Sequence[Exchange], group: Any) -> list[torch.Tensor]:
    if not given:
        return []
    ranks = len(given[0].have)
    flat = [_bytes(e.local.reshape(-1)) for e in given]
    parts = all_gather(torch.cat(flat) if len(flat) > 1 else flat[0], ranks, group)
    found = []
    for e, part in zip(given, parts.split([f.numel() for f in flat], 1), strict=True):
        dim = next((d for d in range(e.local.dim()) if len({h[d] for h in e.have}) > 1), 0)
        shape = [n * ranks if d == dim else n for d, n in enumerate(e.local.shape)]
        whole = part.contiguous().view(e.local.dtype).view(ranks, *e.local.shape)
        found.append(whole.movedim(0, dim).reshape(shape))
    return found


def send(t: torch.Tensor, source: int, target: int, rank: int, ranks: int, group: Any) -> torch.Tensor:
    """What `target` gets is the tensor of `source`; the others keep theirs."""
    flat = _bytes(t.reshape(-1))
    size = flat.numel()
    taken = [size * (rank == target and r == source) for r in range(ranks)]
    sent = [size * (rank == source and r == target) for r in range(ranks)]
    received = _all_to_all(flat if rank == source else flat[:0], taken, sent, group)
    return received.view(t.dtype).view(t.shape) if rank == target else t


def all_gather(local: torch.Tensor, ranks: int, group: Any) -> torch.Tensor:
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
    """A dimension more has stride 1, which a contiguous one of a single element need not have."""
    return flat.contiguous().unsqueeze(-1).view(torch.uint8).flatten()


def _cut(t: torch.Tensor, owned: IndexBox, box: IndexBox) -> torch.Tensor:
    return t[tuple(slice(start - low, stop - low) for (start, stop), (low, _) in zip(box, owned, strict=True))]


def all_reduce(part: torch.Tensor, reduction: str, ranks: int, group: Any) -> torch.Tensor:
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
