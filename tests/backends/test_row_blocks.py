"""Blocks of rows that fill no power of two: what lies beyond a row takes no registers."""

from __future__ import annotations

import re

import pytest

import tilec
from tilec.lowered import Lowered

SOFTMAX = """function (X[N, D]) -> (Y) {
    M[i : N] = >(X[i, j]);
    S[i : N] = +(exp(X[i, j] - M[i]));
    Y[i, j : N, D] = exp(X[i, j] - M[i]) / S[i];
}"""


def lowered(source: str, *shapes: tuple[int, ...], dtype: str = "float32") -> Lowered:
    return tilec.compile(source, backend="triton").lower(*(tilec.spec(s, dtype) for s in shapes), target="sm_90")


@pytest.mark.parametrize(
    ("columns", "width"),
    [(8192, None), (5000, 5120), (5120, 5120), (5121, 5632), (7900, None), (1100, 1152), (900, None), (500, None)],
)
def test_width_stands_in_the_text(columns: int, width: int | None) -> None:
    """In sixteenths of a block, with the places before a row's first where rows begin anywhere."""
    (found,) = re.findall(r"BN=\d+,(?: WIDTH=(\d+),)? num_warps", lowered(SOFTMAX, (512, columns)).source())
    assert found == ("" if width is None else str(width))


@pytest.mark.parametrize(("columns", "dropped"), [(8192, 0), (5000, 3), (5001, 3)])
def test_registers_beyond_a_row_are_not_loaded(columns: int, dropped: int) -> None:
    loads = [line for line in lowered(SOFTMAX, (512, columns)).asm("llir").splitlines() if "ld.global" in line]
    assert len(loads) - dropped >= 3
    assert sum("i1 false" in line for line in loads) == dropped


@pytest.mark.parametrize(
    ("columns", "dtype", "warps", "aligned"),
    [
        (5108, "bfloat16", 4, False),  # 8 bytes at once
        (5066, "bfloat16", 4, False),  # 4
        (4851, "bfloat16", 8, True),
        (8000, "bfloat16", 8, False),
        (4851, "float32", 8, True),
        (7991, "float32", 16, True),
        (4850, "float32", 8, False),
    ],
)
def test_rows_of_few_registers_take_few_warps(columns: int, dtype: str, warps: int, aligned: bool) -> None:
    """Half as many where a quarter of a block lies beyond its rows; rows of which a thread reads two elements at once,
    in four bytes, are read in place."""
    text = lowered(SOFTMAX, (4096, columns), dtype=dtype).source()
    assert f"num_warps={warps}," in text and ("origin" in text) == aligned
