"""Chains that walk masked blocks and others in one loop, as Triton's interpreter runs them."""

from __future__ import annotations

import os

import pytest
import torch

import tilec

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1"
)

SOURCE = """function (Q[N, E], K[M, E], V[M, F]) -> (O) {{
    S[i, j : N, M] = sum(Q[i, e] * K[j, e]);
    L[i : N] = logsumexp({0} ? S[i, j]);
    O[i, f : N, F] = sum({0} ? exp(S[i, j] - L[i]) * V[j, f]);
}}"""


@pytest.mark.parametrize("guard", ["i - j >= 0", "(i - j >= 0) & (i - j < 100)"], ids=["causal", "window"])
def test_values_and_gradients(guard: str) -> None:
    torch.manual_seed(0)
    n = 512
    q, k, v, g = (torch.randn(n, 16, dtype=torch.bfloat16) for _ in range(4))
    f = tilec.compile(SOURCE.format(guard), backend="triton")
    tensors = [t.clone().requires_grad_() for t in (q, k, v)]
    out = f(*tensors)
    out.backward(g)
    exact = [t.double().requires_grad_() for t in (q, k, v)]
    wanted = tilec.compile(SOURCE.format(guard), backend="torch")(*exact)
    wanted.backward(g.double())
    lowered = f.lower(q, k, v)
    text = lowered.source()
    assert text.count("in tl.range(") == 1 and "\n        if t_" in text
    for found, x in zip((out, *(t.grad for t in tensors)), (wanted, *(t.grad for t in exact)), strict=True):
        assert (found.double() - x).norm() <= 0.01 * x.norm()
