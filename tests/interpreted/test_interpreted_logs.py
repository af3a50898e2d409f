"""logsumexp over sums of two operands, and its gradients, as products of exponentials: values, failures of the
certificate, infinities, windows, and which statements take that form."""

import os

import pytest
import torch

import tilec

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

PRODUCT = "function (A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = logsumexp(A[i, k] + B[k, j]); }"
BATCHED = (
    "function (A[Z, M, K], B[Z, K, N]) -> (C) { C[b, i, j : Z, M, N] = logsumexp(A[b, i, k] + B[b, k, j] - 0.5); }"
)
WINDOWS = (
    "function (A[N, W, C], B[KW, C, D]) -> (O) { O[n, x, d : N, W, D] = logsumexp(A[n, x + k - 1, c] + B[k, c, d]); }"
)
BANDED = "function (A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = logsumexp(A[i, k] + B[k, j]), i - k < 9; }"
INFINITY = float("inf")


def normal(*shape):
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def wide(*shape):
    return -2000 * torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)))


def hmm():
    a, b = normal(20, 30), normal(30, 18)
    a[3], b[:, 2] = -INFINITY, -INFINITY
    a[4, :29], b[29, 5] = -INFINITY, -INFINITY
    return a, b


def apart():
    """Every row's and column's greatest terms meet nothing: the product alone would say -inf."""
    a, b = torch.full((17, 32), -200.0), torch.full((32, 16), -200.0)
    a[:, 0], b[1] = 0, 0
    return a, b


CASES = {
    "normal": (PRODUCT, (normal(40, 50), normal(50, 33))),
    "wide range": (PRODUCT, (wide(20, 30), wide(30, 18))),
    "minus infinities": (PRODUCT, hmm()),
    "apart": (PRODUCT, apart()),
    "batched": (BATCHED, (normal(3, 20, 30), normal(3, 30, 18))),
    "windows": (WINDOWS, (normal(2, 20, 17), normal(3, 17, 18))),
    "banded": (BANDED, (normal(40, 50), normal(50, 33))),
    "float64": (PRODUCT, (normal(20, 30).double(), normal(30, 18).double())),
}


@pytest.mark.parametrize("case", CASES)
def test_values(case):
    source, inputs = CASES[case]
    f = tilec.compile(source, backend="triton")
    got = f(*inputs).double()
    wanted = tilec.compile(source, backend="torch")(*(x.double() for x in inputs))
    assert torch.equal(got.isinf(), wanted.isinf())
    finite = wanted.isfinite()
    allowed = 3e-6 + 2 * 2.0**-23 * wanted[finite].abs()
    assert ((got - wanted)[finite].abs() <= allowed).all()
    assert f.lower(*inputs).kernels[-1].name.endswith("_log_dot")


@pytest.mark.parametrize("case", CASES)
def test_gradients(case):
    source, inputs = CASES[case]
    gradient = tilec.compile(source).grad().tile
    value = tilec.compile(source, backend="torch")(*inputs)
    d = normal(*value.shape).to(value.dtype)
    ours = tilec.compile(gradient, backend="triton")
    wanted = tilec.compile(gradient, backend="torch")(*(x.double() for x in (*inputs, d)))
    for g, w in zip(ours(*inputs, d), wanted, strict=True):
        assert g.isfinite().all()
        assert (g.double() - w).norm() <= 1e-5 * w.norm()
    assert [k.name for k in ours.lower(*inputs, d).kernels if k.name.endswith("weighted_dot")]


def test_the_published_example():
    f = tilec.compile(PRODUCT, backend="triton")
    assert f(*apart())[0, 0].item() == pytest.approx(-199.306853, abs=1e-5)
    assert f(torch.tensor([[0.0, -200.0]]), torch.tensor([[-200.0], [0.0]])).item() == pytest.approx(
        -199.306853, abs=1e-5
    )


def test_infinities_and_nan_are_told_apart():
    a, b = hmm()
    a[7, 3], b[4, 4] = INFINITY, float("nan")
    got = tilec.compile(PRODUCT, backend="triton")(a, b)
    wanted = tilec.compile(PRODUCT, backend="torch")(a.double(), b.double())
    assert torch.equal(got.isnan(), wanted.isnan()) and torch.equal(got.isinf(), wanted.isinf())
    assert (got[7].isinf() | got[7].isnan()).all() and got[:, 4].isnan().all() and got[0, 0].isfinite()


def test_elementwise_statements_ride_on_it():
    source = "function (A[M, K], B[K, N]) -> (C) { T[i, j : M, N] = logsumexp(A[i, k] + B[k, j]); C = T * 2.0 + 1.0; }"
    f = tilec.compile(source, backend="triton")
    a, b = normal(20, 30), normal(30, 18)
    assert len(f.lower(a, b).kernels) == 3
    torch.testing.assert_close(f(a, b), 2 * tilec.compile(PRODUCT, backend="torch")(a, b) + 1, rtol=1e-5, atol=1e-5)
