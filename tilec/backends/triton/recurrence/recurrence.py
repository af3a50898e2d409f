"""Family recurrence: statements that read their own output.

The place where a recurrence is given to a form that takes it; what no other form takes runs in its own order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tilec.backends.torch.recurrence.recurrence import assigned
from tilec.backends.triton.plan.plan import Allocate, Setting, Step
from tilec.backends.triton.plan.sizes import Strides, needs_int64_positions
from tilec.backends.triton.recurrence.coupled_lanes import choose_blocks, sharing_of, swept
from tilec.backends.triton.recurrence.epilogue import (
    find_recurrence_epilogue,
    find_sums,
    is_beside,
    over,
    time_axis,
    times_read,
)
from tilec.backends.triton.recurrence.independent_lanes import choose_local, recognise_local
from tilec.backends.triton.recurrence.parallel_lanes import local_steps
from tilec.backends.triton.recurrence.skewed_loop import SkewedLoop, chart
from tilec.backends.triton.recurrence.tile_kernel import TileWriter
from tilec.backends.triton.recurrence.tiles import StateTile, reads_states, recognise_tile
from tilec.ir.program import Program, Statement, index_variables, reads_itself
from tilec.ir.types import Types


def check_recurrences(flat: Program) -> None:
    """Raise Unsupported for a recurrence that no step can compute."""
    for s in flat.statements:
        if reads_itself(s):
            assigned(s)


def recurrence_steps(flat: Statement, types: Types, strides: Strides, setting: Setting) -> list[Step]:
    """Steps that compute a recurrence into its allocated output, which has elements."""
    loop = chart(flat, types)
    return sequential(loop, strides, needs_int64_positions((flat,), types, strides), setting)


def sequential(loop: SkewedLoop, strides: Strides, int64_index: bool, setting: Setting) -> list[Step]:
    """Steps that compute a recurrence time by time."""
    local = recognise_local(loop)
    if local is not None:
        return local_steps(local, strides, int64_index, choose_local(local))
    tile = recognise_tile(loop)
    if tile is not None:
        return [TileWriter(tile, strides, int64_index).launch()]
    sharing = sharing_of(loop, setting)
    return swept(sharing, strides, int64_index, choose_blocks(sharing, setting))


def with_epilogue(
    program: Program, place: int, types: Types, strides: Strides, barred: Collection[str]
) -> tuple[tuple[Statement, ...], list[Step]] | None:
    """The recurrence at that place together with its epilogue (none of `barred`), and steps that allocate
    and compute what is needed of them; None where it has none."""
    s = program.statements[place]
    if 0 in types[s.output].shape:
        return None
    loop = chart(s, types)
    local = recognise_local(loop)
    if local is None:
        found = sums_beside(program, place, types, barred)
        if found is None:
            return None
        tile, both = found
        int64_index = needs_int64_positions(both, types, strides)
        steps = _allocated(s, both[1:], tile.kept is not None, types)
        return both, [*steps, TileWriter(tile, strides, int64_index).launch()]
    epilogue = tuple(r for r in find_recurrence_epilogue(program, place, types) if r.output not in barred)
    if not epilogue:
        return None
    if not _steps_along(loop, local.circular_shifts, time_axis(s)):
        epilogue = tuple(r for r in epilogue if is_beside(r, s))
    kept = times_read(program, s, loop.time, epilogue, types)
    beside, last = ([over(loop, r) for r in epilogue if is_beside(r, s) == b] for b in (True, False))
    local = replace(local, epilogue=tuple(beside), totals=tuple(last), kept=kept)
    steps = _allocated(s, epilogue, kept is not None, types)
    int64_index = needs_int64_positions((s, *epilogue), types, strides)
    return (s, *epilogue), [*steps, *local_steps(local, strides, int64_index, choose_local(local))]


def _steps_along(loop: SkewedLoop, circular_shifts: Mapping[str, int], axis: int | None) -> bool:
    """Whether time walks along that axis and lanes stay where they are along the others."""
    index = loop.statement.index or ()
    return not circular_shifts and all((loop.time in index_variables(e)) == (k == axis) for k, e in enumerate(index))


def _allocated(s: Statement, epilogue: Sequence[Statement], stored: bool, types: Types) -> list[Step]:
    """Memory for the results of a recurrence's epilogue, and for the states that are stored."""
    names = [*(r.output for r in epilogue), *([s.output] if stored else [])]
    return [Allocate(name, types[name].shape, types[name].dtype) for name in names]


def sums_beside(
    program: Program, place: int, types: Types, barred: Collection[str] = ()
) -> tuple[StateTile, tuple[Statement, ...]] | None:
    """A recurrence whose states are held in registers, and the statements that add them up over lanes that one program
    has all of."""
    s = program.statements[place]
    loop = chart(s, types)
    found = {name: r for name, r in find_sums(program, place, types, loop.time).items() if name not in barred}
    tile = recognise_tile(loop) if found else None
    if tile is None:
        return None
    rows = {*loop.parallel}.difference(tile.loop.coupled)
    found = {n: r for n, r in found.items() if rows <= {*index_variables(*(r.index or ()))} and reads_states(r, tile)}
    beside = tuple(r for r in program.statements if r.output in found)
    kept = times_read(program, s, loop.time, beside, types)
    return (replace(tile, sums=tuple(found.values()), kept=kept), (s, *beside)) if found else None


def taken_by_recurrences(program: Program, types: Types) -> set[str]:
    """Outputs of the epilogues of recurrences, and of what adds up their states."""
    taken: set[str] = set()
    for place, s in enumerate(program.statements):
        if reads_itself(s):
            taken |= {r.output for r in find_recurrence_epilogue(program, place, types)}
            found = None if 0 in types[s.output].shape else sums_beside(program, place, types)
            taken |= set() if found is None else {r.output for r in found[1][1:]}
    return taken
