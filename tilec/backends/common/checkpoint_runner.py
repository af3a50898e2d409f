"""Programs in chunks of time (`transforms/checkpoint/chunks.py`), run: each call's program is built once, for all
chunks that share it, and reads views of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tilec.backends.base import Executable, KernelSource
from tilec.backends.common.code import tensor_function
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.program import Program
from tilec.ir.types import TensorType
from tilec.transforms.checkpoint.plan import (
    Assign,
    Calls,
    Carried,
    CarriedSlice,
    ChunkCall,
    Combine,
    Into,
    Keep,
    Kept,
    Sink,
    Source,
    Start,
    Sweep,
    TimeSlice,
    Whole,
)

Build = Callable[[Program, Sequence[TensorType]], Executable]
Tensors = dict[str, torch.Tensor]

# two chunks' parts of an element as one
COMBINED = {a.name: tensor_function(a.torch.combine) for a in AGGREGATIONS.values() if a.torch}


class ChunkedProgram:
    """The executable of a program in chunks. `build` makes that of a program for inputs of given types."""

    grouped = None
    temporary_bytes = None  # chunks take what they need one after the other
    repeated_bytes = 0

    def __init__(self, calls: Calls, build: Build):
        self._calls = calls
        self._built: dict[tuple[Program, tuple[TensorType, ...]], Executable] = {}
        self._steps = [(step, [(call, self._shared(call, build)) for call in _calls(step)]) for step in calls.steps]
        self._last = self._last_uses()
        before = [{*calls.inputs, *calls.outputs[:k]} for k in range(len(calls.outputs))]
        self._outputs = [(name, name in taken) for name, taken in zip(calls.outputs, before, strict=True)]

    def _shared(self, call: ChunkCall, build: Build) -> Executable:
        """One executable for all calls of equal programs."""
        key = call.program, call.types
        if key not in self._built:
            self._built[key] = build(*key)
        return self._built[key]

    @property
    def kernels(self) -> Sequence[KernelSource]:
        return tuple(k for e in self._built.values() for k in e.kernels)

    def source(self) -> str:
        """The programs of chunks, each as a text of its own; what calls them is not among them."""
        return "\n\n".join(e.source() for e in self._built.values())

    def asm(self, kind: str) -> str:
        return "\n\n".join(text for e in self._built.values() if (text := e.asm(kind)))

    def __call__(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        tensors = dict(zip(self._calls.inputs, inputs, strict=True))
        device = inputs[0].device
        with torch.no_grad():
            for (step, calls), unused in zip(self._steps, self._last, strict=True):
                if isinstance(step, Sweep):
                    for name, t in step.made:
                        tensors[name] = torch.empty(t.shape, dtype=getattr(torch, t.dtype), device=device)
                carried: Tensors = {}
                for call, executable in calls:
                    results = executable([_given(source, tensors, carried, device) for source in call.sources])
                    for place, sink in call.sinks:
                        _take(results[place], sink, tensors, carried)
                if isinstance(step, Sweep):
                    for name, dtype in step.rounded:
                        tensors[name] = tensors[name].to(getattr(torch, dtype))
                for name in unused:
                    tensors.pop(name, None)
        return tuple([tensors[n].clone() if shared else tensors[n] for n, shared in self._outputs])

    def _last_uses(self) -> list[list[str]]:
        """For each step the tensors that are read in none after it."""
        seen = set(self._calls.outputs)
        found = []
        for step in reversed(self._calls.steps):
            calls = _calls(step)
            names = dict.fromkeys(x.tensor for c in calls for x in c.sources if isinstance(x, Whole | TimeSlice | Kept))
            names.update(dict.fromkeys(x.tensor for c in calls for _, x in c.sinks if not isinstance(x, CarriedSlice)))
            found.append([n for n in names if n not in seen])
            seen.update(names)
        return found[::-1]


def _calls(step: ChunkCall | Sweep) -> tuple[ChunkCall, ...]:
    return step.calls if isinstance(step, Sweep) else (step,)


def _given(source: Source, tensors: Tensors, carried: Tensors, device: torch.device) -> torch.Tensor:
    match source:
        case Whole(tensor):
            return tensors[tensor]
        case TimeSlice(tensor, axis, low, high):
            return tensors[tensor].narrow(axis, low, high - low)
        case Kept(tensor, k):
            return tensors[tensor][k]
        case Carried(tensor):
            return carried[tensor]
        case Start(time):
            return torch.full((), time, device=device)


def _take(result: torch.Tensor, sink: Sink, tensors: Tensors, carried: Tensors) -> None:
    match sink:
        case Assign(tensor):
            tensors[tensor] = result
        case Combine(tensor, aggregation):
            before = tensors.get(tensor)
            tensors[tensor] = result if before is None else COMBINED[aggregation](before, result)
        case Into(tensor, axis, low, high, at):
            tensors[tensor].narrow(axis, at, high - low).copy_(result.narrow(axis, low, high - low))
        case Keep(tensor, k, axis, low, high):
            tensors[tensor][k].copy_(result.narrow(axis, low, high - low))
        case CarriedSlice(tensor, axis, low, high):
            carried[tensor] = result.narrow(axis, low, high - low).clone()
