"""Mistakes in calls of the Python functions: each says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tilec

F = tilec.compile("function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = +(A[i, k] * B[k, j]); }")
A, B = torch.ones(2, 3), torch.ones(3, 4)

CASES: dict[str, tuple[Callable[[], object], str]] = {
    "too few": (lambda: F(A), "nothing is given for B; inputs may be given by name, B=..."),
    "too many": (lambda: F(A, B, 3), "outputs and sizes are not arguments"),
    "too few, a size among them": (
        lambda: tilec.compile("Y[i : N] = X[i]")(A[0]),
        "N is an input, since no other one's shape declares it as in function (X[N])",
    ),
    "an output to write to": (lambda: F(A, B, out=A), "write out.copy_(f(...)); inputs: A, B"),
    "an entry of what has no name": (lambda: tilec.compile("Y = X", entry="f"), "leave `entry` out"),
    "by another case": (lambda: F.grad("a"), "did you mean `A`? inputs: A, B"),
    "a tangent by another name": (lambda: F.jvp("Q"), "inputs: A, B"),
    "a gradient of another shape": (lambda: F.grad()(A, B, torch.ones(4, 2)), "torch.ones_like"),
    "a shape for an argument": (lambda: F.lower((2, 3), (3, 4)), "write tilec.spec((2, 3))"),
    "sizes of a spec side by side": (lambda: tilec.spec(2, 3), "write tilec.spec((2, 3))"),  # type: ignore[arg-type]
    "a negative spec": (lambda: tilec.spec((-3,)), "a size is 0 or more"),
    "a batch of too few": (lambda: F.vmap(in_dims=(0,)), "a mapping such as {'A': 0}"),
    "a batch of another name": (lambda: F.vmap(in_dims={"b": 0}), "did you mean `B`?"),
    "a batch that is not there": (lambda: F.vmap(in_dims=5), "in_dims counts them from 0 to 2"),
    "a batch that is not there, out": (lambda: F.vmap(out_dims=5), "out_dims counts them from 0 to 2"),
    "elements of a batch of another rank": (
        lambda: torch.vmap(F)(torch.ones(5, 2, 3, 4), torch.ones(5, 3, 4)),
        "pass a tensor of rank 2 and the batch's dimension",
    ),
    "elements of a batch of fewer dimensions than are read": (
        lambda: torch.vmap(tilec.compile("Y[i, j] = X[i, j] + B[j]"), (0, None))(torch.ones(3, 4), torch.ones(4)),
        "pass a tensor of rank 2 and the batch's dimension",
    ),
    "a path": (lambda: tilec.compile(Path("a.tile")), "write tilec.load(path)"),  # type: ignore[arg-type]
    "a function": (lambda: tilec.compile(torch.exp), "tilec.from_torch"),  # type: ignore[arg-type]
    "no examples": (lambda: tilec.from_torch(torch.softmax), "give an example of each argument"),
    "a parameter of another name": (lambda: tilec.nn.Tile(F, parameters={"b": (3, 4)}), "did you mean `B`?"),
    "an option of another name": (lambda: tilec.compile("Y = X", backends="torch"), "did you mean `backend`?"),  # type: ignore[call-arg]
    "two names by position": (lambda: F.grad("A", "B"), "its arguments: wrt=None"),  # type: ignore[call-arg]
    "no target": (lambda: tilec.build(F, A, B, directory="x"), "its arguments: function, args, target"),  # type: ignore[call-arg]
    "an option of a module": (lambda: tilec.nn.Tile(F, params={"B": (3, 4)}), "did you mean `parameters`?"),  # type: ignore[call-arg]
    "parameters without shapes": (lambda: tilec.nn.Tile(F, parameters=["B"]), "{'W': (3, 4)}"),  # type: ignore[arg-type]
    "a number for a parameter": (lambda: tilec.nn.Tile(F, parameters={"B": 3.0}), "() is that of one number"),  # type: ignore[dict-item]
    "an integer parameter": (lambda: tilec.nn.Tile(F, parameters={"B": torch.ones(3, 4, dtype=torch.int8)}), "buffers"),
    "a shift of a float": (lambda: tilec.compile("Y = X << 2")(A), "or multiply by 2, 4, 8"),
    "a number too large": (lambda: tilec.compile("Y = X + 1e400"), "write `inf`"),
    "an attribute of a value": (lambda: tilec.compile("Y[i] = argmax(X[i, j]).x"), "no attributes"),
    "an index over zero": (lambda: tilec.compile("Y[i : 3] = X[i/0]")(A[0]), "another number than 0"),
    "a parameter of another rank": (lambda: tilec.nn.Tile(F, parameters={"B": (3,)}), "in the text: B[K, J]"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_hint(case: str) -> None:
    call, hint = CASES[case]
    with pytest.raises(tilec.TileError) as caught:
        call()
    assert hint in (caught.value.hint or ""), str(caught.value)


def test_a_path_is_a_path() -> None:
    with pytest.raises(tilec.TileError, match="load takes the path of a file; got int"):
        tilec.load(3)  # type: ignore[arg-type]


def test_a_mistake_inside_of_a_function_is_no_misfit_of_its_call() -> None:
    """A TypeError that a function raises itself stays what it is."""

    class Odd:
        __qualname__ = "Odd"

        def __iter__(self):
            raise TypeError("not today")

    with pytest.raises(TypeError, match="not today"):
        tilec.spec(Odd())  # type: ignore[arg-type]


def test_a_quoted_error_says_where_and_what_to_do() -> None:
    """torch.compile prints the repr of what a call raises while it traces."""
    with pytest.raises(tilec.TileError) as caught:
        F(A, torch.ones(5, 6))
    assert repr(caught.value).startswith("SizeMistake('<tile>:1:20: K is 3") and "; hint: one name" in repr(
        caught.value
    )


def test_a_target_that_does_not_exist_is_refused_at_once() -> None:
    pytest.importorskip("triton")
    for backend in (None, "triton"):
        with pytest.raises(tilec.Unsupported, match="there is no target 'h100'") as caught:
            F.lower(A, B, target="h100", backend=backend)
        assert caught.value.hint == "targets: sm_80, sm_89, sm_90"
