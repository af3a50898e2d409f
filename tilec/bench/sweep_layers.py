"""Layers swept over sizes: a forward and a backward pass, in time and in memory, beside what one would write in torch.

Memory is what a pass takes beside its inputs: what the forward pass keeps for the backward pass, the output, and the
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

import tilec
from tilec.bench import works, works_steps
from tilec.bench.sweep_setup import Point, Run, Setup
from tilec.bench.works import COMPILED, EAGER, LIGER, Work

Tensor = torch.Tensor
Call = Callable[..., Tensor]
OURS, RELU, FUSED = "tilec", "ReLU", "torch, scaled_dot_product_attention"
ATTENTION = Work(
    """function (Q[B, N, D], K[B, N, D], V[B, N, D]) -> (O) {
        S[b, i, j] = +(Q[b, i, d] * K[b, j, d]) * rsqrt(D);
        P[b, i, j] = exp(S[b, i, j] - max(S[b, i, l])) / sum(exp(S[b, i, k] - max(S[b, i, l])));
        O[b, i, d] = +(P[b, i, j] * V[b, j, d]);
    }""",
    lambda q, k, v: torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v,
    others=((FUSED, lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None])[0]),),
)


def trained(call: Call, inputs: list[Tensor], cotangent: Tensor) -> Run:
    """A forward and a backward pass; gives the output and the gradients."""

    def run() -> tuple[Tensor, ...]:
        value = call(*inputs)
        return value.detach(), *torch.autograd.grad(value, inputs, cotangent)

    return run


def layer(
    work: Work, shapes: tuple[tuple[int, ...], ...], dtype: str, others: dict[str, Call], same: bool = True
) -> Callable[[torch.Generator, str], Setup]:
    """`others` are candidates that compute another thing and are not held against this one. `same`: does each call
    compute the same, as one that draws does not?"""

    def make(g: torch.Generator, device: str) -> Setup:
        kind = getattr(torch, dtype)
        inputs = [torch.randn(s, generator=g, device=device).to(kind).requires_grad_() for s in shapes]
        value = work.formula(*(t.detach() for t in inputs))
        cotangent = torch.randn(value.shape, generator=g, device=device).to(kind)
        exact: list[Tensor] = []
        if same:
            doubles = [t.detach().double().requires_grad_() for t in inputs]
            exact = list(trained(work.formula, doubles, cotangent.double())())  # type: ignore[call-overload]
            eager = list(trained(work.formula, inputs, cotangent)())  # type: ignore[call-overload]
            allowed = [2 * (a.double() - e).abs().max() + 1e-6 * e.abs().max() for a, e in zip(eager, exact, strict=True)]
            del doubles, eager
        del value

        def check(found: object) -> float:
            assert isinstance(found, tuple)
            if not same or any(f.shape != e.shape for f, e in zip(found, exact, strict=False)):
                return 0.0
            errors = ((f.double() - e).abs().max() / a for f, e, a in zip(found, exact, allowed, strict=True))
            return max(e.nan_to_num(torch.inf).item() for e in errors)

        def ours() -> Run:
            f = tilec.compile(work.source, backend="triton" if device == "cuda" else None)
            return trained(lambda *tensors: f(*tensors, *work.numbers), inputs, cotangent)

        builds: dict[str, Callable[[], Run]] = {
            OURS: ours,
            EAGER: lambda: trained(work.formula, inputs, cotangent),
            COMPILED: lambda: trained(torch.compile(work.formula, dynamic=False), inputs, cotangent),
        }
        for name, call in (*work.others, *others.items()):
            builds[name] = lambda call=call: trained(call, inputs, cotangent)
        return Setup(builds, check, {})

    return make
