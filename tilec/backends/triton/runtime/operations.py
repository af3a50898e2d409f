"""Steps of a plan as functions over a dictionary of tensors, for the first call and where there is nothing faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from tilec.backends.common.code import FreshNames, indented, python_name
from tilec.backends.common.tiled_program import RESERVED_NAMES, CallWriter, Tensors
from tilec.backends.triton.plan.plan import Allocate, Launch, Release, Repeat, SubPlan, Table, TiledLoop, TorchLines
from tilec.backends.triton.runtime.aten_calls import torch_lines
from tilec.backends.triton.runtime.launcher import Launched
from tilec.backends.triton.runtime.step_lines import torch_lines_of
from tilec.backends.triton.runtime.straight import Operation
from tilec.transforms.util.tiled import Start


def operation_of(step: object, device: torch.device) -> Operation:
    match step:
        case Allocate():
            return _allocation(step, device)
        case Launch():
            return Launched(step)
        case Repeat():
            return Repeated(step)
        case Table(tensor, rows):
            return _table(tensor, partial(torch.tensor, rows, dtype=torch.int32, device=device))
        case Release(names):
            return _release(names)
        case TorchLines():
            return torch_lines(step, device)
        case SubPlan():
            return _part(step, device)
        case TiledLoop():
            return _loop(step, device)
    raise AssertionError(f"no step: {step!r}")


_captured: list[torch.Tensor] = []  # constants that CUDA graphs read by address, which may outlive their plans


def _captured_too(constant: torch.Tensor) -> torch.Tensor:
    """A constant that a call reads, kept for good where the call is captured."""
    if constant.is_cuda and torch.cuda.is_current_stream_capturing():
        _captured.append(constant)
    return constant


def _table(name: str, make: Callable[[], torch.Tensor]) -> Operation:
    table = cache(make)  # at the first call
    return lambda tensors, stream: tensors.__setitem__(name, _captured_too(table()))


class Repeated:
    """A kernel launched so many times in turn."""

    def __init__(self, step: Repeat):
        self.launched, self._count = Launched(step.launch), step.count
        self._place = [name for name, _ in step.launch.arguments].index(step.counter)

    def __call__(self, tensors: Tensors, stream: int) -> None:
        self.launched.repeat(tensors, stream, self._place, self._count)


class Part:
    """A part of a plan as a function of a stream and its inputs."""

    def __init__(self, part: SubPlan, device: torch.device):
        self.step, self.operations = part, [operation_of(s, device) for s in part.plan.steps]

    def __call__(self, stream: int, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        own = dict(zip(self.step.inputs, inputs, strict=True))
        for operation in self.operations:
            operation(own, stream)
        return tuple([own[name] for name in self.step.plan.outputs])


@dataclass(frozen=True)
class OfParts:
    """What a step with parts does."""

    run: Operation
    parts: tuple[Part, ...]

    def __call__(self, tensors: Tensors, stream: int) -> None:
        self.run(tensors, stream)


def _part(step: SubPlan, device: torch.device) -> Operation:
    function = Part(step, device)

    def call(tensors: Tensors, stream: int) -> None:
        results = function(stream, *[tensors[name] for name in step.inputs])
        tensors.update(zip(step.plan.outputs, results, strict=True))

    return OfParts(call, (function,))


def _loop(step: TiledLoop, device: torch.device) -> Operation:
    """The loop, compiled from the lines that a program prints."""
    names = FreshNames((*RESERVED_NAMES, "stream", "tensors"))
    parts = [Part(call.program, device) for call in step.calls]
    functions: dict[str, Any] = {}
    local: dict[str, str] = {}
    for x in (x for call in step.calls for x in call.places if not isinstance(x, Start)):
        local[x.tensor] = local.get(x.tensor) or names.fresh(python_name(x.tensor))
    writer = CallWriter(local.__getitem__, names)
    lines = [f"{name} = tensors[{tensor!r}]" for tensor, name in local.items()]
    for call, part in zip(step.calls, parts, strict=True):
        title = names.fresh("part")
        functions[title] = part
        lines += writer.lines(call, title, "stream")
    return OfParts(_of_lines(lines, device, functions), tuple(parts))


def _of_lines(lines: Sequence[str], device: torch.device, functions: Mapping[str, Any] | None = None) -> Operation:
    """Lines of a program, which call these functions, as what runs."""
    scope: dict[str, Any] = {"torch": torch, "device": device, **(functions or {})}
    exec(compile("\n".join(["def run(tensors, stream):", *indented(lines)]), "<tilec step>", "exec"), scope)
    return scope["run"]


def _release(names: Sequence[str]) -> Operation:
    def release(tensors: Tensors, stream: int) -> None:
        for name in names:
            del tensors[name]

    return release


def _allocation(step: Allocate, device: torch.device) -> Operation:
    """An allocation; one that is filled, compiled from the lines that a program prints."""
    if step.fill is None:
        name, shape, dtype, empty = step.tensor, step.shape, getattr(torch, step.dtype), torch.empty

        def allocate(tensors: Tensors, stream: int) -> None:
            tensors[name] = empty(shape, dtype=dtype, device=device)

        return allocate
    return _of_lines(torch_lines_of(step, lambda tensor: f"tensors[{tensor!r}]"), device)
