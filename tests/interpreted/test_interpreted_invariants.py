"""Costly values that many elements share are computed once."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.fusion import invariants, members

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
HEAD = "function (X[N, T, D], W[T, D], I[D]) -> (Y) { Y[n, t, d : N, T, D] = "
SHARED = {
    "of positions": "X[n, t, d] + (d % 2 == 0 ? sin(t * 0.5 + d) : cos(t * 0.5 + d))",
    "of a tensor": "X[n, t, d] * erf(W[t, d]) + tanh(W[t, d])",
    "of columns": "X[n, t, d] * pow(2.0, W[0, d])",
    "of neighbours": "X[n, t, d] - sin(pad(W[t, d - 1], 0.5) * 2)",
    "compared": "X[n, t, d] > sin(t * 0.5) * W[t, d] ? X[n, t, d] : 1 + sin(t * 0.5) * W[t, d]",
}
WHOLE = {
    "drawn": "X[n, t, d] + rand(3, t) * W[t, d]",
    "of each element": "X[n, t, d] + sin(X[n, t, d] * W[t, d])",
    "found equal": "X[n, t, d] == X[n, t, 0] + sin(W[t, d]) ? 1 : X[n, t, d]",
    "under a guard": "t > 2 ? X[n, t, d] + sin(W[t, d])",
    "at places that are data": "X[n, t, d] - sin(W[t, I[d]])",
    "not everywhere": "X[n, t, d] + sin(W[t + 1, d])",
}


def given(n, dtype):
    torch.manual_seed(0)
    return torch.randn(n, 7, 10).to(dtype), torch.randn(7, 10).to(dtype), torch.arange(10).flip(0)


@pytest.mark.one_in(3)
@interpreted
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("body", [*SHARED, *WHOLE])
@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.covering
def test_values(body, n, dtype, monkeypatch):
    monkeypatch.setattr(invariants, "INSTRUCTIONS", 1.0)
    source = HEAD + {**SHARED, **WHOLE}[body] + "; }"
    f, inputs = tilec.compile(source, backend="triton"), given(n, dtype)
    wanted = tilec.compile(source, backend="torch")(*inputs)
    found = f(*inputs)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=2e-3 if dtype == torch.float16 else 1e-5, atol=1e-3)
    positions = "t * 0.5" in SHARED.get(body, "")  # in float64 whatever the tensors' type
    many = n == 8 or body == "compared"  # with a value that columns share too
    expected = many and body in SHARED and (dtype != torch.float16 or positions)
    assert ("Y_shared" in f.lower(*inputs).source()) == expected


def planned(source, *shapes):
    f = tilec.compile(source)
    lowered = f.lower(*(tilec.spec(s) for s in shapes), backend="triton", target="sm_90")
    return [k.statements for k in lowered.kernels]


def test_a_table_pays_where_instructions_take_longer_than_memory():
    body = "function (X[N, D], W[D]) -> (Y) {{ Y[n, d : N, D] = X[n, d] {}; }}"
    large, small = ((65536, 512), (512,)), ((64, 512), (512,))
    assert planned(body.format("* sin(d * 0.1)"), *large) == [("Y_shared",), ("Y",)]
    assert planned(body.format("* sin(d * 0.1)"), *small) == [("Y",)]
    assert planned(body.format("* exp(W[d])"), *large) == [("Y",)]


def test_statements_share_a_table():
    source = """function (X[N, T], Z[N, T]) -> (Y, V) {
        Y[n, t : N, T] = X[n, t] + sin(t * 0.01); V[m, s : N, T] = Z[m, s] - sin(s * 0.01);
    }"""
    assert planned(source, (65536, 512), (65536, 512)) == [("Y_shared",), ("Y",), ("V",)]


def test_a_group_of_rows_reads_the_table():
    source = """function (X[N, T, D]) -> (Y) {
        P[t, d : T, D] = sin(t * 0.01 + d) + cos(t * 0.02);
        H[n, t, d : N, T, D] = X[n, t, d] + P[t, d];
        Y[n, t, d : N, T, D] = H[n, t, d] - mean(H[n, t, e]);
    }"""
    assert planned(source, (32, 1000, 768))[0] == ("P",)


GROUPED = """function (X[N, T, C], Z[N, T], A[N, C], B[N, C]) -> (Y) {
    D[n, c : N, C] = A[n, c] / (B[n, c] + 2);
    E[n, c : N, C] = D[n, c] / (A[n, c] * A[n, c] + 1);
    P[n, t, c : N, T, C] = exp(X[n, t, c] - Z[n, t]) * E[n, c];
    Y[n, t, c : N, T, C] = P[n, t, c] - sum(P[n, t, e]) * D[n, c];
}"""


@pytest.mark.one_in(2)
@interpreted
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("t", [1, 9])
def test_rows_read_what_many_of_them_share(t, dtype, monkeypatch):
    monkeypatch.setattr(members, "INSTRUCTIONS", 1.0)
    torch.manual_seed(0)
    given = [torch.randn(s).to(dtype) for s in ((3, t, 10), (3, t), (3, 10), (3, 10))]
    given[3] = given[3].abs()
    f = tilec.compile(GROUPED + f"// {t}", backend="triton")
    exact = tilec.compile(GROUPED, backend="torch")(*(x.double() for x in given))
    assert (f(*given).double() - exact).norm() <= (2e-2 if dtype == torch.bfloat16 else 1e-5) * exact.norm()
    kernels = [k.statements for k in f.lower(*given).kernels]
    assert any({"D", "E"} <= set(k) and "Y" in k for k in kernels) == (t == 1)


def test_rows_read_what_takes_longer_than_a_launch():
    def kernels(n, t):
        return planned(GROUPED, (n, t, 21), (n, t), (n, 21), (n, 21))

    assert kernels(8, 62500) == [("D", "E"), ("P", "Y_sum", "Y")]
    (alone,) = kernels(8, 500)
    assert {"D", "E", "P", "Y"} <= set(alone)


def test_rows_do_not_store_for_each_row_what_many_share():
    source = """function (X[N, T, C], D[N, T, C], A[N, C]) -> (E, G, H) {
        U[n, c : N, C] = +(X[n, t, c] * abs(D[n, t, c]));
        E[n, c : N, C] = U[n, c] / (A[n, c] + 1);
        G[c : C] = +(D[n, t, c] * X[n, t, c] * A[n, c]);
        H[c : C] = +(D[n, t, c]);
    }"""
    large, small = (planned(source, (32, t, 768), (32, t, 768), (32, 768)) for t in (784, 20))
    assert ("U", "E") in large and ("G", "H") in large
    assert ("E", "G", "H") in small
