"""The call of a plan bound to what runs: the text of `wrapper.py` over launchers by addresses."""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import CodeType
from typing import Any

import torch

import tilec.backends.torch.runtime as torch_runtime
from tilec.backends.common.tiled_program import Tensors
from tilec.backends.triton.plan.plan import Allocate, Launch, Plan, Release, Repeat, Step, Table, TorchLines
from tilec.backends.triton.runtime.aten_calls import AtenStep, aten_step
from tilec.backends.triton.runtime.compiled import interpreting
from tilec.backends.triton.runtime.launcher import Launched
from tilec.backends.triton.runtime.workspace import step_tensors
from tilec.backends.triton.runtime.wrapper import DEFINITION_IMPORTS, DEFINITIONS, Wrapper, wrapper

Operation = Callable[[Tensors, int], None]  # of tensors by name, and a stream

_numbers = itertools.count(1)
_captured: list[torch.Tensor] = []  # constants that CUDA graphs read by address, which may outlive their plans


class BoundPlan:
    """A plan on a device. `run`: its text's function; `operations`: each step over a dictionary of tensors, for the
    library in C++; launches are compiled and kept in one place for both."""

    def __init__(self, plan: Plan, written: Wrapper, device: torch.device):
        self.written = written
        self.plan, self._device = plan, device
        placed = {name: dtype for name, (dtype, _, _) in written.placed.items()}
        self.launched = {n: Launched(launch, placed, device.index or 0) for n, launch in written.kernels.items()}
        self._by_launch = {id(launch): self.launched[name] for name, launch in written.kernels.items()}
        self._scope: dict[str, Any] = {"torch": torch, "rt": torch_runtime, "cache": _once}
        self._scope |= dict.fromkeys(written.layouts)
        self._scope |= {name: launched.by_grid for name, launched in self.launched.items()}
        self._scope |= _interpreted_definitions(written) if interpreting() else DIRECT
        file = f"<tilec {written.title} {next(_numbers)}>"
        self.code: CodeType = compile(written.text, file, "exec")
        exec(self.code, self._scope)
        linecache.cache[file] = len(written.text), None, written.text.splitlines(True), file
        weakref.finalize(self, linecache.cache.pop, file, None)
        self._steps: dict[int, AtenStep] = {}
        for title, step in written.lines.items():
            made = self._steps[id(step)] = aten_step(step, self._scope[title], device)
            self._scope[title] = made.results
        run = self._scope[written.title]
        self.run: Callable[..., tuple[torch.Tensor, ...]] = run

    def of(self, launch: Launch) -> Launched:
        return self._by_launch[id(launch)]

    @cached_property
    def operations(self) -> Sequence[Operation | None]:
        return [self._operation(*step) for step in zip(self.plan.steps, self.written.own_lines, strict=True)]

    def _operation(self, step: Step, lines: Sequence[str]) -> Operation | None:
        """What a step does; None for those that are the library's own."""
        match step:
            case Launch():
                return self.of(step)
            case TorchLines():
                return self._steps[id(step)]
            case Release() | Allocate(fill=None):
                return None
        reads, writes = step_tensors(step) or ((), ())
        names = self.written.local
        before = [f"{names[x]} = tensors[{x!r}]" for x in reads]
        after = [f"tensors[{x!r}] = {names[x]}" for x in writes]
        body = [*before, *lines, *after] or ["pass"]
        text = "\n    ".join(["def operation(tensors, stream):", *body])
        scope = {**self._scope, "device": self._device}
        exec(compile(text, "<tilec step>", "exec"), scope)
        operation = scope["operation"]
        if isinstance(step, Repeat):
            return RepeatedStep(operation, [self.of(launch) for launch in step.launches])
        return _ConstantStep(operation, step.tensor) if isinstance(step, Table) else operation


@dataclass(frozen=True)
class RepeatedStep:
    """Launches in turn, again and again, and what launches each."""

    operation: Operation
    launched: Sequence[Launched]

    def __call__(self, tensors: Tensors, stream: int) -> None:
        self.operation(tensors, stream)


class _ConstantStep:
    """A step that makes the same tensor each time: `constant`, once it has."""

    def __init__(self, operation: Operation, name: str) -> None:
        self._operation, self._name = operation, name
        self.constant: torch.Tensor | None = None

    def __call__(self, tensors: Tensors, stream: int) -> None:
        self._operation(tensors, stream)
        self.constant = tensors[self._name]


def operation_of(step: Table | TorchLines, device: torch.device) -> Operation:
    reads, writes = step_tensors(step) or ((), ())
    plan = Plan((step,), writes)
    (operation,) = BoundPlan(plan, wrapper("step", reads, plan, {}), device).operations
    assert operation is not None
    return operation


# what the text calls where kernels take addresses
DIRECT: dict[str, Callable[..., Any]] = {
    "within": lambda memory, dtype: memory.data_ptr().__add__,
    "tensor_map": lambda tensor, *how: tensor,
    "gluon_map": lambda tensor, *how: tensor,
}


def _interpreted_definitions(written: Wrapper) -> dict[str, Any]:
    """What the text calls where kernels are interpreted: as it is printed, but that each tensor has memory of its own,
    so that what lies outside of one can be told."""
    scope: dict[str, Any] = {"torch": torch}
    exec("\n".join([*DEFINITION_IMPORTS["tensor_map"], DEFINITIONS["tensor_map"]]), scope)
    counts: dict[tuple[torch.dtype, int], int] = {}
    for dtype, place, count in written.placed.values():
        key = getattr(torch, dtype), place
        counts[key] = max(count, counts.get(key, 0))

    def within(memory: torch.Tensor, dtype: torch.dtype) -> Callable[[int], torch.Tensor]:
        return lambda place: torch.empty(counts[dtype, place], dtype=dtype, device=memory.device)

    return {"tensor_map": scope["tensor_map"], "within": within}


def _once(make: Callable[[torch.device], torch.Tensor]) -> Callable[[torch.device], torch.Tensor]:
    """A constant that is made once a plan, and kept for good where a call that reads it is captured."""
    made: dict[torch.device, torch.Tensor] = {}

    def constant(device: torch.device) -> torch.Tensor:
        if device not in made:
            made[device] = make(device)
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            _captured.append(made[device])
        return made[device]

    return constant
