"""Expressions with other parts, and bodies at other places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilec.ir.index import distinct_variables, linear, replace_indices
from tilec.ir.program import Expr, Statement, rebuild


def with_parts(e: Expr, parts: Mapping[Any, Expr]) -> Expr:
    """The expression with others in the place of these parts of it."""
    return parts[e] if e in parts else rebuild(e, lambda x: with_parts(x, parts))


def body_at(s: Statement, place: Sequence[Expr]) -> Expr:
    """The body of a statement, the variables of whose output index are distinct, for the element at a place."""
    return replace_indices(s.body, dict(zip(distinct_variables(s.index) or (), map(linear, place), strict=True)))
