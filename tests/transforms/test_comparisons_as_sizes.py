"""A comparison in size arithmetic is the integer 0 or 1, to the oracle as to the torch backend."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tilec

A, K = np.arange(1.0, 4.0), np.array(1)
SIZES = {
    "O[i : N == 3] = A[i];": [1.0],
    "O[i : N < 3] = A[i];": [],
    "O[i : K < 3] = A[i];": [1.0],
    "P = N == 3; O[i : P] = A[i];": [1.0],
    "O[i : (N == 3) * 2 + 1] = A[i];": [1.0, 2.0, 3.0],
    "O[i : -(N == 3) + 2] = A[i];": [1.0],
    "O[i : N == 3 ? 2 : 1] = A[i];": [1.0, 2.0],
    "P = N > 1 & N < 5; O[i : P + 1] = A[i];": [1.0, 2.0],
    "O[i : N] = A[i * (N == 3)];": [1.0, 2.0, 3.0],
    "O[i : N] = +(A[k]), k < (N > 2);": [1.0, 1.0, 1.0],
    "O = reshape(A, shape(A, 0) == 3, 3);": [[1.0, 2.0, 3.0]],
}


@pytest.mark.parametrize("text", SIZES)
def test_it_counts_as_a_number(text: str) -> None:
    source = f"function (A[N], K[]) -> (O) {{ {text} }}"
    assert np.asarray(tilec.interpret(source, A, K)).tolist() == SIZES[text]
    assert tilec.compile(source, backend="torch")(torch.from_numpy(A), torch.from_numpy(K)).tolist() == SIZES[text]


@pytest.mark.parametrize("text", ["O[i : ~(N == 3)] = A[i];", "O[i : N / (N == 4)] = A[i];", "O[i : B] = A[i];"])
def test_what_is_no_size(text: str) -> None:
    source = f"function (A[N], B[]) -> (O) {{ {text} }}"
    for run in (tilec.interpret, lambda s, *a: tilec.compile(s, backend="torch")(*map(torch.from_numpy, a))):
        with pytest.raises((tilec.SizeMistake, tilec.TypeMistake)):
            run(source, A, np.array(True))


def test_the_sign_of_nan_is_zero() -> None:
    x = np.array([np.nan, np.inf, -np.inf, -0.0])
    for result in (tilec.interpret("Y = sign(X);", x), tilec.compile("Y = sign(X);", backend="torch")(x)):
        np.testing.assert_array_equal(result, torch.sign(torch.from_numpy(x)).numpy())
