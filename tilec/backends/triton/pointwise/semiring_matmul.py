"""Matrix products in any semiring (max-plus, ...): outer products of a row's and a column's operands, point by point.

Each point of the reduction reads a row's operand and a column's, and combines all pairs. What limits it is reading: a
thread with R rows and C columns reads R + C values for R * C pairs, and Triton's own choice may be 32 rows and 1
column. So the accumulator begins as a read of the output's block that reads nothing: its layout, four columns and rows
8 apart, becomes the loop's. Rows that overhang are the last row again, since a test of each costs more than it saves.
All reads of several steps come first, under a test that holds but that the compiler cannot see through: others it moves
to where they are used, and waits for each.

Where memory runs along the reduction in the rows' operand, and along the columns in the other, points of the reduction
stand side by side in the block too (`KVector`), and are combined when all are done. A thread then has more rows and
columns of one of them, so that it reads less for each pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.emit.frame import free_of
from tilec.backends.triton.emit.kernel import Kernel, Scope
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.plan.lines import CodeLine
from tilec.backends.triton.plan.sizes import power_of_two
from tilec.cost import size_in_bytes
from tilec.ir.functions import LIBRARY_FUNCTIONS
from tilec.ir.index import linear
from tilec.ir.program import Access, Call, index_variables, value_accesses, walk
from tilec.ir.symbolic import gcd
from tilec.ir.types import TensorType

# rows, columns, warps: fewer rows and columns than threads, or Triton lays out the operands for themselves
SEMIRING_BLOCKS = ((64, 64, 4), (64, 32, 4), (32, 32, 4), (16, 32, 4))
SEMIRING_PROGRAMS = 240  # nearly two a multiprocessor
LEAST_LAID_OUT = 16  # rows and columns
NARROW_SIDE, BESIDE_NARROW = 8, 1024  # rows or columns of a block that has so many elements
NEVER = "(row[:, None] < 0) & (col[None, :] < 0)"
BESIDE = "tl.arange(0, BR)[None, :, None]"  # places of points that stand side by side
MOST_SEMIRING_LANES, FEWEST_LANES = 16, 4
COMBINED_WORDS = 64  # registers of a thread for the combined values
ROUND = 32  # points of the reduction whose reads are in flight together, at most
HALVES = "float16"  # 16-bit values that are added and compared two at a time


def sides(space: Space, outputs: Sequence[str]) -> tuple[list[str], list[str]]:
    """Rows and columns, where no access along the reduction depends on all outputs: the variables of the one with most,
    and the others. What does not depend on the reduction is read before it."""
    s = space.statement
    accesses = value_accesses(s)
    sets = [free_of(a) & set(outputs) for a in accesses if free_of(a) & set(space.reductions)]
    if not sets or any(len(found) == len(outputs) for found in sets) or not set().union(*sets) >= set(outputs):
        return [], []
    last = next(found for found in sets if outputs[-1] in found)
    shared = set.intersection(*(set(f) for f in sets))
    columns = [v for v in outputs if v in last and v not in shared]
    return [v for v in outputs if v not in columns], columns


def whole_blocks(space: Space) -> list[Access]:
    """Accesses that depend on all outputs and not on the reduction: reading them decides how a block is laid out."""
    s = space.statement
    accesses = value_accesses(s)
    varying = {v for v in space.outputs if space.largest(v) > 1}
    return [a for a in accesses if free_of(a) >= varying and not free_of(a) & set(space.reductions)]


def calls_library(space: Space) -> bool:
    """Whether each point calls the device's library: what all points of an element share stands before the loop."""
    s, summed = space.statement, set(space.reductions)
    called = [e for e in walk(s.body, *s.guards) if isinstance(e, Call) and e.function in LIBRARY_FUNCTIONS]
    return any(summed & {*index_variables(e)} for e in called) or s.aggregation == "logsumexp"


