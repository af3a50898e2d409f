"""Gradients of attention with scores that are stored: broken sticks, heads that are mixed, positions in differences."""

from __future__ import annotations

import os

import pytest
import torch

import tilec

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="interpreted where TRITON_INTERPRET=1"
)

STICKS = """function (Q[B, N, D], K[B, N, D], V[B, N, D]) -> (O) {
    Z[b, i, j] = sum(Q[b, i, d] * K[b, j, d]) * rsqrt(1.0 * D);
    Rest[b, i, j : B, N, N] = sum[k](k > j & k < i ? softplus(Z[b, i, k]));
    O[b, i, e] = sum[j](j < i ? exp(-softplus(-Z[b, i, j]) - Rest[b, i, j]) * V[b, j, e]);
}"""
MIXED = """function (Q[B, G, N, D], K[B, G, N, D], V[B, H, N, D], M[H, G]) -> (O) {
    S[b, h, i, j] = sum[g](M[h, g] * sum[d](Q[b, g, i, d] * K[b, g, j, d])) * rsqrt(1.0 * D);
    P[b, h, i, j] = exp(S[b, h, i, j] - logsumexp(S[b, h, i, m]));
    O[b, h, i, d] = sum[j](P[b, h, i, j] * V[b, h, j, d]);
}"""
PLACES = """function (Q[B, N, D], K[B, M, D], V[B, M, D], P[R, D]) -> (O) {
    U[b, j, r : B, M, R] = sum(K[b, j, d] * P[r, d]);
    S[b, i, j] = i + 3 >= j & i - j + 3 < R ? sum(Q[b, i, d] * K[b, j, d]) + U[b, j, i - j + 3] : -inf;
    L[b, i] = logsumexp(S[b, i, j]);
    O[b, i, d] = sum(exp(S[b, i, j] - L[b, i]) * V[b, j, d]);
}"""
SHAPES = {
    STICKS: [(2, 37, 20)] * 3,
    MIXED: [(2, 4, 33, 16), (2, 4, 33, 16), (2, 3, 33, 16), (3, 4)],
    PLACES: [(2, 37, 16), (2, 53, 16), (2, 53, 16), (29, 16)],
}


def kernels(text: str, shapes: list[tuple[int, ...]], dtype: str) -> list[tuple[str, ...]]:
    """The statements of each kernel of a gradient, whose output has the first input's shape."""
    f = tilec.compile(text)
    given = [tilec.spec(s, dtype) for s in (*shapes, shapes[0])]
    return [k.statements for k in f.grad().lower(*given, target="sm_90").kernels]


def test_a_masked_product_is_made_once_and_stands_beside_its_factors() -> None:
    made = kernels(STICKS, [(16, 1024, 64)] * 3, "bfloat16")
    assert any({"DRest", "DZ", "DZ_1_total"} <= {*statements} for statements in made)


def test_sums_read_weights_as_their_kernel_rounds_them() -> None:
    shapes = [(2, 8, 512, 64)] * 3 + [(8, 8)]
    made = kernels(MIXED, shapes, "bfloat16")
    assert any({"P", "P_rounded", "DS_sum"} <= {*statements} for statements in made)


def test_what_goes_to_differences_is_stored_in_16_bits() -> None:
    f = tilec.compile(PLACES)
    shapes = [(16, 512, 64), (16, 512, 64), (16, 512, 64), (512, 64)]
    source = f.grad().lower(*(tilec.spec(s, "bfloat16") for s in (*shapes, shapes[0])), target="sm_90").source()
    assert "DU = torch.empty((16, 512, 512), dtype=torch.bfloat16" in source


@interpreted
@pytest.mark.one_in(4)
@pytest.mark.parametrize("text", SHAPES, ids=["sticks", "mixed", "places"])
def test_values_and_gradients(text: str) -> None:
    """Of extents that are no multiples of blocks; rows of the last text see nothing."""
    random = torch.Generator().manual_seed(0)
    given = [torch.randn(s, generator=random, requires_grad=True) for s in SHAPES[text]]
    exact = [t.detach().double().requires_grad_() for t in given]
    found, wanted = tilec.compile(text, backend="triton")(*given), tilec.compile(text, backend="torch")(*exact)
    cotangent = torch.randn(wanted.shape, generator=random)
    gradients = torch.autograd.grad(found, given, cotangent), torch.autograd.grad(wanted, exact, cotangent.double())
    for x, y in zip((found, *gradients[0]), (wanted, *gradients[1]), strict=True):
        assert (x - y).norm() <= 1e-5 * y.norm()
