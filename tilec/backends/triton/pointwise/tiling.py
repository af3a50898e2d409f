"""Block sizes and grids of maps and reductions, and how long reductions are split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilec.backends.triton.emit.contiguity import (
    bytes_at_once,
    is_window,
    moves_at_once,
    runs_across,
    runs_along,
    transposed_sum,
    transposed_window,
)
from tilec.backends.triton.emit.sines import BLOCKWISE
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS, TWO_A_MULTIPROCESSOR
from tilec.backends.triton.plan.sizes import filled_block, power_of_two
from tilec.backends.triton.pointwise.semiring_matmul import (
    KVector,
    block_sizes,
    calls_library,
    laid_out,
    lanes_of,
    sides,
)
from tilec.backends.triton.pointwise.sharing import (
    LEAST_USED,
    NARROWEST_BLOCK,
    NARROWEST_FILLED,
    SHORT_FILLED,
    between_last,
    computed_places,
    decoded_once,
    gathered_rows,
    heavy_calls,
    joined_columns,
    passes_once,
    share_terms,
    shared_by_neighbours,
    short_axes,
    weighted_columns,
)
from tilec.backends.triton.pointwise.windows import choose_register_block
from tilec.cost import size_in_bytes
from tilec.ir.index import linear
from tilec.ir.program import Access, Call, index_variables, value_accesses, walk
from tilec.ir.symbolic import gcd
from tilec.ir.types import ITEM_BYTES, NARROW

SHORTEST_PART = 1024  # points of a part of a split reduction, at least
ENOUGH_WALKS, SMALLEST_WALK = 4 * MULTIPROCESSORS, 128  # programs that walk windows; elements of each, at least
READS_UNDER_WAY = 64  # of a thread, at most
FEW_GATHERED = 256  # elements of a program that reads several at computed places, or has few beside it
TURNED_BLOCK = 32, 128  # outputs and points of a block, where memory runs along either somewhere
SHORTEST_TURNED = 12  # columns of a block whose rows memory runs along
MANY_POINTS = 2**22  # from which on a reduction across memory reads long runs of it
MOST_AT_ONCE = 8  # values of a summed variable whose reads are in flight together
LONGEST_WALK, SHORTEST_WALK = 256, 32  # points that few programs walk one after the other, and of a part, at least
ENOUGH_HEAVY = 16 * MULTIPROCESSORS  # programs that walk points whose functions wait for each other's results
SHORT_ROW, BLOCK_OF_SHORT_ROWS = 256, 2048  # rows of so many elements, and the elements of a block of many such
_FEW_TAPS, _TAPS_TOGETHER = 256, 16  # of a filter; those of a block, which read neighbouring elements
SHARING_BLOCK, WEIGHTED = 512, 8192  # elements of a block that share the terms of their sums; of weighted terms
LANES_FILLED = 128  # elements of a block of rows and columns: with fewer, its lanes take points of the sum as well
WIDEST_MAP, LEAST_MAPS = 4096, 16 * MULTIPROCESSORS  # elements of a program of 16-bit maps; programs, at least
LEAST_BESIDE = 1024  # elements of a program of fewer warps


@dataclass(frozen=True)
class PointwiseTiling:
    """How a statement's variables are spread: `axes` of the output block with their sizes, the reduction's block (None:
    walked point by point), parts of a split reduction, warps. `outer`: operands depend on one axis each, and the block
    is laid out for that; `lanes`: points of its reduction side by side; `stages`: of the walk over it; `written_out`:
    its steps stand one after the other, and what they read is under way together."""

    axes: tuple[tuple[tuple[str, ...], int], ...]
    reduction: int | None
    parts: int = 1
    warps: int = 4
    outer: bool = False
    lanes: KVector | None = None
    stages: int = 1
    written_out: bool = False


def choose_pointwise_tiling(space: Space, view: StridedView) -> PointwiseTiling:
    """A first guess that is good untuned; see `pointwise` for the three forms."""
    outputs = [v for v in space.outputs if space.largest(v) > 1]
    reductions = [v for v in space.reductions if not space.single(v)]
    if not reductions:
        turned = runs_across(space, view, outputs)
        tiling = _map_tiling(space, outputs, turned, _map_block(space, view))
        found = _filled(_for_row_vectors(tiling, space, view), space, view)
        found = found if turned or found.warps != tiling.warps else _joined(found, space, view, outputs)
        return found if turned else _of_one_warp(found, space, view)
    points = space.count(tuple(reductions))
    rows, columns = sides(space, outputs)
    bm, bn, warps = block_sizes(space, rows, columns) if rows and columns else (1, 1, 4)
    few = 1 < bm * bn < LANES_FILLED and points >= MANY_POINTS // LANES_FILLED
    taps = few or _are_taps(space, outputs, reductions)
    if rows and columns and not taps:
        tiling = PointwiseTiling(((tuple(rows), bm), (tuple(columns), bn)), None, 1, warps, laid_out(space, bm, bn))
        lanes = lanes_of(space, view, columns, bm, bn, warps) if tiling.outer else None
        tiling = tiling if lanes is None else replace(tiling, warps=lanes.warps, lanes=lanes)
        return replace(tiling, parts=_parts_of_walk(space, reductions, tiling))
    along = runs_along(space, view, reductions)
    if not few and ((not along and is_window(space, reductions)) or choose_register_block(space, view) is not None):
        turned = transposed_window(space, view, outputs) if len(outputs) > 1 else None
        if turned is not None:
            return _spread(space, reductions, _map_tiling(space, outputs, turned))
        return replace(
            _window_tiling(space, outputs) or _spread(space, reductions, _map_tiling(space, outputs)), reduction=None
        )
    many = space.count(tuple(outputs)) * points >= MANY_POINTS
    if many and not few and not taps and share_terms(space, outputs, reductions):
        tiling = _of_neighbours(space, outputs)
        enough = ENOUGH_HEAVY if heavy_calls(space) else TWO_A_MULTIPROCESSOR
        return replace(tiling, parts=_parts_of_walk(space, reductions, tiling, enough))
    return _of_outputs_and_points(space, view, outputs, reductions, along, taps)


def _of_outputs_and_points(
    space: Space, view: StridedView, outputs: Sequence[str], reductions: Sequence[str], along: bool, taps: bool
) -> PointwiseTiling:
    """Blocks of outputs x points of a reduction, in parts where programs are few. `along`: memory runs along these."""
    count, points = space.count(tuple(outputs)), space.count(tuple(reductions))
    many = count * points >= MANY_POINTS
    weighted = weighted_columns(space, outputs, reductions) if many and not along and not taps else None
    axes: tuple[tuple[tuple[str, ...], int], ...] = ()
    if along:
        longest = 8192 if many and passes_once(space, view.types) else 2048
        br = min(power_of_two(points), 4096 if count < TWO_A_MULTIPROCESSOR else longest)
        short = many and br <= SHORT_ROW
        gathered = gathered_rows(space, view, outputs, reductions) if short else None
        if gathered is not None:
            rows, columns, warps, written_out = gathered
            return PointwiseTiling(((tuple(outputs), rows),), columns, 1, warps, written_out=written_out)
        if short and shared_by_neighbours(space, outputs, reductions):
            bn = min(power_of_two(space.largest(outputs[-1])), 2 * BLOCK_OF_SHORT_ROWS // br)
            return PointwiseTiling(((tuple(outputs[:-1]), 1), ((outputs[-1],), bn)), br, 1, 4)
        decoded = decoded_once(space, outputs, reductions) if many and br > SHORT_ROW else None
        across = transposed_sum(space, view, outputs) if many and br > SHORT_ROW else None
        if decoded is not None and across is None:
            last, bn = decoded
            return PointwiseTiling(((tuple(outputs[: -len(last)]), 1), (last, bn)), SHORT_ROW, 1, 4)
        own = BLOCK_OF_SHORT_ROWS if short and not computed_places(space) else 1024  # who asks where they are wait
        bo = max(1, min(power_of_two(count), own // br))
        if across is not None:
            outputs, (bo, br) = [*(v for v in outputs if v != across), across], TURNED_BLOCK
    elif weighted is not None:
        bn, heavy = weighted
        axes = ((tuple(outputs[:-1]), 1), ((outputs[-1],), bn))
        if heavy:
            return PointwiseTiling(axes, max(1, min(power_of_two(points), WEIGHTED // bn)), 1, 4)
        bo, br = bn, max(1, min(power_of_two(points), 4096 // bn))
    else:
        width = power_of_two(space.largest(outputs[-1])) if outputs else 1
        most = 256 if many else 128
        bo = min(power_of_two(count), width if NARROWEST_BLOCK <= width <= most else most)
        br = max(1, min(power_of_two(points), 4096 // bo))
        if many and bo == width and len(outputs) > 1 and SHORT_FILLED * bo <= space.largest(outputs[-1]) < bo:
            axes = ((tuple(outputs[:-1]), 1), ((outputs[-1],), bo))  # a row of memory is one block's
    if taps:
        axes, bo, br = (), min(power_of_two(count), _TAPS_TOGETHER), 4096 // min(power_of_two(count), _TAPS_TOGETHER)
    axes = axes or ((tuple(outputs), bo),)
    programs = math.prod(-(-space.count(variables) // size) for variables, size in axes) * len(space.classes)
    parts = 1
    if programs < TWO_A_MULTIPROCESSOR and points >= 2 * SHORTEST_PART // bo and space.statement.default is None:
        parts = max(1, min(4 * TWO_A_MULTIPROCESSOR // max(programs, 1), -(-points // (4 * br))))
        parts = -(-points // part_of(points, parts, br))
    warps = 4 if bo * br < 4096 else 16 if br == 8192 else 8
    if many and not along and all(view.types[a.tensor].dtype in NARROW for a in value_accesses(space.statement)):
        return PointwiseTiling(axes, br, parts, 4, stages=3)  # half the bytes: more under way
    return PointwiseTiling(axes, br, parts, warps)


def _of_neighbours(space: Space, outputs: Sequence[str]) -> PointwiseTiling:
    """Blocks of rows of the last output variable, where they fill blocks, or of all output variables together."""
    n = space.largest(outputs[-1])
    block = min(power_of_two(n), SHARING_BLOCK)
    m = space.count(tuple(outputs[:-1]))
    if len(outputs) > 1 and -(-n // block) * block <= LEAST_USED * n:
        rows = tuple(outputs[:-1]), min(power_of_two(m), SHARING_BLOCK // block)
        return PointwiseTiling((rows, ((outputs[-1],), block)), None)
    return PointwiseTiling(((tuple(outputs), min(power_of_two(n * m), SHARING_BLOCK)),), None)


def _are_taps(space: Space, outputs: Sequence[str], reductions: Sequence[str]) -> bool:
    """Whether few outputs are long sums of which neighbours read neighbouring elements: the taps of a filter, whose
    gradient is a product of signals a few places apart."""
    if space.statement.aggregation != "sum" or space.count(tuple(outputs)) > _FEW_TAPS:
        return False
    forms = (set(linear(e).variables()) for a in value_accesses(space.statement) for e in a.index)
    slides = any(own.intersection(outputs) and own.intersection(reductions) for own in forms)
    return slides and space.count(tuple(reductions)) >= MANY_POINTS // _FEW_TAPS


def _map_block(space: Space, view: StridedView) -> int:
    """Elements of a program of four warps: more of 16 bits, where one tensor or two are read and programs are many."""
    s = space.statement
    read = {a.tensor for a in value_accesses(s) if len(index_variables(*a.index)) >= len(space.outputs)}
    types = [view.types[name] for name in (s.output, *read)]
    block = WIDEST_MAP if len(read) <= 1 else WIDEST_MAP // 2
    many = space.count(space.outputs) >= LEAST_MAPS * block
    return block if many and all(t.dtype in NARROW for t in types) else 1024


def _map_tiling(
    space: Space, outputs: Sequence[str], turned: str | None = None, elements: int = 1024
) -> PointwiseTiling:
    """Where functions look at all of a block, that is one warp's: more would have to wait for each other. `turned`: the
    variable of rows along which memory runs somewhere, whose neighbours share a block then."""
    asks = any(isinstance(e, Call) and e.function in BLOCKWISE for e in walk(space.statement.body))
    summed = not all(map(space.single, space.reductions))
    block, warps = (512, 1) if asks and not turned and not summed else (1024 if turned else elements, 4)
    if len(outputs) < 2 or space.largest(outputs[-1]) < (SHORTEST_TURNED if turned else 32):
        n = space.count(tuple(outputs))
        tail = () if asks or turned or summed or n < MANY_POINTS else short_axes(space, outputs)
        if tail:
            bn = power_of_two(space.count(tail))
            return PointwiseTiling(((tuple(outputs[: -len(tail)]), max(1, block // bn)), (tail, bn)), None, 1, warps)
        if not summed and n <= TWO_A_MULTIPROCESSOR * block and computed_places(space):
            block = FEW_GATHERED
        return PointwiseTiling(((tuple(outputs), min(power_of_two(n), block)),), None, 1, warps)
    scattered = not summed and computed_places(space, outputs[-1]) > 1
    block = min(block, FEW_GATHERED) if scattered else block
    bn = min(power_of_two(space.largest(outputs[-1])), NARROWEST_BLOCK if turned or scattered else block)
    m = space.count(tuple(outputs[:-1]))
    rows = between_last(space, outputs)
    rows = rows if turned is None else (*(v for v in rows if v != turned), turned)
    axes = (rows, max(1, min(power_of_two(m), block // bn))), ((outputs[-1],), bn)
    return PointwiseTiling(axes, None, 1, warps)


def _for_row_vectors(tiling: PointwiseTiling, space: Space, view: StridedView) -> PointwiseTiling:
    """The same with fewer warps, and rows in proportion, where a tensor has the block's columns alone (a bias, a
    weight): a thread reads as many elements of its one row at once as of the block then. With fewer, the block would
    go through shared memory to stand beside it. Programs of one warp, or of few elements, are not better."""
    if len(tiling.axes) != 2 or len(tiling.axes[1][0]) != 1 or len(space.classes) != 1:
        return tiling
    (rows, down), ((last,), bn) = tiling.axes
    s = space.statement
    along = [a for a in {Access(s.output, s.index or ()), *value_accesses(s)} if last in index_variables(*a.index)]
    elements = {size_in_bytes(replace(view.types[a.tensor], shape=())) for a in along}
    if len(elements) != 1 or {last} not in _walked_variables(space):
        return tiling
    at_once = 16 // elements.pop()
    warps = bn // (32 * at_once)
    fewer = down * warps // tiling.warps
    if not 2 <= warps < tiling.warps or fewer * bn < LEAST_BESIDE:
        return tiling
    if space.largest(last) % at_once or not all(moves_at_once(a, view, last, at_once) for a in along):
        return tiling
    return replace(tiling, axes=((rows, fewer), tiling.axes[1]), warps=warps)


def _walked_variables(space: Space) -> list[set[str]]:
    """For each tensor that is read, the output variables of several values along which it is."""
    many = {v for v in space.outputs if space.largest(v) > 1}
    return [many.intersection(index_variables(*a.index)) for a in set(value_accesses(space.statement))]


def _filled(tiling: PointwiseTiling, space: Space, view: StridedView) -> PointwiseTiling:
    """The same with narrower blocks of more rows, where they fill what there is of columns better. Where a tensor has
    the block's columns alone, threads read as many elements of it at once as of the block."""
    if len(tiling.axes) != 2:
        return tiling
    (rows, down), (last, bn) = tiling.axes
    shared = any(own == {last[-1]} for own in _walked_variables(space))
    element = size_in_bytes(replace(view.types[space.statement.output], shape=()))
    narrow = filled_block(space.largest(last[0]), bn, 32 * tiling.warps * 16 // element if shared else NARROWEST_FILLED)
    many = space.count(rows) >= down * (bn // narrow)
    return replace(tiling, axes=((rows, down * (bn // narrow)), (last, narrow))) if many else tiling


def _joined(tiling: PointwiseTiling, space: Space, view: StridedView, outputs: Sequence[str]) -> PointwiseTiling:
    """The same with several variables as a block's columns, where these fill its rows better than the last alone."""
    if len(tiling.axes) != 2 or len(tiling.axes[1][0]) != 1 or space.count(tuple(outputs)) < MANY_POINTS:
        return tiling
    (rows, down), (_, bn) = tiling.axes
    tail = joined_columns(space, view, outputs, bn)
    kept, width = tuple(v for v in rows if v not in tail), power_of_two(space.count(tail))
    return replace(tiling, axes=((kept, max(1, down * bn // width)), (tail, width))) if tail and kept else tiling


def _of_one_warp(tiling: PointwiseTiling, space: Space, view: StridedView) -> PointwiseTiling:
    """The same with one warp, which stores what lies together, where blocks have several rows that begin anywhere, of
    at most two reads: im2col of 39 channels of 16 bits 95 us, with four warps 180, rows of 257 at indices 83, 171."""
    if len(tiling.axes) != 2 or space.count(space.outputs) < MANY_POINTS or tiling.warps == 1 or heavy_calls(space):
        return tiling
    (rows, _), (last, bn) = tiling.axes
    s, own = space.statement, view.types[space.statement.output]
    vectors = bytes_at_once(own, view.strides[s.output]) > ITEM_BYTES[own.dtype]
    if bn >= 1024 or vectors or len(set(value_accesses(s))) > 2:
        return tiling
    bn = filled_block(space.count(last), bn, NARROWEST_FILLED, NARROWEST_FILLED)
    return replace(tiling, axes=((rows, 1024 // bn), (last, bn)), warps=1)


def _window_tiling(space: Space, outputs: Sequence[str]) -> PointwiseTiling | None:
    """Where windows overlap, the rows of a block are neighbours that read the same elements: narrow blocks have many
    rows. As wide as memory is read in at once, and as little of them beyond the last column as may be."""
    if len(outputs) < 2:
        return None
    many = {v for v in outputs if space.largest(v) > 1}
    reductions = {v for v in space.reductions if not space.single(v)}
    beside = many - {outputs[-1]}
    read = value_accesses(space.statement)
    together = [set(linear(e).variables()) for a in read for e in a.index]
    overlap = any(variables & reductions and variables & beside for variables in together)
    if not overlap or space.largest(outputs[-1]) < NARROWEST_BLOCK:
        return None
    columns, m = space.largest(outputs[-1]), space.count(tuple(outputs[:-1]))
    blocks = [n for n in (128, 64) if -(-columns // n) * n <= LEAST_USED * columns]
    bn = min(blocks[0] if blocks else NARROWEST_BLOCK, power_of_two(columns))
    return PointwiseTiling(((tuple(outputs[:-1]), min(power_of_two(m), 1024 // bn)), ((outputs[-1],), bn)), None)


def _spread(space: Space, reductions: Sequence[str], tiling: PointwiseTiling) -> PointwiseTiling:
    """Smaller blocks where there are few, since a walk waits for memory at each of its points, and where a thread would
    have too many reads under way for its registers."""
    (variables, size), *rest = tiling.axes
    blocks = math.prod(-(-space.count(v) // n) for v, n in rest) * len(space.classes)
    beside = math.prod(n for _, n in rest)
    most = size * beside
    if computed_places(space):
        both, (*_, steps) = (reductions, space.outputs), point_walk(space, reductions, None)
        read = {a for a in value_accesses(space.statement) if all(map({*index_variables(*a.index)}.intersection, both))}
        while most > SMALLEST_WALK and most * steps * len(read) > 32 * tiling.warps * READS_UNDER_WAY:
            most //= 2
    while size > 1 and size * beside > SMALLEST_WALK:
        if size * beside <= most and -(-space.count(variables) // size) * blocks >= ENOUGH_WALKS:
            break
        size //= 2
    if size == 1 and len(rest) == 1:
        rest = [(rest[0][0], min(rest[0][1], most))]
    return replace(tiling, axes=((variables, size), *rest))


def _parts_of_walk(
    space: Space, reductions: Sequence[str], tiling: PointwiseTiling, programs: int = TWO_A_MULTIPROCESSOR
) -> int:
    """Parts of a walk point by point: where blocks are below half of so many programs, and each would walk for long. A
    power of two, so that it asks little of sizes that are left open."""
    blocks = math.prod(-(-space.count(variables) // size) for variables, size in tiling.axes) * len(space.classes)
    inner, windows, block = point_walk(space, reductions, tiling.lanes)
    outer = windows and not splits_innermost(space, inner, windows)
    around = space.count(windows) if windows else 1
    each = space.largest(inner) if outer else around  # points of a step of what is split
    steps, block = (around, 1) if outer else (space.largest(inner), block)
    if 2 * blocks >= programs or steps * each < LONGEST_WALK or space.statement.default is not None:
        return 1
    least = -(-SHORTEST_WALK // (each * block)) * block  # steps of a part
    powers = (2**k for k in range(TWO_A_MULTIPROCESSOR.bit_length() - 1, 0, -1))
    return next((n for n in powers if n * blocks <= programs and n * least <= steps), 1)


def point_walk(space: Space, reductions: Sequence[str], lanes: KVector | None) -> tuple[str, tuple[str, ...], int]:
    """The summed variable that a walk point by point takes innermost, those of the loop around it, and so many values
    of the former at once."""
    if lanes is not None:
        inner, block = lanes.inner, lanes.times * lanes.count
    else:
        inner = max(reductions, key=lambda v: (_unroll(space, v), reductions.index(v)))
        block = _unroll(space, inner)
    return inner, tuple(v for v in reductions if v != inner), block


def splits_innermost(space: Space, inner: str, windows: tuple[str, ...]) -> bool:
    """Whether parts of a walk point by point divide the innermost variable and not those around it: where these have
    fewer values than there are multiprocessors, and it has many times more."""
    if not windows:
        return True
    around = space.count(windows)
    return around < MULTIPROCESSORS and space.largest(inner) >= LONGEST_WALK * around


def _unroll(space: Space, v: str) -> int:
    """The largest number up to that many which divides the variable's extent in every class; all of up to twice as many
    where that is less than four, as of 11 taps, and of three times where reads wait for those that say where. A body
    that calls the device's library has work enough to wait behind, and its text eight times over is too much for
    registers."""
    if calls_library(space):
        return 1
    extent = gcd(*(e[v] for e in space.extent))
    block = next(n for n in range(MOST_AT_ONCE, 0, -1) if extent % n == 0)
    most = (3 if computed_places(space) else 2) * MOST_AT_ONCE
    return extent if block < 4 and MOST_AT_ONCE < extent <= most else block


def part_of(points: int, parts: int, block: int) -> int:
    """Points of a part of a split reduction: whole blocks, so that each part begins where vectors do."""
    return -(-points // (parts * block)) * block
