"""Kernels of recurrences whose states are blocks in registers (`tiles`): the loop over time, sums of a step along axes
of blocks or by `tl.dot`, and what is added up of the states beside them.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import replace

from tilec.backends.common.code import python_name, tuple_text
from tilec.backends.common.domain import Condition, gathered
from tilec.backends.common.scalar_writer import ScalarValue
from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.emit.frame import free_of
from tilec.backends.triton.emit.kernel import Axis, Kernel, all_text, triton_type, where_text
from tilec.backends.triton.emit.scalar import TritonScalars, compute_dtype_of
from tilec.backends.triton.plan.lines import CodeLine, assign
from tilec.backends.triton.plan.plan import Launch
from tilec.backends.triton.plan.sizes import Strides, power_of_two
from tilec.backends.triton.recurrence.coupled_lanes import TimeWalk
from tilec.backends.triton.recurrence.skewed_loop import step_conditions, step_inputs
from tilec.backends.triton.recurrence.step import Moment, StepFrame, reached
from tilec.backends.triton.recurrence.tiles import MatrixOperand, StateTile, by_dot, in_place
from tilec.ir.index import Affine, linear
from tilec.ir.infer import aggregate_type, expression_type
from tilec.ir.program import Access, Aggregate, Call, Expr, Pad, Statement, index_variables
from tilec.ir.types import NARROW


class TileWriter(TimeWalk):
    """`names`: of axes, as texts. `axes`: of a program's states."""

    def __init__(self, tile: StateTile, strides: Strides, int64_index: bool):
        loop = tile.loop
        kernel = Kernel(f"{python_name(loop.own)}_kernel", loop.space(), loop.types, strides, int64_index)
        super().__init__(kernel, loop)
        self.tile, self.state, self.now = tile, kernel.names.fresh("state"), ""
        self.carried = self.state
        self.dtype = loop.types[loop.own].dtype
        self.axes = tile.axes(loop.lanes)
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
        k.assign(self.state, self._masked(TritonScalars(frame, tile.start).text(tile.start, dtype), frame))
        beside = (e for s in tile.sums for e in s.roots)
        own = step_inputs(
            loop,
            self._in_place((*loop.roots, *beside)),
            lambda e: isinstance(e.access, Access) and e.access.tensor == loop.own,
        )
        accesses = [a for a in own if loop.time in free_of(a) and not any(gathered(linear(i)) for i in a.index)]
        accesses = [a for a in accesses if {*tile.axes(free_of(a))} <= {*self.axes}]
        rounds = min(tile.rounds([free_of(a) for a in accesses]), power_of_two(loop.steps))
        self.through(accesses, rounds, rounds)
        return k.launch((tile.programs, 1, 1), tile.warps, 1, loop.flat, *tile.sums)

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
                e = in_place(e, self.axes, self.loop)
                if {*self.tile.axes(e.bound)} <= {*self.axes} and by_dot(e, self.tile) is None:
                    found += self._in_place(e.roots)
        return found

    def step_frame(self, *inner: frozenset[str]) -> StepFrame:
        return self._over(self.axes, None, *inner)

    def _over(self, axes: Sequence[str], around: StepFrame | None, *inner: frozenset[str]) -> StepFrame:
        names = [self.names[a] for a in axes]
        return self.frame(names, {a: self.tails[a] for a in names if a in self.tails}, inner, around)

    def compute(self, frame: StepFrame) -> None:
        k = self.kernel
        code, dtype = self.element(frame, 1)
        result, self.now = k.names.fresh("result"), k.names.fresh("now")
        k.assign(result, f"tl.broadcast_to({code}, {self._shape(frame)})")
        if self.tile.kept is not None:
            low, high = self.tile.kept
            there = Condition(Affine.variable(self.loop.time) - low, high - low + 1)
            self.store(frame, result, dtype, tests=frame.tests([there]))
        k.assign(self.now, self._masked(result, frame))
        for s in self.tile.sums:
            self._beside(s, frame)
        self.state = self.now

    def between(self) -> list[CodeLine]:
        return [assign(self.carried, self.state)]

    def _beside(self, s: Statement, frame: StepFrame) -> None:
        """Compute and store the elements of a statement that this step's states are for."""
        k, t, own = self.kernel, self.loop.types[s.output], {*index_variables(*(s.index or ()))}
        summed, timed = tuple(v for v in self.loop.lanes if v not in own), self.loop.time in own
        guard = s.guard if timed else None
        axes, code = self._summed(Aggregate(s.aggregation, s.body, summed, guard, s.constraints), t.dtype, frame)
        target = self._over([a for a in self.axes if self.names[a] in axes], frame, *frame.inner)
        value = k.names.fresh("value")
        k.assign(value, code if not axes else f"tl.broadcast_to({code}, {self._shape(target)})")
        tails = [*target.store_tests(), *(TritonScalars(target, g).test(g) for g in s.guards if not timed)]
        test = all_text(tails)
        mask = f"tl.broadcast_to({test}, {self._shape(target)})" if test and axes else test
        k.store(target.element_address(s), f"{value}.to({triton_type(t.dtype)})", mask or None)

    def _shape(self, frame: StepFrame, without: Collection[str] = ()) -> str:
        return tuple_text([1 if a in without else self.blocks[a] for a in frame.axes])

    def _masked(self, code: str, frame: StepFrame) -> str:
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
            elif isinstance(e, Access) and e.tensor == self.loop.own and e.index == self.loop.statement.index:
                t, variables = self.loop.types[e.tensor], frozenset((*self.loop.lanes, self.loop.time))
                given[e] = ScalarValue(self.now, t.element(), compute_dtype_of(t.dtype), variables, exact=True)
            elif isinstance(e, Pad) and isinstance(e.access, Access) and e.access.tensor == self.loop.own:
                given[e] = self._before(e, e.access, frame)
        return TritonScalars(frame, *roots, given=given)

    def _before(self, e: Pad, access: Access, frame: StepFrame) -> ScalarValue:
        """The states that the step before has left, at these places."""
        loop, read = self.loop, {}
        for own, there in zip(loop.statement.index or (), access.index, strict=True):
            read[linear(own).bare] = linear(there).bare
        axes = [self.names["row" if a == "row" else read[a] or ""] for a in self.axes]
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
        if operands is None:
            axes, code = self._summed(e, t.dtype, frame)
        else:
            axes, code = self._multiplied(operands, frame)
            code = where_text(frame.tests(step_conditions(e.roots, e.constraints, loop.types)), code, "0.0")
        code = self._spread(f"({code})", axes, frame)
        if t.dtype in NARROW:
            code = f"({code}).to({triton_type(t.dtype)}).to(tl.float32)"
        name = k.names.fresh("aggregate")
        k.assign(name, code)
        self.bound[f"={name}"] = len(k.scopes) - 1
        depends = frozenset((*index_variables(e), loop.time, f"={name}"))
        return ScalarValue(name, t, compute_dtype_of(t.dtype), depends, exact=True)

    def _summed(self, e: Aggregate, dtype: str, frame: StepFrame) -> tuple[list[str], str]:
        """A sum of a block's elements along some of its axes: the others, of those of the frame, and the text."""
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
            return [*within.axes], own["value"]
        for number, place in enumerate(places):
            k.add(*accumulator.at_once(accumulator.state[0] if number else own["value"], place))
        return [a for a in within.axes if a not in summed], accumulator.result()

    def _multiplied(self, operands: tuple[MatrixOperand, MatrixOperand], frame: StepFrame) -> tuple[list[str], str]:
        """A product of two matrices: its axes, in the frame's order, and the text."""
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
        return [a for a in frame.axes if a in made], code
