"""Which tiles to take: candidates for tuning, and a first guess.

The guess minimises a model of the time: full waves of tiles over the multiprocessors, each tile paying for its multiplications at the rate that its extents reach and for
what it does once. The rates are measured ones, relative to 128 by 256.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from tilec.backends.triton.hopper_form import Config, Dot

PROCESSORS = 132
SHARED_MEMORY = 226 * 1024
LINE = 128  # bytes of a swizzled row of shared memory: the summed box that fills it is the best one
WASTE = 1.35  # boxes that compute more than this many times what is asked for are no candidates
BOX_CHOICES = 3
# (rows, columns) -> share of the rate of the best tile
RATES = {
    (128, 256): 1.0,
    (256, 128): 0.98,
    (128, 128): 0.85,
    (256, 64): 0.75,
    (128, 64): 0.62,
    (64, 256): 0.8,
    (64, 128): 0.62,
    (64, 64): 0.42,
}
SLOW = 0.3
ONCE = 4.0e5  # what a tile costs beside its multiplications, in multiply-adds at the best rate


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
    others = math.prod(extent[v] for v in dot.batch) * len(dot.classes)
    steps_outside = {True: math.prod(extent[v] for v in dot.summed if v not in summed)}
    for (m, n), k in itertools.product(RATES, (line, 2 * line)):
        for row_boxes, column_boxes, sum_boxes in itertools.product(
            _boxes(rows, extent, m), _boxes(columns, extent, n), _boxes(summed, extent, k)
        ):
            counts = [
                math.prod(-(-extent[v] // dict(b).get(v, 1)) for v in group)
                for b, group in ((row_boxes, dot.rows), (column_boxes, dot.columns), (sum_boxes, summed))
            ]
            tiles = counts[0] * counts[1] * others
            steps = counts[2] * steps_outside[True]
            work = m * n * math.prod(b for _, b in sum_boxes)
            for warps in (4, 8):
                if m < 16 * warps or m * n > 16 * warps * 256 or (m * n <= 64 * 128 and warps == 8):
                    continue
                for split in _splits(tiles, steps) if len(dot.classes) == 1 else (1,):
                    waves = -(-tiles * split // PROCESSORS)
                    share = -(-steps // split)
                    cost = waves * (share * work / RATES[m, n] + ONCE * (1 + (split > 1)))
                    for stages in (4, 3, 5):
                        if stages * (m + n) * k * size <= SHARED_MEMORY and (stages <= share + 1 or stages == 3):
                            boxes = tuple((v, b) for v, b in (*row_boxes, *column_boxes, *sum_boxes) if b > 1)
                            preference = 1 + 0.01 * abs(stages - 4) + 0.01 * (warps == 4 and m > 64) + 0.03 * (k > line)
                            yield cost * preference, Config(boxes, warps, stages, split, tf32=tf32)


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


def _splits(tiles: int, steps: int) -> list[int]:
    """Into how many shares a sum may go: one, or what fills the multiprocessors once or twice."""
    if tiles >= PROCESSORS // 2:
        return [1]
    return sorted({1, *(max(1, min(steps // 8, wave * PROCESSORS // tiles)) for wave in (1, 2))})
