"""Branches whose accesses are never inside their tensors where the branch is taken, and nested aggregations without a
point, at the sizes at hand.

What `transforms.bind.branches` wrote is told from what the text says by its spans: a `pad` has its access's own, and a
constraint none. The rest of a bound statement is what is asked of points outside all branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilec.errors import SizeMistake, UnboundIndex
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.constraining import always, demands
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Float,
    Int,
    Pad,
    Program,
    Statement,
    children,
    index_variables,
    reads_itself,
    walk,
)
from tilec.lattice.conditions import MOST_PATHS, alternatives
from tilec.lattice.questions import InRange
from tilec.lattice.sets import IntegerSet, Shapes, bounds_of, domain_of, shapes_of, sizes_of

Ways = list[tuple[InRange, ...]]  # conditions of which some hold


def unreachable(program: Program) -> Iterator[SizeMistake]:
    """One for each such branch or aggregation of a bound program's statements that stand in the source."""
    shapes = shapes_of(program)
    for s in program.statements:
        if s.span is not None and not reads_itself(s) and 0 not in shapes[s.output]:
            if any(_may_be_empty(e) for e in walk(*s.roots)):
                yield from _in_region(s, IntegerSet((), ()), s.index or (), sizes_of(s), shapes)


def _in_region(
    s: Statement | Aggregate, around: IntegerSet, index: Sequence[Expr], sizes: Sequence[int], shapes: Shapes
) -> Iterator[SizeMistake]:
    accesses = tuple(always(demands(*index, s.guard, s.body)))
    written = tuple(c for c in s.constraints if c.span is not None)
    inner = domain_of(accesses, shapes, written, index, sizes)
    named = index_variables(*index, *s.roots, *(c.expr for c in written))
    conditions = dict.fromkeys((*around.conditions, *inner.conditions))
    base = IntegerSet(tuple(dict.fromkeys((*around.variables, *named))), tuple(conditions))
    if isinstance(s, Aggregate) and accesses and _large(accesses, shapes):
        if _has_points(around) and not _has_points(base):
            yield SizeMistake(
                "no point of this aggregation is valid at these sizes: "
                f"it is {AGGREGATIONS[s.aggregation].identity} everywhere",
                s.span,
                hint="an access outside of its tensor at every point, or two that are never inside together",
                others=tuple(a.span for a in accesses if a.span is not None),
            )
            return
    yield from _in_value(s.body, base, None, shapes)


def _may_be_empty(e: Expr) -> bool:
    return isinstance(e, Aggregate) or isinstance(e, Call) and e.function == "select"


def _large(accesses: Sequence[Access], shapes: Shapes) -> bool:
    """At the least sizes a branch or an aggregation may well have no point."""
    return all(n > 1 for a in accesses for n in shapes[a.tensor])


def _in_value(e: Expr, base: IntegerSet, ways: Ways | None, shapes: Shapes) -> Iterator[SizeMistake]:
    """`ways`: what the conditions around say of indices; None outside all branches."""
    match e:
        case Aggregate():
            if ways is None:
                yield from _in_region(e, base, (), (), shapes)
            return
        case Call("select", (condition, a, b)):
            yield from _in_value(condition, base, ways, shapes)
            for side, taken in ((a, True), (b, False)):
                inner = _both([()] if ways is None else ways, _known(condition, taken))
                if inner is not None:
                    found = list(_in_value(side, base, inner, shapes))
                    yield from found or _never_together(side, base, inner, shapes)
            return
        case Pad(access, value) if e.span is None or access.span != e.span:  # written as such
            yield from _in_value(value, base, ways, shapes)
            return
        case Access() if ways is not None and _never_inside((e,), base, ways, shapes):
            yield SizeMistake(
                f"this access is never inside {e.tensor}, of shape {shapes[e.tensor]}, where its branch is taken: "
                "no point of the branch counts",
                e.span,
                hint="check the index and the condition; an access in a branch constrains where that is taken",
            )
            return
    for child in children(e):
        yield from _in_value(child, base, ways, shapes)


def _known(condition: Expr, taken: bool) -> Ways | None:
    """What a condition says of indices where it is true, or false; None where it says what is not understood."""
    reads_data = any(isinstance(e, Access) for e in walk(condition))
    found = alternatives(condition, taken)
    return None if () in found and not reads_data and not isinstance(condition, (Int, Float)) else found


def _both(left: Ways, right: Ways | None) -> Ways | None:
    if right is None or len(left) * len(right) > MOST_PATHS:
        return None
    return [(*a, *b) for a in left for b in right]


def _never_together(side: Expr, base: IntegerSet, ways: Ways, shapes: Shapes) -> Iterator[SizeMistake]:
    """The accesses of a branch, each of which is inside somewhere, but no two of them in one place perhaps."""
    accesses = tuple(dict.fromkeys(_asked_of(side)))
    if len(accesses) > 1 and _never_inside(accesses, base, ways, shapes):
        yield SizeMistake(
            "these accesses are never inside their tensors together where their branch is taken: "
            "no point of the branch counts",
            accesses[0].span,
            hint="check the indices and the condition; all accesses of a branch constrain where that is taken",
            others=tuple(a.span for a in accesses[1:] if a.span is not None),
        )


def _asked_of(e: Expr) -> Iterator[Access]:
    """The accesses outside of further branches, aggregations and paddings that the text has."""
    match e:
        case Aggregate() | Call("select", _):
            return
        case Pad(access, value) if e.span is None or access.span != e.span:
            yield from _asked_of(value)
            return
        case Access():
            yield e
    for child in children(e):
        yield from _asked_of(child)


def _never_inside(accesses: Sequence[Access], base: IntegerSet, ways: Ways, shapes: Shapes) -> bool:
    """Is the branch taken somewhere, and one of the accesses outside wherever it is?"""
    if not _large(accesses, shapes):
        return False
    inside = domain_of(tuple(accesses), shapes).conditions
    taken = [replace(base, conditions=(*base.conditions, *way)) for way in ways]
    if not any(_has_points(d) for d in taken):
        return False
    return not any(_has_points(replace(d, conditions=(*d.conditions, *inside))) for d in taken)


def _has_points(d: IntegerSet) -> bool:
    try:
        return bounds_of(d) is not None
    except UnboundIndex:
        return True
