"""The Triton backend: generated kernels on CUDA tensors, or interpreted on the CPU under TRITON_INTERPRET=1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.backends.base import Lowering, Options
from tilec.backends.reference.code import identifier
from tilec.backends.triton.executable import TritonProgram
from tilec.backends.triton.host import program_text
from tilec.backends.triton.plan import Plan, Setting
from tilec.backends.triton.program import make_plan


class TritonBackend:
    """`target`: an architecture to compile for where no device is used. `library`: may torch's own products and
    convolutions serve where they are exact?"""

    name = "triton"

    def __init__(self, target: str | None = None, library: bool = False):
        self.target, self.library = target, library

    def build(self, lowering: Lowering, options: Options | None = None) -> TritonProgram:
        flat = lowering.stages["flat"]
        library = self.library and (options or Options.from_environment()).library
        names = flat.input_names()

        def plan(strides: Sequence[tuple[int, ...]], setting: Setting) -> Plan:
            return make_plan(lowering, strides, replace(setting, library=library))

        title = identifier(flat.name) if flat.name else "program"
        return TritonProgram(
            plan,
            names,
            [lowering.types[n].shape for n in names],
            _dtypes(lowering),
            lambda p: program_text(title, names, p),
            self.target,
        )


def _dtypes(lowering: Lowering) -> dict[str, str]:
    """Element type of every tensor that a plan may name."""
    return {name: t.dtype for name, t in lowering.types.items()}
