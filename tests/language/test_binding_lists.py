"""Aggregations that list what they bind: values, gradients, text, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from support.stages import check, gradient

from tilec.errors import AggregationMistake, SyntaxMistake, TileError, UnboundIndex
from tilec.ir.aggregations import AGGREGATIONS
from tilec.language import parse, show

_random = np.random.default_rng(0)
X, Y, Z = (_random.integers(-3, 4, shape).astype(float) for shape in ((3, 2), (4, 2), (2,)))
DISTANCES = ((X[:, None] - Y[None]) ** 2).sum(2)
SQUARE = "(X[i, d] - Y[j, d]) * (X[i, d] - Y[j, d])"
LISTS = {
    "nearest": (f"A[i : N] = min[j](sum[d]({SQUARE}))", DISTANCES.min(1)),
    "the outer without a list": (f"A[i : N] = sum(exp(-sum[d]({SQUARE})))", np.exp(-DISTANCES).sum(1)),
    "a sign": (f"A[i : N] = +(exp(-sum[d]({SQUARE})))", np.exp(-DISTANCES).sum(1)),
    "three levels": (f"A = sum[i](min[j](sum[d]({SQUARE})))", DISTANCES.min(1).sum()),
    "a name that two bind": (
        "A[i : N] = 1*max(sum[d](X[i, d] * Y[j, d])) + sum(Z[j])",
        (X @ Y.T).max(1) + Z.sum(),
    ),
    "an index with a stride": ("A[i : N] = 2*sum[j](sum[d](X[i, d] * Y[2*j + 1, d]))", 2 * (X @ Y[1::2].T).sum(1)),
    "numbered by the list": ("A[i : N] = 0 + argmax[d, j](X[i, d] - Y[j, d])", None),
    "on the left": ("A[i, j : N, M] = tanh(sum[d](X[i, d] * Y[j, d]))", np.tanh(X @ Y.T)),
    "of a made tensor": (
        "B[j, d : 2, D] = Y[j + 1, d]; A[i : N] = 1*max[j](sum[d](X[i, d] * B[j, d]))",
        (X @ Y[1:3].T).max(1),
    ),
    "all of them": ("A[i : N] = +(sum[j, d](X[i, d] * Y[j, d]))", (X @ Y.T).sum(1)),
    "none of them": ("A[i, j : N, M] = 1*sum[](X[i, 0] * Y[j, 0])", np.outer(X[:, 0], Y[:, 0])),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", LISTS)
def test_values_and_gradients(case):
    text, expected = LISTS[case]
    given = [x for name, x in (("X", X), ("Y", Y), ("Z", Z)) if f"{name}[" in text]
    inputs = ", ".join(d for d in ("X[N, D]", "Y[M, D]", "Z[K]") if d[:2] in text)
    program = parse(f"function ({inputs}) -> (A) {{ {text}; }}")
    results = check(program, given)
    assert expected is None or np.allclose(results[0], expected)
    first = gradient(program, given)
    seeds = [np.ones(r.shape) for r in results]
    check(first, [*given, *seeds])


def test_a_list_is_shown_where_the_text_would_bind_others():
    program = parse(f"function (X[N, D], Y[M, D]) -> (A) {{ {LISTS['nearest'][0]}; }}")
    assert f"A[i : N] = <(sum[d]({SQUARE})), j < M;" in show(program)
    plain = parse("function (X[N, D]) -> (A) { A[i : N] = 2*sum[d](X[i, d]); }")
    assert "2 * sum(X[i, d])" in show(plain)
    assert plain == parse("function (X[N, D]) -> (A) { A[i : N] = 2*sum(X[i, d]); }")


@pytest.mark.parametrize(
    ("text", "mistake", "part"),
    [
        (f"A[i : N] = sum(exp(-sum({SQUARE})))", AggregationMistake, r"`sum\[d\]\(...\)` leaves `j` to `sum`"),
        (f"A[i : N] = +(exp(-sum({SQUARE})))", AggregationMistake, "nothing is left for `\\+` to aggregate over"),
        ("A[i : N] = 2*max(sum(X[i, d] * Y[j, d]))", AggregationMistake, "binds `d` and `j`"),
        ("A[i : N] = sum[i](X[i, d])", AggregationMistake, "bound outside of this aggregation already"),
        ("A[i : N] = sum[d](X[i, d] * Y[j, d])", AggregationMistake, "leaves out `j`"),
        ("A[i : N] = 2*sum[d](X[i, d] * Y[j, d])", AggregationMistake, "`j` stands on the right side only"),
        ("A[i : N] = 2*sum[k](X[i, d])", UnboundIndex, "does not stand in what is aggregated"),
        ("A[i : N] = 2*sum[d, d](X[i, d])", AggregationMistake, "stands twice"),
        ("A[i : N] = exp[i](X[i, 0])", AggregationMistake, "is no aggregation"),
    ],
)
def test_mistakes(text, mistake, part):
    with pytest.raises(mistake, match=part):
        parse(f"function (X[N, D], Y[M, D]) -> (A) {{ {text}; }}")


def test_one_point_each_stays_legal():
    for text in ("A[i : N] = +(X[i, 0])", "A[i, d : N, D] = 2*sum(X[i, d])", "A[i : N] = +(sum(X[i, d]))"):
        parse(f"function (X[N, D]) -> (A) {{ {text}; }}")


@pytest.mark.parametrize("name", AGGREGATIONS)
@pytest.mark.parametrize(
    "text", ["Y[i] = «{}[j]»", "Y[i] = «{}[j]»;", "Y[i] = 2 * «{}[j, k]» + X[i];", "Y = exp(«{}[]»);"]
)
def test_a_list_without_a_body(name: str, text: str) -> None:
    marked = text.format(name)
    with pytest.raises(SyntaxMistake, match="needs parentheses") as found:
        parse(marked.replace("«", "").replace("»", ""))
    span, written = found.value.span, marked[marked.index("«") + 1 : marked.index("»")]
    assert (span.start, span.stop - span.start) == (marked.index("«"), len(written))
    assert f"write {written}(...)" in str(found.value)


@pytest.mark.parametrize("text", ["Y[i] = sum();", "Y = max[i]();", "Y[i] = 2 * mean() + X[i];"])
def test_an_aggregation_of_nothing(text: str) -> None:
    with pytest.raises(TileError):
        parse(text)


@pytest.mark.parametrize("name", [a for a in AGGREGATIONS if a not in ("max", "min")])
@pytest.mark.parametrize("text", ["Y[i] = {} + X[i];", "Y = {};"])
def test_an_aggregation_that_is_not_called(name: str, text: str) -> None:
    with pytest.raises(TileError, match=f"`{name}` is an aggregation"):
        parse(text.format(name))
