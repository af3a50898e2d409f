"""What steps of a plan read and make, and the allocation that small intermediates share, each at a place of its own for
as long as it lives; kernels of one stream run in turn, so that a place may serve again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from tilec.backends.triton.plan.plan import Allocate, Launch, Plan, Release, Repeat, Table, TorchLines

SHARED_BYTES = 32 * 2**20  # of the allocation that small intermediates share, at most: it lives as long as the call
ALLOCATION_ALIGNMENT = 512  # bytes, as torch's allocator has it


def step_tensors(step: object) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Names of the tensors that a step reads or is given as such, and of those that it makes; None where it has steps
    of its own."""
    match step:
        case Allocate(tensor, _, _, fill):
            return ((fill,) if isinstance(fill, str) else (), (tensor,))
        case Launch() if step.maps:
            return step.tensors, ()
        case Launch():
            return (), ()
        case Repeat():
            return step.tensors, ()
        case Table(tensor):
            return (), (tensor,)
        case TorchLines():
            return step.reads, step.writes
        case Release():
            return (), ()
    return None


Lifetime = tuple[str, int, int, int]  # an allocation's tensor, bytes of an element, first step and last


def may_share(plan: Plan) -> list[Lifetime]:
    """The allocations that kernels alone touch, in order: each is there from its step to its release. None where steps
    have steps of their own."""
    touched = [step_tensors(step) for step in plan.steps]
    asked = set(plan.outputs)
    for step, found in zip(plan.steps, touched, strict=True):
        reads, writes = found or ((), ())
        asked.update(reads if isinstance(step, Allocate) else (*reads, *writes))
    ends = {n: at for at, step in enumerate(plan.steps) if isinstance(step, Release) for n in step.tensors}
    return [
        (step.tensor, getattr(torch, step.dtype).itemsize, at, ends.get(step.tensor, len(plan.steps)))
        for at, step in enumerate(plan.steps)
        if isinstance(step, Allocate) and step.fill is None and step.tensor not in asked and None not in touched
    ]


def places_of(allocations: Sequence[Lifetime], counts: Mapping[str, int]) -> tuple[Mapping[str, int], int]:
    """Where in the shared allocation tensors of so many elements stand, in bytes, and its size: each at the lowest
    place that is free for so long. A tensor alone shares nothing."""
    found: dict[str, tuple[int, int, int]] = {}  # place, bytes, end
    for tensor, item, at, last in allocations:
        size = -(-max(counts[tensor] * item, 1) // ALLOCATION_ALIGNMENT) * ALLOCATION_ALIGNMENT
        place = 0
        for low, taken, end in sorted(found.values()):
            if end > at and low < place + size and place < low + taken:
                place = low + taken
        if place + size <= SHARED_BYTES:
            found[tensor] = place, size, last
    if len(found) < 2:
        return {}, 0
    return {name: place for name, (place, _, _) in found.items()}, max(p + n for p, n, _ in found.values())


def places(plan: Plan) -> tuple[Mapping[str, int], int]:
    """The same of a plan with numbers."""
    return places_of(may_share(plan), {s.tensor: math.prod(s.shape) for s in plan.steps if isinstance(s, Allocate)})
