"""Statements that need no memory: dimensions of size 1, and values that one reduction reads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tilec
from tilec.ir.types import TensorType
from tilec.language import parse, show
from tilec.pipeline import lower

SNAKE = "function (X, A[C]) -> (Y) { B = reshape(A, C, 1); Y = X + sin(B * X) * sin(B * X) / B; }"
SHAPES = {"X": (3, 4, 5), "A": (4,), "D": (3, 4, 5), "M": (4, 5), "K": (5, 6)}

SOURCES = {  # how many statements remain
    "a reshape that inserts": ("function (X[3, 4, 5], A[4]) -> (Y) { B = reshape(A, 4, 1); Y = X * B; }", 1),
    "one that drops": ("function (M[4, 5]) -> (Y) { B = reshape(M, 1, 4, 5); C = reshape(B, 4, 5); Y = C + 1; }", 1),
    "an output": ("function (M[4, 5]) -> (Y) { S[i, 0 : 4, 1] = +(M[i, j]); Y = reshape(S, 4); }", 1),
    "an output that is read twice": ("function (M[4, 5]) -> (Y, Z) { S[i, 0 : 4, 1] = +(M[i, j]); Y = reshape(S, 4); Z = S + 1; }", 3),  # noqa: E501
    "values of one sum": ("function (X[3, 4, 5], A[4]) -> (Y) { T[i, j, k] = sin(X[i, j, k] * A[j]); Y[j] = +(T[i, j, k]); }", 1),  # noqa: E501
    "values of two sums": ("function (M[4, 5]) -> (Y, Z) { T = sin(M); Y[j] = +(T[i, j]); Z[i] = +(T[i, j]); }", 3),
    "a factor": ("function (M[4, 5], K[5, 6]) -> (Y) { T = sin(M); Y[i, k] = +(T[i, j] * K[j, k]); }", 2),
    "part of the values": ("function (M[4, 5]) -> (Y) { T = sin(M); Y[i : 4] = +(T[i, j]), j < 3; }", 2),
    "a corner of the values": ("function (M[4, 5]) -> (Y) { T[i, j : 2, 3] = sin(M[i, j]); Y[i : 4] = +(T[i, j]); }", 1),  # noqa: E501
    "a diagonal": ("function (M[4, 5]) -> (Y) { T = sin(M); Y[] = +(T[i, i]); }", 2),
    "other rows": ("function (M[4, 5]) -> (Y) { T[i, j : 6, 5] = sin(M[i - 1, j]); Y[j] = +(T[i, j]); }", 2),
    "transposed": ("function (M[4, 5]) -> (Y) { T[j, i] = M[i, j]; Y[j] = +(T[j, i]); }", 2),
    "of another shape": ("function (M[4, 5]) -> (Y) { T = reshape(M, 5, 4); Y = T * T; }", 2),
    "a greatest value": ("function (M[4, 5]) -> (Y) { T = sin(M); Y[j] = >(T[i, j]); }", 2),
}  # fmt: skip


def flat(source: str, dtype: str):
    program = parse(source)
    types = {name: TensorType(SHAPES[name], dtype) for name in program.input_names()}
    return lower(program, types, {}).stages["flat"]


@pytest.mark.parametrize("name", SOURCES)
def test_statements_that_remain_and_their_meaning(name: str) -> None:
    source, count = SOURCES[name]
    lowered = flat(source, "float64")
    assert len(lowered.statements) == count
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=SHAPES[n]) for n in parse(source).input_names()]
    told, wanted = tilec.interpret(show(lowered), *inputs), tilec.interpret(source, *inputs)
    pairs = zip(told, wanted, strict=True) if isinstance(told, tuple) else [(told, wanted)]
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_a_gradient_through_inserted_dimensions_is_one_pass() -> None:
    gradient = tilec.compile(SNAKE).grad()
    x, a = tilec.spec((2, 4, 5)), tilec.spec((4,))
    statements = gradient.lower(x, a, x).stages["flat"].statements
    assert [s.output for s in statements] == ["DX", "DA_total", "DA"]


def test_what_is_not_stored_is_not_rounded_to_sixteen_bits() -> None:
    source = "function (X[3, 4, 5], A[4]) -> (Y) {{ T[i, j, k] = {}X[i, j, k] * A[j] * A[j]); Y[j] = +(T[i, j, k]); }}"
    x, a = torch.full((3, 4, 5), 133).bfloat16(), torch.full((4,), 3).bfloat16()
    assert tilec.compile(source.format("("))(x, a).tolist() == [17920] * 4  # 15 times 1197, rounded
    assert tilec.compile(source.format("bfloat16("))(x, a).tolist() == [18048] * 4  # 15 times 1200
