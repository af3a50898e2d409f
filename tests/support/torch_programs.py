"""Programs and what torch writes for them: every transform of torch must give the same of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F

import tilec


@dataclass(frozen=True)
class Example:
    """`shapes` of the floating inputs, `integers` that follow them; `torch` says the same in torch's operations."""

    source: str
    torch: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    integers: tuple[tuple[int, ...], ...] = ()

    def inputs(self, dtype: torch.dtype = torch.float64, device: str = "cpu", more: int = 0) -> list[torch.Tensor]:
        """Floating inputs alone; `more` is added to the first dimension of the first."""
        generator = torch.Generator().manual_seed(len(self.source) + more)
        shapes = [(s[0] + more, *s[1:]) if k == 0 else s for k, s in enumerate(self.shapes)]
        return [torch.randn(s, dtype=torch.float64, generator=generator).to(device, dtype) for s in shapes]


@cache
def compiled(name: str, backend: str | None = None) -> Callable[..., torch.Tensor]:
    """The Tile function over its floating inputs."""
    example = EXAMPLES[name]
    function = tilec.compile(example.source, backend=backend)
    if not example.integers:
        return function
    devices = [
        torch.device("cpu"),
        torch.device("meta"),
        *(torch.device("cuda", k) for k in range(torch.cuda.device_count())),
    ]
    integers = {(d.type, d.index): [torch.tensor(i, device=d) for i in example.integers] for d in devices}
    return lambda *inputs: function(*inputs, *integers[inputs[0].device.type, inputs[0].device.index])


def _convolution(i: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return F.conv2d(i.permute(0, 3, 1, 2), k.permute(3, 2, 0, 1)).permute(0, 2, 3, 1)


def _layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """In parts: tangents of tangents of torch's own are wrong."""
    below = x - x.mean(-1, keepdim=True)
    return below * (below.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w + b


def _log_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(a[:, :, None] + b, 1)


def _recurrence(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    states = [torch.tanh(x[0])]
    for row in x[1:]:
        states.append(torch.tanh(states[-1] * w + row))
    return torch.stack(states)


def _dropout(x: torch.Tensor) -> torch.Tensor:
    mask = tilec.compile("function (N, M) -> (Y) { Y[i, j : N, M] = rand(7, i*M + j) < 0.5; }")(*x.shape)
    return torch.where(mask.to(x.device), 2 * x, 0 * x)


POSITIONS = (3, 0, 3, 1)


def _gather_and_scatter(x: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    at = torch.tensor(POSITIONS, device=x.device)
    return torch.stack([((at == k)[:, None] * x[at] * u * u).sum(0) for k in range(len(x))])


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT / 2, -1) @ v


EXAMPLES = {
    "convolution": Example(
        "function (I[N, H, W, CI], K[KH, KW, CI, CO]) -> (O) {"
        " O[n, y, x, co : N, H - KH + 1, W - KW + 1, CO] = +(I[n, y + j, x + i, ci] * K[j, i, ci, co]); }",
        _convolution,
        ((1, 4, 3, 2), (2, 2, 2, 2)),
    ),
    "softmax": Example(
        "function (X[N, D]) -> (Y) {"
        " T[i] = max(X[i, k]); E[i, j] = exp(X[i, j] - T[i]); S[i] = sum(E[i, k]); Y[i, j] = E[i, j] / S[i]; }",
        lambda x: torch.softmax(x, -1),
        ((2, 3),),
    ),
    "layer norm": Example(
        "function (X[N, D], W[D], B[D]) -> (Y) { M[i] = mean(X[i, j]);"
        " R[i] = rsqrt(mean((X[i, j] - M[i]) * (X[i, j] - M[i])) + 0.00001);"
        " Y[i, j] = (X[i, j] - M[i]) * R[i] * W[j] + B[j]; }",
        _layer_norm,
        ((2, 3), (3,), (3,)),
    ),
    "log product": Example(
        "function (A[I, K], B[K, J]) -> (C) { C[i, j] = logsumexp(A[i, k] + B[k, j]); }",
        _log_product,
        ((2, 3), (3, 2)),
    ),
    "recurrence": Example(
        "function (X[T, N], W[N]) -> (H) { H[t, n : T, N] = tanh(H[t - 1, n] * W[n] + X[t, n]); }",
        _recurrence,
        ((3, 2), (2,)),
    ),
    "dropout": Example("Y = rand(7) < 0.5 ? 2 * X : 0 * X;", _dropout, ((3, 4),)),
    "gather and scatter": Example(
        "function (X[N, D], U[M, D], I[M]) -> (O) { O[I[m], d : N, D] = +(X[I[m], d] * U[m, d] * U[m, d]); }",
        _gather_and_scatter,
        ((4, 2), (4, 2)),
        (POSITIONS,),
    ),
    "attention": Example(
        "function (Q[N, D], K[M, D], V[M, E]) -> (O) { S[i, j] = sum(Q[i, d] * K[j, d]) / 2; T[i] = max(S[i, j]);"
        " P[i, j] = exp(S[i, j] - T[i]); L[i] = sum(P[i, j]); O[i, e] = sum(P[i, j] * V[j, e] / L[i]); }",
        _attention,
        ((3, 2), (4, 2), (4, 2)),
    ),
}
