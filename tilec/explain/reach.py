"""Which elements of its inputs a tile of a statement's output reads, by enumeration of valid points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

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
from tilec.lattice.sets import bounds, sizes_of

SHOWN_POINTS = 400_000  # that are looked at; beyond, the ranges of the longest variables are cut
TILE = 2  # elements of the output along each of two dimensions

_OPERATIONS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "mod": np.mod, "neg": np.negative,
    "min": np.minimum, "max": np.maximum, "abs": np.abs, "floor": np.floor,
    "clamp": lambda e, low, high: np.clip(e, low, high),
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.logical_and, "or": np.logical_or,
}  # fmt: skip


@dataclass(frozen=True)
class Reached:
    """Elements of one tensor: `positions` has a row for each, in the tensor's own indices. `cut`: there are more."""

    tensor: str
    shape: tuple[int, ...]
    positions: np.ndarray
    cut: bool


@dataclass(frozen=True)
class Reach:
    """A tile of an output and what it reads; `by_data` are tensors whose elements a value in another one names."""

    tile: Reached
    inputs: tuple[Reached, ...]
    by_data: tuple[str, ...]


def reached_points(s: Statement, shapes: Mapping[str, tuple[int, ...]]) -> Reach | None:
    """None where the statement has no index variables, no valid points, or writes where data say."""
    if s.index is None or not s.index or any(accesses_in(*s.index)):
        return None
    box = bounds(s, dict(shapes))
    variables = [v for v in index_variables(*s.index, *expressions(s)) if box and v in box]
    if not box or not variables:
        return None
    shape = sizes_of(s)
    tile = _tile(s, shape)
    ranges, cut = _ranges(s, box, variables, tile)
    grid = np.meshgrid(*(np.arange(low, high + 1) for low, high in ranges), indexing="ij")
    values = {v: g.reshape(-1) for v, g in zip(variables, grid, strict=True)}
    inside = _within(s.index, tile, values)
    for c in s.constraints:
        inside &= _satisfied(c, values)
    guard = None if s.guard is None else _value(s.guard, values)
    if guard is not None:
        inside &= guard.astype(bool)
    found: dict[str, list[np.ndarray]] = {}
    by_data: dict[str, None] = {}
    everywhere = [a for a in accesses_in(s.body) if a.tensor != s.output]
    for access in everywhere:
        at = _positions(access, shapes[access.tensor], values)
        if at is None:
            by_data[access.tensor] = None
            continue
        held = (at >= 0).all(1) & (at < np.array(shapes[access.tensor], int)).all(1) & inside
        found.setdefault(access.tensor, []).append(at[held].astype(int))
    own = [_value(i, values) for i in s.index]
    written = np.stack([np.broadcast_to(o, inside.shape)[inside] for o in own if o is not None], 1).astype(int)
    reached = (_reached(name, shapes[name], parts, cut) for name, parts in found.items() if shapes[name])
    return Reach(_reached(s.output, shape, [written], False), tuple(reached), tuple(by_data))


def _tile(s: Statement, shape: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each dimension: a few in the middle of two of them, one of the others. The two are those of
    windows, whose variables stand in expressions that are read at, then the last ones."""
    expressed = {
        v for a in accesses_in(s.body) for e in a.index if not isinstance(e, Index) for v in index_variables(e)
    }
    own = [set(index_variables(e)) for e in s.index or ()]
    order = sorted(range(len(shape)), key=lambda d: (shape[d] > 1, bool(own[d] & expressed), d), reverse=True)
    found = []
    for d, n in enumerate(shape):
        width = min(n, TILE) if d in order[:2] else 1
        first = max(0, (n - width) // 2)
        found.append((first, first + width - 1))
    return found


def _ranges(
    s: Statement, box: Mapping[str, tuple[int, int]], variables: Sequence[str], tile: Sequence[tuple[int, int]]
) -> tuple[list[tuple[int, int]], bool]:
    """Of variables that stand bare on the left what the tile has of them; of others all, or as many as fit."""
    bare = {i.name: t for i, t in zip(s.index or (), tile, strict=True) if isinstance(i, Index)}
    ranges = {v: (max(box[v][0], bare[v][0]), min(box[v][1], bare[v][1])) if v in bare else box[v] for v in variables}
    cut = False
    while prod(max(0, high - low + 1) for low, high in ranges.values()) > SHOWN_POINTS:
        longest = max(ranges, key=lambda v: ranges[v][1] - ranges[v][0])
        low, high = ranges[longest]
        ranges[longest], cut = (low, low + (high - low) // 2), True
    return [ranges[v] for v in variables], cut


def _within(index: Sequence[Expr], tile: Sequence[tuple[int, int]], values: Mapping[str, np.ndarray]) -> np.ndarray:
    inside = np.ones(len(next(iter(values.values()))), bool)
    for e, (low, high) in zip(index, tile, strict=True):
        at = _value(e, values)
        if at is not None:
            inside &= (at >= low) & (at <= high) & (at == np.floor(at))
    return inside


def _satisfied(c: Constraint, values: Mapping[str, np.ndarray]) -> np.ndarray:
    at, bound = _value(c.expr, values), _value(c.bound, values)
    if at is None or bound is None:
        return np.ones(1, bool)
    return (at >= 0) & (at < bound) & (at == np.floor(at))


def _positions(access: Access, shape: tuple[int, ...], values: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """A row for each point; -1 where an index is no integer. None where an index is an element of a tensor."""
    count = len(next(iter(values.values())))
    columns = []
    for e in access.index:
        at = _value(e, values)
        if at is None:
            return None
        at = np.broadcast_to(at, (count,))
        columns.append(np.where(at == np.floor(at), at, -1))
    return np.stack(columns, 1) if columns else np.zeros((count, 0))


def _value(e: Expr, values: Mapping[str, np.ndarray]) -> np.ndarray | None:
    match e:
        case Int():
            return np.asarray(e.value, float)
        case Index():
            return values[e.name].astype(float) if e.name in values else None
        case Call() if e.function in _OPERATIONS:
            arguments = [_value(a, values) for a in e.args]
            return None if any(a is None for a in arguments) else _OPERATIONS[e.function](*arguments)
    return None


def _reached(name: str, shape: tuple[int, ...], parts: Sequence[np.ndarray], cut: bool) -> Reached:
    every = np.concatenate(parts) if parts else np.zeros((0, len(shape)), int)
    return Reached(name, shape, np.unique(every, axis=0), cut)
