"""Where tensors lie: placements over the dimensions of a mesh of ranks, and the boxes of elements that ranks hold.

Ranks are numbered row by row, the last dimension of the mesh fastest. A tensor that several dimensions of the mesh
divide along one of its own is divided by the first of these, and its parts by the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from tilec.ir.types import ITEM_BYTES

# Per dimension the first element and the one behind the last.
IndexBox = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Placement:
    """Where a tensor lies: sharded along `dim`, in parts that `reduction` puts together, or (neither) on every rank."""

    dim: int | None = None
    reduction: str | None = None

    def __str__(self) -> str:
        if self.dim is not None:
            return f"Shard({self.dim})"
        return "Replicate()" if self.reduction is None else f"Partial({self.reduction})"


REPLICATE = Placement()
Mesh = tuple[int, ...]  # the number of ranks along each dimension


class Placements(tuple[Placement, ...]):
    """How a tensor lies along each dimension of a mesh."""

    def __str__(self) -> str:
        return str(self[0]) if len(self) == 1 else "[" + ", ".join(map(str, self)) + "]"

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions of the mesh that divide the tensor."""
        return tuple(m for m, p in enumerate(self) if p.dim is not None)

    @property
    def parts(self) -> tuple[int, ...]:
        """The dimensions of the mesh along which it is in parts that are to be reduced."""
        return tuple(m for m, p in enumerate(self) if p.reduction is not None)

    def without(self, dims: Iterable[int]) -> Placements:
        """The same where every rank along these dimensions of the mesh has what they have together."""
        given = {*dims}
        return Placements(REPLICATE if m in given else p for m, p in enumerate(self))


def everywhere(mesh: Mesh) -> Placements:
    return Placements((REPLICATE,) * len(mesh))


def coordinates(mesh: Mesh) -> tuple[tuple[int, ...], ...]:
    return tuple(product(*map(range, mesh)))


def peers(mesh: Mesh, rank: int, along: int) -> tuple[int, ...]:
    """The ranks that differ from this one along one dimension alone, in order, itself among them."""
    step = math.prod(mesh[along + 1 :])
    first = rank - coordinates(mesh)[rank][along] * step
    return tuple(first + k * step for k in range(mesh[along]))


def chunks(size: int, ranks: int, start: int = 0) -> tuple[tuple[int, int], ...]:
    """What each rank holds of so many elements from `start` on, as `torch.chunk` divides them: the last ones may be
    shorter, or empty."""
    each = -(-size // ranks)
    return tuple((start + min(size, r * each), start + min(size, (r + 1) * each)) for r in range(ranks))


def whole(shape: tuple[int, ...]) -> IndexBox:
    return tuple((0, n) for n in shape)


def shard_boxes(shape: tuple[int, ...], placements: Placements, mesh: Mesh) -> tuple[IndexBox, ...]:
    """What each rank holds of a tensor; of one in parts, all that these are parts of."""
    found = []
    for place in coordinates(mesh):
        box = list(whole(shape))
        for m, p in enumerate(placements):
            if p.dim is not None:
                start, stop = box[p.dim]
                box[p.dim] = chunks(stop - start, mesh[m], start)[place[m]]
        found.append(tuple(box))
    return tuple(found)


def shape_of(box: IndexBox) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def count(box: IndexBox) -> int:
    return math.prod(shape_of(box))


def overlap(a: IndexBox, b: IndexBox) -> IndexBox:
    return tuple((max(p, r), max(max(p, r), min(q, s))) for (p, q), (r, s) in zip(a, b, strict=True))


def is_inside(a: IndexBox, b: IndexBox) -> bool:
    """Does b hold every element of a?"""
    return not count(a) or all(r <= p and q <= s for (p, q), (r, s) in zip(a, b, strict=True))


def hull(a: IndexBox | None, b: IndexBox) -> IndexBox:
    """The least box that holds both."""
    if a is None or not count(a):
        return b
    return a if not count(b) else tuple((min(p, r), max(q, s)) for (p, q), (r, s) in zip(a, b, strict=True))


def reduced_size(dtype: str, reduction: str) -> int:
    """Bytes of an element while it is reduced over ranks. Extrema travel as integers in the order of the values, with
    NaN above all, of at least 32 bits where they have more than 8."""
    size = ITEM_BYTES[dtype]
    return max(size, 4) if reduction in ("max", "min") and size > 1 else size
