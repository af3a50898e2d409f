"""Weight gradients of depthwise convolutions: sums over all positions of a window for each of its taps.

In `DK[j, i, c] = +(D[n, y, x, c] * I[n, y + j, x + i, c])` taps that differ in i read the same elements a place apart.
A program takes all taps along i, or eight of them or so, and a share of the places, eight neighbours along x at once,
in which each element of D and I is read, and converted, one time. The shares are combined in order by a second launch.

Zeros that are read outside are treated as in `windows.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from tilec.backends.common.code import python_name
from tilec.backends.common.domain import access_conditions, point_conditions
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Axis, Scope, all_text
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.backends.triton.plan.plan import Launch
from tilec.backends.triton.plan.source import PROGRAM
from tilec.backends.triton.pointwise.unrolled import UnrolledKernel, inside_tile, tiled
from tilec.backends.triton.pointwise.windows import index_forms, neighbour_counts, reads_rows, window_axes, zero_factors
from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.program import Access, Statement, index_variables
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import Types
from tilec.transforms.util.naming import all_variables, fresh_variable

MOST_TAPS_AT_ONCE = 8
LEAST_PLACES = 2**13  # fewer are soon added up as they are
TAP_ROWS, TAP_COLUMNS = 16, 32  # of a block


@dataclass(frozen=True)
class TapSums:
    """`count` neighbours along the summed variable `across`, `taps` values of the output variable `tap` together, in
    `groups` if there are more; blocks along the output variable `column`; `parts` shares of the places."""

    across: str
    tap: str
    column: str
    count: int
    taps: int
    groups: int
    parts: int


def tap_sums(space: Space, view: StridedView) -> TapSums | None:
    """How such sums are spread; None where a statement is none."""
    axes = window_axes(space)
    if axes is None:
        return None
    outputs, reductions = axes
    places = space.count(tuple(reductions))
    forms = index_forms(space)
    if forms is None or places < LEAST_PLACES or not space.covers:
        return None
    long = [v for v in reversed(outputs) if space.largest(v) >= TAP_COLUMNS]
    rows = [v for v in long if reads_rows(space, view, v)]
    last = [v for v in long if v == outputs[-1]]
    for most, columns in ((MOST_TAPS_AT_ONCE, [*rows, *last]), (places, rows)):
        for column, v in product(dict.fromkeys(columns), reversed(reductions)):
            beside = {w for f in forms if v in f.variables() for w in f.variables()} - {column}
            found = [w for w in outputs if w in beside and 1 < space.largest(w) <= most]
            if most > MOST_TAPS_AT_ONCE and any(is_symbolic(space.largest(w)) for w in found):
                continue  # groups are written out
            n = space.largest(v)
            counts = neighbour_counts(n)
            if found and counts:
                many = space.largest(found[-1])
                groups = -(-many // MOST_TAPS_AT_ONCE)
                across = groups * space.count(tuple(outputs)) // many // space.largest(column)
                across *= -(-space.largest(column) // TAP_COLUMNS)
                steps = places // n * -(-n // counts[0])
                parts = max(1, min(8 * MULTIPROCESSORS // max(across, 1), -(-steps // (2 * TAP_ROWS))))
                return TapSums(v, found[-1], column, counts[0], -(-many // groups), groups, parts)
    return None


class TapWriter(UnrolledKernel):
    """The text of the kernel that adds up a share of the places for each tap."""

    def __init__(self, how: TapSums, space: Space, view: StridedView):
        self.how, self.whole = how, space
        s = space.statement
        self.tile = fresh_variable(how.across, all_variables(s))
        self.group = fresh_variable(how.tap, {*all_variables(s), self.tile}) if how.groups > 1 else None
        groups = {} if self.group is None else {how.tap: (self.group, how.taps)}
        own = tiled(space, {how.across: (self.tile, how.count), **groups})
        rows = {how.across if v == self.tile else v for v in own.reductions if own.largest(v) > 1}
        exact = not _reads_zeros(space, view.types, how.across, rows)
        super().__init__(python_name(s.output) + "_taps", own, view, [s] * how.taps, exact)

    def launch(self, flat: Statement, target: str) -> Launch:
        """Partial results go to the tensor `target`, one share after the other."""
        k, how = self.k, self.how
        k.constants = {"BM": TAP_ROWS, "BN": TAP_COLUMNS}
        many = tuple(v for v in self.space.outputs if self.space.largest(v) > 1)
        down, columns = tuple(v for v in many if v not in (how.tap, how.column)), (how.column,)
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
                yield n, substitute_affine(self.whole.statement, {how.across: place, how.tap: self._tap(n)})

    def _tap(self, n: int) -> Affine:
        """The n-th tap of a program's."""
        first = Affine.of((), self.whole.low[0][self.how.tap] + n)
        return first if self.group is None else first + Affine.variable(self.group, self.how.taps)

    def tests(self, frame: Frame) -> list[str]:
        return [frame.spread("row_in", "row")]

    def _store(self, target: str) -> None:
        k, s, how = self.k, self.whole.statement, self.how
        frame = Frame(k, ["col"], {"col": "col_in"})
        for n, a in enumerate(self.sums):
            k.scopes[0].lines += a.reduce(0)
            forms = [frame.form(linear(e).substitute({how.tap: self._tap(n)}).to_expr()) for e in s.index or ()]
            address = frame.part_address(s.output, target, forms, frozenset(frame.axes))
            inside = []
            if self.group is not None:
                limit = inside_tile(self.group, how.taps, n, self.whole.extent[0][how.tap])
                inside = frame.tests(point_conditions((), (limit,), self.view.types))
            k.store(address, a.result(), all_text(["col_in", *inside]))


def _reads_zeros(space: Space, types: Types, across: str, rows: Collection[str]) -> bool:
    """Whether a factor of a floating product is read as zero at each point that does not count: where a condition fails
    of which the others do not tell, beyond the last tile along `across`, and beyond the last of all `rows`."""
    s, box = space.statement, space.box(0)
    factors = zero_factors(s, types)
    read = [f for f in factors if isinstance(f, Access)]
    told = {c for f in read for c in access_conditions(f, types)}
    asked = {
        c
        for c in point_conditions(s.roots, s.constraints, types)
        if c not in told and (across in c.form.variables() or not box.holds(c))
    }
    walked = any(not set(rows).isdisjoint(index_variables(*f.index)) for f in read)
    return walked and not asked and len(read) == len(factors)
