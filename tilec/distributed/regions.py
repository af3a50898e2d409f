"""Which elements of the tensors that it reads a part of a statement needs: boxes, by intervals of index variables.

The intervals are those of the statement's points, cut by what the part asks for and carried from condition to condition
until nothing changes. A box may hold more than is read (a form of two variables that depend on one another), never
less; windows, strides, dilations and triangular masks come out exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilec.distributed.placements import IndexBox, hull
from tilec.ir.index import Affine, linear
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Index,
    Inside,
    Pad,
    Statement,
    children,
    index_variables,
    self_reads,
)
from tilec.ir.rational import Fraction
from tilec.lattice.conditions import bound_of, has_room, is_affine
from tilec.lattice.sets import IntegerSet, Interval, Shapes, bounds_of, depends_on_data, domain, domain_of, interval_of

_ROUNDS = 12  # of carrying intervals; they only shrink, so that stopping early is safe
_EVERYTHING: Interval = (-math.inf, math.inf)
Intervals = dict[str, Interval]


@dataclass(frozen=True)
class Limit:
    """`form` lies in low..high, both included."""

    form: Affine
    low: int | float
    high: int | float


@dataclass(frozen=True)
class RegionRead:
    """An access, the aggregations around it, outermost first, and what it gives: `shape` alone, under `in`, or
    elements; `constrains`: no point counts where it lies outside, whichever branches are taken."""

    access: Access
    layers: tuple[Aggregate, ...]
    shape: bool
    constrains: bool


def statement_reads(s: Statement) -> tuple[RegionRead, ...]:
    """All accesses of a statement but those in `init`."""
    roots = [*(s.index or ()), *s.roots]
    return tuple(r for root in roots for r in _reads(root, (), True))


def _reads(e: Expr, layers: tuple[Aggregate, ...], constrains: bool) -> Iterator[RegionRead]:
    match e:
        case Inside(access):
            yield RegionRead(access, layers, True, constrains)
            for i in access.index:
                yield from _reads(i, layers, constrains)
        case Pad(access, value):
            inner = access.access if isinstance(access, Inside) else access
            yield RegionRead(inner, layers, isinstance(access, Inside), False)
            for i in inner.index:
                yield from _reads(i, layers, False)
            yield from _reads(value, layers, constrains)
        case Access():
            yield RegionRead(e, layers, False, constrains)
            for i in e.index:
                yield from _reads(i, layers, constrains)
        case Aggregate():
            for child in children(e):
                yield from _reads(child, (*layers, e), False)
        case Call("select", (condition, *branches)):
            yield from _reads(condition, layers, constrains)
            for branch in branches:
                yield from _reads(branch, layers, False)
        case _:
            for child in children(e):
                yield from _reads(child, layers, constrains)


class Regions:
    """The reads of one statement and the boxes that parts of it need. `shapes`: of the tensors that it reads."""

    def __init__(self, s: Statement, shapes: Shapes):
        self.statement, self.shapes = s, shapes
        points = domain(s, shapes)
        self.reads = tuple(r for r in statement_reads(s) if r.access.tensor != s.output)
        box = bounds_of(IntegerSet(points.variables, points.conditions))
        self._start: Intervals | None = (
            None if box is None else {v: (Fraction(a), Fraction(b)) for v, (a, b) in box.items()}
        )
        self._limits = [Limit(c.form, 0, c.bound - 1) for c in points.conditions]
        self._limits += [] if s.guard is None else _conditions_of(s.guard)
        self._inner = {r.layers: self._layer_limits(r.layers) for r in self.reads}

    def _layer_limits(self, layers: Sequence[Aggregate]) -> list[Limit]:
        found: list[Limit] = []
        for e in layers:
            inner = domain_of((e.body, *e.guards), self.shapes, e.constraints, own=self.statement.output)
            found += [Limit(c.form, 0, c.bound - 1) for c in inner.conditions]
            found += [] if e.guard is None else _conditions_of(e.guard)
        return found

    def needed(self, *part: Limit) -> dict[str, IndexBox]:
        """Of each tensor whose elements are read, the box of those that the part's points read; empty ones left out."""
        found: dict[str, IndexBox] = {}
        intervals = self._narrowed(self._start, [*part, *self._limits])
        if intervals is not None:
            known: dict[tuple[Aggregate, ...], Intervals | None] = {(): intervals}
            for r in self.reads:
                if r.shape:
                    continue
                if r.layers not in known:
                    bound = dict.fromkeys((v for e in r.layers for v in e.bound), _EVERYTHING)
                    known[r.layers] = self._narrowed({**intervals, **bound}, self._inner[r.layers])
                if (inner := known[r.layers]) is not None:
                    self._add(found, r.access, inner)
        if self.statement.init is not None:
            self._add_init(found, part)
        if (default := self.statement.default) is not None:
            self._add_default(found, default, part)
        return found

    def _add(self, found: dict[str, IndexBox], access: Access, intervals: Intervals) -> None:
        box = tuple(
            clipped(_reach(linear(e), intervals), n)
            for e, n in zip(access.index, self.shapes[access.tensor], strict=True)
        )
        if all(start < stop for start, stop in box):
            found[access.tensor] = hull(found.get(access.tensor), box)

    def _add_init(self, found: dict[str, IndexBox], part: Sequence[Limit]) -> None:
        """`init` is read at coordinates that the recurrence reads: the part's own along the dimension that it divides,
        any along the others."""
        s = self.statement
        assert s.init is not None
        free: Intervals = dict.fromkeys(index_variables(*(s.index or ())), _EVERYTHING)
        for limit in part:
            if (v := limit.form.bare) is not None:
                if limit.low > limit.high:
                    return
                if all(linear(access.index[k]) == limit.form for access, k in self._own_indices(v)):
                    free[v] = Fraction(limit.low), Fraction(limit.high)
        for r in _reads(s.init, (), False):
            if not r.shape:
                self._add(found, r.access, free)

    def _own_indices(self, v: str) -> Iterator[tuple[Access, int]]:
        """The statement's reads of itself, and the place of a variable in its index."""
        places = [k for k, e in enumerate(self.statement.index or ()) if e == Index(v)]
        return ((access, k) for access in self_reads(self.statement) for k in places)

    def _add_default(self, found: dict[str, IndexBox], default: str, part: Sequence[Limit]) -> None:
        s = self.statement
        box = [(0, n) for n in self.shapes[default]]
        for limit in part:
            for k, e in enumerate(s.index or ()):
                if linear(e) == limit.form:
                    box[k] = clipped((limit.low, limit.high), self.shapes[default][k])
        if all(start < stop for start, stop in box):
            found[default] = hull(found.get(default), tuple(box))

    def _narrowed(self, start: Intervals | None, limits: Sequence[Limit]) -> Intervals | None:
        """The intervals under these limits; None where no point is left."""
        if start is None:
            return None
        box = dict(start)
        for _ in range(_ROUNDS):
            changed = False
            for limit in limits:
                if limit.low > limit.high:
                    return None
                for v in limit.form.variables():
                    if v not in box:
                        continue
                    new = _solved(limit, v, box)
                    if new[0] > new[1]:
                        return None
                    if new != box[v]:
                        box[v], changed = new, True
            if not changed:
                break
        return box


