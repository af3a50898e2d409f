"""Nested aggregations that depend on the left side alone, as statements of their own.

In `Y[i, j] = exp(X[i, j] - max(X[i, k]))` the maximum belongs to the row. A derivative of the whole would pass through
it once for each pair (j, k); a statement of the row is passed once for each j and once for each k.

Running aggregations of what the statement adds up, `L = sum[i](logsumexp[j](j >= i ? X[j]) - X[i])`, are statements
too: as such they are differentiated element by element.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product

from tilec.ir.constraining import always, demands
from tilec.ir.program import (
    Access,
    Aggregate,
    Constraint,
    Expr,
    Index,
    Program,
    Statement,
    reads_itself,
    rebuild,
    walk,
)
from tilec.transforms.autodiff.scans import is_running
from tilec.transforms.util.extents import Extent, extents, sizes
from tilec.transforms.util.naming import Names, canonical_aggregate, free_variables


def lift(program: Program, names: Names) -> tuple[Statement, ...]:
    """The same program; equal aggregations over equal ranges share one statement. Those whose variables stand on the
    left within other expressions only, and those of recurrences, stay where they are."""
    known = extents(program)
    shared: dict[tuple, str] = {}
    result: list[Statement] = []
    for s in program.statements:
        nested = any(isinstance(e, Aggregate) for e in walk(s.body))
        if nested and not reads_itself(s):
            s = _lifted(s, known, names, shared, result)
        result.append(s)
    return tuple(result)


def _lifted(
    s: Statement, known: dict[str, Extent], names: Names, shared: dict[tuple, str], result: list[Statement]
) -> Statement:
    extent = () if s.index is None else known[s.output]
    if isinstance(extent, str):
        return s
    left = {e.name: size for e, size in reversed([*zip(s.index or (), extent, strict=True)]) if isinstance(e, Index)}

    def visit(e: Expr, here: Mapping[str, Collection[Expr]]) -> Expr:
        """`here`: the ranges that variables around the expression have, each as far as it reaches."""
        if not isinstance(e, Aggregate):
            return rebuild(e, lambda x: visit(x, here))
        within = {**_ranges(e.roots, e.constraints, known), **here}
        inner = rebuild(e, lambda x: visit(x, within))
        assert isinstance(inner, Aggregate)
        free = free_variables(inner, s.index)
        if inner.aggregation == "assign" or not {*free} <= here.keys() or s.index is None and not free:
            return inner
        choices = (_statement(inner, free, ranges) for ranges in product(*(here[v] for v in free)))
        made = next((x for x in choices if {*free} <= left.keys() or is_running(x, known)), None)
        return inner if made is None else Access(_emitted(made, inner, free), made.index or (), span=e.span)

    def _statement(e: Aggregate, free: tuple[str, ...], ranges: tuple[Expr, ...]) -> Statement:
        index = tuple(map(Index, free))
        return Statement("", index, ranges, e.body, e.aggregation, e.guard, e.constraints, span=e.span or s.span)

    def _emitted(made: Statement, e: Aggregate, free: tuple[str, ...]) -> str:
        key = (*canonical_aggregate(e, free), made.sizes)
        if key not in shared:
            shared[key] = name = names.fresh(f"{s.output}_{e.aggregation}")
            result.append(replace(made, output=name))
            known[name] = made.sizes or ()
        return shared[key]

    body = visit(s.body, {**_ranges(s.roots, s.constraints, known), **{v: (size,) for v, size in left.items()}})
    return s if body is s.body else replace(s, body=body)


def _ranges(
    roots: Sequence[Expr], constraints: Sequence[Constraint], known: Mapping[str, Extent]
) -> dict[str, dict[Expr, None]]:
    """The sizes below which variables stay that something is read at for every point, or that constraints bound."""
    places = [(c.expr, c.bound) for c in constraints]
    for a in always(demands(*roots)):
        if a.tensor in known:
            places += zip(a.index, sizes(known[a.tensor], len(a.index)), strict=True)
    found: dict[str, dict[Expr, None]] = {}
    for e, size in places:
        if isinstance(e, Index):
            found.setdefault(e.name, {})[size] = None
    return found
