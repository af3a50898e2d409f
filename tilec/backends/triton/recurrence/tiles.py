"""States of few elements, as the matrix that a memory is, in registers: a program holds those of whole sets of coupled
lanes as a block in which each coupled lane variable has an axis of its own.

What a step adds up of states runs along an axis of the block where it can take that of a lane which it does not depend
on, as `sum[k](S[t - 1, i, k] * K[t, k])` takes that of `j` for the elements `i, j`; other sums are blocks of their own,
or products of two matrices by `tl.dot`. No state is read back from memory, and no step waits for another's stores.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.code import python_name, tuple_text
from tilec.backends.common.domain import gathered
from tilec.backends.common.scalar_writer import ScalarValue
from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.emit.frame import free_of
from tilec.backends.triton.emit.kernel import Axis, Kernel, triton_type, where_text
from tilec.backends.triton.emit.scalar import TritonScalars, compute_dtype_of
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.backends.triton.plan.plan import Launch, Step
from tilec.backends.triton.plan.sizes import Strides, power_of_two
from tilec.backends.triton.recurrence.coupled_lanes import Walk
from tilec.backends.triton.recurrence.skewed_loop import SkewedLoop, step_conditions, step_inputs
from tilec.backends.triton.recurrence.step import MOST_IN_BLOCK, Moment, StepFrame, reached
from tilec.ir.functions import operands_of
from tilec.ir.index import Affine, linear
from tilec.ir.infer import aggregate_type, expression_type
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Int,
    Pad,
    accesses_in,
    index_variables,
    walk,
)
from tilec.ir.types import NARROW, is_floating
from tilec.transforms.util.naming import rename, rename_constraint
from tilec.transforms.util.rewrite import with_parts

MOST_HELD = 4096  # elements of a program's states
LEAST_BY_DOT = 16  # elements along each axis of what `tl.dot` multiplies
HELD_PER_THREAD = 8  # elements of a block of states, about
MOST_WARPS = 8


@dataclass(frozen=True)
class Tile:
    """A loop whose states are held so. `start`: they are before the first step, over a step's own lanes. `sets`: of
    coupled lanes in a program, side by side along the axis "row"; other axes have the names of their variables."""

    loop: SkewedLoop
    start: Expr
    sets: int

    def axes(self, variables: Collection[str]) -> tuple[str, ...]:
        loop = self.loop
        found = [v for v in (*loop.coupled, *loop.extent) if v in variables and v not in (*loop.parallel, loop.time)]
        several = [v for v in loop.parallel if v in variables and loop.extent[v] > 1]
        return (
            *(["row"] if self.sets > 1 and several else []),
            *(v for v in dict.fromkeys(found) if loop.extent[v] > 1),
        )

    def points(self, axes: Collection[str]) -> int:
        """Elements of a block with these axes."""
        return math.prod(self.sets if a == "row" else power_of_two(self.loop.extent[a]) for a in axes)

    @property
    def programs(self) -> int:
        return -(-self.loop.count(self.loop.parallel) // self.sets)

    @property
    def warps(self) -> int:
        around = self.axes(self.loop.lanes)
        sums = [self.largest(e, around) for e in reached(self.loop.roots) if isinstance(e, Aggregate)]
        held = max(self.points(around), max(sums) // 4)
        return max(1, min(MOST_WARPS, power_of_two(held // (32 * HELD_PER_THREAD))))

    def largest(self, e: Aggregate, around: Sequence[str]) -> int:
        """Points of the largest block that a sum takes, where a block has the axes `around` it; 0: it takes none."""
        e = in_place(e, around, self.loop)
        empty = any(self.loop.extent[v] < 1 for v in e.bound)
        if empty or e.aggregation == "logsumexp" and len(self.axes(e.bound)) != 1:
            return 0
        inside = self.axes({*index_variables(e), *e.bound})
        blocks = [(f.axes, f.factors) for f in by_dot(e, self) or (Operand(inside, e.roots),)]
        inner = [self.largest(x, axes) for axes, roots in blocks for x in reached(roots) if isinstance(x, Aggregate)]
        return 0 if 0 in inner else max([*(self.points(axes) for axes, _ in blocks), *inner])


@dataclass(frozen=True)
class Operand:
    """A matrix that a sum multiplies: axes, those added up along last, and what it is the product of."""

    axes: tuple[str, ...]
    factors: tuple[Expr, ...]


def recognise_tile(loop: SkewedLoop) -> Tile | None:
    """The loop as one whose states a program can hold; None where a step reads others than the last one's, or at other
    places than lanes are, or where blocks would be too large."""
    lanes = [linear(e).bare for e in loop.statement.index or ()]
    whole = {*lanes} == {loop.time, *loop.lanes} and loop.space().covers and loop.skew.plain
    if not whole or not loop.coupled or not loop.aggregates() or not is_floating(loop.types[loop.own].dtype):
        return None
    starts, read = set[Expr](), dict[Expr, Expr]()
    for e in {*walk(*loop.roots)}:
        if isinstance(e, Pad) and isinstance(e.access, Access) and e.access.tensor == loop.own:
            names = _lanes_read(e.access, lanes, loop)
            if names is None:
                return None
            read[e] = Int(0)
            starts.add(rename(e.value, names))
    if len(starts) != 1 or any(a.tensor == loop.own for a in accesses_in(*(with_parts(r, read) for r in loop.roots))):
        return None
    (start,) = starts
    sets = power_of_two(max(1, -(-loop.count(loop.parallel) // MULTIPROCESSORS)))
    while sets:
        tile = Tile(loop, start, sets)
        axes = tile.axes(loop.lanes)
        largest = [tile.largest(e, axes) for e in reached(loop.roots) if isinstance(e, Aggregate)]
        if 0 in largest:
            return None
        if 1 < tile.points(axes) <= MOST_HELD and max(largest) <= MOST_IN_BLOCK:
            return tile
        sets //= 2
    return None


def _lanes_read(access: Access, lanes: Sequence[str | None], loop: SkewedLoop) -> dict[str, str] | None:
    """By the variables that an access of the last step's states has in the places of coupled lanes, these lanes."""
    names: dict[str, str] = {}
    for e, v in zip(access.index, lanes, strict=True):
        form = linear(e)
        if v == loop.time:
            back = form - Affine.variable(v)
            if back.terms or back.constant != (1 if loop.falling else -1):
                return None
            continue
        u = form.bare
        if u is None or v is None or u in names or u != v and v in loop.parallel:
            return None
        if (loop.low.get(u), loop.extent.get(u)) != (loop.low[v], loop.extent[v]):
            return None
        names[u] = v
    return names


