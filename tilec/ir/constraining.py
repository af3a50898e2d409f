"""What an expression asks of the point at which it stands: accesses that must lie inside, some only in a branch.

An access constrains its point, unless `pad` wraps it; those of a nested aggregation constrain the points of that one,
and reads of the tensor that a recurrence writes itself constrain none. An access in a branch of `c ? a : b` constrains
only the points where that branch is taken. Everything that asks which points count asks here, the oracle aside.

Once a program is bound (`transforms.bind.branches`) every access that is left in a branch lies inside wherever the
rest of the statement allows a point; `constraining` then gives all of them, without conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from tilec.errors import AffineMistake
from tilec.ir.aggregations import AGGREGATIONS, SPLITTABLE
from tilec.ir.functions import FUNCTIONS
from tilec.ir.index import linear
from tilec.ir.program import Access, Aggregate, Call, Expr, Float, Inside, Int, Pad, Statement, children
from tilec.ir.rational import Fraction


@dataclass(frozen=True)
class Branch:
    """What a conditional asks of the points where `condition` is true, and of the others."""

    condition: Expr
    yes: tuple[Demand, ...]
    no: tuple[Demand, ...]


Demand = Access | Branch


def access_of(e: Access | Inside) -> Access:
    """The access that is read, or that `in(...)` asks about."""
    return e if isinstance(e, Access) else e.access


def demands(*roots: Expr | None, own: str | None = None) -> tuple[Demand, ...]:
    """What these expressions ask of one point, each once, in order of appearance; `own` is the tensor whose reads ask
    nothing."""
    found: dict[Demand, None] = {}
    for e in roots:
        if e is not None:
            _collect(e, own, found)
    found = dict.fromkeys(_together(found))
    return _without(found, frozenset(d for d in found if isinstance(d, Access)), False)


def _collect(e: Expr, own: str | None, found: dict[Demand, None]) -> None:
    if type(e) is Pad:
        _collect(e.value, own, found)
    elif type(e) is Call and e.function == "select":
        condition, a, b = e.args
        _collect(condition, own, found)
        yes, no = demands(a, own=own), demands(b, own=own)
        found.update(dict.fromkeys(d for d in yes if d in no))
        yes, no = tuple(d for d in yes if d not in found), tuple(d for d in no if d not in found)
        if yes or no:
            found.setdefault(Branch(condition, yes, no))
    elif type(e) is not Aggregate:
        if type(e) is Access and e.tensor != own:
            found.setdefault(e)
        for child in children(e):
            _collect(child, own, found)


def _together(wanted: Iterable[Demand]) -> Iterator[Demand]:
    """The demands with those of equal conditions as one: all these conditionals take the same side."""
    found: dict[object, Demand] = {}
    for d in wanted:
        key = d.condition if isinstance(d, Branch) else d, isinstance(d, Branch)
        known = found.get(key)
        if isinstance(d, Branch) and isinstance(known, Branch):
            yes, no = (tuple(dict.fromkeys(x)) for x in ((*known.yes, *d.yes), (*known.no, *d.no)))
            d = Branch(d.condition, tuple(_together(yes)), tuple(_together(no)))
        found[key] = d
    yield from found.values()


def _without(wanted: Iterable[Demand], known: frozenset[Access], plain: bool = True) -> tuple[Demand, ...]:
    """The demands that do not follow from `known`; accesses at the top stay unless `plain`."""
    result: list[Demand] = []
    for d in wanted:
        if isinstance(d, Branch):
            yes, no = _without(d.yes, known), _without(d.no, known)
            if yes or no:
                result.append(d if (yes, no) == (d.yes, d.no) else Branch(d.condition, yes, no))
        elif d not in known or not plain:
            result.append(d)
    return tuple(result)


def always(wanted: Iterable[Demand]) -> Iterator[Access]:
    """The accesses among the demands that constrain every point."""
    return (d for d in wanted if isinstance(d, Access))


def unmet(
    wanted: Iterable[Access], provided: Iterable[Access], asks: Callable[[Access], Iterable[tuple[Expr, Hashable]]]
) -> list[Access]:
    """The accesses that constrain a point more than the provided ones do. `asks`: the indices of one, and what says
    which range each lies inside."""
    wanted = list(wanted)
    met = {pair for a in provided for pair in asks(a)}
    implied = _between({pair for a in wanted for pair in asks(a)} | met)
    result: list[Access] = []
    for a in wanted:
        new = set(asks(a)) - implied
        if not new <= met:
            met |= new
            result.append(a)
    return result


def _between(asked: Collection[tuple[Expr, Hashable]]) -> set[tuple[Expr, Hashable]]:
    """Of indices and the ranges that they lie inside, those that follow from two others: that `X[i + 1]` is inside from
    `X[i]` and `X[i + 2]`."""
    ends: dict[object, tuple[Fraction, Fraction]] = {}
    places = {pair: place for pair in asked if (place := _place(*pair)) is not None}
    for line, x in places.values():
        low, high = ends.get(line, (x, x))
        ends[line] = min(low, x), max(high, x)
    return {pair for pair, (line, x) in places.items() if ends[line][0] < x < ends[line][1]}


@lru_cache(maxsize=4096)
def _place(index: Expr, inside: Hashable) -> tuple[object, Fraction] | None:
    """What indices that whole numbers apart have in common, and where among them this one is; None where sizes that are
    not known yet are multiplied by variables."""
    try:
        form = linear(index)
    except AffineMistake:
        return None
    return (form.terms, form.constant % 1, inside), form.constant


def conditional(wanted: Iterable[Demand]) -> bool:
    """Does any demand stand under a condition?"""
    return any(isinstance(d, Branch) for d in wanted)


def asks_in_branches(s: Statement) -> bool:
    """Does an access stand in a branch? Once bound it lies inside wherever the rest allows a point, and so says nothing
    of which points there are: nothing that does may be left out for its sake."""
    return conditional(demands(*(s.index or ()), s.guard, s.body, own=s.output))


def assume(wanted: Iterable[Demand], true: Iterable[Expr], false: Iterable[Expr]) -> tuple[Demand, ...]:
    """What is left to ask of points where these conditions are known to be true and those to be false."""
    true, false = list(true), list(false)
    result: dict[Demand, None] = {}
    for d in wanted:
        if isinstance(d, Branch) and d.condition in true:
            result.update(dict.fromkeys(assume(d.yes, true, false)))
        elif isinstance(d, Branch) and d.condition in false:
            result.update(dict.fromkeys(assume(d.no, true, false)))
        else:
            result.setdefault(d)
    return tuple(result)


def as_factor(d: Demand) -> Expr:
    """A value that is 1 and asks what the demand does: `in(A[i])`, or `c ? in(A[i]) : in(B[j])`."""
    if isinstance(d, Access):
        return Inside(d)
    return Call("select", (d.condition, product_of_demands(d.yes), product_of_demands(d.no)))


def product_of_demands(wanted: Iterable[Demand]) -> Expr:
    """The product of the demands' factors; 1 of none."""
    result: Expr | None = None
    for d in wanted:
        factor = as_factor(d)
        result = factor if result is None else Call("mul", (result, factor))
    return Int(1) if result is None else result


