"""Layers as a researcher would write them, with torch's own to compare with. Sizes are chosen by the tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Layer:
    """`shapes`: of the inputs, given rows and columns. `kernels`: of the forward and of the backward pass on a GPU."""

    source: str
    formula: Callable[..., torch.Tensor]
    shapes: Callable[[int, int], tuple[tuple[int, ...], ...]]
    kernels: tuple[int, int]


LAYERS = {
    "layer norm": Layer(
        """function (X[R, C], W[C], B[C]) -> (Y) {
            M[r] = mean(X[r, c]);
            V[r] = mean((X[r, c] - M[r]) * (X[r, c] - M[r]));
            Y[r, c] = (X[r, c] - M[r]) * rsqrt(V[r] + 0.00001) * W[c] + B[c];
        }""",
        lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
        lambda r, c: ((r, c), (c,), (c,)),
        (1, 2),
    ),
    "RMS norm": Layer(
        """function (X[R, C], W[C]) -> (Y) {
            Y[r, c] = X[r, c] * rsqrt(mean(X[r, k] * X[r, k]) + 0.000001) * W[c];
        }""",
        lambda x, w: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w,
        lambda r, c: ((r, c), (c,)),
        (1, 2),
    ),
    "softmax": Layer(
        """function (X[R, C]) -> (Y) {
            M[r] = max(X[r, c]);
            E[r, c] = exp(X[r, c] - M[r]);
            Y[r, c] = E[r, c] / sum(E[r, k]);
        }""",
        lambda x: F.softmax(x, -1),
        lambda r, c: ((r, c),),
        (1, 1),
    ),
    "softmax over rows": Layer(
        """function (X[R, C]) -> (Y) {
            M[c] = max(X[r, c]);
            E[r, c] = exp(X[r, c] - M[c]);
            Y[r, c] = E[r, c] / sum(E[k, c]);
        }""",
        lambda x: F.softmax(x, 0),
        lambda r, c: ((r, c),),
        (1, 1),
    ),
    "snake": Layer(
        """function (X[B, C, N], A[C]) -> (Y) {
            Y[b, c, n] = X[b, c, n] + sin(A[c] * X[b, c, n]) * sin(A[c] * X[b, c, n]) / A[c];
        }""",
        lambda x, a: x + torch.sin(a[:, None] * x) ** 2 / a[:, None],
        lambda r, c: ((2, (r + 1) // 2, c), ((r + 1) // 2,)),
        (1, 2),
    ),
    "GEGLU": Layer(
        "function (X[R, C], G[R, C]) -> (Y) { Y = X * gelu(G); }",
        lambda x, g: x * F.gelu(g),
        lambda r, c: ((r, c), (r, c)),
        (1, 1),
    ),
    "bias and SiLU": Layer(
        "function (X[R, C], B[C]) -> (Y) { Y[r, c] = silu(X[r, c] + B[c]); }",
        lambda x, b: F.silu(x + b),
        lambda r, c: ((r, c), (c,)),
        (1, 2),
    ),
    "group norm": Layer(
        """function (X[N, G, D, S], W[G, D], B[G, D]) -> (Y) {
            M[n, g] = mean(X[n, g, d, s]);
            V[n, g] = mean((X[n, g, d, s] - M[n, g]) * (X[n, g, d, s] - M[n, g]));
            Y[n, g, d, s] = (X[n, g, d, s] - M[n, g]) * rsqrt(V[n, g] + 0.00001) * W[g, d] + B[g, d];
        }""",
        lambda x, w, b: F.group_norm(x.flatten(1, 2), x.shape[1], w.flatten(), b.flatten()).view_as(x),
        lambda r, c: ((r, 3, 2, c), (3, 2), (3, 2)),
        (1, 3),
    ),
    "logits' loss": Layer(
        """function (X[R, C], T[R, C]) -> (L) {
            L[] = mean(T[r, c] * (logsumexp(X[r, k]) - X[r, c]));
        }""",
        lambda x, t: (t * (torch.logsumexp(x, -1, keepdim=True) - x)).mean(),
        lambda r, c: ((r, c), (r, c)),
        (2, 1),
    ),
}
DROPOUT = """function (X[R, C], Z[R, C], S[]) -> (Y) {
    Y[r, c] = (rand(S, C * r + c) < 0.9 ? X[r, c] / 0.9 : 0.0) + Z[r, c];
}"""


def inputs(layer: Layer, rows: int, columns: int, dtype: torch.dtype = torch.float32, device: str = "cpu"):
    """Normal inputs; the second one, which layers may divide by, away from zero."""
    generator = torch.Generator().manual_seed(rows * 7919 + columns)
    made = [torch.randn(*s, generator=generator, dtype=torch.float64) for s in layer.shapes(rows, columns)]
    made[1:2] = [t.abs() + 0.5 for t in made[1:2]]
    return [t.to(dtype).to(device) for t in made]


def exact(layer: Layer, tensors) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
    """The value in float64, a cotangent for it, and the gradient by all inputs."""
    leaves = [t.detach().double().requires_grad_() for t in tensors]
    value = layer.formula(*leaves)
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.device)
    cotangent = cotangent.to(tensors[0].dtype)
    return value.detach(), cotangent, torch.autograd.grad(value, leaves, cotangent.double())
