"""Gradients of log products as matrix products of exponentials against the oracle, where they are sure or not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.agreement import agree, run, tensors

import tilec

SOURCES = {
    "matrix": "function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = logsumexp(A[i, k] + B[k, j]); }",
    "batch": "function (A[N, I, K], B[N, K, J]) -> (C) { C[n, i, j : N, I, J] = logsumexp(A[n, i, k] + B[n, k, j]); }",
    "permuted": "function (A[K, I], B[J, K]) -> (C) { C[j, i : J, I] = logsumexp(2 * A[k, i] - B[j, k] + 1); }",
}
SHAPES = {
    "matrix": ((18, 20), (20, 16), (18, 16)),
    "batch": ((2, 12, 20), (2, 20, 16), (2, 12, 16)),
    "permuted": ((20, 18), (16, 20), (16, 18)),
}


@pytest.mark.parametrize("case", SOURCES)
def test_gradients(case):
    a, b, d = tensors(*SHAPES[case])
    agree(tilec.compile(SOURCES[case]).grad().tile, a, b, d, contains="exponential_product")


def special(name):
    a, b, d = tensors(*SHAPES["matrix"])
    if name == "rows and columns of -inf":
        a[3], b[:, 4], a[5, :19] = -torch.inf, -torch.inf, -torch.inf
    elif name == "+inf":
        a[3, 2] = torch.inf
    elif name == "NaN":
        b[3, 2] = torch.nan
    elif name == "an infinite cotangent":
        d[3, 2] = torch.inf
    elif name == "wide":
        a, b = 1000 * a, 1000 * b
    return a, b, d


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["rows and columns of -inf", "+inf", "NaN", "an infinite cotangent", "wide"])
def test_special_values(name):
    a, b, d = special(name)
    function = tilec.compile(SOURCES["matrix"]).grad()
    assert "exponential_product" in function.lower(a, b, d).source()
    with np.errstate(all="ignore"):
        wanted = tilec.interpret(function.tile, a.numpy(), b.numpy(), d.numpy())
    for g, w in zip(function(a, b, d), wanted, strict=True):
        np.testing.assert_allclose(g.numpy(), w, rtol=1e-9, atol=1e-9)


def test_float32_is_as_accurate_as_adding_up():
    a, b, d = tensors((64, 64), (64, 64), (64, 64), dtype=torch.float32)
    function = tilec.compile(SOURCES["matrix"]).grad()
    wanted = function(3 * a.double(), 3 * b.double(), d.double())
    for g, w in zip(function(3 * a, 3 * b, d), wanted, strict=True):
        torch.testing.assert_close(g.double(), w, rtol=1e-5, atol=1e-5 * float(w.abs().max()))


def test_a_positive_exponent_is_no_gradient_and_is_added_up():
    source = """function (A[I, K], B[K, J], C[I, J]) -> (O) {
        O[i, k : I, K] = +(exp(A[i, k] + B[k, j] - C[i, j]));
    }"""
    inputs = tensors((20, 20), (20, 20), (20, 20))
    agree(source, *inputs, contains="exponential_product")
    agree(source, *(100 * t for t in inputs))
    assert "exponential_product" not in run(source.replace("- C", "+ C"), inputs)[1]
