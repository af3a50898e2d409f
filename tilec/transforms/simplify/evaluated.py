"""What of a statement is evaluated: not what stands in `in(...)`, nor branches that are never taken."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.ir.functions import COMPARISONS, ROUNDING, is_infinite
from tilec.ir.program import Access, Call, Expr, Inside, Statement, children, expressions, kept_with
from tilec.ir.types import INTEGERS
from tilec.transforms.simplify.simplify import truth

LEAPS = (*COMPARISONS, *ROUNDING, *INTEGERS, "sign", "mod")


def values_read(s: Statement) -> frozenset[str]:
    """Names of the tensors whose elements a statement reads: those in `in(...)` and in branches that are never taken
    lend their shape alone."""
    return kept_with(s, "_values_read", _values_read)


def _values_read(s: Statement) -> frozenset[str]:
    return frozenset((*tensors_evaluated(*expressions(s)), *(() if s.default is None else (s.default,))))


def compared_sides(s: Statement) -> tuple[tuple[Expr, ...], ...]:
    """Of each test for equality in a statement, its sides."""
    return kept_with(s, "_compared_sides", _compared_sides)


def _compared_sides(s: Statement) -> tuple[tuple[Expr, ...], ...]:
    every = (e for root in expressions(s) for e in _evaluated(root))
    return tuple([e.args for e in every if isinstance(e, Call) and e.function in ("eq", "ne")])


def leaps_in(s: Statement) -> list[Call]:
    """What of a statement may be another where the values that it is made of are rounded otherwise. What is infinite
    stays so."""
    every = (e for root in expressions(s) for e in _evaluated(root))
    return [e for e in every if isinstance(e, Call) and e.function in LEAPS and not any(map(is_infinite, e.args))]


def tensors_evaluated(*roots: Expr) -> set[str]:
    """The tensors whose elements these read."""
    return {e.tensor for root in roots for e in _evaluated(root) if isinstance(e, Access)}


def _evaluated(e: Expr) -> Iterator[Expr]:
    """The expression and what below it is evaluated."""
    below = children(e)
    if isinstance(e, Call) and e.function == "select":
        taken = truth(e.args[0])
        below = e.args if taken is None else (e.args[1] if taken else e.args[2],)
    elif isinstance(e, Inside):
        below = e.access.index
    yield e
    for child in below:
        yield from _evaluated(child)
