"""What torch sees of a Tile function: a node of its autograd graph whose backward is again a Tile function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tilec.function import Function


class TileCall(torch.autograd.Function):
    """Run `function` on tensors; the backward pass runs `function.grad(...)`, which is differentiable in turn."""

    @staticmethod
    def forward(function: Function, weak: tuple[bool, ...], *tensors: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        results: list[torch.Tensor | None] = []
        for r in function.run(tensors, weak):
            aliased = r is not None and any(r is other for other in (*results, *tensors))
            results.append(r.view_as(r) if r is not None and aliased else r)
        return tuple(results)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor | None, ...]) -> None:
        ctx.function, ctx.weak, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*(o for o in output if o is not None and not o.is_floating_point()))

    @staticmethod
    def backward(ctx: Any, *d_outputs: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        function: Function = ctx.function
        needed = ctx.needs_input_grad[2:]
        wrt = tuple(name for name, need in zip(function.inputs, needed, strict=True) if need)
        cotangents = [torch.zeros(()) if d is None else d for d in d_outputs]  # None: no floating output, so ignored
        gradient = function.grad(wrt)
        results = iter(gradient.call((*ctx.saved_tensors, *cotangents), (*ctx.weak, *(False,) * len(cotangents))))
        return (None, None, *(next(results) if need else None for need in needed))
