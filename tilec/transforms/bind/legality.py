"""What can only be checked with sizes at hand, and what cannot be run yet."""

from __future__ import annotations

from tilec.errors import UnboundIndex, WriteConflict
from tilec.ir.constraining import conditional, demands
from tilec.ir.program import Aggregate, Call, Expr, Index, Name, Statement, expressions, index_variables, walk
from tilec.lattice.sets import IntegerSet, Shapes, bounds, bounds_of, domain_of, points_meet, sizes_of, writes_conflict
from tilec.transforms.bind.conditional_paths import domains


def features(s: Statement) -> frozenset[str]:
    """Functions that a statement calls, and "aggregate" where it holds one. Unsupported for what cannot be run yet."""
    found: set[str] = set()
    for e in walk(*expressions(s)):
        match e:
            case Call(function):
                found.add(function)
            case Aggregate():
                found.add("aggregate")
    return frozenset(found)


def scaled_by_sizes(root: Expr) -> bool:
    """May a variable's coefficient come out as zero once sizes are known?"""
    products = (e for e in walk(root) if isinstance(e, Call) and e.function in ("mul", "select"))
    return any(isinstance(x, Name) for e in products for x in walk(e))


def _distinct(s: Statement) -> bool:
    """Is every variable a bare index of the output, so that no two points can meet?"""
    bare = {e.name for e in s.index or () if isinstance(e, Index)}
    roots = (*(s.index or ()), s.body, *s.guards, *(c.expr for c in s.constraints))
    return bare.issuperset(index_variables(*roots))


def check_bounded(s: Statement, shapes: Shapes) -> None:
    """Exact, unlike the check by rank when the text was read: a size that is a coefficient may be 0."""
    try:
        if bounds(s, shapes) is None:
            return
        for e in walk(s.body):
            if isinstance(e, Aggregate):
                inner = domain_of((e.body, *e.guards), shapes, e.constraints)
                free = {v: 0 for v in inner.variables if v not in e.bound}
                bounds_of(inner, free)
    except UnboundIndex as mistake:
        mistake.span = mistake.span or s.span
        raise


def _meet(s: Statement, shapes: Shapes) -> bool:
    """By the points that each way through the conditionals allows, what conditions say of indices included."""
    if not conditional(demands(s.guard, s.body, own=s.output)):
        return writes_conflict(s, shapes)
    own = {**shapes, s.output: sizes_of(s)}
    return points_meet(domains(s, own, IntegerSet((), ()), s.output, s.index or (), sizes_of(s)), s)


def check_writes(s: Statement, shapes: Shapes) -> None:
    """WriteConflict where an assign has two valid points for one element."""
    if s.aggregation == "assign" and not _distinct(s) and _meet(s, shapes):
        raise WriteConflict(
            f"two points write one element of {s.output}, and `=` takes one",
            s.span,
            hint="sum them with `= +(...)`, or take another aggregation",
        )
