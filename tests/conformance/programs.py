"""Programs by what they are for, with the shapes of an example: the texts of the conformance list."""

from __future__ import annotations

import numpy as np

from tilec.ir.functions import FUNCTIONS
from tilec.ir.types import DTYPES

CONTRACTIONS = [
    ("O[i, j : 3, 5] = +(A[i, k] * B[k, j]);", (3, 7), (7, 5)),
    ("O[b, i, j : 2, 3, 5] = +(A[b, i, k] * B[b, j, k]);", (2, 3, 7), (2, 5, 7)),
    ("O[i, j, b : 3, 5, 2] = +(A[b, i, k] * B[b, j, k]);", (2, 3, 7), (2, 5, 7)),
    ("O[i, x, j, y : 3, 2, 5, 2] = +(A[i, k, x] * B[y, k, j]);", (3, 7, 2), (2, 7, 5)),
    ("O[i, j : 3, 4] = +(A[i, k] * B[k, l] * C[l, j]);", (3, 5), (5, 6), (6, 4)),
    ("O[] = +(A[k] * B[k]);", (5,), (5,)),
    ("O[i, j, 0 : 3, 5, 2] = +(A[i, k] * B[k, j]);", (3, 7), (7, 5)),
    ("O[i : 3] = +(A[i, k] * B[k]);", (3, 5), (5,)),
    ("O[i, j : 3, 4] = +(-A[i, k] * B[k, j] / C[j] * 2.5 * in(A[0, l]));", (3, 5), (5, 4), (4,)),
    ("O[i, j : 3, 4] = +(sin(A[i, k]) * exp(B[k, j] - C[k]));", (3, 5), (5, 4), (5,)),
    ("O[i : 6] = +(A[j] * B[j]), i - j < 6;", (6,), (6,)),
    ("O[i, j : 6, 4] = +(A[i, k] * B[k, j]), i - k < 3;", (6, 6), (6, 4)),
    ("O[i, j : 6, 4] = +(A[i, k] > 0 ? A[i, k] * B[k, j]);", (6, 6), (6, 4)),
    ("O[x, o : 9, 4] = +(sin(I[x + k - 1, c]) * K[k, c, o]);", (9, 3), (3, 3, 4)),
]
CONVOLUTIONS = [
    ("O[n, y, x, o : 2, 8, 9, 4] = +(I[n, y + j - 1, x + i - 1, c] * K[j, i, c, o]);", (2, 8, 9, 3), (3, 3, 3, 4)),
    ("O[n, o, y, x : 2, 4, 8, 9] = +(I[n, c, y + j - 1, x + i - 1] * K[o, c, j, i]);", (2, 3, 8, 9), (4, 3, 3, 3)),
    ("O[n, y, x, o : 2, 4, 5, 4] = +(I[n, 2*y + j, 2*x + i - 1, c] * K[j, i, c, o]);", (2, 8, 9, 3), (3, 3, 3, 4)),
    ("O[n, y, x, o : 2, 9, 15, 4] = +(I[n, 2*y + j - 4, 2*x + i + 2, c] * K[j, i, c, o]);", (2, 8, 9, 3), (3, 3, 3, 4)),
    ("O[n, x, o : 2, 9, 4] = +(I[n, x - k + 1, c] * K[k, c, o]);", (2, 8, 3), (3, 3, 4)),
    ("O[n, x, o : 2, 19, 4] = +(I[n, (x - k)/2, c] * K[k, c, o]);", (2, 8, 3), (3, 3, 4)),
    ("O[n, z, y, x : 1, 3, 4, 5] = +(I[n, z + k, y + j, x + i, c] * K[k, j, i, c]);", (1, 4, 5, 6, 2), (2, 2, 2, 2)),
    ("O[y, x, g, o : 8, 9, 3, 2] = +(I[y + j - 1, x + i - 1, g, c]*K[j, i, g, c, o]);", (8, 9, 3, 4), (3, 3, 3, 4, 2)),
    ("O[n, y, x, g : 2, 8, 9, 3] = +(I[n, y + j - 1, x + i - 1, g] * K[j, i, g]);", (2, 8, 9, 3), (3, 3, 3)),
    ("O[n, y, x : 2, 8, 9] = +(2 * I[n, y + j - 1, 2*x] * K[j]);", (2, 8, 17), (3,)),
    ("DI[n, 3*y + 2*j, 3*x + 2*i, c : 2, 20, 21, 3] = +(DO[n, y, x, o] * K[j, i, c, o]);", (2, 6, 6, 4), (3, 3, 3, 4)),
    ("DI[n, 3*y + 2*j, 3*x + 2*i, c : 2, 10, 23, 3] = +(DO[n, y, x, o] * K[j, i, c, o]);", (2, 6, 6, 4), (3, 3, 3, 4)),
    ("DK[j, i, c, o : 3, 3, 3, 4] = +(I[n, y + j - 1, x + i - 1, c] * DO[n, y, x, o]);", (2, 8, 9, 3), (2, 8, 9, 4)),
    ("DK[j, i, c, o : 3, 2, 3, 4] = +(I[n, 2*y + j - 1, 3*x + 2*i, c] * DO[n, y, x, o]);", (2, 8, 9, 3), (2, 5, 4, 4)),
]  # fmt: skip
LOGS = [
    ("O[i, j : 4, 3] = logsumexp(A[i, k] + B[k, j]);", (4, 5), (5, 3)),
    ("O[b, i, j : 2, 4, 3] = logsumexp(A[b, i, k] + B[b, k, j]);", (2, 4, 5), (2, 5, 3)),
    ("O[b, i, j : 2, 4, 3] = logsumexp(A[b, i, k] + B[k, j] - C[k] + 2.5);", (2, 4, 5), (5, 3), (5,)),
    ("O[b, i, j : 2, 4, 3] = logsumexp(A[b, i, k] + B[k, l] + C[l, j]);", (2, 4, 5), (5, 6), (6, 3)),
    ("O[n, x, o : 2, 8, 4] = logsumexp(I[n, x + k - 1, c] + K[k, c, o]);", (2, 8, 3), (3, 3, 4)),
    ("O[i, j : 6, 3] = logsumexp(A[i, k] + B[k, j]), i - k < 3;", (6, 5), (5, 3)),
    ("O[i, j : 6, 3] = logsumexp(A[i, k] > 0 ? A[i, k] + B[k, j]);", (6, 5), (5, 3)),
    ("O[i, j : 6, 3] = logsumexp(A[i, k] + B[k, j] + A[i, l]), l < 4;", (6, 5), (5, 3)),
    ("O[i, j : 6, 3] = logsumexp(A[i, k] + B[k, j] + in(A[0, l]) - 1);", (6, 5), (5, 3)),
]
GENERAL = [
    (
        "function (X[N, 4], M[N]) -> (Y) { B[i] = M[i] / 2; "
        "Y[i] = sum(sqrt(sum[d]((X[i, d] - X[j, d]) * (X[i, d] - X[j, d])) + 1.0) * exp(B[i] - B[j])); }",
        (40, 4),
        (40,),
    ),
    (
        "function (X[B, N, 3], R[B, 3, 3], T[B, 3]) -> (Z, D) { Z[b, n, i] = sum(R[b, i, j] * X[b, n, j]) + T[b, i]; "
        "D[b, n] = sum(Z[b, n, i] * X[b, n, i]); }",
        (2, 5, 3),
        (2, 3, 3),
        (2, 3),
    ),
    ("O[i, j : 3, 4] = sin(A[i, j] * C[0]) * A[i, j] + B[0, j] / C[0];", (3, 4), (1,), (1, 4)),
    ("function (A[N, M], C[]) -> (O) { O = sin(A * C) * A + A / C; }", (3, 4), ()),
    ("O[x : 7] = >(A[x + k - 1]), k < 3;", (7,)),
    ("O[x : 7] = <(A[2*x - k]), k < 3;", (7,)),
    ("O[i : 6] = +(A[j]), i - j < 6;", (6,)),
    ("O[i : 5] = A[i], i < 3;", (5,)),
    ("O[i, j : 4, 5] = A[i, j], i - j < 2 default B;", (4, 5), (4, 5)),
    ("O[i : 7] = A[i - 2] default B;", (3,), (7,)),
    ("O[i : 7] = +(A[i - k]), k < 2 default B;", (3,), (7,)),
    ("O[3 - 2*i, i : 4, 4] = +(A[j, i]) default B;", (3, 4), (4, 4)),
    ("O[i - 1, 2 - i : 4, 4] = A[0, i] default B;", (3, 4), (4, 4)),
    ("O[i : 7] = >(A[i - k] > 0 ? A[i - k]), k < 2 default B;", (3,), (7,)),
    ("O[i : 9] = pad(A[2*i - 3], 5.0) + pad(in(A[i]), 0), i < 9;", (6,)),
    ("O[i : 9] = logsumexp(A[i, j] > 0 ? A[i, j] + i * j);", (9, 5)),
    ("O[i : 9] = *(A[i, j]);", (9, 5)),
    ("O[i, j : 5, 6] = A[(i + j) % 4, clamp(i - j, 0, 3)];", (4, 4)),
    ("O[i, i : 4, 5] = A[i];", (4,)),
    ("O[i, i + j, j : 3, 7, 4] = U[i] * V[j];", (3,), (4,)),
    ("O[i, j : 9, 4] = A[8 - i, j];", (9, 4)),
    ("O[i : 6] = any(A[i, j] > 1);", (6, 3)),
    ("O[i : 6] = all(A[i, j] > -1);", (6, 3)),
    ("Y = reshape(X, 6, 4);", (2, 3, 4)),
    ("Y = reshape(X, 4, 6) * 2;", (2, 3, 4)),
    ("O[i : 8] = +(A[i/2 + 1/2]);", (4,)),
    ("O[3*i + 1 : 12] = >(A[i, j]);", (4, 2)),
    ("S[] = +(A[i, j]); O = A / S;", (4, 5)),
    ("M[i : 4] = mean(A[i, j]); O[i, j : 4, 5] = (A[i, j] - M[i]) * rsqrt(sum(A[i, k] * A[i, k]) + 0.1);", (4, 5)),
]  # fmt: skip
INDEXED = [
    "O[Ix[k], j : 5, 4] = +(U[k, j]);",
    "O[j, Ix[k] : 4, 5] = +(U[k, j]);",
    "O[Ix[k], j - 1 : 5, 4] = +(U[k, j]);",
    "O[Ix[k] : 5] = +(U[k, j]);",
    "O[Ix[k] : 5] = >(U[k, j]);",
    "O[Ix[k] : 5] = <(U[k, j]);",
    "O[Ix[k] : 5] = *(U[k, j]);",
    "O[Ix[k] : 5] = *(U[k, j]) default D;",
    "O[Ix[k], j : 5, 4] = >(U[k, j] > 0 ? U[k, j] * D[0]);",
    "O[k % 3, j : 3, 4] = logsumexp(U[k, j]);",
    "O[k, j : 9, 4] = U[Ix[k] + 1, j];",
    "O[k, j : 9, 4] = pad(U[Ix[k] + 1, j], 7.0), k < 9, j < 4;",
    # particles on a grid: what they give to the places around them, and what they take from there
    "O[Ix[k] + p, j : 6, 4] = +(U[k, j] * (p + 1)), p < 2;",
    "O[Ix[k] + p, Ix[k] - q : 6, 5] = +(U[k, p] * U[k, q + 1]), p < 2, q < 3;",
    "O[k, j : 9, 4] = sum(U[Ix[k] + p, (j - Ix[k]) % 4] * (p + 1)), p < 2;",
]
INFINITE = [
    ("O[n, y, x, o : 2, 5, 6, 4] = +(I[n, y + j - 1, x + i - 1, c] * K[j, i, c, o]);", (2, 5, 6, 3), (3, 3, 3, 4)),
    ("DI[3*y + 2*j, c : 20, 3] = +(DO[y, o] * K[j, c, o]);", (6, 4), (3, 3, 4)),
    ("DK[j, c, o : 3, 3, 4] = +(I[y + j - 1, c] * DO[y, o]);", (6, 3), (6, 4)),
    ("O[i, j : 6, 4] = +(A[i, k] * B[k, j]), i - k < 3;", (6, 6), (6, 4)),
    ("O[i, j : 6, 4] = +(A[i, k] > 0 ? A[i, k] * B[k, j]);", (6, 6), (6, 4)),
    ("O[x, o : 9, 4] = +(sin(I[x + k - 1, c]) * K[k, c, o]);", (9, 3), (3, 3, 4)),
    ("O[x : 9] = >(I[x + k - 1] * K[k]);", (9,), (3,)),
    ("O[x, o : 9, 4] = logsumexp(I[x + k - 1, c] + K[k, c, o]);", (9, 3), (3, 3, 4)),
    ("O[i, j : 6, 4] = logsumexp(A[i, k] + B[k, j]), i - k < 3;", (6, 6), (6, 4)),
    ("O[i, j : 6, 4] = logsumexp(A[i, k] + B[k, j]);", (6, 6), (6, 4)),
    ("O[i, j : 6, 4] = +(A[i, k] * B[k, l] * A[l, j]);", (6, 6), (6, 4)),
    ("O[i : 6] = +(A[i, k] * B[k, j]);", (6, 6), (6, 4)),
    ("O[i : 6] = logsumexp(A[i, k] + B[k, j]);", (6, 6), (6, 4)),
    ("O[i, j : 6, 4] = +(exp(A[i, k]) * B[k, j]), i - k < 3;", (6, 6), (6, 4)),
]
GROUPS = [
    """function (X[N, C, T], A[C], G[N, C, T]) -> (DX, DA) {
        DX[n, c, t : N, C, T] = G[n, c, t] * cos(A[c] * X[n, c, t]) * A[c];
        DA[c : C] = +(G[n, c, t] * cos(A[c] * X[n, c, t]) * X[n, c, t]);
    }""",
    """function (X[N, C, T]) -> (Y, M, S, L) {
        Y[c, n, t : C, N, T] = exp(X[n, c, t]) + 1;
        M[t, n : T, N] = >(exp(X[n, c, t]));
        S[] = +(exp(X[n, c, t]) * 2);
        L[c : C] = any(exp(X[n, c, t]) > 3);
    }""",
    """function (X[N, C, T]) -> (P, Q) {
        P[c : C] = *(1 + sin(X[n, c, t]) / 9);
        Q[i, j, k : N, C, T] = sin(X[i, j, k]);
    }""",
]
SHAPES = [((3, 4, 5), (4,), (3, 4, 5)), ((3, 4, 5),), ((3, 4, 5),)]
ANY = [
    "function (A[N, M]) -> (O) { O[i : N] = +(A[i, j]); }",
    "function (A[N, M]) -> (O) { O[i : N] = >(A[i, j]); }",
    "function (A[N, M]) -> (O) { O[i : N + 1] = <(A[i, j]); }",
    "function (A[N, M]) -> (O) { O[i, j : N, M + 2] = A[i, j - 1]; }",
    "function (A[N, M]) -> (O) { O[i : N] = any(A[i, j] != 0); }",
    "function (A[N, M]) -> (O) { O = A == 1 ? A : 0; }",
    "function (A[N, M]) -> (O) { O[i, j : N, M + 2] = pad(A[i, j - 1], 1); }",
]
NUMBERS = [
    "function (A[N, M], B[M, K]) -> (O) { O[i, j : N, K] = +(A[i, k] * B[k, j]); }",
    "function (A[N, M], B[M, K]) -> (O) { O[i, j : N, K] = >(A[i, k] + B[k, j]); }",
    "function (A[N, M]) -> (O) { O[i : N] = *(A[i, j]); }",
    "function (A[N, M]) -> (O) { O = A * 3 + A / 2 - 1; }",
    "function (A[N, M]) -> (O) { O = max(A, 1) * min(A, 2) % 3; }",
    "function (A[N, M]) -> (O) { O = exp(A / 4) + float64(A); }",
    "function (A[N, M]) -> (O) { O[i : N] = mean(A[i, j]); }",
    "function (A[N, M]) -> (O) { O[i : N] = logsumexp(A[i, j]); }",
    "function (A[N, M]) -> (O) { O[i, j : N, M] = A[i, j] * i + j / 2; }",
    "function (A[N, M]) -> (O) { O[i : N] = argmax(A[i, j]); }",
    "function (A[N, M]) -> (O) { S[] = +(A[i, j]); O = A * S; }",
]
BITS = ["O = A & 3;", "O = A | B;", "O = A ^ B;", "O = ~A;", "O = A << 1;", "O = (A >> 1) + B;", "O = A / B;"]
BITS += ["O = A % B;", "O = -A;", "O = abs(A);", "O = sign(A);"]
# with gradients that are compared with finite differences: inputs, statements, shapes
DIFFERENTIATED = {
    "stride and dilation": ("I[N, W], K[J, N]", "O[n, x : N, W/3] = +(I[n, 3*x + 2*j] * K[j, n])", [(2, 9), (2, 2)]),
    "repeated access": ("A[N]", "O[] = +(A[i] * A[j] * A[i])", [(3,)]),
    "product along a diagonal": ("A[N], B[M]", "O[i + j : N + M - 1] = *(A[i] + B[j])", [(3,), (2,)]),
    "product with rational indices": ("A[N], B[M]", "O[i/2 + j : N + M] = *(A[i] + B[j])", [(5,), (3,)]),
    "product modulo": ("A[N], B[M]", "O[(i + j) % 3 : 3] = *(A[i] + B[j])", [(3,), (3,)]),
    "logsumexp modulo": ("A[N], B[M]", "O[(i + j) % 3 : 3] = logsumexp(A[i] * B[j])", [(3,), (3,)]),
    "product, negative coefficient": ("A[N], B[M]", "O[3*i - j : N] = *(A[i] + B[j])", [(5,), (4,)]),
    "variable in constraints only": ("A[N], B[N]", "O[i : N] = *(A[i]*k + B[i]), k < 3", [(3,), (3,)]),
    "constraints": ("A[N]", "O[i : N] = +(A[i]*k*n), k < 3, n - k < 2", [(3,)]),
    "mean of some": ("A[N, K], B[K]", "O[i : N] = mean(B[k] > 0 ? A[i, k]*B[k])", [(4, 3), (3,)]),
    "mean partly outside": ("A[N, K]", "O[i : N + 2] = mean(A[i - 1, k] * A[i, k])", [(4, 3)]),
    "guard": ("A[N]", "O[i : N] = +(A[i] > A[j] ? A[j] * A[i])", [(4,)]),
    "conditional": ("A[N]", "O[i : N] = +(A[i] + A[i+j] > 0 ? A[j] * A[i] : A[i] / A[j])", [(4,)]),
    "any and all": (
        "A[N]",
        "O[i : N] = +(any(A[j] > A[i]) ? A[i] * A[k] : all(A[j] > A[i]) ? A[i] : A[i]/2), k < N",
        [(3,)],
    ),
    "pad by a number": ("A[N], V[]", "O[i : N] = +(pad(A[i + j - 1], V[]) * pad(A[2*i], 2.0)), j < 3", [(5,), ()]),
    "pad by an element": ("A[N], B[N]", "O[i : N] = +(pad(A[i + j - 1], B[i]) * B[j]), j < 3", [(4,), (4,)]),
    "pad within pad": ("A[N]", "O[i : N] = +(pad(A[i - 1], pad(A[i + 1], A[i])) * A[i])", [(3,)]),
    "wrap": ("A[N]", "O[i : N] = A[(i - 1) % N] * A[(2*i) % N]", [(4,)]),
    "clamp": ("A[N]", "O[i : N] = A[clamp(i + 1, 0, N - 1)] * i", [(4,)]),
    "default of sum": ("A[N], D[N]", "O[i : N] = +(A[2*i]*A[2*j]), j - i < 2 default D", [(5,), (5,)]),
    "default of assign": ("A[N], D[M]", "O[i : M] = =(A[2*i] * A[2*i + 1]) default D", [(4,), (5,)]),
    "default of prod": ("A[N, M], D[N]", "O[i : N] = *(A[i, j] * A[i, j+1]), i - 1 < 2 default D", [(4, 3), (4,)]),
    "default of max": ("A[N, M], D[N]", "O[i : N] = >(A[2*i, j]) default D", [(4, 3), (4,)]),
    "default of logsumexp": ("A[N, M], D[N]", "O[i : N] = logsumexp(A[2*i, j]) default D", [(4, 3), (4,)]),
    "nested, no variable of its own": ("A[N, M]", "O[i : N] = 2*sum(A[i, 0])*mean(A[i, 1])*prod(A[i, 2])", [(3, 3)]),
    "nested twice alike": ("A[N, M]", "O[i : N] = sum(A[i, j]) * sum(A[i, j]) / sum(exp(A[i, j]))", [(3, 4)]),
    "nested with constraints": ("A[N, M]", "O[i : N] = A[i, 0]*sum(A[i, j]*A[i, k]), j < 2, k - j < 2", [(3, 4)]),
    "nested in nested": (
        "A[N, N]",
        "O[i : N] = max(mean[j, k](A[i, j]*A[j, k])) * max[j](min[k](A[j, k]*A[i, k]))",
        [(3, 3)],
    ),
    "rank 0 by name": ("A[N, M], S", "O[i : N] = +(A[i, j] * S / N)", [(3, 4), ()]),
    "literal dimension": ("A[2, N]", "O[i/2 : N] = +(A[0, i] * A[1, i])", [(2, 5)]),
    "sizes left out": ("A[N, M], B[M, K]", "O[i, j] = +(A[i, k] * B[k, j])", [(3, 2), (2, 3)]),
    "size statement": ("A[N, M]", "P = (N + 1) / 2; O[i : N - P] = mean(A[i + P - 1, j])", [(5, 3)]),
}
INDICES = np.array([0, 2, 1, 0, 5])
GATHERS = {
    "gather": ("A[N, M], Ix[K]", "O[i, j : K, M] = A[Ix[i] + 1, j] * 2", [(4, 2)]),
    "gather of a gather": ("A[N], Ix[K]", "O[k : K] = A[Ix[Ix[k]]] * A[k]", [(4,)]),
    "matrix of a key": (
        "A[K, M], W[E, M, N], Ix[K]",
        "O[k, n : K, N] = +(A[k, m] * W[Ix[k], m, n])",
        [(5, 2), (4, 2, 3)],
    ),
    "matrices of keys, summed": (
        "A[K, M], W[E, M, N], Ix[K]",
        "O[n : N] = +(A[k, m] * W[Ix[k] - 1, m, n])",
        [(5, 2), (4, 2, 3)],
    ),
    "few of many products": (
        "A[K, M], B[V, M], Ix[K]",
        "S[k, v : K, V] = +(A[k, m] * B[v, m]); O[k : K] = tanh(S[k, Ix[k]])",
        [(5, 2), (130, 2)],
    ),
    "scatter": ("A[K, M], Ix[K]", "O[Ix[k], j : 4, M] = +(A[k, j])", [(5, 2)]),
    "scattered product": ("A[K, M], Ix[K]", "O[Ix[k], j : 4, M] = *(A[k, j])", [(5, 2)]),
    "scattered maximum": ("A[K, M], Ix[K]", "O[Ix[k], j : 3, M] = >(A[k, j])", [(5, 2)]),
    "scattered beside each other": (
        "A[K, M], Ix[K]",
        "B[Ix[k], j : 4, M] = +(A[k, j]); C[Ix[k] + 1, j : 4, M] = >(A[k, j] * 2); O = B + max(C, 0)",
        [(5, 2)],
    ),
    "interpolated": (
        "A[N, M], Ix[K]",
        "O[k, j : K, M] = pad(A[Ix[k], j], 0) * k + pad(A[Ix[k] + 1, j], 0) * (3 - k)",
        [(4, 2)],
    ),
    "padded gather": ("A[N], Ix[K]", "O[k : K] = pad(A[Ix[k]], 2 * A[0])", [(4,)]),
    "whole gather": ("A, Ix", "O = gather(A * A, Ix)", [(6, 2)]),
    "whole scatter": ("A, Ix", "O = scatter(A, Ix, A * A) * A + A", [(6, 2)]),
}
BROADCAST = {
    "snake": ("X, A", "O = X + sin(A*X)*sin(A*X)/A", [(2, 3, 4), (3, 1)]),
    "softmax": ("X[N, C]", "S[n, 0 : N, 1] = +(exp(X[n, c])); O = exp(X) / S", [(3, 4)]),
    "builtin softmax": ("X, B", "O = builtin_softmax(X * B, 3, 4) * B", [(3, 4), (4,)]),
    "nested in elementwise": ("X", "O = X / sum(X[i]*X[i]) + max(X[j])", [(5,)]),
    "guarded nested": ("A[N, M], B[N]", "O = B * sum(A[i, j] > 0 ? A[i, j])", [(3, 4), (3,)]),
    "elements": ("A[N, M], S[]", "O = A * S[] + A[0, 1]", [(3, 4), ()]),
    "both ways of reading": ("A, B", "Y[i, j] = +(A[i, k] * B[k, j]); O = Y + sum(Y[i, i]) + Y[0,1]", [(3, 2), (2, 3)]),
    "reshape": ("X, Z", "O = reshape(X, 3, 2) * Z", [(6,), (2,)]),
    "simple_reduce": ("X, Z", "O = simple_reduce(X*X, Z) * Z", [(3, 4), (4,)]),
    "index and shape": ("X, Y", "O = X * Y * index(X, 0) + shape(X, 1)", [(3, 2), (2,)]),
    "conditional": ("X[N]", "O = X > 0 ? X * X : 3 * X - X / 4", [(5,)]),
    "powers": ("X, Z", "O = pow(X, 3) + pow(X, -2) + pow(2, X) + pow(abs(Z), X)", [(4,), (4,)]),
    "integers on the way": ("X, Z", "O = X * int32(Z * 3) + floor(Z) * X + argmax(X[i]) + 7 / 2 * Z", [(4,), (4,)]),
    "a chain of divisions": ("X, Z", "O = 1 / X * Z / (X * X) / Z / (2 + Z * Z) * X", [(4,), (4,)]),
    "ranks that differ": ("X, Y, Z", "O = X * Y + Z", [(3,), (2, 3), (4, 2, 1)]),
}
DOMAINS = {  # where a function is smooth; elsewhere (-2, 2)
    "log": (0.3, 2), "sqrt": (0.3, 2), "rsqrt": (0.3, 2), "recip": (0.3, 2), "asin": (-0.8, 0.8), "acos": (-0.8, 0.8),
    "tan": (-1, 1), "log1p": (-0.5, 2), "pow": (0.3, 2), "div": (0.3, 2), "mod": (0.6, 0.9),
    "abs": (0.3, 2), "relu": (0.3, 2),
}  # fmt: skip
SMOOTH = [
    f for f in FUNCTIONS.values()
    if f.pullback is not None and f.name not in ("select", "reverse_grad", "as_type", *DTYPES)
]  # fmt: skip


