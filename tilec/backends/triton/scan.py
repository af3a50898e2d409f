"""Scans in as many steps as there are terms: which blocks, and whether rows are cut into chunks that run side by side.

Where the rows fill the device, one program goes through each block of rows. Where they are few, a row is cut: totals of
the chunks, what each chunk starts from, and then the chunks themselves, three launches that read the terms twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilec.backends.triton.coalesce import Viewed
from tilec.backends.triton.plan import Allocate, Release, Setting, Step
from tilec.backends.triton.scan_form import Scan, recognise_steps
from tilec.backends.triton.scan_text import ScanWriter, Tiling, workspaces
from tilec.backends.triton.sizes import power_of_two
from tilec.ir.index import linear
from tilec.ir.program import Access, Statement, walk
from tilec.ir.types import TensorType

PROGRAMS = 264  # of which there are enough for every multiprocessor
WANTED = 1056  # programs to aim at where rows are cut
BLOCK = 2048  # elements of a block
NARROW = 32  # lanes of a block whose memory runs along the lanes
MOST_CHUNKS = 4096


def choose_tiling(scan: Scan, seen: Viewed) -> Tiling:
    """Blocks as long as the rows allow where memory runs along them, and as wide as a line of memory elsewhere."""
    steps, rows, along = scan.steps, scan.rows, runs_along(scan, seen)
    if along or rows == 1:
        length = min(power_of_two(steps), BLOCK)
        lanes = min(power_of_two(rows), BLOCK // length)
    else:
        lanes = min(power_of_two(rows), NARROW)
        length = min(power_of_two(steps), BLOCK // lanes)
    programs, blocks = -(-rows // lanes), -(-steps // length)
    if programs >= PROGRAMS or blocks <= 2:
        return Tiling(length, lanes, along)
    chunks = min(-(-WANTED // programs), blocks, MOST_CHUNKS)
    tiles = -(-blocks // chunks)
    across = min(power_of_two(rows), 8)
    return Tiling(length, lanes, along, tiles, chunks=min(power_of_two(-(-blocks // tiles)), 512 // across), across=across)


def runs_along(scan: Scan, seen: Viewed) -> bool:
    """Whether memory runs along the steps, in the tensor read that is largest, or in the output."""
    s = scan.statement
    accesses = [e for e in walk(s.body) if isinstance(e, Access) and e.tensor != s.output]
    accesses.append(Access(s.output, s.index or ()))
    largest = max(accesses, key=lambda a: math.prod(seen.types[a.tensor].shape))
    moves = {v: 0 for v in (*scan.lanes, scan.along)}
    for e, stride in zip(largest.index, seen.strides[largest.tensor], strict=True):
        for v in moves:
            moves[v] += int(linear(e).coefficient(v) * stride)
    return all(not m or abs(moves[scan.along]) <= abs(m) for v, m in moves.items() if scan.space.largest(v) > 1)


def scan_steps(
    scan: Scan, seen: Viewed, flat: Statement, wide: bool, riding: Sequence[Statement] = (), tiling: Tiling | None = None
) -> list[Step]:
    """Steps that compute a scan into its allocated output, or that of the last statement riding on it."""
    tiling = tiling or choose_tiling(scan, seen)
    writer = ScanWriter(scan, seen, wide, tiling, riding)
    chunks = 1 if tiling.tiles is None else -(-scan.steps // (tiling.tiles * tiling.steps))
    if chunks == 1:
        return [writer.apply(flat, 1)]
    totals, heads = workspaces(scan)
    pairs = [*zip(totals, scan.algebra.dtypes, strict=True), *zip(heads, scan.algebra.dtypes, strict=False)]
    return [
        *(Allocate(name, (chunks, scan.rows), dtype) for name, dtype in pairs),
        writer.totals(flat, chunks),
        writer.heads(flat, chunks),
        writer.apply(flat, chunks),
        Release((*totals, *heads)),
    ]


def affine_recurrence(
    flat: Statement, types: Mapping[str, TensorType], strides: Mapping[str, tuple[int, ...]], setting: Setting, wide: bool
) -> list[Step] | None:
    """Steps of a recurrence many of whose steps are computed at once; None where that cannot be, or is not worth it."""
    found = None if setting.exact else recognise_steps(flat, types)
    seen = Viewed(flat, types, strides)
    if found is None or not worthwhile(found, seen):
        return None
    return scan_steps(found, seen, flat, wide)


FEWEST_STEPS = 64  # shorter recurrences are as quick step by step
MOST_ROWS = 8192  # so many fill the device step by step, which reads everything once


def worthwhile(scan: Scan, seen: Viewed) -> bool:
    """Step by step, a lane a thread, is as quick where steps are few, and quicker where lanes are many and memory runs
    along them."""
    return scan.steps >= FEWEST_STEPS and (scan.rows <= MOST_ROWS or runs_along(scan, seen))
