"""Losses, those over dynamic programmes included."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tilec.bench.suite.workload import Workload

KIND = "loss"
VOCABULARY = {"N": (3, 2048, 8192), "V": (9, 32000, 50257)}
PAIRS = {"N": (4, 4096, 8192), "D": (6, 256, 512)}


def _smoothed(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, t, label_smoothing=0.1, reduction="none")


def _contrastive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(a @ b.mT / 8, torch.arange(len(a), device=a.device), reduction="none")


def _into_cross_entropy(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x @ w.mT, t, reduction="none")


def _forward_algorithm(a: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    state = e[0]
    for step in e[1:]:
        state = torch.logsumexp(state[:, :, None] + a, 1) + step
    return torch.logsumexp(state, -1)


def _edit(c: torch.Tensor) -> torch.Tensor:
    """Least cost of a monotone path through a matrix of costs, diagonal by diagonal."""
    b, n, m = c.shape
    far = torch.full((b, n + 1), torch.inf, device=c.device, dtype=c.dtype)
    before, last = far.clone(), far.clone()
    rows = torch.arange(n, device=c.device)
    for d in range(n + m - 1):
        columns = d - rows
        inside = (columns >= 0) & (columns < m)
        cost = torch.where(inside, c[:, rows, columns.clamp(0, m - 1)], torch.inf)
        best = torch.minimum(torch.minimum(last[:, :-1], last[:, 1:]), before[:, :-1])
        best = torch.where((rows == 0) & (d == 0), 0.0, best)
        before, last = last, torch.cat([far[:, :1], cost + best], 1)
    return last[:, -1]


WORKLOADS = (
    Workload("cross-entropy", KIND, """function (X[N, V], T[N]) -> (Y) {
        L[i : N] = logsumexp(X[i, v]);
        Y[i : N] = L[i] - X[i, T[i]];
    }""", lambda x, t: F.cross_entropy(x, t, reduction="none"), ("X: N V", "T: N < V"), VOCABULARY),
    Workload("cross-entropy, smoothed labels", KIND, """function (X[N, V], T[N]) -> (Y) {
        L[i : N] = logsumexp(X[i, v]);
        M[i : N] = mean(X[i, v]);
        Y[i : N] = L[i] - 0.9 * X[i, T[i]] - 0.1 * M[i];
    }""", _smoothed, ("X: N V", "T: N < V"), VOCABULARY),
    Workload("linear layer into cross-entropy", KIND, """function (X[N, H], W[V, H], T[N]) -> (Y) {
        S[i, v : N, V] = sum(X[i, h] * W[v, h]);
        L[i : N] = logsumexp(S[i, v]);
        Y[i : N] = L[i] - S[i, T[i]];
    }""", _into_cross_entropy, ("X: N H", "W: V H ~ 0.02", "T: N < V"),
             {"N": (3, 1024, 4096), "V": (9, 32000, 32000), "H": (8, 1024, 2048)}),
    Workload("squared error", KIND, "function (X[N], T[N]) -> (Y) { Y[] = mean((X[i] - T[i]) * (X[i] - T[i])); }",
             F.mse_loss, ("X: N", "T: N"), {"N": (9, 2**22, 2**26)}, "float32", wrt=("X",)),
    Workload("Huber loss", KIND, """function (X[N], T[N]) -> (Y) {
        E = abs(X - T);
        Y[] = mean(E[i] < 1 ? 0.5 * E[i] * E[i] : E[i] - 0.5);
    }""", F.smooth_l1_loss, ("X: N", "T: N"), {"N": (9, 2**22, 2**26)}, "float32", wrt=("X",)),
    Workload("binary cross-entropy of logits", KIND, """function (X[N], T[N]) -> (Y) {
        Y[] = mean(softplus(X[i]) - X[i] * T[i]);
    }""", F.binary_cross_entropy_with_logits, ("X: N", "T: N"), {"N": (9, 2**22, 2**26)}, "float32", wrt=("X",)),
    Workload("divergence of two softmaxes", KIND, """function (X[N, V], T[N, V]) -> (Y) {
        P[i, v : N, V] = X[i, v] - logsumexp(X[i, w]);
        Q[i, v : N, V] = T[i, v] - logsumexp(T[i, w]);
        Y[i : N] = sum(exp(Q[i, v]) * (Q[i, v] - P[i, v]));
    }""", lambda x, t: (F.softmax(t, -1) * (F.log_softmax(t, -1) - F.log_softmax(x, -1))).sum(-1),
             ("X: N V", "T: N V"), VOCABULARY, "float32", wrt=("X",)),
    Workload("contrastive loss", KIND, """function (A[N, D], B[N, D]) -> (Y) {
        S[i, j : N, N] = sum(A[i, d] * B[j, d]) / 8;
        L[i : N] = logsumexp(S[i, j]);
        Y[i : N] = L[i] - S[i, i];
    }""", _contrastive, ("A: N D", "B: N D ~ 0.3"), PAIRS),
    Workload("forward algorithm of a hidden Markov model", KIND, """function (A[S, R], E[T, N, S]) -> (Y) {
        F[t, n, j : T, N, S] = (t == 0 ? 0 : logsumexp(F[t - 1, n, i] + A[i, j])) + E[t, n, j];
        Y[n : N] = logsumexp(F[T - 1, n, j]);
    }""", _forward_algorithm, ("A: S S", "E: T N S"),
             {"T": (4, 128, 512), "N": (2, 32, 64), "S": (3, 128, 256)}, "float32", compiled=False),
    Workload("least path through costs (edit distance, time warping)", KIND, """function (C[B, N, M]) -> (Y) {
        P[b, i, j : B, N, M] = C[b, i, j]
            + (i + j == 0 ? 0 : min(min(P[b, i - 1, j], P[b, i, j - 1]), P[b, i - 1, j - 1])) init inf;
        Y[b : B] = P[b, N - 1, M - 1];
    }""", _edit, ("C: B N M > 0",), {"B": (2, 32, 64), "N": (4, 256, 512), "M": (5, 256, 512)}, "float32",
             compiled=False),
)  # fmt: skip
