"""Weight gradients of depthwise convolutions: sums over all positions of a window for each of its taps.

In `DK[j, i, c] = +(D[n, y, x, c] * I[n, y + j, x + i, c])` taps that differ in i read the same elements a place apart.
A program takes all taps along i and a share of the places, eight neighbours along x at once, in which each element of D
and I is read, and converted, one time. The shares are combined in order by a second launch.

Zeros that are read outside are treated as in `windows.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tilec.backends.common.code import python_name
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Axis, Scope
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.backends.triton.plan.plan import Launch
from tilec.backends.triton.plan.source import PROGRAM
from tilec.backends.triton.pointwise.unrolled import UnrolledKernel, tiled
from tilec.backends.triton.pointwise.windows import MOST_PADDING, index_forms, window_axes, zero_factors
from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.program import Access, Statement
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
        counts = [c for c in PLACES_AT_ONCE if -(-n // c) * c <= MOST_PADDING * n]
        if found and counts:
            across = space.count(tuple(outputs)) // space.largest(found[-1]) // space.largest(outputs[-1])
            across *= -(-space.largest(outputs[-1]) // TAP_COLUMNS)
            rows = places // n * -(-n // counts[0])
            parts = max(1, min(8 * MULTIPROCESSORS // max(across, 1), -(-rows // (2 * TAP_ROWS))))
            return TapSums(v, found[-1], counts[0], space.largest(found[-1]), parts)
    return None


class TapWriter(UnrolledKernel):
    """The text of the kernel that adds up a share of the places for each tap."""

    def __init__(self, how: TapSums, space: Space, view: StridedView, int64_index: bool):
        self.how, self.whole = how, space
        s = space.statement
        self.tile = fresh_variable(how.across, all_variables(s))
        own = tiled(space, {how.across: (self.tile, how.count)})
        factors = zero_factors(s, view.types)  # each of them reads zeros where a point does not count
        exact = not factors or not all(isinstance(f, Access) for f in factors)
        super().__init__(python_name(s.output) + "_taps", own, view, int64_index, [s] * how.taps, exact)

    def launch(self, flat: Statement, target: str) -> Launch:
        """Partial results go to the tensor `target`, one share after the other."""
        k, how = self.k, self.how
        k.constants = {"BM": TAP_ROWS, "BN": TAP_COLUMNS}
        many = tuple(v for v in self.space.outputs if self.space.largest(v) > 1)
        down, columns = tuple(v for v in many[:-1] if v != how.tap), many[-1:]
        self.rows = tuple(v for v in self.space.reductions if self.space.largest(v) > 1)
        k.assign("across", f"tl.cdiv({k.count(columns)}, BN)")
        k.assign("down", f"{PROGRAM[0]} // across")
        k.decode(Axis("down", down, None))
        self.axis("col", f"({PROGRAM[0]} % across) * BN", columns, "BN")
        self.bind_single(v for v in (*self.space.outputs, *self.space.reductions) if v != how.tap)
        part = k.number("part", "part_size", -(-self.space.count(self.rows) // how.parts))
        k.assign("start", f"{k.program(2)} * {part}")
        k.assign("end", f"tl.minimum(start + {part}, {k.count(self.rows)})")
        self.combine()
        self._store(target)
        tiles = self.space.count(down) * -(-self.space.count(columns) // TAP_COLUMNS)
        return k.launch((tiles, 1, how.parts), 4, 2, flat)

    def loops(self, unrolled: bool) -> Iterator[tuple[str, str, frozenset[str]]]:
        k, across = self.k, self.how.across
        k.scopes.append(Scope())
        self.axis("row", "first", self.rows, "BM", "end")
        yield "first", "range(start, end, BM)", frozenset((*self.rows, "row"))
        if not unrolled:
            k.scopes.append(Scope())
            k.assign("step", "tl.full((), 0, tl.int32) + at_step")
            k.value_of[across] = "step"
            k.axis_of[across] = Axis("step", (across,), None)
            yield "at_step", f"range(0, {self.how.count})", frozenset((across, "step"))

    def terms(self, unrolled: bool) -> Iterable[tuple[int, Statement]]:
        how = self.how
        tile = Affine.variable(self.tile, how.count) + self.whole.low[0][how.across]
        for u in range(how.count) if unrolled else (None,):
            place = tile + u if u is not None else tile + Affine.variable(how.across)
            for n in range(how.taps):
                tap = Affine.of((), self.space.low[0][how.tap] + n)
                yield n, substitute_affine(self.whole.statement, {how.across: place, how.tap: tap})

    def tests(self, frame: Frame) -> list[str]:
        return [frame.spread("row_in", "row")]

    def _store(self, target: str) -> None:
        k, s, how = self.k, self.whole.statement, self.how
        frame = Frame(k, ["col"], {"col": "col_in"})
        for n, a in enumerate(self.sums):
            k.scopes[0].lines += a.reduce(0)
            index = [
                linear(e).substitute({how.tap: Affine.of((), self.space.low[0][how.tap] + n)}) for e in s.index or ()
            ]
            forms = [frame.form(e.to_expr()) for e in index]
            address = frame.part_address(s.output, target, forms, frozenset(frame.axes))
            k.store(address, a.result(), "col_in")
