"""Programs and gradients in 16 bits, against float64: once they failed to compile, or lost more than their type."""

from __future__ import annotations

import torch

import tilec

MARKOV = """function (P[K, K], E[T, N, K], F0[N, K]) -> (F) {
    F[t, n, j : T, N, K] = logsumexp(F[t - 1, n, i] + P[i, j]) + E[t, n, j] init F0[n, j];
}"""
MARKOV_SHAPES = ((16, 16), (17, 2, 16), (2, 16))

# source, shapes, how far off the result and the gradient may be, in units of what the type distinguishes
CASES: dict[str, tuple[str, tuple[tuple[int, ...], ...], float]] = {
    "a sum of what follows a sum over rows": (
        """function (A[], B[N]) -> (T) {
            S[i : 3] = sum(A[]); M[i, j : 3, 3] = +(pad(A[], 2.0)); T = min(S * M, exp(-(A * A))) * A;
        }""",
        ((), (1,)),
        2,
    ),
    "another, of products with a tensor": (
        "function (A[N], B[]) -> (T) { T[i, j : 3, 3] = logsumexp(sum(A[j] * B[] - A[p])); }",
        ((5,), ()),
        8,
    ),
    "a sum padded at its own element": (
        "function (A[N], B[M]) -> (T) { S[i : N/2] = +(min(A[j], B[0])); T[i] = +(pad(S[i], 1.5)); }",
        ((4,), (5,)),
        2,
    ),
    "an element that is an index too": (
        """function (A[N], B[M]) -> (T) {
            S[i : N] = +(int64(min(A[j], B[0])) + i); T[i : N] = pad(B[S[i]], 0.5) + S[i];
        }""",
        ((4,), (5,)),
        2,
    ),
    "softplus of nothing": (
        "function (A[N]) -> (T) { S[i : 2] = >(A[i + N]); T[i : 2] = softplus(S[i]) + sum(A[j]) * 0; }",
        ((3,),),
        2,
    ),
    "products added up unrounded": (
        "function (A[N, M], C[]) -> (O) { O = sin(A * C) * A + A / C; }",
        ((33, 65), ()),
        2,
    ),
    "a softmax by its logsumexp, which is nearly ten": (
        """function (S[N, M], V[M, D]) -> (O) {
            L[i : N] = logsumexp(S[i, j] + 5); O[i, d : N, D] = +(exp(S[i, j] + 5 - L[i]) * V[j, d]);
        }""",
        ((3, 64), (64, 2)),
        1,
    ),
    "a logsumexp of two terms, which is nearly a hundred": (
        "function (A[N]) -> (L) { L[i : N - 1] = logsumexp(1.01 * A[i + j] + 99), j < 2; }",
        ((40,),),
        1,
    ),
    "a logaddexp of products": (
        "function (A[N], B[N]) -> (L) { L = logaddexp(A * B + 99, B + 98); }",
        ((40,), (40,)),
        1,
    ),
    "gradients of a hidden Markov model": (MARKOV, MARKOV_SHAPES, 64),
}


def check(case: str, dtype: torch.dtype, backend: str, device: str) -> None:
    source, shapes, allowed = CASES[case]
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(s, generator=generator).to(dtype) for s in shapes]
    exact, ours = tilec.compile(source, backend="torch"), tilec.compile(source, backend=backend)
    unit = torch.finfo(dtype).eps

    def agree(f: tilec.Function, g: tilec.Function, given: list[torch.Tensor]) -> torch.Tensor:
        wanted = f(*(t.double() for t in given))
        got = g(*(t.to(device) for t in given))
        for w, r in zip(_several(wanted), _several(got), strict=True):
            assert r.dtype == dtype
            scale = float(w.abs().nan_to_num(0, 0, 0).max()) if w.numel() else 0.0
            torch.testing.assert_close(r.cpu().double(), w, rtol=0, atol=allowed * unit * max(scale, unit))
        return wanted

    wanted = agree(exact, ours, inputs)
    cotangent = torch.randint(-2, 3, wanted.shape, generator=generator).to(dtype)
    agree(exact.grad(), ours.grad(), [*inputs, cotangent])


def _several(results: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)