def constraining(*roots: Expr | None, own: str | None = None, gathers: bool = True) -> Iterator[Access]:
    """All accesses that the points of a bound statement's expressions must satisfy, those in branches among them; those
    in the indices of others only with `gathers`."""
    stack = [e for e in reversed(roots) if e is not None]
    while stack:
        e = stack.pop()
        if type(e) is Access:  # most are not: asking for each class with `isinstance` takes longer than the rest
            if e.tensor != own:
                yield e
            if gathers or e.tensor == own:
                stack += e.index[::-1]
        elif type(e) is Pad:
            stack.append(e.value)
        elif type(e) is not Aggregate:
            stack += children(e)[::-1]


# branches whose points need not be looked at

PointNode = TypeVar("PointNode", bound=Statement | Aggregate)


def without_identity(s: PointNode) -> PointNode:
    """The aggregation with branches of its body that are its identity, `: 0` in a sum, dropped by its guard: their
    points change nothing, except that a `default` is not for an element that they reach."""
    if s.aggregation not in SPLITTABLE or isinstance(s, Statement) and s.default is not None:
        return s
    demand, body = _pruned(s.body, float(AGGREGATIONS[s.aggregation].identity))
    if demand is None:
        return s
    guard = demand if s.guard is None else Call("and", (_truth(s.guard), _truth(demand)))
    return replace(s, guard=guard, body=body)


def _pruned(e: Expr, identity: float) -> tuple[Expr | None, Expr]:
    """The condition under which a body is more than the identity, None where it always is, and what it is there."""
    match e:
        case Call("select", (c, a, b)) if _value(b) == identity != _value(a):
            demand, rest = _pruned(a, identity)
            return c if demand is None else Call("select", (c, demand, Int(0))), rest
        case Call("select", (c, a, b)) if _value(a) == identity != _value(b):
            demand, rest = _pruned(b, identity)
            return Call("eq", (c, Int(0))) if demand is None else Call("select", (c, Int(0), demand)), rest
        case Call("select", (c, a, b)):
            (demand, a), (other, b) = _pruned(a, identity), _pruned(b, identity)
            if demand is not None or other is not None:
                return Call("select", (c, demand or Int(1), other or Int(1))), Call("select", (c, a, b), span=e.span)
    return None, e


def _value(e: Expr) -> float | None:
    match e:
        case Int(value) | Float(value):
            return float(value)
        case Call("neg", (a,)):
            inner = _value(a)
            return None if inner is None else -inner
    return None


def _truth(e: Expr) -> Expr:
    known = isinstance(e, Call) and FUNCTIONS[e.function].result == "bool"
    return e if known else Call("ne", (e, Int(0)))
