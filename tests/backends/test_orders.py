"""Products of products, across statements: in the order that takes least time."""

from __future__ import annotations

import pytest
import torch

import tilec

NARROW = (2048, 8), (8, 2048), (512, 2048)
READS = "W[i, j] = sum(A[i, k] * B[k, j]);"
CASES = {  # text, sizes of its inputs, whether another order is chosen at these
    "a narrow matrix by a matrix": (f"{READS} Y[n, j] = sum(X[n, i] * W[i, j]);", NARROW, True),
    "read twice": (
        f"{READS} Y[n, j] = sum(X[n, i] * W[i, j]); Z[i] = sum(W[i, j]);", NARROW, True),
    "written in one": (
        "Y[n, j] = tanh(sum[i](X[n, i] * sum[k](A[i, k] * B[k, j])));", ((512, 2048), (2048, 8), (8, 2048)), True),
    "wide": (f"{READS} Y[n, j] = sum(X[n, i] * W[i, j]);", ((512, 512), (512, 512), (512, 512)), False),
    "also read by an element": (
        f"{READS} Y[n, j] = sum(X[n, i] * W[i, j]); Z[i, j] = exp(W[i, j]);", NARROW, False),
    "also an output": (
        f"function (A[I, K], B[K, J], X[N, I]) -> (W, Y) {{ {READS} Y[n, j] = sum(X[n, i] * W[i, j]); }}",
        NARROW, False),
    "of pairs in order": (
        f"{READS} Y[n, j] = +(X[n, i] * W[i, j]), j - i < 2048;", NARROW, False),
    "squared": (f"{READS} Y[n, j] = sum(W[i, j] * W[i, n]);", ((2048, 8), (8, 2048)), False),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_plans(name: str) -> None:
    source, shapes, other = CASES[name]
    lowered = tilec.compile(source).lower(*map(tilec.spec, shapes), target="sm_90")
    assert ("_pair" in str(lowered.source())) == other


def test_attention_without_a_softmax() -> None:
    """Keys meet values first, also for the normaliser, which is a sum of wider elements."""
    f = tilec.compile("""function (Q[B, N, D], K[B, N, D], V[B, N, D]) -> (O) {
        S[b, i, j] = sum(Q[b, i, d] * K[b, j, d]); Z[b, i] = sum(S[b, i, j]);
        O[b, i, d : B, N, D] = sum(S[b, i, j] * V[b, j, d]) / Z[b, i]; }""")
    for dtype in ("bfloat16", "float32"):
        assert f.lower(*[tilec.spec((8, 4096, 64), dtype)] * 3, target="sm_90").cost().flops < 1e9
    assert f.lower(*[tilec.spec((8, 4096, 64), "float16")] * 3, target="sm_90").cost().flops > 1e10


def test_gradients() -> None:
    """Of what is recorded, in another order."""
    source = f"function (A[I, K], B[K, J], X[N, I]) -> (Y, Z) {{ {CASES['read twice'][0]} }}"
    g = torch.Generator().manual_seed(0)
    given = [
        torch.rand(s, generator=g, dtype=torch.float64, requires_grad=True) for s in ((2048, 3), (3, 2048), (9, 2048))
    ]
    y, z = tilec.compile(source)(*given)
    w = given[0] @ given[1]
    wanted = given[2] @ w, w.sum(1)
    torch.testing.assert_close((y, z), wanted)
    cots = torch.rand(9, 2048, dtype=torch.float64), torch.rand(2048, dtype=torch.float64)
    torch.testing.assert_close(torch.autograd.grad((y, z), given, cots), torch.autograd.grad(wanted, given, cots))
