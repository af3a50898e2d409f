"""Products with fewer rows, columns or terms than tensor cores take at once, against torch in float64."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.matmul import dot

CONVOLUTION = "O[n, y, x, o : N, H - 2, W - 2, D] = +(I[n, y + j, x + i, c] * K[o, j, i, c])"
CASES = {
    "two columns": ("A[I, K], B[K, J]", "O[i, j : I, J] = +(A[i, k] * B[k, j])", ((40, 33), (33, 2))),
    "few of everything": ("A[I, K], B[K, J]", "O[i, j : I, J] = +(A[i, k] * B[k, j])", ((5, 6), (6, 7))),
    "three channels": ("I[N, H, W, C], K[D, 3, 3, C]", CONVOLUTION, ((2, 7, 6, 3), (5, 3, 3, 3))),
    "stride 2 of three channels": (
        "I[N, H, W, C], K[D, 3, 3, C]",
        "O[n, y, x, o : N, H/2, W/2, D] = +(I[n, 2*y + j - 1, 2*x + i - 1, c] * K[o, j, i, c])",
        ((2, 8, 6, 3), (5, 3, 3, 3)),
    ),
    "groups of eight": (
        "I[N, W, G, C], K[G, D, 3, C]",
        "O[n, x, g, o : N, W, G, D] = +(I[n, x + i - 1, g, c] * K[g, o, i, c])",
        ((2, 9, 3, 8), (3, 8, 3, 8)),
    ),
    "a condition": ("A[I, K], B[K, J]", "O[i, j : I, J] = +(i - k >= 0 ? A[i, k] * B[k, j])", ((9, 9), (9, 3))),
}


@pytest.mark.one_in(2)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.covering
def test_narrow_products(monkeypatch, name, dtype):
    monkeypatch.setattr(dot, "TERMS", 1.0)
    inputs, statement, shapes = CASES[name]
    ours, theirs = (
        tilec.compile(f"function ({inputs}) -> (O) {{ {statement}; }}", backend=b) for b in ("triton", "torch")
    )
    given = [torch.randn(s, dtype=dtype) for s in shapes]
    wide = [t.double() for t in given]
    want = theirs(*wide)
    assert any("tl.dot" in k.source for k in ours.lower(*given).kernels)
    torch.testing.assert_close(ours(*given).double(), want, rtol=1e-5, atol=1e-4)
    cotangent = torch.randn(want.shape, dtype=dtype)
    gradients = ours.grad()(*given, cotangent), theirs.grad()(*wide, cotangent.double())
    for mine, exact in zip(*gradients, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1")
def test_infinities_stay_where_they_are(monkeypatch):
    monkeypatch.setattr(dot, "TERMS", 1.0)
    i, k = torch.randn(1, 6, 5, 3), torch.randn(2, 3, 3, 3)
    i[0, 2, 2, 1], i[0, 5, 4, 0] = float("inf"), float("nan")
    f, g = (tilec.compile(f"function (I[N, H, W, C], K[D, 3, 3, C]) -> (O) {{ {CONVOLUTION}; }}", backend=b)
            for b in ("triton", "torch"))  # fmt: skip
    torch.testing.assert_close(f(i, k), g(i.double(), k.double()).float(), rtol=1e-5, atol=1e-4, equal_nan=True)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1")
@pytest.mark.parametrize("cast", ["float16", "float32"])
def test_integers_of_8_bits_beside_another_16_bit_type(monkeypatch, cast):
    """Their product is a float32 one, of numbers that 16 bits hold."""
    monkeypatch.setattr(dot, "TERMS", 1.0)
    source = f"function (X[M, K], W[N, K]) -> (Y) {{ Y[m, n : M, N] = +(X[m, k] * {cast}(W[n, k])); }}"
    x, w = torch.randn(5, 33).bfloat16(), torch.randint(-128, 128, (18, 33), dtype=torch.int8)
    f = tilec.compile(source, backend="triton")
    assert any("tl.bfloat16" in k.source and "tl.dot" in k.source for k in f.lower(x, w).kernels)
    torch.testing.assert_close(f(x, w).double(), x.double() @ w.double().T, rtol=1e-5, atol=1e-4)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("terms", [1100, 2], ids=["split", "whole"])
def test_what_follows_a_split_sum_is_computed_where_its_parts_are_added_up(terms, dtype):
    text = """function (X[N, K], W[J, K], S[J], R[N, J]) -> (Y) {
        P[n, j : N, J] = sum(X[n, k] * W[j, k]); Y = relu(P * S) - R; }"""
    f = tilec.compile(text, backend="triton")
    x, w, s, r = (torch.randn(shape, dtype=dtype) for shape in ((17, terms), (37, terms), (37,), (17, 37)))
    launched = f.lower(x, w, s, r).source()
    assert launched.count("[(") == (2 if terms > 2 else 1) and ("P_parts" in launched) == (terms > 2)
    want = torch.relu((x.double() @ w.double().T).to(dtype).double() * s.double()) - r.double()
    torch.testing.assert_close(f(x, w, s, r).double(), want, rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-2)
