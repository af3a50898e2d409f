"""The Triton backend: generated kernels on CUDA tensors, or interpreted on the CPU under TRITON_INTERPRET=1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from tilec.backends.base import Executable, Lowering, Options
from tilec.backends.common.code import identifier
from tilec.backends.common.memory import TensorMemory
from tilec.backends.triton.fusion.groups import grouped
from tilec.backends.triton.plan.plan import Plan, Setting
from tilec.backends.triton.recurrence.fuse_producers import with_feeds
from tilec.backends.triton.recurrence.recurrence import check_recurrences
from tilec.backends.triton.runtime.executable import TritonProgram
from tilec.backends.triton.runtime.host import program_text
from tilec.backends.triton.schedule.axis_tiling import budget_of, planned, within
from tilec.backends.triton.tuning.tuner import known_choice, tune_products
from tilec.language.show import show_statement


class TritonBackend:
    """`target`: an architecture to compile for where no device is used. `library`: may torch's own products and
    convolutions serve where they are exact?"""

    name = "triton"
    open_sizes = False

    def __init__(self, target: str | None = None, library: bool = False):
        self.target, self.library = target, library

    def build(self, lowering: Lowering, options: Options | None = None) -> Executable:
        """The executable of a lowered program. Raises Unsupported for a recurrence that no step can compute."""
        flat = lowering.stages["flat"]
        check_recurrences(flat)
        chosen = options or Options.from_environment()
        library, tunes = self.library and chosen.library, chosen.tune
        budget = budget_of(lowering, chosen.device_budget)
        names = flat.input_names()
        together = grouped(with_feeds(flat, lowering.types), lowering.types)

        def plan(
            strides: Sequence[tuple[int, ...]], setting: Setting, inputs: Mapping[str, torch.Tensor] | None = None
        ) -> Plan:
            setting = replace(setting, library=library, known=known_choice, exact=chosen.exact)
            made = within(planned(lowering, strides, setting, together), budget)
            if tunes and inputs is not None and not any(made.plan.parts()):
                tune_products(lowering, strides, setting, inputs)
                made = within(planned(lowering, strides, setting, together), budget)
            return made.plan

        title = identifier(flat.name) if flat.name else "program"
        return TritonProgram(
            plan,
            names,
            [lowering.types[n].shape for n in names],
            together.types,
            lambda p: program_text(title, names, p, {s.output: show_statement(s) for s in together.program.statements}),
            self.target,
            TensorMemory(flat, lowering.types),
            (together.marked(), together.types) if together.groups or together.chains else None,
        )
