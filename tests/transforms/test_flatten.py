"""Flattening: nested aggregations hoisted, mean, argmax and argmin spelled out, the meaning kept."""

from __future__ import annotations

import numpy as np
import pytest
from meaning import flat, same_meaning, statements
from support.aggregations import takes

from tilec.errors import WriteConflict
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.program import Aggregate, expressions, walk


def array(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(sum(shape) + 1).integers(-4, 5, shape).astype(dtype)


NESTED = [
    "O[i : N] = tanh(sum(W[i, j] * H[j]) + B[i]);",
    "O[i : N + 1] = sum(W[i, j]) + pad(B[i], 0);",
    "O[i : N] = sum(W[i, j]) / max(sum(abs(W[i, j])), 1);",
    "O[i, j : N, M] = exp(W[i, j] - max(W[i, j]));",
    "O[i, k : N, M] = exp(W[i, k] - max(W[i, j])) / sum(exp(W[i, l] - max(W[i, j])));",
    "O = W / sum(W[i, j]);",
    "O = (W - mean(W[i, j])) * 2 + sum(H[j]);",
    "O[x : 3] = sum(W[x + 1, j]) + B[2*x - 1];",
    "O[2*x + 1 : 7] = sum(W[x, j]), x < 2;",
    "O[2*x + 1 : 7] = 1 + sum(W[x + 1, j]), x < 2;",
    "O[i : N] = sum(sum(W[i, j] * H[j + k]) * H[k]);",
    "O[i : N] = sum(W[i, j]), j - i < 2;",
    "O[i : N] = 1 + sum(W[i, j]) * B[i], j - i < 2;",
    "O[i : N] = B[i] > 0 ? sum(W[i, j]) : max(W[i, j]);",
    "O[i : N] = B[i] + argmax(W[i, j]) + argmin(W[i, j]);",
    "O[i : N] = B[i] + sum(H[j] > 0 ? W[i, j]);",
    "O[i : N] = +(W[i, j] - mean(W[i, k]));",
    "O[i : N] = logsumexp(W[i, j] - logsumexp(W[i, k]));",
    "O[i : N] = any(W[i, j] > 3) + 2 * all(W[i, j] < 3);",
    "O[i : N] = pad(B[i + 1], sum(W[i, j]));",
    "O[i : N] = prod(W[i, j]) - min(W[i, j]);",
    "O[i : N] = B[i] + assign(W[i, 2]);",
    "O[i : N] = argmax(W[i, j] + argmax(W[k, j]));",
    "O[i : N] = B[i] + sum(W[2*i, j]);",
    "O[i : N] = sum(W[i - 3, j]) + B[i];",
    "O[i : N] = sum(W[2*i + 5, j]) + max(W[2*i + 5, j]) + argmax(W[2*i + 5, j]);",
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("statement", NESTED)
@pytest.mark.parametrize(("n", "m"), [(4, 5), (1, 1), (0, 3), (3, 0)])
@pytest.mark.covering
def test_nested_aggregations(statement: str, n: int, m: int) -> None:
    source = f"function (W[N, M], H[M], B[N]) -> (O) {{ {statement} }}"
    same_meaning(source, array(n, m), array(m), array(n))
    program = flat(source, array(n, m), array(m), array(n))
    for s in program.statements:
        assert s.aggregation not in ("mean", "argmax", "argmin")
        assert not any(isinstance(e, Aggregate) for root in expressions(s) for e in walk(root))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8", "bool"])
@pytest.mark.parametrize("constraint", ["", ", i + j < 4", ", j - 9 < 2"])
@pytest.mark.covering
def test_every_aggregation_keeps_its_type_and_identity(aggregation: str, dtype: str, constraint: str) -> None:
    dtype = dtype if takes(aggregation, dtype) else "int64"
    x = array(3, 4).astype("int64").clip(0 if dtype == "uint8" else -4).astype(dtype)
    body = "X[i, j]"
    if aggregation == "assign":
        body, constraint = "X[i, 0]", constraint.replace("j", "0")
    same_meaning(f"function (X[N, M]) -> (O) {{ O[i : N + 1] = {aggregation}({body}){constraint}; }}", x)
    nested = f"{aggregation}({body})"
    if aggregation == "assign":
        constraint = ""
    whole = nested.replace("[i", "[1")
    same_meaning(f"function (X[N, M]) -> (O, T) {{ T = {whole}; O[i : N] = int64({nested}) + 1{constraint}; }}", x)


@pytest.mark.parametrize("aggregation", ["mean", "argmax", "argmin", "sum", "max"])
def test_default_where_nothing_is_written(aggregation: str) -> None:
    source = f"function (X[N, M], D[K]) -> (O) {{ O[i : K] = {aggregation}(X[i, j]), i + j < 2 default D; }}"
    same_meaning(source, array(3, 4), array(5, dtype="float32" if aggregation in ("mean", "sum", "max") else "int64"))


def test_a_mean_over_whole_rows_needs_no_count() -> None:
    assert statements(flat("function (X[N, M]) -> (O) { O[i : N] = mean(X[i, j]); }", array(3, 4))) == [
        "O_sum[i : 3] = +(X[i, j]);",
        "O[i0 : 3] = O_sum[i0] / 4;",
    ]


def test_a_mean_with_a_border_counts_its_points() -> None:
    assert statements(flat("function (X[N]) -> (O) { O[i : N] = mean(X[i + k]), k < 3; }", array(5))) == [
        "O_sum[i : 5] = +(X[i + k]), k < 3;",
        "O_count[i : 5] = +(in(X[i + k])), k < 3;",
        "O[i0 : 5] = O_sum[i0] / max(O_count[i0], 1);",
    ]


def test_a_mean_of_halves_is_summed_in_float32_and_rounded_once() -> None:
    assert statements(
        flat("function (X[N, M]) -> (O) { O[i : N] = mean(X[i, j]); }", array(3, 4, dtype="float16"))
    ) == [
        "O_sum[i : 3] = +(float32(X[i, j]));",
        "O[i0 : 3] = float16(O_sum[i0] / 4);",
    ]


def test_argmax_numbers_the_box_of_its_variables() -> None:
    source = "function (X[N, M]) -> (O) { O[n : 2] = argmax(X[2*n + a, b + 1]), a < 2; }"
    x = np.zeros((4, 3), np.float32)
    x[1, 2], x[2, 1] = 5, 7
    (positions,) = same_meaning(source, x)
    assert positions.tolist() == [5, 1]  # b runs from -1 to 1, so (a, b) = (1, 1) is 1*3 + 2 and (0, 0) is 1


def test_the_first_of_equals_wins_and_nan_is_the_extreme() -> None:
    nan, inf = np.nan, np.inf
    x = np.array([[1, 3, 3, 0], [nan, 1, nan, 0], [0, nan, 5, inf], [-inf] * 4], np.float32)
    source = "function (X[N, M]) -> (P, Q) { P[i : N] = argmax(X[i, j]); Q[i : N] = argmin(X[i, j]); }"
    largest, least = same_meaning(source, x)
    assert largest.tolist() == [1, 0, 1, 0]
    assert least.tolist() == [3, 0, 1, 0]


def test_argmax_compares_halves_as_they_are_stored() -> None:
    text = statements(
        flat("function (X[N], Y[N]) -> (O) { O = argmax(X[i] * Y[i]); }", *[array(4, dtype="float16")] * 2)
    )
    assert any("float16(X[i] * Y[i]) == " in line for line in text)


def test_equal_aggregations_are_shared() -> None:
    source = """function (X[N, M]) -> (O, P) {
        O[i : N] = sum(X[i, j]) * sum(X[i, k]) + max(X[i, j]);
        P[a : N] = sum(X[a, b]) - 1;
    }"""
    same_meaning(source, array(3, 4))
    lines = statements(flat(source, array(3, 4)))
    assert [line.split("[")[0] for line in lines] == ["O_sum", "O_max", "O", "P"]


def test_ranges_are_exact_and_start_at_zero() -> None:
    source = "function (X[N], Y[M]) -> (O) { O[x : 9] = Y[x - 3] + sum(X[x - 2 + k]), k < 2; }"
    same_meaning(source, array(8), array(4))
    assert statements(flat(source, array(8), array(4)))[0] == "O_sum[x - 3 : 4] = +(X[k + x - 2]), k < 2;"


def test_a_nested_assign_takes_one_point() -> None:
    with pytest.raises(WriteConflict):
        flat("function (X[N, M]) -> (O) { O[i : N] = 1 + assign(X[i, j]); }", array(2, 3))
    same_meaning("function (X[N, M]) -> (O) { O[i : N] = 1 + assign(X[i, j]); }", array(2, 1))


def test_no_defract_reaches_what_is_hoisted() -> None:
    program = flat("function (X[N, M]) -> (O) { O[i : N] = 1 + sum(X[i, j]) no_defract; }", array(2, 3))
    assert all(s.no_defract for s in program.statements)
