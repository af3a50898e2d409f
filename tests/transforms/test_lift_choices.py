"""Functions of a choice among numbers: which become a choice among functions, and that values and types stay."""

from __future__ import annotations

import pytest
import torch

import tilec
from tilec import pipeline
from tilec.ir.types import TensorType
from tilec.language.show import show_statement
from tilec.pipeline import lower

HEAD = "function (X[N, M], W[N, M]) -> (Y) {{ Y[n, i : N, M] = {}; }}"
LIFTED = {
    "abs(i / 10.0 - (X[n, i] < 0 ? 1.0 : 0.0)) * W[n, i]":
        "(X[n, i] < 0 ? float32(abs(i / 10.0 - 1.0)) : float32(abs(i / 10.0 - 0.0))) * W[n, i]",
    "W[n, i] + exp(X[n, i] < W[n, i] ? i * 0.5 : n * 0.5)":
        "W[n, i] + (X[n, i] < W[n, i] ? float32(exp(i * 0.5)) : float32(exp(n * 0.5)))",
}  # fmt: skip
KEPT = (
    "(1 - (X[n, i] < 0 ? 1.0 : 0.0)) * W[n, i]",  # no place in it
    "(i + (X[n, i] < 0 ? 1 : 0)) * W[n, i]",  # integers
    "(i / 10.0 - (n < 3 ? 1.0 : 0.0)) * W[n, i]",  # no data decide
    "i / 10.0 * (rand(1, i) < W[n, i] ? rand(2, i) : 0.0)",  # drawn numbers
)


def lifted(body: str, dtype: str = "float32") -> str:
    f = tilec.compile(HEAD.format(body))
    types = {n: TensorType((3, 11), dtype) for n in f.program.input_names()}
    (s,) = lower(f.program, types, {}).stages["flat"].statements
    return show_statement(s)


@pytest.mark.parametrize("body", LIFTED)
def test_a_choice_among_numbers_stands_outside(body: str) -> None:
    assert lifted(body) == f"Y[n, i : 3, 11] = {LIFTED[body]};"
    assert "float32" not in lifted(body, "bfloat16")  # what it meets is of another type


@pytest.mark.parametrize("body", KEPT)
def test_others_stay(body: str) -> None:
    assert lifted(body).count("<") == body.count("<") and ": float32(" not in lifted(body)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("body", LIFTED)
def test_values_have_the_same_bits(body: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(3, 11).to(dtype), torch.randn(3, 11).to(dtype)
    x[0, :3] = torch.tensor([torch.nan, torch.inf, -0.0])
    found = tilec.compile(HEAD.format(body))(x, w)
    monkeypatch.setitem(pipeline.TRANSFORMS, "lift_choices", lambda program, setting: program)
    plain = tilec.compile(HEAD.format(body).replace("Y", "Z"))
    assert "float32(" not in str(plain.lower(x, w).stages["flat"])
    torch.testing.assert_close(found, plain(x, w), rtol=0, atol=0, equal_nan=True)
