"""Statements that read their own output: what depends on what, an order in which to compute it, and the same statement
with its reads spelled out as `pad`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilec.errors import AffineMistake, AggregationMistake, NoSchedule, Span
from tilec.ir.functions import ONE, ZERO
from tilec.ir.index import Affine, linear, replace_indices
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Index,
    Inside,
    Int,
    Pad,
    Statement,
    children,
    map_values,
    rebuild,
    substitute,
    walk,
)
from tilec.lattice.conditions import alternatives
from tilec.lattice.questions import InRange
from tilec.lattice.schedule import Conflict, Dependence, find_schedule
from tilec.lattice.sets import Box, IntegerSet, Shapes, bounds_of, domain, domain_of, sizes_of
from tilec.transforms.util.naming import separate


def dependences(s: Statement, shapes: Shapes, conditional: bool = False) -> list[tuple[Access, Dependence]]:
    """Each read of its own output in a bound statement, and what the elements written there depend on. `conditional`:
    only where the conditions on indices around the read hold."""
    outer = domain(s, shapes)
    writes = [linear(e) for e in s.index or ()]
    found = []
    for access, layers, asked in _conditional_reads(s) if conditional else ((*x, ()) for x in _own_reads(s)):
        variables, conditions = list(outer.variables), [*outer.conditions, *asked]
        for e in layers:
            inner = domain_of((e.body, *e.guards), shapes, e.constraints, own=s.output)
            variables += e.bound
            conditions += inner.conditions
        reads = [linear(e) for e in access.index]
        conditions += [InRange(form, n) for form, n in zip(reads, sizes_of(s), strict=True)]
        elements = _elements((*reads, *writes))
        forms = {k: Affine.variable(v) for k, v in elements.items()}
        d = Dependence(
            (*dict.fromkeys(variables), *elements.values()),
            tuple(InRange(_freed(c.form, forms), c.bound) for c in dict.fromkeys(conditions)),
            tuple(_freed(w, forms) for w in writes),
            tuple(_freed(r, forms) for r in reads),
        )
        found.append((access, d))
    return found


def _own_reads(s: Statement) -> Iterator[tuple[Access, tuple[Aggregate, ...]]]:
    """Reads of the statement's own output, each with the nested aggregations around it, outermost first."""
    stack: list[tuple[Expr, tuple[Aggregate, ...]]] = [(root, ()) for root in reversed(s.roots)]
    while stack:
        e, layers = stack.pop()
        if isinstance(e, Access) and e.tensor == s.output:
            yield e, layers
        below = (*layers, e) if isinstance(e, Aggregate) else layers
        stack.extend((x, below) for x in reversed(children(e)))


def _conditional_reads(s: Statement) -> Iterator[tuple[Access, tuple[Aggregate, ...], tuple[InRange, ...]]]:
    """The same, each for every way in which the guards and conditionals around it may hold."""
    stack: list[tuple[Expr, tuple[Aggregate, ...], tuple[InRange, ...]]] = [(g, (), ()) for g in s.guards]
    stack += [(s.body, (), way) for way in ([()] if s.guard is None else alternatives(s.guard, True))]
    while stack:
        e, layers, way = stack.pop()
        below: list[tuple[Expr, list[tuple[InRange, ...]]]] = [(x, [()]) for x in children(e)]
        match e:
            case Access() if e.tensor == s.output:
                yield e, layers, way
            case Aggregate():
                layers = (*layers, e)
                if e.guard is not None:
                    below = [(e.guard, [()]), (e.body, alternatives(e.guard, True))]
            case Call("select", (test, yes, no)):
                below = [(test, [()]), (yes, alternatives(test, True)), (no, alternatives(test, False))]
        stack.extend((x, layers, (*way, *more)) for x, ways in reversed(below) for more in ways)


def _elements(forms: tuple[Affine, ...]) -> dict[Expr, str]:
    """A variable for each tensor's element in these forms: it may hold anything."""
    atoms = dict.fromkeys(a for f in forms for a in f.atoms() if any(isinstance(x, Access) for x in walk(a)))
    return {a: f"#{k}" for k, a in enumerate(atoms)}


def _freed(form: Affine, elements: Mapping[Expr, Affine]) -> Affine:
    result = Affine((), form.constant)
    for atom, c in form.terms:
        result += elements[atom] * c if atom in elements else Affine.of([(atom, c)])
    return result