def block_sizes(space: Space, rows: Sequence[str], columns: Sequence[str]) -> tuple[int, int, int]:
    """Rows, columns and warps: the largest block that leaves no multiprocessor idle; a heavy body waits for itself, and
    wants twice as many. Where one side is narrow the other is as long as fills the threads."""
    m, n = space.count(tuple(rows)), space.count(tuple(columns))
    least = SEMIRING_PROGRAMS * (2 if calls_library(space) else 1)
    few, long = min(power_of_two(m), power_of_two(n)), BESIDE_NARROW // min(power_of_two(m), power_of_two(n))
    beside = [(few, long, 4) if m < n else (long, few, 4)] if few < NARROW_SIDE else []
    for block in (*beside, *SEMIRING_BLOCKS):
        bm, bn, warps = min(block[0], power_of_two(m)), min(block[1], power_of_two(n)), block[2]
        if -(-m // bm) * -(-n // bn) * len(space.classes) >= least:
            break
    return bm, bn, warps


def laid_out(space: Space, bm: int, bn: int) -> bool:
    """Whether blocks of this size fill the threads, and the last row is there to be read again."""
    return min(bm, bn) >= LEAST_LAID_OUT and all(e[v] for e in space.extent for v in space.outputs)


def tests_of_reads(space: Space, columns: Sequence[str], block: int, tails: dict[str, str]) -> dict[str, str]:
    """Those of the axes' tests that reads of a laid out block need: of columns, where they overhang."""
    even = all(math.prod(e[v] for v in columns) % block == 0 for e in space.extent)
    return {} if even else {"col": tails["col"]}


def reads_first(kernel: Kernel, count: int, write: Callable[[int], int]) -> list[CodeLine]:
    """Lines of so many steps, all that read before what is done with it. `write` writes the step of that number into a
    scope of its own, and returns how many of its lines are there for reads."""
    reads: list[CodeLine] = []
    rest: list[CodeLine] = []
    for step in range(count):
        kernel.scopes.append(Scope())
        last = write(step)
        lines = kernel.scopes.pop().lines
        reads += lines[:last]
        rest += lines[last:]
    return [*reads, *rest]


@dataclass(frozen=True)
class KVector:
    """`count` points of the summed variable `inner` side by side, `times` as many reads in flight; `warps`: of a
    program. `in_16_bits`: pairs are added and compared in 16 bits."""

    inner: str
    count: int
    times: int
    warps: int
    in_16_bits: bool


def lanes_of(space: Space, view: StridedView, columns: Sequence[str], bm: int, bn: int, warps: int) -> KVector | None:
    """Points side by side for a laid out block, None where memory does not run that way, or the body does more than the
    reading costs."""
    s = space.statement
    inner = _run_along(space, view, columns)
    if inner is None or s.aggregation == "logsumexp" or s.default is not None or calls_library(space):
        return None
    in_16_bits = sums_in_16_bits(space, view)
    dtype = HALVES if in_16_bits else Accumulator.of(s.aggregation, view.types[s.output].dtype).dtype
    warps = 8 if bm * bn > 2048 else warps
    words = bm * bn * size_in_bytes(TensorType((), dtype)) / (4 * 32 * warps)
    even = gcd(ROUND, *(e[inner] for e in space.extent))
    # sums are rounded in the same order whatever the block, so that slabs of a matrix find what the whole had
    count = min(FEWEST_LANES if s.aggregation in ("sum", "prod") else MOST_SEMIRING_LANES, even)
    while count * words > COMBINED_WORDS:
        count //= 2
    if count < FEWEST_LANES:
        return None
    return KVector(inner, count, min(2 if warps == 8 else 4, even // count), warps, in_16_bits)


def _run_along(space: Space, view: StridedView, columns: Sequence[str]) -> str | None:
    """The summed variable along which memory runs in all that depends on rows, where it runs along the columns in all
    else; None where there is none."""
    if whole_blocks(space):
        return None
    s, rows = space.statement, set(space.outputs) - set(columns)
    found: set[str] = set()
    for a in dict.fromkeys(walk(s.body, *s.guards)):
        if not isinstance(a, Access) or not free_of(a) & set(space.reductions):
            continue
        moves = {
            v: linear(e).coefficient(v) * step
            for e, step in zip(a.index, view.strides[a.tensor], strict=True)
            for v in linear(e).variables()
            if space.largest(v) > 1
        }
        fastest = {v for v, move in moves.items() if abs(move) == 1}
        of_rows = any(v in rows and space.largest(v) > 1 and v not in columns for v in free_of(a))
        if not of_rows and not free_of(a) & set(columns):
            return None
        if of_rows:
            found |= fastest & set(space.reductions) or {""}
        elif not fastest & set(columns):
            return None
    return found.pop() if len(found) == 1 and found != {""} else None


def sums_in_16_bits(space: Space, view: StridedView) -> bool:
    """Whether the greatest or least of sums of two 16-bit elements may be found in 16 bits, two at a time. Rounding is
    monotone, so the greatest rounded sum is the rounded greatest sum; and a sum of two such elements that is rounded to
    float32 first, and then to 16 bits, is the sum rounded once, since 24 bits are twice 11 and two more."""
    s = space.statement
    if s.aggregation not in ("max", "min") or s.guard is not None or view.types[s.output].dtype != HALVES:
        return False
    match s.body:
        case Call("add" | "sub", (Access() as a, Access() as b)):
            return all(view.types[x.tensor].dtype == HALVES for x in (a, b))
    return False
