"""Naming an intermediate changes neither a value nor a type: random expressions of mixed types, whole and in parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.naming import agree
from support.scale import scaled

import tilec


def compiled(source, arrays):
    return tilec.compile(source, backend="torch")(*map(torch.from_numpy, arrays)).numpy()


def interpreted(source, arrays):
    with np.errstate(all="ignore"):
        return tilec.interpret(source, *arrays)


@pytest.mark.parametrize("run", [compiled, interpreted])
@pytest.mark.parametrize("indexed", [False, True], ids=["elementwise", "bodies"])
@pytest.mark.covering
def test_named_parts(run, indexed):
    assert agree(run, indexed, range(scaled(50))) > scaled(9)


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
