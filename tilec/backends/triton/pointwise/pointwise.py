"""Families map and reduce: any body over tiles of outputs, any aggregation.

`map` has no reduction. `tile` works on blocks of outputs x reduction, where memory runs along the reduction or the
reduction is long. `loop` walks the reduction point by point over a block of rows x columns: short windows, and bodies
whose operands each depend on one side, which are then read once a row or column and combined as an outer product.
A long reduction with few outputs is split over programs; a second launch combines the parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.code import python_name, tuple_text
from tilec.backends.common.scalars import identity
from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.emit.epilogue import finish
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Axis, Kernel, Scope, all_text, triton_type
from tilec.backends.triton.emit.scalar import TritonScalars
from tilec.backends.triton.iteration.coalesce import StridedView, coalesce
from tilec.backends.triton.iteration.space import Space, build_space
from tilec.backends.triton.plan.lines import CodeLine, ForLoop, assign
from tilec.backends.triton.plan.plan import Allocate, Release, Step
from tilec.backends.triton.plan.sizes import contiguous
from tilec.backends.triton.pointwise.residues import unrolled_outputs
from tilec.backends.triton.pointwise.semiring_matmul import (
    BESIDE,
    HALVES,
    NEVER,
    reads_first,
    tests_of_reads,
    whole_blocks,
)
from tilec.backends.triton.pointwise.taps import TapWriter, tap_sums
from tilec.backends.triton.pointwise.tiling import (
    PointwiseTiling,
    choose_pointwise_tiling,
    combining,
    part_of,
    passes_once,
    point_walk,
)
from tilec.ir.program import Access, Call, Index, Int, Statement
from tilec.ir.types import TensorType, Types


def pointwise(
    space: Space, view: StridedView, flat: Statement, int64_index: bool, epilogue: Sequence[Statement] = ()
) -> list[Step] | None:
    """Steps that compute a statement into its allocated output. `flat`, the statement as written, heads the kernel.
    With an epilogue, it is the last statement's output that is stored; None where it takes none. It joins the
    launch that combines parts, where there is one; `view` is not coalesced then, and what makes the parts is."""
    tiling = choose_pointwise_tiling(space, view)
    if tiling.reduction is None and not tiling.outer and (space.covers or not epilogue):
        if (writer := unrolled_outputs(space, view, int64_index, epilogue)) is not None:
            return [writer.launch(flat)]
    own, merged = space, view
    if epilogue and tiling.reduction is not None:
        merged = coalesce(view)
        found = build_space(merged.statement, merged.types)
        assert found is not None
        own, tiling = found, choose_pointwise_tiling(found, merged)
    taps = tap_sums(own) if tiling.reduction is not None else None
    split = taps is not None or tiling.parts > 1
    if epilogue and not space.covers:
        return None
    if not split:
        return _steps(
            space, view, flat, choose_pointwise_tiling(space, view) if epilogue else tiling, int64_index, epilogue
        )
    s = own.statement
    accumulator = Accumulator.of(s.aggregation, view.types[s.output].dtype)
    parts = f"{s.output}.parts"
    number = tiling.parts if taps is None else taps.parts
    made = (
        [TapWriter(taps, own, merged, int64_index).launch(flat, parts)]
        if taps is not None
        else _steps(own, merged, flat, tiling, int64_index)
    )
    shape = (number, math.prod(view.types[s.output].shape))
    content = None if taps is not None else unwritten(own, accumulator)
    return [
        Allocate(parts, shape, accumulator.dtype, content),
        *made,
        *combine_parts(space, view, number, accumulator, int64_index, epilogue),
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


def _steps(
    space: Space,
    view: StridedView,
    flat: Statement,
    tiling: PointwiseTiling,
    int64_index: bool,
    epilogue: Sequence[Statement] = (),
) -> list[Step]:
    s = space.statement
    k = Kernel(python_name(s.output) + "_kernel", space, view.types, view.strides, int64_index, powers=True)
    accumulator = Accumulator.of(s.aggregation, view.types[s.output].dtype)
    if tiling.lanes is not None and tiling.lanes.in_16_bits:
        accumulator = replace(accumulator, dtype=HALVES)
    k.residues()
    axes = _output_axes(k, tiling)
    tails = {a.name: f"{a.name}_in" for a in axes}
    needed = tests_of_reads(space, *tiling.axes[1], tails) if tiling.outer else tails
    reductions = [v for v in space.reductions if not space.single(v)]
    for v in space.reductions:
        if v not in reductions:
            k.value_of[v] = k.low(v)
    outer_frame = Frame(k, [a.name for a in axes], tails)
    shape = tuple_text([a.block for a in axes])
    if reductions:
        stored = epilogue[-1].output if epilogue else s.output
        body, reached = _reduction(k, axes, needed, reductions, tiling, accumulator, stored)
        value, compute_dtype = accumulator.result(), accumulator.dtype
        k.scopes[0].lines += body
    else:
        value, compute_dtype, reached = _direct(k, outer_frame, accumulator)
    target = s.output if tiling.parts == 1 else f"{s.output}.parts"
    _store(k, outer_frame, value, compute_dtype, reached, target, shape, epilogue)
    blocks = [(b, size) for b, (_, size) in zip(("BM", "BN"), tiling.axes, strict=False)]
    blocks += [("BR", tiling.reduction)] if reductions and tiling.reduction is not None else []
    k.constants = {**dict(blocks), **k.constants}
    tiles = math.prod(-(-max(space.count(variables), 1) // size) for variables, size in tiling.axes)
    if any(0 in (e[v] for v in space.outputs) for e in space.extent[:1]) and len(space.extent) == 1:
        return []
    return k.launches((tiles, len(space.classes), tiling.parts), tiling.warps, 2, flat, *epilogue)


def _output_axes(k: Kernel, tiling: PointwiseTiling) -> list[Axis]:
    """Positions of the output block's elements, decoded into variables."""
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
        k.assign(axis.name, f"{start} * {axis.block} + tl.arange(0, {axis.block})")
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


