"""Integers and computed operands inside of floating products: integers wrap and truncate where the text says so, and
what is computed beyond the end of a tensor counts for nothing."""

import os

import numpy as np
import pytest
import torch

import tilec
from tilec.backends.common import pairs

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

LONG_ROW = "function (X[I, K], P[K], Q[K]) -> (O) {{ M[i : I] = max(X[i, k]); O[i : I] = +(exp(X[i, k] - M[i]) {0}); }}"
SHARED = "function (X[I, K], P[I], Q[I]) -> (O) {{ M[i : I] = max(X[i, k]); O[i : I] = +(exp(X[i, k] - M[i]) {0}); }}"
CHAIN = """function (Q[I, E], K[J, E], V[J, F], A[J], B[{0}]) -> (O) {{
    S[i, j : I, J] = +(Q[i, e] * K[j, e] * {1});
    M[i : I] = max(S[i, j]);
    W[i, j : I, J] = exp(S[i, j] - M[i]);
    O[i, f : I, F] = +(W[i, j] * {2} V[j, f]);
}}"""


def floats(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def integers(n, seed):
    return torch.randint(1, 100, (n,), generator=torch.Generator().manual_seed(seed)).to(torch.int8)


def agree(source, *inputs):
    found = tilec.compile(source, backend="triton")(*inputs)
    wanted = tilec.interpret(source, *(x.double().numpy() if x.is_floating_point() else x.numpy() for x in inputs))
    np.testing.assert_allclose(found.double().numpy(), wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("weights", ["* P[k] * Q[k]", "/ P[k]", "* (P[k] / Q[k])", "/ P[k] / Q[k]"])
def test_weights_of_a_long_row(weights):
    agree(LONG_ROW.format(weights), floats(2, 20000), integers(20000, 1), integers(20000, 2))


def test_factors_that_rows_share():
    agree(SHARED.format("* P[i] * Q[i]"), floats(3, 20000), integers(3, 1), integers(3, 2))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("of", "scores", "weights"),
    [
        ("J", "0.1", "(A[j] / B[j]) *"),
        ("J", "0.1", "A[j] * B[j] *"),
        ("I", "0.02 * (A[j] / B[i])", ""),
        ("I", "(A[j] * B[i]) * 0.001", ""),
        ("J", "A[j] * 0.002 * B[j]", "1 / A[j] / B[j] *"),
    ],
)
def test_scores_and_weights_of_a_chain(of, scores, weights):
    agree(CHAIN.format(of, scores, weights), *(floats(128, 64) for _ in "QKV"), integers(128, 1), integers(128, 2))


@pytest.mark.parametrize(
    ("left", "right"), [("1 / Q[i, e]", "K[j, e]"), ("Q[i, e]", "log(K[j, e])"), ("rsqrt(Q[i, e])", "exp(K[j, e]) / 2")]
)
@pytest.mark.parametrize("value", ["V[j, f]", "1 / V[j, f]"])
@pytest.mark.covering
def test_operands_that_are_computed_end_where_their_tensors_do(left, right, value):
    """0 times what 1 / 0 is would be no number."""
    source = f"""function (Q[I, E], K[J, E], V[J, F]) -> (O) {{
        S[i, j : I, J] = +({left} * {right} * 0.1);
        M[i : I] = max(S[i, j]);
        W[i, j : I, J] = exp(S[i, j] - M[i]);
        O[i, f : I, F] = +(W[i, j] * ({value}));
    }}"""
    agree(source, *(floats(n, 70).abs() + 0.5 for n in (130, 141)), floats(141, 50).abs() + 0.5)


@pytest.mark.parametrize("recorded", [False, True])
def test_integers_that_meet_in_a_pair(recorded, monkeypatch):
    monkeypatch.setattr(pairs, "GAIN", 0.0)  # however small the product is
    source = """function (X[I, J], P[J, K], Q[J, K], Y[K, L]) -> (O) {
        O[i, l : I, L] = +(X[i, j] * P[j, k] * Q[j, k] * Y[k, l]);
    }"""
    x, y = floats(17, 18), floats(18, 20)
    p, q = (integers(18 * 18, seed).reshape(18, 18) for seed in (1, 2))
    found = tilec.compile(source, backend="triton")(x.requires_grad_(recorded), p, q, y)
    weights = p.double() * q.double() @ y.double()
    torch.testing.assert_close(found.detach().double(), x.detach().double() @ weights, rtol=1e-4, atol=1e-1)
    if recorded:
        (gradient,) = torch.autograd.grad(found.sum(), [x])
        torch.testing.assert_close(gradient.double(), weights.sum(1).expand(17, 18), rtol=1e-4, atol=1e-1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["index", "int32", "int64"])
def test_integers_past_16_bits_that_meet_in_a_pair(dtype, kind, monkeypatch):
    """float16 ends at 65504: elements that are 0 where an integer is greater would be no numbers."""
    monkeypatch.setattr(pairs, "GAIN", 0.0)
    x, y, z = (floats(*shape).abs().to(dtype) for shape in ((17, 18), (18, 19), (19, 20)))
    x = x * 1e-4
    x[:, 5:] = 0
    if kind == "index":
        p, q, given = 9000 * torch.arange(18), torch.arange(19), ()
        factors, declared = "9000 * j * k", ""
    else:
        p, q = 7000 * torch.arange(18, dtype=getattr(torch, kind)), torch.arange(19, dtype=getattr(torch, kind))
        factors, declared, given = "P[j] * Q[k]", ", P[J], Q[K]", (p, q)
    source = f"""function (X[I, J], Y[J, K], Z[K, L]{declared}) -> (O) {{
        O[i, l : I, L] = +(X[i, j] * Y[j, k] * Z[k, l] * {factors});
    }}"""
    found = tilec.compile(source, backend="triton")(x, y, z, *given)
    wanted = (x.double() * p) @ (y.double() * q) @ z.double()
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, rtol=4 * torch.finfo(dtype).eps, atol=0.0)


TRUTHS = {
    "both": "O[i, j] = sum(A[i, k] & B[j, k] ? 3 : 0)",
    "triangles": "O[i] = sum(A[i, j] & B[j, k] & A[i, k] ? 1 : 0)",
    "comparisons": "O[i, j] = sum(X[i, k] > 0 & Y[j, k] < 0.5 ? -2 : 0)",
    "beside the diagonal": "O[i, j] = sum(A[i, k] & B[j, k] & i != j ? 1 : 0)",
    "casts": "O[i, j] = sum(int64(A[i, k]) * int64(I[k, j]))",
    "three": "O[i, j] = sum(int64(I[i, k]) * int64(A[k, j]) * int64(I[i, j]))",
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("n", [1, 17, 40])
@pytest.mark.parametrize("name", TRUTHS)
def test_truths_are_multiplied(name, n):
    generator = torch.Generator().manual_seed(n)
    given = {c: torch.rand(n, n, generator=generator) < 0.5 for c in "AB"}
    given |= {c: torch.randn(n, n, generator=generator) for c in "XY"}
    given["I"] = torch.randint(-128, 128, (n, n), generator=generator).to(torch.int8)
    f = tilec.compile(TRUTHS[name], backend="triton")
    inputs = [given[c] for c in f.inputs]
    np.testing.assert_array_equal(f(*inputs).numpy(), tilec.interpret(TRUTHS[name], *(t.numpy() for t in inputs)))
    large = f.lower(*(tilec.spec((512, 512), str(t.dtype)[6:]) for t in inputs), target="sm_90")
    assert any("tl.dot(" in k.source for k in large.kernels)
