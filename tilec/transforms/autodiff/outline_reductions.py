"""Nested aggregations that depend on the left side alone, as statements of their own.

In `Y[i, j] = exp(X[i, j] - max(X[i, k]))` the maximum belongs to the row. A derivative of the whole would pass through
it once for each pair (j, k); a statement of the row is passed once for each j and once for each k.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.program import Access, Aggregate, Expr, Index, Program, Statement, reads_itself, rebuild, walk
from tilec.transforms.util.extents import Extent, extents
from tilec.transforms.util.naming import Names, canonical_aggregate, free_variables


def lift(program: Program, names: Names) -> tuple[Statement, ...]:
    """The same program; equal aggregations over equal ranges share one statement. Those whose variables stand on the
    left within other expressions only, and those of recurrences, stay where they are."""
    known = extents(program)
    shared: dict[tuple, str] = {}
    result: list[Statement] = []
    for s in program.statements:
        nested = any(isinstance(e, Aggregate) for e in walk(s.body))
        if s.index is not None and nested and not reads_itself(s):
            s = _lifted(s, known[s.output], names, shared, result)
        result.append(s)
    return tuple(result)


def _lifted(s: Statement, extent: Extent, names: Names, shared: dict[tuple, str], result: list[Statement]) -> Statement:
    if isinstance(extent, str):
        return s
    sizes = {e.name: size for e, size in reversed([*zip(s.index or (), extent, strict=True)]) if isinstance(e, Index)}

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Aggregate):
            return rebuild(e, visit)
        inner = rebuild(e, visit)
        assert isinstance(inner, Aggregate)
        free = free_variables(inner, s.index)
        if inner.aggregation == "assign" or not all(v in sizes for v in free):
            return inner
        return Access(_statement(inner, free), tuple(map(Index, free)), span=e.span)

    def _statement(e: Aggregate, free: tuple[str, ...]) -> str:
        ranges = tuple(sizes[v] for v in free)
        key = (*canonical_aggregate(e, free), ranges)
        if key not in shared:
            shared[key] = name = names.fresh(f"{s.output}_{e.aggregation}")
            index = tuple(map(Index, free))
            result.append(
                Statement(name, index, ranges, e.body, e.aggregation, e.guard, e.constraints, span=e.span or s.span)
            )
        return shared[key]

    body = visit(s.body)
    return s if body is s.body else replace(s, body=body)
