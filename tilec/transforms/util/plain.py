"""Which statements are nothing but aggregations of the points that their reads allow."""

from __future__ import annotations

from collections.abc import Iterable

from tilec.ir.index import distinct_variables
from tilec.ir.program import Access, Call, Expr, Float, Index, Int, Statement, reads_itself


def is_pure(s: Statement) -> bool:
    """Whether each element is an aggregation of its own points: it reads no other one, and no default's."""
    return s.default is None and not reads_itself(s)


def is_elementary(nodes: Iterable[Expr]) -> bool:
    """Whether these are elements, functions, positions and numbers alone."""
    return all(isinstance(e, (Access, Call, Index, Int, Float)) for e in nodes)


def is_unmasked(s: Statement) -> bool:
    """Whether neither a guard nor constraints say which points count."""
    return s.guard is None and not s.constraints


def is_plain_sum(s: Statement) -> bool:
    """Whether a statement adds up, for each element, all points at which what it reads is inside."""
    return s.aggregation == "sum" and is_pure(s) and is_unmasked(s) and s.index is not None


def is_map(s: Statement) -> bool:
    """Whether each element is a function of others at the same place, or of fewer."""
    return s.aggregation == "assign" and is_pure(s) and is_unmasked(s) and distinct_variables(s.index) is not None
