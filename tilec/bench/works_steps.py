"""What is measured of recurrences, scans and random numbers on a GPU."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from tilec.bench.recurrences import HIDDEN, SHUFFLE, hidden_loop, torch_shuffle_loop
from tilec.bench.works import Work

SHUFFLING = Work(SHUFFLE, torch_shuffle_loop)
SHUFFLING_IN_ORDER = replace(SHUFFLING, ordered=True)
HIDDEN_STATES = Work(HIDDEN, hidden_loop)


def _linear(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    h, states = torch.zeros_like(x[0]), []
    for coefficient, term in zip(a, x, strict=True):
        h = coefficient * h + term
        states.append(h)
    return torch.stack(states)


def _tanh(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    h, states = torch.zeros_like(x[0]), []
    for term in x:
        h = torch.tanh(h @ w.T + term)
        states.append(h)
    return torch.stack(states)


LINEAR_WORK = Work("function (A[T, L], X[T, L]) -> (H) { H[t, l : T, L] = A[t, l] * H[t - 1, l] + X[t, l]; }", _linear)
TANH = Work(
    """function (W[D, D], X[T, N, D]) -> (H) {
        H[t, n, i : T, N, D] = tanh(sum(W[i, j] * H[t - 1, n, j]) + X[t, n, i]);
    }""",
    _tanh,
)
RUNNING_SUM = Work(
    "function (X[N, D]) -> (O) { O[i, j : N, D] = +(X[i, k]), j - k < D; }", lambda x: torch.cumsum(x, 1)
)
SUM_DOWN = Work("function (X[N, D]) -> (O) { O[i, j : N, D] = +(X[k, j]), i - k < N; }", lambda x: torch.cumsum(x, 0))
RUNNING_LOG = Work(
    "function (X[N, D]) -> (O) { O[i, j : N, D] = logsumexp(X[i, k]), j - k < D; }", lambda x: torch.logcumsumexp(x, 1)
)
DROPOUT = Work(
    "function (X, S, P) -> (Y) { Y = rand(S) < P ? X / P : 0; }", lambda x: F.dropout(x, 0.1), numbers=(7, 0.9)
)
