"""Tile configurations of Hopper's kernels: candidates for tuning, and a first guess.

The guess minimises a model of the time: waves of tiles over the multiprocessors, each tile paying for its
multiplications or the bytes that they need, whichever takes longer, and for what it does once. Its constants were
fitted to 520 kernels measured on an H200: matmul, convolutions and their gradients.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import itemgetter

from tilec.backends.triton.matmul.hopper.epilogue import Epilogue, by_pieces
from tilec.backends.triton.matmul.hopper.form import HopperConfig, HopperDot, HopperOperand
from tilec.backends.triton.matmul.hopper.kernels import MOST_UNROLLED, oriented, plan_hopper
from tilec.backends.triton.matmul.hopper.views import TensorView
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS, PLANNED_FOR, REGISTERS
from tilec.backends.triton.plan.plan import Launch
from tilec.backends.triton.plan.sizes import CACHE_LINE, SECTOR, VECTOR_BYTES
from tilec.ir.at_sizes import least
from tilec.ir.symbolic import gcd, is_symbolic, value_of

USABLE_SHARED = PLANNED_FOR.shared - 1024  # less what barriers take
OTHERS = 56  # registers of a thread beside its accumulators
LINE = 128  # bytes of a swizzled row of shared memory: the summed box that fills it is the best one
WASTE = 1.35  # boxes that compute more than this many times what is asked for are no candidates
BOX_CHOICES = 3
SEVERAL = {8: (((128, 64), 3),)}  # tiles, and how many side by side, of columns that fill no tile
LONG_SUM = 32  # steps of a sum, with fewer of which such a tile has all columns
FEW_COLUMN_TILES = 4  # tiles of columns up to which rows are not grouped
# rows and columns of a tile, by warps
HOPPER_TILES = {
    8: ((128, 256), (256, 128), (128, 128), (256, 64)),
    4: ((128, 128), (128, 64), (64, 256), (64, 128), (64, 64)),
}

CYCLES = 1.7e3  # a microsecond, under load
LATE, LATE_IN_SECTORS = 0.4, 1.0  # what boxes take beside whose rows begin behind a line's first bytes, between sectors
ENDING = 2.0  # and a box of which rows end behind a tensor's
MULTIPLY = 4096  # bytes of multiply-adds' summed operands a cycle and multiprocessor: 2048 in 16 bits, 1024 in tf32
DELIVER = 69  # bytes a cycle that the level-two cache brings to a multiprocessor
STORE = 7e4  # bytes a microsecond that a multiprocessor stores
CODE_CACHE, UNCACHED = 100_000, 10  # bytes of unrolled code that are kept; what an epilogue of more takes instead
INSTRUCTION = 16  # bytes
FEW_WARPS = 3  # what an epilogue takes for one of two consumers, which has a warp a scheduler
FEW_BY_PIECES = 1.5  # the same of an epilogue in pieces, whose text is short
PIECE_BYTES, AWAITED = 32, 0.4  # bytes that a thread has of a piece; microseconds that one waits for what it loads
MANY_STEPS, SLOWER_STEPS = 32, 1.08  # steps from which two consumers with an epilogue take longer, and by what
LANES = 100  # instructions of an epilogue a cycle and multiprocessor
LOAD = 2e4  # bytes a microsecond that a multiprocessor loads while all others do
STEP = 0.014  # microseconds of waiting a step, twice that of a warp that only copies
ONCE = {0: 2.6, 1: 1.4, 2: 0.6}  # microseconds a tile, by consumers
START, FLOOR = 4.2, 8.0  # microseconds a kernel: the first tile's copies; the least that any took beside its memory
SECOND = 2.2  # microseconds for the kernel that adds shares
MAPPED_STORES, A_MAP = 0.93, 0.02  # storing classes through maps: what it takes instead, and what a map costs the host
HALF_ROWS = 1.18  # what steps of half a swizzled row take beside
MEMORY_RATE, PARTS_RATE = 2.6e6, 3e6  # bytes a microsecond: of tensors, of shares


HopperTensors = Mapping[str, TensorView]  # those of a product, by name


@dataclass(frozen=True)
class TileWork:
    """What the model needs to know of a choice: a tile's extents, sizes of elements in bytes, tiles, steps of a sum,
    elements of the output, bytes of all tensors, tensor maps of the output if it is stored through such, sums of a
    program, instructions of the epilogue for each element and bytes that it loads for one, whether a loop computes it
    piece by piece, how many times as long as others boxes of rows and of columns take to come and a tile to be stored,
    since rows in memory begin between lines of the caches, and between vectors, or end inside of boxes."""

    rows: int
    columns: int
    depth: int
    size: int
    out_size: int
    tiles: int
    steps: int
    elements: int
    memory: int
    maps: int
    several: int = 1
    instructions: float = 0
    loaded: float = 0
    by_pieces: bool = False
    rows_late: float = 1.0
    columns_late: float = 1.0
    stored_late: float = 1.0


def configs(*ways: tuple[HopperDot, HopperTensors]) -> list[HopperConfig]:
    """Candidates for a product in one form or several, the likeliest first by the model of time."""
    timed = (pair for way in ways for pair in _candidates(*way))
    return list(dict.fromkeys(c for _, c in sorted(timed, key=itemgetter(0))))


def default_plan(
    dot: HopperDot, tensors: HopperTensors, epilogue: Epilogue | None = None
) -> tuple[float, HopperConfig, list[Launch]] | None:
    """The first of these that `plan_hopper` can carry out, with its time in microseconds, and how; None where there is
    none. Of open sizes is asked which ones it cannot carry out, and that the first is the first of the others."""
    lying = oriented(dot, tensors[dot.output])
    left = dict(enumerate(_candidates(dot, tensors, epilogue)))
    for place, (time, config) in sorted(left.items(), key=lambda item: value_of(item[1][0])):
        launches = plan_hopper(lying, tensors, config, epilogue)
        if launches is not None:
            least(list(left.values()), itemgetter(0))
            return time, config, launches
        del left[place]
    return None


def _candidates(
    dot: HopperDot, tensors: HopperTensors, epilogue: Epilogue | None = None
) -> Iterator[tuple[float, HopperConfig]]:
    merged = bool(dot.digits)
    out = tensors[dot.output]
    size, out_size = tensors[dot.left.tensor].size, out.size
    tf32 = tensors[dot.left.tensor].dtype == "float32"
    extent = {v: max(e[v] for e in dot.extent) for v in (*dot.batch, *dot.rows, *dot.columns, *dot.summed)}
    dot, rows, columns, summed, slabs = _boxable(dot, tensors)
    outer = math.prod(extent[v] for v in dot.batch) * len(dot.classes)
    walked = math.prod(extent[v] for v in dot.summed if v not in summed)
    elements = math.prod(extent[v] for v in (*dot.rows, *dot.columns)) * outer
    memory = sum(math.prod(tensors[o.tensor].shape) * size for o in (dot.left, dot.right)) + elements * out_size
    memory += 0 if epilogue is None else epilogue.bytes_read + epilogue.stored * elements * out_size
    late = _late(tensors[dot.left.tensor]), _late(tensors[dot.right.tensor]), (VECTOR_BYTES / _vector(out)) ** 0.5
    after = (0.0, 0.0) if epilogue is None else (epilogue.instructions, epilogue.bytes_read / max(elements, 1))
    ends = [_end(o, dot, tensors[o.tensor], extent) for o in (dot.left, dot.right)]
    begin = gcd(*(_vector(tensors[o.tensor], SECTOR) for o in (dot.left, dot.right)))
    depths = _depths([extent[v] for v in summed], LINE // size, begin == SECTOR and not tf32)
    strided = {v: int(form.coefficient(v)) for form in dot.index for v in form.variables() if v in rows}

    def count(group: Sequence[str], boxes: Mapping[str, int]) -> int:
        return math.prod(-(-extent[v] // boxes.get(v, 1)) for v in group)

    @cache
    def boxes_of(group: int, total: int) -> list[tuple[tuple[str, int], ...]]:
        return _boxes((rows, columns, summed)[group], extent, total, (*slabs, None)[group])

    for warps, depth in itertools.product(HOPPER_TILES, depths):
        for (m, n), several in (*((tile, 1) for tile in HOPPER_TILES[warps]), *SEVERAL.get(warps, ())):
            for own in itertools.product(boxes_of(0, m), boxes_of(1, n), boxes_of(2, depth)):
                boxes = tuple((v, b) for v, b in itertools.chain(*own) if b > 1)
                reach, boxed = dict(boxes), [v for v, b in own[1] if b > 1]
                steps = count(summed, reach) * walked
                if several > 1:
                    if len(dot.classes) > 1 or len(boxed) > 1 or extent[boxed[0]] <= n * (several - 1):
                        continue
                    if extent[boxed[0]] > n * several and steps < LONG_SUM:
                        continue
                    reach[boxed[0]] *= several
                across = count(dot.columns, reach)
                tiles = count(dot.rows, reach) * across * outer
                maps = math.prod(strided.get(v, 1) for v, b in own[0] if b > 1)
                down, over = ([b for _, b in boxes] for boxes in own[:2])
                pieces = (
                    several == 1 and epilogue is not None and late[2] == 1 and by_pieces(epilogue, down, over, warps)
                )
                ending = (1.0 if v is None else _ending(extent[v], dict(boxes).get(v, 1), end) for v, end in ends)
                slower = (*map(max, late, ending), late[2])
                tile = TileWork(
                    m, n, depth, size, out_size, tiles, steps, elements, memory, maps, several, *after, pieces, *slower
                )
                group = (
                    1 if across <= FEW_COLUMN_TILES else 2 ** round(math.log2(MULTIPROCESSORS * several * n / m) / 2)
                )
                if several > 1:
                    for stages in (4, 3, 2):
                        config = HopperConfig(
                            boxes, warps, stages, 1, group, 1, False, tf32, merged, unrolled=(boxed[0], several)
                        )
                        if _sensible(config, tile):
                            yield predicted_time(config, tile), config
                    continue
                for split, stages, consumers, mapped in itertools.product(
                    _splits(tiles, steps, len(dot.classes)),
                    (4, 3, 5, 2),
                    ONCE,
                    (False, True) if len(dot.classes) > 1 else (False,),
                ):
                    config = HopperConfig(boxes, warps, stages, split, group, consumers, mapped, tf32, merged)
                    if _sensible(config, tile):
                        yield predicted_time(config, tile), config
                for v, values in _unrolled([v for v in dot.columns if v not in dict(boxes)], extent, m, n, warps):
                    fewer = replace(tile, tiles=tiles // extent[v] * -(-extent[v] // values), several=values)
                    for split, stages, consumers in itertools.product(
                        _splits(fewer.tiles, steps, len(dot.classes)), (4, 3, 2), ONCE
                    ):
                        config = HopperConfig(
                            boxes, warps, stages, split, group, consumers, tf32=tf32, unrolled=(v, values)
                        )
                        if split > 1 and _sensible(config, fewer):
                            yield predicted_time(config, fewer), config


def _depths(extents: Sequence[int], line: int, sectors: bool) -> list[int]:
    """How many summed elements a step may take: one swizzled row, or two; half of one where its boxes leave less empty
    (160 channels are five of 32, three of 64) and begin with sectors (152 channels: 135 us instead of 113)."""
    short = sectors and len(extents) == 1 and extents[0] > line and 0 < extents[0] % line <= line // 2
    return [*([line // 2] if short else []), line, 2 * line]


def _late(tensor: TensorView) -> float:
    """How many times as long boxes of a tensor take to come as if their rows began with lines of the caches: two lines
    are read for a row that lies in both. Of open sizes nothing is asked but whether they do."""
    if tensor.in_lines:
        return 1.0
    inner = 0 if tensor.inner is None else tensor.inner
    steps = [s * tensor.size for a, s in enumerate(tensor.strides) if a != inner and tensor.shape[a] > 1]
    if any(map(is_symbolic, steps)):
        begin = CACHE_LINE if all(step % CACHE_LINE == 0 for step in steps) else VECTOR_BYTES
    else:
        begin = math.gcd(CACHE_LINE, *steps)
    row = min(tensor.shape[inner] * tensor.size, CACHE_LINE)
    across = max(-(-row // begin) - 1, 0) * begin / CACHE_LINE
    return 1 + LATE * across + (LATE_IN_SECTORS if begin < SECTOR else 0)


def _end(
    operand: HopperOperand, dot: HopperDot, tensor: TensorView, extent: Mapping[str, int]
) -> tuple[str | None, int]:
    """The variable along which an operand is contiguous, if there is one, and where its map ends there."""
    axis = tensor.inner
    v = None if axis is None else operand.index[axis].bare
    if axis is None or v not in extent:
        return None, 0
    return v, extent[v] if v in dot.summed else tensor.shape[axis]


def _ending(extent: int, box: int, end: int) -> float:
    """How many times as long boxes along a contiguous axis take to come as if none of them reached behind its end."""
    boxes = -(-extent // box)
    return 1.0 if box == 1 or boxes * box <= end else 1 + ENDING / boxes


def _vector(tensor: TensorView, most: int = VECTOR_BYTES) -> int:
    """Bytes that rows begin at multiples of: those that a thread stores at once."""
    steps = [s * tensor.size for a, s in enumerate(tensor.strides) if a != tensor.inner and tensor.shape[a] > 1]
    return gcd(most, *steps)


def _boxable(
    dot: HopperDot, tensors: HopperTensors
) -> tuple[HopperDot, list[str], list[str], list[str], tuple[int | None, int | None]]:
    """The Dot with the output's contiguous variable among its columns, and the rows, columns and summed variables that
    may be boxed: a contiguous one alone where there is one."""

    def inner(tensor: str, index: Sequence) -> str | None:
        axis = tensors[tensor].inner
        return None if axis is None else index[axis].bare

    out = inner(dot.output, dot.index)
    out = out if out is None else dot.owner(out)
    if out in dot.rows:
        dot = dot.turned()
    lead = {inner(o.tensor, o.index) for o in (dot.left, dot.right)}
    slab = LINE // tensors[dot.left.tensor].size

    def boxable(group: Sequence[str], lead: Collection[str | None]) -> tuple[list[str], int | None]:
        """A contiguous one alone, unless it is last and a row of shared memory holds all of it; how much of that."""
        found = [v for v in group if v in lead]
        forms = [form for index in (dot.index, dot.left.index, dot.right.index) for form in index]
        lone = all(form.bare == v for v in group for form in forms if v in form.variables())
        narrow = lone and len(group) > 1 and found == [group[-1]] and all(e[found[0]] == slab for e in dot.extent)
        return (list(group), slab) if narrow else (found or list(group), None)

    rows, down = boxable(dot.rows, lead)
    columns, across = boxable(dot.columns, [out] if out in dot.columns else lead)
    summed = [v for v in dot.summed if v in lead] or list(dot.summed)
    ranges = {v: {(low[v], e[v]) for low, e in zip(dot.low, dot.extent, strict=True)} for v in summed}
    return dot, rows, columns, [v for v in summed if len(ranges[v]) == 1], (down, across)


def _unrolled(
    names: Sequence[str], extent: Mapping[str, int], rows: int, columns: int, warps: int
) -> Iterator[tuple[str, int]]:
    """Variables of which a program may compute several values, and how many: as few programs as registers allow."""
    most = MOST_UNROLLED * 16 * warps // (rows * columns)
    for v in names:
        programs = -(-extent[v] // max(most, 1))
        values = -(-extent[v] // programs) if extent[v] else 1
        if values > 1 and programs * values <= WASTE * extent[v]:
            yield v, values


def _shared_bytes(config: HopperConfig, tile: TileWork) -> int:
    """Bytes of shared memory that stay taken."""
    staged = tile.rows * tile.columns * (4 if config.split > 1 else tile.out_size)
    copied = tile.rows + tile.several * tile.columns
    return config.stages * copied * tile.depth * tile.size + config.consumers * staged


def _sensible(config: HopperConfig, tile: TileWork) -> bool:
    share = -(-tile.steps // config.split)
    stages = config.stages <= max(share + 1, 3) and (config.stages > 2 or share <= 2)
    return stages and config.consumers * config.warps in (0, 8) and _shared_bytes(config, tile) <= USABLE_SHARED


def predicted_time(config: HopperConfig, tile: TileWork) -> float:
    """Microseconds, about."""
    area = tile.rows * tile.columns * tile.several
    threads = 32 * config.warps
    fitting = min(4, USABLE_SHARED // _shared_bytes(config, tile), REGISTERS // (threads * (area // threads + OTHERS)))
    beside = 1 if config.consumers else max(fitting, 1)
    multiply = area * tile.depth * tile.size / MULTIPLY
    boxes = tile.rows + tile.columns * tile.several
    late = (tile.rows * tile.rows_late + tile.columns * tile.several * tile.columns_late) / boxes
    late = (late + max(tile.rows_late, tile.columns_late)) / 2  # boxes wait for each other
    deliver = boxes * late * tile.depth * tile.size / DELIVER
    step = (multiply**4 + deliver**4) ** 0.25 / CYCLES + STEP / (2 if config.consumers else beside)
    waves = -(-tile.tiles * config.split // (MULTIPROCESSORS * beside))
    once = ONCE[config.consumers if waves > 1 else 0] + area * tile.out_size / STORE
    after = 0 if config.split > 1 else _epilogue_time(config, tile, area)
    after += area * tile.out_size / STORE * (tile.stored_late - 1) if config.split == 1 else 0
    once += _beside_sums(config, waves, beside, after, tile.steps * step)
    time = START + waves * (-(-tile.steps // config.split) * step * beside + once)
    if config.split > 1:
        time += SECOND + 8 * config.split * tile.elements / PARTS_RATE
    time = (time**4 + (FLOOR + tile.memory / MEMORY_RATE) ** 4) ** 0.25
    if config.consumers == 2 and tile.instructions and tile.steps > MANY_STEPS:
        time *= SLOWER_STEPS
    if config.mapped:
        time *= MAPPED_STORES + A_MAP * tile.maps
    time *= HALF_ROWS if tile.depth * tile.size < LINE else 1
    # what the model cannot tell apart: as many buffers as usual, one swizzled row
    tie = abs(config.stages - 4) + 2 * (tile.depth * tile.size > LINE) + (config.consumers > 0 and waves == 1)
    return time * (1 + 0.01 * tie)


def _epilogue_time(config: HopperConfig, tile: TileWork, area: int) -> float:
    """Microseconds that a tile's epilogue takes by itself."""
    threads = 32 * config.warps
    code = area // threads * tile.instructions * INSTRUCTION * max(config.consumers, 1)
    computed = area * tile.instructions / LANES / CYCLES
    loaded = area * tile.loaded / LOAD
    if tile.by_pieces:
        waited = area * tile.out_size / (PIECE_BYTES * threads) * (AWAITED if tile.loaded >= tile.out_size else 0)
        return computed * (FEW_BY_PIECES if config.consumers == 2 else 1) + max(loaded, waited)
    computed *= UNCACHED if code > CODE_CACHE else 1
    return computed * (FEW_WARPS if config.consumers == 2 else 1) + loaded


