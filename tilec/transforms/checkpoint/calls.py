"""A program in chunks of time, as calls of smaller programs: those of whole tensors, and in between sweeps over chunks.

A chunk's program holds the statements of the parts that are computed in this sweep and of what these read, over the
times of the chunk. Chunks of which nothing particular is asked have equal ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.errors import TileError
from tilec.ir.program import Input, Program, reads
from tilec.ir.types import Types
from tilec.transforms.checkpoint.chunk_context import ChunkContext
from tilec.transforms.checkpoint.chunks import CheckpointSchedule, Chunks, independent
from tilec.transforms.checkpoint.program import Chunk
from tilec.transforms.checkpoint.timeline import Untimed, timeline
from tilec.transforms.simplify.simplify import drop_dead
from tilec.transforms.util.naming import Names
from tilec.transforms.util.tiled import Assign, Calls, Sweep, TiledCall, Whole, folded


def chunk_calls(program: Program, types: Types, chunks: Chunks | float, cotangents: Sequence[str] = ()) -> Calls | None:
    """The calls that compute a flat program in chunks, given ones or those that suit it (then `chunks` is the share of
    all steps whose states may be held at once); None where it does not fall into these. The states that given chunks
    name are read where they are inputs, and kept where they are outputs; where none is at hand, the recurrences that
    depend on no cotangent are computed first."""
    outside = {s.recurrence: s.kept for s in chunks.states} if isinstance(chunks, Chunks) else {}
    given = frozenset(r for r, kept in outside.items() if kept in program.input_names())
    wanted = set(outside.values()) & set(program.outputs)
    inner = tuple(s for s in program.statements if s.output not in wanted)
    inner = drop_dead(inner, tuple(o for o in program.outputs if o not in wanted) + tuple(outside))
    try:
        first = given or independent(inner, cotangents)
        schedule = CheckpointSchedule(timeline(replace(program, statements=inner), types), first, given)
        names = Names.of(program)

        def kept(name: str) -> str:
            return names.fresh(f"{name}_kept")

        found = schedule.completed(chunks, kept) if isinstance(chunks, Chunks) else schedule.chunks(kept, chunks)
        return None if found is None else _Plan(program, schedule, found).calls()
    except (Untimed, TileError):
        return None


class _Plan:
    def __init__(self, program: Program, schedule: CheckpointSchedule, chunks: Chunks):
        self.program, self.schedule, self.chunks = program, schedule, chunks
        self.line = schedule.line
        self.frame = ChunkContext(schedule, chunks, program.outputs)
        self.types = self.frame.types

    def calls(self) -> Calls:
        steps: list[Sweep] = []
        done: set[str] = set()
        for stage in range(self.schedule.stages + 1):
            steps += self._whole(stage, done)
            if stage < self.schedule.stages and (sweep := self._sweep(stage)) is not None:
                steps.append(sweep)
        return Calls(tuple(steps), self.program.input_names(), self.program.outputs)

    def _whole(self, stage: int, done: set[str]) -> list[Sweep]:
        """The whole statements that can be computed before this stage's sweep."""
        parts = [p for p in self.line.parts if p.variable is None and p.output not in done]
        ready = [p.statement for p in parts if self.schedule.there[p.output] <= stage]
        if not ready:
            return []
        done.update(s.output for s in ready)
        inside = {s.output for s in ready}
        after = [p for p in self.line.parts if p.output not in inside]
        read = {n for p in after for n in reads(p.statement)} | set(self.program.outputs)
        outputs = tuple(s.output for s in ready if s.output in read)
        names = tuple(dict.fromkeys(n for s in ready for n in reads(s) if n in self.types and n not in inside))
        program = Program(None, tuple(Input(n, self.types[n].shape) for n in names), outputs, tuple(ready))
        sinks = tuple((k, Assign(n)) for k, n in enumerate(outputs))
        piece = program, tuple(self.types[n] for n in names)
        return [Sweep((TiledCall(piece, tuple(map(Whole, names)), sinks),))]

    def _sweep(self, stage: int) -> Sweep | None:
        """Every chunk has a program made for it: which parts are active in it, and which ranges are cut off at an end,
        may differ anywhere. Equal ones are built once."""
        count = self.chunks.count
        order = range(count) if self.schedule.rising(stage) else range(count - 1, -1, -1)
        calls = [call for k in order if (call := Chunk(self.frame, stage, k).call()) is not None]
        if not calls:
            return None
        parts = [p for p in self.schedule.parts if self.schedule.stage[p.output] == stage]
        kept = [self.frame.states[p.output].kept for p in parts if self.schedule.to_be_kept(p, stage)]
        whole = [p.output for p in parts if p.axis is not None and self.frame.is_whole(p.output)]
        made = tuple((n, self.types[n]) for n in (*kept, *whole))
        rounded = tuple((p.output, self.types[p.output].dtype) for p in parts if self.frame.summed_up(p))
        return Sweep(folded(calls), made, rounded)
