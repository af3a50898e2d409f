"""A plan as one Python function without look-ups, for repeated calls where there is no library in C++.

It has a line for each allocation and each launch, with addresses and numbers as they stand. Small intermediates that
kernels alone touch share one allocation, each at a place of its own for as long as it lives; kernels of one stream run
in turn, so that a place may serve again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tilec.backends.triton.plan.plan import Allocate, Launch, Plan, Pointer, Release, Repeat, Table, TorchLines, made_by
from tilec.backends.triton.runtime.launcher import Launched
from tilec.backends.triton.runtime.step_lines import released, torch_lines_of

SHARED_BYTES = 32 * 2**20  # of the allocation that small intermediates share, at most: it lives as long as the call
ALLOCATION_ALIGNMENT = 512  # bytes, as torch's allocator has it

Run = Callable[[Sequence[torch.Tensor], int], tuple[torch.Tensor, ...]]
Operation = Callable[[dict[str, torch.Tensor], int], None]


def straight(
    plan: Plan, names: Sequence[str], operations: Sequence[Operation], device: torch.device
) -> tuple[str, Run] | None:
    """The function of (inputs, stream) and its text, made of operations that have run once; None where a step has
    steps of its own."""
    if any(step_tensors(step) is None for step in plan.steps):
        return None
    writer = _Writer(plan, names, device)
    for step, operation in zip(plan.steps, operations, strict=True):
        writer.step(step, operation)
    return writer.function()


def step_tensors(step: object) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Names of the tensors that a step reads or is given as such, and of those that it makes; None for others."""
    match step:
        case Allocate(tensor, _, _, fill):
            return ((fill,) if isinstance(fill, str) else (), (tensor,))
        case Launch() if step.maps:
            return step.tensors, ()
        case Launch():
            return (), ()
        case Repeat(launch):
            return launch.tensors, ()
        case Table(tensor):
            return (), (tensor,)
        case TorchLines():
            return step.reads, step.writes
        case Release():
            return (), ()
    return None


class _Writer:
    def __init__(self, plan: Plan, names: Sequence[str], device: torch.device):
        self._plan, self._names = plan, tuple(names)
        self._places, size = places(plan)
        self._scope: dict[str, Any] = {"torch": torch, "device": device}
        self._local: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        parameters = "".join(f"{self._name(n)}, " for n in names)
        self._lines = [f"({parameters}) = inputs"] if parameters else []
        if size:
            self._lines += [f"shared = torch.empty({size}, dtype=torch.uint8, device=device)", "w = shared.data_ptr()"]

    def step(self, step: object, operation: Operation) -> None:
        match step:
            case Allocate(tensor):
                self._lines += [] if tensor in self._places else torch_lines_of(step, self._name)
                self._addresses.pop(tensor, None)
            case Release(tensors):
                self._lines += released([self._name(t) for t in tensors if t not in self._places])
            case Launch() if not (found := step_tensors(step)) or not found[0]:
                self._launch(operation)
            case _:
                self._other(step, operation)

    def _launch(self, launched: Any) -> None:
        assert isinstance(launched, Launched)
        run, grid, middle, values = launched.entry()
        arguments = [*map(str, grid), "stream", *map(self._constant, middle)]
        arguments += [self._address(v.tensor) if isinstance(v, Pointer) else self._constant(v) for v in values]
        self._lines.append(f"{self._constant(run)}({', '.join(arguments)})")

    def _other(self, step: object, operation: Operation) -> None:
        """A step as it is, over a dictionary of the tensors that it touches."""
        found = step_tensors(step)
        assert found is not None
        reads, writes = found
        given = ", ".join(f"{name!r}: {self._name(name)}" for name in dict.fromkeys(reads))
        self._lines += [f"given = {{{given}}}", f"{self._constant(operation)}(given, stream)"]
        for name in writes:
            self._lines.append(f"{self._name(name)} = given[{name!r}]")
            self._addresses.pop(name, None)

    def _name(self, tensor: str) -> str:
        return self._local.setdefault(tensor, f"t{len(self._local)}")

    def _address(self, tensor: str) -> str:
        if tensor in self._places:
            return f"w + {self._places[tensor]}"
        if tensor not in self._addresses:
            name = self._name(tensor)
            self._addresses[tensor] = f"a_{name}"
            self._lines.append(f"a_{name} = {name}.data_ptr()")
        return self._addresses[tensor]

    def _constant(self, value: Any) -> str:
        if type(value) in (int, bool, type(None)):
            return repr(value)
        name = f"c{len(self._scope)}"
        self._scope[name] = value
        return name

    def function(self) -> tuple[str, Run]:
        results = "".join(f"{self._name(o)}, " for o in self._plan.outputs)
        text = "\n    ".join(["def call(inputs, stream):", *self._lines, f"return ({results})"])
        exec(compile(text, "<tilec plan>", "exec"), self._scope)
        return text, self._scope["call"]


Lifetime = tuple[str, int, int, int]  # an allocation's tensor, bytes of an element, first step and last


def may_share(plan: Plan) -> list[Lifetime]:
    """The allocations that kernels alone touch and nothing makes again, in order: each is there from its step to its
    release."""
    made = Counter(n for step in plan.steps for n in made_by(step))
    asked = {n for step in plan.steps for n in (step_tensors(step) or ((), ()))[0]} | set(plan.outputs)
    ends = {n: at for at, step in enumerate(plan.steps) if isinstance(step, Release) for n in step.tensors}
    return [
        (step.tensor, getattr(torch, step.dtype).itemsize, at, ends.get(step.tensor, len(plan.steps)))
        for at, step in enumerate(plan.steps)
        if isinstance(step, Allocate) and step.fill is None and step.tensor not in asked and made[step.tensor] == 1
    ]


def places_of(allocations: Sequence[Lifetime], counts: Mapping[str, int]) -> tuple[Mapping[str, int], int]:
    """Where in the shared allocation tensors of so many elements stand, in bytes, and its size: each at the lowest
    place that is free for so long."""
    found: dict[str, tuple[int, int, int]] = {}  # place, bytes, end
    for tensor, item, at, last in allocations:
        size = -(-max(counts[tensor] * item, 1) // ALLOCATION_ALIGNMENT) * ALLOCATION_ALIGNMENT
        place = 0
        for low, taken, end in sorted(found.values()):
            if end > at and low < place + size and place < low + taken:
                place = low + taken
        if place + size <= SHARED_BYTES:
            found[tensor] = place, size, last
    return {name: place for name, (place, _, _) in found.items()}, max((p + n for p, n, _ in found.values()), default=0)


def places(plan: Plan) -> tuple[Mapping[str, int], int]:
    """The same of a plan with numbers."""
    return places_of(may_share(plan), {s.tensor: math.prod(s.shape) for s in plan.steps if isinstance(s, Allocate)})
