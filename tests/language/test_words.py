"""Words of indices and values: reflection by abs, max and min, clamp as a function, the literals inf, pi and nan."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.stages import check, gradient

import tilec
from tilec.ir.program import Float
from tilec.language import parse, show

X = np.array([3.0, -1.0, 2.0, 5.0, -4.0])

INDICES = {
    "reflection at the left": ("Y[i : N] = X[abs(i - 2)]", [X[[2, 1, 0, 1, 2]]]),
    "reflection at both ends": ("Y[i : N + 4] = X[N - 1 - abs(N - 1 - abs(i - 2))]", [X[[2, 1, 0, 1, 2, 3, 4, 3, 2]]]),
    "replication": ("Y[i : N + 3] = X[min(max(i - 1, 0), N - 1)]", [X[[0, 0, 1, 2, 3, 4, 4, 4]]]),
    "distance": ("Y[i : N] = +(X[max(i - j, j - i)]), j < 2", [X + X[[1, 0, 1, 2, 3]]]),
    "on the left": ("Y[abs(i - 2) : N] = +(X[i])", [[2.0, 4.0, -1.0, 0.0, 0.0]]),
    "a constraint": ("Y[i : N] = +(X[j]), abs(i - j) < 2", [[2.0, 4.0, 6.0, 3.0, 1.0]]),
    "a half is no integer": ("Y[i : N] = X[max(i/2, 1)]", [[-1.0, 0.0, -1.0, 0.0, 2.0]]),
    "in a recurrence": ("Y[t : N] = X[abs(t - 1)] + Y[t - 1]", [np.cumsum(X[[1, 0, 1, 2, 3]])]),
    "of elements": ("Z = int64(X); Y[i : N] = X[min(abs(Z[i]), N - 1)]", [X[[3, 1, 2, 4, 4]]]),
}


@pytest.mark.parametrize("case", INDICES)
def test_extrema_in_an_index(case):
    text, expected = INDICES[case]
    program = parse(f"function (X[N]) -> (Y) {{ {text}; }}")
    (got,) = check(program, [X])
    assert np.array_equal(got, expected[0])
    check(gradient(program, [X]), [X, np.arange(1.0, len(got) + 1)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
def test_clamp_is_torchs(dtype):
    x = torch.tensor([-3, -1, 0, 1, 2, 5]).to(dtype)
    assert torch.equal(tilec.compile("Y = clamp(X, -1, 2)")(x), torch.clamp(x, -1, 2))
    low, high = torch.tensor([0, 0, 1, 1, 3, 3]).to(dtype), torch.tensor([1, 1, 0, 2, 2, 4]).to(dtype)
    tensors = [x, low, high]
    if dtype.is_floating_point:
        tensors = [t.requires_grad_() for t in tensors]
    got = tilec.compile("Y[i : 6] = clamp(X[i], L[i], H[i])")(*tensors)
    wanted = torch.clamp(*tensors)
    assert torch.equal(got, wanted)
    if dtype.is_floating_point:
        for a, b in zip(
            torch.autograd.grad(got.sum(), tensors), torch.autograd.grad(wanted.sum(), tensors), strict=True
        ):
            assert torch.equal(a, b)


def test_named_literals():
    program = parse("function (X) -> (Y, Z) { Y = X > 2 ? inf : X < 0 ? -inf : 2pi; Z = X > 2 ? nan : X; }")
    y, z = check(program, [X])
    assert np.array_equal(y, [np.inf, -np.inf, 2 * np.pi, np.inf, -np.inf])
    assert np.array_equal(np.isnan(z), X > 2)
    assert " inf " in show(program) and "nan" in show(program) and "2 * pi" in show(program)
    assert Float(float("nan")) == Float(-float("nan")) == parse("Y = nan").statements[0].body


def test_a_name_of_a_literal_is_no_index_variable():
    with pytest.raises(tilec.TileError, match="integers only"):
        parse("function (X[N]) -> (Y) { Y[i : N] = X[pi]; }")
