"""Family scatter: an output index that is no change of variables (elements of tensors, `%`, `clamp`).

Deterministic, for every aggregation. Integer sums and greatest or least integers come out the same in whatever order
they are combined: atomics (`exact.py`). Elsewhere each point's position in the output is computed, the points are
sorted by it (stably), and each output element combines its run of points in order (`segments.py`). Output axes that
are variables of their own stay axes: the trailing ones, and where points are sorted all of them. Variables that the
output index lacks are aggregated first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from tilec.backends.common.code import python_name
from tilec.backends.common.domain import (
    Condition,
    build_domain,
    free,
    point_conditions,
    row_major,
    size_of,
)
from tilec.backends.common.scalars import accumulation_dtype, identity
from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.iteration.coalesce import StridedView, coalesce
from tilec.backends.triton.iteration.space import build_space
from tilec.backends.triton.plan.plan import Allocate, Once, Release, Step, TorchLines
from tilec.backends.triton.plan.sizes import NARROWEST, Strides, contiguous
from tilec.backends.triton.scatter.exact import exact_steps
from tilec.backends.triton.scatter.places import Margins, PointPlaces, whole_axis
from tilec.backends.triton.scatter.segments import Runs, segment_steps
from tilec.backends.triton.scatter.sort import Sort, sort_steps
from tilec.ir.index import Affine, linear, place_value
from tilec.ir.program import (
    Access,
    Call,
    Constraint,
    Expr,
    Index,
    Int,
    Statement,
    index_variables,
)
from tilec.ir.types import TensorType, Types
from tilec.transforms.util.naming import all_variables, fresh_variable

StatementPlanner = Callable[..., list[Step]]
# that may be written at an element: it looks at all of them, in one kernel and with nothing to sort
FEW_AT_AN_ELEMENT = 256
FEW_TERMS = 2**24  # looked at in the time that sorting takes at least
TERMS_OF_A_POINT = 512  # looked at in the time that a point takes to be sorted


@dataclass(frozen=True)
class ScatterContext:
    """What scatters are planned with. `carry` carries out ordinary statements."""

    types: Types
    strides: Strides
    int64_index: bool
    carry: StatementPlanner


@dataclass(frozen=True)
class Sorted:
    """A scatter whose points are sorted: steps `before` that, the sort, which others may want too, and the runs. `made`
    is let go after these."""

    before: tuple[Step, ...]
    sort: Once
    runs: Runs
    made: tuple[str, ...]


def scattered(
    s: Statement, context: ScatterContext, epilogue: Sequence[Statement] = (), margins: Margins = ()
) -> list[Step] | None:
    """Steps that compute the flat statement `s` and its epilogue into the last one's allocated output; None where it
    can have none. `margins`: of the positions by which its points are sorted."""
    found = _way(s, context, bool(epilogue), margins)
    return _combined([found], epilogue) if isinstance(found, Sorted) else found


def scattered_together(
    statements: Sequence[Statement],
    context: ScatterContext,
    epilogue: Sequence[Statement],
    margins: Mapping[str, Margins],
) -> list[Step] | None:
    """Steps that compute several scatters, which nothing but the epilogue reads, and the epilogue in one kernel: it
    combines the runs of an element one scatter after the other. None where not all are sorted alike."""
    found = [_way(s, context, True, margins.get(s.output, ())) for s in statements]
    members = [m for m in found if isinstance(m, Sorted)]
    together = len(members) == len(found) and all(m.runs.joins(members[0].runs) for m in members)
    return _combined(members, epilogue) if together else None


def _combined(members: Sequence[Sorted], epilogue: Sequence[Statement]) -> list[Step]:
    """Steps that sort points and combine their runs; equal sorts are one."""
    sorts: dict[object, Sorted] = {}
    runs = [replace(m.runs, sort=sorts.setdefault(m.sort.key, m).runs.sort) for m in members]
    makes = tuple(name for m in sorts.values() for name in m.sort.makes)
    return [
        *(step for m in members for step in m.before),
        *(m.sort for m in sorts.values()),
        *segment_steps(runs, epilogue),
        Release((*makes, *(name for m in members for name in m.made))),
    ]


def _way(
    s: Statement, context: ScatterContext, sorted_only: bool, margins: Margins, sort: bool = False
) -> Sorted | list[Step] | None:
    """How points are sorted; other steps where they are not, or None where `sorted_only`. `sort`: they are, whatever
    else there is."""
    types, carry = context.types, context.carry
    domain = build_domain(s, types)
    out = types[s.output]
    if domain is None:
        if sorted_only:
            return None
        content = s.default if s.default is not None else identity(s.aggregation, out.dtype)
        return [Allocate(s.output, out.shape, out.dtype, content)]
    places = PointPlaces.of(domain, types, sort)
    s, split, keyed, columns = places.statement, places.split, places.keyed, places.columns
    rows, shape, axes = places.rows, places.shape, places.axes
    order = (*keyed, *columns)
    limits = places.limits
    aggregation = "any" if s.aggregation == "assign" and out.dtype == "bool" else s.aggregation
    count, points = math.prod(shape[:split]), math.prod(domain.extent[v] for v in keyed)
    term = replace(
        s,
        output=f"{s.output}.values",
        index=tuple(map(places.shifted, order)),
        sizes=tuple(Int(domain.extent[v]) for v in order),
        constraints=(*s.constraints, *limits),
        default=None,
    )
    dtype = accumulation_dtype(aggregation, out.dtype)
    values = TensorType(tuple(domain.extent[v] for v in order), dtype)
    view = StridedView(term, types, context.strides).with_tensor(term.output, values)
    before: list[Step] = []
    after: tuple[str, ...] = ()
    width = math.prod(shape[split:])
    int64_index = context.int64_index or points > NARROWEST
    accumulator = Accumulator.of(aggregation, out.dtype)
    roots = (s.body, *s.guards, *(s.index or ()))
    wanted = point_conditions(roots, (*s.constraints, *limits), types)
    place = row_major(rows[:split], shape[:split])
    summed = set(order) < set(domain.low)
    space = build_space(term, view.types)
    assert space is not None
    sides = axes[:split], axes[split:]
    runs = Runs(s, space, view, keyed, columns, points, count, width, accumulator, int64_index, *sides)
    kept = [whole_axis(row, n, domain) for row, n in zip(rows[:split], shape[:split], strict=True)]
    seen = math.prod(n for v, n in domain.extent.items() if v not in (*kept, *columns))
    terms = FEW_TERMS + TERMS_OF_A_POINT * points * math.prod(domain.extent[v] for v in columns)
    looked = seen <= FEW_AT_AN_ELEMENT and seen * count * width <= terms
    if looked and s.default is None and aggregation != "assign" and not sort:
        chosen = _selected(s, [row for row, v in zip(rows, kept, strict=False) if v is None], wanted)
        return None if sorted_only else carry(chosen, chosen, view.types, view.strides)
    exact = None if summed or sort else exact_steps(runs, place, wanted)
    if exact is not None:
        return None if sorted_only else exact
    if not places.every:
        return _way(s, replace(context, int64_index=int64_index), sorted_only, margins, sort=True)
    if summed:
        before = [Allocate(term.output, values.shape, dtype), *carry(term, term, view.types, view.strides)]
        after = (term.output,)
        read = _read_back(term, order, values)
        view = replace(view, statement=read).with_tensor(read.output, values)
    along: tuple[str, ...] = ()
    if not summed and not any(map(any, margins)):
        term, along = places.at_runs(term)
        values = TensorType(tuple(size_of(n) for n in term.sizes or ()), dtype)
        view = replace(view, statement=term).with_tensor(term.output, values)
    merged = coalesce(view, lambda pair: pair <= set(keyed) or pair <= set(columns))
    left = index_variables(*(merged.statement.index or ()))
    numbering, across = (tuple(v for v in names if v in left) for names in (keyed, columns))
    own = build_space(_without_keyed(merged.statement, numbering, places.whole_guard), merged.types)
    assert own is not None
    sort_ = Sort(s.output, points, math.prod(places.lengths(margins)), int64_index)
    runs = replace(
        runs, space=own, view=merged, keyed=numbering, columns=across, along=along, margins=margins, sort=sort_
    )
    if s.default is not None:
        content = runs.name("default")
        before.append(_contiguous_default(s, content, types))
        after = (*after, content)
    context = replace(context, types=view.types, strides=view.strides)
    return Sorted(tuple(before), sorted_points(sort_, places, margins, context), runs, after)


def _selected(s: Statement, named: Sequence[Affine], wanted: Sequence[Condition]) -> Statement:
    """Each element as an aggregate of the points that are written there. `named`: axes whose places are data."""
    used = all_variables(s)
    index: list[Expr] = list(s.index or ())
    tests: list[Expr] = []
    for a, e in enumerate(index):
        if linear(e) in named:
            index[a] = Index(fresh_variable("v", used))
            tests.append(Call("eq", (place_value(linear(e).to_value()), index[a])))
    tests += [] if s.guard is None else [Call("ne", (s.guard, Int(0)))]
    constraints = tuple(Constraint(c.form.to_expr(), Int(c.bound)) for c in wanted)
    guard = reduce(lambda a, b: Call("and", (a, b)), tests)
    return replace(s, index=tuple(index), guard=guard, constraints=constraints)


def sorted_points(sort: Sort, places: PointPlaces, margins: Margins, context: ScatterContext) -> Once:
    """Steps that sort the points by position."""
    position = places.position(margins)
    assert position.output == sort.keys
    at = sort.keys
    shape = tuple(size_of(n) for n in position.sizes or ())
    types = {**context.types, at: TensorType(shape, sort.dtype)}
    strides = {**context.strides, at: contiguous(shape)}
    steps = (Allocate(at, shape, sort.dtype), *context.carry(position, position, types, strides), *sort_steps(sort))
    key = (*places.key(position), sort.count, sort.int64_index)
    return Once(key, sort.made, (*steps, Release((at,))))


def _read_back(term: Statement, order: tuple[str, ...], values: TensorType) -> Statement:
    """The terms once they are elements of a tensor."""
    places, sizes = tuple(map(Index, order)), tuple(map(Int, values.shape))
    return Statement(f"{term.output}.read", places, sizes, Access(term.output, places), span=term.span)


def _without_keyed(s: Statement, keyed: tuple[str, ...], whole_guard: bool) -> Statement:
    """Without what says which points there are, as sorting has: conditions on the variables that number them."""
    constraints = tuple(c for c in s.constraints if not free(linear(c.expr)) <= set(keyed))
    return replace(s, guard=s.guard if whole_guard else None, constraints=constraints)


def _contiguous_default(s: Statement, content: str, types: Types) -> Step:
    assert s.default is not None
    line = f"{python_name(content)} = {python_name(s.default)}.contiguous()"
    return TorchLines((line,), (s.default,), (content,), (s.output,), (types[s.default].dtype,))
