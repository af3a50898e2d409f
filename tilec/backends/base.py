"""What a backend is: it makes an executable of a lowered program, once per shapes, types and size values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tilec import knobs
from tilec.ir.program import Program
from tilec.ir.shape_class import Recorder
from tilec.ir.types import Types

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Lowering:
    """A program after each pass, in order, and the type of every tensor of the "flat" stage.

    Statements of "flat", "reduced" and "defracted" correspond by the name of their output. `recorder`: of
    sizes that are left open.
    """

    stages: Mapping[str, Program]
    types: Types
    recorder: Recorder | None = None

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the sizes that are left open."""
        return () if self.recorder is None else self.recorder.names


@dataclass(frozen=True)
class KernelSource:
    """One launch: its name, its source text, the outputs of the statements that it carries out. `block`: where the
    text is written from a block program, the lines of that, each with the output that it serves or "". `lines`: those
    of the text's functions likewise, where it is a kernel's own; `stored`: the outputs that it stores."""

    name: str
    source: str
    statements: tuple[str, ...]
    block: tuple[tuple[str, str], ...] = ()
    lines: tuple[tuple[str, str], ...] = ()
    stored: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Options:
    """How to build. `library`: whether convolutions and other routines of a library are candidates; `memory_budget`:
    bytes of temporaries a statement may take; `block`: elements evaluated at a time; `tune`: may building measure
    candidates on the device; `exact`: a recurrence is computed in its own order, which computing several times at once
    would change; `device_budget`: bytes of intermediates from which kernels go by slabs (None: as the program's size
    asks)."""

    library: bool = True
    memory_budget: int = knobs.MEMORY_BUDGET.default
    block: int = knobs.BLOCK.default
    tune: bool = False
    exact: bool = False
    device_budget: int | None = knobs.DEVICE_BUDGET.default

    @staticmethod
    def from_environment(tune: bool = False, exact: bool = False) -> Options:
        return Options(
            knobs.LIBRARY.value, knobs.MEMORY_BUDGET.value, knobs.BLOCK.value, tune, exact, knobs.DEVICE_BUDGET.value
        )


class Executable(Protocol):
    @property
    def grouped(self) -> tuple[Program, Types] | None:
        """The program as kernels carry it out, `[[kernel(k)]]` before the statements that share one, and its types.
        None where that is the flat one."""
        ...

    @property
    def kernels(self) -> Sequence[KernelSource]: ...

    @property
    def temporary_bytes(self) -> int | None:
        """The most bytes of intermediates at a time, where that is known."""
        ...

    @property
    def repeated_bytes(self) -> int:
        """Bytes that are moved again by carrying statements out in slabs."""
        ...

    def __call__(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Outputs in the program's order. Strides of the inputs may differ from call to call, shapes and types not."""
        ...

    def source(self) -> str: ...

    def asm(self, kind: str) -> str: ...


class OpenExecutable(Executable, Protocol):
    """An executable that was built with open sizes."""

    def at(self, sizes: Mapping[str, int]) -> Executable: ...


class Backend(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def tells_apart(self) -> int:
        """Open sizes are told apart by their greatest common divisor with this, which plans depend on anyway."""
        ...

    @property
    def chooses(self) -> bool:
        """Does it leave out what is read only where a condition holds that data alone say?"""
        ...

    def build(self, lowering: Lowering, options: Options | None = None) -> Executable: ...
