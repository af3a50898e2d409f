"""How a kernel walks the points of a reduction: the loops, and what their counters are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Axis, Kernel, Scope
from tilec.backends.triton.plan.lines import CodeLine, assign
from tilec.backends.triton.plan.sizes import WHOLE_VECTOR, Strides, power_of_two
from tilec.backends.triton.pointwise.sharing import passes_once
from tilec.backends.triton.pointwise.tiling import PointwiseTiling, part_of, point_walk, splits_innermost
from tilec.ir.index import linear
from tilec.ir.program import Statement, value_accesses
from tilec.ir.types import Types

FEW_PARTS = 16  # that are combined one after the other
_MOST_EMPTY = 1.15  # places of blocks over a variable's values, where it is walked by itself


@dataclass(frozen=True)
class ReductionWalk:
    """How a reduction is walked: lines before, the loops of each scope, outermost first, by their counters and what
    these go over, and so many steps written out in the innermost one, of which `enter` makes the frame. `rest`: lines
    before the same loop once more, and what it goes over then."""

    before: tuple[CodeLine, ...]
    loops: tuple[tuple[tuple[str, str], ...], ...]
    enter: Callable[[int], Frame]
    steps: int = 1
    rest: tuple[tuple[CodeLine, ...], str] | None = None


def as_memory_runs(reductions: Sequence[str], s: Statement, types: Types, strides: Strides) -> list[str]:
    """Summed variables in the order in which the largest tensor that has them all lies in memory: neighbours in a block
    then are neighbours there."""
    found: list[tuple[int, list[str]]] = []
    for a in value_accesses(s):
        step = {v: abs(n) for e, n in zip(a.index, strides[a.tensor], strict=True) if (v := linear(e).bare) is not None}
        if {*reductions} <= step.keys():
            order = sorted(reductions, key=lambda v: -step[v])
            found.append((types[a.tensor].numel, order))
    return max(found, key=lambda x: x[0])[1] if found else list(reductions)


def blocks_of(
    k: Kernel, axes: list[Axis], tails: dict[str, str], reductions: list[str], tiling: PointwiseTiling
) -> ReductionWalk:
    """Block by block of all summed variables together, or of the last one where it fills blocks: then no point asks
    for the others' values. In parts where the reduction is split over programs."""
    assert tiling.reduction is not None
    *around, last = reductions
    apart = _walks_last(k, around, last, tiling.reduction)
    if apart:
        blocks = -(-k.space.largest(last) // tiling.reduction)
        each = f"tl.cdiv({k.extent(last)}, BR)"
        count, points, step = f"{k.count(around)} * {each}", k.space.count(tuple(around)) * blocks, 1
    else:
        each, count, points, step = "", k.count(reductions), k.space.count(tuple(reductions)), tiling.reduction
    start, end, before = _bounds(k, tiling, count, points, step)
    rest = None
    if not apart and tiling.parts > 1 and _ends_between_vectors(k, points):
        vectors = f"({count}) // {WHOLE_VECTOR} * {WHOLE_VECTOR}"  # tests of these are alike in each
        part = k.number("part", "part_size", part_of(points, tiling.parts, step))
        before = (*before, assign("red_stop", f"tl.minimum(red_from + {part}, {vectors})"))
        beyond = assign("red_from", f"tl.maximum(red_from, {vectors})"), assign("red_stop", end)
        rest, end = (beyond, f"range(red_from, {end}, BR)"), "red_stop"

    def enter(_: int) -> Frame:
        position = f"first % ({each}) * BR + tl.arange(0, BR)" if apart else "first + tl.arange(0, BR)"
        if apart:
            k.assign("window", f"first // ({each})")
            k.decode(Axis("window", tuple(around), None))
        k.assign("red", f"({position}).to(tl.int64)" if k.int64_index else position)
        inner = frozenset(("red", "window", *around) if apart else ("red",))
        frame = Frame(k, [*(a.name for a in axes), "red"], {**tails, "red": "red_in"}, inner)
        k.assign("red_in", f"red < {k.extent(last) if apart else end}")
        k.decode(Axis("red", (last,) if apart else tuple(reductions), "BR"))
        if passes_once(k.space, k.types):
            frame.how = ', eviction_policy="evict_first"'
        return frame

    stages, by = tiling.stages, ", BR" if not apart else ""
    staged = f", 1, num_stages={stages}" if apart else f", BR, num_stages={stages}"
    over = f"tl.range({start}, {end}{staged})" if stages > 1 else f"range({start}, {end}{by})"
    if tiling.written_out:
        k.constants["STEPS"] = -(-points // tiling.reduction)
        over = "tl.static_range(0, STEPS * BR, BR)"
    return ReductionWalk(before, ((("first", over),),), enter, rest=rest)


def _ends_between_vectors(k: Kernel, points: int) -> bool:
    """Whether the last point of a walk along memory is not the last of a vector's, where rows begin at vectors: tests
    of single elements would have all of it read element by element."""
    s = k.space.statement
    read = [k.strides[a.tensor] for a in value_accesses(s)]
    inside = all(n % WHOLE_VECTOR == 0 for steps in read for n in steps if n != 1)
    return points % WHOLE_VECTOR != 0 and inside and any(1 in steps for steps in read)


def _walks_last(k: Kernel, around: Sequence[str], last: str, block: int) -> bool:
    """Whether blocks are of the last summed variable alone: where it fills them, and vectors start where they did, with
    each of its lines, unless nothing is read in vectors."""
    n = k.space.largest(last)
    if not around or -(-n // block) * block > _MOST_EMPTY * n:
        return False
    read = value_accesses(k.space.statement)
    return n % WHOLE_VECTOR == 0 or not any(a.index and linear(a.index[-1]).bare == last for a in read)


def _bounds(
    k: Kernel, tiling: PointwiseTiling, count: str, points: int, block: int
) -> tuple[str, str, tuple[CodeLine, ...]]:
    """Where a walk over so many points, in whole blocks, starts and ends in this program, and lines that say so."""
    if tiling.parts == 1:
        return "0", count, ()
    part = k.number("part", "part_size", part_of(points, tiling.parts, block))
    start = assign("red_from", f"{k.program(2)} * {part}")
    return "red_from", "red_end", (start, assign("red_end", f"tl.minimum(red_from + {part}, {count})"))


def points_of(
    k: Kernel, axes: list[Axis], tails: dict[str, str], reductions: list[str], tiling: PointwiseTiling
) -> ReductionWalk:
    """Point by point, or a few side by side: one summed variable innermost, several of its values at a time so that
    their reads overlap."""
    outer, lanes = tiling.outer, tiling.lanes
    inner, windows, block = point_walk(k.space, reductions, lanes)
    integer = "tl.int64" if k.int64_index else "tl.int32"
    loops: list[tuple[tuple[str, str], ...]] = []
    scopes: list[frozenset[str]] = []
    innermost = splits_innermost(k.space, inner, windows)
    if innermost:
        start, end, before = _bounds(k, tiling, k.extent(inner), k.space.largest(inner), block)
    else:
        start, end, before = _bounds(k, tiling, k.count(windows), k.space.count(windows), 1)
    if windows:
        k.scopes.append(Scope())
        k.assign("window", f"tl.full((), 0, {integer}) + at_window")
        k.decode(Axis("window", windows, None))
        loops.append((("at_window", f"range(0, {k.count(windows)})" if innermost else f"range({start}, {end})"),))
        start, end = (start, end) if innermost else ("0", k.extent(inner))
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


def combining(variables: tuple[str, ...], count: int, parts: int) -> PointwiseTiling:
    """Of the launch that combines the parts of a split reduction: many parts side by side, since there are few programs
    and each would wait for one part after the other."""
    if parts < FEW_PARTS:
        return PointwiseTiling(((variables, min(power_of_two(count), 256)),), None)
    block = min(power_of_two(count), max(16, 4096 // power_of_two(parts)))
    return PointwiseTiling(((variables, block),), min(power_of_two(parts), 4096 // block))
