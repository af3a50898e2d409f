"""A plan with open sizes for the library in C++: its steps are made once, and a call's numbers are filled in.

Kernels that a length compiles anew, as where a number is a multiple of 16 for the first time, are left to the plan at
its sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tilec.backends.triton.plan.plan import Allocate, Launch, Plan, Pointer, Release, Table, TorchLines, made_by
from tilec.backends.triton.runtime.aten_calls import lines_at
from tilec.backends.triton.runtime.bound import Operation
from tilec.backends.triton.runtime.compiled import kernel_key, specialised
from tilec.backends.triton.runtime.launcher import CompiledKernel, compiled_kernel
from tilec.backends.triton.runtime.native_plan import PlanMaker
from tilec.backends.triton.runtime.workspace import may_share, places_of
from tilec.ir.at_sizes import Template, depends_on_sizes
from tilec.native import native


def fits(plan: Plan, names: Sequence[str]) -> bool:
    """Can a plan for inputs of these names be one?"""
    known = set(names)
    for step in plan.steps:
        match step:
            case Allocate(fill=None) | TorchLines() | Release():
                pass
            case Table() if not depends_on_sizes(step):
                pass
            case Launch() if not step.maps and known.issuperset(step.tensors):
                pass
            case _:
                return False
        known |= made_by(step).keys()
    return bool(names)


class OpenNative:
    """`symbols` are the open sizes; `inputs` are like those of every call, by name. `operation`: what a step does."""

    def __init__(
        self,
        plan: Plan,
        symbols: Sequence[str],
        inputs: Mapping[str, torch.Tensor],
        operation: Callable[[Any], Operation],
    ):
        self._plan, self._names = plan, tuple(inputs)
        self._device = next(iter(inputs.values())).device
        self._shared = may_share(plan)
        python = [s for s in plan.steps if isinstance(s, Table | TorchLines)]
        self._makers = [
            lines_at(s, self._device) if isinstance(s, TorchLines) and depends_on_sizes(s) else None for s in python
        ]
        self._functions = [operation(s) if m is None else None for s, m in zip(python, self._makers, strict=True)]
        self._kinds: dict[str, object] = {name: specialised(t) for name, t in inputs.items()}
        for s in plan.steps:
            for name, dtype in made_by(s).items():  # which begin at multiples of 16 bytes
                made = torch.empty(0, dtype=getattr(torch, dtype), device="meta")
                self._kinds[name] = specialised(made)
        launches = [s for s in plan.steps if isinstance(s, Launch)]
        how = tuple([(s.constants, s.warps, s.stages, s.registers) for s in launches])
        arguments = tuple([tuple([v for _, v in s.arguments]) for s in launches])
        allocated = {s.tensor: s.shape for s in plan.steps if isinstance(s, Allocate)}
        lines = tuple([s.numbers if isinstance(s, TorchLines) else () for s in python])
        counts = {tensor: math.prod(allocated[tensor]) for tensor, *_ in self._shared}
        launched = tuple([s.grid for s in launches]), arguments, how
        self._numbers = Template((how, arguments, *launched, allocated, lines, counts), symbols)
        self._how_count = len(Template(how, symbols).texts)
        self._kind_count = len(Template((how, arguments), symbols).texts)
        self._launched, self._allocated = self._numbers.part(launched), self._numbers.part(allocated)
        self._lines, self._counts = self._numbers.part(lines), self._numbers.part(counts)
        self._plans: dict[tuple, Any] = {}  # by what kernels are compiled for, and what is in the workspace

    def at(self, sizes: Mapping[str, int]) -> Any | None:
        """The library's plan at these sizes; None where a kernel is not there yet, or no driver that it knows."""
        values = self._numbers.values(sizes)
        placed, workspace = places_of(self._shared, self._counts(values)) if self._shared else ({}, 0)
        kinds = map(specialised, values[self._how_count : self._kind_count])
        key = (tuple(placed), values[: self._how_count], *kinds)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._made(values, tuple(placed))
            if plan is None:
                return None
            self._plans[key] = plan
        lines = zip(self._makers, self._lines(values), strict=True)
        functions = [None if make is None else make(numbers) for make, numbers in lines]
        return plan.filled(workspace, (*values, *placed.values()), functions)

    def _made(self, values: tuple, placed: tuple[str, ...]) -> Any | None:
        """A plan of the kernels for these numbers whose own are left out."""
        first, numbers = len(values), [(place,) for place in range(len(values))]
        places = {name: (first + place,) for place, name in enumerate(placed)}
        maker = PlanMaker(self._plan, self._names, self._device, (places, 0))
        steps, functions = list[tuple | None](), iter(self._functions)
        allocated = self._allocated(numbers)
        launched = zip(*self._launched(numbers), *self._launched(values), strict=True)
        for step in self._plan.steps:
            match step:
                case Allocate(tensor):
                    steps.append(maker.empty(step, allocated[tensor]))
                case Release():
                    steps.append(maker.free(step))
                case Launch():
                    grid, given, _, _, known, how = next(launched)
                    kernel = self._kernel(step, known, how)
                    names = [name for name, _ in step.arguments]
                    driven = kernel.given(zip(names, given, strict=True)) if kernel is not None else None
                    if driven is None:
                        return None
                    steps.append(maker.launch(driven, grid))
                case _:
                    steps.append(maker.python(step, next(functions)))
        try:
            return maker.plan(native(), steps)
        except RuntimeError:
            return None

    def _kernel(self, launch: Launch, values: Sequence[Any], how: tuple) -> CompiledKernel | None:
        constants, warps, stages, registers = how
        made = replace(launch, constants=constants, warps=warps, stages=stages, registers=registers)
        kinds = [self._kinds[v.tensor] if isinstance(v, Pointer) else specialised(v) for v in values]
        return compiled_kernel(kernel_key(made, self._device.index or 0, kinds))
