"""Where the device may not be asked whether a fast way is sure, the exact one is taken; the answers are the same."""

from __future__ import annotations

import pytest
import torch

import tilec
from tilec.backends.torch import certainty, exponentials, runtime

PROGRAMS = {
    "log product": ("C[i, j] = logsumexp(A[i, k] + B[k, j])", ((5, 7), (7, 6))),
    "padded convolution": (
        "function (X[N, C], K[R, C, D]) -> (O) { O[n, d : N, D] = +(X[n + r - 1, c] * K[r, c, d]); }",
        ((9, 4), (3, 4, 5)),
    ),
    "masked product": (
        "function (A[N, K], B[K, M]) -> (O) { O[i, j : N, M] = +(A[i, k] * B[k, j]), i - k < 3; }",
        ((8, 8), (8, 5)),
    ),
    "scan": (
        "function (A[T], X[T]) -> (H) { H[t : T] = A[t] * H[t - 1] + X[t]; }",
        ((600,), (600,)),
    ),
    "log recurrence": (
        "function (A[K, K2], X[T, K]) -> (H) { H[t, j : T, K] = logsumexp(H[t - 1, i] + A[i, j]) + X[t, j]; }",
        ((4, 4), (6, 4)),
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_same_answers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, shapes = PROGRAMS[name]
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    asked = []

    def results() -> list[torch.Tensor]:
        given = [t.clone().requires_grad_() for t in inputs]
        y = tilec.compile(source)(*given)
        return [y.detach(), *torch.autograd.grad(y.sin().sum(), given)]

    expected = results()
    for module in (certainty, exponentials, runtime):
        monkeypatch.setattr(module, "askable", lambda t: asked.append(t))
    for found, wanted in zip(results(), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    assert asked, "the program asks nothing"
