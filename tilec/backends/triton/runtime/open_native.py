"""A plan whose sizes are open as the library's: its steps are made once, and a call's numbers are filled in.

Kernels that a length compiles anew, as where a number is a multiple of 16 for the first time, are left to the plan at
its sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from tilec.backends.triton.plan.plan import Allocate, Launch, Plan, Pointer, Release, Table, TorchLines
from tilec.backends.triton.runtime.aten_calls import AtenStep
from tilec.backends.triton.runtime.launcher import CompiledKernel, compiled_kernel, kernel_key, specialised
from tilec.backends.triton.runtime.native_plan import PlanMaker
from tilec.backends.triton.runtime.straight import Operation, may_share, places_of
from tilec.ir.at_sizes import depends_on_sizes, template
from tilec.native import native


def fits(plan: Plan, names: Sequence[str]) -> bool:
    """Can a plan for inputs of these names be one?"""
    known = set(names)
    for step in plan.steps:
        match step:
            case Allocate(tensor, fill=None):
                known.add(tensor)
            case Table(tensor) if not depends_on_sizes(step):
                known.add(tensor)
            case TorchLines():
                known |= set(step.writes)
            case Launch() if not step.maps and known.issuperset(step.tensors):
                pass
            case Release():
                pass
            case _:
                return False
    return bool(names)


def _numbers(launch: Launch) -> tuple:
    """What of a launch may depend on sizes: its grid, its arguments, how it is compiled."""
    return launch.grid, tuple([v for _, v in launch.arguments]), (launch.constants, launch.warps, launch.stages)


def _made_by(step: object) -> Iterable[tuple[str, str]]:
    """The tensors that a step makes, with their types; all begin at multiples of 16 bytes."""
    match step:
        case Allocate(tensor, _, dtype):
            return [(tensor, dtype)]
        case Table(tensor):
            return [(tensor, "int32")]
        case TorchLines():
            return zip(step.writes, step.dtypes, strict=True)
    return ()


@dataclass(frozen=True)
class FilledIn:
    """The library's `plan`; `again` makes it anew once it is known what its lines of torch call."""

    plan: Any
    again: Callable[[], Any | None] | None = None


class OpenNative:
    """`symbols` are the open sizes; `inputs` are like those of every call, by name. `operation`: what a step does."""

    def __init__(
        self,
        plan: Plan,
        symbols: Sequence[str],
        inputs: Mapping[str, torch.Tensor],
        operation: Callable[[object], Operation],
    ):
        self._plan, self._names = plan, tuple(inputs)
        self._device = next(iter(inputs.values())).device
        self._shared = may_share(plan)
        self._allocated = [s.tensor for s in plan.steps if isinstance(s, Allocate)]
        self._operation = operation
        python = {k: s for k, s in enumerate(plan.steps) if isinstance(s, Table | TorchLines)}
        self._python = {k: operation(s) for k, s in python.items() if not depends_on_sizes(s)}
        self._sized = {k: s for k, s in python.items() if k not in self._python}
        self._specialised: dict[str, object] = {name: specialised(t) for name, t in inputs.items()}
        for s in plan.steps:
            for name, dtype in _made_by(s):
                made = torch.empty(0, dtype=getattr(torch, dtype), device="meta")
                self._specialised[name] = specialised(made)
        shapes = tuple([s.shape for s in plan.steps if isinstance(s, Allocate)])
        launches = tuple([_numbers(s) for s in plan.steps if isinstance(s, Launch)])
        self._numbers = template((shapes, launches, tuple(self._sized.values())), symbols)
        self._kernels: dict[tuple, CompiledKernel] = {}

    def at(self, sizes: Mapping[str, int]) -> FilledIn | None:
        """The library's plan at these sizes; None where a kernel is not there yet, or no driver that it knows."""
        shapes, launches, steps = self._numbers(sizes)
        own = {k: self._operation(s) for k, s in zip(self._sized, steps, strict=True)}
        operations = {**self._python, **own}
        made = partial(self._made, dict(zip(self._allocated, shapes, strict=True)), launches, operations)
        plan = made()
        unseen = any(isinstance(o, AtenStep) and o.unseen for o in operations.values())
        return None if plan is None else FilledIn(plan, made if unseen else None)

    def _made(
        self,
        shapes: Mapping[str, Sequence[int]],
        launches: Sequence[tuple],
        operations: Mapping[int, Operation],
    ) -> Any | None:
        maker = PlanMaker(self._plan, self._names, self._device, places_of(self._shared, shapes))
        steps, left = list[tuple | None](), iter(launches)
        for place, step in enumerate(self._plan.steps):
            match step:
                case Allocate(tensor):
                    steps.append(maker.empty(step, shapes[tensor]))
                case Release():
                    steps.append(maker.free(step))
                case Launch():
                    grid, values, how = next(left)
                    kernel = self._kernel(place, step, values, how)
                    names = [name for name, _ in step.arguments]
                    launched = kernel.given(zip(names, values, strict=True)) if kernel is not None else None
                    if launched is None:
                        return None
                    steps.append(maker.launch(launched, grid))
                case _:
                    steps.append(maker.python(step, operations[place]))
        try:
            return maker.plan(native(), steps)
        except RuntimeError:
            return None

    def _kernel(self, place: int, launch: Launch, values: Sequence[Any], how: tuple) -> CompiledKernel | None:
        kinds = [self._specialised[v.tensor] if isinstance(v, Pointer) else specialised(v) for v in values]
        key = place, how, *kinds
        found = self._kernels.get(key)
        if found is None:
            constants, warps, stages = how
            made = replace(launch, constants=constants, warps=warps, stages=stages)
            found = compiled_kernel(kernel_key(made, self._device.index or 0, kinds))
            if found is not None:
                self._kernels[key] = found
        return found
