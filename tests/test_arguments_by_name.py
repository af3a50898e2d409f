"""Arguments by name: what a call takes, mixed with positional ones, and each mistake one can make with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tilec
from tilec.errors import InputMistake

SUBTRACT = "function (A[N], B[N], C[]) -> (D) { D = A - B * C; }"
A, B = torch.arange(3.0), torch.ones(3)
F = tilec.compile(SUBTRACT)

LEGAL = {
    "all by name": ((), {"A": A, "B": B, "C": 2}),
    "in any order": ((), {"C": 2, "B": B, "A": A}),
    "mixed": ((A,), {"C": 2, "B": B}),
    "the last by name": ((A, B), {"C": 2}),
}
MISTAKES = {
    "unknown": ((A, B), {"Q": 2}, "no input is called Q", "inputs: A, B, C"),
    "unknown, of the other case": ((A, B), {"c": 2}, "no input is called c", "did you mean `C`? inputs: A, B, C"),
    "duplicate": ((A, B), {"A": A, "C": 2}, "A is given twice, by position and by name", "argument 1 by position is A"),
    "missing": ((A,), {"C": 2}, "nothing is given for B", "add B=..."),
    "two missing": ((), {"C": 2}, "nothing is given for A, B", "add A=..."),
    "too many": ((A, B, 2, 3), {"C": 2}, "takes 3 inputs (A, B, C); got 5", ""),
}
ENTRIES = {
    "call": F,
    "lower": F.lower,
    "saved": F.saved,
    "interpret": lambda *args, **named: tilec.interpret(SUBTRACT, *args, **named),
    "tune": lambda *args, **named: tilec.tune(F, *args, **named),
}


@pytest.mark.parametrize("case", LEGAL)
def test_the_same_as_by_position(case: str) -> None:
    args, named = LEGAL[case]
    wanted = A - 2
    assert torch.equal(F(*args, **named), wanted) and torch.equal(F(*args, **named), wanted)
    np.testing.assert_array_equal(tilec.interpret(SUBTRACT, *args, **named), wanted)
    assert F.lower(*args, **named).outputs == F.lower(A, B, 2).outputs
    assert F.saved(*args, **named) == F.saved(A, B, 2)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(case: str, entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    args, named, message, hint = MISTAKES[case]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # tune asks for it first
    with pytest.raises(InputMistake) as caught:
        ENTRIES[entry](*args, **named)
    assert message in caught.value.message and hint in (caught.value.hint or "")


def test_gradients_and_recorded_calls() -> None:
    a = A.clone().requires_grad_()
    F(B=B, A=a, C=2).sum().backward()
    assert torch.equal(a.grad, torch.ones(3))
    da, db = F.grad(["A", "B"])(A, B, 2, DD=B)
    assert torch.equal(da, B) and torch.equal(db, -2 * B)


def test_no_inputs() -> None:
    with pytest.raises(InputMistake) as caught:
        tilec.compile("Y = 3.5")(X=1)
    assert "the function has no inputs" in str(caught.value)


@pytest.mark.parametrize("shape", [(3, 4), [3, 4], torch.Size((3, 4)), ()])
def test_a_shape_in_the_place_of_a_spec(shape) -> None:
    with pytest.raises(InputMistake) as caught:
        tilec.compile("Y = X").lower(shape)
    assert f"write tilec.spec({tuple(shape)})" in str(caught.value)


@pytest.mark.parametrize("shape, hint", [(3, "tilec.spec((3,))"), ("3,4", "one for each"), ((2.5,), "one for")])
def test_what_is_no_shape(shape, hint: str) -> None:
    with pytest.raises(InputMistake, match="a spec's shape is a sequence of integers") as caught:
        tilec.spec(shape)
    assert hint in (caught.value.hint or "")
    assert tilec.spec(np.array([3, 4])).shape == tilec.spec(torch.ones(3, 4).shape).shape == (3, 4)


def test_a_spec_in_the_place_of_data() -> None:
    with pytest.raises(InputMistake) as caught:
        tilec.compile("Y = X")(tilec.spec((3, 4)))
    assert "X: got a spec, which holds no data" in str(caught.value) and "f.lower" in str(caught.value)


def test_a_list_in_the_place_of_a_tensor() -> None:
    with pytest.raises(InputMistake) as caught:
        tilec.compile("Y = X")([1, 2])
    assert "torch.tensor(...)" in str(caught.value)
