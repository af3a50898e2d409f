"""Bands of products, all of which tensor cores compute, against torch in float64."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.schedule import banded

CASES = {
    "a correlation volume": (
        "F[B, Y, X, C], G[B, Y, X, C]",
        "V[b, y, x, v, u : B, Y, X, 3, 5] = +(F[b, y, x, c] * G[b, y + v - 1, x + u - 2, c])",
        ((2, 17, 18, 20), (2, 17, 18, 20)),
    ),
    "steps of two": (
        "F[N, C], G[M, C]",
        "V[i, d : N, 7] = +(F[i, c] * G[i + 2*d - 6, c])",
        ((33, 16), (33, 16)),
    ),
    "turned round, the band first": (
        "F[C, N], G[C, M]",
        "V[d, i : 7, N] = +(G[c, 3 + i - d] * F[c, i])",
        ((16, 33), (16, 29)),
    ),
    "every second row": (
        "F[B, N, C], G[B, M, C]",
        "V[b, i, d : B, N, 9] = +(F[b, i, c] * G[b, 2*i + d, c])",
        ((2, 19, 24), (2, 40, 24)),
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1")
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.covering
def test_bands(monkeypatch, name, special):
    monkeypatch.setattr(banded, "TERMS_OF_BANDS", 1.0)
    inputs, statement, shapes = CASES[name]
    source = f"function ({inputs}) -> (V) {{ {statement}; }}"
    g = torch.Generator().manual_seed(0)
    given = [torch.randn(s, generator=g).bfloat16() for s in shapes]
    if special:
        given[0].view(-1)[37], given[1].view(-1)[41] = float("inf"), float("nan")
    f = tilec.compile(source, backend="triton")
    text = f.lower(*given).source()
    assert "V_products" in text and "tl.dot" in text
    want = tilec.compile(source, backend="torch")(*(t.double() for t in given))
    torch.testing.assert_close(f(*given).double(), want, rtol=1e-2, atol=1e-2, equal_nan=True)
