"""Bounds and comparisons of -|x|: ptxas 12.8 takes some of them for false, so kernels compare x."""

from __future__ import annotations

import pytest

import tilec
from tilec.backends.triton.emit.magnitudes import of_negated_magnitude, parts_of_lower_bound
from tilec.ir.index import linear
from tilec.ir.program import Expr
from tilec.language import parse
from tilec.language.show import show_expr

BOUNDS = {
    "min(i - 1, 1 - i)": ["i - 1", "-i + 1"],
    "1 - abs(i - j)": ["-i + j + 1", "i - j + 1"],
    "j - 2*max(2*i, -2*i)": ["-4 * i + j", "4 * i + j"],
    "min(i, 1 - i)": ["min(i, -i + 1)"],
    "abs(i) - 1": ["max(i, -i) - 1"],
    "i - 1": ["i - 1"],
}
MAGNITUDES = {
    "-abs(K[i])": "K[i]",
    "0 - abs(K[i])": "K[i]",
    "min(-K[i], K[i])": "-K[i]",
    "-max(K[i] - i, i - K[i])": "K[i] - i",
    "min(K[i], 1 - K[i])": None,
    "max(K[i], -K[i])": None,
    "abs(K[i])": None,
}


def body(text: str) -> Expr:
    return parse(f"function (K[N]) -> (O) {{ O[i : N] = {text}; }}").statements[0].body


@pytest.mark.parametrize("text", BOUNDS)
def test_bounds(text: str) -> None:
    (statement,) = parse(f"function (X[N]) -> (O) {{ O[i : N] = +(X[{text}] * X[j]); }}").statements
    form = linear(statement.body.args[0].index[0])
    assert [show_expr(p.to_expr()) for p in parts_of_lower_bound(form)] == BOUNDS[text]


@pytest.mark.parametrize("text", MAGNITUDES)
def test_magnitudes(text: str) -> None:
    found = of_negated_magnitude(body(text))
    assert (None if found is None else show_expr(found)) == MAGNITUDES[text]


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
@pytest.mark.parametrize("test", [">= -1", "> -2", "< -1", "<= -2", "== -1", "!= 0"])
def test_no_comparison_of_a_negated_magnitude(test: str, dtype: str) -> None:
    f = tilec.compile(f"function (K[N], X[N]) -> (O) {{ O[i : N] = sum(-abs(K[i]) {test} ? X[j]); }}", backend="triton")
    text = f.lower(tilec.spec((7,), dtype), tilec.spec((7,), "float32"), target="sm_90").source()
    assert "tl.abs" not in text
