"""Scatters to few of a large tensor's elements, interpreted: the places that occur are walked, not all there are."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.scatter import exact, scatter, sort

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

POINTS, PLACES = 60, 5000
CASES = {
    "rows": "Y[T[m], d : N, D] = +(X[m, d]);",
    "rows that read theirs": "Y[T[m], d : N, D] = +(X[m, d] * Z[T[m], d]);",
    "greatest": "Y[T[m], d : N, D] = >(X[m, d]);",
    "products": "Y[T[m], d : N, D] = *(X[m, d]);",
    "kept by default": "Y[T[m], d : N, D] = +(X[m, d]) default Z;",
    "an epilogue": "G[T[m], d : N, D] = +(X[m, d]); Y[n, d : N, D] = 2*G[n, d] - exp(Z[n, d]);",
    "two, added up": "G[T[m], d : N, D] = +(X[m, d]); H[T[m] - 1, d : N, D] = +(X[m, d]); Y = G + H + Z;",
}
DEFAULT = "rows that read theirs", "an epilogue"
GROUPS = {  # what kernels of rows of Z compute of a scatter
    "a gradient": "Y[n, v] = G[n, v] + exp(Z[n, v] - L[n]) * P[n];",
    "what others read as well": "Q[n, v] = G[n, v] - exp(Z[n, v] - L[n]); Y[n, v] = Q[n, v] * sum(Q[n, w]);",
    "of a statistic that is not": "R[n] = sum(Z[n, v] * Z[n, v]); Y[n, v] = G[n, v] - Z[n, v] / R[n];",
}


@pytest.fixture
def sparse(monkeypatch):
    monkeypatch.setattr(scatter, "FEW_AT_AN_ELEMENT", 0)
    monkeypatch.setattr(sort, "FEWEST_SPARSE", 4096)


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in DEFAULT else pytest.mark.slow) for c in CASES])
def test_places_that_occur(sparse, monkeypatch, case):
    monkeypatch.setattr(sort, "FEW", 16 if case == "an epilogue" else 4096)
    torch.manual_seed(0)
    x, z, t = torch.randn(POINTS, 3), torch.randn(PLACES, 3), torch.randint(-5, PLACES + 5, (POINTS,))
    t[10:50] = 7  # more than a piece
    _agree(f"function (X[M, D], T[M], Z[N, D]) -> (Y) {{ {CASES[case]} }}", x, t, z)


@pytest.mark.parametrize("case", GROUPS)
def test_places_that_a_group_reads(sparse, case):
    torch.manual_seed(0)
    n, v, k = 5, 1000, 7
    w, t, z, p = torch.randn(n, k), torch.randint(-2, v + 2, (n, k)), torch.randn(n, v), torch.randn(n)
    t[2] = 3
    source = f"""function (W[N, K], T[N, K], Z[N, V], P[N]) -> (Y) {{
        L[n] = logsumexp(Z[n, v]);
        G[n, T[n, k] : N, V] = +(W[n, k] * P[n]);
        {GROUPS[case]}
    }}"""
    _agree(source, w, t, z, p)


def test_the_gradient_of_elements_that_are_read_again(sparse):
    torch.manual_seed(0)
    x, t, d = torch.randn(6, 800), torch.randint(0, 800, (6, 9)), torch.randn(6, 9)
    source = """function (X[N, V], T[N, K]) -> (S) {
        L[n] = logsumexp(float32(X[n, v])); S[n, k : N, K] = float32(X[n, T[n, k]]) - L[n];
    }"""
    f, exact = (tilec.compile(source, backend=b).grad("X") for b in ("triton", "torch"))
    for dtype, limit in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        found = f(x.to(dtype), t, d)
        torch.testing.assert_close(found.double(), exact(x.to(dtype).double(), t, d.double()), rtol=limit, atol=limit)


def _agree(source, *given):
    f, exact = (tilec.compile(source, backend=b) for b in ("triton", "torch"))
    found, again = f(*given), f(*given)
    wanted = exact(*(x.double() if x.is_floating_point() else x for x in given))
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(found, again)
    assert "default" in source or "sort_runs" in [k.name for k in f.lower(*given).kernels]
    return f


@pytest.mark.one_in(2)
@pytest.mark.parametrize("number", ["1.0", "3", "0.5", "600.0"])
def test_sums_of_one_number(monkeypatch, number):
    monkeypatch.setattr(exact, "FEWEST_ADDED", 64)
    monkeypatch.setattr(scatter, "FEW_AT_AN_ELEMENT", 0)
    f, wanted = (
        tilec.compile(f"function (T[M], Z[N]) -> (C) {{ C[T[m] : N] = +(float32({number})); }}", backend=b)
        for b in ("triton", "torch")
    )
    t = torch.randint(-3, 700, (28_000 if number == "600.0" else 400,))
    t[5:90] = 11
    assert torch.equal(f(t, torch.zeros(690)), wanted(t, torch.zeros(690)))
    added = any(k.name in ("C_each", "C_counts") for k in f.lower(t, torch.zeros(690)).kernels)
    assert added == (number in ("1.0", "3"))  # others are no whole numbers, or come to more than 2^24
