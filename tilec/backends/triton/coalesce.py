"""Neighbouring output variables that every tensor walks as one become one, so that a contiguous tensor is a vector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilec.ir.index import linear
from tilec.ir.program import Access, Expr, Index, Int, Statement, children, index_variables, rebuild, walk
from tilec.ir.types import TensorType


@dataclass(frozen=True)
class Viewed:
    """A statement over views of its tensors: their types and strides as it indexes them."""

    statement: Statement
    types: Mapping[str, TensorType]
    strides: Mapping[str, tuple[int, ...]]


def coalesce(seen: Viewed) -> Viewed:
    """Merge while anything merges. Only statements that write every element by bare variables are looked at."""
    place = 0
    while place + 1 < len(seen.statement.index or ()):
        merged = _merge(seen, place)
        if merged is None:
            place += 1
        else:
            seen, place = merged, max(place - 1, 0)
    return seen


def _merge(seen: Viewed, place: int) -> Viewed | None:
    s = seen.statement
    assert s.index is not None and s.sizes is not None
    bare = [linear(e).bare for e in s.index]
    if None in bare or len(set(bare)) != len(bare):
        return None
    outer, inner = bare[place], bare[place + 1]
    assert outer is not None and inner is not None
    others = (*(e for k, e in enumerate(s.index) if k not in (place, place + 1)), *(c.expr for c in s.constraints))
    if {outer, inner} & set(index_variables(*others)):
        return None
    roots = (s.body,) if s.guard is None else (s.guard, s.body)
    if any(isinstance(e, Index) and e.name in (outer, inner) for root in roots for e in _values(root)):
        return None
    accesses = [e for root in roots for e in walk(root) if isinstance(e, Access)]
    accesses.append(Access(s.output, s.index))
    dropped: dict[str, int | None] = {}
    for a in accesses:
        found = _walked(a, outer, inner, seen)
        if found == -1 or dropped.setdefault(a.tensor, found) != found:
            return None
    if s.default is not None and s.default not in dropped:
        return None
    types, strides = dict(seen.types), dict(seen.strides)
    for tensor, axis in dropped.items():
        if axis is not None:
            shape = list(types[tensor].shape)
            outer_size = shape.pop(axis)
            shape[axis] *= outer_size
            types[tensor] = replace(types[tensor], shape=tuple(shape))
            strides[tensor] = (*strides[tensor][:axis], *strides[tensor][axis + 1 :])
    sizes = [e.value for e in s.sizes if isinstance(e, Int)]
    size = Int(math.prod(sizes[place : place + 2]))
    drop = {t: a for t, a in dropped.items() if a is not None}
    return Viewed(
        replace(
            s,
            index=(*s.index[:place], *s.index[place + 1 :]),
            sizes=(*s.sizes[:place], size, *s.sizes[place + 2 :]),
            body=_dropped(s.body, drop),
            guard=None if s.guard is None else _dropped(s.guard, drop),
        ),
        types,
        strides,
    )


def _walked(a: Access, outer: str, inner: str, seen: Viewed) -> int | None:
    """The axis of `outer`, which `inner`'s follows and continues; None if the access has neither, -1 if it cannot be."""
    used = [set(index_variables(e)) & {outer, inner} for e in a.index]
    if not any(used):
        return None
    places = [k for k, u in enumerate(used) if u]
    if len(places) != 2 or places[1] != places[0] + 1:
        return -1
    q = places[0]
    shape, strides = seen.types[a.tensor].shape, seen.strides[a.tensor]
    s = seen.statement
    sizes = dict(zip((linear(e).bare for e in s.index or ()), s.sizes or (), strict=True))
    whole = [linear(a.index[q]).bare == outer, linear(a.index[q + 1]).bare == inner]
    whole += [sizes[v] == Int(n) for v, n in zip((outer, inner), shape[q : q + 2], strict=True)]
    return q if all(whole) and strides[q] == shape[q + 1] * strides[q + 1] else -1


def _values(e: Expr):
    """Subexpressions that stand as values, those in indices left out."""
    yield e
    if not isinstance(e, Access):
        for c in children(e):
            yield from _values(c)


def _dropped(e: Expr, axes: Mapping[str, int]) -> Expr:
    if isinstance(e, Access):
        index = tuple(_dropped(i, axes) for i in e.index)
        if e.tensor in axes:
            index = (*index[: axes[e.tensor]], *index[axes[e.tensor] + 1 :])
        return replace(e, index=index)
    return rebuild(e, lambda x: _dropped(x, axes))
