"""Aggregations of a row get a statement of the row, and what cancels out has no gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tilec
from tests.transforms.test_grad import lines
from tilec.language import parse
from tilec.transforms.autodiff.outline_reductions import lift
from tilec.transforms.autodiff.shift_invariance import cancelling
from tilec.transforms.util.extents import extents
from tilec.transforms.util.naming import Names

SOFTMAX = "Y[i, j] = exp(X[i, j] - max(X[i, k])) / sum(exp(X[i, k] - max(X[i, l])));"


def test_a_softmax_and_its_gradient_walk_each_row_only() -> None:
    assert lines("function (X[N, D]) -> (Y) { " + SOFTMAX + " }") == [
        "Y_max[i : N] = >(X[i, k]);",
        "Y_sum[i : N] = +(exp(X[i, k] - Y_max[i]));",
        "Y[i, j] = exp(X[i, j] - Y_max[i]) / Y_sum[i];",
        "DY_sum[i : N] = +(-(DY[i, j] * Y[i, j] / Y_sum[i]));",
        "GX[i, j : N, D] = +(DY[i, j] * Y[i, j]);",
        "GX_1[i, k : N, D] = +(DY_sum[i] * exp(X[i, k] - Y_max[i]));",
        "DX = GX + GX_1;",
    ]


def lifted(source: str) -> list[str]:
    program = parse("function (X[N, D], W[D]) -> (Y) { " + source + " }")
    return [s.output for s in lift(program, Names.of(program))]


def test_what_is_lifted() -> None:
    assert lifted(SOFTMAX) == ["Y_max", "Y_sum", "Y"]
    assert lifted("Y[i : N] = +(X[i, j] * max(X[i, k]) * max(W[k]));") == ["Y_max", "Y_max_1", "Y"]
    assert lifted("Y[i : N] = +(sum(X[i, k] * X[j, k]) * W[j]);") == ["Y"]  # one value a pair (i, j)
    assert lifted("Y[2*i : N] = +(sum(X[i, k]) * W[j]);") == ["Y"]  # i is not an element of the output
    assert lifted("Y[t : N] = Y[t - 1] + sum(X[t, k]);") == ["Y"]  # a recurrence


CANCELS = {
    SOFTMAX: "max",
    "M[i] = max(X[i, k]); Y[i, j] = X[i, j] - M[i] - logsumexp(X[i, k] - M[i]);": "M",
    "M[i] = max(X[i, k]); E[i, j] = exp(X[i, j] - M[i]); S[i] = sum(E[i, j]); Y[i, j] = E[i, j] / S[i];": "M",
    "M[i] = mean(X[i, k]); E[i, j] = exp(0 - M[i] + X[i, j]); Y[i] = sqrt(sum(E[i, j]*E[i, j])) / max(E[i, k]);": "M",
    "M[i] = max(X[i, k]); Y[i : N] = sum(X[i, j] > 0 ? exp(X[i, j] - M[i]) : 0) / sum(exp(X[i, k] - M[i]));": "M",
    "M[i] = max(X[i, k]); Y[i] = log(sum(exp(X[i, j] - M[i]))) - logsumexp(X[i, j] - M[i]);": "M",
    "M[i] = max(X[i, k]); A[i, j : N, D] = X[i, j] - M[i]; B = exp(A); S[i] = sum(B[i, j]); Y[i, j] = B[i, j] * (1 / S[i]);": "M",  # noqa: E501
}
REMAINS = [
    "M[i] = max(X[i, k]); Y[i, j] = X[i, j] - M[i];",
    "M[i] = max(X[i, k]); Y[i, j] = M[i] * X[i, j] - M[i] * X[i, j];",
    "M[i] = max(X[i, k]); Y[i, j] = exp(X[i, j] - M[i]) / sum(exp(X[k, j] - M[k]));",  # another row's maximum
    "M[i] = max(X[i, k]); Y[i, j] = exp(X[i, j] - M[i]) / (sum(exp(X[i, k] - M[i])) + 0.1);",
    "M[i] = max(X[i, k]); Y[i, j] = sin(X[i, j] - M[i]) / sum(sin(X[i, k] - M[i]));",
    "M[i] = max(X[i, k]); Y[i] = sum(X[i, j] - M[i]) - sum(X[i, j] - M[i]);",
    # elements of E beyond D hold 0, whatever M
    "M[i] = max(X[i, k]); E[i, j : N, 2*D] = X[i, j] - M[i]; Y[i, j] = exp(E[i, j]) / sum(exp(E[i, k]));",
    "M[i] = max(X[i, k]); E[i, j : N, D] = X[i, j + 1] - M[i]; Y[i, j] = exp(E[i, j]) / sum(exp(E[i, k]));",
    "M[i] = max(X[i, k]); E[i, j : N, D] = X[i, j] - M[i], j < 2; Y[i, j] = exp(E[i, j]) / sum(exp(E[i, k]));",
    "M[i] = max(X[i, k]); E[2*i : N] = exp(M[i]) default W; Y[i] = E[i] / E[i];",
    "M[i] = max(X[i, k]); Y[i] = X[i, 0] > M[i] ? 1.0 : 2.0;",
]


KEYED = {
    "M[B[p], d : S, D] = >(X[p, d]); Z[B[p], d : S, D] = +(exp(X[p, d] - M[B[p], d])); Y = M + log(Z);": True,
    "M[B[p], d : S, D] = >(X[p, d]); E[p, d : N, D] = exp(X[p, d] - M[B[p], d]);"
    "Z[B[p], d : S, D] = +(E[p, d]); Y[p, d] = E[p, d] / Z[B[p], d];": True,
    # of other keys
    "M[B[p] : S] = >(X[p, 0]); Z[C[p] : S] = +(exp(X[p, 0] - M[B[p]])); Y[p : N] = log(Z[C[p]]) + M[C[p]];": False,
    "M[B[p] : S] = >(X[p, 0]); Z[B[p] : S] = +(exp(X[p, 0] - M[B[p]])); Y[p : N] = log(Z[C[p]]) + M[B[p]];": False,
    "M[B[p] : S] = >(X[p, 0]); A[p : N] = exp(X[p, 0] - M[B[p]]); Y[p : N] = A[p] / exp(X[p, 1] - M[C[p]]);": False,
    "M[i] = max(X[i, k]); Z[B[p] : S] = +(exp(X[p, 0] - M[p])); Y[p : N] = exp(X[p, 0] - M[p]) / Z[B[p]];": False,
}


@pytest.mark.parametrize("source", KEYED)
@pytest.mark.one_in(4)
def test_keyed_sums_are_followed(source: str) -> None:
    head = "function (X[N, D], B[N], C[N], S) -> (Y) { "
    program = parse(head + source + " }")
    program = replace(program, statements=lift(program, Names.of(program)))
    assert cancelling(program, extents(program)) == ({"M"} if KEYED[source] else set())
    function = tilec.compile(head + source + " }")
    x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    b, c = torch.tensor([0, 2, 1, 1, 2, 0]), torch.tensor([1, 2, 0, 0, 1, 2])
    assert torch.autograd.gradcheck(lambda t: function(t, b, c, 3), x)


def found(source: str) -> frozenset[str]:
    program = parse("function (X[N, D], W[N]) -> (Y) { " + source + " }")
    program = replace(program, statements=lift(program, Names.of(program)))
    return cancelling(program, extents(program))


@pytest.mark.parametrize("source", CANCELS)
@pytest.mark.one_in(4)
def test_what_cancels(source: str) -> None:
    assert any(CANCELS[source] in name for name in found(source))
    function = tilec.compile("function (X[N, D], W[N]) -> (Y) { " + source + " }")
    x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    w = torch.randn(3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda t: function(t, w), x)
    assert torch.autograd.gradgradcheck(lambda t: function(t, w), x)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("source", REMAINS)
def test_what_remains(source: str) -> None:
    assert not found(source)
    function = tilec.compile("function (X[N, D], W[N]) -> (Y) { " + source + " }")
    x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    w = torch.randn(3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda t: function(t, w), x)


def test_an_output_does_not_cancel() -> None:
    program = parse("function (X[N, D]) -> (M, Y) { M[i] = max(X[i, k]); Y[i] = M[i] - M[i]; }")
    assert not cancelling(program, extents(program))
