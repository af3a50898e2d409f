"""Lowered: a function lowered for given shapes, types and backend."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

from tilec.backends.base import Executable, KernelSource
from tilec.cost import Cost, KernelCost, cost, kernel_costs
from tilec.display.html import stages_html
from tilec.display.latex import latex
from tilec.display.people import PublicNames
from tilec.errors import InputMistake, NameMistake
from tilec.errors.tracebacks import public
from tilec.ir.program import Program
from tilec.ir.types import TensorType
from tilec.language import show

ASSEMBLY = ("ttir", "ttgir", "llir", "ptx", "cubin")


class Stages(dict[str, Program]):
    """Programs by the name of the pass that made them, in order; prints as the names with the programs below."""

    def __repr__(self) -> str:
        return "\n".join(f"// {name}\n{show(program)}" for name, program in self.items())


class Lowered(PublicNames):
    """A function lowered for given shapes, types and backend: what runs, and how it came about.

    `stages`: pass name -> Program, in order; where generated kernels carry out another program than the flat one,
    "grouped" is that program, with `[[kernel(k)]]` before each statement of the k-th kernel that several share.
    `kernels`: one a launch.
    """

    def __init__(self, stages: dict[str, Program], types: dict[str, TensorType], executable: Executable):
        self.stages = Stages(stages)
        self._types = types
        self._executable = executable
        if executable.grouped is not None:
            program, self._types = executable.grouped[0], {**types, **executable.grouped[1]}
            self.stages["grouped"] = program

    @property
    def inputs(self) -> dict[str, TensorType]:
        """Shape and element type of each input, by name."""
        return {name: self._types[name] for name in self.stages["flat"].input_names()}

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        """Shape and element type of each result."""
        return tuple(self._types[name] for name in self.stages["flat"].outputs)

    @property
    def kernels(self) -> tuple[KernelSource, ...]:
        """One for each launch, in order; empty on the torch backend."""
        return tuple(self._executable.kernels)

    @public
    def source(self) -> str:
        """The generated code, with the Tile statements it comes from.

        Returns:
            Python that runs when pasted into a file; of a program in chunks of time several files, each after a comment
            of its name: the chunks' programs, and `program.py`, which calls them.
        """
        return self._executable.source()

    @public
    def asm(self, kind: str) -> str:
        """Assembly of all kernels.

        Args:
            kind: "ttir", "ttgir", "llir", "ptx" or "cubin" (in hexadecimal digits), as Triton has them for NVIDIA.

        Returns:
            The text, kernel after kernel; empty for a backend that makes none.

        Raises:
            InputMistake: The kernels' compiler makes nothing of that kind.
        """
        try:
            return self._executable.asm(kind)
        except KeyError:
            raise InputMistake(f"the compiler makes no {kind!r}", hint="one of " + ", ".join(ASSEMBLY)) from None

    @public
    def cost(self) -> Cost:
        """Operations and bytes of one call.

        Returns:
            A Cost: floating-point operations, bytes moved kernel by kernel, and the least bytes that any program must
            move.
        """
        flat = self.stages["flat"]
        found = cost(self.stages.get("grouped", flat), self._types, flat, self._shared())
        return replace(found, bytes_moved=found.bytes_moved + self._executable.repeated_bytes)

    @public
    def kernel_costs(self) -> list[KernelCost]:
        """Operations and bytes of each kernel.

        Returns:
            One KernelCost a kernel, in the order in which they run; of a backend that makes none, one a statement.
        """
        flat = self.stages["flat"]
        return kernel_costs(self.stages.get("grouped", flat), self._types, flat, self._shared())

    def _shared(self) -> list[tuple[str, ...]]:
        """The outputs of each generated kernel."""
        source = self.source()
        return [k.statements for k in self.kernels if k.source not in ("", source)]

    @property
    def temporary_bytes(self) -> int | None:
        """The most bytes that intermediates take at a time, beside inputs and outputs. None where that is not known:
        torch's operations take what they need, and so do chunks of time."""
        return self._executable.temporary_bytes

    @public
    def dump(self, folder: str | Path) -> None:
        """Write every stage, the text of the call and each kernel, if any, and the whole source to numbered files.

        Args:
            folder: Where they go; it is made if need be.

        Raises:
            OSError: The folder cannot be written.
        """
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        for number, (name, text) in enumerate(self._files()):
            (path / f"{number:02}-{name}").write_text(text if text.endswith("\n") else text + "\n")

    def _files(self) -> Iterator[tuple[str, str]]:
        for name, program in self.stages.items():
            yield f"{name}.tile", show(program)
        source, call = self.source(), getattr(self._executable, "call_text", None)
        if call is not None:
            yield "call.py", call
        for kernel in self.kernels:
            if kernel.source != source:
                yield f"kernel-{kernel.name}.py", kernel.source
        yield "source.py", source

    @public
    def latex(self, stage: str = "flat") -> str:
        """A stage in mathematical notation.

        Args:
            stage: One of `stages`.

        Returns:
            An `aligned` environment of LaTeX (amsmath).

        Raises:
            NameMistake: There is no stage of that name.
        """
        if stage not in self.stages:
            raise NameMistake(f"no stage is called {stage}", hint="stages: " + ", ".join(self.stages))
        return latex(self.stages[stage])

    def _repr_html_(self) -> str:
        return stages_html(self.stages, self.cost(), self.source())

    def __str__(self) -> str:
        return repr(self.stages)

    def __repr__(self) -> str:
        first, flat = self.stages["source"], self.stages["flat"]
        inputs = ", ".join(_typed(n, self._types[n]) for n in flat.input_names())
        outputs = ", ".join(_typed(n, self._types[n]) for n in flat.outputs)
        count = len(self.kernels)
        kernels = f"{count} kernel{'s' * (count != 1)}"
        return f"<tilec.Lowered {first.name or ''}({inputs}) -> ({outputs}): {', '.join(self.stages)}; {kernels}>"


def _typed(name: str, t: TensorType) -> str:
    return f"{name}: {t.dtype}[{', '.join(map(str, t.shape))}]"


def dump_numbered(lowered: Lowered, folder: Path) -> None:
    """Dump to a subfolder of its own: 0001-name, 0002-name, ... in the order of calls; those that are there stay. A
    program without a name, such as a backward pass, has those of its outputs."""
    program = lowered.stages["source"]
    title = re.sub(r"\W+", "_", program.name or "_".join(program.outputs))[:60]
    folder.mkdir(parents=True, exist_ok=True)
    taken = {path.name.split("-")[0] for path in folder.iterdir()}
    lowered.dump(folder / f"{next(n for k in count(1) if (n := f'{k:04}') not in taken)}-{title}")
