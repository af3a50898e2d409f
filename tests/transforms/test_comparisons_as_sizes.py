"""A truth value in size arithmetic counts as 0 or 1; of truth values alone operators make what they make of values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.stages import check

import tilec
from tilec.language import parse

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
    "P = ~(N > 3) + 1; O[i : P] = A[i];": [1.0, 2.0],
    "P = ~(K > 3) + 1; O[i : P] = A[i];": [1.0, 2.0],
    "P = N > 3; O[i : ~P] = A[i];": [1.0],
    "O[i : ~(N == 3)] = A[i];": [],
    "O[i : ~(N & K) + 4] = A[i];": [1.0, 2.0],
    "P = (N > 2) + (N > 1); O[i : P] = A[i];": [1.0],
    "O[i : (N > 2) + (N > 1)] = A[i];": [1.0],
    "O[i : ~((N > 2) * (N > 5))] = A[i];": [1.0],
    "O[i : ~max(N > 5, N > 4) + ~min(N > 2, N > 7)] = A[i];": [1.0],
    "O[i : ~clamp(N > 5, N > 4, N > 2)] = A[i];": [1.0],
    "O[i : ~max(N > 2, 0) + 4] = A[i];": [1.0, 2.0],
    "O[i : ~(N > 2 ? N > 3 : N > 1)] = A[i];": [1.0],
    "O[i : ~(N > 2 ? N > 3 : 7) + 3] = A[i];": [1.0, 2.0],
    "O[i : ~same(N > 2, K > 0) + 3] = A[i];": [1.0],
    "O[i : 2] = A[i + ~(N > 3)];": [2.0, 3.0],
    "O[i : 2] = A[i * ~(N > 3) + ((N > 2) + (K > 0))];": [2.0, 3.0],
    "O[i : 1] = +(A[j]), j < ~(N > 3) + 1;": [3.0],
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("text", SIZES)
def test_it_counts_as_a_number(text: str) -> None:
    source = f"function (A[N], K[]) -> (O) {{ {text} }}"
    (result,) = check(parse(source), [A, K])
    assert result.tolist() == SIZES[text]
    assert tilec.compile(source, backend="torch")(torch.from_numpy(A), torch.from_numpy(K)).tolist() == SIZES[text]


@pytest.mark.parametrize("text", ["O[i : N / (N == 4)] = A[i];", "O[i : B] = A[i];"])
def test_what_is_no_size(text: str) -> None:
    source = f"function (A[N], B[]) -> (O) {{ {text} }}"
    for run in (tilec.interpret, lambda s, *a: tilec.compile(s, backend="torch")(*map(torch.from_numpy, a))):
        with pytest.raises((tilec.SizeMistake, tilec.TypeMistake)):
            run(source, A, np.array(True))


def test_the_sign_of_nan_is_zero() -> None:
    x = np.array([np.nan, np.inf, -np.inf, -0.0])
    for result in (tilec.interpret("Y = sign(X);", x), tilec.compile("Y = sign(X);", backend="torch")(x)):
        np.testing.assert_array_equal(result, torch.sign(torch.from_numpy(x)).numpy())


@pytest.mark.parametrize("value", ["~(N > 3)", "(N > 2) + (N > 1)", "~((N > 2) & (M < 5)) + 3", "~max(N > 5, N > 4)"])
def test_a_size_statement_is_the_value_that_it_would_be(value: str) -> None:
    source = f"function (A[N], B[M]) -> (P, O) {{ P = {value}; O[i : P + 4] = i; }}"
    p, o = tilec.compile(source, backend="torch")(torch.zeros(3), torch.zeros(5))
    assert len(o) == int(p) + 4
    of_tensors = f"function (A[], B[]) -> (P) {{ P = {value.replace('N', 'A').replace('M', 'B')}; }}"
    assert int(p) == int(tilec.interpret(of_tensors, np.array(3), np.array(5)))
