"""What torch sees of a Tile function: a node of its autograd graph whose backward is again a Tile function.

The node has the function's outputs and, after them, what the forward pass keeps for the backward pass beside inputs and
outputs. These are outputs like any other for torch, which hands them to the backward pass with this very node as their
origin: a derivative of the gradient comes back here with cotangents for them, to any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tilec.ir.program import Program
from tilec.ir.types import TensorType
from tilec.saving import Backward, Partition
from tilec.transforms.chunks import Chunks
from tilec.transforms.simplify import simplify

if TYPE_CHECKING:
    from tilec.function import Function

Results = tuple[torch.Tensor | None, ...]


@dataclass(frozen=True)
class Recorded:
    """A function's call as torch records it, for one combination of shapes, types and inputs that need gradients.

    `run` gives the outputs (None: no result) and then the extras; `outputs` names those that are there, by position.
    `wrt` are the inputs that need gradients; `replaced` says, by position, what takes the place of inputs that are not
    of the types that the partition is for; `made` makes a function of a program, in chunks of time or not.
    """

    run: Callable[[Sequence[torch.Tensor], tuple[bool, ...]], Results]
    inputs: tuple[str, ...]
    wrt: tuple[str, ...]
    outputs: tuple[str | None, ...]
    replaced: Mapping[int, Callable[[torch.Tensor], torch.Tensor]]
    partition: Partition
    made: Callable[[Program, Chunks | None], Function]
    _gradients: dict[tuple[bool, tuple[str, ...]], tuple[Function, Backward]] = field(default_factory=dict)

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


class TileCall(torch.autograd.Function):
    """Run a recorded call on tensors; the backward pass runs its gradient, which is recorded in turn if asked."""

    @staticmethod
    def forward(recorded: Recorded, weak: tuple[bool, ...], *tensors: torch.Tensor) -> Results:
        results: list[torch.Tensor | None] = []
        for r in recorded.run(tensors, weak):
            aliased = r is not None and any(r is other for other in (*results, *tensors))
            results.append(r.view_as(r) if r is not None and aliased else r)
        return tuple(results)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
        recorded: Recorded = inputs[0]
        ctx.recorded, ctx.weak, *tensors = inputs
        ctx.device = tensors[0].device
        ctx.set_materialize_grads(False)
        named = dict(zip((*recorded.outputs, *recorded.partition.extra), output, strict=True))
        named |= dict(zip(recorded.inputs, tensors, strict=True))
        ctx.save_for_backward(*(named[name] for name in recorded.partition.kept))
        constant = [named[name] for name in recorded.partition.constant]
        ctx.mark_non_differentiable(*(o for o in output if o is not None and not o.is_floating_point()), *constant)

    @staticmethod
    def backward(ctx: Any, *d_outputs: torch.Tensor | None) -> Results:
        recorded: Recorded = ctx.recorded
        needed = [name for name, need in zip(recorded.inputs, ctx.needs_input_grad[2:], strict=True) if need]
        if not needed or all(d is None for d in d_outputs):
            return (None,) * (2 + len(recorded.inputs))
        partition, outputs = recorded.partition, len(recorded.outputs)
        extended = any(d is not None for d in d_outputs[outputs:])
        function, backward = recorded.gradient(tuple(needed), extended)
        there = [d for d, name in zip(d_outputs[:outputs], recorded.outputs, strict=True) if name is not None]
        cotangents = dict(zip(backward.cotangents, (*there, *d_outputs[outputs:]), strict=False))
        kept = dict(zip(partition.kept, ctx.saved_tensors, strict=True))
        for position, replaced in recorded.replaced.items():
            name = recorded.inputs[position]
            if name in kept:
                kept[name] = replaced(kept[name])
        weak = dict(zip(recorded.inputs, ctx.weak, strict=True))
        given = {**kept, **cotangents}
        tensors = [
            d if (d := given.get(name)) is not None else _standing_in(backward.types[name], ctx.device)
            for name in function.inputs
        ]
        results = iter(function.call(tensors, tuple([weak.get(name, False) for name in function.inputs])))
        return (None, None, *(next(results) if name in needed else None for name in recorded.inputs))


def _standing_in(t: TensorType, device: torch.device) -> torch.Tensor:
    """Zeros in one element of memory: for a cotangent that is not there, or an input that lends its shape alone."""
    return torch.zeros((), dtype=getattr(torch, t.dtype), device=device).expand(t.shape)
