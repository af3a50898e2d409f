"""Reads and sums under conditions on -|x|, which ptxas 12.8 takes for false where they are written so."""

from __future__ import annotations

import pytest
import torch

import tilec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PROGRAMS = (
    "function (X[N, M]) -> (O) { O[i : N] = +(X[i + k, min(k - 1, 1 - k)]), k < 3; }",
    "function (X[N, M]) -> (O) { O[(2*i - 2*j + 2)/3, min(j - 1, 1 - j) : N, M] = +(X[i, j]); }",
    "function (X[N, M]) -> (O) { O[i, j : N, N] = sum(X[-abs(i - j), k]); }",
    "function (X[N, M]) -> (O) { O[i : N] = sum(X[1 - abs(i - j), k] * X[j, k]); }",
    "function (X[N, M], K[N]) -> (O) { O[i : N] = sum(-abs(K[i]) >= -1 ? X[i, j]); }",
    "function (X[N, M], K[N]) -> (O) { O[i : N] = sum(min(K[i], -K[i]) < -1 ? X[i, j]); }",
    "function (X[N, M], K[N]) -> (O) { O[i : N] = sum(-1 < -max(K[j] - i, i - K[j]) ? X[i, j]); }",
    "function (X[N, M], K[N]) -> (O) { O[i : N] = sum(-abs(K[i]) == -2 ? X[i, j]); }",
)


@pytest.mark.parametrize(
    ("source", "dtype"),
    [(s, d) for s in PROGRAMS for d in (torch.int8, torch.int32, torch.int64)[: 3 if "K[N]" in s else 1]],
    ids=str,
)
def test_values_and_gradients(source: str, dtype: torch.dtype) -> None:
    f = tilec.compile(source)
    x = torch.arange(1.0, 50.0).reshape(7, 7)
    rest = [torch.tensor([-2, -1, 0, 1, 2, 3, torch.iinfo(dtype).min], dtype=dtype)] * (len(f.inputs) - 1)
    wanted = f(x, *rest)
    cotangent = torch.arange(2.0, 2.0 + wanted.numel()).reshape(wanted.shape)
    here = [x, *rest]
    there = [t.cuda() for t in here]
    assert torch.equal(f(*there).cpu(), wanted)
    gradient = f.grad(("X",))
    assert torch.equal(gradient(*there, cotangent.cuda()).cpu(), gradient(*here, cotangent))