def own_reach(s: Statement, shapes: Shapes) -> Box:
    """Least and greatest coordinate, along each dimension, of the elements that a flat recurrence reads of itself,
    those outside included, by the names of its output's variables."""
    points = domain(s, shapes)
    names = [e.name for e in s.index or () if isinstance(e, Index)]
    box: Box = {}
    for access, layers in _own_reads(s):
        conditions = list(points.conditions)
        variables = list(points.variables)
        for e in layers:
            inner = domain_of((e.body, *e.guards), shapes, e.constraints, own=s.output)
            variables += e.bound
            conditions += inner.conditions
        for name, i, n in zip(names, access.index, sizes_of(s), strict=True):
            form, value = linear(i), Affine.variable("#")
            both = (InRange(form - value, 1), InRange(value - form, 1))
            found = None
            if not _elements((form,)):
                found = bounds_of(IntegerSet((*variables, "#"), (*conditions, *both)))
            low, high = found["#"] if found else (0, n - 1)
            a, b = box.get(name, (low, high))
            box[name] = min(a, low), max(b, high)
    return box


def schedule(s: Statement, shapes: Shapes) -> tuple[int, ...]:
    """The time of an element of a bound recurrence: an integer for each coordinate, such that every element that is
    read is strictly earlier than what is computed from it. NoSchedule shows the reads that cannot all be so."""
    rank = len(s.index or ())
    tau = find_schedule([d for _, d in dependences(s, shapes)], rank)
    if isinstance(tau, Conflict):
        found = dependences(s, shapes, conditional=True)
        tau = find_schedule([d for _, d in found], rank)
        if isinstance(tau, Conflict):
            among = dict.fromkeys((found[k][0], found[k][0].span) for k in tau.among)
            raise no_schedule(s, list(dict.fromkeys(span for _, span in among if span is not None)), len(among))
    return tau


_ORDER = (
    "reads must all go one way, as {0} does: "
    "an integer combination of the index variables must be less in what is read than in what is written"
)


def _read_before(s: Statement) -> str:
    first, *rest = [e.name if isinstance(e, Index) else "..." for e in s.index or ()]
    return f"`{s.output}[{', '.join((f'{first} - 1', *rest))}]`"


def no_schedule(s: Statement, places: list[Span], count: int) -> NoSchedule:
    what = "this read" if count == 1 else "these reads"
    return NoSchedule(
        f"no order computes every element of {s.output} before {what} of it",
        places[0] if places else s.span,
        others=tuple(places[1:]),
        hint=_ORDER.format(_read_before(s)),
    )


def check_recurrence(s: Statement, shapes: Shapes) -> None:
    """AggregationMistake for an output index that no recurrence can have, NoSchedule where there is no order."""
    for e in s.index or ():
        if not linear(e).is_affine:
            raise AggregationMistake(
                "the output index of a recurrence is affine in the index variables",
                e.span,
                hint="read `%` on the right",
            )
    schedule(s, shapes)


def padded(s: Statement) -> Statement:
    """The statement with each read of its own output as `pad(H[e], the value of init there)`: what it says of another
    tensor that holds the output already."""
    s = separate(s)  # `init` binds no variable of the places that are read

    def visit(e: Expr) -> Expr:
        if isinstance(e, Pad):
            inner = e.access if isinstance(e.access, Access) else e.access.access
            indices = tuple(map(visit, inner.index))
            access = replace(inner, index=indices)
            kept = access if isinstance(e.access, Access) else replace(e.access, access=access)
            return replace(e, access=kept, value=visit(e.value))
        if isinstance(e, Inside) and e.access.tensor == s.output:
            return ONE
        e = rebuild(e, visit)
        if isinstance(e, Access) and e.tensor == s.output:
            return Pad(e, initial(s, e), span=e.span)
        return e

    return replace(map_values(s, visit), init=None)


def initial(s: Statement, access: Access) -> Expr:
    """The value of a read outside of a recurrence's output; 0 where that is at no integers."""
    if s.init is None:
        return ZERO
    names = [e.name for e in s.index or () if isinstance(e, Index)]
    value = substituted(outside_zero(s.init), dict(zip(names, access.index, strict=True)))
    for i in access.index:
        try:
            form = linear(i)
        except AffineMistake:  # sizes that are not known yet stand as factors
            continue
        if form.denominator > 1:
            whole = Call("mod", ((form * form.denominator).to_expr(), Int(form.denominator)))
            value = Call("select", (Call("eq", (whole, ZERO)), value, ZERO))
    return value


def outside_zero(e: Expr) -> Expr:
    """An expression whose accesses are 0 where they lie outside; a nested aggregation has points of its own."""
    if isinstance(e, Access):
        return Pad(e, ZERO)
    return e if isinstance(e, (Pad, Inside, Aggregate)) else rebuild(e, outside_zero)


def substituted(e: Expr, index: dict[str, Expr]) -> Expr:
    """Index variables replaced by index expressions; indices that can be made canonical become so."""
    try:
        return replace_indices(e, {v: linear(i) for v, i in index.items()})
    except AffineMistake:
        return substitute(e, index)
