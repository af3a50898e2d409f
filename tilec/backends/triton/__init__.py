"""The Triton backend: generated kernels on CUDA tensors, or interpreted on the CPU under TRITON_INTERPRET=1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from tilec.backends.base import Executable, Lowering, Options
from tilec.backends.common.code import python_name
from tilec.backends.common.memory import TensorMemory
from tilec.backends.triton.fusion.groups import Grouped, grouped
from tilec.backends.triton.fusion.memory_order import layouts_of
from tilec.backends.triton.permuted import PermutedLowering, orders_given, permuted_lowering
from tilec.backends.triton.plan.choices import plan_of_choice
from tilec.backends.triton.plan.device_info import check_target
from tilec.backends.triton.plan.plan import Plan, Setting
from tilec.backends.triton.plan.shared_kernels import share_kernels
from tilec.backends.triton.recurrence.recurrence import check_recurrences
from tilec.backends.triton.runtime.executable import TritonProgram, target_setting
from tilec.backends.triton.runtime.open_plans import MakePlan, OpenPlans
from tilec.backends.triton.runtime.wrapper import wrapper
from tilec.backends.triton.schedule.axis_tiling import budget_of, planned, slab_budget, within
from tilec.backends.triton.tuning.store import default_store
from tilec.backends.triton.tuning.tuner import known_choice, tune_products
from tilec.language.show import show_statement
from tilec.late import puts_off_collection


class TritonBackend:
    """`target`: an architecture to compile for where no device is used. `library`: may torch's own products and
    convolutions serve where they are exact?"""

    name = "triton"
    tells_apart = 16
    chooses = True

    def __init__(self, target: str | None = None, library: bool = False):
        if target is not None:
            check_target(target)
        self.target, self.library = target, library

    @puts_off_collection
    def build(self, lowering: Lowering, options: Options | None = None) -> Executable:
        """The executable of a lowered program. Raises Unsupported for a recurrence that no step can compute."""
        flat = lowering.stages["flat"]
        check_recurrences(flat)
        names = flat.input_names()
        grouping = grouped(flat, lowering.types)
        title = python_name(flat.name) if flat.name else "program"
        chosen = options or Options.from_environment()
        opened = None
        if lowering.recorder is not None:
            opened = OpenPlans(lowering, names, partial(self._planner, chosen=chosen), _nothing_tuned)
            opened.make(target_setting(self.target))
        return TritonProgram(
            self._planner(lowering, chosen, grouping),
            names,
            [lowering.types[n].shape for n in names],
            grouping.types,
            lambda p: wrapper(title, names, p, {s.output: show_statement(s) for s in grouping.program.statements}),
            self.target,
            TensorMemory(flat, lowering.types),
            (grouping.marked(), grouping.types) if grouping.program != flat or grouping.groups else None,
            opened,
        )

    def _planner(self, lowering: Lowering, chosen: Options, grouping: Grouped | None = None) -> MakePlan:
        """What makes plans of a lowered program for strides and a setting: over tensors whose axes stand as memory
        holds them."""
        flat = lowering.stages["flat"]
        plain = self._plain_planner(lowering, chosen, grouping)
        known: dict[tuple, tuple[PermutedLowering, MakePlan] | None] = {}

        def plan(
            strides: Sequence[tuple[int, ...]], setting: Setting, inputs: Mapping[str, torch.Tensor] | None = None
        ) -> Plan:
            given = orders_given(lowering, strides)
            key = tuple(given.items())
            if key not in known:
                made = permuted_lowering(lowering, given)
                known[key] = None if made is None else (made, self._plain_planner(made.lowering, chosen))
            if (found := known[key]) is None:
                return plain(strides, setting, inputs)
            turned, inner = found
            tensors = None if inputs is None else turned.tensors(inputs)
            return turned.plan(inner(turned.strides(strides), turned.setting(setting), tensors), flat.outputs)

        return plan

    def _plain_planner(self, lowering: Lowering, chosen: Options, grouping: Grouped | None = None) -> MakePlan:
        """The same over tensors as they are."""
        flat = lowering.stages["flat"]
        names = flat.input_names()
        known: dict[tuple, Grouped] = {} if grouping is None else {(): grouping}

        def groups_for(strides: Sequence[tuple[int, ...]]) -> Grouped:
            layouts = layouts_of(dict(zip(names, strides, strict=True)), lowering.types)
            key = tuple(layouts.items())
            if key not in known:
                known[key] = grouped(flat, lowering.types, layouts)
            return known[key]

        library, tunes = self.library and chosen.library, chosen.tune
        budget = budget_of(lowering, chosen.device_budget)
        slab = slab_budget(lowering, budget, chosen.device_budget)

        def plan(
            strides: Sequence[tuple[int, ...]], setting: Setting, inputs: Mapping[str, torch.Tensor] | None = None
        ) -> Plan:
            setting = replace(
                setting, library=library, known=None if lowering.recorder else known_choice, exact=chosen.exact
            )
            parts = plan_of_choice(lowering, strides, setting, lambda *how: within(planned(*how), budget, slab).part())
            if parts is not None:
                return share_kernels(parts)
            groups = groups_for(strides)
            made = within(planned(lowering, strides, setting, groups), budget, slab)
            if tunes and inputs is not None and not any(made.plan.parts()):
                tune_products(lowering, strides, setting, inputs)
                made = within(planned(lowering, strides, setting, groups), budget, slab)
            return share_kernels(made.plan)

        return plan


def _nothing_tuned() -> bool:
    """Tuned choices are kept by shapes, which plans with open sizes do not have."""
    return not torch.cuda.is_available() or default_store().empty()
