"""What the tests ask of loops over slabs."""

from __future__ import annotations

from tilec.backends.triton.plan.plan import TiledLoop
from tilec.transforms.util.tiled import Into, Slice, Start


def tiling(loop: TiledLoop) -> tuple[int, int]:
    """The extent of the axis and the rows of a slab."""
    rows = [next(x.length for x in call.places if isinstance(x, Slice | Into) and x.length) for call in loop.calls]
    return sum(n * call.count for n, call in zip(rows, loop.calls, strict=True)), rows[0]


def asks_for_rows(loop: TiledLoop) -> bool:
    """Is a slab given the number of its first row?"""
    return any(isinstance(x, Start) for call in loop.calls for x in call.sources)


def copies(loop: TiledLoop) -> bool:
    """Is a slab given rows in memory of their own?"""
    return any(isinstance(x, Slice) and x.copied for call in loop.calls for x in call.sources)
