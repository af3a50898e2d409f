"""Gradients of products of few factors: soft decision trees against float64."""

import os

import pytest
import torch

import tilec

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

TREES = """function (C[N, M, D], V[N, M, L]) -> (Y) {
    W[n, m, l : N, M, L] = prod(((l >> d) & 1) == 1 ? C[n, m, d] : 1 - C[n, m, d]);
    Y[n] = sum(W[n, m, l] * V[n, m, l]);
}"""


def test_values_of_products_of_all_factors_but_one() -> None:
    """Written out where a sum reads them, those of all factors too."""
    c, v = torch.rand(3, 2, 4), torch.randn(3, 2, 16)
    c[0, 0, 1], c[1, 1, :2] = 0, 1
    mine, exact = c.clone().requires_grad_(), c.double().requires_grad_()
    value = tilec.compile(TREES, backend="triton")(mine, v)
    value.sum().backward()
    bits = (torch.arange(16)[:, None] >> torch.arange(4)) & 1 == 1
    weights = torch.where(bits, exact[:, :, None], 1 - exact[:, :, None]).prod(-1)
    wanted = (weights * v).sum((1, 2))
    wanted.sum().backward()
    torch.testing.assert_close(value, wanted.float())
    torch.testing.assert_close(mine.grad, exact.grad.float())
