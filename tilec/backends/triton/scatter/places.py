"""Where the points of a scatter are written, and scatters that share a sort although their places differ.

The corners of an interpolation are written at `P[m]` and `P[m] + 1`, at places that differ by constants. The points of
such scatters are sorted once, by the place without its constant, among positions that hold those of all of them: along
an axis these begin a margin before the output's first and end a margin after its last. A point that is inside for one
scatter alone is in a run that the others do not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.domain import Domain, build_domain, free, point_conditions, row_major
from tilec.backends.triton.plan.sizes import NARROWEST
from tilec.backends.triton.scatter.sort import is_sparse
from tilec.ir.index import Affine, linear, place_value
from tilec.ir.program import (
    Access,
    Call,
    Constraint,
    Expr,
    Index,
    Inside,
    Int,
    Statement,
    accesses_in,
    index_variables,
    reads_itself,
    rebuild,
    substitute,
    walk,
)
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import Types
from tilec.transforms.util.naming import all_variables, fresh_variable
from tilec.transforms.util.roles import roles

Margins = tuple[tuple[int, int], ...]  # of each computed axis: positions before the output's first, after its last
MOST_POSITIONS = 2  # of a sort that several share, for each of the output's


@dataclass(frozen=True)
class PointPlaces:
    """The points of `statement` and its output index. `rows` are the index along the output's `axes`, and `shape` what
    these are long: first `split` computed ones, then plain ones, which are one variable each (`columns`). `keyed`
    number the points. `every`: whether all axes that are plain stand among the plain ones."""

    domain: Domain
    types: Types
    axes: tuple[int, ...]
    split: int
    every: bool

    @staticmethod
    def of(domain: Domain, types: Types, sort: bool) -> PointPlaces:
        """Unless points are sorted only trailing axes are plain."""
        s = domain.statement
        shape = types[s.output].shape
        rows = tuple(map(linear, s.index or ()))
        # with a default it matters which elements were reached, so every point has a position of its own
        every = _plain_axes(rows, shape, domain) if s.default is None else ()
        trailing = tuple(a for a in every if every[-(len(rows) - a) :] == tuple(range(a, len(rows))))
        plain = every if sort else trailing
        axes = (*(a for a in range(len(rows)) if a not in plain), *plain)
        return PointPlaces(domain, types, axes, len(rows) - len(plain), plain == every)

    @property
    def statement(self) -> Statement:
        return self.domain.statement

    @property
    def rows(self) -> tuple[Affine, ...]:
        index = self.statement.index or ()
        return tuple(linear(index[a]) for a in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.types[self.statement.output].shape
        return tuple(shape[a] for a in self.axes)

    @property
    def keyed(self) -> tuple[str, ...]:
        named = {v for row in self.rows[: self.split] for v in free(row)}
        return tuple(v for v in self.domain.low if self.statement.default is not None or v in named)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(row.variables()[0] for row in self.rows[self.split :])

    def shifted(self, v: str) -> Expr:
        """The variable counted from 0."""
        return (Affine.variable(v) - self.domain.low[v]).to_expr()

    @property
    def limits(self) -> tuple[Constraint, ...]:
        """That a point is written inside of the output."""
        return tuple(Constraint(row.to_expr(), Int(n)) for row, n in zip(self.rows, self.shape, strict=True))

    @property
    def whole_guard(self) -> bool:
        """Whether the guard is asked where points are combined alone, not where they are sorted."""
        s = self.statement
        if s.guard is None:
            return False
        variables = {e.name for e in walk(s.guard) if isinstance(e, Index)}
        return bool(variables - set(self.keyed)) or (s.default is None and asks_for_bounds(s.guard))

    def lengths(self, margins: Margins) -> tuple[int, ...]:
        """Positions along each computed axis."""
        margins = margins or ((0, 0),) * self.split
        return tuple(n + before + after for n, (before, after) in zip(self.shape, margins, strict=False))

    def position(self, margins: Margins) -> Statement:
        """Computes each point's position: one more than the place in the output with its margins, so that points that
        are not valid, left at 0, come first."""
        s, keyed = self.statement, self.keyed
        before = [first for first, _ in margins] or [0] * self.split
        rows = tuple(row + first for row, first in zip(self.rows, before, strict=False))
        lengths = self.lengths(margins)
        inside = tuple(Constraint(row.to_expr(), Int(n)) for row, n in zip(rows, lengths, strict=True))
        constraints = dict.fromkeys((*self._point_constraints(), *inside))
        return Statement(
            f"{s.output}.at",
            tuple(map(self.shifted, keyed)),
            tuple(Int(self.domain.extent[v]) for v in keyed),
            place_value((row_major(rows, lengths) + 1).to_value()),
            "assign",
            None if self.whole_guard else s.guard,
            tuple(c for c in constraints if free(linear(c.expr)) <= set(keyed)),
            span=s.span,
        )

    def key(self, position: Statement) -> tuple[object, ...]:
        """Equal for scatters whose points have the same positions, whatever their variables are called."""
        number: dict[str, Expr] = {v: Index(str(k)) for k, v in enumerate(self.keyed)}
        forms = (position.body, *(position.index or ()), *position.guards)
        conditions = frozenset((substitute(c.expr, number), c.bound) for c in position.constraints)
        return tuple(substitute(e, number) for e in forms), conditions, position.sizes

    def _point_constraints(self) -> Iterable[Constraint]:
        """What says which points there are, beside the limits. That other reads are inside at computed places is asked
        where points are combined: sums by one tensor share a sort."""
        s = self.statement
        sorting = () if self.whole_guard else s.guards
        own = point_conditions((*sorting, *(s.index or ())), s.constraints, self.types)
        for c in point_conditions((s.body, *s.guards, *(s.index or ())), s.constraints, self.types):
            asked = s.default is not None or c in own or not any(accesses_in(*c.form.atoms()))
            if asked and not self.domain.holds(c):
                yield Constraint(c.form.to_expr(), Int(c.bound))

    def at_runs(self, term: Statement) -> tuple[Statement, tuple[str, ...]]:
        """The term with elements that are at its place in the output read by that (`T[D[m]]` of what is written at
        `D[m]`): all points of a run read one. The variables of the place come first in its index; none where nothing
        reads so."""
        used = all_variables(term)
        names = [fresh_variable("v", used) for _ in range(self.split)]
        known = dict(zip(self.rows[: self.split], zip(names, self.shape, strict=False), strict=True))

        def place(e: Expr, n: int) -> Expr:
            form = linear(e)
            for row, (name, size) in known.items():
                apart = form - row
                if not apart.terms and apart.is_integral and 0 <= apart.constant <= n - size:
                    return (Affine.variable(name) + apart.constant).to_expr()
            return rebuild(e, read)

        def read(e: Expr) -> Expr:
            if isinstance(e, Access):
                shape = self.types[e.tensor].shape
                found = replace(e, index=tuple(map(place, e.index, shape)))
                return e if set(self.keyed).intersection(index_variables(*found.index)) else found
            return e if isinstance(e, Inside) else rebuild(e, read)

        body = read(term.body)
        if body == term.body:
            return term, ()
        index, sizes = (
            (*map(Index, names), *(term.index or ())),
            (*map(Int, self.shape[: self.split]), *(term.sizes or ())),
        )
        return replace(term, body=body, index=index, sizes=sizes), tuple(names)

    @property
    def sparse(self) -> bool:
        """Whether few of the places occur."""
        points = math.prod(self.domain.extent[v] for v in self.keyed)
        return self.statement.default is None and is_sparse(points, math.prod(self.shape[: self.split]))

    @property
    def constants(self) -> tuple[int, ...]:
        """Of each computed axis what its index adds to what is computed; a fraction stays with that."""
        return tuple(0 if is_symbolic(row.constant) else math.floor(row.constant) for row in self.rows[: self.split])


def is_scatter(defracted: Statement) -> bool:
    """Whether a statement's output index is no change of variables."""
    return roles(defracted) is None and not reads_itself(defracted)