def _direct(k: Kernel, frame: Frame, accumulator: Accumulator) -> tuple[str, str, str | None]:
    """A statement without reduction: its value where the point is valid."""
    s = k.space.statement
    k.blockwise = True
    evaluator = TritonScalars(frame, *s.roots)
    evaluator.read_first(*s.roots)
    mask, compute_dtype = _mask(k, frame, evaluator), accumulator.term_dtype
    code = evaluator.text(s.body, compute_dtype)
    if mask is None:
        return code, compute_dtype, None
    k.assign("valid", mask)
    if s.default is not None:
        return code, compute_dtype, "valid"
    return f"tl.where(valid, {code}, {Accumulator(s.aggregation, compute_dtype).identity_text})", compute_dtype, None


def _mask(k: Kernel, frame: Frame, evaluator: TritonScalars) -> str | None:
    return all_text([*frame.tests(k.space.valid), *map(evaluator.test, k.space.statement.guards)]) or None


def _reduction(
    k: Kernel,
    axes: list[Axis],
    tails: dict[str, str],
    reductions: list[str],
    tiling: PointwiseTiling,
    accumulator: Accumulator,
    stored: str,
) -> tuple[list[CodeLine], str | None]:
    """Lines of the loop over the reduction, for the output `stored`; the name of the test that a point was valid, where
    needed."""
    body: list[CodeLine] = []
    s = k.space.statement
    tiled, lanes = tiling.reduction is not None, tiling.lanes
    walk = _tiled(k, axes, tails, reductions, tiling) if tiled else _pointed(k, axes, tails, reductions, tiling)
    shape = tuple_text([*(a.block for a in axes), *(["BR"] if tiled else [])] if lanes is None else ["BM", "BR", "BN"])
    lines = reads_first(k, walk.steps, lambda step: _term(k, walk.enter(step), tiling, accumulator))
    wants_reached = s.default is not None
    alone = tiling.outer and not whole_blocks(k.space)
    if alone:
        whole = Frame(k, [a.name for a in axes] if lanes is None else ["row", "red", "col"], {})
        forms, both = [whole.form(e) for e in s.index or ()], frozenset(a.name for a in axes)
        split = tiling.parts > 1
        parts = f"{s.output}.parts"
        place = whole.part_address(s.output, parts, forms, both) if split else whole.address(stored, forms, both)
        never = NEVER if lanes is None else f"(row[:, None, None] < 0) & (col[None, None, :] < 0) & ({BESIDE} < 0)"
        place += "" if lanes is None else f" + {BESIDE} * 0"
        body.append(assign("zeros", f"tl.load({place}, mask={never}, other=0)"))
    body += accumulator.start(shape, "zeros" if alone else None)
    if wants_reached:
        body.append(assign("reached", f"tl.full({shape}, False, tl.int1)"))
    body += walk.before
    for loops in reversed(walk.loops):
        for counter, over in reversed(loops):
            lines = [ForLoop(counter, over, tuple(lines))]
        lines = [*(k.scopes.pop().lines if len(k.scopes) > 1 else ()), *lines]
    body += lines
    if lanes is not None:
        body += accumulator.reduce(1)
    if tiled:
        body += accumulator.reduce(len(axes))
        if wants_reached:
            body.append(assign("reached", f"tl.reduce(reached, {len(axes)}, either_)"))
    return body, "reached" if wants_reached else None


