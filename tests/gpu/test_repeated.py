"""Calls after the first, which take another path through the host, on new inputs each time."""

from __future__ import annotations

import pytest
import torch

import tilec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
NORM = """function (X[N, D], W[D]) -> (Y) {
    M[i] = mean(X[i, j]);
    R[i] = rsqrt(mean((X[i, j] - M[i]) * (X[i, j] - M[i])) + 0.00001);
    Y[i, j : N, D] = (X[i, j] - M[i]) * R[i] * W[j];
}"""
CASES = {
    "rows": (NORM, (64, 96), (96,)),
    "log products": (
        "function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = logsumexp(A[i, k] + B[k, j]); }",
        (256, 512),
        (512, 256),
    ),
    "a chain": (
        "function (A[N, K], B[K, L], C[L, M]) -> (O) { O[i, j : N, M] = sin(sum(A[i, k] * B[k, l] * C[l, j])); }",
        (64, 80),
        (80, 96),
        (96, 64),
    ),
    "maps of boxes": (
        "function (I[N, W, C], K[3, C, D]) -> (O) { O[n, x, o : N, W, D] = +(I[n, x + j - 1, c] * K[j, c, o]); }",
        (8, 64, 64),
        (3, 64, 64),
    ),
    "a recurrence": (
        "function (W[D, D], X[T, D]) -> (H) { H[t, i : T, D] = tanh(sum(W[i, j] * H[t - 1, j]) + X[t, i]); }",
        (32, 32),
        (9, 32),
    ),
    "a network of tensors": (
        """function (L[X, W, X], A[W, D, D, W], R[X, W, X], T[X, D, D, X]) -> (Y) {
            P[a, w, j, l, d] = sum(L[a, w, b] * T[b, j, l, d]);
            Q[a, v, i, l, d] = sum(A[w, i, j, v] * P[a, w, j, l, d]);
            Y[a, i, l, c] = sum(Q[a, x, i, l, d] * R[c, x, d]);
        }""",
        (192, 6, 192),
        (6, 4, 4, 6),
        (192, 6, 192),
        (192, 4, 4, 192),
    ),
    "a scan": ("function (X[N, D]) -> (O) { O[i, j : N, D] = +(X[k, j]), i - k < N; }", (900, 40)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_again_and_again(name: str, dtype: torch.dtype) -> None:
    source, *shapes = CASES[name]
    function, exact = tilec.compile(source, backend="triton"), tilec.compile(source, backend="torch")
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    for seed in range(4):
        g = torch.Generator().manual_seed(seed)
        inputs = [(torch.randn(s, generator=g) / 4).to(dtype) for s in shapes]
        here = [t.cuda().requires_grad_() for t in inputs]
        there = [t.double().requires_grad_() for t in inputs]
        value, wanted = function(*here), exact(*there)
        d = torch.randn(wanted.shape, generator=g).to(dtype)
        found = torch.autograd.grad(value, here, d.cuda())
        expected = torch.autograd.grad(wanted, there, d.double())
        assert torch.equal(function(*here), value)
        with torch.no_grad():  # another program, which keeps nothing
            torch.testing.assert_close(function(*here), value, rtol=tolerance, atol=tolerance)
        for a, b in zip((value, *found), (wanted, *expected), strict=True):
            assert (a.double().cpu() - b).abs().max() <= tolerance * b.abs().max() + tolerance / 10


def test_numbers_on_the_host_beside_tensors_on_the_device() -> None:
    function = tilec.compile("function (X[N], A[]) -> (Y) { Y = A[] * X; }", backend="triton")
    x = torch.randn(100, device="cuda")
    for n in range(4):
        assert torch.equal(function(x, torch.tensor(float(n))), n * x)
