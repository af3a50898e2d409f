"""How the kernel of a group is spread over programs."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from tilec import knobs
from tilec.backends.triton.emit.contiguity import bytes_at_once, innermost_index, mixes_vectors
from tilec.backends.triton.fusion.groups import Group
from tilec.backends.triton.fusion.members import ON_CHIP
from tilec.backends.triton.fusion.memory_order import NEIGHBOURS
from tilec.backends.triton.fusion.recomputed.kernel_times import takes_vectors
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.backends.triton.plan.sizes import VECTOR_BYTES, Strides, filled_block, power_of_two
from tilec.backends.triton.rows.online_softmax import rescaled
from tilec.backends.triton.rows.walks import RowTiling, full_reads, levels, read_again
from tilec.cost import size_in_bytes
from tilec.ir.index import linear
from tilec.ir.program import Access, Call, index_variables, value_accesses, walk
from tilec.ir.types import ITEM_BYTES, NARROW, Types

FEW_LONG_ROWS = 8 * MULTIPROCESSORS  # rows that are walked, up to which a program holds more of one
ROWS_TO_COMBINE = 16  # rows of a block where memory runs along them and there are few, or many sums
STAGED = 160 * 1024  # bytes of rows under way, at most: what every supported device has of shared memory
ACROSS = 32  # rows of a block that holds their columns where memory runs along the rows, at least
# functions that take exponentials
EXPONENTIALS = frozenset(("exp", "exp2", "erf", "gelu", "sigmoid", "silu", "softplus", "tanh"))
SINES = frozenset(("sin", "cos"))
NARROWEST_SHARE = 32  # columns of a block where memory runs along the rows and programs are few, at least
NARROW_ROW, ROWS_OF_WARP = 512, 1024  # elements of a row that a warp takes alone, at most; of its rows together
NARROW_ROWS = 128  # the first of these where rows of several tensors are held
LEAST_HALVED = 2048  # elements of a block that half the warps take where rows leave a quarter of it
FILLED = 128  # columns of a block that leaves fewer threads beyond the last one, at least
RUNNING_SUMS = 96  # over rows, that a thread keeps, at most
MOST_LOADED = 128  # elements from outside that a thread has at once, so that registers hold what is made of them
FEW_LOADED, MOST_BESIDE = 3, 32  # elements of a point that any block may load; of a thread that loads more, at most
LEAST_TILED = 512  # elements of a block: four of a thread, which it reads at once
LEAST_OF_FEW, FEW_OF_ROWS = 1024, 4 * MULTIPROCESSORS  # elements that a program holds, where programs are fewer
# bytes of rows that are walked again, at most, so that what the first walk read is in a cache
KEPT_FROM_WALK = 48 * 2**20
KEPT_BY_ALL, WARPS_AT_ONCE = 64 * 2**20, 32  # the same of all programs that run at once; of a multiprocessor
LEAST_WALKED = 4  # blocks of rows that each program has, at least, where it walks them and keeps columns
_MOST_REPEATED = 8  # rows that read the same columns, which one block holds
OF_A_THREAD = 16  # elements of rows that begin anywhere
SHORT_WALK, WALKED = 64, 128  # columns that many rows walk one by one; rows of a block, at least


def choose_row_tiling(group: Group, strides: Strides, types: Types) -> RowTiling:
    """A first guess that is good untuned, fitted to what was measured on an H200: about 32 elements a thread, fewer
    where a program reads several tensors at each point; partial sums of two programs a multiprocessor, loads of the
    next rows under way, or of one where rows are long."""
    together = rows_of_a_block(group, strides)
    tiling = _first_guess(group, together, strides, types)
    written, read = _at_each_point(group)
    many = {v for v, n in group.extent.items() if n > 1}
    written = [a for a in written if many <= {*index_variables(*a.index)}]
    mixed = together <= 1 and mixes_vectors(written, read, types, strides)
    return replace(tiling, vectors=tiling.vectors and not mixed)


def _first_guess(group: Group, together: int, strides: Strides, types: Types) -> RowTiling:
    if not group.scans and all(s.output in group.sums or not group.reductions(s) for s in group.statements):
        return _total_tiling(group) if group.totals else _tiled(group, together, strides, types)
    rows, columns = group.count(group.rows), group.count(group.columns)
    depth = levels(group).depth
    full = full_reads(group)
    alone = not group.sums and not group.scans
    along = {v for v in group.columns if group.extent[v] > 1}
    filled = any(along & set(index_variables(*(s.index or ()))) for s in group.statements if s.output in group.stored)
    many = rows >= 4 * MULTIPROCESSORS * WALKED
    near = all(2 * types[name].numel <= rows * columns for name in full)  # windows, which caches hold
    walks = depth == 1 or near and depth == 2
    if together > 1 and many and columns <= SHORT_WALK and walks and alone and not filled:
        down = next(n for n in (8, 4, 2, 1) if n == 1 or rows >= 8 * MULTIPROCESSORS * n * WALKED) * WALKED
        return RowTiling("looped", down, 1, 0, 4)  # one column after the other: nothing to exchange
    needed = power_of_two(columns)
    again = depth > 1 or needed <= 1024
    if not alone or (again and max(1, together) * needed <= ON_CHIP):
        across = together > 1 and depth > 1 and filled and alone
        return _whole(group, ACROSS if across else together, strides, types)
    return _looped(group, together, strides, types)


def _tiled(group: Group, together: int, strides: Strides, types: Types) -> RowTiling:
    """Of what aggregates nothing over columns."""
    rows, columns = group.count(group.rows), group.count(group.columns)
    widest = min(power_of_two(columns), 2048)
    neighbours = _loaded_at_point(group) > max(FEW_LOADED, len(full_reads(group)))  # of some tensor
    narrowest = 2 * NARROWEST_SHARE if neighbours else None  # 32 of 96 columns take 1.08 of the time of 128
    block = widest if group.sums or together > 1 else filled_block(columns, widest, FILLED, narrowest)
    down = min(power_of_two(rows), max(together, 2048 // block, 1))
    if not group.sums and together <= 1 < rows <= _MOST_REPEATED and _read_by_all_rows(group):
        down, block = power_of_two(rows), max(block // power_of_two(rows), 1)
    if group.sums:
        programs = knobs.PARTIAL_ROWS.value or max(1, 4 * MULTIPROCESSORS // -(-columns // block))
        if neighbours:
            while block > LEAST_TILED and _loaded_at_point(group) * down * block > MOST_BESIDE * 128:
                down, block = (down // 2, block) if down > together else (down, block // 2)
        down, warps = _with_room(group, down, block, together)
        stages = _stages(group, types, down * block, STAGED // 4)  # of four programs a multiprocessor
        return RowTiling("tiled", down, block, min(-(-rows // down), programs), warps, stages)
    while down * block > 256 and -(-rows // down) * -(-columns // block) < 4 * MULTIPROCESSORS:
        if down > together:
            down //= 2
        elif together > 1 and block > NARROWEST_SHARE:  # memory runs along the rows, so a block keeps these
            block //= 2
        else:
            break
    halves = all(types[name].dtype in NARROW for name in full_reads(group) if name in types)
    loaded = _loaded_at_point(group) / (2 if halves else 1)  # a register holds two of 16 bits
    while loaded > FEW_LOADED and loaded * down * block > MOST_BESIDE * 128 and block * down > LEAST_TILED:
        down, block = (down // 2, block) if down > together else (down, block // 2)
    vectors = together > 1 or takes_vectors(group.statements, group.stored, _fastest(group), types)
    tiling = RowTiling("tiled", down, block, 0, 4, vectors=vectors)
    return _of_one_warp(tiling, together, group, strides, types) if vectors else tiling


def _read_by_all_rows(group: Group) -> bool:
    """Whether most of what is read along the columns is the same for all rows, such as the states of an optimiser. What
    is stored has all columns: two programs' narrower blocks would write one element otherwise."""
    rows, columns = ({v for v in names if group.extent[v] > 1} for names in (group.rows, group.columns))
    if not all(columns <= {*index_variables(*(s.index or ()))} for s in group.statements if s.output in group.stored):
        return False
    own = {s.output for s in group.statements}
    read = [{*index_variables(a)} for s in group.statements for a in value_accesses(s) if a.tensor not in own]
    along = [names for names in read if names & columns]
    return 2 * sum(not names & rows for names in along) > len(along)


