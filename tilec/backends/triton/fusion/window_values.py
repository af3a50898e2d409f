"""Values at the positions of windows that sums alone read: the kernels of these sums recompute them.

`E[y, x, j, i] = exp(-abs(X[y, x] - X[y + j, x + i]))` are weights of a window, added up in `Z[y, x] = +(E[y, x, j, i])`
and `N[y, x] = +(E[y, x, j, i] * X[y + j, x + i])`. In a group each point is read, tested and addressed by itself. A
kernel of windows computes neighbours at once, from elements that they share and with the tests of a row: a weight takes
half the instructions there (bilateral filter of 5x5 on sm_90: 18.5, where a group takes 35.5).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from tilec.backends.common.domain import access_conditions, point_conditions
from tilec.backends.triton.fusion.read_through import (
    LONGEST_RECOMPUTED,
    aggregated_through,
    gives_values,
    known_conditions,
    read_through,
)
from tilec.backends.triton.fusion.window_layout import connected_tensors
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import build_space
from tilec.backends.triton.plan.sizes import contiguous_strides
from tilec.backends.triton.pointwise.pointwise import shareable_form
from tilec.backends.triton.pointwise.windows import LEAST_OUTPUTS, RegisterBlock
from tilec.ir.functions import draws
from tilec.ir.index import distinct_variables
from tilec.ir.program import (
    Access,
    Call,
    Inside,
    Pad,
    Program,
    Statement,
    accesses_in,
    expressions,
    node_count,
    reads,
    variables_of,
    walk,
)
from tilec.ir.types import Types, shapes_in
from tilec.transforms.lower.defract import defracted_form
from tilec.transforms.util.plain import is_pure
from tilec.transforms.util.rewrite import body_at

_FEWEST_AXES = 3  # of values at the places of a window: rows, columns and one of the window's


def with_window_values(program: Program, types: Types) -> tuple[Program, Types]:
    """The program without such values, where kernels of windows take all sums that read them."""
    values = {s.output: s for s in program.statements if _is_value(s, program, types)}
    values = _read_by_sums(values, program)
    taken: dict[str, Statement] = {}
    gone: set[str] = set()
    for names in connected_tensors(values, program):  # which go into the same sums
        made = _summed_through({n: s for n, s in values.items() if n in names}, program, types)
        if made is not None:
            taken |= made
            gone |= names
    left = [taken.get(s.output, s) for s in program.statements if s.output not in gone]
    late = {output for output, s in taken.items() if distinct_variables(s.index) is None}
    return replace(program, statements=tuple(_put_off(left, late))), types


def _put_off(statements: Sequence[Statement], late: Collection[str]) -> Iterator[Statement]:
    """The statements in an order in which those of `late` stand just before what reads them: sums that write at other
    places than they read come after those that do not, and so stand together."""
    waiting: dict[str, Statement] = {}
    for s in statements:
        if s.output in late:
            waiting[s.output] = s
            continue
        if not waiting.keys().isdisjoint(reads(s)):
            yield from waiting.values()
            waiting = {}
        yield s
    yield from waiting.values()


def _is_value(s: Statement, program: Program, types: Types) -> bool:
    """Whether a statement gives values to many elements, the same each time."""
    shape = types[s.output].shape
    many = len(shape) >= _FEWEST_AXES and math.prod(shape) >= LEAST_OUTPUTS
    return many and gives_values(s, program, types) and not draws(s.body)


def _read_by_sums(values: Mapping[str, Statement], program: Program) -> dict[str, Statement]:
    """Those that sums alone read, or others of them, and that nobody looks for by equality."""
    sought = {
        a.tensor
        for s in program.statements
        for e in walk(*expressions(s))
        if isinstance(e, Inside | Pad) or isinstance(e, Call) and e.function in ("eq", "ne")
        for a in accesses_in(e.access if isinstance(e, Inside) else e)
    }
    left = {n: s for n, s in values.items() if n not in sought}
    while True:
        kept = {
            n: s
            for n, s in left.items()
            if (readers := program.readers(n)) and all(_is_sibling(r, s, left) or _sums(r, n) for r in readers)
        }
        if len(kept) == len(left):
            return kept
        left = kept


def _is_sibling(s: Statement, value: Statement, values: Mapping[str, Statement]) -> bool:
    """Whether a statement gives another value to the same points."""
    return s.output in values and len(s.index or ()) == len(value.index or ())


def _sums(s: Statement, value: str) -> bool:
    """Whether a statement adds up a value's elements, one at each of its points."""
    plain = s.aggregation == "sum" and s.guard is None and is_pure(s)
    places = {a.index for a in accesses_in(s.body) if a.tensor == value}
    (place,) = places if len(places) == 1 else ((),)
    names = distinct_variables(place) or ()
    return plain and len(names) > len(s.index or ()) and set(variables_of(s)) <= set(names)


def _summed_through(values: Mapping[str, Statement], program: Program, types: Types) -> dict[str, Statement] | None:
    """The sums with these values computed in them; None where one has no kernel of windows then."""
    views: dict[str, Statement] = {}
    for name, s in values.items():
        views[name] = read_through(s, views)
        if node_count(views[name].body) > LONGEST_RECOMPUTED:
            return None
    shapes = shapes_in(types)
    strides = contiguous_strides(types)
    taken: dict[str, Statement] = {}
    for s in program.statements:
        if s.output in values or values.keys().isdisjoint(reads(s)):
            continue
        if not all(_is_whole(s, a, values, views, types) for a in accesses_in(s.body) if a.tensor in values):
            return None
        taken[s.output] = made = aggregated_through(s, views, types)
        defracted = defracted_form(made, shapes)
        space = build_space(defracted, types)
        form = None if space is None else shareable_form(space, StridedView(defracted, types, strides))
        if not isinstance(form, RegisterBlock) or node_count(made.body) > LONGEST_RECOMPUTED:
            return None
    return taken


def _is_whole(
    s: Statement, read: Access, values: Mapping[str, Statement], views: Mapping[str, Statement], types: Types
) -> bool:
    """Whether the sum has no point at which the value read is zero since something is outside, or adds up that zero."""
    view, own = views[read.tensor], values[read.tensor]
    if s.body == read and values.keys().isdisjoint(reads(own)):
        return True
    known = {*known_conditions(s, types), *access_conditions(read, types)}
    return set(point_conditions((body_at(view, read.index),), (), types)) <= known