def _term(k: Kernel, frame: Frame, tiling: PointwiseTiling, accumulator: Accumulator) -> int:
    """Lines that add the point of a frame, or its block of points; how many of them are there for reads."""
    s, lanes = k.space.statement, tiling.lanes
    evaluator = TritonScalars(frame, *s.roots)
    halves = s.body if lanes is not None and lanes.in_16_bits and isinstance(s.body, Call) else None
    reads = [frame.read(a, 0) for a in halves.args if isinstance(a, Access)] if halves else []
    if tiling.outer and halves is None:
        evaluator.read_first(*s.roots, always=True)
    last = len(k.scopes[-1].lines)
    mask = _mask(k, frame, evaluator)
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


@dataclass(frozen=True)
class ReductionWalk:
    """How a reduction is walked: lines before, the loops of each scope, outermost first, by their counters and what
    these go over, and so many steps written out in the innermost one, of which `enter` makes the frame."""

    before: tuple[CodeLine, ...]
    loops: tuple[tuple[tuple[str, str], ...], ...]
    enter: Callable[[int], Frame]
    steps: int = 1


def _tiled(
    k: Kernel, axes: list[Axis], tails: dict[str, str], reductions: list[str], tiling: PointwiseTiling
) -> ReductionWalk:
    """Block by block of all summed variables together; in parts where the reduction is split over programs."""
    assert tiling.reduction is not None
    start, end, before = _bounds(k, tiling, k.count(reductions), k.space.count(tuple(reductions)), tiling.reduction)

    def enter(_: int) -> Frame:
        position = "first + tl.arange(0, BR)"
        k.assign("red", f"({position}).to(tl.int64)" if k.int64_index else position)
        frame = Frame(k, [*(a.name for a in axes), "red"], {**tails, "red": "red_in"}, frozenset(("red",)))
        k.assign("red_in", f"red < {end}")
        k.decode(Axis("red", tuple(reductions), "BR"))
        if passes_once(k.space, k.types):
            frame.how = ', eviction_policy="evict_first"'
        return frame

    stages = tiling.stages
    over = f"tl.range({start}, {end}, BR, num_stages={stages})" if stages > 1 else f"range({start}, {end}, BR)"
    return ReductionWalk(before, ((("first", over),),), enter)


def _bounds(
    k: Kernel, tiling: PointwiseTiling, count: str, points: int, block: int
) -> tuple[str, str, tuple[CodeLine, ...]]:
    """Where a walk over so many points, in whole blocks, starts and ends in this program, and lines that say so."""
    if tiling.parts == 1:
        return "0", count, ()
    part = k.number("part", "part_size", part_of(points, tiling.parts, block))
    start = assign("red_from", f"{k.program(2)} * {part}")
    return "red_from", "red_end", (start, assign("red_end", f"tl.minimum(red_from + {part}, {count})"))


