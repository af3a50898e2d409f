"""Stencils and depthwise convolutions, register-blocked: a program computes neighbours from what they share.

In `O[y, x, c] = +(I[y + j, x + i, c] * K[j, i, c])` neighbours along x read the same elements of I. The loop over i is
written out for eight values of x at once, in which each element of I and K is read, and converted, one time. Any
aggregation of any body will do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilec.backends.common.domain import Condition, access_conditions
from tilec.backends.common.terms import split_factors
from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.emit.contiguity import innermost_index, is_window, transposed_window
from tilec.backends.triton.emit.kernel import Axis, Scope
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.plan.device_info import TWO_A_MULTIPROCESSOR
from tilec.backends.triton.plan.sizes import rounded_up
from tilec.backends.triton.pointwise.unrolled import Computed, Element, OutputsKernel, inside_tile, tiled
from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.program import Access, Expr, Statement, index_variables, value_accesses
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import ITEM_BYTES, NARROW, TensorType, Types, is_floating
from tilec.transforms.util.naming import all_variables, fresh_variable

NEIGHBOURS_AT_ONCE = (8, 7, 6, 5, 4)  # of an axis, in a program
MOST_TAPS = 8  # of the axis that are written out
MOST_TAPS_OF_ROWS, MOST_POINTS_OF_ROWS = 16, 1024  # and points of a window, where whole rows of memory are read
MOST_PADDING = 1.15  # neighbours or columns of blocks over those that there are
LEAST_OUTPUTS = 2**20  # fewer leave multiprocessors idle where each program has so many
FEWER_OUTPUTS, MANY_TAPS = 2**18, 9  # in smaller blocks, of windows of so many points; fewer of larger ones
FEWEST_OUTPUTS = 2**15
SMALLEST_BLOCK, ENOUGH_BLOCKS = 128, TWO_A_MULTIPROCESSOR  # places of a neighbour's; programs that keep a device busy
SMALL_WINDOW = 16  # of a window, up to which blocks have rows of 64
BLOCK_BYTES = 1024  # of one neighbour's block: a thread loads eight at once, and holds eight neighbours in registers
SMALL_KERNEL = 16  # so many times smaller tensors may lie in memory as they will
SUM_WORDS = 64  # registers of a thread for the running values of several statements, at most
MOST_TAP_POINTS = 36  # of all neighbours, up to which all taps of a window are written out
MORE_READS = 1.2  # of four neighbours at once over those of eight


@dataclass(frozen=True)
class RegisterBlock:
    """`count` neighbours along the output variable `across`, `taps` values of the summed variable written out, of
    `groups` one after the other."""

    across: str
    tap: str
    count: int
    taps: int
    groups: int = 1


def window_axes(space: Space) -> tuple[list[str], list[str]] | None:
    """Output and summed variables of more than one value, of a statement whose sums may be spread over neighbours: one
    class of points, nothing by default, two outputs or more."""
    outputs = [v for v in space.outputs if space.largest(v) > 1]
    reductions = [v for v in space.reductions if not space.single(v)]
    spread = len(space.classes) == 1 and not space.residues and space.statement.default is None
    return (outputs, reductions) if spread and len(outputs) >= 2 and reductions else None


def neighbour_counts(n: int) -> list[int]:
    """How many neighbours of n are written out at once, most first, where tiles of so many waste little."""
    return [c for c in NEIGHBOURS_AT_ONCE if rounded_up(n, c) <= MOST_PADDING * n]


def index_forms(space: Space) -> list[Affine] | None:
    """Every index that the statement reads at; None where one is not affine with integers."""
    s = space.statement
    forms = [linear(e) for a in value_accesses(s) for e in a.index]
    return forms if all(form.is_affine and form.is_integral for form in forms) else None


def choose_register_block(space: Space, view: StridedView) -> RegisterBlock | None:
    """The axis of a window that overlaps itself, where there is enough work beside; None elsewhere."""
    found = window_axes(space)
    if found is None:
        return None
    outputs, reductions = found
    points = space.count(tuple(reductions))
    of_rows = reads_rows(space, view, outputs[-1])
    fits = is_window(space, reductions) or (of_rows and points <= MOST_POINTS_OF_ROWS)
    if 32 > MOST_PADDING * space.largest(outputs[-1]):
        return None
    if not fits or transposed_window(space, view, outputs) is not None:
        return None
    most_taps = MOST_TAPS_OF_ROWS if of_rows else MOST_TAPS
    forms = index_forms(space)
    if forms is None:
        return None
    for v in reversed(outputs[:-1]):
        beside = {w for f in forms if v in f.variables() for w in f.variables() if w in reductions}
        long = [w for w in reductions if of_rows and not is_symbolic(space.largest(w))]
        best = [w for w in reductions if w in beside and (w in long or space.largest(w) <= most_taps)]
        if best and any(_overlaps(f, v, best[-1], space) for f in forms):
            n = space.largest(v)
            counts = neighbour_counts(n)
            fewer_outputs = max(FEWER_OUTPUTS * MANY_TAPS // max(points, MANY_TAPS), FEWEST_OUTPUTS)
            least = min(LEAST_OUTPUTS, fewer_outputs) if points >= MANY_TAPS else LEAST_OUTPUTS
            if counts and space.count(tuple(outputs)) >= least:
                values = space.largest(best[-1])
                groups = 1 if values <= most_taps else -(-values // MOST_TAPS)
                taps = -(-values // groups)
                step = min(
                    abs(f.coefficient(v) / f.coefficient(best[-1])) for f in forms if _overlaps(f, v, best[-1], space)
                )
                few, many = ((step * (c - 1) + taps) / c for c in (NEIGHBOURS_AT_ONCE[-1], counts[0]))
                fewer = NEIGHBOURS_AT_ONCE[-1] in counts and few < MORE_READS * many
                return RegisterBlock(v, best[-1], NEIGHBOURS_AT_ONCE[-1] if fewer else counts[0], taps, groups)
    return None


def is_small_window(space: Space) -> bool:
    """Whether an element is few terms of neighbours along which memory runs, such as a filter of one channel: what is
    read once is worth more then than blocks of rows and columns, each of which reads all of a window."""
    found = window_axes(space)
    if found is None or space.count(tuple(found[1])) > SMALL_WINDOW:
        return False
    moved = [a for a in value_accesses(space.statement) if any(linear(e).bare is None for e in a.index)]
    return bool(moved) and all(found[0][-1] in index_variables(*a.index) for a in moved)


def reads_rows(space: Space, view: StridedView, last: str) -> bool:
    """Whether memory runs along an output variable in all large tensors that are read along it; the rest is the same
    for a row (a kernel, the cotangent of a correlation)."""
    read = {a for a in value_accesses(space.statement) if last in index_variables(*a.index)}
    sizes = {a: view.types[a.tensor].numel for a in read}
    large = [a for a in read if SMALL_KERNEL * sizes[a] >= max(sizes.values())]
    moved = [innermost_index(a, view.strides[a.tensor], space.largest) for a in large]
    return bool(moved) and all(found is not None and last in found[1] for found in moved)


def _overlaps(form: Affine, v: str, tap: str, space: Space) -> bool:
    """Whether neighbours along v read some of the same elements."""
    step, move = form.coefficient(v), form.coefficient(tap)
    return bool(step and move) and abs(step) < abs(move) * space.largest(tap) and step % move == 0


class RegisterBlockWriter(OutputsKernel):
    """The text of one kernel: rows are tiles of neighbours and what is beside them, columns run along memory."""

    def __init__(self, block: RegisterBlock, computed: Sequence[Computed], view: StridedView):
        self.block, self.computed, self.whole = block, computed, computed[0].space
        across, count, space = block.across, block.count, self.whole
        statements = [r.space.statement for r in computed]
        used = {v for s in statements for v in all_variables(s)}
        self.tile = fresh_variable(across, used)
        self.group = fresh_variable(block.tap, {*used, self.tile}) if block.groups > 1 else None
        groups = {} if self.group is None else {block.tap: (self.group, block.taps)}
        own = tiled(space, {across: (self.tile, count), **groups})
        extent = space.extent[0][across]
        limits = [(inside_tile(self.tile, count, u, extent),) for u in range(count)]
        elements = [Element(self.at(s, u, None), limits[u], n) for u in range(count) for n, s in enumerate(statements)]
        exact = not all(_may_read_zeros(r.space, view.types) for r in computed)
        exact |= block.groups * block.taps > space.largest(block.tap) and not all(
            _reads_zeros_beyond(r.space, block.tap, view.types) for r in computed
        )
        super().__init__(own, view, elements, computed, exact)
        columns = space.largest(self.columns[-1])
        few = space.count(tuple(v for v in space.reductions if not space.single(v))) <= SMALL_WINDOW
        long_rows = few and -(-columns // 64) * 64 <= MOST_PADDING * columns
        places = block_places(statements, view.types, count)
        while places > SMALLEST_BLOCK and space.count(space.outputs) < ENOUGH_BLOCKS * count * places:
            places //= 2
        if (
            few
            and columns % 2
            and places > SMALLEST_BLOCK
            and all(view.types[s.output].dtype in NARROW for s in statements)
        ):
            places //= 2  # single elements: depthwise 3 x 3 of 87 channels 29 us, 34 in larger ones (H100)
        self.fit(places, 64 if long_rows else 32)

    def loops(self, unrolled: bool) -> Iterator[tuple[str, str, frozenset[str]]]:
        k, space, tap = self.k, self.space, self.block.tap
        around = tuple(v for v in space.reductions if not space.single(v) and v != tap)
        for name, variables in (("window", around), ("red", () if unrolled else (tap,))):
            if variables:
                k.scopes.append(Scope())
                k.assign(name, f"tl.full((), 0, {'tl.int64' if k.int64_index else 'tl.int32'}) + at_{name}")
                k.decode(Axis(name, variables, None))
                n = space.count(variables)
                points = n * self.block.count * self.block.taps
                whole = self.exact and not is_symbolic(n) and points <= MOST_TAP_POINTS
                over = f"tl.static_range(0, {n})" if whole else f"range(0, {k.count(variables)})"
                yield f"at_{name}", over, frozenset((*variables, name))

    def terms(self, unrolled: bool) -> Iterable[tuple[int, Statement]]:
        block, many = self.block, len(self.computed)
        places = [(u, n) for u in range(block.count) for n in (range(block.taps) if unrolled else (None,))]
        return [
            (u * many + k, self.at(r.space.statement, u, n))
            for u, n in sorted(places, key=self._place)
            for k, r in enumerate(self.computed)
        ]

    def _place(self, term: tuple[int, int | None]) -> tuple[int, int]:
        """The order of terms: by the place that they read, so that what is read is let go of."""
        u, n = term
        forms = index_forms(self.whole) or []
        step, move = next(
            (int(f.coefficient(self.block.across)), int(f.coefficient(self.block.tap)))
            for f in forms
            if f.coefficient(self.block.across) and f.coefficient(self.block.tap)
        )
        return step * u + move * (n or 0), u

    def at(self, s: Statement, u: int, n: int | None) -> Statement:
        """A statement at neighbour u, and at tap n where it is written out."""
        block = self.block
        change = {block.across: Affine.variable(self.tile, block.count) + (self.whole.low[0][block.across] + u)}
        first = Affine.of((), self.whole.low[0][block.tap])
        if self.group is not None:
            first += Affine.variable(self.group, block.taps)
        if n is not None:
            change[block.tap] = first + n
        elif self.group is not None:
            change[block.tap] = first + Affine.variable(block.tap)
        return substitute_affine(s, change)


def block_places(statements: Sequence[Statement], types: Types, count: int) -> int:
    """Elements of one neighbour's block, of so many; fewer where registers hold no more. Counts take what the floats
    beside them do."""
    dtypes = [types[s.output].dtype for s in statements]
    places = max(BLOCK_BYTES // max(ITEM_BYTES[d] for d in [d for d in dtypes if is_floating(d)] or dtypes), 64)
    while len(statements) > 1 and places > 128 and registers_of(statements, types) * count * places > SUM_WORDS * 128:
        places //= 2
    return places


def registers_of(statements: Sequence[Statement], types: Types) -> int:
    """Registers of the running values of an element each."""
    sums = [Accumulator.of(s.aggregation, types[s.output].dtype) for s in statements]
    return sum(-(-ITEM_BYTES[a.dtype] // 4) * len(a.state) for a in sums)


def zero_factors(s: Statement, types: Mapping[str, TensorType]) -> Sequence[Expr]:
    """The factors of a floating product of which a sum without conditions of its own adds up; none for others."""
    if s.aggregation != "sum" or s.guard is not None or s.constraints or not is_floating(types[s.output].dtype):
        return ()
    split = split_factors(s.body, types)
    return () if split is None or not math.isfinite(split[1]) else split[0]


def _may_read_zeros(space: Space, types: Mapping[str, TensorType]) -> bool:
    """Whether a point that does not count is one at which a factor of a floating product is read as zero."""
    factors = zero_factors(space.statement, types)
    read = {c for f in factors if isinstance(f, Access) for c in access_conditions(f, types)}
    return bool(space.valid) and set(space.valid) <= read and len(factors) > 1


def _reads_zeros_beyond(space: Space, tap: str, types: Types) -> bool:
    """Whether a factor is an element at the tap itself, so that it is read as zero beyond the last one."""
    own = (f for f in zero_factors(space.statement, types) if isinstance(f, Access))
    last = Condition(Affine.variable(tap), space.low[0][tap] + space.extent[0][tap])
    return any(last in access_conditions(f, types) for f in own)
