"""Scans written with a constraint: torch's cumulative functions, the oracle's values, no N^2."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.agreement import agree, run, tensors

import tilec

AGGREGATIONS = ("+", "*", ">", "<", "logsumexp")
FORMS = {
    "all before": "O[i : N] = %s(X[k]), i - k < N;",
    "all after": "O[i : N] = %s(X[k]), k - i < N;",
    "without itself": "O[i : N] = %s(X[k]), i - k - 1 < N;",
    "a longer output": "O[i : N + 3] = %s(X[k]), i - k - 2 < 2*N;",
    "a longer output, backward": "O[i : N + 3] = %s(X[k]), k - i + 1 < 2*N;",
    "fewer terms": "O[i : N] = %s(X[k]), k - i < N, k - 2 < N;",
    "guarded": "O[i : N] = %s(X[k] > 0 ? X[k]), i - k + 2 < N + 2;",
    "another place": "O[i : N] = %s(2*X[k + 1]), i - k < 2*N;",
    "turned round": "O[i : N] = %s(X[N - 1 - k]), i - k < N;",
}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.covering
def test_each_form(form, aggregation):
    (x,) = tensors((7,))
    agree(f"function (X[N]) -> (O) {{ {FORMS[form] % aggregation} }}", x, contains="cum")


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_batched_and_permuted(aggregation):
    x, y = tensors((2, 6, 3), (3,))
    source = "function (X[B, N, C], Y[C]) -> (O) { O[c, i, b : C, N, B] = %s(X[b, k, c] * Y[c]), k - i < N; }"
    agree(source % aggregation, x, y, contains="cum")


NARROWED = {  # elements of the output beyond the constraint hold the identity
    "the first elements": "O[i : N] = %s(X[k]), i - k < N, i < 5;",
    "the last elements": "O[i : N] = %s(X[k]), i - k < N, i - 4 < N;",
    "the first elements, backward": "O[k : N] = %s(X[i]), i - k < N, k < 4;",
    "the last elements, backward": "O[k : N] = %s(X[i]), i - k < N, k - 3 < N;",
    "the middle": "O[i : N] = %s(X[k]), k - i < N, i - 2 < 3;",
    "of a longer output": "O[i : N + 3] = %s(X[k]), i - k - 2 < 2*N, N + 1 - i < N;",
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("form", NARROWED)
def test_a_second_constraint_on_the_output(form, aggregation):
    (x,) = tensors((7,))
    agree(f"function (X[N]) -> (O) {{ {NARROWED[form] % aggregation} }}", x, contains="cum")


inf, nan = np.inf, np.nan
SPECIAL = ([1, 2, inf, 3, nan, 0], [-inf, -inf, 1, inf, 2, -inf], [-inf] * 4 + [1, -inf], [0, inf, 0, -inf, 1, nan])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("values", SPECIAL, ids=str)
def test_infinities_and_nan(aggregation, values):
    for constraint in ("i - k < N", "k - i < N"):
        source = f"function (X[N]) -> (O) {{ O[i : N] = {aggregation}(X[k]), {constraint}; }}"
        agree(source, torch.tensor(values, dtype=torch.float64), contains="cum")


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.uint8, torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("aggregation", ["+", "*", ">"])
def test_types(aggregation, dtype):
    (x,) = tensors((8,), dtype=dtype)
    tolerance = {torch.float32: 1e-5}.get(dtype, 2e-2)
    agree(f"function (X[N]) -> (O) {{ O[i : N] = {aggregation}(X[k]), i - k < N; }}", x, tolerance=tolerance)


def test_what_is_no_scan():
    (x,) = tensors((9,))
    for body in ("X[k]), i - k < 3", "sin(X[k] * X[i])), i - k < N", "X[k]), i - 2*k < N", "X[k]), k - i - 2 < 5"):
        source = f"function (X[N]) -> (O) {{ O[i : N] = +({body}; }}"
        agree(source, x)
        assert "cum" not in run(source, [x])[1]


FACTORS = {
    "a factor of the element": "X[k] * sin(X[i])), k - i < N",
    "a divisor of the element": "X[k] / (2 + X[i])), i - k < N",
    "a negative term": "-(X[k] * Y[i])), i - k < N",
    "several terms": "X[k] * Y[i] - X[k] * X[i] * 2), i - k < N",
}


@pytest.mark.parametrize("form", FACTORS)
def test_factors_of_the_element_leave_a_sum(form):
    x, y = tensors((9,), (9,))
    agree(f"function (X[N], Y[N]) -> (O) {{ O[i : N] = +({FACTORS[form]}; }}", x, y, contains="cum")


def test_terms_of_other_lengths_stay():
    """Where an element may have no point a factor may be infinite, and the sum of none is 0."""
    x, y = tensors((9,), (6,))
    y[0] = torch.inf
    for body in ("Y[k] * X[i]), i - k < N", "X[k + 1] * X[i]), k - i < N"):
        source = f"function (X[N], Y[M]) -> (O) {{ O[i : N] = +({body}; }}"
        agree(source, x, y)
        assert "cum" not in run(source, [x, y])[1]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_long_scans_forward_and_backward(aggregation):
    n = 50_000  # as pairs, 2.5e9 of them: minutes
    function = tilec.compile(f"function (X[N]) -> (O) {{ O[i : N] = {aggregation}(X[k]), i - k < N; }}")
    x = torch.linspace(-1, 1, n, dtype=torch.float64) * (1e-4 if aggregation == "*" else 1)
    x = (x + (aggregation == "*")).requires_grad_()
    function(x).sum().backward()
    reference = {
        "+": lambda t: t.cumsum(0),
        "*": lambda t: t.cumprod(0),
        ">": lambda t: t.cummax(0).values,
        "<": lambda t: t.cummin(0).values,
        "logsumexp": lambda t: t.logcumsumexp(0),
    }[aggregation]
    (wanted,) = torch.autograd.grad(reference(x).sum(), x)
    torch.testing.assert_close(x.grad, wanted)


def test_what_moves_by_an_element_is_no_scan():
    """Its condition is on two variables; the summed one of several values is not among them."""
    (x,) = tensors((1, 2, 2))
    source = "function (A[N, M, J], S[M]) -> (O) { O[i + j + S[k] : 3] = +(A[i, k, j]); }"
    agree(source, x, torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("aggregation", "lanes", "dtype", "launches"),
    [("+", 18080, "float32", 1), (">", 18080, "float32", 1), ("+", 8192, "float32", 2), ("+", 18080, "bfloat16", 2)],
)
def test_wide_rows_of_lanes_are_read_once(aggregation: str, lanes: int, dtype: str, launches: int) -> None:
    """Where a step of all lanes is so many bytes that memory is busy with 64 of them under way."""
    source = f"function (X[T, N]) -> (Y) {{ Y[t, n : T, N] = {aggregation}(X[s, n]), t - s < T; }}"
    lowered = tilec.compile(source, backend="triton").lower(tilec.spec((3224, lanes), dtype), target="sm_90")
    assert lowered.source().count("](") == launches
