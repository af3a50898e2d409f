"""What torch sees of a Tile function: a node of its autograd graph whose backward is again a Tile function.

The node has the function's outputs and, after them, what the forward pass keeps for the backward pass beside inputs and
outputs. These are outputs like any other for torch, which hands them to the backward pass with this very node as their
origin: a derivative of the gradient comes back here with cotangents for them, to any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch._functorch.utils import unwrap_dead_wrappers

from tilec.errors import TileError
from tilec.ir.program import Program
from tilec.ir.types import TensorType
from tilec.saving import Backward, Partition
from tilec.tracebacks import hide_frames
from tilec.transforms.checkpoint.chunks import Chunks
from tilec.transforms.simplify.simplify import simplify

if TYPE_CHECKING:
    from tilec.function import Function

Results = tuple[torch.Tensor | None, ...]


@dataclass(frozen=True)
class Recorded:
    """A function's call as torch records it, for one combination of shapes, types and inputs that need gradients.

    `forward` gives the outputs (None: no result) and then the extras, of inputs of which `weak` are Python numbers;
    `outputs` names those that are there, by position. `wrt` are the inputs that need gradients; `replaced` says, by
    position, what takes the place of inputs that are not of the types that the partition is for; `made` makes a
    function of a program, in chunks of time or not.
    """

    forward: Function
    weak: tuple[bool, ...]
    wrt: tuple[str, ...]
    outputs: tuple[str | None, ...]
    replaced: Mapping[int, Callable[[torch.Tensor], torch.Tensor]]
    partition: Partition
    made: Callable[[Program, Chunks | None], Function]
    _gradients: dict[tuple[bool, tuple[str, ...]], tuple[Function, Backward]] = field(default_factory=dict)
    _passes: dict[object, Pass] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.forward.inputs

    @cached_property
    def run(self) -> Ready:
        return Ready(self.forward, self.weak)

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """Where what is kept stands in outputs, extras and inputs, in that order."""
        names = (*self.outputs, *self.partition.extra, *self.inputs)
        last = {name: place for place, name in enumerate(names)}  # an input that is an output is kept as an input
        return tuple(last[name] for name in self.partition.kept)

    @cached_property
    def constant(self) -> tuple[int, ...]:
        """Where the extras that have no derivative stand in outputs and extras."""
        first = len(self.outputs)
        return tuple(first + self.partition.extra.index(name) for name in self.partition.constant)

    def gradient(self, wanted: tuple[str, ...], extended: bool) -> tuple[Function, Backward]:
        """The gradient by some of `wrt`, and what it reads."""
        key = extended, wanted
        if key not in self._gradients:
            backward = self.partition.extended if extended else self.partition.backward
            assert backward is not None, "extras without a derivative have no cotangent"
            names = dict(zip(self.wrt, backward.program.outputs, strict=True))
            program = simplify(backward.program, [names[name] for name in wanted])
            chunks = None if extended else self.partition.chunks
            self._gradients[key] = self.made(program, chunks), backward
        return self._gradients[key]

    def backward(self, needed: tuple[bool, ...], there: tuple[bool, ...]) -> Pass:
        """A backward pass by the inputs that are `needed`, where `there` says which cotangents are."""
        key = needed, there
        if key not in self._passes:
            wanted = tuple(name for name, need in zip(self.inputs, needed, strict=True) if need)
            function, backward = self.gradient(wanted, any(there[len(self.outputs) :]))
            cotangents = [place for place, o in enumerate(self.outputs) if o is not None]
            cotangents += range(len(self.outputs), len(there))
            given = {name: place for place, name in enumerate(self.partition.kept)}
            for name, place in zip(backward.cotangents, cotangents, strict=False):
                if there[place]:
                    given[name] = len(self.partition.kept) + place
            weak = dict(zip(self.inputs, self.weak, strict=True))
            replaced = {self.inputs[p]: r for p, r in self.replaced.items()}
            self._passes[key] = Pass(
                Ready(function, tuple(weak.get(name, False) for name in function.inputs)),
                tuple(given.get(name, backward.types[name]) for name in function.inputs),
                tuple(wanted.index(name) if name in wanted else None for name in self.inputs),
                {place: replaced[name] for place, name in enumerate(self.partition.kept) if name in replaced},
            )
        return self._passes[key]


def recording(tensors: Sequence[torch.Tensor]) -> bool:
    """Does torch record what is done with these?"""
    return torch.is_grad_enabled() and any([t.requires_grad for t in tensors])


class Ready:
    """A function whose inputs have the same shapes and types in each call; `weak` are Python numbers."""

    def __init__(self, function: Function, weak: tuple[bool, ...]):
        self._function, self._weak = function, weak
        self._prepared: dict[str, Callable[[Sequence[torch.Tensor]], Results]] = {}

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Results:
        """The outputs, recorded if torch records."""
        if recording(tensors):
            return self._function.call(tensors, self._weak)
        device = tensors[0].device.type
        prepared = self._prepared.get(device)
        if prepared is None:
            prepared = self._prepared[device] = self._function.prepared(tensors, self._weak)
        return prepared(tensors)


@dataclass(frozen=True)
class Pass:
    """A backward pass, made ready. `sources`: for each input of the function its place in what was kept and the
    cotangents, in that order, or the type of what is not there; `results`: for each input of the recorded function the
    place of its gradient; `replaced`: what takes the place of something kept, by its place."""

    run: Ready
    sources: tuple[int | TensorType, ...]
    results: tuple[int | None, ...]
    replaced: Mapping[int, Callable[[torch.Tensor], torch.Tensor]]


class TileCall(torch.autograd.Function):
    """Run a recorded call on tensors; the backward pass runs its gradient, which is recorded in turn if asked."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """As torch's own, which binds the arguments to a signature each time; here none has a default."""
        if torch._C._are_functorch_transforms_active():
            return super().apply(*args)  # type: ignore[no-untyped-call]
        return super(torch.autograd.Function, cls).apply(*unwrap_dead_wrappers(args))  # type: ignore[misc]

    @staticmethod
    def forward(recorded: Recorded, *tensors: torch.Tensor) -> Results:
        # torch takes no operation in place on what a node returns as a view, though nothing else has its memory
        return tuple([r if r is None or not r._is_view() else r.detach() for r in recorded.run(tensors)])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
        recorded: Recorded = inputs[0]
        ctx.recorded, *tensors = inputs
        ctx.set_materialize_grads(False)
        every = (*output, *tensors)
        ctx.save_for_backward(*[every[place] for place in recorded.kept])
        integers = [o for o in output if o is not None and not o.is_floating_point()]
        if integers or recorded.constant:
            ctx.mark_non_differentiable(*integers, *[output[place] for place in recorded.constant])

    @staticmethod
    def backward(ctx: Any, *d_outputs: torch.Tensor | None) -> Results:
        try:
            return TileCall._backward(ctx, d_outputs)
        except TileError as error:
            hide_frames(error)
            raise

    @staticmethod
    def _backward(ctx: Any, d_outputs: Results) -> Results:
        recorded: Recorded = ctx.recorded
        needed, there = ctx.needs_input_grad[1:], tuple([d is not None for d in d_outputs])
        if not any(needed) or not any(there):
            return (None,) * (1 + len(recorded.inputs))
        backward = recorded.backward(needed, there)
        kept = ctx.saved_tensors
        if backward.replaced:
            kept = [backward.replaced[i](t) if i in backward.replaced else t for i, t in enumerate(kept)]
        given = (*kept, *d_outputs)
        device = next(d.device for d in d_outputs if d is not None)
        tensors = [given[s] if isinstance(s, int) else _standing_in(s, device) for s in backward.sources]
        results = backward.run(tensors)
        return (None, *[None if place is None else results[place] for place in backward.results])


def _standing_in(t: TensorType, device: torch.device) -> torch.Tensor:
    """Zeros in one element of memory: for a cotangent that is not there, or an input that lends its shape alone."""
    return torch.zeros((), dtype=getattr(torch, t.dtype), device=device).expand(t.shape)