def place_families(scatters: Sequence[Statement], types: Types) -> dict[object, list[PointPlaces]]:
    """The flat scatters whose points one sort can put in order, as their places differ by constants at most."""
    families: dict[object, list[PointPlaces]] = {}
    for s in scatters:
        domain = build_domain(s, types)
        if domain is None:
            continue
        places = PointPlaces.of(domain, types, sort=True)
        back = tuple((-c, c) for c in places.constants)
        key = places.key(places.position(back)), places.shape[: places.split]
        families.setdefault(key, []).append(places)
    return families


def shared_margins(scatters: Sequence[Statement], types: Types) -> dict[str, Margins]:
    """The margins of the flat scatters, by output, that differ from others by constants along computed axes."""
    found: dict[str, Margins] = {}
    for members in place_families(scatters, types).values() if len(scatters) > 1 else ():
        if any(m.sparse for m in members):
            continue  # whose positions are walked, not all of the output's
        constants = [m.constants for m in members]
        least, most = (tuple(map(end, zip(*constants, strict=True))) for end in (min, max))
        for m in members if least != most else ():
            margins = tuple((b - c, c - a) for a, b, c in zip(least, most, m.constants, strict=True))
            positions = math.prod(m.lengths(margins))
            if positions <= min(NARROWEST, MOST_POSITIONS * math.prod(m.shape[: m.split])):
                found[m.statement.output] = margins
    return found


def _plain_axes(rows: tuple[Affine, ...], shape: tuple[int, ...], domain: Domain) -> tuple[int, ...]:
    """Axes that are one variable each, which walks all of the axis and stands nowhere else in the index."""
    walked = ((a, whole_axis(row, n, domain)) for a, (row, n) in enumerate(zip(rows, shape, strict=True)))
    return tuple(a for a, v in walked if v is not None and sum(v in free(row) for row in rows) == 1)


def whole_axis(row: Affine, size: int, domain: Domain) -> str | None:
    """The variable that is all of the row's index and walks all of its axis."""
    v = row.bare
    return v if v is not None and domain.low[v] == 0 and domain.extent[v] == size else None


def asks_for_bounds(e: Expr) -> bool:
    """Whether a guard asks no more than that places in tensors are between numbers, as nearly all are."""
    match e:
        case Call("and", args):
            return all(map(asks_for_bounds, args))
        case Call("ge", (Access() | Call("int64", (Access(),)), Int(0))):
            return True
        case Call("lt", (Access() | Call("int64", (Access(),)), Int())):
            return True
    return isinstance(e, Inside)
