"""Sums over all places of a window for each of its taps: gradients of the kernels of depthwise convolutions.

In `DK[j, i, c] = +(D[n, y, x, c] * I[n, y + j, x + i, c])` taps that differ in i read the same elements a place apart.
A program takes all taps along i and a share of the places, eight neighbours along x at once, in which each element of D
and I is read, and converted, one time. The shares are combined in order by a second launch.

Zeros that are read outside are treated as in `windows.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.domain import point_conditions
from tilec.backends.common.terms import split_factors
from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Axis, Kernel, Scope
from tilec.backends.triton.emit.scalar import TritonScalars
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.backends.triton.plan.plan import Launch, python_name
from tilec.backends.triton.pointwise.windows import STRIPE_WASTE, index_forms, window_axes
from tilec.ir.aggregations import LOGICAL
from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.program import Access, Statement
from tilec.ir.types import TensorType, is_floating
from tilec.transforms.util.naming import all_variables, fresh_variable

PLACES_AT_ONCE = (8, 7, 6, 5, 4)  # neighbours that are written out
MOST_TAPS_AT_ONCE = 8
LEAST_PLACES = 2**13  # fewer are soon added up as they are
TAP_ROWS, TAP_COLUMNS = 16, 32  # of a block


@dataclass(frozen=True)
class TapSums:
    """`count` neighbours along the summed variable `across`, `taps` values of the output variable `tap` together;
    `parts` shares of the places."""

    across: str
    tap: str
    count: int
    taps: int
    parts: int


def tap_sums(space: Space) -> TapSums | None:
    """How such sums are spread; None where a statement is none."""
    axes = window_axes(space)
    if axes is None:
        return None
    outputs, reductions = axes
    places = space.count(tuple(reductions))
    if space.largest(outputs[-1]) < TAP_COLUMNS or places < LEAST_PLACES or not space.covers:
        return None
    forms = index_forms(space)
    if forms is None:
        return None
    for v in reversed(reductions):
        beside = {w for f in forms if v in f.variables() for w in f.variables() if w in outputs[:-1]}
        found = [w for w in outputs if w in beside and 1 < space.largest(w) <= MOST_TAPS_AT_ONCE]
        n = space.largest(v)
        counts = [c for c in PLACES_AT_ONCE if -(-n // c) * c <= STRIPE_WASTE * n]
        if found and counts:
            across = space.count(tuple(outputs)) // space.largest(found[-1]) // space.largest(outputs[-1])
            across *= -(-space.largest(outputs[-1]) // TAP_COLUMNS)
            rows = places // n * -(-n // counts[0])
            parts = max(1, min(8 * MULTIPROCESSORS // max(across, 1), -(-rows // (2 * TAP_ROWS))))
            return TapSums(v, found[-1], counts[0], space.largest(found[-1]), parts)
    return None


class TapWriter:
    """The text of the kernel that adds up a share of the places for each tap."""

    def __init__(self, how: TapSums, space: Space, view: StridedView, int64_index: bool):
        self.how, self.view, self.whole = how, view, space
        s = space.statement
        self.tile = tile = fresh_variable(how.across, all_variables(s))
        low, extent = dict(space.low[0]), dict(space.extent[0])
        self.first = low.pop(how.across)
        low[tile], extent[tile] = 0, -(-extent.pop(how.across) // how.count)
        low[how.across], extent[how.across] = 0, how.count  # one neighbour, where they are not written out
        reductions = tuple(tile if v == how.across else v for v in space.reductions)
        self.space = replace(space, reductions=reductions, low=(low,), extent=(extent,), valid=(), stored=())
        self.k = Kernel(python_name(s.output) + "_taps", self.space, view.types, view.strides, int64_index, powers=True)
        base = Accumulator.of(s.aggregation, view.types[s.output].dtype)
        self.sums = [replace(base, suffix=f"_{n}") for n in range(how.taps)]
        self.names = [self.k.names.fresh(name) for a in self.sums for name in a.state]
        self.exact = not _reads_zeros_alone(s, view.types)

    def launch(self, flat: Statement, target: str) -> Launch:
        """Partial results go to the tensor `target`, one share after the other."""
        k, how, s = self.k, self.how, self.space.statement
        k.constants = {"BM": TAP_ROWS, "BN": TAP_COLUMNS}
        many = tuple(v for v in self.space.outputs if self.space.largest(v) > 1)
        down, columns = tuple(v for v in many[:-1] if v != how.tap), many[-1:]
        self.rows = tuple(v for v in self.space.reductions if self.space.largest(v) > 1)
        int64_index = ".to(tl.int64)" if k.int64_index else ""
        k.emit(f"across = tl.cdiv({k.count(columns)}, BN)")
        k.emit("down = tl.program_id(0) // across")
        k.decode(Axis("down", down, None))
        k.emit("col = (tl.program_id(0) % across) * BN + tl.arange(0, BN)")
        k.emit(f"col_in = col < {k.count(columns)}")
        k.decode(Axis("col", columns, "BN"))
        for v in (*self.space.outputs, *self.space.reductions):
            if v not in k.value_of and v != how.tap:
                k.value_of[v] = k.low(v)
        part = k.number("part", "part_size", -(-self.space.count(self.rows) // how.parts))
        k.emit(f"start = tl.program_id(2){int64_index} * {part}")
        k.emit(f"end = tl.minimum(start + {part}, {k.count(self.rows)})")
        for a in self.sums:
            k.scopes[0].lines += a.start("(BM, BN)")
        self._walk(unrolled=True, tested=self.exact)
        if not self.exact:
            finite = " & ".join(f"({name} - {name} == 0)" for name in self.names)
            k.scopes.append(Scope())
            for a in self.sums:
                k.scopes[-1].lines += a.start("(BM, BN)")
            self._walk(unrolled=False, tested=True)
            k.close(f"if tl.min(({finite}).to(tl.int32)) == 0:")
        self._store(target)
        tiles = self.space.count(down) * -(-self.space.count(columns) // TAP_COLUMNS)
        constants = tuple(k.constants.items())
        return Launch(k.file(flat), (tiles, 1, how.parts), tuple(k.parameters.items()), constants, 4, 2, (s.output,))

    def _walk(self, *, unrolled: bool, tested: bool) -> None:
        """Lines that combine the share's places, into the innermost scope; not `unrolled`, a neighbour at a time."""
        k, how = self.k, self.how
        depth = len(k.scopes)
        scopes: list[frozenset[str]] = [frozenset()] * (depth - 1)
        k.scopes.append(Scope())
        k.emit("row = first + tl.arange(0, BM)")
        k.emit("row_in = row < end")
        k.decode(Axis("row", self.rows, "BM"))
        scopes.append(frozenset((*self.rows, "row")))
        headers = ["for first in range(start, end, BM):"]
        if not unrolled:
            k.scopes.append(Scope())
            k.emit("step = tl.full((), 0, tl.int32) + at_step")
            k.value_of[how.across] = "step"
            k.axis_of[how.across] = Axis("step", (how.across,), None)
            scopes.append(frozenset((how.across, "step")))
            headers.append(f"for at_step in range(0, {how.count}):")
        frame = Frame(k, ["row", "col"], {"row": "row_in", "col": "col_in"}, *scopes)
        terms = [(u, n) for u in (range(how.count) if unrolled else (None,)) for n in range(how.taps)]
        for u, n in terms:
            self._term(frame, u, n, tested)
        for header in reversed(headers):
            k.close(header)
        for v in (*self.rows, how.across):
            k.value_of.pop(v, None)

    def _term(self, frame: Frame, u: int | None, n: int, tested: bool) -> None:
        k, how, a = self.k, self.how, self.sums[n]
        tile = Affine.variable(self.tile, how.count) + self.first
        place = tile + u if u is not None else tile + Affine.variable(how.across)
        change = {how.across: place, how.tap: Affine.of((), self.space.low[0][how.tap] + n)}
        s = substitute_affine(self.whole.statement, change)
        roots = (s.body,) if s.guard is None else (s.guard, s.body)
        evaluator = TritonScalars(frame, *roots)
        tests: list[str] = []
        if tested:
            tests = [
                frame.spread("row_in", "row"),
                *frame.tests(point_conditions(roots, s.constraints, self.view.types)),
            ]
            if s.guard is not None:
                tests.append(evaluator.condition(evaluator.value(s.guard)))
        value = evaluator.value(s.body)
        truth = a.aggregation in LOGICAL or a.dtype == "bool"
        code = evaluator.condition(value) if truth else evaluator.tensor(value, a.dtype)
        if tests:
            code = f"tl.where({' & '.join(dict.fromkeys(tests))}, {code}, {a.identity_text})"
        for line in a.step(k.line("value", code)):
            k.emit(line)

    def _store(self, target: str) -> None:
        k, s, how = self.k, self.whole.statement, self.how
        frame = Frame(k, ["col"], {"col": "col_in"})
        parts, step = k.pointer(target), k.number("elements", "elements", math.prod(self.view.types[s.output].shape))
        for n, a in enumerate(self.sums):
            k.scopes[0].lines += a.reduce(0)
            index = [
                linear(e).substitute({how.tap: Affine.of((), self.space.low[0][how.tap] + n)}) for e in s.index or ()
            ]
            pointer = k.pointer(s.output)
            address = frame.address(s.output, [frame.form(e.to_expr()) for e in index], frozenset(frame.axes))
            address = address.replace(pointer, f"{parts} + tl.program_id(2).to(tl.int64) * {step}", 1)
            k.emit(f"tl.store({address}, {a.result()}, mask=col_in)")
        del k.parameters[k.pointer(s.output)]


def _reads_zeros_alone(s: Statement, types: Mapping[str, TensorType]) -> bool:
    """Whether each point that does not count is one at which a factor of a floating product is read as zero."""
    if s.aggregation != "sum" or s.guard is not None or s.constraints or not is_floating(types[s.output].dtype):
        return False
    split = split_factors(s.body, types)
    if split is None or not split[0]:
        return False
    factors: Sequence[object] = split[0]
    return math.isfinite(split[1]) and all(isinstance(f, Access) for f in factors)
