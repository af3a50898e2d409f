"""Epilogues of recurrences: each element of theirs is a function of the state at the same place, which a
step has at hand. A gradient's last statement is one, and with it the cotangents need not be stored at all.

A sum over time of such functions is added up beside the state, and what reads the state of one time is taken from it:
`Y[i] = +(C[k] * P[k, i])` and `Y[i] = H[T - 1, i]` of recurrences over k and t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tilec.backends.common.domain import boxed
from tilec.backends.triton.emit.epilogue import reads_own_element
from tilec.backends.triton.recurrence.skewed_loop import SkewedLoop
from tilec.ir.functions import all_of
from tilec.ir.index import distinct_variables, linear, substitute_affine
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Index,
    Program,
    Statement,
    expressions,
    index_variables,
    reads,
    reads_itself,
    self_reads,
    walk,
)
from tilec.ir.types import TensorType, Types, is_floating, shapes_in
from tilec.lattice.sets import bounds
from tilec.transforms.util.plain import is_pure
from tilec.transforms.util.rewrite import with_parts

MOST_EPILOGUES = 4
MOST_EPILOGUE_OPERATORS = 40  # of one statement
MOST_PINNED_OPERATORS = 4  # of one that is computed at each step for the sake of one
LEAST_LANES = 8192  # for sums over time, or
FEW_STEPS = 16  # at most: others may be scans


def find_recurrence_epilogue(flat: Program, place: int, types: Mapping[str, TensorType]) -> tuple[Statement, ...]:
    """The statements that can be the epilogue of the recurrence at that place."""
    s = flat.statements[place]
    there = {*flat.input_names(), *(b.output for b in flat.statements[:place])}
    later = flat.statements[place + 1 :]
    return tuple(r for r in later if s.output in reads(r) and _joins(r, s, there, types))[:MOST_EPILOGUES]


def find_sums(flat: Program, place: int, types: Types, time: str) -> dict[str, Statement]:
    """Statements that add up what they make of each time's states, by name, and those of the states of one time, which
    their guard says; over the variables of the recurrence at that place, whose steps `time` counts."""
    s = flat.statements[place]
    there = {*flat.input_names(), *(b.output for b in flat.statements[:place])}
    found: dict[str, Statement] = {}
    for r in flat.statements[place + 1 :]:
        read, index = _place_read(r, s) if s.output in reads(r) else None, distinct_variables(r.index)
        if read is None or index is None or r.aggregation not in ("assign", "sum") or not is_pure(r):
            continue
        axes = list(zip(map(linear, read), map(linear, s.index or ()), types[s.output].shape, strict=True))
        at = next((place for place, own, _ in axes if own.bare == time), None)
        if at is None:
            continue
        moving = [(place - place.constant, own, n) for place, own, n in axes if own.bare != time or place.terms]
        names = distinct_variables([place.to_expr() for place, _, _ in moving])
        plain = r.default is None and not any(isinstance(e, Aggregate) for e in walk(*r.roots))
        most = MOST_EPILOGUE_OPERATORS if at.terms else MOST_PINNED_OPERATORS
        if names is None or not plain or sum(isinstance(e, Call) for e in walk(*r.roots)) > most:
            continue
        own = {v: form for v, (_, form, _) in zip(names, moving, strict=True)}
        sizes = {v: n for v, (_, _, n) in zip(names, moving, strict=True)}
        whole = types[r.output].shape == tuple(sizes.get(v) for v in index) and is_floating(types[r.output].dtype)
        used = {*index_variables(*r.roots, *(c.expr for c in r.constraints))}
        if not whole or not used <= {*names} or not {*reads(r)} <= {*there, s.output}:
            continue
        timed = any(own[v].bare == time for v in index)
        if at.terms and timed:
            found[r.output] = substitute_affine(r, own)
        elif not at.terms and at.is_integral and r.guard is None and len(index) == len(names):
            r = substitute_affine(r, own)
            now = {Access(s.output, _place_read(r, s) or ()): Access(s.output, s.index or ())}
            found[r.output] = replace(r, body=with_parts(r.body, now), guard=Call("eq", (Index(time), at.to_expr())))
    return found


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
    own, place = distinct_variables(r.index), _place_read(r, s)
    if own is None or place is None or not is_pure(r) or r.aggregation not in ("assign", "sum"):
        return False
    if not set(reads(r)) <= {*there, s.output} or s.default is not None:
        return False
    operators = sum(isinstance(e, Call) for e in walk(*r.roots))
    shape, most = list(types[s.output].shape), MOST_EPILOGUE_OPERATORS
    if place != r.index:
        axis = time_axis(s)
        if axis is None or distinct_variables((*place[:axis], *place[axis + 1 :])) != own:
            return False
        steps, time = shape.pop(axis), linear(place[axis])
        if math.prod(shape) < LEAST_LANES and steps > FEW_STEPS or not is_floating(types[r.output].dtype):
            return False
        if not time.terms and time.is_integral and 0 <= time.constant < steps:
            most = MOST_PINNED_OPERATORS
        elif time.bare is not None and time.bare not in own and r.aggregation == "sum":
            own = (*own, time.bare)
        else:
            return False
    if types[r.output].shape != tuple(shape) or operators > most:
        return False
    if not set(index_variables(*r.roots, *(c.expr for c in r.constraints))) <= set(own):
        return False
    if any(isinstance(e, Aggregate) for e in walk(*r.roots)):
        return False
    return all(reads_own_element(root, s.output, place) for root in r.roots)


def _place_read(r: Statement, s: Statement) -> tuple[Expr, ...] | None:
    return next((e.index for e in walk(*r.roots) if isinstance(e, Access) and e.tensor == s.output), None)


def time_axis(s: Statement) -> int | None:
    """The only axis along which a recurrence reads another place than its own."""
    index = s.index or ()
    axes = {k for e in self_reads(s) for k, (a, b) in enumerate(zip(e.index, index, strict=True)) if a != b}
    return axes.pop() if len(axes) == 1 and distinct_variables(index) is not None else None


def is_beside(r: Statement, s: Statement) -> bool:
    """Whether an epilogue has an element for each state, and not one for each lane."""
    return _place_read(r, s) == r.index


def over(loop: SkewedLoop, r: Statement) -> Statement:
    """The statement over the loop's variables. What reads one time has a guard that says which."""
    index, place = loop.statement.index or (), _place_read(r, loop.flat) or ()
    forms = zip(place, map(linear, index), strict=True)
    r = substitute_affine(r, {v.name: form for v, form in forms if isinstance(v, Index)})
    there = _place_read(r, loop.flat) or ()
    if len(r.index or ()) == len(index):
        return replace(r, index=index)
    axis = time_axis(loop.flat)
    assert axis is not None
    if isinstance(place[axis], Index):
        return r
    test = Call("eq", (index[axis], there[axis]))
    body = with_parts(r.body, {Access(loop.own, there): Access(loop.own, index)})
    return replace(r, aggregation="assign", body=body, guard=all_of([*r.guards, test]))
