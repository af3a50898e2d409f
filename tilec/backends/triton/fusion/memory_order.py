"""The order of variables in which the tensors of statements over the same ones are contiguous."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilec.backends.triton.fusion.loop_nest import reduced, walked_by
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.backends.triton.plan.sizes import contiguous
from tilec.ir.program import Access, Statement, value_accesses
from tilec.ir.types import Types

Layouts = Mapping[str, tuple[int, ...]]  # by tensor: its axes in the order in which memory holds them

LEAST_IN_ORDER = 2**16  # elements of a tensor
NEIGHBOURS = 64  # rows of a block where memory runs along the rows


def rows_and_columns(
    statements: Sequence[Statement], extent: Mapping[str, int], layouts: Layouts
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Rows and columns, these the fastest axes that all aggregations treat alike."""
    order = memory_order(statements, extent, layouts) or ()
    sets = [r for s in statements if (r := reduced(s, extent))]
    many = [v for v in order if extent[v] > 1]
    columns = many[-1:]
    while sets and len(columns) < len(many) - 1 and _alike(many[-len(columns) - 1], many[-1], sets):
        columns = many[-len(columns) - 1 :]
    return tuple(v for v in order if v not in columns), tuple(v for v in order if v in columns)


def _alike(v: str, w: str, sets: Sequence[set[str]]) -> bool:
    return all((v in s) == (w in s) for s in sets)


def memory_order(
    statements: Sequence[Statement], extent: Mapping[str, int], layouts: Layouts
) -> tuple[str, ...] | None:
    """The variables as they stand in a tensor that has all of them, one with a layout of its own if there is such;
    None where there is none."""
    many = {v for v, n in extent.items() if n > 1}
    found: tuple[str, ...] | None = None
    for s in statements:
        summed = reduced(s, extent)
        for a in (Access(s.output, s.index or ()), *value_accesses(s)):
            if found is not None and a.tensor not in layouts:
                continue
            names = [v for e in a.index if (v := walked_by(e, summed)) is not None]
            if many <= set(names) and len(set(names)) == len(names) == len(a.index):
                names = [names[k] for k in layouts.get(a.tensor, range(len(names)))]
                found = (*(v for v in extent if v not in names), *names)
                if not layouts or a.tensor in layouts:
                    return found
    return found


def layouts_of(strides: Mapping[str, Sequence[int]], types: Types) -> dict[str, tuple[int, ...]]:
    """Of large tensors whose axes lie in another order than that of their indices."""
    found: dict[str, tuple[int, ...]] = {}
    for name, steps in strides.items():
        shape = types[name].shape
        if tuple(steps) == contiguous(shape):
            continue
        order = tuple(sorted(range(len(shape)), key=lambda k: (-steps[k] if shape[k] > 1 else -math.inf, k)))
        several = [k for k in order if shape[k] > 1]
        if several != sorted(several) and math.prod(shape) >= LEAST_IN_ORDER and 0 not in (steps[k] for k in several):
            found[name] = order
    return found


def occupancy(
    statements: Sequence[Statement], rows: tuple[str, ...], extent: Mapping[str, int], layouts: Layouts
) -> float:
    """The share of the device that a kernel keeps busy whose programs walk whole rows, each a block of neighbouring
    rows where memory runs along these."""
    programs = math.prod(extent[v] for v in rows) / (
        NEIGHBOURS if runs_fastest(statements, extent, layouts) in rows else 1
    )
    return min(1.0, max(1.0, programs) / MULTIPROCESSORS)


def runs_fastest(statements: Sequence[Statement], extent: Mapping[str, int], layouts: Layouts) -> str | None:
    """The variable along which memory runs."""
    order = memory_order(statements, extent, layouts)
    return next((v for v in reversed(order or ()) if extent[v] > 1), None)
