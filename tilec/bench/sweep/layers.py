"""Layers swept over sizes: a forward and a backward pass, in time and in memory, beside what one would write in torch.

Memory is what a pass takes beside its inputs: what the forward pass keeps for the backward pass, the output, and the
gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

import tilec
from tilec.bench import works, works_steps
from tilec.bench.sweep.setup import Point, Setup, TimedRun
from tilec.bench.works import COMPILED, Work

Tensor = torch.Tensor
LayerCall = Callable[..., Tensor]
OURS, TORCH_CURVE, RELU, FUSED = "tilec", "torch", "ReLU", "torch's fused attention"


ATTENTION_POINT = Work(
    """function (Q[B, N, D], K[B, N, D], V[B, N, D]) -> (O) {
        S[b, i, j] = sum(Q[b, i, d] * K[b, j, d]) / sqrt(D);
        E[b, i, j] = exp(S[b, i, j] - max(S[b, i, l]));
        O[b, i, d] = sum(E[b, i, j] / sum(E[b, i, l]) * V[b, j, d]);
    }""",
    lambda q, k, v: torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v,
    others=((FUSED, lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None])[0]),),
)


def trained(call: LayerCall, inputs: list[Tensor], cotangent: Tensor) -> TimedRun:
    """A forward and a backward pass; gives the output and the gradients."""

    def run() -> tuple[Tensor, ...]:
        value = call(*inputs)
        return value.detach(), *torch.autograd.grad(value, inputs, cotangent)

    return run


def layer(
    work: Work,
    *shapes: tuple[int, ...],
    dtype: str = "float32",
    draws: bool = False,
    other: dict[str, LayerCall] | None = None,
) -> Callable[[torch.Generator, str], Setup]:
    """`draws`: each candidate computes with random numbers of its own. `other` candidates compute another thing of the
    first input. Neither is held against float64; elsewhere errors are multiples of twice eager torch's."""

    def make(g: torch.Generator, device: str) -> Setup:
        kind = getattr(torch, dtype)
        inputs = [torch.randn(s, generator=g, device=device).to(kind).requires_grad_() for s in shapes]
        cotangent = torch.randn(shapes[0], generator=g, device=device).to(kind)
        exact, allowed = ([], []) if draws else _exact(work, inputs, cotangent)

        def check(found: object) -> float:
            assert isinstance(found, tuple)
            if draws or len(found) < len(exact):
                return 0.0
            pairs = zip(found, exact, allowed, strict=True)
            return max(((f.double() - e).abs().max() / a).nan_to_num(torch.inf).item() for f, e, a in pairs)

        def ours() -> TimedRun:
            f = tilec.compile(work.source, backend="triton" if device == "cuda" else None)
            return trained(lambda *tensors: f(*tensors, *work.numbers), inputs, cotangent)

        builds: dict[str, Callable[[], TimedRun]] = {OURS: ours}
        calls = {TORCH_CURVE: work.formula, **dict(work.others)}
        if device == "cuda":
            calls[COMPILED] = torch.compile(work.formula, dynamic=False)
        for name, call in calls.items():
            builds[name] = functools.partial(trained, call, inputs, cotangent)
        for name, call in (other or {}).items():
            builds[name] = functools.partial(trained, call, inputs[:1], cotangent)
        return Setup(builds, check, {})

    return make


def _exact(work: Work, inputs: list[Tensor], cotangent: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Output and gradients in float64, and the errors that each is allowed."""
    doubles = [t.detach().double().requires_grad_() for t in inputs]
    exact, eager = (trained(work.formula, ts, cotangent.to(ts[0].dtype))() for ts in (doubles, inputs))
    assert isinstance(exact, tuple) and isinstance(eager, tuple)
    pairs = zip(eager, exact, strict=True)
    return list(exact), [2 * (a.double() - e).abs().max() + 1e-6 * e.abs().max() for a, e in pairs]


def points() -> Iterator[Point]:
    """The largest first."""

    def point(figure: str, line: str, x: int, make: Callable[[torch.Generator, str], Setup]) -> Point:
        return Point(f"{figure}, forward and backward", line, x, make)

    for n in (8192, 2048, 512, 128):
        made = layer(works.SNAKE, (16, 512, n), (512,), other={RELU: torch.relu})
        yield point("snake", "16 x 512 x n, float32", n, made)
    for d in (8192, 4096, 1024):
        made = layer(works.LAYER_NORM, (4096, d), (d,), (d,), dtype="bfloat16")
        yield point("layer norm", "4096 rows, bfloat16", d, made)
    for m in (64, 16):
        yield point("dropout", "n Mi, float32", m, layer(works_steps.DROPOUT, (m * 2**20,), draws=True))
    for n in (16384, 4096, 1024):
        made = layer(ATTENTION_POINT, *((8, n, 64),) * 3, dtype="bfloat16")
        yield point("attention", "8 heads of 64, bfloat16", n, made)
