"""A mixture of experts, two for each token: products with the matrices that indices name, summed over these after."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.grouped_matmul import products

LAYER = """function (X[T, C], G[T, K], E[T, K], V[N, C, F], W[N, F, C]) -> (Y) {
    H[t, k, f : T, K, F] = relu(sum(X[t, c] * V[E[t, k], c, f]));
    Y[t, o : T, C] = +(G[t, k] * H[t, k, f] * W[E[t, k], f, o]);
}"""
BACKENDS = ["torch", *(["triton"] if os.environ.get("TRITON_INTERPRET") == "1" else [])]


def by_hand(x, g, e, v, w):
    y = torch.zeros_like(x)
    for n in range(len(v)):
        for k in range(e.shape[1]):
            own = e[:, k] == n
            y = y + torch.where(own[:, None], g[:, k : k + 1] * ((x @ v[n]).relu() @ w[n]), 0)
    return y


@pytest.mark.parametrize("backend", BACKENDS)
def test_layer_and_its_gradients(backend, monkeypatch):
    monkeypatch.setattr(products, "GAIN", 0.0)
    generator = torch.Generator().manual_seed(4)
    t, k, c, f, n = 40, 2, 17, 24, 3
    shapes = (t, c), (t, k), (n, c, f), (n, f, c)
    x, g, v, w = (torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes)
    e = torch.randint(-1, n + 1, (t, k), generator=generator)
    layer = tilec.compile(LAYER, backend=backend)
    y, wanted = layer(x, g, e, v, w), by_hand(x, g, e, v, w)
    torch.testing.assert_close(y, wanted)
    cotangent = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    found = torch.autograd.grad(y, (x, g, v, w), cotangent)
    for a, b in zip(found, torch.autograd.grad(wanted, (x, g, v, w), cotangent), strict=True):
        torch.testing.assert_close(a, b)


def test_sums_over_experts_come_after_their_products():
    specs = tilec.spec((512, 64)), tilec.spec((512, 2)), tilec.spec((512, 2), "int64")
    layer = tilec.compile(LAYER, backend="triton")
    lowered = layer.lower(*specs, tilec.spec((4, 64, 128)), tilec.spec((4, 128, 64)), target="sm_90")
    assert "Y_product[t, k, o : 512, 2, 64] = +(H[t, k, f] * W[E[t, k], f, o])" in str(lowered.stages["flat"])
    assert lowered.source().count("_grouped[") == 2 and lowered.source().count("sort_compared[") == 1


def test_gradients_by_gates_and_by_what_they_scale_share_a_product():
    given = tilec.spec((512, 64)), tilec.spec((512, 2)), tilec.spec((512, 2), "int64")
    given += tilec.spec((4, 64, 128)), tilec.spec((4, 128, 64)), tilec.spec((512, 64))
    lowered = tilec.compile(LAYER, backend="triton").grad(["X", "G", "V", "W"]).lower(*given, target="sm_90")
    flat = str(lowered.stages["flat"])
    assert "DH_product[t, k, f : 512, 2, 128] = +(DY[t, o] * W[E[t, k], f, o])" in flat
    assert flat.count("_product[t, k, f : ") == 1 and "DG_product" not in flat


def test_an_infinite_gate_of_no_expert_adds_nothing():
    x, g, e = torch.ones(20, 16), torch.ones(20, 2), torch.zeros(20, 2, dtype=torch.int64)
    g[:, 1], e[:, 1] = torch.inf, 7
    v, w = torch.ones(2, 16, 16), torch.ones(2, 16, 16)
    layer = tilec.compile(LAYER, backend="torch")
    torch.testing.assert_close(layer(x, g, e, v, w), torch.full((20, 16), 256.0))
    dx, dg = layer.grad(["X", "G"])(x, g, e, v, w, torch.ones(20, 16))
    torch.testing.assert_close(dx, torch.full((20, 16), 256.0))
    torch.testing.assert_close(dg, torch.tensor([[4096.0, 0.0]]).expand(20, 2))
