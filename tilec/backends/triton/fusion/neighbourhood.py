"""Producers and consumers of each statement, as groups are looked for among them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from tilec.backends.common.units import Reads
from tilec.backends.triton.fusion.loop_nest import LoopNest, ScanForm, Touched
from tilec.backends.triton.fusion.memory_order import Layouts
from tilec.ir.program import Program, Statement


class Neighbourhood:
    """A program's statements by place and by reader, and those that are free to join a group. Built once: growing a
    group looks at what is near its seed, however long the program is."""

    def __init__(
        self,
        program: Program,
        free: Mapping[str, LoopNest],
        read: Reads,
        instructions: Mapping[str, float],
        scans: Mapping[str, ScanForm],
        epilogues: Collection[str] = (),
        layouts: Layouts = MappingProxyType({}),
    ):
        """`read`: what each statement reads; one of a chain, all that its kernel does. `instructions`: what elementwise
        statements take for each element. `scans`: those of the free, which stand for the values that they add up.
        `epilogues`: elementwise statements that stay beside products. `layouts`: of inputs."""
        self.program, self.read, self.instructions, self.scans = program, read, instructions, scans
        self.epilogues, self.layouts = epilogues, layouts
        self.place = {s.output: k for k, s in enumerate(program.statements)}
        self.free = dict(free)
        self.renamed: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[Statement, Touched]] = {}

    def near(self, seed: LoopNest, distance: int) -> list[LoopNest]:
        """The free statements at most so many places from the seed, in order."""
        place = self.place[seed.statement.output]
        around = self.program.statements[max(0, place - distance) : place + distance + 1]
        return [self.free[s.output] for s in around if s.output in self.free]

    def between(self, statements: Sequence[Statement]) -> Sequence[Statement]:
        """All statements of the program from the first to the last of these."""
        places = [self.place[s.output] for s in statements]
        return self.program.statements[min(places) : max(places) + 1]

    def stored_outside(self, names: set[str]) -> set[str]:
        """Those that something else reads, or that the program returns."""
        return {n for n in names if n in self.program.outputs or {s.output for s in self.program.readers(n)} - names}
