"""A plan as the library's: allocations and launches that need no Python, and what else there is as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tilec.backends.triton.plan.plan import Allocate, Launch, Plan, Pointer, Release
from tilec.backends.triton.runtime.launcher import Launched
from tilec.backends.triton.runtime.straight import Operation, places, step_tensors
from tilec.native import native


def native_plan(plan: Plan, names: Sequence[str], operations: Sequence[Operation], device: torch.device) -> Any | None:
    """The plan for inputs of these names, made of operations that have run once; None where there is no library, or a
    step has steps of its own."""
    library = native()
    if library is None or any(step_tensors(step) is None for step in plan.steps):
        return None
    try:
        return _Maker(plan, names, device).made(library, operations)
    except RuntimeError:  # there is no driver of the kind that it knows
        return None


class _Maker:
    def __init__(self, plan: Plan, names: Sequence[str], device: torch.device):
        self._plan, self._device = plan, device
        self._places, self._workspace = places(plan)
        self._slots: dict[str, int] = {name: place for place, name in enumerate(names)}
        self._known: dict[torch.dtype, torch.Tensor] = {}

    def made(self, library: Any, operations: Sequence[Operation]) -> Any:
        steps = [found for s, o in zip(self._plan.steps, operations, strict=True) if (found := self._step(s, o))]
        outputs = [self._slot(name) for name in self._plan.outputs]
        return library.plan(self._like(torch.uint8), self._workspace, len(self._slots), steps, outputs)

    def _step(self, step: object, operation: Operation) -> tuple | None:
        match step:
            case Allocate(tensor, shape, dtype, None):
                if tensor in self._places:
                    return None
                return "empty", self._slot(tensor), list(shape), self._like(getattr(torch, dtype))
            case Release(tensors):
                return "free", [self._slot(t) for t in tensors if t not in self._places]
            case Launch() if isinstance(operation, Launched) and (launched := operation.compiled()) is not None:
                kernel, threads, shared, together, values = launched
                arguments = [self._argument(kind, value) for kind, value in values]
                return "launch", kernel, list(step.grid), threads, shared, together, arguments
        reads, writes = step_tensors(step) or ((), ())
        if isinstance(step, Launch):
            reads = step.tensors
        if any(name in self._places for name in reads):
            raise RuntimeError("a kernel that Python launches reads the workspace")
        named = [[(name, self._slot(name)) for name in dict.fromkeys(group)] for group in (reads, writes)]
        return "python", operation, *named

    def _argument(self, kind: str, value: Any) -> tuple[str, object]:
        if not isinstance(value, Pointer):
            return kind, value
        place = self._places.get(value.tensor)
        return ("tensor", self._slot(value.tensor)) if place is None else ("workspace", place)

    def _slot(self, name: str) -> int:
        return self._slots.setdefault(name, len(self._slots))

    def _like(self, dtype: torch.dtype) -> torch.Tensor:
        """A tensor of this type there."""
        if dtype not in self._known:
            self._known[dtype] = torch.empty(0, dtype=dtype, device=self._device)
        return self._known[dtype]
