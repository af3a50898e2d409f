"""The order in which memory holds the axes of tensors, and the rule by which results take that of what makes them.

An order counts where neighbouring axes, not the first, move behind the rest, which are two or more: channels-last
images (0, 2, 3, 1), volumes, groups of channels, batches of those. All else is row-major and has no entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import TypeVar

from tilec.ir.program import (
    Access,
    Expr,
    Program,
    Statement,
    accesses_in,
    index_variables,
    map_expressions,
    reads_itself,
    rebuild,
    value_accesses,
)

AxisOrder = tuple[int, ...]  # axes, the one along which memory runs last
AxisOrders = Mapping[str, AxisOrder]  # of tensors that are not row-major
LEAST_RANK = 4

_Entry = TypeVar("_Entry")


def in_order(axes: Sequence[_Entry], order: AxisOrder | None) -> tuple[_Entry, ...]:
    """What there is of each axis, as memory holds these."""
    return tuple(axes) if order is None else tuple([axes[k] for k in order])


def axes_back(order: AxisOrder) -> AxisOrder:
    """Where each axis stands in memory."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


@cache
def counted_orders(rank: int) -> tuple[AxisOrder, ...]:
    """The orders that count of so many axes."""
    if rank < LEAST_RANK:
        return ()
    cuts = ((k, m) for k in range(1, rank) for m in range(k + 1, rank - 1))
    return tuple([(*range(k), *range(m, rank), *range(k, m)) for k, m in cuts])


def axis_order(shape: Sequence[int], strides: Sequence[int]) -> AxisOrder | None:
    """The order of a tensor's axes by its strides, gaps allowed; None where it is row-major or no order that counts.
    Axes of one element say nothing."""
    several = [k for k, n in enumerate(shape) if n > 1]
    for order in counted_orders(len(shape)):
        axes = [k for k in order if k in several]
        nested = all(strides[a] >= strides[b] * shape[b] for a, b in pairwise(axes))
        if axes != several and nested and strides[axes[-1]] > 0:
            return order
    return None


def axis_orders(program: Program, given: AxisOrders) -> dict[str, AxisOrder]:
    """Of the inputs, as given, and of what a bound program computes: the order of the first tensor that a statement
    reads at its own element's variables and that has one. One axis may be the statement's own, in the place of one that
    is summed: the first (a kernel's gradient) or channels, as a convolution's stand where its input's do. Recurrences
    and writes at computed positions are row-major."""
    found = dict(given)
    for s in program.statements if found else ():
        orders = (_order_like(s, a, found[a.tensor]) for a in value_accesses(s) if a.tensor in found)
        if may_have_order(s) and (order := next((o for o in orders if o), None)) is not None:
            found[s.output] = order
    return found


def lowered_axis_orders(program: Program, given: AxisOrders, outputs: AxisOrders) -> dict[str, AxisOrder]:
    """The same of a lowered program whose outputs have these orders. What it computes in between takes that of what is
    made of it; where this has fewer axes, that of what it is made of itself."""
    found, made_of = {**given, **outputs}, axis_orders(program, given)
    over = {s.default: s.output for s in program.statements if s.default is not None}
    for s in reversed(program.statements):
        if s.output not in program.outputs and may_have_order(s):
            order = _order_of_readers(s, program, found, made_of.get(s.output))
            found |= {} if order is None else {s.output: order}
    for name, output in over.items():
        if name not in program.outputs:
            found.pop(name, None)
            found |= {name: found[output]} if output in found else {}
    return found


def _order_of_readers(s: Statement, program: Program, known: AxisOrders, own: AxisOrder | None) -> AxisOrder | None:
    readers = program.readers(s.output)
    for r in (r for r in readers if r.output in known):
        written = Access(r.output, r.index or ())
        places = (a.index for a in value_accesses(r) if a.tensor == s.output)
        orders = (_order_like(replace(s, index=place), written, known[r.output]) for place in places)
        if (order := next((o for o in orders if o), None)) is not None:
            return order
    return own if all(len(r.index or ()) < LEAST_RANK for r in readers) else None


def may_have_order(s: Statement) -> bool:
    return len(s.index or ()) >= LEAST_RANK and not reads_itself(s) and not any(accesses_in(*(s.index or ())))


def _order_like(s: Statement, a: Access, order: AxisOrder) -> AxisOrder | None:
    """The output's axes in the order in which memory holds the elements that an access reads at their variables; None
    where that is no order that counts."""
    own = [set(index_variables(e)) for e in s.index or ()]
    read = [set(index_variables(e)) for e in a.index]
    summed = [bool(r) and not any(v & r for v in own) for r in read]
    places, matched = [], 0
    for k, variables in enumerate(own):
        at = [order.index(axis) for axis, r in enumerate(read) if variables & r]
        matched += bool(at)
        if not at and len(own) == len(read) and summed[k] and (k == 0 or order.index(k) > order.index(len(own) - 1)):
            at = [order.index(k)]
        if not at:
            return None
        places.append(min(at))
    found = tuple(sorted(range(len(own)), key=lambda k: (places[k], k)))
    return found if matched >= len(own) - 1 and found in counted_orders(len(own)) else None


def with_orders(program: Program, orders: AxisOrders, names: Mapping[str, str]) -> Program:
    """The program over tensors whose axes stand as memory holds them, under these names: row-major ones."""

    def name(x: str) -> str:
        return names.get(x, x)

    def turn(e: Expr) -> Expr:
        e = rebuild(e, turn)
        return Access(name(e.tensor), in_order(e.index, orders.get(e.tensor)), span=e.span) if type(e) is Access else e

    statements = []
    for s in program.statements:
        order, t = orders.get(s.output), map_expressions(s, turn)
        index, sizes = (None if x is None else in_order(x, order) for x in (t.index, t.sizes))
        default = None if t.default is None else name(t.default)
        statements.append(replace(t, output=name(s.output), index=index, sizes=sizes, default=default))
    inputs = [
        replace(i, name=name(i.name), dims=None if i.dims is None else in_order(i.dims, orders.get(i.name)))
        for i in program.inputs
    ]
    return replace(
        program, inputs=tuple(inputs), outputs=tuple(map(name, program.outputs)), statements=tuple(statements)
    )
