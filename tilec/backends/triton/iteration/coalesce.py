"""Dimensions that every tensor walks as one are collapsed, so that a contiguous tensor is a vector."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

from tilec.backends.triton.plan.sizes import Strides, contiguous
from tilec.errors import TileError
from tilec.ir.functions import FUNCTIONS
from tilec.ir.index import Affine, linear
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Index,
    Int,
    Pad,
    Statement,
    accesses_in,
    children,
    index_variables,
    map_values,
    rebuild,
    walk,
)
from tilec.ir.types import TensorType, Types

WantedPair = Callable[[set[str]], bool]


@dataclass(frozen=True)
class StridedView:
    """A statement over views of its tensors: their types and strides as it indexes them, and whether positions in them
    take 64 bits. `padded`: see `Setting`."""

    statement: Statement
    types: Types
    strides: Strides
    int64_index: bool = False
    padded: frozenset[str] = frozenset()

    def with_tensor(self, name: str, t: TensorType, strides: tuple[int, ...] | None = None) -> StridedView:
        """The same beside another tensor, contiguous unless strides are given."""
        strides = contiguous(t.shape) if strides is None else strides
        return replace(self, types={**self.types, name: t}, strides={**self.strides, name: strides})


def coalesce(view: StridedView, wanted: WantedPair = lambda pair: True) -> StridedView:
    """The view with all that can be merged."""
    for _, _, merged in merges(view, wanted):
        view = merged
    return view


def merges(view: StridedView, wanted: WantedPair) -> Iterator[tuple[str, str, StridedView]]:
    """One merge after the other while anything merges: neighbouring output variables, and summed variables that follow
    each other in some tensor, of the pairs that are `wanted`; the inner one's name stays. Only variables that stand
    bare wherever they stand are looked at."""
    while True:
        pairs = ((a, b) for a, b in _neighbours(view.statement) if wanted({a, b}))
        found = next(((a, b, merged) for a, b in pairs if (merged := _merge(view, a, b)) is not None), None)
        if found is None:
            return
        view = found[2]
        yield found


def _neighbours(s: Statement) -> list[tuple[str, str]]:
    """Pairs of variables that stand bare at neighbouring axes of the output or, in neither, of an access."""
    outputs = [linear(e).bare for e in s.index or ()]
    pairs = [(a, b) for a, b in itertools.pairwise(outputs) if a is not None and b is not None and a != b]
    written = set(index_variables(*(s.index or ())))
    for root in (s.body, s.guard):
        for e in walk(root) if root is not None else ():
            if isinstance(e, Access):
                bare = [linear(i).bare for i in e.index]
                pairs += [(a, b) for a, b in itertools.pairwise(bare) if a and b and a != b and not {a, b} & written]
    return list(dict.fromkeys(pairs))


def _merge(view: StridedView, outer: str, inner: str) -> StridedView | None:
    """The statement with the two variables as one, called `inner`; None where some tensor does not walk them as one."""
    s = view.statement
    assert s.index is not None and s.sizes is not None
    if {outer, inner} & set(index_variables(*(c.expr for c in s.constraints))):
        return None
    if any(isinstance(e, Index) and e.name in (outer, inner) for root in s.roots for e in values(root)):
        return None
    counters = [e.args[1] for e in walk(*s.roots) if _draws(e)]
    if any(isinstance(e, Pad) for e in walk(*s.roots)):
        return None  # a padded access says nothing of a variable's range
    accesses = list(accesses_in(*s.roots))
    accesses.append(Access(s.output, s.index))
    dropped: dict[str, int | None] = {}
    sizes: set[tuple[int, int]] = set()
    for a in accesses:
        found = _walked(a, outer, inner, view)
        if found == -1 or dropped.setdefault(a.tensor, found) != found:
            return None
        if found is not None:
            sizes.add((view.types[a.tensor].shape[found], view.types[a.tensor].shape[found + 1]))
    if len(sizes) != 1 or not all(_counts(c, outer, inner, n) for c in counters for _, n in sizes):
        return None
    if s.default is not None and (s.default not in dropped or dropped[s.default] != dropped[s.output]):
        return None
    types, strides = dict(view.types), dict(view.strides)
    for tensor, axis in dropped.items():
        if axis is not None:
            shape = list(types[tensor].shape)
            outer_size = shape.pop(axis)
            shape[axis] *= outer_size
            types[tensor] = replace(types[tensor], shape=tuple(shape))
            strides[tensor] = (*strides[tensor][:axis], *strides[tensor][axis + 1 :])
    drop = {t: a for t, a in dropped.items() if a is not None}
    index = _dropped(Access(s.output, s.index), drop, outer)
    assert isinstance(index, Access)
    merged = map_values(s, lambda e: _dropped(e, drop, outer))
    merged = replace(merged, index=index.index, sizes=tuple(map(Int, types[s.output].shape)))
    return replace(view, statement=merged, types=types, strides=strides)


def _walked(a: Access, outer: str, inner: str, view: StridedView) -> int | None:
    """The axis of `outer`, which `inner`'s follows and continues; None if the access has neither, -1 if they do not."""
    places = [k for k, e in enumerate(a.index) if set(index_variables(e)) & {outer, inner}]
    if not places:
        return None
    if len(places) != 2 or places[1] != places[0] + 1:
        return -1
    q = places[0]
    shape, strides = view.types[a.tensor].shape, view.strides[a.tensor]
    whole = linear(a.index[q]).bare == outer and linear(a.index[q + 1]).bare == inner
    return q if whole and strides[q] == shape[q + 1] * strides[q + 1] else -1


def values(e: Expr) -> Iterator[Expr]:
    """Subexpressions that stand as values, those in indices and in counters of draws left out."""
    yield e
    if not isinstance(e, Access):
        for c in e.args[:1] if _draws(e) else children(e):
            yield from values(c)


def _draws(e: Expr) -> TypeGuard[Call]:
    return isinstance(e, Call) and e.function in FUNCTIONS and FUNCTIONS[e.function].result == "random"


def _counts(counter: Expr, outer: str, inner: str, n: int) -> bool:
    """Whether a draw's counter moves with the two variables as it would with one of both their values."""
    try:
        form = linear(counter)
    except TileError:
        return not {outer, inner} & set(index_variables(counter))
    plain = all(isinstance(a, Index) for a in form.atoms()) or not {outer, inner} & set(index_variables(counter))
    return plain and form.coefficient(outer) == form.coefficient(inner) * n


def _dropped(e: Expr, axes: Mapping[str, int], outer: str) -> Expr:
    if isinstance(e, Access):
        index = tuple(_dropped(i, axes, outer) for i in e.index)
        if e.tensor in axes:
            index = (*index[: axes[e.tensor]], *index[axes[e.tensor] + 1 :])
        return replace(e, index=index)
    if _draws(e) and outer in index_variables(e.args[1]):
        counter = linear(e.args[1]).substitute({outer: Affine()})
        return replace(e, args=(_dropped(e.args[0], axes, outer), counter.to_value()))
    return rebuild(e, lambda x: _dropped(x, axes, outer))
