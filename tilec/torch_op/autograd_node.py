"""The node of torch's autograd graph that stands for a recorded call.

It has the function's outputs and, after them, what the forward pass keeps for the backward pass beside inputs and
outputs. These are outputs like any other for torch, which hands them to the backward pass with this very node as their
origin: a derivative of the gradient comes back here with cotangents for them, to any order.

torch.func's transforms meet the same node: its rule for forward mode is the function's tangent, its rule for vmap the
function over a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._functorch.utils import unwrap_dead_wrappers
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from tilec.errors.tracebacks import public
from tilec.late import untraced
from tilec.torch_op.graphs.nodes import pulled_back_in_graph
from tilec.torch_op.levels import Outputs

if TYPE_CHECKING:
    from tilec.torch_op.recorded import Recorded


def pulled_back(recorded: Recorded, ctx: Any, d_outputs: Outputs) -> Outputs:
    """What a node's backward pass returns."""
    given = ctx.needs_input_grad[1:], ctx.saved_tensors, d_outputs
    if is_dynamo_compiling():  # compiled autograd
        return (None, *pulled_back_in_graph(recorded.handle, *given))
    return (None, *recorded.pulled_back(*given))


class TileCall(torch.autograd.Function):
    """Run a recorded call on tensors; the backward pass runs its gradient, which is recorded in turn if asked."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """As torch's own, which binds the arguments to a signature each time; here none has a default."""
        return super(torch.autograd.Function, cls).apply(*unwrap_dead_wrappers(args))  # type: ignore[misc]

    @staticmethod
    @untraced
    def forward(recorded: Recorded, *tensors: torch.Tensor) -> Outputs:
        # torch takes no operation in place on what a node returns as a view, though nothing else has its memory
        return tuple([r if r is None or not r._is_view() else r.detach() for r in recorded.run(tensors)])

    @staticmethod
    @untraced
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        recorded, *tensors = inputs
        ctx.recorded = recorded
        ctx.set_materialize_grads(False)
        every = (*output, *tensors)
        ctx.save_for_backward(*[every[place] for place in recorded.kept])
        constant = [o for o in output if o is not None and not o.is_floating_point()]
        if forward_ad._current_level >= 0:
            ctx.save_for_forward(*tensors)  # inputs that need no gradient may have a tangent, and so their extras
        else:
            constant += [output[place] for place in recorded.constant]
        if constant:
            ctx.mark_non_differentiable(*constant)

    @staticmethod
    @public
    def backward(ctx: Any, *d_outputs: torch.Tensor | None) -> Outputs:
        return pulled_back(ctx.recorded, ctx, d_outputs)

    @staticmethod
    @untraced
    def jvp(ctx: Any, _: None, *tangents: torch.Tensor | None) -> Outputs:
        """The outputs' tangents (None: of no floating output, or of one that depends on no tangent)."""
        recorded: Recorded = ctx.recorded
        return recorded.tangents(ctx.saved_tensors, tangents)

    @staticmethod
    @untraced
    def vmap(size: int, randomness: str, dims: Sequence[int | None], recorded: Recorded, tensors: Any) -> Any:
        """The function over a batch of so many, which each tensor has along a dimension or not; the outputs' is first.
        Random numbers are functions of their seeds, so that an element draws what it would alone unless `randomness` is
        "different"."""
        results = recorded.over_batch(randomness, dims, tensors)
        return results, tuple(None if r is None else 0 for r in results)
