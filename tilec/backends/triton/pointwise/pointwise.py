"""Families map and reduce: any body over tiles of outputs, any aggregation.

`map` has no reduction. `tile` works on blocks of outputs x reduction, where memory runs along the reduction or the
reduction is long. `loop` walks the reduction point by point over a block of rows x columns: short windows, and bodies
whose operands each depend on one side, which are then read once a row or column and combined as an outer product.
A long reduction with few outputs is split over programs; a second launch combines the parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilec.backends.common.code import python_name, tuple_text
from tilec.backends.common.scalar_writer import ScalarValue
from tilec.backends.common.scalars import identity
from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.emit.contiguity import mixes_vectors
from tilec.backends.triton.emit.epilogue import as_read, finish
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Axis, Kernel, all_text, triton_type
from tilec.backends.triton.emit.scalar import TritonScalars
from tilec.backends.triton.emit.sines import adds_sines
from tilec.backends.triton.iteration.coalesce import StridedView, coalesce
from tilec.backends.triton.iteration.space import Space, build_space
from tilec.backends.triton.plan.lines import CodeLine, ForLoop, If, assign
from tilec.backends.triton.plan.plan import Allocate, Release, Step
from tilec.backends.triton.plan.sizes import contiguous
from tilec.backends.triton.pointwise.class_elements import Residues
from tilec.backends.triton.pointwise.reduction_walk import as_memory_runs, blocks_of, combining, points_of
from tilec.backends.triton.pointwise.residues import ResidueWriter, choose_residues, unrolled_outputs
from tilec.backends.triton.pointwise.semiring_matmul import (
    BESIDE,
    HALVES,
    NEVER,
    reads_first,
    tests_of_reads,
    whole_blocks,
)
from tilec.backends.triton.pointwise.small_sums import small_sums
from tilec.backends.triton.pointwise.taps import TapWriter, tap_sums
from tilec.backends.triton.pointwise.tiling import PointwiseTiling, choose_pointwise_tiling
from tilec.backends.triton.pointwise.unrolled import Computed
from tilec.backends.triton.pointwise.windows import (
    RegisterBlock,
    RegisterBlockWriter,
    choose_register_block,
    is_small_window,
)
from tilec.ir.program import Access, Call, Expr, Index, Int, Statement, index_variables, value_accesses
from tilec.ir.types import TensorType, Types

Form = PointwiseTiling | RegisterBlock | Residues  # how an aggregation is spread over programs
STATE = ("acc", "top", "total", "new_top", "highest", "scaled")  # names of running values


def several(results: Sequence[Computed], view: StridedView, form: Form) -> list[Step]:
    """Steps that compute aggregations over the same variables into their allocated outputs, in one kernel. `view`: of
    all that they touch; `form`: of each, see `shareable_form`."""
    if isinstance(form, RegisterBlock):
        return [RegisterBlockWriter(form, results, view).launch()]
    if isinstance(form, Residues):
        return [ResidueWriter(form, results, view).launch()]
    return _Writer(results, view, form).steps()


def shareable_form(space: Space, view: StridedView) -> Form | None:
    """How an aggregation is spread over programs where others can stand in its kernel; None where they cannot."""
    tiling = choose_pointwise_tiling(space, view)
    if tiling.outer or tiling.parts > 1 or tiling.lanes is not None or small_sums(space, view) is not None:
        return None
    if tiling.reduction is not None:
        return None if tap_sums(space, view) is not None else tiling
    block = choose_register_block(space, view) or choose_residues(space, view)
    return block or (None if space.residues or space.steps else tiling)


def pointwise(
    space: Space, view: StridedView, flat: Statement, epilogue: Sequence[Statement] = ()
) -> list[Step] | None:
    """Steps that compute a statement into its allocated output. `flat`, the statement as written, heads the kernel.
    With an epilogue, it is the last statement's output that is stored; None where it takes none. It joins the
    launch that combines parts, where there is one; `view` is not coalesced then, and what makes the parts is."""
    tiling = choose_pointwise_tiling(space, view)
    blocked = not tiling.outer or is_small_window(space)
    if space.covers or not epilogue:
        writer = unrolled_outputs(Computed(space, flat, epilogue), view, blocked and tiling.reduction is None)
        if writer is not None:
            return [writer.launch()]
    own, merged = space, view
    if epilogue and tiling.reduction is not None:
        merged = coalesce(view)
        found = build_space(merged.statement, merged.types)
        assert found is not None
        own, tiling = found, choose_pointwise_tiling(found, merged)
    taps = tap_sums(own, merged) if tiling.reduction is not None or tiling.parts > 1 else None
    if taps is not None and tiling.outer and taps.along is None:
        taps = None  # blocks of rows and columns share as much along a variable of the output
    if epilogue and not space.covers:
        return None
    if taps is None and tiling.parts <= 1:
        tiling = choose_pointwise_tiling(space, view) if epilogue else tiling
        return _Writer([Computed(space, flat, epilogue)], view, tiling).steps()
    s = own.statement
    accumulator = Accumulator.of(s.aggregation, view.types[s.output].dtype)
    parts = f"{s.output}.parts"
    number = tiling.parts if taps is None else taps.parts
    made = (
        [TapWriter(taps, own, merged).launch(flat, parts)]
        if taps is not None
        else _Writer([Computed(own, flat)], merged, tiling).steps()
    )
    shape = (number, view.types[s.output].numel)
    return [
        Allocate(parts, shape, accumulator.dtype, None if taps is not None else unwritten(own, accumulator)),
        *made,
        *combine_parts(space, view, number, accumulator, epilogue),
        Release((parts,)),
    ]


def fill(space: Space, types: Types) -> list[Step]:
    """What makes elements that no class writes the identity or the default's."""
    s = space.statement
    t = types[s.output]
    if space.covers or not math.prod(t.shape):
        return []
    content = s.default if s.default is not None else identity(s.aggregation, t.dtype)
    return [Allocate(s.output, t.shape, t.dtype, content)]


