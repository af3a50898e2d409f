"""Forms that keep their digits keep them through every pass, and forms that lose them are not mistaken for those."""

from __future__ import annotations

import pytest
import torch

import tilec

VARIANCES = {
    "differences": "V[i] = mean((X[i, j] - mean(X[i, k])) * (X[i, j] - mean(X[i, k])));",
    "powers": "V[i] = mean(pow(X[i, j] - mean(X[i, k]), 2));",
    "statements": "M[i] = mean(X[i, j]); D[i, j] = X[i, j] - M[i]; V[i] = mean(D[i, j] * D[i, j]); ",
}
CORRECTED = (
    "M[i] = mean(X[i, j]);"
    "V[i] = mean((X[i, j] - M[i]) * (X[i, j] - M[i])) - mean(X[i, k] - M[i]) * mean(X[i, k] - M[i]);"
)
CARELESS = "V[i] = mean(X[i, j] * X[i, j]) - mean(X[i, k]) * mean(X[i, k]);"
INF = float("inf")


def function(statements: str) -> tilec.Function:
    return tilec.compile(f"function (X[N, K]) -> (V) {{ {statements} }}")


def around(offset: float, n: int) -> torch.Tensor:
    return offset + torch.randn(4, n, generator=torch.Generator().manual_seed(n))


def worst(got: torch.Tensor, want: torch.Tensor) -> float:
    assert got.shape == want.shape
    return float(((got.double() - want) / want).abs().max())


@pytest.mark.parametrize("n", [64, 1000, 60000])
@pytest.mark.parametrize("form", VARIANCES)
def test_the_variance_around_ten_thousand(form, n):
    x = around(1e4, n)
    assert worst(function(VARIANCES[form])(x), x.double().var(1, unbiased=False)) < 5e-6


@pytest.mark.parametrize("n", [64, 1000, 60000])
def test_the_corrected_variance_around_a_million(n):
    x = around(1e6, n)
    exact = x.double().var(1, unbiased=False)
    assert worst(function(CORRECTED)(x), exact) < 5e-6
    assert worst(function(VARIANCES["differences"])(x), exact) < 0.1


def test_the_careless_form_is_computed_as_written():
    x = around(1e4, 1000)
    assert worst(function(CARELESS)(x), x.double().var(1, unbiased=False)) > 0.1


@pytest.mark.parametrize("form", VARIANCES)
def test_gradients_of_the_variance_keep_their_digits(form):
    x, d = around(1e4, 200), torch.tensor([1.0, -2, 3, 0.5])
    exact = x.double().requires_grad_()
    (wanted,) = torch.autograd.grad(exact.var(1, unbiased=False), exact, d.double())
    got = function(VARIANCES[form]).grad()(x, d)
    assert float((got.double() - wanted).abs().max() / wanted.abs().max()) < 1e-3  # the mean's rounding, 1e-7 of 1e4
    assert float((got.double() - wanted).abs().mean() / wanted.abs().mean()) < 1e-3


ROWS = torch.tensor(
    [[1e4, -1e4, 0], [88, 89, 90], [-INF, 0, 1], [1e38, 1e38, -1e38], [3e38, -3e38, 0], [-200, -201, -1000]]
)
SOFTMAX = "V[i, j : N, K] = exp(X[i, j] - max(X[i, k])) / sum(exp(X[i, k] - max(X[i, l])));"
LOG_SOFTMAX = "M[i] = max(X[i, k]); V[i, j : N, K] = X[i, j] - M[i] - logsumexp(X[i, k] - M[i]);"


@pytest.mark.parametrize("statements, theirs", [(SOFTMAX, torch.softmax), (LOG_SOFTMAX, torch.log_softmax)])
def test_softmax_of_large_numbers(statements, theirs):
    f = function(statements)
    torch.testing.assert_close(f(ROWS), theirs(ROWS, 1), rtol=3e-6, atol=1e-30)
    finite = ROWS[[0, 1, 5]]
    d = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    exact = finite.double().requires_grad_()
    (wanted,) = torch.autograd.grad(theirs(exact, 1), exact, d.double())
    torch.testing.assert_close(f.grad()(finite, d).double(), wanted, rtol=1e-5, atol=1e-6)


def test_logsumexp_of_large_numbers():
    rows = torch.cat((ROWS, torch.tensor([[-INF, -INF, -INF], [INF, 0, 1], [INF, -INF, 2]])))
    f = function("V[i] = logsumexp(X[i, k]);")
    torch.testing.assert_close(f(rows), torch.logsumexp(rows, 1), rtol=3e-6, atol=0)
    d = torch.ones(4)
    finite = ROWS[[0, 1, 3, 5]].requires_grad_()
    (wanted,) = torch.autograd.grad(torch.logsumexp(finite, 1), finite, d)
    torch.testing.assert_close(f.grad()(finite.detach(), d), wanted, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize(
    "text, theirs",
    [
        ("expm1(X)", torch.expm1),
        ("log1p(X)", torch.log1p),
        ("softplus(X)", lambda t: torch.log1p(torch.exp(t))),
        ("logaddexp(X, 2 * X)", lambda t: t + torch.log1p(torch.exp(t))),
        ("1 - cos(X)", lambda t: 2 * torch.sin(t / 2) ** 2),
        ("cos(X) - 1", lambda t: -2 * torch.sin(t / 2) ** 2),
    ],
)
def test_small_differences(text, theirs):
    x = torch.tensor([1e-10, -1e-9, 1e-6, -3e-5, 0.5, 20.0])
    assert worst(tilec.compile(f"function (X) -> (Y) {{ Y = {text}; }}")(x), theirs(x.double())) < 1e-6