def in_place(e: Aggregate, around: Sequence[str], loop: SkewedLoop) -> Aggregate:
    """A sum with lanes `around` it, which it does not depend on, in the place of variables that read states there."""
    lanes = [linear(i).bare for i in loop.statement.index or ()]
    taken, names = {*index_variables(e)}, dict[str, str]()
    for access in accesses_in(*e.roots):
        for i, v in zip(access.index, lanes, strict=True) if access.tensor == loop.own else ():
            u = linear(i).bare
            if u in e.bound and u not in names and v in around and v in loop.coupled and v not in taken:
                names[u] = v
                taken.add(v)
    if not names:
        return e
    moved = rename(replace(e, bound=(), constraints=()), names)
    assert isinstance(moved, Aggregate)
    constraints = tuple(rename_constraint(c, names) for c in e.constraints)
    return replace(moved, bound=tuple(names.get(v, v) for v in e.bound), constraints=constraints)


def by_dot(e: Aggregate, tile: Tile) -> tuple[Operand, Operand] | None:
    """The matrices that a sum multiplies; None where it is no such product, or of too small ones."""
    loop, bound = tile.loop, tile.axes(e.bound)
    box = loop.space().box(0)
    plain = e.aggregation == "sum" and e.guard is None
    plain = plain and all(map(box.holds, step_conditions(e.roots, e.constraints, loop.types)))
    dtype = expression_type(e.body, loop.types).dtype
    if not plain or dtype not in ("float32", *NARROW) or not bound:
        return None
    found: list[Operand] = []
    for f in operands_of("mul", e.body):
        own = tile.axes(index_variables(f))
        met = [o for o in found if {*o.axes}.difference(bound) & {*own}]
        axes = {*own}.union(*(o.axes for o in met))
        found = [o for o in found if o not in met]
        found.append(Operand(tile.axes(axes), (*(x for o in met for x in o.factors), f)))

    plain_ones = [o for o in found if {*o.axes} <= {*bound}]
    found = [o for o in found if o not in plain_ones]
    if len(found) != 2:
        return None
    found[0] = Operand(found[0].axes, (*found[0].factors, *(x for o in plain_ones for x in o.factors)))
    read = [{*tile.axes(index_variables(*o.factors))} for o in found]
    free = [tuple(a for a in o.axes if a not in bound) for o in found]
    sizes = [tile.points(axes) for axes in (*free, bound)]
    if not all({*bound} <= axes for axes in read) or min(sizes) < LEAST_BY_DOT:
        return None
    first, second = (Operand((*own, *bound), o.factors) for own, o in zip(free, found, strict=True))
    return first, second


