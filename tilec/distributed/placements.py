"""Where tensors lie: placements over the ranks of one mesh dimension, and the boxes of elements that ranks hold."""

from __future__ import annotations

import math
from dataclasses import dataclass

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


def chunks(size: int, ranks: int) -> tuple[tuple[int, int], ...]:
    """What each rank holds of a dimension, as `torch.chunk` divides it: the last ones may be shorter, or empty."""
    each = -(-size // ranks)
    return tuple((min(size, r * each), min(size, (r + 1) * each)) for r in range(ranks))


def whole(shape: tuple[int, ...]) -> IndexBox:
    return tuple((0, n) for n in shape)


def shard_boxes(shape: tuple[int, ...], placement: Placement, ranks: int) -> tuple[IndexBox, ...]:
    """What each rank holds of a tensor that is not in parts."""
    everything = whole(shape)
    if placement.dim is None:
        return (everything,) * ranks
    d = placement.dim
    return tuple((*everything[:d], part, *everything[d + 1 :]) for part in chunks(shape[d], ranks))


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
