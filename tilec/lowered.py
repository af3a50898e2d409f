"""Lowered: a function lowered for given shapes, types and backend."""

from __future__ import annotations

from dataclasses import replace

from tilec.backends.base import Executable, Kernel
from tilec.cost import Cost, cost
from tilec.ir.program import Program
from tilec.ir.types import TensorType
from tilec.language import show


class Lowered:
    """A function lowered for given shapes, types and backend: what runs, and how it came about.

    `stages`: pass name -> Program, in order; where statements share kernels, "grouped" is the program that generated
    kernels carry out, with `[[kernel(k)]]` before each statement of the k-th such kernel. `kernels`: one a launch.
    """

    def __init__(self, stages: dict[str, Program], types: dict[str, TensorType], executable: Executable):
        self.stages = stages
        self._types = types
        self._executable = executable
        if executable.grouped is not None:
            program, self._types = executable.grouped[0], dict(executable.grouped[1])
            self.stages = {**stages, "grouped": program}

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        """Shape and element type of each result."""
        return tuple(self._types[name] for name in self.stages["flat"].outputs)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(self._executable.kernels)

    def source(self) -> str:
        """The generated code, with the Tile statements it comes from; it runs when pasted into a file. Of a program in
        chunks of time the chunks' programs, each by itself."""
        return self._executable.source()

    def asm(self, kind: str) -> str:
        """Assembly of all kernels ("ptx", "cubin", ...); empty for a backend that makes none."""
        return self._executable.asm(kind)

    def cost(self) -> Cost:
        """Floating-point operations, bytes moved kernel by kernel, and the least bytes that any program must move."""
        found = cost(self.stages.get("grouped", self.stages["flat"]), self._types)
        return replace(found, bytes_moved=found.bytes_moved + self._executable.repeated_bytes)

    @property
    def temporary_bytes(self) -> int | None:
        """The most bytes that intermediates take at a time, beside inputs and outputs. None where that is not known:
        torch's operations take what they need, and so do chunks of time."""
        return self._executable.temporary_bytes

    def __str__(self) -> str:
        return "\n".join(f"// {name}\n{show(program)}" for name, program in self.stages.items())
