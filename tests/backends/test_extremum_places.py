"""Which recorded calls keep the places of extrema of distances."""

from __future__ import annotations

import pytest

import tilec
from tilec.ir.types import TensorType
from tilec.saving import partition

SQUARES = "S[i, j : N, M] = +((X[i, d] - Y[j, d]) * (X[i, d] - Y[j, d]));"
LEAST = f"{SQUARES} O[i : N] = <(S[i, j]);"


def kept(text, rows=9001, columns=9007, terms=56, dtype="float32", chooses=True):
    program = tilec.compile(f"function (X[N, D], Y[M, D]) -> (O) {{ {text} }}").program
    types = {"X": TensorType((rows, terms), dtype), "Y": TensorType((columns, terms), dtype)}
    return partition(program, ("X", "Y"), types, {}, True, None, chooses)


def test_places_and_both_forms():
    parts = kept(LEAST)
    assert parts.extra == parts.constant == ("O_places",)
    assert parts.kept["O_places"] == TensorType((2, 9001), "int32")
    text = str(parts.backward.program)
    assert "Y[O_places[e, i], d]" in text and "Otherwise[] ?" in text and "Ties" in text


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (LEAST, {"chooses": False}),
        (LEAST, {"rows": 1000, "columns": 1000}),  # little work beside so many launches
        (LEAST, {"terms": 16}),  # places take long beside a distance
        (LEAST, {"dtype": "bfloat16"}),  # ties are frequent
        ("S[i, j : N, M] = +(X[i, d] * Y[j, d]); O[i : N] = <(S[i, j]);", {}),
        (f"{SQUARES} O[i : N] = <(i < j ? S[i, j]);", {}),
    ],
)
def test_what_keeps_none(text, given):
    assert "O_places" not in kept(text, **given).extra
