"""Scans of whole rows in the kernels of groups of rows, beside softmaxes, statistics and sums over rows."""

import os

import pytest
import torch

import tilec

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
SOFTMAX = "S[n, d : N, D] = exp(P[n, d] - logsumexp(P[n, e]));"
SOURCES = {
    "distance of distributions": (
        "Y",
        SOFTMAX
        + """A[n, d : N, D] = +(S[n, e]), d - e < D; B[n, d : N, D] = +(Q[n, e]), d - e < D;
        Y[n : N] = sum((A[n, d] - B[n, d]) * (A[n, d] - B[n, d]));""",
    ),
    "scans of scans": (
        "Y",
        "A[n, d : N, D] = +(P[n, e]), d - e < D; B[n, d : N, D] = +(A[n, e]), e - d < D; Y[n : N] = max(B[n, d]);",
    ),
    "greatest so far": (
        "A, Y",
        "A[n, d : N, D] = >(P[n, e]), d - e < D; Y[n : N] = max(A[n, d] - P[n, d]);",
    ),
    "least from here on": (
        "Y",
        "A[n, d : N, D] = <(P[n, e] * Q[n, e]), e - d < D; Y[n, d : N, D] = A[n, d] - mean(A[n, e]);",
    ),
    "products": (
        "Y",
        "A[n, d : N, D] = *(1 - 0.1 * Q[n, e]), d - e < D; Y[n : N] = sum(A[n, d] * P[n, d]);",
    ),
    "sums up to the one before": (
        "Y",
        """L[n, d : N, D] = +(P[n, e] * P[n, e]), d - e - 1 < D; W[n, d : N, D] = exp(-L[n, d]) * Q[n, d];
        Y[n : N] = sum(W[n, d] * P[n, d]);""",
    ),
    "products and extrema up to the one before": (
        "A, B, Y",
        """A[n, d : N, D] = *(1 - 0.1 * Q[n, e]), d - e - 1 < D; B[n, d : N, D] = >(P[n, e]), d - e - 1 < D;
        C[n, d : N, D] = <(Q[n, e]), d - e - 1 < D; Y[n, d : N, D] = C[n, d] * P[n, d] - A[n, d];""",
    ),
    "sums over rows": (
        "A, Y, V",
        """A[n, d : N, D] = +(P[n, e]), d - e < D; L[n : N] = mean(A[n, d]);
        Y[n, d : N, D] = A[n, d] - L[n]; V[d : D] = sum(Y[n, d] * Q[n, d]);""",
    ),
}


def source(name):
    outputs, text = SOURCES[name]
    return f"function (P[N, D], Q[N, D]) -> ({outputs}) {{ {text} }}"


def given(n, d, dtype):
    torch.manual_seed(n)
    return torch.randn(n, d).to(dtype), torch.randn(n, d).to(dtype)


def compared(f, g, inputs, rtol):
    """With what doubles give."""
    found, wanted = f(*inputs), g(*(x.double() for x in inputs))
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, wanted)), strict=True):
        assert a.dtype == inputs[0].dtype and a.shape == b.shape
        largest = b[b.isfinite()].abs().max().item() if b.isfinite().any() else 0.0
        torch.testing.assert_close(a.double(), b, rtol=rtol, atol=rtol * (1 + largest), equal_nan=True)


@interpreted
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("shape", [(0, 8), (1, 4), (5, 20), (37, 33)])
@pytest.mark.covering
def test_values(name, shape, dtype):
    inputs = given(*shape, dtype)
    f, g = tilec.compile(source(name), backend="triton"), tilec.compile(source(name), backend="torch")
    compared(f, g, inputs, 2e-2 if dtype == torch.bfloat16 else 1e-5)
    few = name == "products and extrema up to the one before"  # three kernels take as long for so few rows
    if shape == (37, 33) and not few:
        assert "associative_scan" in f.lower(*inputs).source() and "_scan[" not in f.lower(*inputs).source()


@pytest.mark.one_in(3)
@interpreted
@pytest.mark.parametrize("name", [n for n in SOURCES if "," not in SOURCES[n][0]])
def test_gradients(name):
    f, g = (tilec.compile(source(name), backend=b) for b in ("triton", "torch"))
    inputs = [x.requires_grad_() for x in given(6, 19, torch.float64)]
    for a, b in zip(*(torch.autograd.grad(h(*inputs).square().sum(), inputs) for h in (f, g)), strict=True):
        torch.testing.assert_close(a, b)


@interpreted
def test_infinities_and_strides():
    p, q = (x.mT.contiguous().mT for x in given(9, 16, torch.float32))
    p[2, 3], p[4, 0], p[5, 15], q[6, 6] = float("inf"), float("nan"), -float("inf"), float("inf")
    for name in ("greatest so far", "sums over rows"):
        compared(*(tilec.compile(source(name), backend=b) for b in ("triton", "torch")), (p, q), 1e-4)


def kernels(text, *shapes):
    return len(tilec.compile(text).lower(*map(tilec.spec, shapes), backend="triton", target="sm_90").kernels)


def test_one_kernel_for_short_rows_along_memory():
    name = "distance of distributions"
    assert kernels(source(name), (4000, 500), (4000, 500)) == 1
    assert kernels(source(name), (400, 5000), (400, 5000)) > 1  # too long for one program
    across = (
        source(name).replace("[n, d]", "[d, n]").replace("[n, e]", "[e, n]").replace("[n, d : N, D]", "[d, n : D, N]")
    )
    assert kernels(across.replace("[N, D]", "[D, N]"), (500, 4000), (500, 4000)) > 1
    exclusive = source("products").replace("d - e < D", "d - e - 1 < D")
    assert kernels(exclusive, (4000, 500), (4000, 500)) == 1
    backward = source("products").replace("d - e < D", "e - d - 1 < D")
    assert kernels(backward, (4000, 500), (4000, 500)) == 2


@interpreted
def test_infinities_and_further_columns():
    """What is before an element is not what is up to it less the element; others may have further variables, along
    which memory runs."""
    text = """function (P[N, D], Q[N, D], C[N, D, E]) -> (Y) {
        A[n, d : N, D] = Q[n, d] - exp(-P[n, d]); L[n, d : N, D] = +(P[n, e]), d - e - 1 < D;
        W[n, d : N, D] = exp(-L[n, d]) * A[n, d];
        Y[n, c : N, E] = +(W[n, d] * C[n, d, c]);
    }"""
    p, q = given(37, 33, torch.float32)
    p[3, 5], p[4, 0] = torch.inf, 1e30
    c = torch.randn(37, 33, 3)
    f, g = (tilec.compile(text, backend=b) for b in ("triton", "torch"))
    large = [tilec.spec(s, "float32") for s in ((4000, 500), (4000, 500), (4000, 500, 3))]
    assert [k.name for k in f.lower(*large, target="sm_90").kernels][0] == "W_rows"
    compared(f, g, (p.abs(), q, c), 1e-5)


def test_three_scans_of_many_rows_share_a_kernel():
    assert kernels(source("products and extrema up to the one before"), (4000, 500), (4000, 500)) == 1
