"""Scans and recurrences."""

from __future__ import annotations

import torch

from tilec.bench.suite.workload import Workload

KIND = "scan"
LINES = {"N": (3, 4096, 16384), "T": (7, 1024, 4096)}
STATES = {"B": (2, 8, 16), "T": (5, 512, 2048), "D": (4, 256, 1024)}


def _gated(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    state, found = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = torch.sigmoid(a[:, t]) * state + x[:, t]
        found.append(state)
    return torch.stack(found, 1)


def _tanh(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    state, found = torch.zeros_like(x[0]), []
    for step in x:
        state = torch.tanh(state @ w + step)
        found.append(state)
    return torch.stack(found)


def _average(x: torch.Tensor) -> torch.Tensor:
    state, found = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = 0.9 * state + 0.1 * x[:, t]
        found.append(state)
    return torch.stack(found, 1)


def _shuffling(b: torch.Tensor) -> torch.Tensor:
    state, found = torch.zeros_like(b[:, 0]), []
    for t in range(b.shape[1]):
        state = torch.relu(b[:, t] + state.roll(1, -1))
        found.append(state)
    return torch.stack(found, 1)


def _linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.einsum("btd,btdf->btf", q, torch.einsum("btd,btf->btdf", k, v).cumsum(1))


def _rays(s: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    opaque = 1 - torch.exp(-torch.relu(s) * d)
    left = torch.cumprod(torch.cat([torch.ones_like(s[:, :1]), 1 - opaque[:, :-1]], 1), 1)
    return torch.einsum("rn,rnc->rc", opaque * left, torch.sigmoid(c))


WORKLOADS = (
    Workload("cumulative sum of rows", KIND, "function (X[N, T]) -> (Y) { Y[n, t : N, T] = +(X[n, s]), t - s < T; }",
             lambda x: x.cumsum(-1), ("X: N T",), LINES, "float32"),
    Workload("cumulative sum of columns", KIND, "function (X[T, N]) -> (Y) { Y[t, n : T, N] = +(X[s, n]), t - s < T; }",
             lambda x: x.cumsum(0), ("X: T N",), LINES, "float32"),
    Workload("running maximum", KIND, "function (X[N, T]) -> (Y) { Y[n, t : N, T] = >(X[n, s]), t - s < T; }",
             lambda x: x.cummax(-1).values, ("X: N T",), LINES, "float32", wrt=()),
    Workload("cumulative log-sum-exp", KIND, """function (X[N, T]) -> (Y) {
        Y[n, t : N, T] = logsumexp(X[n, s]), t - s < T;
    }""", lambda x: torch.logcumsumexp(x, -1), ("X: N T",), LINES, "float32"),
    Workload("colours along rays", KIND, """function (S[R, N], C[R, N, 3], D[R, N]) -> (O) {
        A[r, n : R, N] = 1 - exp(-relu(S[r, n]) * D[r, n]);
        T[r, n : R, N] = prod(m < n ? 1 - A[r, m]);
        O[r, c : R, 3] = sum(A[r, n] * T[r, n] * sigmoid(C[r, n, c]));
    }""", _rays, ("S: R N", "C: R N 3", "D: R N > 0"), {"R": (3, 16384, 65536), "N": (7, 128, 192)}, "float32",
             wrt=("S", "C")),
    Workload("moving average, exponential", KIND, """function (X[B, T, D]) -> (H) {
        H[b, t, d : B, T, D] = 0.9 * H[b, t - 1, d] + 0.1 * X[b, t, d];
    }""", _average, ("X: B T D",), STATES, "float32", compiled=False),
    Workload("gated linear recurrence", KIND, """function (A[B, T, D], X[B, T, D]) -> (H) {
        H[b, t, d : B, T, D] = sigmoid(A[b, t, d]) * H[b, t - 1, d] + X[b, t, d];
    }""", _gated, ("A: B T D", "X: B T D"), STATES, "float32", compiled=False),
    Workload("tanh network", KIND, """function (W[D, E], X[T, B, D]) -> (H) {
        H[t, b, i : T, B, D] = tanh(sum(H[t - 1, b, k] * W[k, i]) + X[t, b, i]);
    }""", _tanh, ("W: D D ~ 0.04", "X: T B D"), {"B": (2, 32, 32), "T": (5, 256, 512), "D": (4, 256, 512)}, "float32",
             compiled=False),
    Workload("shuffling network", KIND, """function (B[N, T, D]) -> (H) {
        H[n, t, i : N, T, D] = relu(B[n, t, i] + H[n, t - 1, (i - 1) % D]);
    }""", _shuffling, ("B: N T D",), {"N": (2, 1, 32), "T": (5, 2000, 2000), "D": (4, 512, 512)}, "float32",
             compiled=False),
    Workload("linear attention as a recurrence", KIND, """function (Q[B, T, D], K[B, T, D], V[B, T, F]) -> (O) {
        S[b, t, d, f : B, T, D, F] = S[b, t - 1, d, f] + K[b, t, d] * V[b, t, f];
        O[b, t, f : B, T, F] = sum(Q[b, t, d] * S[b, t, d, f]);
    }""", _linear_attention, ("Q: B T D", "K: B T D", "V: B T D"),
             {"B": (2, 8, 16), "T": (5, 512, 1024), "D": (4, 32, 32)}, "float32", tolerance=1e-3),
)  # fmt: skip
