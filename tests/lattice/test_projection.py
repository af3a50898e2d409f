"""Projections by elimination: where they answer, they answer what enumeration does."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from tilec.ir.index import Affine
from tilec.lattice.projection import Inexact, holds_on, inequalities, project_out, ranges

NAMES = ("x", "y", "z")
forms = st.builds(
    lambda c, k: Affine.combine(dict(zip(NAMES, c, strict=True)), k),
    st.tuples(*[st.sampled_from((0, 0, 1, 1, -1, 2, -2, 3))] * 3),
    st.integers(-4, 4),
)
REACH = range(-3, 4)


def points(conditions: list[tuple[Affine, int]]) -> list[tuple[int, ...]]:
    def value(form: Affine, p: tuple[int, ...]) -> int:
        return int(form.constant + sum(form.coefficient(n) * v for n, v in zip(NAMES, p, strict=True)))

    every = itertools.product(REACH, repeat=3)
    return [p for p in every if all(0 <= value(f, p) < n for f, n in conditions)]


@settings(max_examples=100)
@given(st.lists(st.tuples(forms, st.integers(1, 7)), max_size=3))
def test_ranges_are_those_of_the_points(drawn: list[tuple[Affine, int]]) -> None:
    boxed = [(Affine.variable(n) + 3, len(REACH)) for n in NAMES]
    conditions = [*drawn, *boxed]
    found = points(conditions)
    try:
        computed = ranges(inequalities(conditions), NAMES)
    except Inexact:
        return
    expected = [(min(p[k] for p in found), max(p[k] for p in found)) for k in range(3)] if found else None
    assert computed == expected


@settings(max_examples=100)
@given(st.lists(st.tuples(forms, st.integers(1, 7)), min_size=1, max_size=3))
def test_what_is_left_is_the_shadow(drawn: list[tuple[Affine, int]]) -> None:
    conditions = [*drawn, *[(Affine.variable(n) + 3, len(REACH)) for n in NAMES]]
    try:
        left = project_out(inequalities(conditions), ["y", "z"])
    except Inexact:
        return
    shadow = {p[0] for p in points(conditions)}
    assert {x for x in REACH if holds_on(left, {"x": (x, x)})} == shadow


def test_what_elimination_cannot_say_is_said() -> None:
    """2x = 3y + 1 has solutions for every other y alone."""
    conditions = [(Affine.combine({"x": 2, "y": -3}, -1), 1), (Affine.variable("x"), 9), (Affine.variable("y"), 9)]
    try:
        ranges(inequalities(conditions), ("x", "y"))
    except Inexact:
        return
    raise AssertionError("elimination is not exact here")


def test_a_common_divisor_of_the_coefficients_is_no_obstacle() -> None:
    """0 <= 3x < 20 and 0 <= x - 2y < 5 and 0 <= 3y < 3."""
    x, y = Affine.variable("x"), Affine.variable("y")
    conditions = [(x * 3, 20), (x - y * 2, 5), (y * 3, 3)]
    assert ranges(inequalities(conditions), ("x", "y")) == [(0, 4), (0, 0)]
