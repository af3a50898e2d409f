"""Which conditions on positions stand in the masks of loads."""

from __future__ import annotations

import re

import pytest

import tilec

SHAPE = (64, 56, 56, 384)
SHIFT = """function (X[N, H, W, C]) -> (Y) {
    Y[n, y, x, c : N, H, W, C] = c < C/2 ? pad(X[n, y, x + 1, c], 0) : pad(X[n, y, x - 1, c], 0);
}"""


def masks(source: str, shapes: list[tuple[int, ...]], gradient: bool = False) -> list[str]:
    """The masks of all loads."""
    f = tilec.compile(source, backend="triton")
    f = f.grad() if gradient else f
    text = f.lower(*(tilec.spec(s) for s in shapes), target="sm_90").source()
    return re.findall(r"tl\.load\(.*mask=(.*), other=", text)


@pytest.mark.parametrize("gradient", [False, True])
def test_groups_of_channels_are_read_where_they_are_needed(gradient: bool) -> None:
    found = masks(SHIFT, [SHAPE] * (1 + gradient), gradient)
    assert len(found) == 2 and all("192" in mask or "t" in re.findall(r"\w+", mask) for mask in found), found


@pytest.mark.parametrize(
    "condition, masked",
    [
        ("c < 32", True),
        ("c >= 32", True),
        ("y > 3", True),
        ("c < 32 & y > 3", True),
        ("c < 33", False),  # a vector would lie on both sides
        ("c > 32", False),
        ("y < c", False),
        ("Z[y, c] > 0", False),  # not known before
        ("L[y] > 0", False),
    ],
)
def test_conditions_that_vectors_share(condition: str, masked: bool) -> None:
    source = f"""function (X[H, C], Z[H, C], L[H]) -> (Y) {{
        Y[y, c : H, C] = {condition} ? X[y, c] : Z[y, c] + L[y]; }}"""
    shapes = [(5000, 384), (5000, 384), (5000,)]
    plain = masks(source.replace(condition, "Z[y, c] == L[y]"), shapes)
    assert (sorted(masks(source, shapes)) != sorted(plain)) == masked


def test_what_is_read_without_the_condition_has_none() -> None:
    source = "function (X[H, C], Z[H, C]) -> (Y) { Y[y, c : H, C] = (c < 32 ? X[y, c] : 0) + X[y, c] * Z[y, c]; }"
    assert not any("32" in mask for mask in masks(source, [(5000, 384)] * 2))


def test_a_flat_map_has_none() -> None:
    """Where one position runs through all variables vectors cross the ends of the last."""
    source = "function (X[H, C], Z[H, C]) -> (Y) { Y[y, c : H, C] = y % 2 == 0 ? X[y, c] : Z[y, c]; }"
    assert not any("==" in mask for mask in masks(source, [(50000, 7)] * 2))
