"""Programs with accesses in the branches of conditionals, and what some of them mean: source, inputs, output."""

import numpy as np

_random = np.random.default_rng(0)


def _(*shape):
    return _random.integers(-3, 4, shape).astype(float)


X, Y = np.arange(1.0, 7.0), -np.arange(1.0, 7.0)
TWO = "function (A[N], B[M]) -> (O)"
CONDITIONALS = {
    "a turn": ("function (X[N]) -> (Y) { Y[i : 6] = i < 3 ? X[i + 3] : X[i - 3]; }", [X], [4.0, 5, 6, 1, 2, 3]),
    "a turn of too few": (
        "function (X[N]) -> (Y) { Y[i : 8] = i < 3 ? X[i + 3] : X[i - 3]; }",
        [X[:5]],
        [4.0, 5, 0, 1, 2, 3, 4, 5],
    ),
    "rotary embedding": (
        "function (X[T, D], C[T, H], S[T, H]) -> (Y) { Y[t, d : T, D] = d < D/2 ? X[t, d]*C[t, d]"
        " - X[t, d + D/2]*S[t, d]"
        " : X[t, d]*C[t, d - D/2] + X[t, d - D/2]*S[t, d - D/2]; }",
        [_(3, 4), _(3, 2), _(3, 2)],
        None,
    ),
    "edit distance": (
        "function (S[N], T[M]) -> (O) { D[i, j : N + 1, M + 1] = i == 0 ? j : j == 0 ? i :"
        " min(min(D[i - 1, j] + 1, D[i, j - 1] + 1), D[i - 1, j - 1]"
        " + (S[i - 1] == T[j - 1] ? 0 : 1)); O[] = D[N, M]; }",
        [np.array([1, 2, 3, 4]), np.array([2, 2, 4])],
        2,
    ),
    "soft edit distance": (
        "function (C[N, M]) -> (D) { D[i, j : N + 1, M + 1] = i == 0 ? 0.5*j : j == 0 ? 0.5*i :"
        " logaddexp(D[i - 1, j], D[i, j - 1]) + D[i - 1, j - 1]*C[i - 1, j - 1]; }",
        [_(3, 2) / 4],
        None,
    ),
    "the identity needs no bound": (
        TWO + " { O[i : N] = +(k < i ? A[k]*B[0] : 0); }",
        [X, Y],
        [0.0, -1, -3, -6, -10, -15],
    ),
    "nor does that of a maximum": (
        "function (A[N]) -> (O) { O[i : 4] = >(k <= i ? -A[k] : -inf); }",
        [X],
        [-1.0, -1, -1, -1],
    ),
    "nor of a log sum": (
        TWO + " { O[i : 4] = logsumexp(k < i ? A[k] : k < 6 ? B[k - i] : -inf); }",
        [_(5), _(2)],
        None,
    ),
    "nor of a product": (
        TWO + " { O[i : N] = *(k < i ? A[k] : k < i + 2 ? B[k] : 1); }",
        [_(5) + 0.5, _(6) - 0.5],
        None,
    ),
    "two ranges": (TWO + " { O[i : 3] = +(k < i ? A[k] : B[k - i]); }", [X, Y[:2]], [-3.0, -2, 0]),
    "a mean": (TWO + " { O[i : 3] = mean(k < i ? A[k] : B[k - i]); }", [X, Y[:2]], [-1.5, -2 / 3, 0]),
    "numbered points": (
        "function (A[N, K], B[N, L]) -> (O) { O[i : N] = argmax(j < 3 ? A[i, j] : B[i, j - 3]); }",
        [np.zeros((2, 3)), np.array([[0.0, 0, 5, 1], [0, -1, -1, 2]])],
        [5, 6],
    ),
    "a condition on data": (
        "function (C[N], A[N], B[M]) -> (O) { O[i : N] = C[i] > 0 ? A[i - 1]*2 : B[i + 1]; }",
        [np.array([1.0, -1, 2, -2]), X[:4], Y[:3]],
        [0.0, -3, 4, 0],
    ),
    "nested": (
        "function (A[N], C[N], B[M]) -> (O) { O[i : N] = 2*sum(k < 2 ? A[k + i] : C[i] > 0 ? B[k - i] : 0) + A[i]; }",
        [_(5), _(5), _(4)],
        None,
    ),
    "a sum of both": (
        "function (A[N], B[M], W[N], V[N]) -> (O) { O[i : 6] ="
        " (i < 3 ? A[i + 1]*W[i] : B[i - 2]*V[i - 1]) + (i % 2 == 0 ? A[i] : B[i - 1]*B[i - 1]); }",
        [_(5), _(6), _(5), _(5)],
        None,
    ),
    "a point dropped in a branch": (
        TWO + " { O[i : 8] = i < 3 ? A[i] : i < 5 ? B[i - 3]; }",
        [X[:3], Y[:6]],
        [1.0, 2, 3, -1, -2, 0, 0, 0],
    ),
    "cond": (TWO + " { O[i : 8] = cond(i < 3, A[i], B[i - 3]); }", [X[:3], Y[:4]], [1.0, 2, 3, -1, -2, -3, -4, 0]),
    "a default where no branch reaches": (
        "function (A[N], B[M], X[6]) -> (O) { O[i : 6] = +(i < 3 ? A[i + 1] : i < 5 ? 0 : B[i]) default X; }",
        [X[:3], X[:3], Y],
        [2.0, 3, -3, 0, 0, -6],
    ),
    "a gather": (
        "function (A[N], Ix[K], L[B]) -> (O) { O[b, t : B, 4] = t < L[b] ? A[Ix[t] + b] : -1; }",
        [X[:5], np.array([0, 3, 7]), np.array([2, 4])],
        [[1.0, 4, -1, -1], [2, 5, 0, 0]],
    ),
    "two conditionals": (
        TWO + " { O[i : 4] = +((k < i ? A[k] : B[k - i]) * (k % 2 == 0 ? B[k/2] : A[k - 1])); }",
        [_(5), _(3)],
        None,
    ),
    "booleans": (
        TWO + " { O[i : 6] = i < 3 ? A[i + 1] : B[i - 2]; }",
        [np.array([True, False, True]), np.array([True, False, True, True])],
        [False, True, False, False, True, True],
    ),
    "a recurrence": (
        "function (A[N], B[M]) -> (H) { H[t : 6] = t < 3 ? A[t] + 0.5*H[t - 1] : B[t - 3]*H[t - 2]; }",
        [X[:4], X[:2]],
        [1.0, 2.5, 4.25, 2.5, 8.5, 0],
    ),
    "a conditional under a function": (
        TWO + " { O[i : N] = +(exp(0.1*A[i + k] - B[k]) * (k < i ? B[k + 1] : A[k])), k < 3; }",
        [_(5), _(4)],
        None,
    ),
    "in": (TWO + " { O[i : 6] = (i < 3 ? in(B[i]) : in(A[i - 1])) * A[i]; }", [X, Y[:2]], [1.0, 2, 0, 4, 5, 6]),
}
