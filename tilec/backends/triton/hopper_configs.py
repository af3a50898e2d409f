"""Which tiles to take: candidates for tuning, and a first guess.

The guess minimises a model of the time: full waves of tiles over the multiprocessors, each tile paying for its
multiplications at the rate that its extents reach and for
what it does once. The rates are measured ones, relative to 128 by 256.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from tilec.backends.triton.hopper_form import Config, Dot

PROCESSORS = 132
CLOCK = 1.7e3  # cycles a microsecond under load
MULTIPLY = 2048  # 16-bit multiply-adds a cycle and multiprocessor, half as many in tf32
DELIVER = 40  # bytes a cycle that the level-two cache brings to each of many multiprocessors
# microseconds that a tile costs beside its sum, filling buffers and storing, by the number of consumers: copies that
# run
# ahead hide the first, consumers that take turns the second
OVERLAPPED = {0: 3.0, 1: 1.5, 2: 0.7}
SECOND = 4.0  # microseconds for the kernel that adds shares
MOVE = 3.0e6  # bytes a microsecond to and from memory
SHARED_MEMORY = 226 * 1024
LINE = 128  # bytes of a swizzled row of shared memory: the summed box that fills it is the best one
WASTE = 1.35  # boxes that compute more than this many times what is asked for are no candidates
BOX_CHOICES = 3
# rows and columns of a tile, by warps
TILES = {8: ((128, 256), (256, 128), (128, 128), (256, 64)), 4: ((128, 128), (128, 64), (64, 256), (64, 128), (64, 64))}


def configs(
    dot: Dot,
    shapes: Mapping[str, tuple[int, ...]],
    strides: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    tf32: bool = False,
) -> list[Config]:
    """Candidates, the likeliest first by the model of time."""
    found = [c for _, c in sorted(_candidates(dot, shapes, strides, dtypes, tf32), key=lambda pair: pair[0])]
    return list(dict.fromkeys(found))


def default_config(
    dot: Dot,
    shapes: Mapping[str, tuple[int, ...]],
    strides: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    tf32: bool = False,
) -> Config | None:
    """The first guess, None where nothing fits."""
    return next(iter(configs(dot, shapes, strides, dtypes, tf32)), None)


def _candidates(
    dot: Dot,
    shapes: Mapping[str, tuple[int, ...]],
    strides: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    tf32: bool,
) -> Iterator[tuple[float, Config]]:
    size = 4 if dtypes[dot.left.tensor] == "float32" else 2
    line = LINE // size
    extent = {v: max(e[v] for e in dot.extent) for v in (*dot.batch, *dot.rows, *dot.columns, *dot.summed)}

    def inner(tensor: str, index: Sequence) -> str | None:
        axes = [a for a, s in enumerate(strides[tensor]) if s == 1 and shapes[tensor][a] > 1]
        return index[axes[0]].bare if axes else None

    out = inner(dot.output, dot.index)
    if out in dot.rows:
        dot = dot.turned()
    lead = {inner(o.tensor, o.index) for o in (dot.left, dot.right)}

    def boxable(group: Sequence[str]) -> list[str]:
        chosen = [v for v in group if v in lead]
        return chosen or list(group)

    rows, columns, summed = (boxable(group) for group in (dot.rows, dot.columns, dot.summed))
    varying = [v for v in dot.summed if len({(lo[v], e[v]) for lo, e in zip(dot.low, dot.extent, strict=True)}) > 1]
    summed = [v for v in summed if v not in varying]
    if out in columns:
        columns = [out]
    outer = math.prod(extent[v] for v in dot.batch) * len(dot.classes)
    walked = math.prod(extent[v] for v in dot.summed if v not in summed)
    out_size = 4 if dtypes[dot.output] == "float32" else 2
    elements = math.prod(extent[v] for v in (*dot.batch, *dot.rows, *dot.columns))

    def tiles(group: Sequence[str], boxes: Sequence[tuple[str, int]]) -> int:
        return math.prod(-(-extent[v] // dict(boxes).get(v, 1)) for v in group)

    for warps, k in itertools.product(TILES, (line, 2 * line)):
        for m, n in TILES[warps]:
            for own in itertools.product(
                _boxes(rows, extent, m), _boxes(columns, extent, n), _boxes(summed, extent, k)
            ):
                count = tiles(dot.rows, own[0]) * tiles(dot.columns, own[1]) * outer
                steps = tiles(summed, own[2]) * walked
                step = max(m * n * k * size / (2 * MULTIPLY), (m + n) * k * size / DELIVER) / CLOCK
                boxes = tuple((v, b) for v, b in itertools.chain(*own) if b > 1)
                group = 1 if tiles(dot.columns, own[1]) <= 4 else 8
                for stages, consumers, split in itertools.product(
                    (4, 3, 5, 2), OVERLAPPED, _splits(count, steps, len(dot.classes))
                ):
                    share = -(-steps // split)
                    held = stages * (m + n) * k * size + consumers * m * n * out_size
                    if held > SHARED_MEMORY or stages > max(share + 1, 3) or (stages == 2 and share > 2):
                        continue
                    if consumers * warps > 8:
                        continue
                    room = 8 // (warps * max(consumers, 1)) if m * n >= 128 * 128 else 16 // (warps * max(consumers, 1))
                    beside = max(1, min(SHARED_MEMORY // held, room if consumers == 0 else 1))
                    waves = -(-count * split // (PROCESSORS * beside))
                    time = waves * (share * step * beside + OVERLAPPED[consumers if waves > 1 else 0])
                    if split > 1:
                        time += SECOND + 8 * split * elements / MOVE
                    time *= 1 + 0.01 * abs(stages - 4) + 0.02 * (k > line)
                    yield time, Config(boxes, warps, stages, split, group, consumers, tf32=tf32)


def _boxes(names: Sequence[str], extent: Mapping[str, int], total: int) -> list[tuple[tuple[str, int], ...]]:
    """Ways to share a power of two among variables, those that waste least first."""
    found: list[tuple[float, tuple[tuple[str, int], ...]]] = []

    def share(rest: Sequence[str], left: int, chosen: tuple[tuple[str, int], ...]) -> None:
        if len(rest) == 1:
            boxes = (*chosen, (rest[0], left))
            waste = math.prod(-(-extent[v] // b) * b / extent[v] for v, b in boxes)
            found.append((waste, boxes))
            return
        box = 1
        while box <= left and box < 2 * extent[rest[0]]:
            share(rest[1:], left // box, (*chosen, (rest[0], box)))
            box *= 2

    if not names:
        return []
    share(names, total, ())
    found.sort(key=lambda pair: (pair[0], max(b for _, b in pair[1])))
    best = [boxes for waste, boxes in found if waste <= max(WASTE, found[0][0])]
    return list(
        dict.fromkeys(
            (
                *best[: BOX_CHOICES - 1],
                best[0] if len(best) == 1 else max(best, key=lambda boxes: max(b for _, b in boxes)),
            )
        )
    )


def _splits(tiles: int, steps: int, classes: int) -> list[int]:
    """Into how many shares a sum may go: one, or what fills the multiprocessors once or twice."""
    if tiles >= PROCESSORS // 2 or classes > 1:
        return [1]
    return sorted({1, *(max(1, min(steps // 8, wave * PROCESSORS // tiles)) for wave in (1, 2))})