def _with_room(group: Group, down: int, block: int, together: int) -> tuple[int, int]:
    """Rows of a block and warps of a program so that registers hold its sums: the fewest warps that do, then rows in
    runs that memory moves at once."""
    warps = 4

    def crowded() -> bool:
        return len(group.sums) * down * block > RUNNING_SUMS * 32 * warps

    while crowded() and (down > together or warps < 8):
        down, warps = (down // 2, warps) if down > together else (down, 2 * warps)
    while crowded() and (down > ROWS_TO_COMBINE or warps < 16):
        down, warps = (down // 2, warps) if down > ROWS_TO_COMBINE else (down, 2 * warps)
    return down, warps


def _whole(group: Group, together: int, strides: Strides, types: Types) -> RowTiling:
    """Of rows that a program holds at once, `together` of them in a block at least."""
    rows, needed = group.count(group.rows), power_of_two(group.count(group.columns))
    full, deep = full_reads(group), levels(group).depth > 1
    heavy = _is_heavy(group)
    halves = all(types[name].dtype in NARROW for name in full if name in types)
    elements = 4096 if group.sums else 1024 if heavy else 2048 if not halves else 8192 if needed >= 4096 else 4096
    down = max(1, min(power_of_two(rows), max(together, elements // needed), ON_CHIP // needed))
    while not group.sums and down > together and down * needed > LEAST_OF_FEW and rows < FEW_OF_ROWS * down:
        down //= 2
    few = rows <= down * MULTIPROCESSORS // 4  # programs: each thread has fewer elements then
    if few and 1 < together:
        down = min(down, max(ROWS_TO_COMBINE, elements // needed))
    each = 1024 if deep or together == 1 else 2048  # elements of a warp; what only adds up rows needs few
    each = 512 if heavy and _calls(group) & EXPONENTIALS else each  # which take instructions and registers
    spare = together == 1 and not group.sums and (halves or each < 1024) and down * needed >= LEAST_HALVED
    if spare and is_roomy(group, needed):
        warps = max(2 if each < 1024 else 4, min(16, down * needed // (2 * each)))
    else:
        warps = max(4, min(16, down * needed // each))
    warps = max(4, min(32, down * needed // 256)) if few else warps
    while len(group.sums) * down * needed > RUNNING_SUMS * 32 * warps and (down > 1 or warps < 16):
        down, warps = (down // 2, warps) if down > 1 else (down, 2 * warps)
    loaded = _loaded_at_point(group)
    while down > together and loaded * down * needed > MOST_LOADED * 32 * warps:
        down //= 2
    if not group.sums:
        tiling = RowTiling("whole", down, needed, 0, warps)
        return _of_one_warp(tiling, together, group, strides, types)
    programs = knobs.PARTIAL_ROWS.value or MULTIPROCESSORS * (2 if down * needed <= 4096 else 1)
    stages = _stages(group, types, down * needed, STAGED)
    return RowTiling("whole", down, needed, min(-(-rows // down), programs), warps, stages)


def is_roomy(group: Group, block: int) -> bool:
    """Whether a quarter of a block that holds rows lies beyond them, and its threads have so much less to hold."""
    return 4 * group.count(group.columns) <= 3 * block


def odd(tiling: RowTiling, group: Group, types: Types) -> RowTiling:
    """The same for rows that a program holds and that begin anywhere: with more warps, and programs that take one block
    of rows after the other where these have something of the columns in common, which is read element by element. Where
    blocks are roomy, twice as many programs of half the warps."""
    room = 2 if not tiling.parts and is_roomy(group, tiling.columns) else 1
    warps = max(tiling.warps, min(16, tiling.rows * tiling.columns // (32 * OF_A_THREAD * room)))
    tiling = replace(tiling, warps=warps)
    many, rows = ({v for v in axis if group.extent[v] > 1} for axis in (group.columns, group.rows))
    members = {s.output for s in group.statements}
    read = (a for s in group.statements for a in value_accesses(s) if a.tensor not in members)
    used = [{*index_variables(*a.index)} for a in read]
    shared = any(names & many and not names & rows for names in used)
    if tiling.parts or not shared or group.count(group.rows) < LEAST_WALKED * MULTIPROCESSORS * tiling.rows:
        return tiling
    stages = _stages(group, types, tiling.rows * tiling.columns, STAGED // (2 * room))
    return replace(tiling, parts=MULTIPROCESSORS * room, stages=stages)


def _looped(group: Group, together: int, strides: Strides, types: Types) -> RowTiling:
    """Of rows that are walked block by block."""
    rows, needed = group.count(group.rows), power_of_two(group.count(group.columns))
    again = _walked_again(group, types) if together == 1 and rows > FEW_LONG_ROWS else set()
    if len(again) > 1 or (again and _in_cache(again, group, strides, types)):
        # two tensors (softmax's gradient) take 1.06 to 1.18 of the time in other blocks, in a cache or not
        warps = 16 if len(again) > 1 or all(types[name].dtype in NARROW for name in again) else 32
        return RowTiling("looped", 1, min(needed, 256 * warps), 0, warps)
    calls, heavy = _calls(group), _is_heavy(group)
    exponentials = "exp" in calls
    down = min(power_of_two(rows), together)
    few = down == 1 and rows <= FEW_LONG_ROWS  # programs: each has more of its row under way
    idle = heavy and down > 1 and rows <= FEW_LONG_ROWS * down  # few programs: each has more under way
    elements = 8192 if down > 1 and not heavy else 4096 if exponentials or few or idle else 1024
    block = min(needed, max(1, elements // down))
    if 1 < down and rows < down * MULTIPROCESSORS and not exponentials:  # parts to combine: more of them at a time
        down = min(down, ROWS_TO_COMBINE)
        shares = power_of_two(-(-len(group.statements) // 4))  # four at most: each thread has its part of all
        block = min(needed, max(ROWS_TO_COMBINE, 8192 // (down * shares)))
        return RowTiling("looped", down, block, 0, max(4, min(16, down * block // 512)))
    if few and not exponentials:
        return RowTiling("looped", down, block, 0, max(4, min(16, block // 256)))
    warps = 16 if down * block > 4096 else 8 if exponentials or idle else 4
    if down * block == 1024 and calls & SINES:
        warps = 2  # more of them under way in a thread: snake's gradient takes 206 us, with four warps 226 (H200)
    return RowTiling("looped", down, block, 0, warps)


def _walked_again(group: Group, types: Types) -> set[str]:
    """Tensors whose rows a program reads again."""
    made = rescaled(group, types)
    firsts = {s.output: s for s in made.group.statements if s.output in made.places}  # found as their extrema are
    walked = replace(group, statements=tuple(firsts.get(s.output, s) for s in group.statements))
    return read_again(walked, levels(walked, made.places))


def _in_cache(again: Collection[str], group: Group, strides: Strides, types: Types) -> bool:
    """Whether a cache holds a row of each multiprocessor from one walk over it to the next: then programs should be
    few, of many warps each. Not of float32 where rows begin anywhere: softmax of rows of 20,001 takes 786 us so, 538 in
    blocks of 4096 (H200)."""
    full = [name for name in again if types[name].dtype not in NARROW]
    if any(n > 1 and n * ITEM_BYTES[types[name].dtype] % VECTOR_BYTES for name in full for n in strides[name]):
        return False
    return _bytes_of_a_row(again, group, types) * MULTIPROCESSORS <= KEPT_FROM_WALK


def _bytes_of_a_row(tensors: Collection[str], group: Group, types: Types) -> int:
    return sum(size_in_bytes(types[name]) for name in tensors) // group.count(group.rows)


def stay_in_cache(again: Collection[str], tiling: RowTiling, group: Group, types: Types) -> bool:
    """Whether a cache holds what all programs that run at once read again: then loads say that it should."""
    rows = MULTIPROCESSORS * max(1, WARPS_AT_ONCE // tiling.warps) * tiling.rows
    every = sum(size_in_bytes(types[name]) for name in again)
    return every <= KEPT_BY_ALL or _bytes_of_a_row(again, group, types) * rows <= KEPT_BY_ALL


def _is_heavy(group: Group) -> bool:
    """Whether several tensors are read at each point, and nothing is kept from row to row."""
    return len(full_reads(group)) > 1 and not group.sums and not group.scans


def _calls(group: Group) -> set[str]:
    return {e.function for s in group.statements for e in walk(s.body) if isinstance(e, Call)}


def _of_one_warp(tiling: RowTiling, together: int, group: Group, strides: Strides, types: Types) -> RowTiling:
    """The same with a warp in each program, where a block has rows for each of several that stand side by side in its
    columns: with rows that begin anywhere, a thread reads single elements, and warps share each row before they share
    rows. Statistics would be exchanged between them, and each thread would compute what belongs to a row for all."""
    rows = min(tiling.rows, ROWS_OF_WARP // tiling.columns)
    if together <= 1 and tiling.columns <= NARROWEST_SHARE and tiling.form == "whole":  # one warp reads each row
        many = group.count(group.rows) >= FEW_LONG_ROWS * rows and _bytes_at_once(group, strides, types) <= 4
        return replace(tiling, rows=rows) if many else tiling
    most = NARROW_ROW if len(full_reads(group)) < 2 else NARROW_ROWS
    if together > 1 or not 32 < tiling.columns <= most or tiling.rows < tiling.warps:
        return tiling
    if group.count(group.rows) < FEW_LONG_ROWS * rows or _bytes_at_once(group, strides, types) > 4:
        return tiling
    return replace(tiling, rows=rows, warps=1)


def _bytes_at_once(group: Group, strides: Strides, types: Types) -> int:
    """How many bytes of a row a thread reads or writes at once, of the tensor with the most."""
    written, read = _at_each_point(group)
    return max([1, *(bytes_at_once(types[a.tensor], strides[a.tensor]) for a in (*written, *read))])


def _at_each_point(group: Group) -> tuple[list[Access], list[Access]]:
    """What a group stores, and what it reads of tensors from outside that have an element for each point."""
    written = [Access(s.output, s.index or ()) for s in group.statements if s.output in group.stored]
    full = full_reads(group)
    return written, [a for s in group.statements for a in value_accesses(s) if a.tensor in full]


def _total_tiling(group: Group) -> RowTiling:
    """Rows of a block are neighbours, which a multiprocessor reads again from its own cache."""
    columns = min(power_of_two(group.count(group.columns)), 512)
    rows = group.count([v for v in group.rows if v not in group.kept])
    down = min(power_of_two(rows), 1024 // columns)
    across = -(-group.count(group.columns) // columns) * group.count(group.kept)
    blocks = -(-rows // down)
    each = -(-blocks // max(1, min(blocks, 16 * MULTIPROCESSORS // across)))
    return RowTiling("tiled", down, columns, -(-blocks // each), 4)


def _stages(group: Group, types: Types, elements: int, most: int) -> int:
    """How many blocks of so many elements are under way at once, in so many bytes at most beside the first."""
    each = sum(size_in_bytes(replace(types[name], shape=(elements,))) for name in full_reads(group) if name in types)
    return min(4, 1 + most // max(each, 1))


def _loaded_at_point(group: Group) -> int:
    """How many elements from outside each point of a block reads that others of its row or its column do not."""
    members = {s.output for s in group.statements}
    read = {a for s in group.statements for a in value_accesses(s) if a.tensor not in members}
    many = [{v for v in axis if group.extent[v] > 1} for axis in (group.rows, group.columns)]
    return sum(all(axis & set(index_variables(*a.index)) for axis in many) for a in read)


def _fastest(group: Group) -> str:
    """The variable along which blocks run."""
    return next((v for v in reversed(group.columns) if group.extent[v] > 1), "")


def rows_of_a_block(group: Group, strides: Strides) -> int:
    """How many rows a block needs for memory to be read in runs: one where it runs along the columns."""
    best, answer = -1, 1
    for s in group.statements:
        for a in value_accesses(s):
            if a.tensor not in strides:
                continue
            found = innermost_index(a, strides[a.tensor], lambda v: group.extent.get(v, 1))
            walking = {v for i in a.index for v in linear(i).variables()}
            if found is not None and not found[1].isdisjoint(group.columns):
                walking |= {*index_variables(*a.index)}  # rows that data names, of columns side by side
            size = math.prod(group.extent[v] for v in walking if v in group.extent)
            if found is not None and size > best:
                fastest = found[1]  # a window's, and its place's
                short = group.count(group.columns) <= SHORT_WALK or fastest.isdisjoint(group.columns)
                best, answer = size, NEIGHBOURS if short and not fastest.isdisjoint(group.rows) else 1
    return answer
