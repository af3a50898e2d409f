"""A call at a length that has not been seen, of a class of shapes that has: what the host takes for it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

import tilec
from tilec.bench.overheads import CONVOLUTION

_SOFTMAX = "Y[i, j] = exp(X[i, j] - max(X[i, k])) / sum(exp(X[i, k] - max(X[i, l])))"
_LAYER_NORM = """
function (X[N, F], G[F], B[F]) -> (Y) {
    M[n : N] = +(X[n, f] / F);
    V[n : N] = +((X[n, f] - M[n]) * (X[n, f] - M[n]) / F);
    Y[n, f : N, F] = (X[n, f] - M[n]) / sqrt(V[n] + 0.00001) * G[f] + B[f];
}
"""
_ATTENTION = """
function (Q[N, D], K[M, D], V[M, D]) -> (O) {
    S[i, j : N, M] = +(Q[i, d] * K[j, d]);
    L[i] = logsumexp(S[i, j]);
    O[i, d : N, D] = +(exp(S[i, j] - L[i]) * V[j, d]);
}
"""
_PRODUCT = "function (A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = +(A[i, k] * B[k, j]); }"
_LOG_PRODUCT = "function (A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = logsumexp(A[i, k] + B[k, j]); }"
_RECURRENCE = "function (A[T, D], X[T, D]) -> (H) { H[t, d : T, D] = A[t, d] * H[t - 1, d] + X[t, d]; }"
_MEAN = "function (X[N, F]) -> (Y) { Y[f : F] = +(X[n, f] / N); }"
_GELU = "function (X[N, F], B[F]) -> (Y) { Y[n, f : N, F] = gelu(X[n, f] + B[f]); }"

Shapes = Callable[[int], tuple[tuple[int, ...], ...]]


@dataclass(frozen=True)
class LengthCase:
    """`shapes` of the inputs at a length."""

    name: str
    source: str
    shapes: Shapes


LENGTH_CASES = (
    LengthCase("softmax", _SOFTMAX, lambda n: ((n, 256),)),
    LengthCase("layer norm", _LAYER_NORM, lambda n: ((n, 256), (256,), (256,))),
    LengthCase("attention", _ATTENTION, lambda n: ((n, 64), (n, 64), (n, 64))),
    LengthCase("convolution", CONVOLUTION, lambda n: ((2, 3 * (n // 4), 27, 16), (3, 3, 16, 16))),
    LengthCase("product", _PRODUCT, lambda n: ((n, 64), (64, 128))),
    LengthCase("recurrence", _RECURRENCE, lambda n: ((n, 64), (n, 64))),
    LengthCase("log product", _LOG_PRODUCT, lambda n: ((n, 64), (64, 64))),
    LengthCase("mean over rows", _MEAN, lambda n: ((n, 256),)),
    LengthCase("bias + gelu", _GELU, lambda n: ((n, 256), (256,))),
)


def new_lengths(only: str, device: str) -> Iterator[str]:
    """A line for each case: milliseconds of the first call at a length, and of the second, forward and both passes."""
    yield "| case | forward, ms | worst | again | forward and backward, ms | worst | again |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for case in LENGTH_CASES:
        if only in case.name:
            figures = [
                f"{statistics.median(first):.2f} | {max(first):.2f} | {statistics.median(again):.2f}"
                for first, again in (_taken(case, device, both) for both in (False, True))
            ]
            yield f"| {case.name} | {' | '.join(figures)} |"


def _taken(case: LengthCase, device: str, both: bool) -> tuple[list[float], list[float]]:
    f = tilec.compile(case.source)
    first, again = [], []
    for step in range(30):
        inputs = [torch.randn(s, device=device).requires_grad_(both) for s in case.shapes(256 + 16 * (11 * step % 31))]
        taken = [_milliseconds(f, inputs, device) for _ in range(3)]
        if step >= 6:  # the class and its kernels are there
            first.append(taken[0])
            again.append(min(taken[1:]))
    return first, again


def _milliseconds(f: tilec.Function, inputs: list[torch.Tensor], device: str) -> float:
    _wait(device)
    start = time.perf_counter()
    result = f(*inputs)
    if result.requires_grad:
        torch.autograd.grad(result.sum(), inputs)
    _wait(device)
    return (time.perf_counter() - start) * 1e3


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
