"""Recurrences of few steps as statements: all that there are, whatever their sizes, and those that are worth it."""

import pytest
import torch
from support.recurrences import RECURRENCES
from support.stages import to_tensors

import tilec
from tilec.ir.evaluate import evaluate
from tilec.ir.program import reads_itself
from tilec.language import parse
from tilec.transforms.steps import unroll_steps

FILTER = """function (L[N, N], X[N, D], W[5]) -> (Y) {
    T[k, i, d : 5, N, D] = k == 0 ? X[i, d] : k == 1 ? sum[j](L[i, j] * X[j, d])
        : 2 * sum[j](L[i, j] * T[k - 1, j, d]) - T[k - 2, i, d];
    Y[i, d] = sum(W[k] * T[k, i, d]);
}"""
LAST = """function (S[N, N], P[N, N]) -> (Y) {
    W[t, i, j : 6, N, N] = sum(W[t - 1, i, k] * P[k, j]) init S[i, j];
    Y[i, j : N, N] = W[5, i, j];
}"""


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(unroll_steps, "LARGE_STEP", 0)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", RECURRENCES)
def test_each_recurrence(case, always):
    source, arrays = RECURRENCES[case]
    function, program = tilec.compile(source), parse(source)
    given = to_tensors(program.input_names(), arrays).tensors
    found = function(*given)
    for got, wanted in zip(found if isinstance(found, tuple) else (found,), evaluate(program, arrays), strict=True):
        torch.testing.assert_close(got, torch.as_tensor(wanted), equal_nan=True)


@pytest.mark.parametrize(("source", "shapes"), ((FILTER, ((4, 4), (4, 3), (5,))), (LAST, ((3, 3), (3, 3)))))
def test_products_are_statements_forward_and_backward(source, shapes, always):
    f = tilec.compile(source)
    for function, given in ((f, shapes), (f.grad(), (*shapes, f.lower(*map(tilec.spec, shapes)).outputs[0].shape))):
        flat = function.lower(*map(tilec.spec, given)).stages["flat"]
        assert not any(map(reads_itself, flat.statements)), flat
        sums = [s for s in flat.statements if s.aggregation == "sum" and s.guard is None]
        assert len(sums) >= 4, flat
    assert "W[" not in str(tilec.compile(LAST).lower(tilec.spec((3, 3)), tilec.spec((3, 3))).stages["flat"])


@pytest.mark.parametrize("n", (128, 2048))
def test_steps_of_many_terms(n):
    f = tilec.compile(FILTER)
    flat = f.lower(tilec.spec((n, n)), tilec.spec((n, 64)), tilec.spec((5,))).stages["flat"]
    assert any(map(reads_itself, flat.statements)) == (n == 128)
