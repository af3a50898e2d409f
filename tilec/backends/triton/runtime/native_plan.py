"""A plan for the library in C++ (`tilec/native`): allocations and launches without Python, other steps as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from tilec.backends.triton.plan.plan import Allocate, Launch, Plan, Pointer, Release, Repeat
from tilec.backends.triton.runtime.bound import RepeatedStep
from tilec.backends.triton.runtime.launcher import DriverLaunch, EncodedMap, Launched
from tilec.backends.triton.runtime.workspace import places, step_tensors
from tilec.native import native


def native_plan(
    plan: Plan, names: Sequence[str], operations: Sequence[Callable[..., None] | None], device: torch.device
) -> Any | None:
    """The plan for inputs of these names, made of operations that have run once; None where there is no library, or a
    step has steps of its own."""
    library = native()
    if library is None or any(step_tensors(step) is None for step in plan.steps):
        return None
    try:
        return PlanMaker(plan, names, device, places(plan)).made(library, operations)
    except RuntimeError:  # there is no driver of the kind that it knows
        return None


MOST_REPEATED = 256  # times that kernels are launched in turn


class PlanMaker:
    """Steps of a plan as the library takes them. `placed`: places of tensors in the shared allocation, and its size. A
    number that each call has of its own is its place among these, alone in a tuple."""

    def __init__(self, plan: Plan, names: Sequence[str], device: torch.device, placed: tuple[Mapping[str, Any], int]):
        self._plan, self._device = plan, device
        self._places, self._workspace = placed
        self._slots: dict[str, int] = {name: place for place, name in enumerate(names)}

    def made(self, library: Any, operations: Sequence[Callable[..., None] | None]) -> Any:
        """The plan, of operations that have run once."""
        pairs = zip(self._plan.steps, operations, strict=True)
        return self.plan(library, [made for step, operation in pairs for made in self._steps(step, operation)])

    def _steps(self, step: object, operation: Callable[..., None] | None) -> list[tuple | None]:
        if isinstance(step, Repeat) and isinstance(operation, RepeatedStep) and step.count <= MOST_REPEATED:
            own = list(zip(operation.launched, step.launches, step.counters, strict=True))
            made = [(x.compiled(**{c: t}), launch.grid) for t in range(step.count) for x, launch, c in own]
            if all(launched is not None for launched, _ in made):
                return [self.launch(launched, grid) for launched, grid in made if launched is not None]
        return [self._step(step, operation)]

    def plan(self, library: Any, steps: Sequence[tuple | None]) -> Any:
        outputs = [self._slot(name) for name in self._plan.outputs]
        like = _like(torch.uint8, self._device)
        return library.plan(like, self._workspace, len(self._slots), [s for s in steps if s], outputs)

    def _step(self, step: object, operation: Callable[..., None] | None) -> tuple | None:
        match step:
            case Allocate(shape=shape, fill=None):
                return self.empty(step, shape)
            case Release():
                return self.free(step)
            case Launch() if isinstance(operation, Launched) and (launched := operation.compiled()) is not None:
                return self.launch(launched, step.grid)
        return self.python(step, operation)

    def empty(self, step: Allocate, shape: Sequence[Any]) -> tuple | None:
        """An allocation, None where it has a place in the shared one."""
        if step.tensor in self._places:
            return None
        return "empty", self._slot(step.tensor), list(shape), _like(getattr(torch, step.dtype), self._device)

    def free(self, step: Release) -> tuple:
        return "free", [self._slot(t) for t in step.tensors if t not in self._places]

    def launch(self, launched: DriverLaunch, grid: Sequence[Any]) -> tuple:
        kernel, threads, shared, cooperative, values = launched
        arguments = [self._argument(kind, value) for kind, value in values]
        return "launch", kernel, list(grid), threads, shared, cooperative, arguments

    def python(self, step: object, operation: Callable[..., None] | None) -> tuple:
        """A step as it is, over the tensors that it touches."""
        reads, writes = step_tensors(step) or ((), ())
        if isinstance(step, Launch):
            reads = step.tensors
        if any(name in self._places for name in reads):
            raise RuntimeError("a kernel that Python launches reads the workspace")
        named = [[(name, self._slot(name)) for name in dict.fromkeys(group)] for group in (reads, writes)]
        return "python", operation, *named

    def _argument(self, kind: str, value: Any) -> tuple[str, object]:
        if isinstance(value, EncodedMap):
            return "map", (self._slot(value.tensor), value.offset, value.encoded)
        if not isinstance(value, Pointer):
            return kind, value
        place = self._places.get(value.tensor)
        return ("tensor", self._slot(value.tensor)) if place is None else ("workspace", place)

    def _slot(self, name: str) -> int:
        return self._slots.setdefault(name, len(self._slots))


@cache
def _like(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of this type there."""
    return torch.empty(0, dtype=dtype, device=device)
