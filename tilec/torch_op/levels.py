"""How a node of autograd goes through torch.func's transforms, a level at a time, innermost first.

torch does the same for an autograd.Function (`custom_function_call`), without a rule for functionalization.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import _functorch
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch._functorch.utils import enable_single_level_autograd_function
from torch._functorch.vmap import unwrap_batched
from torch._subclasses.functional_tensor import FunctorchFunctionalizeAPI
from torch.autograd.forward_ad import _set_fwd_grad_enabled

from tilec.late import untraced
from tilec.torch_op.state import transforming

Outputs = tuple[torch.Tensor | None, ...]
TensorSequence = Sequence[torch.Tensor]


def through_levels(node: Any, recorded: Any, tensors: TensorSequence) -> Outputs:
    """`node.apply(recorded, *tensors)` where transforms are under way."""
    if not transforming():
        return node.apply(recorded, *tensors)
    tensors = [_functorch.unwrap_if_dead(t) for t in tensors]
    interpreter: Any = retrieve_current_functorch_interpreter()
    return LEVEL_RULES[interpreter.key()](interpreter, node, recorded, tensors)


def _differentiated(interpreter: Any, node: Any, recorded: Any, tensors: TensorSequence) -> Outputs:
    (lifted, _) = interpreter.lift(tuple(tensors), {})
    with enable_single_level_autograd_function():
        return _Level.apply((node, recorded), *lifted)  # type: ignore[attr-defined]


class _Level(torch.autograd.function._SingleLevelFunction):
    """The node at one level: forward goes on to the level below, derivatives are the node's."""

    @staticmethod
    @untraced
    def forward(call: tuple[Any, Any], *tensors: torch.Tensor) -> Outputs:
        interpreter: Any = retrieve_current_functorch_interpreter()
        level = interpreter.level()
        inner = [_functorch._unwrap_for_grad(t, level) for t in tensors]
        # a function of a single level has turned both off
        with torch.enable_grad(), _set_fwd_grad_enabled(True), interpreter.lower():
            results = through_levels(*call, inner)
        return tuple([None if r is None else _functorch._wrap_for_grad(r, level) for r in results])

    @staticmethod
    @untraced
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        (ctx.node, recorded), *tensors = inputs
        ctx.node.setup_context(ctx, (recorded, *tensors), output)
        if retrieve_current_functorch_interpreter().key() == TransformType.Jvp:
            ctx.save_for_forward(*tensors)

    @staticmethod
    @untraced
    def backward(ctx: Any, *d_outputs: torch.Tensor | None) -> Outputs:
        return ctx.node.backward(ctx, *d_outputs)

    @staticmethod
    @untraced
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> Outputs:
        return ctx.node.jvp(ctx, *tangents)


def _batched(interpreter: Any, node: Any, recorded: Any, tensors: TensorSequence) -> Outputs:
    level, info = interpreter.level(), (interpreter.batch_size(), interpreter.randomness())
    inner, dims = unwrap_batched(tuple(tensors), level)
    with interpreter.lower():
        if all(d is None for d in dims):
            return through_levels(node, recorded, inner)
        results, places = node.vmap(*info, dims, recorded, inner)
    wrapped = []
    for r, place in zip(results, places, strict=True):
        wrapped.append(r if r is None or place is None else _functorch._add_batch_dim(r, place, level))
    return tuple(wrapped)


def _functionalized(interpreter: Any, node: Any, recorded: Any, tensors: TensorSequence) -> Outputs:
    """A call writes to none of its inputs, so the level below may have it as it is."""
    api: Any = FunctorchFunctionalizeAPI(interpreter)
    inner = api.unwrap_tensors(tuple(tensors))
    with interpreter.lower():
        results = through_levels(node, recorded, inner)
    return api.wrap_tensors(results)


LEVEL_RULES: dict[Any, Callable[[Any, Any, Any, TensorSequence], Outputs]] = {
    TransformType.Grad: _differentiated,
    TransformType.Jvp: _differentiated,
    TransformType.Vmap: _batched,
    TransformType.Functionalize: _functionalized,
}
