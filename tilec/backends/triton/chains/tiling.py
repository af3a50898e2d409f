"""Sizes of the blocks of a chain's kernel, its warps and stages: a measured table, and what there is room for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tilec.backends.common.chains.chain import BOTH_SIDES_MATRICES, BOTH_SIDES_REGISTERS, ChainKernel, feature_block
from tilec.backends.common.chains.codegen.accumulate import THREADS
from tilec.backends.common.chains.codegen.places import Tiling, blocks_in, in_one_block, padded_features
from tilec.backends.common.chains.codegen.visits import visits_of
from tilec.backends.common.chains.codegen.walk import cut_at_both_ends, is_whole_window, walks_values
from tilec.backends.common.pairs import LEAST
from tilec.backends.triton.matmul.kernel import PRECISION
from tilec.backends.triton.plan.device_info import REGISTERS, TWO_A_MULTIPROCESSOR
from tilec.backends.triton.plan.plan import Setting
from tilec.ir.functions import draws
from tilec.ir.index import linear
from tilec.ir.program import accesses_in, index_variables
from tilec.ir.types import Types

_Operands = tuple[dict[str, int], dict[str, int], set[str]]  # as `_operands` finds them

# Widest feature -> tiling of kernels of 16-bit operands, measured on an H200: those that walk all blocks, those whose
# bounds cut the walk short, and those whose blocks are listed by data. By products and mixtures: one product into a
# mixture, two into one, any into several.
ONE_PRODUCT: Mapping[int, tuple[Tiling, Tiling, Tiling]] = {
    64: (Tiling(64, 128, 4, 2), Tiling(64, 64, 4, 3, boxed=False), Tiling(64, 32, 4, 3, boxed=False)),
    128: (Tiling(64, 64, 4, 3), Tiling(64, 64, 4, 3), Tiling(64, 32, 4, 3, boxed=False)),
    256: (Tiling(128, 64, 8, 3),) * 3,
}
TWO_PRODUCTS: Mapping[int, tuple[Tiling, Tiling, Tiling]] = {
    64: (Tiling(128, 64, 4, 3, boxed=False), *(Tiling(64, 64, 4, 3, boxed=False),) * 2),
    80: (Tiling(64, 64, 4, 2, boxed=False),) * 3,
    96: (Tiling(64, 64, 4, 2),) * 3,
    128: (*(Tiling(128, 64, 8, 3, boxed=False),) * 2, Tiling(64, 32, 4, 3, boxed=False)),
    192: (Tiling(64, 32, 4, 3, boxed=False),) * 3,
    256: (Tiling(128, 32, 8, 3, boxed=False),) * 3,
}
# the same where each point that a program walks has values of its own, such as statistics of rows
TWO_PRODUCTS_OF_STATISTICS: Mapping[int, tuple[Tiling, Tiling, Tiling]] = {
    **TWO_PRODUCTS,
    192: (Tiling(128, 64, 8, 2),) * 3,
}
LONG_STEPS = Tiling(64, 128, 4, 2, boxed=False, one_loop=False)  # whose products would wait for each other in one loop
MIXTURES: Mapping[int, tuple[Tiling, Tiling, Tiling]] = {
    64: (Tiling(64, 64, 4, 3, resident=3), LONG_STEPS, Tiling(64, 64, 4, 3, boxed=False)),
    80: (Tiling(64, 64, 4, 2, boxed=False),) * 3,
    128: (Tiling(64, 64, 4, 2),) * 3,
    256: (Tiling(64, 32, 4, 2, boxed=False),) * 3,
}
# of one product into a mixture of narrow operands, where more than two blocks of 64 are walked, all of them
LONG_WALK = Tiling(64, 64, 4, 3, boxed=False)
# the same where rows begin between sectors: larger blocks of rows, as what they walk takes long to arrive
BETWEEN_SECTORS: Mapping[int, Tiling] = {
    64: Tiling(128, 64, 8, 3, boxed=False, resident=2),
    80: Tiling(128, 64, 4, 3, boxed=False),
}
_SECTOR = 16  # 16-bit elements
LARGER_WIDTH = 80  # of operands, up to which sums and scores of larger blocks have room in registers
NARROW_WIDTH, TWO_BLOCKS = 64, 128  # of operands with long steps where a walk has more than a block of 64, at most two
ROLES = Tiling(128, 128, 4, 2)  # of kernels whose warps have work of their own
ROLES_WIDTH = 128  # of their operands, at least
KEPT_BYTES = 1024  # bytes of shared memory that a multiprocessor keeps for each program
ROLES_BARRIERS = 1024  # bytes
ROLES_STEPS = (128, 64)
ROLES_SUMS = 180  # registers of a thread for scores, these in 16 bits, and sums
MATRIX = Tiling(64, 64, 4, 2)  # of kernels whose programs have a block of rows and of columns
SMALL_MATRIX = 32  # rows or columns of a block of both, for which two warps suffice: more programs run side by side
# of float32 operands, which take twice the room
FLOAT32_TILINGS: Mapping[int, Tiling] = {64: Tiling(64, 32, 4, 2), 128: Tiling(32, 32, 4, 2), 256: Tiling(32, 16, 4, 1)}
# of kernels without products: a warp's lanes lie along the columns that it walks, each with a share of the rows
ELEMENTWISE = Tiling(64, 32, 4, 2)
ROW_VALUES = 144  # of a thread's rows in registers: terms of inner sums, and sums
FEW_VALUES = 4  # of a row, up to which twice as many warps share the rows of sums: each reads little for itself
# registers of a thread: for sums, where these are many; for these, scores and matrices. Steps for their sake, at least
MANY_SUMS, POINT_VALUES, SHORTEST_CROWDED = 128, 232, 32
FEW_SCORES = 3  # of scores, which programs of four warps have registers for beside sums
TILES_OF_ROWS, TILE_STAGES = 4, 3  # of kernels whose columns are one block: blocks of rows that a program has


def choose_chain_tiling(kernel: ChainKernel, types: Types, setting: Setting) -> Tiling:
    """Block sizes, warps and stages of a kernel; blocks no larger than what there is."""
    if kernel.elementwise:
        return _for_points(kernel, PRECISION[setting.precision])
    if kernel.on_both_sides:
        return _for_both_sides(kernel)
    widest = _width(kernel)
    halves = all(i.dtype != "float32" for i in kernel.inners.values())
    mixtures = sum(r.target.feature is not None for r in kernel.targets)
    products = sum(i.left is not None for i in kernel.inners.values())
    two = TWO_PRODUCTS_OF_STATISTICS if walks_values(kernel) else TWO_PRODUCTS
    table = MIXTURES if mixtures > 1 else two if products > 1 else ONE_PRODUCT
    if not halves:
        chosen = next(t for n, t in FLOAT32_TILINGS.items() if widest <= n)
    elif kernel.looped is None:
        chosen = MATRIX
    else:
        tilings = next(t for n, t in table.items() if widest <= n)
        kind_of_walk = _walk_of(kernel, types)
        many = products > 2 and kind_of_walk < 2
        whole = mixtures > 1 and (many or is_whole_window(kernel, tilings[0].step))
        chosen = tilings[0 if whole else kind_of_walk]
        short = NARROW_WIDTH < kernel.extent[kernel.looped] <= TWO_BLOCKS
        if table is MIXTURES and widest <= NARROW_WIDTH and short and not many:
            chosen = LONG_STEPS
        elif table is ONE_PRODUCT:
            chosen = _of_one_product(kernel, types, chosen)
        if chosen == LONG_STEPS and kernel.walked:  # what is walked around the blocks takes registers of sums
            chosen = LONG_WALK
        if table is not ONE_PRODUCT and _lies_between_sectors(kernel):
            chosen = _by_maps(kernel, types, chosen)
    operands = _operands(kernel)
    boxed = chosen.boxed or bool(operands[2])  # a matrix takes more addresses than anything else
    resident = 0 if operands[2] else chosen.resident  # elements of each point take registers
    found = replace(chosen, precision=PRECISION[setting.precision], boxed=boxed, resident=resident)
    if table is not ONE_PRODUCT and halves and kernel.looped is not None and _has_few_programs(kernel, found):
        found = replace(found, block=found.block // 2, warps=4)
    block = min(found.block, *(feature_block(kernel.extent[v]) for v in kernel.blocked))
    step = found.step
    if kernel.looped is not None:
        step = min(step, feature_block(kernel.extent[kernel.looped]))
    # where positions are loaded first, Triton shares the stages between these and the elements
    stages = 2 * found.stages - 1 if kernel.in_place else found.stages
    warps = 2 if kernel.looped is None and block <= SMALL_MATRIX else found.warps
    found = replace(found, block=max(block, LEAST), step=max(step, LEAST), stages=stages, warps=warps)
    size, shared = 2 if halves else 4, setting.device.shared
    found = _of_many_products(found, kernel, operands, size, shared) if products > 2 else found
    found = _fitted(found, operands, size, shared)
    found = _in_registers(found, kernel, operands)
    return _with_tiles(found, kernel, operands, size, shared)


def _lies_between_sectors(kernel: ChainKernel) -> bool:
    """Whether rows begin between sectors, and their first blocks are lines."""
    widths = _widths(kernel)
    lines = all(blocks_in(kernel, n)[0] == NARROW_WIDTH for n in widths)
    return lines and any(n % _SECTOR for n in widths)


def _by_maps(kernel: ChainKernel, types: Types, otherwise: Tiling) -> Tiling:
    """Of several products of such rows: maps bring them where loads at the ends of a walk would have masks, or where
    programs with fewer addresses are three a multiprocessor; and larger blocks, where all blocks are walked."""
    several = sum(r.target.feature is not None for r in kernel.targets) > 1
    narrow, kind_of_walk = _width(kernel) <= NARROW_WIDTH, _walk_of(kernel, types)
    if kind_of_walk == 2 or several and narrow and kind_of_walk == 0:
        return otherwise
    if several:
        crowded = kernel.walked if narrow else kind_of_walk == 0
        return replace(LONG_WALK if narrow else otherwise, boxed=True, resident=3 if crowded else 0)
    larger = NARROW_WIDTH < _width(kernel) <= LARGER_WIDTH and kind_of_walk == 0
    return replace(otherwise, boxed=not narrow, block=TWO_BLOCKS if larger else otherwise.block)


def _of_one_product(kernel: ChainKernel, types: Types, otherwise: Tiling) -> Tiling:
    """Of long walks of many rows through narrow operands, or otherwise the table's."""
    widest, kind_of_walk = _width(kernel), _walk_of(kernel, types)
    long = kernel.extent[kernel.looped or ""] > TWO_BLOCKS and len(kernel.blocked) == 1
    if not long or kind_of_walk == 2 or _operands(kernel)[2] or kernel.extent[kernel.blocked[0]] < LONG_WALK.block:
        return otherwise
    unaligned = any(n % _SECTOR for n in _widths(kernel)) and not cut_at_both_ends(kernel)
    larger = next((t for n, t in BETWEEN_SECTORS.items() if widest <= n), None) if unaligned else None
    if larger is not None and _programs(kernel, larger) >= TWO_A_MULTIPROCESSOR:
        return larger
    plain = kind_of_walk == 0 and widest <= NARROW_WIDTH
    return LONG_WALK if plain and _programs(kernel, LONG_WALK) >= TWO_A_MULTIPROCESSOR else otherwise


