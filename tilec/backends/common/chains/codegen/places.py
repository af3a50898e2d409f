"""What a program of a chain's kernel has: its block of rows or columns, and what it reads there."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from tilec.backends.common.blocks.builder import Builder
from tilec.backends.common.blocks.ir import Load, Op, Store, Value, every_operation
from tilec.backends.common.chains.chain import ChainKernel, Inner, RowStatement, feature_block
from tilec.backends.common.chains.codegen.emit import Emitter, Masking
from tilec.backends.common.chains.codegen.walk import is_falling, is_rising
from tilec.backends.common.chains.values import NARROWEST_ROW
from tilec.backends.common.code import python_name
from tilec.ir.functions import without_casts
from tilec.ir.index import Affine, linear, replace_indices
from tilec.ir.program import Access, Call, Expr, accesses_in, walk
from tilec.ir.rational import as_fraction
from tilec.ir.types import NARROW, Types

WALKED_TOGETHER = 16  # elements of a batch whose programs begin side by side
MULTIPROCESSORS_AT_ONCE, WARPS_OF_TWO_A_MULTIPROCESSOR = 132, 4
FEW_PROGRAMS = 1056  # of which the last count: four waves of two a multiprocessor
# of one block that is not cut for less than three eighths of it: kernels of such whole blocks have a form of their own
WHOLE_FEATURES, LEAST_EMPTY = 128, 3 / 8
# the same of kernels of several products in 16 bits into one sum: these are smaller then
LEAST_EMPTY_OF_ONE_SUM = 1 / 4
COLUMNS_OF_A_BLOCK = 16  # of features, for which another block beside is worth it
# multiples of so many features lie in two blocks: others came out wrong on an H200 with Triton 3.6
BLOCKED_FEATURES = 8
BFLOAT16_PARTS = {"tf32x3": 3, "tf32": 2}  # of a float32 operand, by the precision of float32 products


@dataclass(frozen=True)
class Tiling:
    """Sizes of the blocks that programs have and of those that they walk. `precision`: of products of float32. `boxed`:
    operands come by tensor maps where they can. `tiles`: blocks that a program has one after the other. `one_loop`:
    walks of masked blocks and others may be one loop. `resident`: how many programs at once the registers of a
    multiprocessor shall have room for; 0 leaves that to the compiler."""

    block: int = 64
    step: int = 64
    warps: int = 4
    stages: int = 2
    precision: str = "tf32x3"
    boxed: bool = True
    tiles: int = 1
    one_loop: bool = True
    resident: int = 0


def feature_blocks(extent: int, most: int = 3, least_empty: float = LEAST_EMPTY) -> tuple[int, ...]:
    """At most so many blocks whose lengths are powers of two, side by side, that hold so many features: 192 are 128 and
    64, 216 are 128, 64 and 32; one where more of them do not save enough columns each."""
    extent = int(extent)  # not left open: axes are named after it, and masks hold it
    whole, found = feature_block(extent), _cut(extent, 0)
    small = whole == WHOLE_FEATURES and whole - sum(found) < least_empty * whole
    return (whole,) if small or extent % BLOCKED_FEATURES or len(found) > most else found


def blocks_in(kernel: ChainKernel, extent: int) -> tuple[int, ...]:
    """The blocks that so many features of a kernel lie in. Kernels of one product into a mixture have a form of their
    own, which has no room for three. In others blocks of up to 64 are whole: a product of 16 columns takes as long."""
    dtypes = [i.dtype for i in kernel.inners.values() if i.left is not None]
    one = sum(r.target.feature is not None for r in kernel.targets) == 1 and {*dtypes} <= {*NARROW}
    if len(dtypes) < 2:
        return feature_blocks(extent, 2)
    if (whole := feature_block(extent)) < WHOLE_FEATURES:
        return (whole,)
    return feature_blocks(extent, 3, LEAST_EMPTY_OF_ONE_SUM if one else LEAST_EMPTY)


def _cut(extent: int, gain: int) -> tuple[int, ...]:
    """`gain`: columns that blocks must save beside what each is worth."""
    whole = feature_block(extent)
    if whole in (16, extent):
        return (whole,)
    found = (whole // 2, *_cut(extent - whole // 2, 1))
    return found if sum(found) + COLUMNS_OF_A_BLOCK * (len(found) - 1) + gain <= whole else (whole,)


def padded_features(kernel: ChainKernel, extent: int) -> int:
    """How many features the blocks of so many have."""
    return sum(blocks_in(kernel, extent))


def size_name(v: str) -> str:
    """The argument that is a variable's extent."""
    return python_name(f"n_{v}")


