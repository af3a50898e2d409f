"""Products of which a guard on values clears an operand that it has more variables than: gradients through a relu."""

from __future__ import annotations

import os

import pytest
import torch

import tilec

SOURCE = """function (P[N, H], V[H], D[N], W[K, H], X[N, K]) -> (DX, DW) {
    DX[n, k : N, K] = sum(P[n, h] > 0 ? D[n] * V[h] * W[k, h]);
    DW[k, h : K, H] = sum(P[n, h] > 0 ? D[n] * V[h] * X[n, k]);
}"""


def test_both_gradients_are_products() -> None:
    shapes = ((65536, 32), (32,), (65536,), (48, 32), (65536, 48))
    found = tilec.compile(SOURCE).lower(*map(tilec.spec, shapes), target="sm_90").kernels
    assert [k.statements for k in found if k.name.endswith("_dot")] == [("DX",), ("DW",)]


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="interpreted where TRITON_INTERPRET=1 is set")
def test_values() -> None:
    """Also of a value that is not finite where the guard leaves it out."""
    random = torch.Generator().manual_seed(0)
    p, v, d, w, x = (torch.randn(s, generator=random) for s in ((33, 16), (16,), (33,), (17, 16), (33, 17)))
    p[3] = -1
    x[3, 5] = w[2, 4] = float("nan")
    p[:20, 4] = -1
    found = tilec.compile(SOURCE, backend="triton")(p, v, d, w, x)
    wanted = tilec.compile(SOURCE)(*(t.double() for t in (p, v, d, w, x)))
    for y, z in zip(found, wanted, strict=True):
        torch.testing.assert_close(y.double(), z, atol=1e-4, rtol=1e-4, equal_nan=True)
    assert found[1].isfinite().all() and found[0][:20].isfinite().all() and not found[0].isfinite().all()
