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
from dataclasses import replace
from functools import reduce

from tilec.backends.common.code import python_name
from tilec.backends.common.domain import (
    Condition,
    Domain,
    build_domain,
    free,
    point_conditions,
    row_major,
    size_of,
)
from tilec.backends.common.scalars import accumulation_dtype, identity
from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.iteration.coalesce import StridedView, coalescable, merge
from tilec.backends.triton.iteration.space import build_space
from tilec.backends.triton.plan.plan import Allocate, Once, Release, Step, TorchLines
from tilec.backends.triton.plan.sizes import NARROWEST, Strides, contiguous
from tilec.backends.triton.scatter.exact import exact_steps
from tilec.backends.triton.scatter.segments import Runs, segment_steps
from tilec.backends.triton.scatter.sort import Sort, sort_steps
from tilec.ir.index import QUASI_AFFINE, Affine, linear
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
    rebuild,
    substitute,
    walk,
)
from tilec.ir.types import TensorType
from tilec.transforms.util.naming import all_variables, fresh_variable

StatementPlanner = Callable[..., list[Step]]
# that may be written at an element: it looks at all of them, in one kernel and with nothing to sort
FEW_AT_AN_ELEMENT = 256
FEW_TERMS = 2**24  # looked at in the time that sorting takes at least
TERMS_OF_A_POINT = 512  # looked at in the time that a point takes to be sorted


def scattered(
    s: Statement,
    types: Mapping[str, TensorType],
    strides: Strides,
    int64_index: bool,
    carry: StatementPlanner,
    epilogue: Sequence[Statement] = (),
    *,
    sort: bool = False,
) -> list[Step] | None:
    """Steps that compute the flat statement `s` and its epilogue into the last one's allocated output; None where it
    can have none. `carry` carries out an ordinary one; `sort`: points are sorted, whatever else there is."""
    domain = build_domain(s, types)
    out = types[s.output]
    if domain is None:
        if epilogue:
            return None
        content = s.default if s.default is not None else identity(s.aggregation, out.dtype)
        return [Allocate(s.output, out.shape, out.dtype, content)]
    s = domain.statement
    rows = tuple(map(linear, s.index or ()))
    # with a default it matters which elements were reached, so every point has a position of its own
    every = _plain_axes(rows, out.shape, domain) if s.default is None else ()
    trailing = tuple(a for a in every if every[-(len(rows) - a) :] == tuple(range(a, len(rows))))
    plain = every if sort else trailing
    axes = (*(a for a in range(len(rows)) if a not in plain), *plain)
    rows, shape = tuple(rows[a] for a in axes), tuple(out.shape[a] for a in axes)
    split = len(rows) - len(plain)
    keyed = tuple(v for v in domain.low if s.default is not None or any(v in free(row) for row in rows[:split]))
    columns = tuple(row.variables()[0] for row in rows[split:])
    order = (*keyed, *columns)
    shifted = {v: (Affine.variable(v) - domain.low[v]).to_expr() for v in order}
    limits = tuple(Constraint(row.to_expr(), Int(n)) for row, n in zip(rows, shape, strict=True))
    whole_guard = s.guard is not None and (
        bool(free_guard(s) - set(keyed)) or (s.default is None and _asks_for_bounds(s.guard))
    )
    aggregation = "any" if s.aggregation == "assign" and out.dtype == "bool" else s.aggregation
    count, points = math.prod(shape[:split]), math.prod(domain.extent[v] for v in keyed)
    term = replace(
        s,
        output=f"{s.output}.values",
        index=tuple(shifted[v] for v in order),
        sizes=tuple(Int(domain.extent[v]) for v in order),
        constraints=(*s.constraints, *limits),
        default=None,
    )
    dtype = accumulation_dtype(aggregation, out.dtype)
    given, given_strides = types, strides
    types = {**types, term.output: TensorType(tuple(domain.extent[v] for v in order), dtype)}
    strides = {**strides, term.output: contiguous(types[term.output].shape)}
    before: list[Step] = []
    after: tuple[str, ...] = ()
    width = math.prod(shape[split:])
    int64_index = int64_index or points > NARROWEST
    accumulator = Accumulator.of(aggregation, out.dtype)
    roots = (s.body, *s.guards, *(s.index or ()))
    wanted = point_conditions(roots, (*s.constraints, *limits), types)
    place = row_major(rows[:split], shape[:split])
    summed = set(order) < set(domain.low)
    space = build_space(term, types)
    assert space is not None
    view, later = StridedView(term, types, strides), tuple(epilogue)
    sides = axes[:split], axes[split:]
    runs = Runs(s, space, view, keyed, columns, points, count, width, accumulator, int64_index, later, *sides)
    kept = [_whole(row, n, domain) for row, n in zip(rows[:split], shape[:split], strict=True)]
    seen = math.prod(n for v, n in domain.extent.items() if v not in (*kept, *columns))
    terms = FEW_TERMS + TERMS_OF_A_POINT * points * math.prod(domain.extent[v] for v in columns)
    looked = seen <= FEW_AT_AN_ELEMENT and seen * count * width <= terms
    if looked and s.default is None and aggregation != "assign" and not sort:
        chosen = _selected(s, [row for row, v in zip(rows, kept, strict=False) if v is None], wanted)
        return None if epilogue else carry(chosen, chosen, types, strides)
    exact = None if summed or sort else exact_steps(runs, place, wanted)
    if exact is not None:
        return None if epilogue else exact
    if plain != every:
        return scattered(s, given, given_strides, int64_index, carry, epilogue, sort=True)
    if summed:
        before = [Allocate(term.output, types[term.output].shape, dtype), *carry(term, term, types, strides)]
        after = (term.output,)
        term = _read_back(term, order, types)
        types = {**types, term.output: types[after[0]]}
        strides = {**strides, term.output: strides[after[0]]}
    # that other reads are inside at computed places is asked where points are combined: sums by one tensor share a sort
    sorting = () if whole_guard else s.guards
    own_conditions = point_conditions((*sorting, *(s.index or ())), (*s.constraints, *limits), types)
    telling = [
        c for c in wanted if s.default is not None or c in own_conditions or not any(accesses_in(*c.form.atoms()))
    ]
    # positions: one more than the place in the output, so that points that are not valid, left at 0, come first
    position = Statement(
        f"{s.output}.at",
        tuple(shifted[v] for v in keyed),
        tuple(Int(domain.extent[v]) for v in keyed),
        _as_value((place + 1).to_value()),
        "assign",
        None if whole_guard else s.guard,
        tuple(Constraint(c.form.to_expr(), Int(c.bound)) for c in telling if free(c.form) <= set(keyed)),
        span=s.span,
    )
    view, numbering, across = _merged(StridedView(term, types, strides), keyed, columns)
    own = build_space(_without_keyed(view.statement, numbering, whole_guard), view.types)
    assert own is not None
    runs = replace(runs, space=own, view=view, keyed=numbering, columns=across)
    return [*before, *_sorted(runs, keyed, position, types, strides, carry), *([Release(after)] if after else [])]


