"""Family scatter: an output index that is no change of variables (elements of tensors, `%`, `clamp`).

Deterministic, for every aggregation. Integer sums and greatest or least values come out the same in whatever order they
are combined: atomics (`exact.py`), and so do sums of narrow rows of floats as integers (`fixed_point.py`). Elsewhere
each point's position in the output is computed, the points are sorted by it (stably), and each output element combines
its run of points in order (`segments.py`). Output axes that are variables of their own stay axes: the trailing ones,
and where points are sorted all of them. Variables that the output index lacks are aggregated first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tilec.backends.common.code import python_name
from tilec.backends.common.domain import Condition, Domain, build_domain, free, point_conditions, row_major, size_of
from tilec.backends.common.scalars import accumulation_dtype, identity
from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.iteration.coalesce import StridedView, coalesce
from tilec.backends.triton.iteration.space import build_space
from tilec.backends.triton.plan.plan import Allocate, Once, Release, Step, TorchLines
from tilec.backends.triton.plan.sizes import NARROWEST, Strides, contiguous
from tilec.backends.triton.scatter.exact import exact_steps
from tilec.backends.triton.scatter.fixed_point import Fixed, fixed_steps
from tilec.backends.triton.scatter.places import Margins, PointPlaces, whole_axis
from tilec.backends.triton.scatter.runs import Runs
from tilec.backends.triton.scatter.segments import segment_steps
from tilec.backends.triton.scatter.sort import Sort, is_sparse, sort_steps
from tilec.ir.functions import ZERO, all_of
from tilec.ir.index import Affine, linear, place_value
from tilec.ir.program import Access, Call, Constraint, Expr, Index, Int, Statement, index_variables
from tilec.ir.types import TensorType, Types
from tilec.transforms.util.naming import all_variables, fresh_variable
from tilec.transforms.util.rewrite import with_parts

StatementPlanner = Callable[..., list[Step]]
# that may be written at an element: it looks at all of them, in one kernel and with nothing to sort
FEW_AT_AN_ELEMENT = 256
FEW_TERMS = 2**23  # looked at in the time that sorting takes at least
TERMS_OF_A_POINT = 128  # looked at in the time that a point takes to be sorted


@dataclass(frozen=True)
class ScatterContext:
    """What scatters are planned with. `carry` carries out ordinary statements."""

    types: Types
    strides: Strides
    int64_index: bool
    carry: StatementPlanner
    fixed: frozenset[str] = frozenset()  # outputs of those that are added in fixed point


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
    match found:
        case Sorted():
            if found.runs.sparse and epilogue and (len(epilogue) > 1 or s.aggregation != "sum"):
                return None  # what follows from an element that no point is written to is one statement
            return [*_others(found.runs, epilogue, context), *_combined([found], epilogue)]
        case Fixed():
            return fixed_steps([found], epilogue)
    return found


def fused_scatters(
    statements: Sequence[Statement],
    context: ScatterContext,
    epilogue: Sequence[Statement],
    margins: Mapping[str, Margins],
) -> list[Step] | None:
    """Steps that compute several scatters, which nothing but the epilogue reads, and the epilogue in one kernel: it
    combines the runs of an element one scatter after the other. None where not all are sorted alike."""
    found = [_way(s, context, True, margins.get(s.output, ())) for s in statements]
    by_sort = [m for m in found if isinstance(m, Sorted)]
    fixed = [m for m in found if isinstance(m, Fixed)]
    runs = [*(m.runs for m in by_sort), *(m.runs for m in fixed)]
    if max(len(by_sort), len(fixed)) < len(found) or not all(r.joins(runs[0]) for r in runs):
        return None
    if any(r.sparse for r in runs):
        return None
    return fixed_steps(fixed, epilogue) if fixed else _combined(by_sort, epilogue)


def _others(runs: Runs, epilogue: Sequence[Statement], context: ScatterContext) -> list[Step]:
    """Steps that make what elements are that no point is written to, where those that have some are walked alone."""
    s, out = runs.statement, context.types[runs.statement.output]
    if not runs.sparse:
        return []
    if not epilogue:
        return [Allocate(s.output, out.shape, out.dtype, identity(runs.accumulator.aggregation, out.dtype))]
    (last,) = epilogue
    own, zero = Access(s.output, last.index or ()), Call(context.types[s.output].dtype, (ZERO,))
    plain = replace(last, body=with_parts(last.body, {own: zero}))
    return context.carry(plain, plain, context.types, context.strides)


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
) -> Sorted | Fixed | list[Step] | None:
    """How points are sorted; other steps where they are not, or None where `sorted_only`. `sort`: they are, whatever
    else there is."""
    out, domain = context.types[s.output], build_domain(s, context.types)
    if domain is None:
        content = s.default if s.default is not None else identity(s.aggregation, out.dtype)
        return None if sorted_only else [Allocate(s.output, out.shape, out.dtype, content)]
    found = Scatter.of(domain, PointPlaces.of(domain, context.types, sort), context)
    if sort:
        return found.sorted(margins)
    if found.looks_at_all:
        chosen, view = found.selected(), found.runs.view
        return None if sorted_only else context.carry(chosen, chosen, view.types, view.strides)
    exact = None if found.summed else exact_steps(found.runs, found.place, found.wanted, found.places.every)
    if exact is not None:
        return None if sorted_only else exact
    if s.output in context.fixed:
        return found.in_fixed_point()
    if not found.places.every:
        return _way(found.places.statement, found.context, sorted_only, margins, sort=True)
    return found.sorted(margins)


@dataclass(frozen=True)
class Scatter:
    """A scatter whose points are there. `term`: the statement of what they add, by their numbers and columns; `wanted`:
    the conditions under which one is written."""

    context: ScatterContext
    domain: Domain
    places: PointPlaces
    term: Statement
    runs: Runs
    wanted: tuple[Condition, ...]

    @staticmethod
    def of(domain: Domain, places: PointPlaces, context: ScatterContext) -> Scatter:
        s, split, keyed, columns, shape = places.statement, places.split, places.keyed, places.columns, places.shape
        types, order = context.types, (*keyed, *columns)
        dtype = types[s.output].dtype
        aggregation = "any" if s.aggregation == "assign" and dtype == "bool" else s.aggregation
        constraints = (*s.constraints, *places.limits)
        term = replace(
            s,
            output=f"{s.output}.values",
            index=tuple(map(places.shifted, order)),
            sizes=tuple(Int(domain.extent[v]) for v in order),
            constraints=constraints,
            default=None,
        )
        values = TensorType(tuple(domain.extent[v] for v in order), accumulation_dtype(aggregation, dtype))
        view = StridedView(term, types, context.strides).with_tensor(term.output, values)
        points = math.prod(domain.extent[v] for v in keyed)
        context = replace(context, int64_index=context.int64_index or points > NARROWEST)
        space = build_space(term, view.types)
        assert space is not None
        runs = Runs(
            s,
            space,
            view,
            keyed,
            columns,
            points,
            count=math.prod(shape[:split]),
            width=math.prod(shape[split:]),
            accumulator=Accumulator.of(aggregation, dtype),
            int64_index=context.int64_index,
            run_axes=places.axes[:split],
            column_axes=places.axes[split:],
        )
        wanted = point_conditions((s.body, *s.guards, *(s.index or ())), constraints, types)
        return Scatter(context, domain, places, term, runs, wanted)

    @property
    def summed(self) -> bool:
        """Are there variables that no point is told apart by? Terms are aggregated over them first."""
        return {*self.runs.keyed, *self.runs.columns} < set(self.domain.low)

    @property
    def place(self) -> Affine:
        """The run of a point."""
        split = self.places.split
        return row_major(self.places.rows[:split], self.places.shape[:split])

    @cached_property
    def _whole_axes(self) -> list[str | None]:
        """For each axis of the runs the variable that goes through all of it."""
        axes = zip(self.places.rows, self.places.shape[: self.places.split], strict=False)
        return [whole_axis(row, n, self.domain) for row, n in axes]

    @property
    def looks_at_all(self) -> bool:
        """May each element look at all points that could be written there?"""
        s, runs, extent = self.runs.statement, self.runs, self.domain.extent
        seen = math.prod(n for v, n in extent.items() if v not in (*self._whole_axes, *runs.columns))
        terms = FEW_TERMS + TERMS_OF_A_POINT * runs.points
        few = seen <= FEW_AT_AN_ELEMENT and seen * runs.count * runs.width <= terms
        return few and s.default is None and runs.accumulator.aggregation != "assign"

    def selected(self) -> Statement:
        """Each element as an aggregate of the points that are written there."""
        named = [row for row, v in zip(self.places.rows, self._whole_axes, strict=False) if v is None]
        return _selected(self.runs.statement, named, self.wanted)

    def in_fixed_point(self) -> Fixed:
        """The points as they come."""
        runs, order = self.runs, (*self.runs.keyed, *self.runs.columns)
        if not self.summed:
            return Fixed((), runs, self.place, self.wanted, ())
        values = runs.view.types[self.term.output]
        carried = self.context.carry(self.term, self.term, runs.view.types, runs.view.strides)
        body = Access(self.term.output, tuple(map(self.places.shifted, order)))
        read = replace(runs.statement, body=body, guard=None)
        term = replace(self.term, output=f"{self.term.output}.read", body=body, guard=None, constraints=())
        view = StridedView(term, runs.view.types, runs.view.strides).with_tensor(self.term.output, values)
        view = view.with_tensor(term.output, values)
        space = build_space(term, view.types)
        assert space is not None
        wanted = tuple(c for c in self.wanted if free(c.form) <= set(order))
        own = replace(runs, statement=read, space=space, view=view)
        made = Allocate(self.term.output, values.shape, values.dtype)
        return Fixed((made, *carried), own, self.place, wanted, (self.term.output,))

    def sorted(self, margins: Margins) -> Sorted:
        """The points by their runs."""
        runs, view, term, places = self.runs, self.runs.view, self.term, self.places
        s, order = runs.statement, (*runs.keyed, *runs.columns)
        before: list[Step] = []
        made: tuple[str, ...] = ()
        along: tuple[str, ...] = ()
        if self.summed:
            values = view.types[term.output]
            carried = self.context.carry(term, term, view.types, view.strides)
            before = [Allocate(term.output, values.shape, values.dtype), *carried]
            made = (term.output,)
            read = _read_back(term, order, values)
            view = replace(view, statement=read).with_tensor(read.output, values)
        elif not any(map(any, margins)):
            dtype = view.types[term.output].dtype
            term, along = places.at_runs(term)
            values = TensorType(tuple(size_of(n) for n in term.sizes or ()), dtype)
            view = replace(view, statement=term).with_tensor(term.output, values)
        keyed, columns = set(runs.keyed), set(runs.columns)
        merged = coalesce(view, lambda pair: pair <= keyed or pair <= columns)
        left = index_variables(*(merged.statement.index or ()))
        numbering, across = (tuple(v for v in names if v in left) for names in (runs.keyed, runs.columns))
        own = build_space(_without_keyed(merged.statement, numbering, places.whole_guard), merged.types)
        assert own is not None
        count = math.prod(places.lengths(margins))
        sparse = s.default is None and not any(map(any, margins)) and is_sparse(runs.points, count)
        sort = Sort(s.output, runs.points, count, runs.int64_index, sparse)
        runs = replace(
            runs, space=own, view=merged, keyed=numbering, columns=across, along=along, margins=margins, sort=sort
        )
        if s.default is not None:
            content = runs.name("default")
            before.append(_contiguous_default(s, content, self.context.types))
            made = (*made, content)
        context = replace(self.context, types=view.types, strides=view.strides)
        return Sorted(tuple(before), sorted_points(sort, places, margins, context), runs, made)


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
    return replace(s, index=tuple(index), guard=all_of(tests), constraints=constraints)


def sorted_points(sort: Sort, places: PointPlaces, margins: Margins, context: ScatterContext) -> Once:
    """Steps that sort the points by position."""
    position = places.position(margins)
    assert position.output == sort.keys
    at = sort.keys
    shape = tuple(size_of(n) for n in position.sizes or ())
    types = {**context.types, at: TensorType(shape, sort.dtype)}
    strides = {**context.strides, at: contiguous(shape)}
    steps = (Allocate(at, shape, sort.dtype), *context.carry(position, position, types, strides), *sort_steps(sort))
    key = (*places.key(position), sort.count, sort.int64_index, sort.sparse)
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
