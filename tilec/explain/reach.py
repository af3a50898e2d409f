"""Which elements of its inputs a tile of a statement's output reads, by enumeration of valid points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tilec.ir.constraining import constraining
from tilec.ir.program import (
    Access,
    Call,
    Constraint,
    Expr,
    Index,
    Int,
    Statement,
    accesses_in,
    expressions,
    index_variables,
)
from tilec.language.show import show_expr
from tilec.lattice.index_values import index_values
from tilec.lattice.sets import bounds, sizes_of

SHOWN_POINTS = 400_000  # that are looked at; beyond, the ranges of the longest variables are cut
TILE = 2  # elements of the output along each of two dimensions

Spans = Sequence[tuple[int, int]]  # first and last of each dimension


@dataclass(frozen=True)
class Reached:
    """Elements of one tensor: `positions` has a row for each, in the tensor's own indices. `names`: what each
    dimension is indexed by. `cut`: there are more."""

    tensor: str
    shape: tuple[int, ...]
    positions: np.ndarray
    names: tuple[str, ...]
    cut: bool


@dataclass(frozen=True)
class Reach:
    """A tile of an output and what it reads; `by_data` are tensors whose elements a value in another one names, with
    the access that does."""

    tile: Reached
    inputs: tuple[Reached, ...]
    by_data: Mapping[str, Access]


@dataclass(frozen=True)
class TilePoints:
    """Valid points of a statement: the values of each index variable, one a point. `cut`: there are more."""

    values: Mapping[str, np.ndarray]
    count: int
    cut: bool

    def at(self, e: Expr) -> np.ndarray | None:
        """The value of index arithmetic at each point; None where it depends on data."""
        found = index_values(e, self.values)
        return None if found is None else np.broadcast_to(found, (self.count,))

    def positions(self, index: Sequence[Expr]) -> np.ndarray | None:
        """A row for each point; -1 where an index is no integer. None where an index is an element of a tensor."""
        columns = [self.at(e) for e in index]
        whole = [np.where(c == np.floor(c), c, -1) for c in columns if c is not None]
        if len(whole) < len(columns):
            return None
        return np.stack(whole, 1).astype(int) if whole else np.zeros((self.count, 0), int)


def reached_points(s: Statement, shapes: Mapping[str, tuple[int, ...]]) -> Reach | None:
    """None where the statement has no index variables, no valid points, or writes where data say."""
    if not s.index or any(accesses_in(*s.index)):
        return None
    shape = sizes_of(s)
    points = tile_points(s, shapes, tile_of(s, shape))
    if points is None:
        return None
    found: dict[str, list[np.ndarray]] = {}
    by_data: dict[str, Access] = {}
    reads = [a for a in accesses_in(s.body) if a.tensor != s.output]
    for access in reads:
        at = points.positions(access.index)
        if at is None:
            by_data[access.tensor] = access
            continue
        inside = (at >= 0).all(1) & (at < np.array(shapes[access.tensor], int)).all(1)
        found.setdefault(access.tensor, []).append(at[inside])
    own = points.positions(s.index)
    assert own is not None
    names = {name: dimension_names([a.index for a in reads if a.tensor == name]) for name in found}
    written = Reached(s.output, shape, np.unique(own, axis=0), dimension_names([s.index]), False)
    inputs = tuple(
        Reached(name, shapes[name], np.unique(np.concatenate(parts), axis=0), names[name], points.cut)
        for name, parts in found.items()
        if shapes[name]
    )
    return Reach(written, inputs, by_data)


def dimension_names(indices: Sequence[Sequence[Expr]]) -> tuple[str, ...]:
    """What each dimension is indexed by; of different indices the first two."""
    found = []
    for dimension in zip(*indices, strict=True):
        names = list(dict.fromkeys(show_expr(e, tight=True) for e in dimension))
        found.append(", ".join(names[:2]) + (", ..." if len(names) > 2 else ""))
    return tuple(found)


def tile_points(s: Statement, shapes: Mapping[str, tuple[int, ...]], tile: Spans) -> TilePoints | None:
    """The valid points whose element lies in the tile, None where there is no variable or no point at all."""
    index = s.index or ()
    within = (
        Constraint(Call("sub", (e, Int(low))), Int(high - low + 1)) for e, (low, high) in zip(index, tile, strict=True)
    )
    box = bounds(replace(s, constraints=(*s.constraints, *within)), dict(shapes))
    variables = [v for v in index_variables(*index, *expressions(s)) if box and v in box]
    if not box or not variables:
        return None
    ranges, cut = _ranges([box[v] for v in variables])
    grid = np.meshgrid(*(np.arange(low, high + 1) for low, high in ranges), indexing="ij")
    values = {v: g.reshape(-1) for v, g in zip(variables, grid, strict=True)}
    inside = _within(index, tile, values)
    for c in s.constraints:
        inside &= _satisfied(c, values)
    everywhere = TilePoints(values, len(inside), cut)
    for access in constraining(s.body, own=s.output, gathers=False):
        at = everywhere.positions(access.index)
        if at is not None:
            inside &= (at >= 0).all(1) & (at < np.array(shapes[access.tensor], int)).all(1)
    guard = None if s.guard is None else index_values(s.guard, values)
    if guard is not None:
        inside &= guard.astype(bool)
    return TilePoints({v: x[inside] for v, x in values.items()}, int(inside.sum()), cut)


def tile_of(s: Statement, shape: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each dimension: `TILE` in the middle of two of them, one of the others. The two are those
    that are written or read at expressions, as windows are, then the last ones."""
    expressed = {
        v for a in accesses_in(s.body) for e in a.index if not isinstance(e, Index) for v in index_variables(e)
    }
    index = s.index or ()
    telling = [not isinstance(e, Index) or bool({*index_variables(e)} & expressed) for e in index]
    order = sorted(range(len(shape)), key=lambda d: (shape[d] > 1, telling[d], d), reverse=True)
    return [middle(n, TILE if d in order[:2] else 1) for d, n in enumerate(shape)]


def middle(size: int, width: int) -> tuple[int, int]:
    """First and last of so many in the middle of a dimension."""
    width = min(size, width)
    first = max(0, (size - width) // 2)
    return first, first + width - 1


def _ranges(ranges: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], bool]:
    """All values, or as many of the longest ranges as fit."""
    cut = False
    while prod(high - low + 1 for low, high in ranges) > SHOWN_POINTS:
        longest = max(range(len(ranges)), key=lambda v: ranges[v][1] - ranges[v][0])
        low, high = ranges[longest]
        ranges[longest], cut = (low, low + (high - low) // 2), True
    return ranges, cut


def _within(index: Sequence[Expr], tile: Spans, values: Mapping[str, np.ndarray]) -> np.ndarray:
    inside = np.ones(len(next(iter(values.values()))), bool)
    for e, (low, high) in zip(index, tile, strict=True):
        at = index_values(e, values)
        if at is not None:
            inside &= (at >= low) & (at <= high) & (at == np.floor(at))
    return inside


def _satisfied(c: Constraint, values: Mapping[str, np.ndarray]) -> np.ndarray:
    at, bound = index_values(c.expr, values), index_values(c.bound, values)
    if at is None or bound is None:
        return np.ones(1, bool)
    return (at >= 0) & (at < bound) & (at == np.floor(at))