def _beside_sums(config: HopperConfig, waves: int, beside: int, epilogue: float, sums: float) -> float:
    """What a tile's epilogue adds to the time of its sums: half of what these do not hide where two consumers take
    turns, and its first wave's, all of two waves; of several programs of a multiprocessor, two thirds."""
    if config.consumers == 2 and waves > 1:
        return max(epilogue - sums, 0) / 2 + epilogue / (1 if waves == 2 else waves)
    return epilogue * beside * (0.65 if beside > 1 and waves > 1 else 1)


def _boxes(
    names: Sequence[str], extent: Mapping[str, int], total: int, whole: int | None = None
) -> list[tuple[tuple[str, int], ...]]:
    """Ways to share a power of two among variables: those that waste least, even ones first, and the one with the
    longest box. `whole`: how much the last one takes in each, if that is said."""
    if whole is not None and len(names) > 1:
        beside = _boxes(names[:-1], extent, total // whole) if total >= whole else []
        return [(*boxes, (names[-1], whole)) for boxes in beside]
    found: list[tuple[float, tuple[tuple[str, int], ...]]] = []

    def share(rest: Sequence[str], left: int, chosen: tuple[tuple[str, int], ...]) -> None:
        if len(rest) == 1:
            boxes = (*chosen, (rest[0], left))
            found.append((math.prod(-(-extent[v] // b) * b / extent[v] for v, b in boxes), boxes))
            return
        box = 1
        while box <= left and box < 2 * extent[rest[0]]:
            share(rest[1:], left // box, (*chosen, (rest[0], box)))
            box *= 2

    def longest(boxes: tuple[tuple[str, int], ...]) -> int:
        return max(b for _, b in boxes)

    if not names or not all(extent[v] for v in names):
        return []
    share(names, total, ())

    def order(pair: tuple[float, tuple[tuple[str, int], ...]]) -> tuple[float, int]:
        return pair[0], longest(pair[1])

    best = [least(found, order)]
    most = max(WASTE, best[0][0])
    while len(best) < BOX_CHOICES - 1 and (left := [pair for pair in found if pair not in best]):
        best.append(least(left, order))
    for length in sorted({longest(boxes) for _, boxes in found}, reverse=True):
        if within := [pair for pair in found if longest(pair[1]) == length and pair[0] <= most]:
            best = [*(pair for pair in best if pair[0] <= most), least(within, order)]
            break
    return list(dict.fromkeys(boxes for _, boxes in best))


def _splits(tiles: int, steps: int, classes: int) -> list[int]:
    """Into how many shares a sum may go: one, or what fills the multiprocessors once or twice."""
    if not tiles or tiles >= MULTIPROCESSORS // 2 or classes > 1:
        return [1]
    return sorted({1, *(max(1, min(steps // 8, wave * MULTIPROCESSORS // tiles)) for wave in (1, 2))})
