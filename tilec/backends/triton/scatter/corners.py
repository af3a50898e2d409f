"""Sums at a few neighbours of each place that is data, as the corners of an interpolation are.

`Y[T[n] + a] = +(X[n, a]), a < 2` has two points for each n. As the sum of `A[T[n]] = +(X[n, 0])` and
`B[T[n] + 1] = +(X[n, 1])` it has half of the points to sort: both share a sort, and one kernel combines their runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilec.backends.common.domain import Domain, build_domain, free
from tilec.backends.common.terms import sum_of
from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.scatter.places import Margins, PointPlaces, shared_margins
from tilec.ir.at_sizes import fixed_value
from tilec.ir.index import linear
from tilec.ir.program import Access, Expr, Index, Int, Statement, accesses_in, index_variables, substitute
from tilec.ir.types import TensorType, Types, is_floating

MOST_CORNERS = 8  # sums of a kernel, which holds a value of each
FEWEST_CORNERS = 2**15  # points that are sorted otherwise: fewer are soon sorted
MOST_OF_A_RUN = 8  # points in the mean: combining longer runs in parts takes as much more time as sorting takes less


@dataclass(frozen=True)
class Corners:
    """`members`, whose outputs `types` has too, and what adds their values up."""

    members: tuple[Statement, ...]
    total: Statement
    types: Types
    margins: Mapping[str, Margins]


def corners(s: Statement, types: Types) -> Corners | None:
    """The scatter as a sum of scatters that share a sort; None where that is not for it."""
    domain, out = build_domain(s, types), types[s.output]
    if domain is None or s.aggregation != "sum" or s.default is not None or not is_floating(out.dtype):
        return None
    places = PointPlaces.of(domain, types, sort=True)
    beside = _neighbour_variables(places, domain)
    count = math.prod(domain.extent[v] for v in beside)
    points = math.prod(domain.extent[v] for v in places.keyed)
    if not 1 < count <= MOST_CORNERS or points < FEWEST_CORNERS:
        return None
    if points > MOST_OF_A_RUN * math.prod(places.shape[: places.split]):
        return None
    ranges = [[domain.low[v] + n for n in range(fixed_value(domain.extent[v]))] for v in beside]
    members = tuple(
        _member(s, k, {v: Int(n) for v, n in zip(beside, at, strict=True)})
        for k, at in enumerate(itertools.product(*ranges))
    )
    dtype = Accumulator.of(s.aggregation, out.dtype).dtype
    known = {**types, **{m.output: TensorType(out.shape, dtype) for m in members}}
    margins = shared_margins(members, known)
    if len(margins) < len(members):
        return None
    axes = tuple(Index(f"{s.output}.{a}") for a in range(len(out.shape)))
    body = sum_of([Access(m.output, axes) for m in members])
    total = Statement(s.output, axes, tuple(map(Int, out.shape)), body, "assign", span=s.span)
    return Corners(members, total, known, margins)


def _neighbour_variables(places: PointPlaces, domain: Domain) -> list[str]:
    """The variables that count neighbours: each is added to one computed place, and no condition but its range speaks
    of it."""
    conditions = [linear(c.expr) for c in places.statement.constraints]
    asked = {v for c in conditions if c.bare is None for v in free(c)}
    asked.update(v for c in domain.conditions if not any(accesses_in(*c.form.atoms())) for v in free(c.form))
    found = []
    for row in places.rows[: places.split]:
        if any(accesses_in(*row.atoms())):
            within = set(index_variables(*row.atoms()))
            plain = [v for v in row.variables() if v not in within and row.coefficient(v).denominator == 1]
            found += [v for v in plain if sum(v in free(r) for r in places.rows) == 1 and v not in asked]
    return found


def _member(s: Statement, k: int, at: Mapping[str, Int]) -> Statement:
    """The scatter at these neighbours alone."""
    index = dict[str, Expr](at)
    return replace(
        s,
        output=f"{s.output}.{k}",
        index=tuple(substitute(e, index) for e in s.index or ()),
        body=substitute(s.body, index),
        guard=None if s.guard is None else substitute(s.guard, index),
        constraints=tuple(c for c in s.constraints if not free(linear(c.expr)) & at.keys()),
        attributes=(),
    )
