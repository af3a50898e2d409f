"""Recurrences of every kind, with inputs: (source, arrays) by what is special about them."""

from __future__ import annotations

import numpy as np

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape)


RECURRENCES = {
    "linear": ("function (B[T]) -> (H) { H[t : T] = H[t - 1] * 0.5 + B[t]; }", (normal(5),)),
    "points that other reads leave": ("function (B[T]) -> (H) { H[t : T] = H[t - 1] + B[t - 1]; }", (normal(5),)),
    "shuffle": (
        "function (B[T, N, D], H0[N, D]) -> (H) "
        "{ H[t, n, i : T, N, D] = relu(B[t, n, i] + H[t - 1, n, (i - 1) % D]) init H0[n, i]; }",
        (normal(4, 2, 3), normal(2, 3)),
    ),
    "hidden Markov model": (
        "function (P[S, S], E[T, S], F0[S]) -> (F) "
        "{ F[t, j : T, S] = logsumexp(F[t - 1, i] + P[i, j]) + E[t, j] init F0[j]; }",
        (normal(3, 3), normal(4, 3), normal(3)),
    ),
    "edit distance": (
        "function (C[N, M]) -> (D) { D[i, j : N, M] = "
        "min(min(D[i - 1, j] + 1, D[i, j - 1] + 1), D[i - 1, j - 1] + C[i, j]) init max(i, j) + 1; }",
        (normal(4, 3),),
    ),
    "backward": ("function (B[T]) -> (H) { H[t : T] = H[t + 1] * 0.5 + B[t]; }", (normal(5),)),
    "written one later": ("function (B[T]) -> (H) { H[t + 1 : T + 1] = H[t] * 0.5 + B[t]; }", (normal(5),)),
    "written at every other": ("function (B[T]) -> (H) { H[2*t : 2*T] = H[2*t - 2] * 0.5 + B[t]; }", (normal(5),)),
    "a window of the past": (
        "function (B[T], W[K]) -> (H) { H[t : T] = B[t] + sum(W[k] * H[t - 1 - k]) init t; }",
        (normal(5), normal(2)),
    ),
    "aggregated": ("function (W[K]) -> (H) { H[t : 6] = +(W[k] * H[t - 1 - k]) init 1; }", (normal(2),)),
    "an aggregation in init": (
        "function (W[K]) -> (H) { H[t : 6] = mean(W[k] * H[t - 1 - k]) init sum(W[i]) + t; }",
        (normal(2),),
    ),
    "an aggregation over what init names": (
        "function (B[T, D], V[D, K]) -> (H) "
        "{ H[t, i : T, D] = B[t, i] + H[t - 1, i - 1] init sum(V[i, k]) + V[t, i]; }",
        (normal(3, 4), normal(4, 2)),
    ),
    "a tree": ("function (B[N]) -> (H) { H[i : N] = B[i] + H[i/2 - 1] init 3; }", (normal(9),)),
    "bool": ("function (B[N]) -> (H) { H[i : N] = B[i] > 0 & ~H[i - 1]; }", (normal(9),)),
    "integers": ("function (B[N]) -> (H) { H[i : N] = 3 * H[i - 1] + B[i]; }", (np.arange(5, dtype=np.int16),)),
    "a knight's move": (
        "function (A[N, M]) -> (H) { H[i, j : N, M] = H[i - 1, j + 2] + H[i, j - 1] + A[i, j]; }",
        (normal(4, 5),),
    ),
    "sweeps in place": (
        "function (F[N, M]) -> (S) { S[t, y, x : 2, N, M] = "
        "(S[t, y - 1, x] + S[t - 1, y + 1, x] + S[t, y, x - 1] + S[t - 1, y, x + 1] - F[y, x]) / 4; }",
        (normal(3, 4),),
    ),
    "charts of two kinds": (
        "function (S[N, N]) -> (D) { D[w, q, i : N, 2, N] = q == 0"
        " ? sum(k < w ? D[k, 1, i] * D[w - 1 - k, 1, i + k + 1] : 0) + (i < 2 ? S[i, i + w] : S[i + w, i])"
        " : sum(m <= w ? D[m, 0, i] : 0), k < N, m < N; }",
        (normal(3, 3),),
    ),
    "pointers": (
        "function (A[T, D], I[T, D]) -> (H) { H[t, i : T, D] = A[t, i] + H[t - 1, I[t, i]] init t + i; }",
        (normal(4, 3), RNG.integers(-1, 4, (4, 3))),
    ),
    "guarded": (
        "function (A[T], X[T]) -> (H) { H[t : T] = A[t] > 0 ? H[t - 1] + A[t] default X; }",
        (normal(6), normal(6)),
    ),
    "padded by hand": ("function (A[T]) -> (H) { H[t : T] = A[t] * pad(H[t - 1], 2 * t + 1); }", (normal(4),)),
    "elements as places in a table": (
        "function (C[N], R[8]) -> (Y) { Y[t, i : 3, N] = R[4 * Y[t - 1, (i - 1) % N] + 2 * Y[t - 1, i] "
        "+ Y[t - 1, (i + 1) % N]] init C[i]; }",
        (np.array([0, 1, 1, 3, 0]), RNG.integers(0, 2, 8)),
    ),
    "elements as places of their own": (
        "function (P[N]) -> (Y) { Y[t, i : 3, N] = Y[t - 1, Y[t - 1, i]] init i * i - 1 + P[i]; }",
        (np.array([0, 1, 0, 1]),),
    ),
    "elements as places, padded and in branches": (
        "function (P[N], M[K, N]) -> (Y) { Y[t, i : 3, N] = i > 0 ? 1 + M[Y[t - 1, i], (i + 1) % N] "
        "+ pad(M[Y[t - 1, i], i + 1], 7) : 5 init P[i]; }",
        (np.array([0, 1, 0, 3]), RNG.integers(0, 5, (4, 4), dtype=np.int8)),
    ),
    "elements as places, summed over": (
        "function (P[N], M[K, N]) -> (Y) { Y[t, i : 3, N] = sum(M[Y[t - 1, j], j]) % 5 + i init P[i]; }",
        (np.array([0, 1, 0, 3]), RNG.integers(0, 5, (4, 4))),
    ),
    "an order that branches give": (
        "function (A[N, N]) -> (L) { L[i, j : N, N] = j > i ? 0 : i == j ? "
        "sqrt(A[i, i] - sum[k](k < i ? L[i, k] * L[i, k])) : "
        "(A[i, j] - sum[k](k < j ? L[i, k] * L[j, k])) / L[j, j], k < N; }",
        (np.eye(3) * 4 + 1,),
    ),
    "an aggregation in another, the same for all lanes": (
        "function (K[N, M], A[N], B[M], G[N]) -> (H) { H[t, i : 3, N] = "
        "A[i] - logsumexp[j](K[i, j] + B[j] - logsumexp[k](K[k, j] + H[t - 1, k])) init G[i]; }",
        (normal(12, 10), normal(12), normal(10), normal(12)),
    ),
    "of length 0": ("function (A[T, D]) -> (H) { H[t, i : T, D] = A[t, i] + H[t - 1, i]; }", (normal(0, 3),)),
    "an automaton": (
        "function (D[S, V], X[B, T], S0[B]) -> (H) { H[b, t : B, T] = D[H[b, t - 1], X[b, t]] init S0[b]; }",
        (RNG.integers(-1, 3, (3, 4)), RNG.integers(0, 4, (2, 5)), RNG.integers(0, 3, 2)),
    ),
    "pointers to pointers": (
        "function (P[N]) -> (H) { H[k, i : 3, N] = H[k - 1, H[k - 1, i]] init P[i]; }",
        (RNG.integers(-1, 5, 5),),
    ),
    "ancestors, padded and summed": (
        "function (P[N, M]) -> (H) "
        "{ H[k, i : 3, N] = k == 0 ? i : pad(P[H[k - 1, i], 0], -1) + max(P[H[k - 1, i] + m, m]); }",
        (RNG.integers(-1, 4, (4, 2)),),
    ),
    "edges repeated and reflected": (
        "function (X[N], A[N]) -> (H) { H[t, i : 3, N] = t == 0 ? X[i] : H[t - 1, clamp(i - 1, 0, N - 1)]"
        " + sin(A[i] * H[t - 1, abs(i - 2)]) + A[clamp(i + 1, 0, N - 1)] * H[t - 1, clamp(i + 1, 0, N - 1)]; }",
        (normal(5), normal(5)),
    ),
    "ranks along edges of a graph": (
        "function (S[E], D[E], W[E], X[N]) -> (H) "
        "{ H[t, v : 3, N] = t == 0 ? X[v] : sum(D[e] == v ? H[t - 1, S[e]] * W[e]); }",
        (RNG.integers(-1, 4, 6), RNG.integers(0, 5, 6), normal(6), normal(4)),
    ),
    "a step scaled by its own length": (
        "function (A[N, N], X[N]) -> (H) { H[t, i : 3, N] = t == 0 ? X[i] : sum[j](A[i, j] * H[t - 1, j])"
        " / sqrt(1 + sum[k](sum[l](A[k, l] * H[t - 1, l]) * sum[m](A[k, m] * H[t - 1, m]))); }",
        (normal(3, 3), normal(3)),
    ),
    "substitution, a guard orders": (
        "function (A[N, N], X[N]) -> (H) { H[i : N] = X[i] - sum[j](j < i ? A[i, j] * H[j]); }",
        (normal(4, 4), normal(4)),
    ),
    "Cholesky factors": (
        "function (A[N, N]) -> (H) { H[j, i : N, N] = i == j ? sqrt(9 + A[i, i] - sum[k](k < i ? H[k, i] * H[k, i]))"
        " : i > j ? (A[i, j] - sum[k](k < j ? H[k, i] * H[k, j])) / H[j, j] : 0.0, k < N; }",
        (normal(3, 3),),
    ),
    "spans": (
        "function (X[N, N]) -> (H) { H[l, i : N, N] = l == 0 ? X[0, i]"
        " : X[l, i] + max[k](k < l & i + l < N ? H[k, i] + H[l - 1 - k, i + k + 1] : -9.0), k < N; }",
        (normal(4, 4),),
    ),
}