def _conditions_of(guard: Expr) -> list[Limit]:
    """What a guard says of affine forms of index variables."""
    match guard:
        case Call("and", (a, b)):
            return _conditions_of(a) + _conditions_of(b)
        case Call("eq", (a, b)) if is_affine(a) and is_affine(b) and has_room(a) and has_room(b):
            return [Limit(linear(a) - linear(b), 0, 0)]
    form = bound_of(guard)
    return [] if form is None else [Limit(form, 0, math.inf)]


def _solved(limit: Limit, v: str, box: Mapping[str, Interval]) -> Interval:
    """The interval of a variable where the others of the form have theirs."""
    own = limit.form.coefficient(v)
    low, high = _reach(limit.form - Affine.variable(v, own), box)
    ends = ((limit.low - high) / own, (limit.high - low) / own)
    below, above = min(ends), max(ends)
    return (
        max(box[v][0], below if math.isinf(below) else Fraction(math.ceil(below))),
        min(box[v][1], above if math.isinf(above) else Fraction(math.floor(above))),
    )


def _reach(form: Affine, box: Mapping[str, Interval]) -> Interval:
    """Bounds of a form's value where its variables lie in intervals."""
    return interval_of(form, lambda atom: _atom(atom, box))


def _atom(e: Expr, box: Mapping[str, Interval]) -> Interval:
    if isinstance(e, Index):
        return box.get(e.name, _EVERYTHING)
    if not isinstance(e, Call) or depends_on_data(Affine.of([(e, 1)])):
        return _EVERYTHING
    intervals = [_reach(linear(a), box) for a in e.args]
    match e.function:
        case "mod":
            (low, high), (n, other) = intervals
            if n != other or n <= 0:
                return _EVERYTHING
            same = not math.isinf(low) and not math.isinf(high) and low // n == high // n
            return (low % n, high % n) if same else (Fraction(0), n - 1)
        case "clamp":
            (low, high), (least, _), (_, most) = intervals
            return min(max(low, least), most), min(max(high, least), most)
        case "max" | "min":
            pick = max if e.function == "max" else min
            return pick(i[0] for i in intervals), pick(i[1] for i in intervals)
    return _EVERYTHING


def clipped(interval: tuple[Fraction | float, Fraction | float], size: int) -> tuple[int, int]:
    """The whole numbers of an interval inside a dimension, the last one excluded."""
    low = 0 if interval[0] <= 0 else size if interval[0] >= size else math.ceil(interval[0])
    high = -1 if interval[1] < 0 else size - 1 if interval[1] >= size else math.floor(interval[1])
    return low, max(low, high + 1)
