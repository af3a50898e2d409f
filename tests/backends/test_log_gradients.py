"""Gradients of a log-semiring product, first and second order, where rows are -inf and elements infinite or NaN."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.agreement import tensors

import tilec

SOURCE = "function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = logsumexp(A[i, k] + B[k, j]); }"
product = tilec.compile(SOURCE)
inf, nan = np.inf, np.nan


def plain():
    return tensors((4, 5), (5, 3))


def changed(*places):
    a, b = plain()
    for tensor, place, value in places:
        (a if tensor == "A" else b)[place] = value
    return a, b


CASES = {
    "finite": plain(),
    "a row of -inf": changed(("A", 2, -inf)),
    "a column of -inf": changed(("B", (slice(None), 1), -inf)),
    "all -inf": changed(("A", slice(None), -inf), ("B", slice(None), -inf)),
    "+inf": changed(("A", (1, 3), inf)),
    "+inf against -inf": changed(("A", (1, 3), inf), ("B", (3, 2), -inf)),
    "NaN": changed(("A", (1, 3), nan)),
    "wide": tuple(1000 * t for t in plain()),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.covering
def test_as_the_oracle(case, order):
    function, inputs = product, list(CASES[case])
    shapes = [[(4, 3)], [(4, 5), (5, 3)]]
    for k in range(order):
        function = function.grad()
        inputs += tensors(*shapes[k], seed=k + 1)
    got = function(*inputs)
    with np.errstate(all="ignore"):
        wanted = tilec.interpret(function.tile, *(t.numpy() for t in inputs))
    for g, w in zip(got if order else (got,), wanted if order else (wanted,), strict=True):
        np.testing.assert_allclose(g.numpy(), w, rtol=1e-9, atol=1e-9)


def test_no_element_without_terms_has_a_gradient_that_is_nan():
    a, b = CASES["all -inf"]
    for g in product.grad()(a, b, torch.ones(4, 3, dtype=torch.float64)):
        assert g.count_nonzero() == 0


@pytest.mark.parametrize("scale", [3, None])
def test_float32_against_float64(scale):
    generator = torch.Generator().manual_seed(0)
    a, b = (
        scale * torch.randn(64, 64, generator=generator) if scale else -2000 * torch.rand(64, 64, generator=generator)
        for _ in "ab"
    )
    wanted = torch.logsumexp(a.double()[:, :, None] + b.double(), 1)
    unit = torch.finfo(torch.float32).eps * wanted.abs()
    assert ((product(a, b).double() - wanted).abs() <= 3e-6 + 2 * unit).all()


@pytest.mark.parametrize("steps", [0, 3])
def test_a_large_and_a_small_operand_are_rounded_once(steps):
    """Rounded apart, what a column of the small one loses would be the same in every row, and in every step."""
    product = "function (A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = logsumexp(A[i, k] + B[k, j]); }"
    repeated = """function (F0[M, K], B[K, N]) -> (F) {
        F[t, i, j : 4, M, N] = logsumexp(F[t - 1, i, k] + B[k, j]) init F0[i, j];
    }"""
    generator = torch.Generator().manual_seed(0)
    a, b = 2800 + torch.randn(64, 32, generator=generator), torch.randn(32, 32, generator=generator)
    f = tilec.compile(repeated if steps else product, backend="torch")
    for left, right in ((a, b), (b.mT, a.mT)) if not steps else ((a, b),):
        found = f(left, right)
        before = left if not steps else found[steps - 1]
        exact = torch.logsumexp(before.double()[:, :, None] + right.double()[None], 1)
        result = found[steps] if steps else found
        assert (result.double() - exact).abs().max() < 0.52 * 2.0**-12


@pytest.mark.parametrize(("size", "programs"), [((256, 611, 368), 96), ((1024, 512, 1024), 256)])
def test_programs_are_many_where_sums_are_not_split(size, programs):
    """Blocks of 128 x 128 would be six programs, and 64."""
    rows, terms, columns = size
    shapes = (rows, terms), (terms, columns)
    source = product.lower(*(tilec.spec(shape, "float32") for shape in shapes), target="sm_90").source()
    assert f"C_log_dot[({programs}, 1, 1)]" in source