def _selected(s: Statement, named: Sequence[Affine], wanted: Sequence[Condition]) -> Statement:
    """Each element as an aggregate of the points that are written there. `named`: axes whose places are data."""
    used = all_variables(s)
    index: list[Expr] = list(s.index or ())
    tests: list[Expr] = []
    for a, e in enumerate(index):
        if linear(e) in named:
            index[a] = Index(fresh_variable("v", used))
            tests.append(Call("eq", (_as_value(linear(e).to_value()), index[a])))
    tests += [] if s.guard is None else [Call("ne", (s.guard, Int(0)))]
    constraints = tuple(Constraint(c.form.to_expr(), Int(c.bound)) for c in wanted)
    guard = reduce(lambda a, b: Call("and", (a, b)), tests)
    return replace(s, index=tuple(index), guard=guard, constraints=constraints)


def _sorted(
    runs: Runs,
    keyed: tuple[str, ...],
    position: Statement,
    types: Mapping[str, TensorType],
    strides: Strides,
    carry: StatementPlanner,
) -> list[Step]:
    """Steps that sort the points by position and combine their runs."""
    s, at = runs.statement, position.output
    placed, order, starts, content = map(runs.name, ("placed", "order", "starts", "default"))
    sort = Sort(s.output, at, placed, order, starts, runs.points, runs.count, runs.int64_index)
    shape = tuple(size_of(n) for n in position.sizes or ())
    types = {**types, at: TensorType(shape, sort.dtype)}
    strides = {**strides, at: contiguous(shape)}
    steps = (Allocate(at, shape, sort.dtype), *carry(position, position, types, strides), *sort_steps(sort))
    number: dict[str, Expr] = {v: Index(str(k)) for k, v in enumerate(keyed)}
    forms = (position.body, *(position.index or ()), *position.guards)
    conditions = tuple((substitute(c.expr, number), c.bound) for c in position.constraints)
    key = (
        tuple(substitute(e, number) for e in forms),
        frozenset(conditions),
        position.sizes,
        runs.count,
        runs.int64_index,
    )
    return [
        Once(key, (placed, order, starts), (*steps, Release((at,)))),
        *([_contiguous_default(s, content, types)] if s.default is not None else []),
        *segment_steps(runs),
        Release((placed, order, starts, *([content] if s.default is not None else []))),
    ]