def applied(f, args: list[str]) -> str:
    if f.symbol and f.arity == (1, 1):
        return f"{f.symbol}{args[0]}"
    return f"{args[0]} {f.symbol} {args[1]}" if f.symbol else f"{f.name}({', '.join(args)})"


CONSTRUCTS = {
    "default": "function (A[N], X[M]) -> (O) { O[2*i : M] = A[i] * A[i] default X; }",
    "pad": "function (A[N], V[]) -> (O) { O[i : N] = sin(pad(A[2*i - 1], V[] * V[])) * A[i]; }",
    "gather and scatter": "function (A[N]) -> (O) { O[(3*i) % N : N] = +(A[i] * A[(i + 1) % N]); }",
    "a guard": "function (A[N]) -> (O) { O[i : N] = +(A[j] > A[i] ? A[i] * A[j]); }",
    "a constraint": "function (A[N]) -> (O) { O[i : N] = +(A[k] * A[k]), i - k < N; }",
    "a chain": "function (A[N]) -> (O) { M[] = >(A[i]); E = exp(A - M); S[] = +(E[i]); O = E / S; }",
    "nested": "function (A[N]) -> (O) { O[i : N] = tanh(sum(A[j] * A[j]) + A[i]) * prod(A[j] + A[i]); }",
    "a broadcast": "function (A[N]) -> (O) { B = reshape(A, N, 1); O = (A * B) * (A - sin(B)); }",
    "structure": "function (A[N]) -> (O) { B = reshape(A, 2, N / 2); W[0, j : 1, N / 2] = B[1, j]; C = simple_reduce(B * B, W) * B; O = C + gather(B, 1); }",  # noqa: E501
    "softmax": "function (A[N]) -> (O) { B = reshape(A, 2, N / 2); O = builtin_softmax(B, 2, N / 2) * builtin_logsoftmax(B, 2, N / 2); }",  # noqa: E501
    "a fraction": "function (A[N]) -> (O) { O[i : N] = +(A[(i - k + 1)/2] * A[k]), k < 3; }",
    "an output twice": "function (A[N]) -> (B, B, A) { B = A * A; }",
}
