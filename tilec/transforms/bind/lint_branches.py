"""Branches whose access is never inside its tensor where the branch is taken, at the sizes at hand.

What `transforms.bind.branches` wrote is told from what the text says by its spans: a `pad` has its access's own, and a
constraint none. The rest of a bound statement is what is asked of points outside all branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilec.errors import SizeMistake, UnboundIndex
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
from tilec.lattice.sets import InRange, IntegerSet, Shapes, bounds_of, domain_of, shapes_of, sizes_of
from tilec.transforms.bind.branches import MOST_PATHS, alternatives

Ways = list[tuple[InRange, ...]]  # conditions of which some hold


def unreachable(program: Program) -> Iterator[SizeMistake]:
    """One for each such access of a bound program's statements that stand in the source."""
    shapes = shapes_of(program)
    for s in program.statements:
        if s.span is not None and not reads_itself(s) and 0 not in shapes[s.output]:
            roots = [e for e in (s.guard, s.body) if e is not None]
            if any(isinstance(e, Call) and e.function == "select" for root in roots for e in walk(root)):
                yield from _in_region(s, IntegerSet((), ()), s.index or (), sizes_of(s), shapes)


def _in_region(
    s: Statement | Aggregate, around: IntegerSet, index: Sequence[Expr], sizes: Sequence[int], shapes: Shapes
) -> Iterator[SizeMistake]:
    accesses = tuple(always(demands(*index, s.guard, s.body)))
    written = tuple(c for c in s.constraints if c.span is not None)
    inner = domain_of(accesses, shapes, written, index, sizes)
    named = index_variables(*index, *(e for e in (s.guard, s.body) if e is not None), *(c.expr for c in written))
    conditions = dict.fromkeys((*around.conditions, *inner.conditions))
    base = IntegerSet(tuple(dict.fromkeys((*around.variables, *named))), tuple(conditions))
    yield from _in_value(s.body, base, None, shapes)


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
                    yield from _in_value(side, base, inner, shapes)
            return
        case Pad(access, value) if e.span is None or access.span != e.span:  # written as such
            yield from _in_value(value, base, ways, shapes)
            return
        case Access() if ways is not None and _never_inside(e, base, ways, shapes):
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
    if () in found and not reads_data and not isinstance(condition, (Int, Float)):
        return None
    return found


def _both(left: Ways, right: Ways | None) -> Ways | None:
    if right is None or len(left) * len(right) > MOST_PATHS:
        return None
    return [(*a, *b) for a in left for b in right]


def _never_inside(access: Access, base: IntegerSet, ways: Ways, shapes: Shapes) -> bool:
    """Is the branch taken somewhere, and the access outside wherever it is?"""
    if any(n <= 1 for n in shapes[access.tensor]):  # at the least sizes a branch may well have no point
        return False
    inside = domain_of((access,), shapes).conditions
    taken = [replace(base, conditions=(*base.conditions, *way)) for way in ways]
    if not any(_has_points(d) for d in taken):
        return False
    return not any(_has_points(replace(d, conditions=(*d.conditions, *inside))) for d in taken)


def _has_points(d: IntegerSet) -> bool:
    try:
        return bounds_of(d) is not None
    except UnboundIndex:
        return True
