"""Tile sizes and split-K of products: a table of choices that is good untuned."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tilec.backends.common.pairs import LEAST
from tilec.backends.triton.matmul.dot import MatrixProduct
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS, PLANNED_FOR
from tilec.backends.triton.plan.sizes import power_of_two
from tilec.ir.index import linear
from tilec.ir.program import accesses_in, index_variables
from tilec.ir.types import ITEM_BYTES, NARROW


@dataclass(frozen=True)
class Config:
    """Block sizes, how the launch is split, and how it is compiled."""

    bm: int
    bn: int
    bk: int
    warps: int
    stages: int
    parts: int = 1
    group: int = 8


TILES = {  # the larger first; each with enough work in flight for its size
    2: ((128, 256, 64, 8, 3), (128, 128, 64, 8, 3), (128, 64, 64, 4, 4), (64, 64, 64, 4, 4), (64, 32, 64, 4, 4)),
    4: ((128, 128, 32, 8, 3), (128, 64, 32, 4, 3), (64, 64, 32, 4, 3), (64, 32, 32, 4, 3), (32, 32, 32, 4, 3)),
    8: ((64, 64, 16, 4, 2), (32, 64, 16, 4, 2), (32, 32, 16, 4, 2)),
    1: ((128, 128, 64, 8, 3), (128, 64, 64, 4, 4), (64, 64, 64, 4, 4), (64, 32, 64, 4, 4)),
}
LONGEST_ROW, WAVES = 512, 16  # bytes of a block's row; programs for each multiprocessor that leave none idle
SHORT_BLOCK = (64, 64, 64, 4, 2)  # whose sum is one step, and which takes as long as memory does: many at a time
PART_BYTES, WEIGHT_PROGRAMS = 8, 4  # of an element of a part, written and read; programs of a multiprocessor
LEAST_REUSE = 64  # times that each element must be used for a copy of an operand to pay
_LEAST_COLUMNS = 64  # of a block of which two steps are to fit on the chip
MOST_TERMS = 2**16  # products of 8-bit integers that a 32-bit accumulator surely holds


def fitted(config: Config, size: int, shared: int) -> Config:
    """With as many stages of terms of `size` bytes as on-chip memory holds."""
    while config.stages > 1 and config.stages * (config.bm + config.bn) * config.bk * size > shared:
        config = replace(config, stages=config.stages - 1)
    return config


def choose_config(product: MatrixProduct, shared: int = PLANNED_FOR.shared, whole: bool = False) -> Config:
    """The largest tile that still gives every multiprocessor one, else the one that wastes least with the reduction
    split, or the smallest where sums are `whole`; with as many stages as `shared` bytes of on-chip memory hold."""
    dtype, size = product.dot.dtype, ITEM_BYTES[product.dot.dtype]
    config = fitted(_untuned(product, whole), size, shared)
    while config.bn > _LEAST_COLUMNS and 2 * _bytes_of_step(product, config) > shared:
        config = replace(config, bn=config.bn // 2)
    while config.stages > 1 and config.stages * _bytes_of_step(product, config) > shared:
        config = replace(config, stages=config.stages - 1)
    while config.bm * config.bk > LEAST**2 and (config.bm + config.bn) * config.bk * size > shared:
        config = replace(config, bm=max(LEAST, config.bm // 2), bk=max(LEAST, config.bk // 2))
    if dtype == "int8":
        config = replace(config, bk=max(config.bk, 32))
        least = -(-product.counts[2] // MOST_TERMS)
        return replace(config, parts=max(config.parts, least))
    return config


def _bytes_of_step(product: MatrixProduct, config: Config) -> int:
    """What a step loads of all tensors that operands and guards are made of."""
    dot, total = product.dot, 0
    for a in dict.fromkeys(accesses_in(*product.view.statement.roots)):
        names = {*index_variables(a)}
        rows = config.bm if names & {*dot.rows} else config.bn if names & {*dot.columns} else 0
        total += rows * config.bk * ITEM_BYTES[product.view.types[a.tensor].dtype] if names & {*dot.summed} else 0
    return total


def short_block(product: MatrixProduct) -> Config:
    """Of a product of few terms that takes as long as memory does."""
    return _config(SHORT_BLOCK, *product.counts)


def _untuned(product: MatrixProduct, whole: bool) -> Config:
    (m, n, k), batch = product.counts, product.repeated
    tiles = TILES[ITEM_BYTES[product.dot.dtype]]
    fitting = [t for t in tiles if t[0] <= max(32, 2 * power_of_two(m) // 2) and t[1] <= max(32, power_of_two(n))] or [
        tiles[-1]
    ]
    for t in fitting:
        if -(-m // t[0]) * -(-n // t[1]) * batch >= MULTIPROCESSORS:
            return _reading_bytes(_in_long_rows(_config(t, m, n, k), product), product)
    if whole:
        return _config(fitting[-1], m, n, k)
    t = min(fitting, key=lambda t: (-(-m // t[0]) * t[0] * -(-n // t[1]) * t[1] / (m * n) > 1.3, -t[0] * t[1]))
    programs = -(-m // t[0]) * -(-n // t[1]) * batch
    steps = -(-k // t[2])
    beside = 8 if min(m, n) < LEAST else 2  # programs that a multiprocessor runs side by side
    parts = max(1, min(beside * MULTIPROCESSORS // programs, steps // 8))
    if parts == 1 and programs < MULTIPROCESSORS:
        t = fitting[-1]
    return _reading_bytes(replace(_config(t, m, n, k), parts=parts), product)


def _reading_bytes(config: Config, product: MatrixProduct) -> Config:
    """With the reduction split further where few rows are multiplied by weights of 8 bits: what a program has under way
    of these is little, and memory waits. Parts may take a quarter of what the weights do."""
    (m, n, k), sizes = product.counts, {ITEM_BYTES[product.view.types[a.tensor].dtype] for a in product.accesses()}
    if min(sizes, default=2) > 1 or product.dot.dtype not in NARROW or min(m, n) >= LEAST_REUSE:
        return config
    programs = -(-m // config.bm) * -(-n // config.bn) * product.repeated
    most = min(
        k // (4 * PART_BYTES * min(m, n)), -(-k // config.bk) // 8, WEIGHT_PROGRAMS * MULTIPROCESSORS // programs
    )
    return replace(config, parts=max(config.parts, most, 1))


def _config(t: tuple[int, ...], m: int, n: int, k: int) -> Config:
    bm, bn = min(t[0], max(LEAST, power_of_two(m))), min(t[1], max(LEAST, power_of_two(n)))
    return Config(bm, bn, min(t[2], max(LEAST, power_of_two(k))), t[3], t[4])


def _in_long_rows(config: Config, product: MatrixProduct) -> Config:
    """With longer rows, where a block has few of them and one step: it takes as long as memory does, and programs are
    many enough (heads of attention mixed, 12 x 12, at each of 2 million scores)."""
    (m, n, k), batch, size = product.counts, product.repeated, ITEM_BYTES[product.dot.dtype]
    bn = config.bn
    if config.bm > LEAST or k > config.bk:
        return config
    while 2 * bn * size <= LONGEST_ROW and -(-m // config.bm) * -(-n // (2 * bn)) * batch >= WAVES * MULTIPROCESSORS:
        bn *= 2
    return replace(config, bn=bn)


def output_tiles(product: MatrixProduct, config: Config) -> int:
    """How many blocks of the result there are, in the class that has most."""
    dot = product.dot
    per_class = [
        -(-math.prod(e[v] for v in dot.rows) // config.bm)
        * -(-math.prod(e[v] for v in dot.columns) // config.bn)
        * math.prod(e[v] for v in dot.batch)
        for e in product.space.extent
    ]
    return max(per_class)


def inner_variables(product: MatrixProduct, block: int) -> tuple[str, ...]:
    """The summed variables that a block of the reduction enumerates; the others are windows, walked one by one."""
    summed = list(product.dot.summed)
    moves: dict[str, float] = dict.fromkeys(summed, math.inf)
    for a in product.accesses():
        for e, stride in zip(a.index, product.view.strides[a.tensor], strict=True):
            for v in linear(e).variables():
                if v in moves and stride:
                    moves[v] = min(moves[v], float(abs(linear(e).coefficient(v))) * stride)
    best = min(summed, key=lambda v: (moves[v], -summed.index(v)))
    least = min(e[best] for e in product.space.extent)
    return (best,) if moves[best] == 1 and (least >= block or len(summed) == 1) else tuple(summed)