def _read_back(term: Statement, order: tuple[str, ...], types: Mapping[str, TensorType]) -> Statement:
    """The terms once they are elements of a tensor."""
    places = tuple(map(Index, order))
    sizes = tuple(map(Int, types[term.output].shape))
    return Statement(f"{term.output}.read", places, sizes, Access(term.output, places), span=term.span)


def _merged(
    view: StridedView, keyed: tuple[str, ...], columns: tuple[str, ...]
) -> tuple[StridedView, tuple[str, ...], tuple[str, ...]]:
    """Neighbouring variables that all tensors walk as one as one, of those that number the points and of columns."""
    pending = True
    while pending:
        pending = False
        for outer, inner in coalescable(view.statement):
            together = {outer, inner} <= set(keyed) or {outer, inner} <= set(columns)
            found = merge(view, outer, inner) if together else None
            if found is not None:
                view, pending = found, True
                keyed, columns = (tuple(v for v in names if v != outer) for names in (keyed, columns))
                break
    return view, keyed, columns


def _without_keyed(s: Statement, keyed: tuple[str, ...], whole_guard: bool) -> Statement:
    """Without what says which points there are, as sorting has: conditions on the variables that number them."""
    constraints = tuple(c for c in s.constraints if not free(linear(c.expr)) <= set(keyed))
    return replace(s, guard=s.guard if whole_guard else None, constraints=constraints)


def _contiguous_default(s: Statement, content: str, types: Mapping[str, TensorType]) -> Step:
    assert s.default is not None
    line = f"{python_name(content)} = {python_name(s.default)}.contiguous()"
    return TorchLines((line,), (s.default,), (content,), (s.output,), (types[s.default].dtype,))


def _plain_axes(rows: tuple[Affine, ...], shape: tuple[int, ...], domain: Domain) -> tuple[int, ...]:
    """Axes that are one variable each, which walks all of the axis and stands nowhere else in the index."""
    whole = ((a, _whole(row, n, domain)) for a, (row, n) in enumerate(zip(rows, shape, strict=True)))
    return tuple(a for a, v in whole if v is not None and sum(v in free(row) for row in rows) == 1)


def _whole(row: Affine, size: int, domain: Domain) -> str | None:
    """The variable that is all of the row's index and walks all of its axis."""
    v = row.bare
    return v if v is not None and domain.low[v] == 0 and domain.extent[v] == size else None


def _asks_for_bounds(e: Expr) -> bool:
    """Whether a guard asks no more than that places in tensors are between numbers, as nearly all are."""
    match e:
        case Call("and", args):
            return all(map(_asks_for_bounds, args))
        case Call("ge", (Access(), Int(0))) | Call("lt", (Access(), Int())):
            return True
    return isinstance(e, Inside)


def free_guard(s: Statement) -> frozenset[str]:
    assert s.guard is not None
    return frozenset(e.name for e in walk(s.guard) if isinstance(e, Index))


def _as_value(e: Expr) -> Expr:
    """An index as a value, in 64 bits whatever the type of the elements in it; divisions in it come out even."""
    match e:
        case Access():
            return Call("int64", (e,))
        case Call(function, args) if function in QUASI_AFFINE:
            return replace(e, args=tuple(_as_value(linear(a).to_value()) for a in args))
    return rebuild(e, _as_value)
