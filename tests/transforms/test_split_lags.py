"""Recurrences of long reaches as recurrences of blocks: the same values, and none where a remainder reads another."""

from __future__ import annotations

import numpy as np
import pytest
from support.stages import check, setting_of

from tilec.language import parse
from tilec.pipeline import bind_flat

CASES = {  # source, shapes, the outputs of the flat statements
    "a comb": (
        "function (X[B, T], G[B]) -> (Y) { Y[b, t : B, T] = X[b, t] + G[b] * Y[b, t - 16]; }",
        ((2, 48), (2,)),
        ["Y_by_lag", "Y"],
    ),
    "the last block in part": (
        "function (X[T]) -> (Y) { Y[t : T] = X[t] * t + Y[t - 16] init t; }",
        ((37,),),
        ["Y_by_lag", "Y"],
    ),
    "two reaches": (
        "function (X[T]) -> (Y) { Y[t : T] = X[t] - Y[t - 32] * Y[t - 16] init 1.0; }",
        ((50,),),
        ["Y_by_lag", "Y"],
    ),
    "ahead": ("function (X[T]) -> (Y) { Y[t : T] = X[t] + Y[t + 17]; }", ((40,),), ["Y_by_lag", "Y"]),
    "ahead, from beyond the end": (
        "function (X[T], Z[T]) -> (Y) { Y[t : T] = X[t] + Y[t + 16] init Z[t - 16]; }",
        ((48,), (48,)),
        ["Y_by_lag", "Y"],
    ),
    "ahead, from beyond an end within a block": (
        "function (X[T]) -> (Y) { Y[t : T] = X[t] + Y[t + 16] init t; }",
        ((37,),),
        ["Y"],
    ),
    "beside another axis": (
        "function (X[T, D]) -> (Y) { Y[t, d : T, D] = X[t, d] + Y[t - 16, (d - 1) % D]; }",
        ((40, 3),),
        ["Y_by_lag", "Y"],
    ),
    "nothing that bounds it": ("function (N) -> (Y) { Y[t : 37] = 1.0 + Y[t - 16]; }", ((),), ["Y"]),
    "another lag": ("function (X[T]) -> (Y) { Y[t : T] = X[t] + Y[t - 16] + Y[t - 17]; }", ((40,),), ["Y"]),
    "a short lag": ("function (X[T]) -> (Y) { Y[t : T] = X[t] + Y[t - 2]; }", ((40,),), ["Y"]),
    "a sum of itself": (
        "function (X[T, D], W[D, D]) -> (Y) { Y[t, i : T, D] = X[t, i] + sum(W[i, j] * Y[t - 16, j]); }",
        ((40, 2), (2, 2)),
        ["Y_by_lag", "Y"],
    ),
    "a maximum ahead, in part": (  # beyond the end it reads 0, not what has no points
        "function (P[T, S, S]) -> (F) { F[t, j : T, S] = >(F[t + 17, i] + P[t, i, j]); }",
        ((37, 2, 2),),
        ["F"],
    ),
    "elements of another tensor": (
        "function (X[T], Q[T]) -> (Y) { Y[t : T] = X[t] + Y[t - 16], t < 27 default Q; }",
        ((32,), (32,)),
        ["Y"],
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_same_values(name: str) -> None:
    source, shapes, outputs = CASES[name]
    random = np.random.default_rng(0)
    arrays = [random.integers(-1, 2, s).astype(float) for s in shapes]
    program = parse(source)
    check(program, arrays)
    setting = setting_of(program, arrays)
    assert [s.output for s in bind_flat(program, setting.types, setting.values).statements] == outputs
