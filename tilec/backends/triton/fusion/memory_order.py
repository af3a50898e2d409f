"""The order of variables in which the tensors of statements over the same ones are contiguous."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilec.backends.triton.fusion.loop_nest import reduced, walked_by
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.ir.program import Access, Statement, value_accesses

NEIGHBOURS = 64  # rows of a block where memory runs along the rows


def rows_and_columns(
    statements: Sequence[Statement], extent: Mapping[str, int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Rows and columns, these the fastest axes that all aggregations treat alike."""
    order = memory_order(statements, extent) or ()
    sets = [r for s in statements if (r := reduced(s, extent))]
    many = [v for v in order if extent[v] > 1]
    columns = many[-1:]
    while sets and len(columns) < len(many) - 1 and _alike(many[-len(columns) - 1], many[-1], sets):
        columns = many[-len(columns) - 1 :]
    return tuple(v for v in order if v not in columns), tuple(v for v in order if v in columns)


def _alike(v: str, w: str, sets: Sequence[set[str]]) -> bool:
    return all((v in s) == (w in s) for s in sets)


def memory_order(statements: Sequence[Statement], extent: Mapping[str, int]) -> tuple[str, ...] | None:
    """The variables as they stand in a tensor that has all of them; None where there is none."""
    many = {v for v, n in extent.items() if n > 1}
    for s in statements:
        summed = reduced(s, extent)
        for a in (Access(s.output, s.index or ()), *value_accesses(s)):
            names = [v for e in a.index if (v := walked_by(e, summed)) is not None]
            if many <= set(names) and len(set(names)) == len(names) == len(a.index):
                return (*(v for v in extent if v not in names), *names)
    return None


def share_of_programs(statements: Sequence[Statement], rows: tuple[str, ...], extent: Mapping[str, int]) -> float:
    """The share of the device that a kernel keeps busy whose programs walk whole rows, each a block of neighbouring
    rows where memory runs along these."""
    programs = math.prod(extent[v] for v in rows) / (NEIGHBOURS if runs_fastest(statements, extent) in rows else 1)
    return min(1.0, max(1.0, programs) / MULTIPROCESSORS)


def runs_fastest(statements: Sequence[Statement], extent: Mapping[str, int]) -> str | None:
    """The variable along which memory runs."""
    order = memory_order(statements, extent)
    return next((v for v in reversed(order or ()) if extent[v] > 1), None)
