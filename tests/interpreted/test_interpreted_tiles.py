"""Recurrences whose states are blocks in registers, interpreted, against torch in float64."""

import os

import pytest
import torch
from support.allocated import shapes

import tilec
from tilec.backends.triton.recurrence import tiles
from tilec.language import parse

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

PROGRAMS = {  # each of whose values take one kernel
    "delta rule": """function (A[B, T], W[B, T], K[B, T, D], V[B, T, D], Q[B, T, D]) -> (O) {
            S[t, b, i, j : T, B, D, D] = A[b, t] * S[t - 1, b, i, j]
                + W[b, t] * (V[b, t, i] - A[b, t] * sum[k](S[t - 1, b, i, k] * K[b, t, k])) * K[b, t, j];
            O[b, t, i : B, T, D] = sum[j](S[t, b, i, j] * Q[b, t, j]);
        }""",
    "decays by column": """function (
        W[B, T, D], A[B, T, D], K[B, T, D], V[B, T, D], R[B, T, D], S0[B, D, D]
        ) -> (O, Last) {
            S[t, b, i, j : T, B, D, D] = S[t - 1, b, i, j] * exp(-exp(W[b, t, j])) + V[b, t, i] * K[b, t, j]
                - sum[k](S[t - 1, b, i, k] * K[b, t, k]) * K[b, t, j] * A[b, t, j] init S0[b, i, j];
            O[b, t, i : B, T, D] = sum[j](S[t, b, i, j] * R[b, t, j]);
            Last[b, i, j : B, D, D] = S[T - 1, b, i, j];
        }""",
    "products on both sides": """function (A[D, D], C[D, D], X[T, B, D, D]) -> (S) {
            S[t, n, p, q : T, B, D, D] = X[t, n, p, q] + sum[a, b](S[t - 1, n, a, b] * A[a, p] * C[b, q]);
        }""",
    "a matrix each step": """function (F[T, B, D, D], X[T, B, D, D]) -> (S) {
            S[t, n, i, j : T, B, D, D] = X[t, n, i, j] + sum[a](F[t, n, i, a] * S[t - 1, n, a, j]);
        }""",
    "covariances": """function (Q[D, D], F[T, B, D, D]) -> (P) {
            P[t, n, i, j : T, B, D, D] = Q[i, j] + sum[a, b](F[t, n, i, a] * P[t - 1, n, a, b] * F[t, n, j, b]);
        }""",
    "transposed states": """function (X[T, B, D, D]) -> (S) {
            S[t, b, i, j : T, B, D, D] = X[t, b, i, j] + 0.3 * S[t - 1, b, j, i]
                + 0.1 * sum[k](S[t - 1, b, i, k] * X[t, b, k, j]);
        }""",
    "gated network": """function (X[T, B, D], U[D, D], Z[D, D], H0[B, D]) -> (H) {
            H[t, b, i : T, B, D] = 0.5 * H[t - 1, b, i]
                + tanh(X[t, b, i] + sum[j](U[j, i] * H[t - 1, b, j])) * sigmoid(sum[j](Z[j, i] * H[t - 1, b, j]))
                init H0[b, i];
        }""",
    "from the end": """function (X[T, B, D], U[D, D]) -> (H) {
            H[t, b, i : T, B, D] = tanh(sum[j](H[t + 1, b, j] * U[j, i])) + X[t, b, i];
        }""",
    "hidden states": """function (X[T, B, D], U[D, D], H0[D]) -> (H) {
            H[t, b, i : T, B, D] = logsumexp[j](H[t - 1, b, j] + U[j, i]) + X[t, b, i] init H0[i];
        }""",
    "best path": """function (X[T, B, D], U[D, D]) -> (H) {
            H[t, b, i : T, B, D] = max[j](H[t - 1, b, j] + U[j, i]) + X[t, b, i];
        }""",
    "lanes before": """function (X[T, B, D], U[D, D]) -> (H) {
            H[t, b, i : T, B, D] = X[t, b, i] + 0.2 * sum[j](j < i ? H[t - 1, b, j] * U[j, i]);
        }""",
}
TOLERANCE = {"float32": 3e-6, "float64": 1e-12, "bfloat16": 4e-2}


