"""Weight gradients of depthwise convolutions: sums over all positions of a window for each of its taps.

In `DK[j, i, c] = +(D[n, y, x, c] * I[n, y + j, x + i, c])` taps that differ in i read the same elements a place apart.
A program takes all taps along i, or eight of them or so, and a share of the places, eight neighbours along x at once,
in which each element of D and I is read, and converted, one time. Where memory runs along x (`D[n, c, y, x]`), a block
has many of these places side by side, and each tap its sums in each of them. The shares are combined in order by a
second launch.

Zeros that are read outside are treated as in `windows.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from tilec.backends.common.code import python_name
from tilec.backends.common.domain import access_conditions, point_conditions
from tilec.backends.triton.emit.contiguity import innermost_index
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Axis, Scope, all_text
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.backends.triton.plan.plan import Launch
from tilec.backends.triton.plan.sizes import filled_block, power_of_two
from tilec.backends.triton.plan.source import PROGRAM
from tilec.backends.triton.pointwise.unrolled import UnrolledKernel, inside_tile, tiled
from tilec.backends.triton.pointwise.windows import index_forms, neighbour_counts, reads_rows, window_axes, zero_factors
from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.program import Access, Statement, index_variables, value_accesses
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import Types
from tilec.transforms.util.naming import all_variables, fresh_variable

MOST_TAPS_AT_ONCE = 8
LEAST_PLACES = 2**13  # fewer are soon added up as they are
FEWER_PLACES, MANY_TERMS = 2**10, 2**22  # unless there are so many outputs, terms of all
TAP_ROWS, TAP_COLUMNS = 16, 32  # of a block
LEAST_PLACES_ALONG, MOST_PLACES_ALONG = 16, 128  # along memory; of a block
ALONG_BLOCK = 256  # places of a block of rows along memory, beside those that are written out
ALONG_PROGRAMS = 16 * MULTIPROCESSORS  # registers leave room for a fourth of them at a time
MOST_TAPS_ALONG = 32  # more are columns of a product
LEAST_TAP_POINTS = 2**20  # points of such sums


@dataclass(frozen=True)
class TapSums:
    """`count` neighbours along the summed variable `across`, `taps` values of the output variable `tap` together, in
    `groups` if there are more; blocks along the output variable `column`, or, where there is none, of `lanes` values of
    the summed variable `along`, which may be `across` itself; `parts` shares of the places."""

    across: str
    tap: str
    column: str | None
    count: int
    taps: int
    groups: int
    parts: int
    along: str | None = None
    lanes: int = 1

    @property
    def written_out(self) -> bool:
        """Whether the neighbours are points of their own, not those of a block."""
        return self.along != self.across


def tap_sums(space: Space, view: StridedView) -> TapSums | None:
    """How such sums are spread; None where a statement is none."""
    axes = window_axes(space)
    if axes is None:
        return None
    outputs, reductions = axes
    places = space.count(tuple(reductions))
    forms = index_forms(space)
    if forms is None or not space.covers:
        return None
    enough = places >= FEWER_PLACES and places * space.count(tuple(outputs)) >= MANY_TERMS
    if places < LEAST_PLACES and not enough:
        return _sums_along(space, view, forms)
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
    return _sums_along(space, view, forms)


def _sums_along(space: Space, view: StridedView, forms: Sequence[Affine]) -> TapSums | None:
    """The same of sums along memory, of enough points."""
    outputs, reductions = window_axes(space) or ((), ())
    places, count = space.count(tuple(reductions)), space.count(tuple(outputs))
    along = next((v for v in reductions if _runs_along(v, space, view)), None)
    if along is None or any(is_symbolic(space.largest(v)) for v in (*outputs, along)):
        return None
    if space.largest(along) < LEAST_PLACES_ALONG or places * count < LEAST_TAP_POINTS:
        return None
    lanes = filled_block(space.largest(along), min(power_of_two(space.largest(along)), MOST_PLACES_ALONG), TAP_COLUMNS)
    for v in [*(v for v in reversed(reductions) if v != along), along]:
        taps = [w for f in forms if v in f.variables() for w in f.variables() if w in outputs and space.largest(w) > 1]
        n = space.largest(v)
        counts = [lanes] if v == along else neighbour_counts(n)
        if not taps or not counts or space.largest(taps[-1]) > MOST_TAPS_ALONG:
            continue
        many, rows = space.largest(taps[-1]), 1 if v == along else -(-n // counts[0])
        groups = -(-many // MOST_TAPS_AT_ONCE)
        around = places // space.largest(along) // (1 if v == along else n)
        steps = -(-around * rows * -(-space.largest(along) // lanes) * lanes // ALONG_BLOCK)
        parts = max(1, min(ALONG_PROGRAMS // max(groups * count // many, 1), steps // 2))
        return TapSums(v, taps[-1], None, counts[0], -(-many // groups), groups, parts, along, lanes)
    return None


def _runs_along(v: str, space: Space, view: StridedView) -> bool:
    """Whether all that is read along a summed variable lies so in memory, two tensors or more."""
    read = {a for a in value_accesses(space.statement) if v in index_variables(*a.index)}
    moved = [innermost_index(a, view.strides[a.tensor], space.largest) for a in read]
    return len(read) > 1 and all(found is not None and v in index_variables(found[0]) for found in moved)


class TapWriter(UnrolledKernel):
    """The text of the kernel that adds up a share of the places for each tap."""

    def __init__(self, how: TapSums, space: Space, view: StridedView):
        self.how, self.whole = how, space
        s = space.statement
        self.tile = fresh_variable(how.across, all_variables(s))
        self.group = fresh_variable(how.tap, {*all_variables(s), self.tile}) if how.groups > 1 else None
        groups = {} if self.group is None else {how.tap: (self.group, how.taps)}
        tiles = {how.across: (self.tile, how.count), **groups}
        if how.along is not None and how.written_out:
            self.beside = fresh_variable(
                how.along, {*all_variables(s), self.tile, *([self.group] if self.group else ())}
            )
            tiles[how.along] = (self.beside, how.lanes)
        own = tiled(space, tiles)
        named = {tile: v for v, (tile, _) in tiles.items()}
        rows = {named.get(v, v) for v in own.reductions if own.largest(v) > 1}
        exact = not _reads_zeros(space, view.types, {how.across, *([how.along] if how.along else ())}, rows)
        super().__init__(python_name(s.output) + "_taps", own, view, [s] * how.taps, exact)

    def launch(self, flat: Statement, target: str) -> Launch:
        """Partial results go to the tensor `target`, one share after the other."""
        k, how = self.k, self.how
        many = tuple(v for v in self.space.outputs if self.space.largest(v) > 1)
        down = tuple(v for v in many if v not in (how.tap, how.column))
        self.rows = tuple(v for v in self.space.reductions if self.space.largest(v) > 1)
        tiles = self.space.count(down)
        if how.along is not None:
            rows = min(power_of_two(self.space.count(self.rows)), ALONG_BLOCK // how.lanes)
            k.constants = {"BM": rows, "BN": how.lanes}
            k.assign("down", PROGRAM[0])
            k.decode(Axis("down", down, None))
            self.axis("col", "0", (how.along,), "BN")
        else:
            columns = () if how.column is None else (how.column,)
            k.constants = {"BM": TAP_ROWS, "BN": TAP_COLUMNS}
            k.assign("across", f"tl.cdiv({k.count(columns)}, BN)")
            k.assign("down", f"{PROGRAM[0]} // across")
            k.decode(Axis("down", down, None))
            self.axis("col", f"({PROGRAM[0]} % across) * BN", columns, "BN")
            tiles *= -(-self.space.count(columns) // TAP_COLUMNS)
        self.bind_single(v for v in (*self.space.outputs, *self.space.reductions) if v != how.tap)
        part = k.number("part", "part_size", -(-self.space.count(self.rows) // how.parts))
        k.assign("start", f"{k.program(2)} * {part}")
        k.assign("end", f"tl.minimum(start + {part}, {k.count(self.rows)})")
        self.combine()
        self._store(target)
        return k.launch((tiles, 1, how.parts), 4, 2, flat)

    def loops(self, unrolled: bool) -> Iterator[tuple[str, str, frozenset[str]]]:
        k, across = self.k, self.how.across
        k.scopes.append(Scope())
        self.axis("row", "first", self.rows, "BM", "end")
        yield "first", "range(start, end, BM)", frozenset((*self.rows, "row"))
        if not unrolled and self.how.written_out:
            k.scopes.append(Scope())
            k.assign("step", "tl.full((), 0, tl.int32) + at_step")
            k.value_of[across] = "step"
            k.axis_of[across] = Axis("step", (across,), None)
            yield "at_step", f"range(0, {self.how.count})", frozenset((across, "step"))

    def terms(self, unrolled: bool) -> Iterable[tuple[int, Statement]]:
        how = self.how
        tile = Affine.variable(self.tile, how.count) + self.whole.low[0][how.across]
        beside = {}
        if how.along is not None and how.written_out:
            first = Affine.variable(self.beside, how.lanes) + self.whole.low[0][how.along]
            beside[how.along] = first + Affine.variable(how.along)
        for u in range(how.count) if unrolled and how.written_out else (None,):
            place = tile + u if u is not None else tile + Affine.variable(how.across)
            for n in range(how.taps):
                yield n, substitute_affine(self.whole.statement, {how.across: place, how.tap: self._tap(n), **beside})

    def _tap(self, n: int) -> Affine:
        """The n-th tap of a program's."""
        first = Affine.of((), self.whole.low[0][self.how.tap] + n)
        return first if self.group is None else first + Affine.variable(self.group, self.how.taps)

    def tests(self, frame: Frame) -> list[str]:
        return [frame.spread("row_in", "row")]

    def _store(self, target: str) -> None:
        k, s, how = self.k, self.whole.statement, self.how
        axes = {} if how.along is not None else {"col": "col_in"}
        frame = Frame(k, [*axes], axes)
        for n, a in enumerate(self.sums):
            k.scopes[0].lines += [*(a.reduce(1) if how.along is not None else ()), *a.reduce(0)]
            forms = [frame.form(linear(e).substitute({how.tap: self._tap(n)}).to_expr()) for e in s.index or ()]
            address = frame.part_address(s.output, target, forms, frozenset(frame.axes))
            inside = []
            if self.group is not None:
                limit = inside_tile(self.group, how.taps, n, self.whole.extent[0][how.tap])
                inside = frame.tests(point_conditions((), (limit,), self.view.types))
            k.store(address, a.result(), all_text([*axes.values(), *inside]) or None)


def _reads_zeros(space: Space, types: Types, in_tiles: Collection[str], rows: Collection[str]) -> bool:
    """Whether a factor of a floating product is read as zero at each point that does not count: where a condition fails
    of which the others do not tell, beyond the last tile of those of `in_tiles`, and beyond the last of all `rows`."""
    s, box = space.statement, space.box(0)
    factors = zero_factors(s, types)
    read = [f for f in factors if isinstance(f, Access)]
    told = {c for f in read for c in access_conditions(f, types)}
    asked = {
        c
        for c in point_conditions(s.roots, s.constraints, types)
        if c not in told and (not set(in_tiles).isdisjoint(c.form.variables()) or not box.holds(c))
    }
    walked = any(not set(rows).isdisjoint(index_variables(*f.index)) for f in read)
    return walked and not asked and len(read) == len(factors)
