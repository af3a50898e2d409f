"""What conditions and places are all over a box."""

from __future__ import annotations

import pytest

import tilec
from tilec.backends.common.box_values import resolved, truth_over
from tilec.backends.common.domain import build_domain
from tilec.ir.infer import expression_type
from tilec.ir.program import Call, Statement
from tilec.ir.types import TensorType, Types

TYPES: Types = {"X": TensorType((8,), "float32"), "Y": TensorType((6,), "float32")}


def _statement(body: str) -> Statement:
    """`Y[i : 6] = body` over all i from 0 to 5, sizes known."""
    source = f"function (X[8]) -> (Y) {{ Y[i : 6] = {body}; }}"
    return tilec.compile(source).lower(tilec.spec((8,), "float32")).stages["bound"].statements[0]


@pytest.mark.parametrize(
    "condition, known",
    [("i < 6", True), ("i >= 6", False), ("i < 5", None), ("i >= 0 & i < 6", True), ("i < 0 | i > 7", False),
     ("i % 2 == 0", None), ("X[i] > 0", None)],
)  # fmt: skip
def test_conditions_over_a_box(condition: str, known: bool | None) -> None:
    s = _statement(f"{condition} ? X[i] : 0")
    box = build_domain(s, TYPES)
    assert box is not None and isinstance(s.body, Call)
    assert truth_over(s.body.args[0], box, TYPES) is known


@pytest.mark.parametrize(
    "body, place",
    [("X[(i + 1) % 8]", "X[i + 1]"), ("X[(i + 8) % 8]", "X[i]"), ("X[clamp(i - 1, 0, 7)]", "X[clamp(i - 1, 0, 7)]"),
     ("X[clamp(i + 1, 0, 7)]", "X[i + 1]"), ("i < 6 ? X[i] : X[i + 2]", "X[i]"), ("pad(X[i + 2], 0)", "X[i + 2]"),
     ("pad(X[i + 3], 0)", "pad(X[i + 3], 0)")],
)  # fmt: skip
def test_places_and_branches_over_a_box(body: str, place: str) -> None:
    s, wanted = _statement(body), _statement(place)
    box = build_domain(wanted, TYPES)
    assert box is not None
    assert resolved(s.body, box, TYPES) == wanted.body


def test_numbers_of_branches_stay_weak() -> None:
    """A cast would have its type prevail: products of float32 would be float64."""
    s = _statement("X[i] * (i < 6 ? 1 : 0.5)")
    box = build_domain(s, TYPES)
    assert box is not None
    assert expression_type(resolved(s.body, box, TYPES), TYPES).dtype == "float32"
