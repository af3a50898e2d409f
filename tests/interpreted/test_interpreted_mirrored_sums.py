"""Both sums of a gradient by an operand that a product has twice are one."""

from __future__ import annotations

import os

import pytest
import torch

import tilec
from tilec.backends.common.operands import mirrored

COVARIANCE = """function (X[N, C]) -> (G) {
    M[c] = mean(X[n, c]);
    G[c, d : C, C] = sum((X[n, c] - M[c]) * (X[n, d] - M[d]));
}"""
PAIRS = "function (E[B, N, D], W[N, N]) -> (Y) { Y[b] = sum(i < j ? W[i, j] * E[b, i, d] * E[b, j, d]); }"


def test_a_covariances_gradient_is_one_product() -> None:
    specs = tilec.spec((16384, 512)), tilec.spec((512, 512))
    found = tilec.compile(COVARIANCE).grad().lower(*specs, target="sm_90").kernel_costs()
    products = [k.outputs for k in found if k.flops > 2 * 16384 * 512 * 500]
    assert len(products) == 1, products


@pytest.mark.parametrize(("text", "shapes"), [(COVARIANCE, [(5, 4)]), (PAIRS, [(3, 4, 2), (4, 4)])])
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="interpreted where TRITON_INTERPRET=1 is set")
def test_values(text: str, shapes: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrored, "_LEAST_USES", 0)
    monkeypatch.setattr(mirrored, "PRODUCTS", {"float32": 1.0})
    random = torch.Generator().manual_seed(0)
    inputs = [torch.randn(s, generator=random) for s in shapes]
    f, exact = tilec.compile(text, backend="triton"), tilec.compile(text)
    d = torch.randn(exact(*inputs).shape, generator=random)
    grad = f.grad("XE"[text is PAIRS])
    assert any("operand" in s.output for s in grad.lower(*inputs, d).stages["grouped"].statements)
    wanted = exact.grad("XE"[text is PAIRS])(*(t.double() for t in inputs), d.double())
    torch.testing.assert_close(grad(*inputs, d).double(), wanted, atol=1e-5, rtol=1e-5)