def tensors_of(e: Expr) -> list[str]:
    return [a.tensor for a in accesses_in(e)]


def in_one_block(kernel: ChainKernel, step: int) -> bool:
    """Whether blocks of so many hold all that programs walk: nothing is carried then."""
    return (
        kernel.looped is not None and not (kernel.elementwise or kernel.walked) and kernel.extent[kernel.looped] <= step
    )


class Places:
    """Positions, loads and inner sums of one kernel, and the values of rows that come first."""

    def __init__(self, kernel: ChainKernel, types: Types, tiling: Tiling):
        self.kernel, self.types, self.tiling = kernel, types, tiling
        axes = dict.fromkeys(kernel.blocked, tiling.block)
        if kernel.looped is not None:
            axes[kernel.looped] = tiling.step
        if kernel.on_both_sides:  # of which a program has all, whatever a tiling says
            axes = {v: feature_block(kernel.extent[v]) for v in axes}
        self.extent = dict(kernel.extent)
        self.features: dict[str, int] = {}  # axis of a block of features -> how many there are in all
        self.starts: dict[str, int] = {}
        extents = [i.extent for i in kernel.inners.values() if i.left is not None]
        self.summed = {r.feature: self._width(r) for r in kernel.rows if r.feature is not None}
        extents += [kernel.extent[r.target.feature] for r in kernel.targets if r.target.feature and not r.unrolled]
        for n in [*extents, *self.summed.values()]:
            for axis, start, block in _feature_axes(kernel, n):
                self.features[axis], self.starts[axis], axes[axis] = n, start, block
        self._in_exponents = {x for e in kernel.exponents for x in walk(e) if isinstance(x, Call)}
        self.b = Builder(axes)
        self.axes = axes
        shared = [set(r.target.bounds) for r in kernel.targets]
        self.bounds = sorted(set.intersection(*shared), key=repr)
        self.row: dict[str, Value] = {}  # final values of targets without features
        self.seen: dict[tuple, int] = {}
        self.tiles: dict[str, Value] = {}
        self._emitters: dict[tuple, Emitter] = {}
        self._parts: dict[tuple[Access, str, int | str], Expr] = {}

    def size(self, v: str) -> Value:
        return self.b.size(size_name(v), self.extent[v])

    def _positions(self) -> dict[str, Value]:
        """Of the variables that a program has: its number taken apart."""
        b, kernel = self.b, self.kernel
        rest = self._program()
        found: dict[str, Value] = {v: b.number(0) for v, n in self.extent.items() if n == 1}
        self.ends: dict[str, tuple[Value, Value]] = {v: (z, z) for v, z in found.items()}
        blocked, many = list(kernel.blocked), [v for v in kernel.batch if self.extent[v] > 1]
        falling = kernel.looped is not None and is_falling(self.bounds, kernel.looped, blocked)
        rising = kernel.looped is not None and is_rising(self.bounds, kernel.looped, blocked)
        # walks that begin in one place share what they read; others need the caches to hold all of it
        programs = self._programs() if rising else 0
        side_by_side = (falling or rising and programs <= FEW_PROGRAMS) and len(blocked) == 1 and bool(many)
        for v in reversed(blocked):
            n, block = self.size(v), b.number(self.axes[v])
            tiles = (n + (self.axes[v] - 1)) // block
            if self.tiling.tiles > 1:
                each = b.number(self.tiling.tiles)
                several = (tiles + (self.tiling.tiles - 1)) // each
                first = rest % several * each
                rest = b.apply("floordiv", rest, several, hint="rest")
                self.several = first, b.apply("smaller", first + each, tiles)
                continue
            if side_by_side:
                tile, rest = self._longest_first(rest, tiles, many)
            else:
                tile = b.apply("rest", rest, tiles, hint="tile")
                rest = b.apply("floordiv", rest, tiles, hint="rest")
            if falling:
                tile = b.apply("sub", tiles - 1, tile, hint="tile")
            found[v] = self._in_tile(v, tile)
        for v in reversed(many):
            if v == many[0]:
                found[v] = rest
            else:
                found[v] = b.apply("rest", rest, self.size(v), hint=v)
                rest = b.apply("floordiv", rest, self.size(v), hint="rest")
            self.ends[v] = found[v], found[v]
        return found

    def _program(self) -> Value:
        """Its number. Where all programs run at once, two a multiprocessor, and have triangles to walk, a
        multiprocessor's second one has the shorter walk the longer its first one has."""
        b, kernel = self.b, self.kernel
        number = b.program()
        looped, blocked = kernel.looped, kernel.blocked
        if looped is None or self.tiling.warps > WARPS_OF_TWO_A_MULTIPROCESSOR or len(blocked) != 1:
            return number
        if not (is_falling(self.bounds, looped, blocked) or is_rising(self.bounds, looped, blocked)):
            return number
        programs = self._programs()
        if not MULTIPROCESSORS_AT_ONCE < programs <= 2 * MULTIPROCESSORS_AT_ONCE:
            return number
        tiles = (self.size(blocked[0]) + (self.axes[blocked[0]] - 1)) // b.number(self.axes[blocked[0]])
        for v in (v for v in kernel.batch if self.extent[v] > 1):
            tiles = tiles * self.size(v)
        turned = (tiles + (MULTIPROCESSORS_AT_ONCE - 1)) - number
        return b.apply("select", number < MULTIPROCESSORS_AT_ONCE, number, turned)

    def _in_tile(self, v: str, tile: Value) -> Value:
        """Positions of a variable in one of its blocks."""
        b, n = self.b, self.size(v)
        self.tiles[v] = tile
        start = b.apply("mul", tile, b.number(self.axes[v]), hint="start")
        found = b.apply("add", start, b.positions(v), hint=v)
        last = b.apply("smaller", start + (self.axes[v] - 1), n - 1)
        self.ends[v] = start, last
        return found

    def _programs(self) -> int:
        grid = math.prod(self.extent[v] for v in self.kernel.batch)
        tiles = math.prod(-(-self.extent[v] // self.axes[v]) for v in self.kernel.blocked)
        return grid * -(-tiles // self.tiling.tiles)

    def _longest_first(self, program: Value, tiles: Value, batch: Sequence[str]) -> tuple[Value, Value]:
        """A program's block and its place in the batch, where the first blocks have the longest walks: of some elements
        of the batch together, so that no long walk begins when most multiprocessors have nothing left to do."""
        b = self.b
        together, number = b.number(WALKED_TOGETHER), self.size(batch[0])
        for v in batch[1:]:
            number = number * self.size(v)
        each = together * tiles
        first = program // each * together
        beside = b.apply("smaller", together, number - first)
        place = program % each
        tile = b.apply("floordiv", place, beside, hint="tile")
        return tile, b.apply("add", first, place % beside, hint="rest")

    def emitter(self, positions: Mapping[str, Value], masked: bool) -> Emitter:
        """One for all who ask for the same: what it made already is found by a look-up."""
        key = frozenset(positions.items()), masked
        if key not in self._emitters:
            self._emitters[key] = self._emitter(positions, masked)
        return self._emitters[key]

    def _emitter(self, positions: Mapping[str, Value], masked: bool, exponents: Masking | None = None) -> Emitter:
        b, kernel = self.b, self.kernel
        here = dict(positions)
        here.update((f"#{axis}", self.feature_positions(axis)) for axis in self.features)
        for r in kernel.targets:
            f = r.target.feature
            if f is not None and f not in here and r.unrolled is None:
                here[f] = b.positions(f"d{self.extent[f]}")
        here.update((f, b.positions(f"d{n}")) for f, n in self.summed.items() if f not in here)

        def within(names: tuple[str, ...]) -> Value | None:
            condition: Value | None = None
            for v in names:
                if v in kernel.blocked or v == kernel.looped:
                    tail = self.extent[v] % self.axes[v] and (v != kernel.looped or masked)
                    part = here[v] < self.size(v) if tail else None
                else:
                    axis = next((a for a in here[v].type.axes if a in self.features), None)
                    inside = axis is None or self.features[axis] >= self.starts[axis] + self.axes[axis]
                    part = None if inside else here[v] < self.features[axis or ""]
                condition = made.both(condition, part)
            return condition

        def given(a: Access) -> Value | None:
            if a.tensor in kernel.inners:
                return self._inner(kernel.inners[a.tensor], a, made)
            return self.row.get(a.tensor)

        made = Emitter(b, self.types, here, self.extent, within, given, kernel.in_place, self._in_exponents, exponents)
        return made

    def feature_positions(self, axis: str) -> Value:
        """Of a block of features."""
        place, start = self.b.positions(axis), self.starts[axis]
        return place + start if start else place

    def feature_axes(self, n: int) -> list[str]:
        """The blocks that so many features lie in."""
        return [axis for axis, _, _ in _feature_axes(self.kernel, n)]

    def _width(self, row: RowStatement) -> int:
        """How many terms a row's value has."""
        found = [
            n
            for a in accesses_in(row.statement.body)
            for e, n in zip(a.index, self.types[a.tensor].shape, strict=True)
            if linear(e).bare == row.feature
        ]
        return min(found)

    def _rows(self, positions: Mapping[str, Value]) -> None:
        """The values of rows that come first."""
        b = self.b
        at = self.emitter(positions, False)
        for row in self.kernel.rows:
            s = row.statement
            value = at.value(s.body, "float32") if row.feature is None else self._row_sum(row, positions)
            value = value + b.fill(self.kernel.blocked, 0.0) if not value.type.axes else value
            self.row[s.output] = value
            if row.stored:
                at.store(s, value)

    def _row_sum(self, row: RowStatement, positions: Mapping[str, Value]) -> Value:
        b, v = self.b, row.feature or ""
        total: Value | None = None
        for axis in self.feature_axes(self.summed[v]):
            at = self.emitter({**positions, v: self.feature_positions(axis)}, False)
            value = b.reduce("sum", axis, self._ended(at.value(row.statement.body, "float32"), v, at))
            total = value if total is None else total + value
        assert total is not None
        return total

    def _inner(self, inner: Inner, a: Access, at: Emitter) -> Value:
        """The block of an inner sum."""
        if inner.left is None or inner.right is None:
            terms = (at.value(self._at(inner, a, "body", k), "float32") for k in range(inner.extent))
            names = {v for e in a.index for v in linear(e).variables()}
            return self._spread(reduce(operator.add, terms), names)
        total: Value | None = None
        for axis in self.feature_axes(inner.extent):
            left, right = (
                self.operand(self._at(inner, a, side, f"#{axis}"), inner.dtype, at, f"#{axis}")
                for side in ("left", "right")
            )
            total = self.product(axis, left, right, total)
        assert total is not None
        return total

    def _at(self, inner: Inner, a: Access, part: str, place: int | str) -> Expr:
        """A part of an inner sum where an access reads it, of one term, or of a block of them."""
        key = a, part, place
        if key not in self._parts:
            names = {v: linear(e) for v, e in zip(inner.index, a.index, strict=True)}
            names[inner.axis] = Affine((), as_fraction(place)) if isinstance(place, int) else Affine.variable(place)
            self._parts[key] = replace_indices(getattr(inner, part), names)
        return self._parts[key]

    def product(self, axis: str, left: Value, right: Value, before: Value | None) -> Value:
        """The product of two operands, added to what is there. A float32 one beside one of bfloat16 is multiplied as
        parts of bfloat16, which is exact, the smallest first: tensor cores cut off what they add to sums, so blocks
        have sums of their own."""
        if left.type.dtype == right.type.dtype:
            precision = None if left.type.dtype in NARROW else self.tiling.precision
            return self.b.dot(axis, left, right, before, precision)
        whole, other = (right, left) if left.type.dtype in NARROW else (left, right)
        total: Value | None = None
        for part in reversed(self._in_bfloat16(whole)):
            total = self.b.dot(axis, part, other, total)
        assert total is not None
        return total if before is None else before + total

    def _in_bfloat16(self, x: Value) -> list[Value]:
        """Values whose sum is x, eight bits of it each: all, or as many as tf32 has. What is not finite is in the
        first alone."""
        b = self.b
        parts: list[Value] = []
        for _ in range(BFLOAT16_PARTS[self.tiling.precision]):
            parts.append(b.cast(x, "bfloat16"))
            first = b.cast(parts[-1], "float32")
            finite = b.apply("abs", first) < math.inf
            x = b.apply("select", finite, x - first, b.number(0.0, "float32"))
        return parts

    def _as_bfloat16(self, e: Expr) -> Access | None:
        """The bfloat16 element that a value is."""
        if isinstance(e, Call) and e.function == "float32":
            (e,) = e.args
        if not isinstance(e, Access) or e.tensor in self.kernel.inners or e.tensor in self.row:
            return None
        t = self.types[e.tensor]
        return e if t.dtype == "bfloat16" and t.shape[-1] >= NARROWEST_ROW else None

    def _spread(self, v: Value, names: set[str]) -> Value:
        wanted = [a for a in (*self.kernel.blocked, self.kernel.looped) if a in names]
        return v if set(wanted) <= set(v.type.axes) else v + self.b.fill([a for a in wanted if a], 0.0)

    def operand(self, e: Expr, dtype: str, at: Emitter, summed: str) -> Value:
        """A value as an operand of a product, zero beyond the end of the variable that the product sums: what is
        computed of the zeros read there need be no zero. bfloat16 elements of a float32 product stay as they are."""
        stored = None if dtype in NARROW else self._as_bfloat16(e)
        if stored is not None:
            return self.b.cast(at.value(stored), "bfloat16")
        value = at.value(e)
        if summed and not isinstance(without_casts(e), Access):
            value = self._ended(value, summed, at)
        return self.b.cast(value, dtype if dtype in NARROW else "float32")

    def _ended(self, value: Value, variable: str, at: Emitter) -> Value:
        """The value, zero beyond the variable's end."""
        inside = at._within((variable,))
        if inside is None:
            return value
        return self.b.apply("select", inside, self.b.cast(value, "float32"), self.b.number(0.0, "float32"))


def _feature_axes(kernel: ChainKernel, n: int) -> list[tuple[str, int, int]]:
    """Axis, first feature and length of each block of n features."""
    blocks = blocks_in(kernel, n)
    starts = [sum(blocks[:k]) for k in range(len(blocks))]
    return [(f"d{n}_{start}" if start else f"d{n}", start, block) for start, block in zip(starts, blocks, strict=True)]


def tensors_touched(ops: Sequence[Op]) -> set[str]:
    """Names of the tensors that operations read and write."""
    return {op.tensor for op in every_operation(ops) if isinstance(op, Load | Store)}
