"""Epilogues of recurrences: each element of theirs is a function of the state at the same place, which a
step has at hand. A gradient's last statement is one, and with it the cotangents need not be stored at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tilec.backends.common.domain import boxed
from tilec.backends.triton.emit.epilogue import reads_own_element
from tilec.backends.triton.recurrence.skewed_loop import SkewedLoop
from tilec.ir.index import distinct_variables, linear, substitute_affine
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Program,
    Statement,
    expressions,
    index_variables,
    reads,
    reads_itself,
    walk,
)
from tilec.ir.types import TensorType, shapes_in
from tilec.lattice.sets import bounds
from tilec.transforms.util.plain import is_pure

MOST_EPILOGUES = 4
MOST_EPILOGUE_OPERATORS = 40  # of one statement


def find_recurrence_epilogue(flat: Program, place: int, types: Mapping[str, TensorType]) -> tuple[Statement, ...]:
    """The statements that can be the epilogue of the recurrence at that place."""
    s = flat.statements[place]
    there = {*flat.input_names(), *(b.output for b in flat.statements[:place])}
    later = flat.statements[place + 1 :]
    return tuple(r for r in later if s.output in reads(r) and _joins(r, s, there, types))[:MOST_EPILOGUES]


def times_read(
    flat: Program, s: Statement, time: str, epilogue: tuple[Statement, ...], types: Mapping[str, TensorType]
) -> tuple[int, int] | None:
    """The first and the last time at which anything but its epilogue needs the states of a recurrence over `time`; None
    where nothing does. A statement whose points read no state at all still names the tensor: it gets one time."""
    axis = [linear(e).bare for e in s.index or ()].index(time)
    whole = 0, types[s.output].shape[axis] - 1
    if s.output in flat.outputs:
        return whole
    found: list[tuple[int, int]] = []
    for r in flat.statements:
        if r is s or r in epilogue or s.output not in reads(r):
            continue
        inside = list(walk(*expressions(r)))
        ranges = bounds(r, shapes_in(types))
        if r.default == s.output or reads_itself(r) or any(isinstance(e, Aggregate) for e in inside):
            return whole
        if ranges is None:
            found.append((0, 0))
            continue
        domain = boxed(r, ranges, types)
        spans = [
            domain.interval(linear(e.index[axis])) for e in inside if isinstance(e, Access) and e.tensor == s.output
        ]
        for low, high in spans:
            low, high = max(low, whole[0]), min(high, whole[1])
            found.append((math.floor(low), math.ceil(high)) if low <= high else (0, 0))
    return (min(a for a, _ in found), max(b for _, b in found)) if found else None


def _joins(r: Statement, s: Statement, there: set[str], types: Mapping[str, TensorType]) -> bool:
    own = distinct_variables(r.index)
    if own is None or types[r.output].shape != types[s.output].shape:
        return False
    if not is_pure(r) or r.aggregation not in ("assign", "sum"):
        return False
    if not set(reads(r)) <= {*there, s.output} or s.default is not None:
        return False
    if not set(index_variables(*r.roots, *(c.expr for c in r.constraints))) <= set(own):
        return False
    inside = list(walk(*r.roots))
    if (
        any(isinstance(e, Aggregate) for e in inside)
        or sum(isinstance(e, Call) for e in inside) > MOST_EPILOGUE_OPERATORS
    ):
        return False
    return all(reads_own_element(root, s.output, r.index or ()) for root in r.roots)


def over(loop: SkewedLoop, r: Statement) -> Statement:
    """The statement over the loop's variables."""
    index = loop.statement.index or ()
    mapping = dict(zip(distinct_variables(r.index) or (), map(linear, index), strict=True))
    return replace(substitute_affine(r, mapping), index=index)