# text


class _Writer:
    """One kernel for results over the same variables: blocks of outputs, and a walk over what is summed."""

    def __init__(self, results: Sequence[Computed], view: StridedView, tiling: PointwiseTiling):
        self.results, self.tiling, self.types, self.space = results, tiling, view.types, results[0].space
        space = self.space
        innermost = [variables[-1] for variables, _ in tiling.axes if variables]
        name = python_name(space.statement.output) + "_kernel"
        self.k = k = Kernel(name, space, view.types, view.strides, view.int64_index, powers=True, innermost=innermost)
        sums = [r.space.statement for r in results]
        if tiling.parts > 1:  # what combines them takes them as they are stored
            found = [Accumulator.of(s.aggregation, view.types[s.output].dtype) for s in sums]
        else:
            found = [Accumulator.over(space, s, view.types) for s in sums]
        found[1:] = [replace(a, names=tuple((n, k.names.fresh(n)) for n in STATE)) for a in found[1:]]
        if tiling.lanes is not None and tiling.lanes.in_16_bits:
            found = [replace(a, dtype=HALVES) for a in found]
        self.accumulators = found
        k.residues()
        k.padded = () if self._mixes_vectors() else view.padded
        self.axes = self._output_axes()
        self.tails = {a.name: f"{a.name}_in" for a in self.axes}
        self.reductions = [v for v in space.reductions if not space.single(v)]
        if tiling.reduction is not None:
            self.reductions = as_memory_runs(self.reductions, space.statement, view.types, view.strides)
        for v in space.reductions:
            if v not in self.reductions:
                k.value_of[v] = k.low(v)
        self.frame = Frame(k, [a.name for a in self.axes], self.tails)
        self.shape = tuple_text([a.block for a in self.axes])

    def steps(self) -> list[Step]:
        k, tiling, space, results = self.k, self.tiling, self.space, self.results
        if self.reductions:
            reached = self._reduction()
            values = [(a.result(), a.dtype) for a in self.accumulators]
        else:
            found = [self._direct(r.space, a) for r, a in zip(results, self.accumulators, strict=True)]
            values, reached = [(value, dtype) for value, dtype, _ in found], found[0][2]
        given: dict[Expr, ScalarValue] = {}
        for number, (r, (value, dtype)) in enumerate(zip(results, values, strict=True)):
            given |= self._store(r, value, dtype, reached, given, results[number + 1 :])
        blocks = [(b, size) for b, (_, size) in zip(("BM", "BN"), tiling.axes, strict=False)]
        blocks += [("BR", tiling.reduction)] if self.reductions and tiling.reduction is not None else []
        k.constants = {**dict(blocks), **k.constants}
        tiles = math.prod(-(-max(space.count(variables), 1) // size) for variables, size in tiling.axes)
        if any(0 in (e[v] for v in space.outputs) for e in space.extent[:1]) and len(space.extent) == 1:
            return []
        told = [told for r in results for told in r.statements]
        return k.launches((tiles, len(space.classes), tiling.parts), tiling.warps, 2, *told)

    def _output_axes(self) -> list[Axis]:
        """Positions of the output block's elements, decoded into variables."""
        k, tiling = self.k, self.tiling
        axes = [
            Axis(name, variables, block)
            for name, block, (variables, _) in zip(("row", "col"), ("BM", "BN"), tiling.axes, strict=False)
        ]
        tile = k.program()
        if len(axes) == 2:
            k.assign("tile", tile)
            k.assign("across", f"tl.cdiv({k.count(axes[1].variables)}, BN)")
            places = ["tile // across", "tile % across"]
        else:
            places = [tile]
        for axis, place, (_, size) in zip(axes, places, tiling.axes, strict=True):
            start = place if place == tile else f"({place})"
            if size >= 4:
                k.quarters[axis.name] = f"{start} * ({axis.block} // 4) + tl.arange(0, {axis.block} // 4)"
            along = f"{start} * {axis.block} + tl.arange(0, {axis.block})"
            k.assign(axis.name, f"tl.multiple_of({along}, 1)" if axis is axes[-1] and self._mixes_vectors() else along)
            count = k.count([v for v in axis.variables if k.space.largest(v) > 1])
            k.assign(f"{axis.name}_in", f"{axis.name} < {count}")
            k.starts[axis.name] = f"{start} * {axis.block}", count, axis.block or ""
            if tiling.outer and axis.name == "row":
                k.assign("row", f"tl.minimum(row, {count} - 1)")
            k.decode(axis)
        for v in k.space.outputs:
            if v not in k.value_of:
                k.value_of[v] = k.low(v)
        return axes

    def _mixes_vectors(self) -> bool:
        """Whether each thread of a map of rows should have single elements, and those of a warp stand side by side."""
        if len(self.tiling.axes) != 2 or any(not self.space.single(v) for v in self.space.reductions):
            return False
        statements = [r.space.statement for r in self.results]
        many = {v for v in self.space.outputs if self.space.largest(v) > 1}
        read = [a for s in statements for a in value_accesses(s) if many <= {*index_variables(*a.index)}]
        return mixes_vectors([Access(s.output, s.index or ()) for s in statements], read, self.types, self.k.strides)

    def _direct(self, space: Space, accumulator: Accumulator) -> tuple[str, str, str | None]:
        """A statement without reduction: its value where the point is valid."""
        k, s = self.k, space.statement
        k.blockwise = True
        evaluator = TritonScalars(self.frame, *s.roots)
        evaluator.read_first(*s.roots)
        mask, compute_dtype = _mask(space, self.frame, evaluator), accumulator.term_dtype
        code = evaluator.text(s.body, compute_dtype)
        if mask is None:
            return code, compute_dtype, None
        valid = "valid" if space is k.space else k.names.fresh("valid")
        k.assign(valid, mask)
        if s.default is not None:
            return code, compute_dtype, valid
        identity_text = Accumulator(s.aggregation, compute_dtype).identity_text
        return f"tl.where({valid}, {code}, {identity_text})", compute_dtype, None

    def _reduction(self) -> str | None:
        """Lines of the loop over the reduction, for all results; the name of the test that a point was valid, where
        needed."""
        k, tiling, axes = self.k, self.tiling, self.axes
        s, body = k.space.statement, k.scopes[0].lines
        tiled, lanes = tiling.reduction is not None, tiling.lanes
        dimensions = [*(a.block for a in axes), *(["BR"] if tiled else [])] if lanes is None else ["BM", "BR", "BN"]
        shape = tuple_text(dimensions)
        wants_reached = s.default is not None
        alone = tiling.outer and not whole_blocks(k.space)
        k.or_nan = not wants_reached and all(adds_sines(r.space.statement) for r in self.results)
        loops = self._loops()
        if alone:
            body.append(assign("zeros", f"tl.load({self._first_place()}, other=0)"))
        started = [line for a in self.accumulators for line in a.start(shape, "zeros" if alone else None)]
        if k.or_nan:
            k.or_nan = False
            finite = " & ".join(f"({name} - {name} == 0)" for a in self.accumulators for name in a.state)
            loops.append(If(f"tl.min(({finite}).to(tl.int32)) == 0", (*started, *self._loops())))
        body += started
        if wants_reached:
            body.append(assign("reached", f"tl.full({shape}, False, tl.int1)"))
        body += loops
        for accumulator in self.accumulators:
            body += accumulator.reduce(1) if lanes is not None else ()
            body += accumulator.reduce(len(axes)) if tiled else ()
        if tiled and wants_reached:
            body.append(assign("reached", f"tl.reduce(reached, {len(axes)}, or_)"))
        return "reached" if wants_reached else None

    def _loops(self) -> list[CodeLine]:
        """Lines that walk what is summed, and add it up."""
        k, tiling = self.k, self.tiling
        tails = tests_of_reads(self.space, *tiling.axes[1], self.tails) if tiling.outer else self.tails
        walk = (points_of if tiling.reduction is None else blocks_of)(k, self.axes, tails, self.reductions, tiling)

        def write(step: int) -> int:
            frame = walk.enter(step)
            return [self._term(frame, r.space, a) for r, a in zip(self.results, self.accumulators, strict=True)][0]

        lines = reads_first(k, walk.steps, write)
        for loops in reversed(walk.loops):
            for counter, over in reversed(loops):
                lines = [ForLoop(counter, over, tuple(lines))]
            lines = [*(k.scopes.pop().lines if len(k.scopes) > 1 else ()), *lines]
        found = [*walk.before, *lines]
        for before, over in () if walk.rest is None else (walk.rest,):
            found += [*before, *(replace(x, over=over) for x in lines if isinstance(x, ForLoop))]
        return found

    def _first_place(self) -> str:
        """The places of the first result's block, and a mask that says of none that it is read."""
        k, lanes, s = self.k, self.tiling.lanes, self.k.space.statement
        whole = Frame(k, [a.name for a in self.axes] if lanes is None else ["row", "red", "col"], {})
        forms, both = [whole.form(e) for e in s.index or ()], frozenset(a.name for a in self.axes)
        if self.tiling.parts > 1:
            place = whole.part_address(s.output, f"{s.output}.parts", forms, both)
        else:
            place = whole.address(self.results[0].output, forms, both)
        if lanes is None:
            return f"{place}, mask={NEVER}"
        never = f"(row[:, None, None] < 0) & (col[None, None, :] < 0) & ({BESIDE} < 0)"
        return f"{place} + {BESIDE} * 0, mask={never}"

    def _term(self, frame: Frame, space: Space, accumulator: Accumulator) -> int:
        """Lines that add the point of a frame, or its block of points; how many of them are there for reads."""
        k, tiling, s, lanes = self.k, self.tiling, space.statement, self.tiling.lanes
        evaluator = TritonScalars(frame, *s.roots)
        halves = s.body if lanes is not None and lanes.in_16_bits and isinstance(s.body, Call) else None
        reads = [frame.read(a, 0) for a in halves.args if isinstance(a, Access)] if halves else []
        if tiling.outer and halves is None:
            evaluator.read_first(*s.roots, always=True)
        last = len(k.scopes[-1].lines)
        mask = _mask(space, frame, evaluator)
        if halves is not None:
            code = {"add": "{} + {}", "sub": "{} - {}"}[halves.function].format(*reads)
        else:
            code = evaluator.text(s.body, accumulator.term_dtype)
        if tiling.reduction is not None:
            inside = frame.spread("red_in", "red")
            mask = inside if mask is None else f"{inside} & {mask}"
        if mask is not None:
            k.assign("valid", mask)
            code = f"tl.where(valid, {code}, {accumulator.identity_text})"
        k.assign("value", code)
        k.add(*accumulator.step("value"))
        if s.default is not None:
            k.assign("reached", f"reached | {'valid' if mask is not None else 'True'}")
        return last

    def _store(
        self,
        r: Computed,
        value: str,
        compute_dtype: str,
        reached: str | None,
        given: Mapping[Expr, ScalarValue],
        later: Sequence[Computed],
    ) -> dict[Expr, ScalarValue]:
        """Lines that store a result, in this program's part where it is split; what `later` ones are given of it.
        `given`: what it is given of those before."""
        k, frame, s, types, split = self.k, self.frame, r.space.statement, self.types, self.tiling.parts > 1
        rows, whole = [frame.form(e) for e in s.index or ()], frozenset(frame.axes)
        tests = [*(frame.spread(t, a) for a, t in frame.tails.items()), *frame.tests(r.space.stored)]
        mask = all_text(tests)
        if reached is not None:
            assert s.default is not None
            other = f"tl.load({frame.address(s.default, rows, whole)}, mask={mask}, other=0)"
            if types[s.default].dtype != compute_dtype:
                other = f"{other}.to({triton_type(compute_dtype)})"
            value = f"tl.where({reached}, {value}, {other})"
        value, compute_dtype = finish(frame, r.space, value, compute_dtype, r.epilogue, given)
        found = as_read(frame, r.space, r.output, value, compute_dtype) if r.is_read_by(later) else {}
        if r.stored:
            k.assign("result", value)
            dtype, parts = types[r.output].dtype, f"{s.output}.parts"
            cast = "" if compute_dtype == dtype or split else f".to({triton_type(dtype)})"
            place = frame.part_address(r.output, parts, rows, whole) if split else frame.address(r.output, rows, whole)
            instead = {} if split else frame.vector_tests(r.output, s.index or ())
            mask = all_text([instead.get(test, test) for test in tests])
            k.store(place, f"tl.broadcast_to(result, {self.shape}){cast}", f"tl.broadcast_to({mask}, {self.shape})")
        return found


def _mask(space: Space, frame: Frame, evaluator: TritonScalars) -> str | None:
    return all_text([*frame.tests(space.valid), *map(evaluator.test, space.statement.guards)]) or None


def unwritten(space: Space, accumulator: Accumulator) -> bool | int | float | None:
    """What parts hold at first: the identity, where the classes do not write every element."""
    return None if space.covers else identity(accumulator.aggregation, accumulator.dtype)


def combine_parts(
    space: Space, view: StridedView, parts: int, accumulator: Accumulator, epilogue: Sequence[Statement] = ()
) -> list[Step]:
    """The launch that combines the parts of a split reduction, in order, and computes the epilogue."""
    s, output = space.statement, view.types[space.statement.output]
    name = f"{s.output}.parts"
    count = math.prod(output.shape)
    shape = output.shape if epilogue else (count,)  # an epilogue has the output's variables
    variables = tuple(f"e{k}" for k in range(len(shape))) if epilogue else ("e",)
    places = tuple(map(Index, variables))
    types = {
        **view.types,
        name: TensorType((parts, *shape), accumulator.dtype),
        s.output: TensorType(shape, output.dtype),
    }
    strides = {**view.strides, name: (count, *contiguous(shape)), s.output: contiguous(shape)}
    aggregation = {"assign": "sum"}.get(accumulator.aggregation, accumulator.aggregation)
    body = Access(name, (Index("p"), *places))
    total = Statement(s.output, places, tuple(map(Int, shape)), body, aggregation)
    second = build_space(total, types)
    assert second is not None
    combined = replace(view, statement=total, types=types, strides=strides)
    tiling = combining(variables, count, parts)
    return _Writer([Computed(second, total, epilogue)], combined, tiling).steps()
