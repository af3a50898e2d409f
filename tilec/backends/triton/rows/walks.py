"""How the kernel of a group goes over its columns: how often, and in which blocks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tilec.backends.triton.fusion.groups import Group
from tilec.backends.triton.plan.sizes import rounded_up
from tilec.ir.program import index_variables, value_accesses, variables_of
from tilec.ir.symbolic import is_symbolic

PARTS_OF_BLOCK, LEAST_PARTED = 16, 2048  # of equal size, the last of which may lie beyond a row; of a block, at least
NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True)
class RowTiling:
    """`form`: whole, looped or tiled. `rows`, `columns`: of a block. `parts`: programs that share the rows where
    outputs add up over them, else 0. `stages`: of the walk over rows. `vectors`: whether a thread may have
    neighbouring elements."""

    form: str
    rows: int
    columns: int
    parts: int
    warps: int
    stages: int = 1
    vectors: bool = True


@dataclass(frozen=True)
class Levels:
    """`of`: the walk over the columns in which each member's operands are known, 0 the first. `depth`: walks needed."""

    of: Mapping[str, int]
    depth: int


def levels(group: Group, maxima: Mapping[str, str] = NOTHING, heads: Collection[str] = ()) -> Levels:
    """`maxima`: by sums that are kept relative to a maximum while both are found, which. `heads`: statistics of each
    row's first block alone, known before the walk."""
    found: dict[str, int] = {}  # when a value is known
    starts: dict[str, int] = {}
    for s in group.statements:
        start = max((found[a.tensor] for a in value_accesses(s) if a.tensor in found), default=0)
        if s.output in maxima:
            start = max(start, starts[maxima[s.output]])
        starts[s.output] = start
        statistic = bool(group.reductions(s)) and s.output not in group.sums and s.output not in heads
        found[s.output] = start + statistic
    full = [s.output for s in group.statements if set(variables_of(s)) & set(group.columns)]
    return Levels(starts, 1 + max((starts[name] for name in full), default=0))


def read_again(group: Group, found: Levels) -> set[str]:
    """Tensors with an element at each point that more than one of the walks read."""
    by_name = {s.output: s for s in group.statements}
    full = full_reads(group)
    read: dict[str, set[int]] = {name: set() for name in full}
    for s in group.statements:
        statistic = bool(group.reductions(s))
        pending = [s] if statistic or s.output in group.stored else []
        while pending:
            for a in value_accesses(pending.pop()):
                if a.tensor in full:
                    read[a.tensor].add(found.of[s.output])
                elif a.tensor in by_name and not group.reductions(by_name[a.tensor]):
                    pending.append(by_name[a.tensor])
    return {name for name, walks in read.items() if len(walks) > 1}


def full_reads(group: Group) -> set[str]:
    """Tensors from outside that are read at each point."""
    many = {v for v, n in group.extent.items() if n > 1}
    members = {s.output for s in group.statements}
    return {
        a.tensor
        for s in group.statements
        for a in value_accesses(s)
        if a.tensor not in members and many <= set(index_variables(*a.index))
    }


def fills_blocks(group: Group, tiling: RowTiling) -> bool:
    """Whether a walk's blocks of columns are all whole, of sizes that are known."""
    count = group.count(group.columns)
    return tiling.form == "looped" and not is_symbolic(count) and count % tiling.columns == 0


def unrolls(group: Group, tiling: RowTiling) -> bool:
    """Whether two blocks of a walk go together: of one row, eight elements a thread, so that registers hold both."""
    return (
        tiling.rows == 1 and tiling.columns <= 256 * tiling.warps and group.count(group.columns) >= 4 * tiling.columns
    )


def width_of_block(group: Group, tiling: RowTiling, before: int) -> int:
    """How far the columns of a block of whole rows go, with so many places before a row's first, in sixteenths of the
    block; 0 where that is all of it, or not known. As a number of the kernel's text it tells the compiler which
    registers hold nothing: a row of 5000 columns takes 20 of a thread's 32, in a block of 8192."""
    count = group.count(group.columns)
    if tiling.form != "whole" or tiling.columns < LEAST_PARTED or is_symbolic(count):
        return 0
    width = rounded_up(count + before, tiling.columns // PARTS_OF_BLOCK)
    return width if width < tiling.columns else 0