class _Writer(Walk):
    """`names`: of axes, as texts. `held`: the axes of a program's states."""

    def __init__(self, tile: Tile, strides: Strides, int64_index: bool):
        loop = tile.loop
        kernel = Kernel(f"{python_name(loop.own)}_kernel", loop.space(), loop.types, strides, int64_index)
        super().__init__(kernel, loop)
        self.tile, self.state = tile, kernel.names.fresh("state")
        self.dtype = loop.types[loop.own].dtype
        self.held = tile.axes(loop.lanes)
        self.names = {a: a if a == "row" else kernel.names.fresh("place") for a in tile.axes(loop.extent)}
        self.tails: dict[str, str] = {}

    def launch(self) -> Launch:
        k, loop, tile = self.kernel, self.loop, self.tile
        if "row" in self.names:
            total = k.count([v for v in loop.parallel if loop.extent[v] > 1])
            self._axis("row", f"{k.program()} * BM + tl.arange(0, BM)", loop.parallel, "BM", total)
        else:
            batch = k.line("batch", f"{k.program()} + tl.full((), 0, tl.int32)")
            k.decode(Axis(batch, loop.parallel, None))
        for v in loop.extent:
            if v in self.names:
                block, n = k.names.fresh("BL"), loop.extent[v]
                self._axis(v, f"tl.arange(0, {block})", (v,), block, k.extent(v) if n % tile.points([v]) else "")
            elif v not in (*loop.parallel, loop.time):
                k.value_of[v] = k.low(v)
        self.moment(Moment("0"), True)
        frame, dtype = self.step_frame(), compute_dtype_of(self.dtype)
        k.assign(self.state, self._kept(TritonScalars(frame, tile.start).text(tile.start, dtype), frame))
        own = step_inputs(loop, self._in_place(loop.roots), lambda e: isinstance(e.access, Access) and e.access.tensor == loop.own)
        accesses = [a for a in own if loop.time in free_of(a) and not any(gathered(linear(i)) for i in a.index)]
        self.through([a for a in accesses if {*tile.axes(free_of(a))} <= {*self.held}])
        return k.launch((tile.programs, 1, 1), tile.warps, 1, loop.flat)

    def _axis(self, axis: str, places: str, variables: tuple[str, ...], block: str, total: str) -> None:
        """Bind an axis of blocks, which overhangs where `total` says how many places there are."""
        k, name = self.kernel, self.names[axis]
        k.constants[block] = self.tile.points([axis])
        self.blocks[name] = block
        k.assign(name, places)
        if total:
            self.tails[name] = k.line("inside", f"{name} < {total}")
        k.decode(Axis(name, variables, block))

    def _in_place(self, roots: Sequence[Expr]) -> list[Expr]:
        """Expressions over the axes of states, and what stands in sums along these."""
        found = [*roots]
        for e in reached(roots):
            if isinstance(e, Aggregate):
                e = in_place(e, self.held, self.loop)
                if {*self.tile.axes(e.bound)} <= {*self.held} and by_dot(e, self.tile) is None:
                    found += self._in_place(e.roots)
        return found

    def step_frame(self, *inner: frozenset[str]) -> StepFrame:
        return self._over(self.held, None, *inner)

    def _over(self, axes: Sequence[str], around: StepFrame | None, *inner: frozenset[str]) -> StepFrame:
        names = [self.names[a] for a in axes]
        return self.frame(names, {a: self.tails[a] for a in names if a in self.tails}, inner, around)

    def compute(self, frame: StepFrame) -> None:
        code, dtype = self.element(frame, 1)
        self.kernel.assign("result", f"tl.broadcast_to({code}, {self._shape(frame)})")
        self.store(frame, "result", dtype)
        self.kernel.assign(self.state, self._kept("result", frame))

    def _shape(self, frame: StepFrame, without: Collection[str] = ()) -> str:
        return tuple_text([1 if a in without else self.blocks[a] for a in frame.axes])

    def _kept(self, code: str, frame: StepFrame) -> str:
        """Text of a block of states, rounded as the tensor's elements are, and 0 where there is no element."""
        if self.dtype in NARROW:
            code = f"({code}).to({triton_type(self.dtype)}).to(tl.float32)"
        tails = [frame.spread(self.tails[a], a) for a in frame.axes if a in self.tails]
        return f"tl.broadcast_to({where_text(tails, code, '0')}, {self._shape(frame)})"

    # values

    def evaluator(self, frame: StepFrame, roots: Sequence[Expr], points: int) -> TritonScalars:
        given = self.insides(frame, roots)
        for e in reached(roots):
            if isinstance(e, Aggregate):
                given[e] = self._aggregate(e, frame, points)
            elif isinstance(e, Pad) and isinstance(e.access, Access) and e.access.tensor == self.loop.own:
                given[e] = self._before(e, e.access, frame)
        return TritonScalars(frame, *roots, given=given)

    def _before(self, e: Pad, access: Access, frame: StepFrame) -> ScalarValue:
        """The states that the step before has left, at these places."""
        loop, read = self.loop, {}
        for own, there in zip(loop.statement.index or (), access.index, strict=True):
            read[linear(own).bare] = linear(there).bare
        axes = [self.names["row" if a == "row" else read[a] or ""] for a in self.held]
        code, order = self.state, sorted(range(len(axes)), key=lambda k: frame.axes.index(axes[k]))
        if order != [*range(len(axes))]:
            code = f"tl.permute({code}, {tuple_text(order)})"
        code = self._spread(code, axes, frame)
        t, variables = expression_type(e, loop.types), frozenset((*free_of(access), loop.time))
        dtype = compute_dtype_of(t.dtype)
        code = code if dtype == compute_dtype_of(self.dtype) else f"{code}.to({triton_type(dtype)})"
        return ScalarValue(code, t, dtype, variables, exact=True)

    def _spread(self, code: str, axes: Collection[str], frame: StepFrame) -> str:
        """A block with some of a frame's axes, in their order, as one of the frame."""
        if len(axes) in (0, len(frame.axes)):
            return code
        return f"{code}[{', '.join(':' if a in axes else 'None' for a in frame.axes)}]"

    def _aggregate(self, e: Aggregate, frame: StepFrame, points: int) -> ScalarValue:
        k, loop, tile = self.kernel, self.loop, self.tile
        around = [a for a, name in self.names.items() if name in frame.axes]
        e = in_place(e, around, loop)
        t = aggregate_type(e.aggregation, expression_type(e.body, loop.types))
        operands = by_dot(e, tile)
        code = self._summed(e, t.dtype, frame) if operands is None else self._multiplied(operands, frame)
        if t.dtype in NARROW:
            code = f"({code}).to({triton_type(t.dtype)}).to(tl.float32)"
        name = k.names.fresh("aggregate")
        k.assign(name, code)
        self.bound[f"={name}"] = len(k.scopes) - 1
        depends = frozenset((*index_variables(e), loop.time, f"={name}"))
        return ScalarValue(name, t, compute_dtype_of(t.dtype), depends, exact=True)

    def _summed(self, e: Aggregate, dtype: str, frame: StepFrame) -> str:
        """Text of a sum of a block's elements along some of its axes, over the frame's."""
        k, loop, tile = self.kernel, self.loop, self.tile
        accumulator = Accumulator.of(e.aggregation, dtype)
        own = {w: k.names.fresh(w) for w in ("acc", "top", "total", "new_top", "highest", "scaled", "value")}
        accumulator = replace(accumulator, names=tuple(own.items()))
        inside = [self.names[a] for a in tile.axes({*index_variables(e), *e.bound})]
        summed = [self.names[a] for a in tile.axes(e.bound)]
        within = frame
        if not {*inside} <= {*frame.axes}:
            inside = [*(a for a in frame.axes if a in inside), *(a for a in inside if a not in frame.axes)]
            within = self.frame(inside, {a: self.tails[a] for a in inside if a in self.tails}, frame.inner, frame)
        evaluator = self.evaluator(within, e.roots, 1)
        tests = [within.spread(self.tails[a], a) for a in summed if a in self.tails]
        tests += within.tests(step_conditions(e.roots, e.constraints, loop.types))
        code = accumulator.term(evaluator, e, tests)
        k.assign(own["value"], f"tl.broadcast_to({code}, {self._shape(within, {*within.axes}.difference(inside))})")
        places = sorted(map(within.axes.index, summed), reverse=True)
        if not places:  # one point
            return own["value"]
        for number, place in enumerate(places):
            k.add(*accumulator.at_once(accumulator.state[0] if number else own["value"], place))
        return self._spread(accumulator.result(), [a for a in within.axes if a not in summed], frame)

    def _multiplied(self, operands: tuple[Operand, Operand], frame: StepFrame) -> str:
        """Text of the product of two matrices over the frame's axes."""
        k, texts, made = self.kernel, list[str](), list[str]()
        bound = [a for a in operands[0].axes if a in operands[1].axes]
        first, second = sorted(operands, key=lambda o: frame.axes.index(self.names[o.axes[0]]))
        for o, turned in ((first, False), (second, True)):
            own = [a for a in o.axes if a not in bound]
            within = self._over([*bound, *own] if turned else [*own, *bound], frame, *frame.inner)
            body = functools.reduce(lambda a, b: Call("mul", (a, b)), o.factors)
            code = self.evaluator(within, (body,), 1).text(body, "float32")
            tails = [within.spread(self.tails[n], n) for n in map(self.names.__getitem__, bound) if n in self.tails]
            code = f"tl.broadcast_to({where_text(tails, code, '0.0')}, {self._shape(within)})"
            parts = [" * ".join(self.blocks[self.names[a]] for a in axes) for axes in (own, bound)]
            flat = len(o.axes) == 2
            texts.append(code if flat else f"tl.reshape({code}, ({', '.join(parts[::-1] if turned else parts)}))")
            made += [self.names[a] for a in own]
        product = k.names.fresh("product")
        k.assign(product, f'tl.dot({texts[0]}, {texts[1]}, input_precision="tf32x3")')
        code, order = product, sorted(range(len(made)), key=lambda n: frame.axes.index(made[n]))
        if len(made) > 2:
            code = f"tl.reshape({code}, ({', '.join(self.blocks[a] for a in made)}))"
        if order != [*range(len(made))]:
            code = f"tl.permute({code}, {tuple_text(order)})"
        return self._spread(f"({code})", made, frame)


def tile_steps(tile: Tile, strides: Strides, int64_index: bool) -> list[Step]:
    """Steps that compute the output."""
    return [_Writer(tile, strides, int64_index).launch()]
