"""Keep every index variable standing outside the constraints, where the language wants each to stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.ir.functions import FUNCTIONS
from tilec.ir.program import (
    Aggregate,
    Call,
    Constraint,
    Expr,
    Index,
    Int,
    Program,
    Statement,
    index_variables,
    map_expressions,
    rebuild,
)


def keep_standing(program: Program) -> Program:
    """Variables that a rewrite has left in constraints alone come back in the guard, as `v == v`, which always holds.

    Such a variable still counts points; the text of a program in which nothing else reads it would not parse.
    """
    return replace(program, statements=tuple(map(_keep, program.statements)))


def _keep(s: Statement) -> Statement:
    s = map_expressions(s, _keep_nested)
    if s.index is None:
        return s
    return replace(s, guard=_guard(s.guard, (*s.index, s.body), s.constraints))


def _keep_nested(e: Expr) -> Expr:
    e = rebuild(e, _keep_nested)
    return replace(e, guard=_guard(e.guard, (e.body,), e.constraints)) if isinstance(e, Aggregate) else e


def _guard(guard: Expr | None, others: Sequence[Expr], constraints: Sequence[Constraint]) -> Expr | None:
    if not constraints:
        return guard
    standing = index_variables(*others, *(() if guard is None else (guard,)))
    for v in index_variables(*(c.expr for c in constraints)):
        if v not in standing:
            holds = Call("eq", (Index(v), Index(v)))
            guard = holds if guard is None else Call("and", (holds, _truth(guard)))
    return guard


def _truth(e: Expr) -> Expr:
    boolean = isinstance(e, Call) and FUNCTIONS[e.function].result == "bool"
    return e if boolean else Call("ne", (e, Int(0)))