def _pointed(
    k: Kernel, axes: list[Axis], tails: dict[str, str], reductions: list[str], tiling: PointwiseTiling
) -> ReductionWalk:
    """Point by point, or a few side by side: one summed variable innermost, several of its values at a time so that
    their reads overlap."""
    outer, lanes = tiling.outer, tiling.lanes
    inner, windows, block = point_walk(k.space, reductions, lanes)
    integer = "tl.int64" if k.int64_index else "tl.int32"
    loops: list[tuple[tuple[str, str], ...]] = []
    scopes: list[frozenset[str]] = []
    count, points = (k.count(windows), k.space.count(windows)) if windows else (k.extent(inner), k.space.largest(inner))
    start, end, before = _bounds(k, tiling, count, points, 1 if windows else block)
    if windows:
        k.scopes.append(Scope())
        k.assign("window", f"tl.full((), 0, {integer}) + at_window")
        k.decode(Axis("window", windows, None))
        loops.append((("at_window", f"range({start}, {end})"),))
        start, end = "0", k.extent(inner)
        scopes.append(frozenset((*windows, "window")))
    unroll = block if lanes is None else lanes.times
    if lanes is not None:
        k.constants["BR"] = lanes.count
    if not outer:
        k.constants["UNROLL"] = unroll
    loop = ("first", f"range({start}, {end}, {block if outer else 'UNROLL'})")
    loops.append((loop,) if outer else (loop, ("step", "tl.static_range(UNROLL)")))

    def enter(number: int) -> Frame:
        step, red = (str(number), k.names.fresh(f"red_{number}")) if outer else ("step", "red")
        if lanes is None:
            k.assign(red, f"tl.full((), 0, {integer}) + (first + {step})")
        else:
            k.assign(red, f"tl.arange(0, BR).to({integer}) + (first + {step} * BR)")
        k.decode(Axis(red, (inner,), None if lanes is None else "BR"))
        bound = (*scopes, frozenset((inner, red)))
        frame = Frame(k, [a.name for a in axes] if lanes is None else ["row", red, "col"], tails, *bound)
        if outer:
            columns = [v for v in axes[1].variables if k.space.largest(v) > 1]
            frame.untested = k.line("some", f"{k.count(columns)} > 0", 0)
        return frame

    return ReductionWalk(before, tuple(loops), enter, unroll if outer else 1)


def _store(
    k: Kernel,
    frame: Frame,
    value: str,
    compute_dtype: str,
    reached: str | None,
    target: str,
    shape: str,
    epilogue: Sequence[Statement],
) -> None:
    s, types = k.space.statement, k.types
    rows = [frame.form(e) for e in s.index or ()]
    mask = " & ".join(dict.fromkeys([
        *(frame.spread(t, a) for a, t in frame.tails.items()), *frame.tests(k.space.stored),
    ]))  # fmt: skip
    if reached is not None:
        assert s.default is not None
        other = f"tl.load({frame.address(s.default, rows, frozenset(frame.axes))}, mask={mask}, other=0)"
        stored = types[s.default].dtype
        if stored != compute_dtype:
            other = f"{other}.to({triton_type(compute_dtype)})"
        value = f"tl.where({reached}, {value}, {other})"
    value, compute_dtype = finish(frame, k.space, value, compute_dtype, epilogue)
    k.assign("result", value)
    output = epilogue[-1].output if epilogue else s.output
    dtype = types[output].dtype
    cast = "" if compute_dtype == dtype or target != s.output else f".to({triton_type(dtype)})"
    whole = frozenset(frame.axes)
    split = target != s.output
    address = frame.part_address(output, target, rows, whole) if split else frame.address(output, rows, whole)
    k.store(address, f"tl.broadcast_to(result, {shape}){cast}", f"tl.broadcast_to({mask}, {shape})")


def unwritten(space: Space, accumulator: Accumulator) -> bool | int | float | None:
    """What parts hold at first: the identity, where the classes do not write every element."""
    return None if space.covers else identity(accumulator.aggregation, accumulator.dtype)


def combine_parts(
    space: Space,
    view: StridedView,
    parts: int,
    accumulator: Accumulator,
    int64_index: bool,
    epilogue: Sequence[Statement] = (),
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
    combined = StridedView(total, types, strides)
    return _steps(second, combined, total, combining(variables, count, parts), int64_index, epilogue)