def _called(name, dtype, **sizes):
    """The values and gradients of a program, those in float64 by torch, and the kernels of the values."""
    text = PROGRAMS[name]
    g = torch.Generator().manual_seed(0)
    dims = [tuple(sizes[d] for d in i.dims) for i in parse(text).inputs]
    exact = [torch.randn(s, generator=g, dtype=torch.float64) * 0.5 * max(sizes["D"], 1) ** -0.5 for s in dims]
    args = [x.to(getattr(torch, dtype)) for x in exact]
    found = []
    for backend, given in (("triton", args), ("torch", [x.double() for x in args])):
        f = tilec.compile(text, backend=backend)
        values = _all(f(*given))
        g = torch.Generator().manual_seed(1)
        cotangents = [torch.randn(y.shape, generator=g, dtype=torch.float64).to(y.dtype) for y in values]
        found.append((*values, *_all(f.grad()(*given, *cotangents))))
    return *found, tilec.compile(text, backend="triton").lower(*args, target="sm_90")


def _all(found):
    return found if isinstance(found, tuple) else (found,)


def _near(made, wanted, dtype):
    for x, y in zip(made, wanted, strict=True):
        scale = y.abs().amax().clamp(min=1e-30) if y.numel() else 1
        torch.testing.assert_close(x.double() / scale, y / scale, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("sizes", [(2, 3, 5), (3, 1, 4), (1, 2, 17)], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.one_in(3)
def test_values_and_gradients(name, sizes):
    made, wanted, lowered = _called(name, "float32", **dict(zip("BTD", sizes, strict=True)))
    _near(made, wanted, "float32")
    assert "debug_barrier" not in lowered.source() and len(lowered.kernels) == 1


@pytest.mark.parametrize("name", ["delta rule", "products on both sides", "gated network", "hidden states"])
def test_several_sets_in_a_program(name, monkeypatch):
    monkeypatch.setattr(tiles, "MULTIPROCESSORS", 3)
    made, wanted, lowered = _called(name, "float32", B=7, T=2, D=3)
    _near(made, wanted, "float32")
    assert "BM=" in lowered.source()


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize("name", ["delta rule", "covariances", "gated network"])
@pytest.mark.covering
def test_other_types(name, dtype):
    made, wanted, _ = _called(name, dtype, B=2, T=2, D=4)
    _near(made, wanted, dtype)


@pytest.mark.parametrize("name", ["products on both sides", "gated network"])
def test_products_by_dot(name, monkeypatch):
    """Of a matrix with a matrix of states, or with vectors of several sets."""
    monkeypatch.setattr(tiles, "MULTIPROCESSORS", 2)
    made, wanted, lowered = _called(name, "float32", B=2 if name == "products on both sides" else 36, T=2, D=16)
    _near(made, wanted, "float32")
    assert "tl.dot(" in lowered.source()


@pytest.mark.parametrize("sizes", [(2, 0, 4), (0, 2, 4), (2, 2, 1)], ids=str)
def test_no_steps_and_no_sets(sizes):
    made, wanted, _ = _called("delta rule", "float32", **dict(zip("BTD", sizes, strict=True)))
    _near(made, wanted, "float32")


def test_states_are_not_stored():
    """None by the forward pass, which may return the last of them; the gradient stores them and the cotangents."""
    text = PROGRAMS["delta rule"]
    f = tilec.compile(text, backend="triton")
    s = (8, 16), (8, 16), (8, 16, 32), (8, 16, 32), (8, 16, 32)
    specs = [tilec.spec(x) for x in s]
    assert (16, 8, 32, 32) not in shapes(f.lower(*specs, target="sm_90"))
    assert shapes(f.grad().lower(*specs, tilec.spec((8, 16, 32)), target="sm_90")).count((16, 8, 32, 32)) == 2
    given = [
        tilec.spec(tuple({"B": 2, "T": 3, "D": 4}[d] for d in i.dims))
        for i in parse(PROGRAMS["decays by column"]).inputs
    ]
    both = tilec.compile(PROGRAMS["decays by column"], backend="triton").lower(*given, target="sm_90")
    assert shapes(both) == [(2, 3, 4), (2, 4, 4)]


def test_few_warps_wait_for_each_other_at_each_sum():
    """Of a matrix of weights, whose sums threads add up more of; exponentials are taken by more threads."""
    for name, warps in (("from the end", 2), ("hidden states", 4)):
        sizes = {"T": 8, "B": 64, "D": 64}
        specs = [tilec.spec(tuple(sizes[d] for d in i.dims)) for i in parse(PROGRAMS[name]).inputs]
        source = tilec.compile(PROGRAMS[name], backend="triton").lower(*specs, target="sm_90").source()
        assert f"num_warps={warps}" in source