def _programs(kernel: ChainKernel, tiling: Tiling) -> int:
    tiles = math.prod(-(-kernel.extent[v] // tiling.block) for v in kernel.blocked)
    return tiles * math.prod(kernel.extent[v] for v in kernel.batch)


def _has_few_programs(kernel: ChainKernel, tiling: Tiling) -> bool:
    """Whether blocks of twice 64 rows leave multiprocessors idle that half of them would use: two programs of four
    warps have one, or a program of operands wider than 128 columns."""
    large = _width(kernel) > ROLES_WIDTH
    if tiling.block <= MATRIX.block or len(kernel.blocked) != 1 or not (large or tiling.warps == MATRIX.warps):
        return False
    return _programs(kernel, tiling) < (TWO_A_MULTIPROCESSOR // 2 if large else TWO_A_MULTIPROCESSOR)


def _with_tiles(tiling: Tiling, kernel: ChainKernel, operands: _Operands, size: int, shared: int) -> Tiling:
    """Several blocks of rows for a program whose columns are one block, the next ones' operands under way, if shared
    memory has room for them."""
    bounded = any(r.target.bounds or r.target.conditions for r in kernel.targets)
    if bounded or len(kernel.blocked) != 1 or not in_one_block(kernel, tiling.step):
        return tiling
    tiles = -(-kernel.extent[kernel.blocked[0]] // tiling.block)
    beside = math.prod(kernel.extent[v] for v in kernel.batch)
    several = min(tiles, TILES_OF_ROWS, tiles * beside // TWO_A_MULTIPROCESSOR)
    stationary, streamed, matrices = operands
    each = tiling.block * (sum(stationary.values()) + tiling.step * len(matrices))
    room = (TILE_STAGES * each + tiling.step * sum(streamed.values())) * size <= shared
    return replace(tiling, tiles=several, stages=TILE_STAGES) if several > 1 and room else tiling


def _for_both_sides(kernel: ChainKernel) -> Tiling:
    """A block of all rows and columns; more warps where a thread would have too many values of matrices and sums."""
    block, step = (feature_block(kernel.extent[v]) for v in (*kernel.blocked, kernel.looped or ""))
    sums = 0
    for t in (r.target for r in kernel.targets):
        side = step if kernel.summed_side(t) in kernel.blocked else block
        sums += side * padded_features(kernel, kernel.extent[t.feature]) if t.feature is not None else side
    values = BOTH_SIDES_MATRICES * block * step + sums
    return Tiling(block, step, 4 if values <= BOTH_SIDES_REGISTERS // 2 else 8, 1)


def _width(kernel: ChainKernel) -> int:
    """Of the widest operand's block."""
    return max([32, *(padded_features(kernel, n) for n in _widths(kernel))])


def _widths(kernel: ChainKernel) -> list[int]:
    """Of all operands."""
    widths = [i.extent for i in kernel.inners.values() if i.left is not None]
    return widths + [kernel.extent[r.target.feature] for r in kernel.targets if r.target.feature is not None]


def _mixed_features(kernel: ChainKernel) -> int:
    """Of all mixtures."""
    features = [f for r in kernel.stored if (f := r.target.feature) is not None]
    return sum(padded_features(kernel, kernel.extent[f]) for f in features)


def columns_of_operands(kernel: ChainKernel) -> int:
    """Of all products of a point."""
    widths = [i.extent for i in kernel.inners.values() if i.left is not None]
    return sum(padded_features(kernel, n) for n in widths) + _mixed_features(kernel)


def _walk_of(kernel: ChainKernel, types: Types) -> int:
    """0: all blocks; 1: bounds cut the walk short; 2: data list the blocks."""
    visits = visits_of(kernel, types)
    if visits is not None and [*accesses_in(*visits.conditions)]:
        return 2
    return int(any(f.coefficient(kernel.looped or "") for r in kernel.targets for f in r.target.bounds))


def _for_points(kernel: ChainKernel, precision: str) -> Tiling:
    """Fewer rows where their values take more registers than a thread has, or where they leave multiprocessors idle."""
    values = _values_of_row(kernel)

    def crowded(block: int) -> bool:
        return block // ELEMENTWISE.warps * values > ROW_VALUES

    rows = math.prod(kernel.extent[v] for v in kernel.blocked)
    beside = math.prod(kernel.extent[v] for v in kernel.batch)
    block = min(ELEMENTWISE.block, feature_block(rows))
    while block > LEAST and crowded(block):
        block //= 2
    whole = block
    while block > LEAST and -(-rows // block) * beside < TWO_A_MULTIPROCESSOR * (1 if block == whole else 2):
        block //= 2
    step = ELEMENTWISE.step * whole // block  # as many points, so that threads have as much under way
    warps = ELEMENTWISE.warps
    few = values <= FEW_VALUES and all(r.target.aggregation == "sum" for r in kernel.targets)
    more = few or crowded(block)
    return replace(ELEMENTWISE, block=block, step=step, warps=2 * warps if more else warps, precision=precision)


def _values_of_row(kernel: ChainKernel) -> int:
    """How many registers a thread has for each of its rows: terms of inner sums, and sums."""
    sums = sum((r.unrolled or 1) + (r.target.aggregation == "logsumexp") for r in kernel.targets)
    return sums + sum(i.extent for i in kernel.inners.values())


def _of_many_products(tiling: Tiling, kernel: ChainKernel, operands: _Operands, size: int, shared: int) -> Tiling:
    """Of derivatives of derivatives, whose operands take much shared memory: where it has no room for two programs of
    four warps, or more than three products of scores leave registers room for sums, one program of eight warps has
    twice the rows. Registers are not held to more programs than it has room for."""
    if operands[2] or len(kernel.blocked) != 1 or kernel.looped is None:
        return tiling
    each = _room(tiling, operands, size) + KEPT_BYTES
    larger = replace(tiling, block=2 * tiling.block, warps=2 * tiling.warps, resident=0)
    enough = kernel.extent[kernel.blocked[0]] >= larger.block and _programs(kernel, larger) >= TWO_A_MULTIPROCESSOR // 2
    few = 2 * each > shared + KEPT_BYTES
    if not few and sum(i.left is not None for i in kernel.inners.values()) > FEW_SCORES:
        few = tiling.block * _mixed_features(kernel) // (32 * tiling.warps) < MANY_SUMS
    if few and (tiling.block, tiling.warps) == (MATRIX.block, MATRIX.warps) and enough:
        return larger
    return replace(tiling, resident=0) if tiling.resident * each > shared + KEPT_BYTES else tiling


def _room(tiling: Tiling, operands: _Operands, size: int) -> int:
    """Bytes of shared memory of operands of so many bytes an element."""
    stationary, streamed, matrices = operands
    each = tiling.step * (sum(streamed.values()) + tiling.block * len(matrices))
    return (tiling.block * sum(stationary.values()) + tiling.stages * each) * size


def _fitted(tiling: Tiling, operands: _Operands, size: int, shared: int) -> Tiling:
    """Fewer stages, then smaller blocks, until operands of so many bytes an element fit into shared memory."""
    while True:
        if _room(tiling, operands, size) <= shared:
            return tiling
        if tiling.stages > 1:
            tiling = replace(tiling, stages=tiling.stages - 1)
        elif tiling.step > LEAST:
            tiling = replace(tiling, step=tiling.step // 2)
        elif tiling.block > LEAST:
            tiling = replace(tiling, block=tiling.block // 2)
        else:
            return tiling


def _in_registers(tiling: Tiling, kernel: ChainKernel, operands: _Operands) -> Tiling:
    """Shorter steps where sums have half of a thread's registers, and more than two scores, or these and matrices that
    are read for each score, would take more than are left: products wait for each other then."""
    products, threads = sum(i.left is not None for i in kernel.inners.values()), 32 * tiling.warps
    sums, step = tiling.block * _mixed_features(kernel) // threads, tiling.step
    values = max(products, 2) + len(operands[2])
    beside = tiling.block * values if values > 2 and sums >= MANY_SUMS else 0
    while beside and step > SHORTEST_CROWDED and sums + beside * step // threads > POINT_VALUES:
        step //= 2
    return replace(tiling, step=step)


def _operands(kernel: ChainKernel) -> _Operands:
    """The tensors that products read for the rows of a program, and for those that it walks, with their widths; those
    that have an element for each point."""
    stationary: dict[str, int] = {}
    streamed: dict[str, int] = {}
    matrices: set[str] = set()
    for r in kernel.targets:
        for a in accesses_in(*(f.value for f in r.feature)):
            streamed[a.tensor] = padded_features(kernel, kernel.extent[r.target.feature or ""])
        for a in accesses_in(r.target.body, *r.target.conditions):
            used = {*index_variables(a)}
            inner = kernel.inners.get(a.tensor)
            if inner is None:
                if kernel.looped in used and used & {*kernel.blocked}:
                    matrices.add(a.tensor)
                continue
            names = {v: linear(e).bare for v, e in zip(inner.index, a.index, strict=True)}
            for side in (inner.left, inner.right):
                for x in () if side is None else accesses_in(side):
                    own = {names.get(v) for v in index_variables(x)}
                    if inner.axis in index_variables(x):
                        (streamed if kernel.looped in own else stationary)[x.tensor] = padded_features(
                            kernel, inner.extent
                        )
    return stationary, streamed, matrices


def most_registers(tiling: Tiling) -> int:
    """How many registers a thread has at most, which are given out by eights; 0 for as many as the compiler finds."""
    return REGISTERS // (tiling.resident * THREADS * tiling.warps) // 8 * 8 if tiling.resident else 0


def streamed_tensors(kernel: ChainKernel) -> tuple[str, ...]:
    """The tensors that products read for what a program walks."""
    return tuple(_operands(kernel)[1])


def roles_tiling(kernel: ChainKernel, setting: Setting) -> Tiling | None:
    """The longest steps whose operands have room in shared memory and whose sums have in registers; None where warps
    with work of their own do not pay: for narrow operands, and short walks (through a window); or where it is plain
    that they have none: they multiply twice. Random numbers are drawn by Triton functions, which these cannot call."""
    looped, shared = kernel.looped, setting.device.shared
    if looped is None or kernel.elementwise or len(kernel.blocked) != 1 or _width(kernel) < ROLES_WIDTH:
        return None
    read = {a for r in kernel.targets for a in accesses_in(r.target.body) if a.tensor in kernel.inners}
    first = [a for a in read if kernel.inners[a.tensor].left is not None]
    if len(first) != 1 or sum(r.target.feature is not None for r in kernel.targets) != 1:
        return None
    if cut_at_both_ends(kernel) or draws(*(x for r in kernel.targets for x in (r.target.body, *r.target.conditions))):
        return None
    tiling = replace(ROLES, precision=PRECISION[setting.precision])
    stationary, streamed, _ = _operands(kernel)
    mixed = _mixed_features(kernel)
    for step in ROLES_STEPS:
        room = 2 * (tiling.block * sum(stationary.values()) + tiling.stages * step * sum(streamed.values()))
        # a group of 128 threads has 64 rows
        if room + ROLES_BARRIERS <= shared and mixed // 2 + step * 3 // 4 <= ROLES_SUMS:
            return replace(tiling, step=step) if step <= kernel.extent[looped] else None
    return None
