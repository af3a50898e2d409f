"""Variables that canonical indices lose (`0*j`), or show in another order, kept in sight by a guard such as `j == j`.

A variable counts wherever it ranges: `+(A[i]), j < 3` adds each element three times, and argmax numbers its points in
the order in which the variables appear. Both must still be read off the text of the bound program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tilec.ir.aggregations import NUMBERED
from tilec.ir.functions import ZERO
from tilec.ir.index import linear
from tilec.ir.program import Aggregate, Call, Constraint, Expr, Index, Int, Statement, children, index_variables
from tilec.transforms.simplify.simplify import is_bool


def keep_variables(new: Statement, old: Statement) -> Statement:
    """The bound form of a statement, with a guard for what it lost of the old one's variables or of their order."""
    before, after = _roots(old), _roots(new)
    constraints = (c.expr for c in old.constraints)
    named = _named(new.constraints)
    outside, still = outside_variables(*before), outside_variables(*after)
    # what only a list leaves out is the statement's; an index there would constrain what stood outside by itself
    left_out = (v for v in index_variables(*after) if v in named and v not in outside)
    anchored = _missing(outside_variables(*before, *constraints), (*still, *left_out))
    if new.aggregation in NUMBERED:
        written = index_variables(*(new.index or ()))
        wanted = [v for v in index_variables(*before) if v not in written]
        if [v for v in index_variables(*after) if v not in written] != wanted:
            anchored = wanted
    return anchor(new, anchored) if anchored else new


def anchor(s: Statement, variables: Iterable[str]) -> Statement:
    """The statement with the variables named in its guard, first."""
    return replace(s, guard=combined_condition([*map(_itself, variables), *_conditions(s.guard)]))


def keep_aggregate(new: Aggregate) -> Aggregate:
    """The same for a nested aggregation, whose `bound` still tells the order. Constraints that no longer concern its
    own variables move to its guard, since as text they would belong to the statement."""
    moved = [c for c in new.constraints if not set(index_variables(c.expr)).intersection(new.bound)]
    conditions = [condition for c in moved for condition in as_conditions(c)]
    seen = _present(new)
    anchored = _missing(new.bound, seen)
    if new.aggregation in NUMBERED and seen != list(new.bound):
        anchored = list(new.bound)
    if anchored or conditions:
        new = replace(new, guard=combined_condition([*map(_itself, anchored), *_conditions(new.guard), *conditions]))
    bound = tuple(_present(new))
    kept = tuple(c for c in new.constraints if set(index_variables(c.expr)).intersection(bound))
    return replace(new, bound=bound, constraints=tuple(dict.fromkeys(kept)))


def _present(e: Aggregate) -> list[str]:
    """The variables that its text shows it to bind: those outside nested aggregations, and those that the lists of
    these leave to it, which constraints name."""
    roots, named = (*_conditions(e.guard), e.body), _named(e.constraints)
    direct = outside_variables(*roots)
    return [v for v in index_variables(*roots) if v in e.bound and (v in direct or v in named)]


def _named(constraints: Iterable[Constraint]) -> frozenset[str]:
    return frozenset(index_variables(*(c.expr for c in constraints)))


def outside_variables(*roots: Expr) -> tuple[str, ...]:
    """Index variables outside nested aggregations, in order of first appearance."""
    return tuple(dict.fromkeys(e.name for root in roots for e in _outside(root) if isinstance(e, Index)))


def _outside(e: Expr) -> Iterator[Expr]:
    left = [e]
    while left:
        e = left.pop()
        if not isinstance(e, Aggregate):
            yield e
            left += reversed(children(e))


def _roots(s: Statement) -> list[Expr]:
    return [*(s.index or ()), *_conditions(s.guard), s.body]


def _missing(wanted: Iterable[str], present: Iterable[str]) -> list[str]:
    present = set(present)
    return [v for v in wanted if v not in present]


def _itself(v: str) -> Expr:
    return Call("eq", (Index(v), Index(v)))


def _conditions(guard: Expr | None) -> list[Expr]:
    return [] if guard is None else [guard]


def combined_condition(conditions: list[Expr]) -> Expr:
    """All of the conditions at once, each compared with 0 unless it is bool by its form."""
    if len(conditions) == 1:
        return conditions[0]
    result, *rest = (c if is_bool(c) else Call("ne", (c, ZERO)) for c in conditions)
    for condition in rest:
        result = Call("and", (result, condition))
    return result


def as_conditions(c: Constraint) -> list[Expr]:
    """The values that say what a constraint says; none where it holds anyway. A quotient is exact in a constraint, and
    would be cut off in a value."""
    form = linear(c.expr)
    if isinstance(c.bound, Int) and not form.terms and form.is_integral and 0 <= form.constant < c.bound.value:
        return []
    scale = form.denominator
    number = c.expr if scale == 1 else (form * scale).to_expr()
    whole = [] if scale == 1 else [Call("eq", (Call("mod", (number, Int(scale))), ZERO))]
    bound = Int(scale * c.bound.value) if isinstance(c.bound, Int) else c.bound if scale == 1 else c.bound * Int(scale)
    return [*whole, Call("ge", (number, ZERO)), Call("lt", (number, bound))]
