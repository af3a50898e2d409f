"""Naming an intermediate changes neither a value nor a type: random expressions of mixed types, whole and in parts."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from support.naming import named

import tilec
from tilec.errors import TileError

SCALE = int(os.environ.get("TILEC_RANDOM_SCALE", "1"))


def compiled(source, arrays):
    return tilec.compile(source)(*map(torch.from_numpy, arrays)).numpy()


def interpreted(source, arrays):
    with np.errstate(all="ignore"):
        return tilec.interpret(source, *arrays)


def outcome(run, source, arrays):
    """The result, or the name of the mistake that refuses the text."""
    try:
        return run(source, arrays)
    except TileError as error:
        return type(error).__name__


@pytest.mark.parametrize("run", [compiled, interpreted])
@pytest.mark.parametrize("indexed", [False, True], ids=["elementwise", "bodies"])
def test_named_parts(run, indexed):
    compared = 0
    for seed in range(80 * SCALE):
        whole, apart, inputs = named(seed, indexed)
        arrays = [np.asarray(a) for a in inputs.values()]
        one, other = outcome(run, whole, arrays), outcome(run, apart, arrays)
        if isinstance(one, str) or isinstance(other, str):
            assert one == other, (whole, apart)
            continue
        assert one.dtype == other.dtype, (whole, apart)
        if "float16" not in whole and all(a.dtype != np.float16 for a in arrays):  # a name rounds to 16 bits
            np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=f"{whole}\n{apart}")
            compared += 1
    assert compared > 15 * SCALE


@pytest.mark.parametrize(
    ("whole", "apart", "dtype"),
    [
        ("Y = (A ? S : S) - B;", "T = A ? S : S; Y = T - B;", torch.float64),  # the condition has dimensions
        ("Y[i : 2] = S[] * i * B[i];", "T[i : 2] = S[] * i; Y[i : 2] = T[i] * B[i];", torch.float64),
        ("Y[i : 2] = X[0] * B[i];", "T[] = X[0]; Y[i : 2] = T[] * B[i];", torch.float64),  # counts as X does
        ("Y = float64(2.0) * B;", "T = float64(2.0); Y = T * B;", torch.float64),
        ("Y = (S + 1) * B;", "T = S + 1; Y = T * B;", torch.float32),
    ],
)
def test_what_counts_as_having_dimensions(whole, apart, dtype):
    single, double = torch.tensor(2.5, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    for body in (whole, apart):
        f = tilec.compile(f"function (A[2], S[], B[2], X[3]) -> (Y) {{ {body} }}")
        assert f(torch.tensor([True, False]), single, torch.ones(2), double).dtype is dtype
