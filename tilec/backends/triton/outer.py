"""Blocks whose operands depend on one side each, walked point by point: an outer product in any semiring.

Each point of the reduction reads a row's operand and a column's, and combines all pairs. What limits it is reading: a
thread with R rows and C columns reads R + C values for R * C pairs, and Triton's own choice may be 32 rows and 1
column. So the accumulator begins as a read of the output's block that reads nothing: its layout, four columns and rows
8 apart, becomes the loop's. Rows that overhang are the last row again, since a test of each costs more than it saves.
All reads of several steps come first, under a test that holds but that the compiler cannot see through: others it moves
to where they are used, and waits for each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial

from tilec.backends.code import Names
from tilec.backends.triton.kernel import free_of
from tilec.backends.triton.sizes import power_of_two
from tilec.backends.triton.space import Space
from tilec.ir.functions import FUNCTIONS
from tilec.ir.program import Access, Call, walk

# rows, columns, warps: fewer rows and columns than threads, or Triton lays out the operands for themselves
BLOCKS = ((64, 64, 4), (64, 32, 4), (32, 32, 4), (16, 32, 4))
PROGRAMS = 240  # nearly two a multiprocessor
LEAST_LAID_OUT = 16  # rows and columns
NEVER = "(row[:, None] < 0) & (col[None, :] < 0)"


def sides(space: Space, outputs: Sequence[str]) -> tuple[list[str], list[str]]:
    """Rows and columns, where no access along the reduction depends on all outputs: the variables of the one with most,
    and the others. What does not depend on the reduction is read before it."""
    s = space.statement
    accesses = [e for root in (s.body, s.guard) if root is not None for e in walk(root) if isinstance(e, Access)]
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
    accesses = [e for root in (s.body, s.guard) if root is not None for e in walk(root) if isinstance(e, Access)]
    wide = {v for v in space.outputs if space.largest(v) > 1}
    return [a for a in accesses if free_of(a) >= wide and not free_of(a) & set(space.reductions)]


def calls_library(space: Space) -> bool:
    s = space.statement
    called = [e for root in (s.body, s.guard) if root is not None for e in walk(root) if isinstance(e, Call)]
    library = any("libdevice" in (FUNCTIONS[e.function].triton or "") for e in called)
    return library or s.aggregation == "logsumexp"


def block_sizes(space: Space, rows: Sequence[str], columns: Sequence[str]) -> tuple[int, int, int]:
    """Rows, columns and warps: the largest block that leaves no multiprocessor idle; a heavy body waits for itself, and
    wants twice as many."""
    m, n = space.count(tuple(rows)), space.count(tuple(columns))
    least = PROGRAMS * (2 if calls_library(space) else 1)
    for block in BLOCKS:
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


def _named(names: Mapping[str, str], found: re.Match[str]) -> str:
    return names[found[1]]


def at_once(lines: Sequence[str], count: int, names: Names) -> list[str]:
    """Lines of one `step` as those of so many, all reads before what is done with them."""
    last = max((place for place, line in enumerate(lines) if "tl.load(" in line), default=-1)
    own = [line.split(" = ")[0] for line in lines[: last + 1]]
    found: tuple[list[str], list[str]] = ([], [])
    for step in range(count):
        renamed = {name: names.fresh(f"{name}_{step}") for name in own} | {"step": str(step)}
        words = re.compile(rf"\b({'|'.join(map(re.escape, renamed))})\b")
        for place, line in enumerate(lines):
            found[place > last].append(words.sub(partial(_named, renamed), line))
    return [*found[0], *found[1]]
