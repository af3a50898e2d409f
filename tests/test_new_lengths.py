"""Another length of a known kind of call is not lowered again, forward and backward."""

from __future__ import annotations

import pytest
import torch

import tilec
from tilec import specialise

PROGRAMS = {
    "elementwise": ("function (X[N], W[N]) -> (Y) { Y = X * W; }", lambda n: ((n,), (n,))),
    "softmax": (
        "function (X[N, F]) -> (Y) { M[n : N] = >(X[n, f]); E[n, f : N, F] = exp(X[n, f] - M[n]);"
        "S[n : N] = +(E[n, f]); Y[n, f : N, F] = E[n, f] / S[n]; }",
        lambda n: ((n, 32),),
    ),
    "layer norm": (
        "function (X[N, F], G[F]) -> (Y) { M[n : N] = mean(X[n, f]); D[n, f : N, F] = X[n, f] - M[n];"
        "V[n : N] = mean(D[n, f] * D[n, f]); Y[n, f : N, F] = D[n, f] * rsqrt(V[n] + 0.01) * G[f]; }",
        lambda n: ((n, 32), (32,)),
    ),
    "product": (
        "function (A[I, J], B[J, K]) -> (C) { C[i, k : I, K] = +(A[i, j] * B[j, k]); }",
        lambda n: ((n, 40), (40, 16)),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_lowered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_VERIFY", "1")
    source, shapes = PROGRAMS[name]
    f = tilec.compile(source)
    lowered = []

    def counting(*given):
        lowered.append(given)
        return lower(*given)

    lower = specialise.lower
    monkeypatch.setattr(specialise, "lower", counting)

    def call(n: int) -> None:
        inputs = [torch.randn(s, requires_grad=True) for s in shapes(n)]
        torch.autograd.grad(f(*inputs).sum(), inputs)

    for n in (64, 80, 96, 1000):
        call(n)
    before = len(lowered)
    for n in (112, 128, 144, 500, 2000):
        call(n)
    assert len(lowered) == before
