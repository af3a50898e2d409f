"""Sums written at clamped places: the same values as reads, with what the ends receive beside."""

from __future__ import annotations

import numpy as np
import pytest
from support.stages import check, setting_of

from tilec.language import parse
from tilec.pipeline import bind_flat

CASES = {  # source, shapes, outputs of the flat statements
    "an edge repeated": (
        "function (A[N, D]) -> (O) { O[clamp(i - 1, 0, N - 1), d : N, D] = +(A[i, d]); }",
        ((5, 2),),
        ["O_inside", "O_first", "O"],
    ),
    "halves": (
        "function (A[N]) -> (O) { O[clamp((i + 1)/2, 0, N/2 - 1) : N/2] = +(i % 2 != 0 ? A[i]); }",
        ((8,),),
        ["O_inside", "O_last", "O"],
    ),
    "many beyond both ends": (
        "function (A[N, D]) -> (O) { O[clamp(7 - 2*i, -1, 1) + 0, d : 4, D] = +(A[i, d] * i); }",
        ((7, 2),),
        ["O_inside", "O_last_sum", "O_last", "O"],
    ),
    "windows at an edge": (
        "function (A[N]) -> (O) { O[clamp(i + j - 2, 0, N - 1) : N] = +(A[i]), j < 5; }",
        ((4,),),
        ["O_inside", "O_first_sum", "O_first", "O_last_sum", "O_last", "O"],
    ),
    "both axes": (
        "function (A[N, M]) -> (O) { O[clamp(i - 1, 0, N), clamp(j, 1, 2) : N, M] = +(A[i, j]); }",
        ((4, 4),),
        None,
    ),
    "nothing inside": ("function (A[N]) -> (O) { O[clamp(i - 9, 0, N - 1) : N] = +(A[i]); }", ((4,),), None),
    "an element beyond the output": ("function (A[N]) -> (O) { O[clamp(i, 2, 9) : 3] = +(A[i]); }", ((5,),), None),
    "other aggregations": ("function (A[N]) -> (O) { O[clamp(i, 1, 2) : N] = >(A[i]); }", ((5,),), ["O"]),
    "limits that meet": ("function (A[N]) -> (O) { O[clamp(i, 2, 2) : N] = +(A[i]); }", ((5,),), None),
    "no such number": ("function (A[N]) -> (O) { O[clamp(i, 3, 1) : N] = +(A[i]); }", ((5,),), ["O"]),
}


@pytest.mark.parametrize("name", CASES)
def test_same_values_in_parts(name: str) -> None:
    source, shapes, outputs = CASES[name]
    random = np.random.default_rng(0)
    arrays = [random.integers(-3, 4, s).astype(float) for s in shapes]
    program = parse(source)
    check(program, arrays)
    if outputs is not None:
        setting = setting_of(program, arrays)
        assert [s.output for s in bind_flat(program, setting.types, setting.values).statements] == outputs


def test_half_precision_is_rounded_once() -> None:
    """256 + 1 + 1 in float32, which bfloat16 would lose one by one."""
    import torch

    import tilec

    source = "function (A[N]) -> (O) { O[clamp(i - 2, 0, 1) : 2] = +(A[i]); }"
    a = torch.tensor([1.0, 1.0, 256.0, 4.0], dtype=torch.bfloat16)
    assert tilec.compile(source, backend="torch")(a).tolist() == [258.0, 4.0]
