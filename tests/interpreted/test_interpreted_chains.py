"""Products of three operands and more, divided into pairs however small they are, against torch in float64."""

import os

import pytest
import torch

import tilec
from tilec.backends.common import pairs

CASES = {
    "matrices": (
        "A[I, J], B[J, K], C[K, L]",
        "O[i, l : I, L] = +(A[i, j] * B[j, k] * C[k, l])",
        ((5, 6), (6, 7), (7, 4)),
    ),
    "a bilinear form": (
        "X[B, I], W[K, I, J], Y[B, J]",
        "O[b, k : B, K] = +(X[b, i] * W[k, i, j] * Y[b, j])",
        ((9, 17), (3, 17, 18), (9, 18)),
    ),
    "experts": (
        "X[M, H], G[M, E], W[E, H, J]",
        "O[m, j : M, J] = +(G[m, e] * W[e, h, j] * X[m, h])",
        ((9, 5), (9, 3), (3, 5, 4)),
    ),
    "four operands, scaled": (
        "A[I, J], B[J, K], C[K, L], D[L]",
        "O[i : I] = +(A[i, j] * B[j, k] * C[k, l] * D[l] * 3)",
        ((2, 5), (5, 6), (6, 7), (7,)),
    ),
    "one column": (
        "A[I, J], B[J, K], C[K, L]",
        "O[i, l : I, L] = +(A[i, j] * B[j, k] * C[k, l])",
        ((1, 6), (6, 1), (1, 4)),
    ),
    "nothing to sum": (
        "A[I, J], B[J, K], C[K, L]",
        "O[i, l : I, L] = +(A[i, j] * B[j, k] * C[k, l])",
        ((2, 0), (0, 3), (3, 4)),
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1")
@pytest.mark.parametrize("name", CASES)
def test_pairs(monkeypatch, name):
    monkeypatch.setattr(pairs, "GAIN", 0.0)
    inputs, statement, shapes = CASES[name]
    ours, theirs = (
        tilec.compile(f"function ({inputs}) -> (O) {{ {statement}; }}", backend=b) for b in ("triton", "torch")
    )
    given = [torch.randn(s) for s in shapes]
    wide = [t.double() for t in given]
    if name not in ("nothing to sum", "one column"):
        assert len(ours.lower(*given).kernels) > 1
    want = theirs(*wide)
    torch.testing.assert_close(ours(*given).double(), want, rtol=1e-5, atol=1e-4)
    cotangent = torch.randn(want.shape)
    gradients = ours.grad()(*given, cotangent), theirs.grad()(*wide, cotangent.double())
    for mine, exact in zip(*gradients, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.one_in(2)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1")
@pytest.mark.parametrize("name", CASES)
def test_what_follows_pairs(monkeypatch, name):
    """An elementwise statement after the sum leaves it divided."""
    monkeypatch.setattr(pairs, "GAIN", 0.0)
    inputs, statement, shapes = CASES[name]
    source = f"function ({inputs}) -> (U) {{ {statement}; U = relu(O) - 2 * O + 1; }}"
    ours, theirs = (tilec.compile(source, backend=b) for b in ("triton", "torch"))
    given = [torch.randn(s) for s in shapes]
    if name not in ("nothing to sum", "one column"):
        assert len(ours.lower(*given).kernels) > 1
    torch.testing.assert_close(ours(*given).double(), theirs(*(t.double() for t in given)), rtol=1e-5, atol=1e-4)


def test_a_product_of_three_matrices_rides_its_factor():
    source = "function (X[N, D], A[D, R], B[R, F], S) -> (Y) { Y[n, f : N, F] = S * sum(X[n, d] * A[d, r] * B[r, f]); }"
    specs = (tilec.spec(s) for s in ((4096, 1024), (1024, 16), (16, 1024), ()))
    lowered = tilec.compile(source).lower(*specs, backend="triton", target="sm_90")
    assert [k.statements for k in lowered.kernels if not k.name.endswith("packed0_kernel")][-1] == ("Y_sum", "Y")
    assert len(lowered.kernels) > 1
