"""The ways through conditionals: what constrains the points of each, and what its conditions say of indices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilec.errors import Unsupported
from tilec.ir.aggregations import NUMBERED
from tilec.ir.constraining import Branch, Demand, always, demands, product_of_demands
from tilec.ir.program import Access, Aggregate, Expr, Statement, index_variables
from tilec.lattice.conditions import MOST_PATHS, alternatives
from tilec.lattice.questions import InRange
from tilec.lattice.sets import IntegerSet, Shapes, domain_of

CONSTRAIN = "bound them by constraints such as `i < N`"


@dataclass(frozen=True)
class ConditionalPath:
    """One way through the conditionals: the accesses that constrain there, and what its conditions say of indices."""

    accesses: tuple[Access, ...] = ()
    conditions: tuple[InRange, ...] = ()


def conditional_paths(wanted: Iterable[Demand]) -> list[ConditionalPath] | None:
    """All ways through the demands' conditionals; None where they are too many."""
    result = [ConditionalPath()]
    for d in wanted:
        if isinstance(d, Access):
            result = [replace(w, accesses=(*w.accesses, d)) for w in result]
            continue
        sides = [(side, alternatives(d.condition, taken)) for side, taken in ((d.yes, True), (d.no, False))]
        within = [conditional_paths(side) for side, _ in sides]
        branches = [
            ConditionalPath(inner.accesses, (*conditions, *inner.conditions))
            for (_, found), inside in zip(sides, within, strict=True)
            for conditions in found
            for inner in inside or ()
        ]
        if None in within or len(result) * len(branches) > MOST_PATHS:
            return None
        result = [
            ConditionalPath((*w.accesses, *b.accesses), (*w.conditions, *b.conditions))
            for w in result
            for b in branches
        ]
    return result


def enclosing_paths(wanted: Iterable[Demand], bounded: Callable[[ConditionalPath], bool]) -> list[ConditionalPath]:
    """Ways through no more conditionals than make each of them `bounded`: every valid point is one of theirs, and
    others may be. Raises Unsupported where even these are too many."""

    def shared(d: Branch) -> int:
        yes, no = (set(index_variables(product_of_demands(side))) for side in (d.yes, d.no))
        return len(yes & no)

    result: list[ConditionalPath] = []
    pending: list[tuple[ConditionalPath, list[Demand]]] = [(ConditionalPath(), list(wanted))]
    while pending:
        way, asked = pending.pop()
        way = replace(way, accesses=(*way.accesses, *always(asked)))
        branches = sorted((d for d in asked if isinstance(d, Branch)), key=shared)
        if not branches or bounded(way):
            result.append(way)
            continue
        d = branches.pop()
        for side, taken in ((d.yes, True), (d.no, False)):
            for conditions in alternatives(d.condition, taken):
                pending.append((replace(way, conditions=(*way.conditions, *conditions)), [*side, *branches]))
        if len(result) + len(pending) > 8 * MOST_PATHS:
            raise Unsupported("index variables are bounded by too many conditionals", hint=CONSTRAIN)
    return result


def domains(
    s: Statement | Aggregate,
    shapes: Shapes,
    around: IntegerSet,
    own: str | None,
    index: Sequence[Expr] = (),
    sizes=(),
    enough: Callable[[IntegerSet], bool] | None = None,
) -> list[IntegerSet]:
    """Sets whose union holds every valid point of a region, and none that is not one whatever the elements are. Where
    they would be too many, sets that hold others too, each of which is `enough`."""
    wanted = demands(*index, s.guard, s.body, own=own)
    at = partial(path_domain, s, shapes, around, own, index, sizes)
    found = conditional_paths(wanted)
    if found is None:
        if s.aggregation in NUMBERED:
            raise Unsupported(f"{s.aggregation} numbers the points of too many conditionals", s.span)
        found = enclosing_paths(wanted, lambda way: enough is None or enough(at(way)))
    return [at(way) for way in found]


def path_domain(
    s, shapes: Shapes, around: IntegerSet, own: str | None, index, sizes, way: ConditionalPath
) -> IntegerSet:
    inner = domain_of(way.accesses, shapes, s.constraints, index, sizes, own=own)
    named = index_variables(*index, *s.roots, *(c.expr for c in s.constraints))
    variables = dict.fromkeys((*around.variables, *named))
    conditions = dict.fromkeys((*around.conditions, *inner.conditions, *way.conditions))
    return IntegerSet(tuple(variables), tuple(conditions), (*around.dependent, *inner.dependent))
