"""What is wrong once shapes and types are known: one class each, the place, the sizes and where they came from."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tilec.errors import (
    AggregationMistake,
    InputMistake,
    NoSchedule,
    RankMistake,
    SizeMistake,
    TileError,
    TypeMistake,
    UnboundIndex,
    WriteConflict,
)
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.transforms.bind.bind import bind


def f(*shape: int) -> TensorType:
    return TensorType(shape, "float32")


def i(*shape: int) -> TensorType:
    return TensorType(shape, "int64")


def refuse(
    source: str, types: Mapping[str, TensorType], values: Mapping[str, int] | None = None
) -> tuple[TileError, str]:
    """The error of binding, and the text under its span."""
    program = parse(source)
    with pytest.raises(TileError) as caught:
        bind(program, types, values or {})
    error = caught.value.located(source)
    assert str(error)
    return error, "" if error.span is None else source[error.span.start : error.span.stop]


CASES = {
    "sizes that disagree": (
        "function (A[N, K], B[K, M]) -> (C) { C[i, j : N, M] = +(A[i, k] * B[k, j]); }",
        {"A": f(2, 3), "B": f(4, 5)},
        SizeMistake,
        "K is 3 (dimension 1 of A) and 4 (dimension 0 of B)",
        "B",
    ),
    "a literal dimension": (
        "function (A[3, N]) -> (B) { B = A; }",
        {"A": f(2, 3)},
        SizeMistake,
        "dimension 0 of A must be 3, as declared; it is 2",
        "A",
    ),
    "the rank of an input": (
        "function (A[N, K]) -> (B) { B = A; }",
        {"A": f(2)},
        RankMistake,
        "A has 1 dimension, shape (2,), but is declared A[N, K]",
        "A",
    ),
    "a missing input": ("function (A) -> (B) { B = A; }", {}, InputMistake, "the input A is missing", "A"),
    "complex numbers": (
        "function (A) -> (B) { B = A; }",
        {"A": TensorType((2,), "complex64")},
        TypeMistake,
        "element type complex64 is not supported",
        "A",
    ),
    "a negative size": (
        "function (A[N], B[M]) -> (C) { P = N - M; C[i : P/2 + 1] = A[i]; }",
        {"A": f(2), "B": f(7)},
        SizeMistake,
        "size 0 of C is `P/2 + 1` = -1, a negative size",
        "P/2 + 1",
    ),
    "division by zero in a size": (
        "function (A[N]) -> (C) { P = 6/N; C[i : P] = A[i]; }",
        {"A": f(0)},
        SizeMistake,
        "division by zero",
        "6/N",
    ),
    "the rank of a bare input": (
        "function (A, B) -> (C) { C[i : 3] = A[i]; }",
        {"A": f(2, 3), "B": f()},
        RankMistake,
        "A has 2 dimensions, shape (2, 3), but 1 index is given",
        "A[i]",
    ),
    "a dimension that is not there": (
        "function (A) -> (C) { C[i : 3] = i + shape(A, 2); }",
        {"A": f(2, 3)},
        RankMistake,
        "A has 2 dimensions, so no dimension 2",
        "shape(A, 2)",
    ),
    "broadcasting": (
        "function (A, B, C) -> (D) { D = A * B + C; }",
        {"A": f(2, 3), "B": f(3), "C": f(2, 4)},
        SizeMistake,
        "A of shape (2, 3) and C of shape (2, 4) do not broadcast: 3 and 4 in dimension -1",
        "C",
    ),
    "sizes left out that disagree": (
        "function (A, B) -> (C) { C[i] = A[i] + B[i]; }",
        {"A": f(3), "B": f(4)},
        SizeMistake,
        "size 0 of C: the places where i stands disagree: 3 (dimension 0 of A), 4 (dimension 0 of B)",
        "i",
    ),
    "two writers": (
        "function (A[N]) -> (C) { P = N - 2; C[P*i : 9] = A[i] + P; }",
        {"A": f(2)},
        WriteConflict,
        "two points write one element of C",
        "C[P*i : 9] = A[i] + P",
    ),
    "an index that a size of zero leaves unbound": (
        "function (A[N], B[M]) -> (C) { C[] = +(A[M*i]); }",
        {"A": f(2), "B": f(0)},
        UnboundIndex,
        "nothing bounds the index variable i",
        "C[] = +(A[M*i])",
    ),
    "bits of a float": (
        "function (A[N], B[N]) -> (C) { C[i : N] = A[i] & B[i]; }",
        {"A": f(2), "B": i(2)},
        TypeMistake,
        "`&` works on the bits of integers and bool, not on float32 and int64",
        "A[i] & B[i]",
    ),
    "minus of bool": (
        "function (A) -> (C) { C = -(A > 0); }",
        {"A": f(2)},
        TypeMistake,
        "unary `-` does not take bool",
        "-(A > 0)",
    ),
    "a float as an index": (
        "function (A[N], I[M]) -> (C) { C[j : M] = A[I[j]]; }",
        {"A": f(2), "I": f(2)},
        TypeMistake,
        "an index holds integers; this one holds float32",
        "I[j]",
    ),
    "a float gathered": (
        "function (A, I) -> (C) { C = gather(A, I); }",
        {"A": f(2), "I": f(2)},
        TypeMistake,
        "gather: I holds float32",
        "I",
    ),
    "a float as a size": (
        "function (A, S) -> (C) { C[j : S] = A[j]; }",
        {"A": f(2), "S": f()},
        TypeMistake,
        "S is used in a size, so it must be an integer, not float32",
        "S",
    ),
    "a tensor as a size": (
        "function (A, S) -> (C) { C[j : S] = A[j]; }",
        {"A": f(2), "S": i(3)},
        RankMistake,
        "S is used in a size, so it must be one integer; its shape is (3,)",
        "S",
    ),
    "a size without its value": (
        "function (A, S) -> (C) { C[j : S] = A[j]; }",
        {"A": f(2), "S": i()},
        InputMistake,
        "its value is needed",
        "S",
    ),
    "a default that does not fit": (
        "function (A, D) -> (C) { C[j : 3] = A[j] default D; }",
        {"A": f(2), "D": f(2)},
        SizeMistake,
        "the default D of shape (2,) does not broadcast to C of shape (3,)",
        "C[j : 3] = A[j]",
    ),
    "a default of another kind": (
        "function (A, D) -> (C) { C[j : 3] = A[j] default D; }",
        {"A": i(2), "D": f(3)},
        TypeMistake,
        "the default D holds float32, but C holds int64",
        "C[j : 3] = A[j]",
    ),
    "reshape": (
        "function (A) -> (C) { C = reshape(A, 4, 2); }",
        {"A": f(2, 3)},
        SizeMistake,
        "A of shape (2, 3) has 6 elements, the shape (4, 2) has 8",
        "reshape(A, 4, 2)",
    ),
    "scatter": (
        "function (A, I, Y) -> (C) { C = scatter(A, I, Y); }",
        {"A": f(2), "I": i(2), "Y": f(2, 3)},
        SizeMistake,
        "scatter: A of shape (2,) does not fit I of shape (2,) and Y of shape (2, 3)",
        "scatter(A, I, Y)",
    ),
    "gather from a number": (
        "function (A, I) -> (C) { C = gather(A, I); }",
        {"A": f(), "I": i(2)},
        RankMistake,
        "gather: A has no dimension to index",
        "A",
    ),
    "simple_reduce": (
        "function (G, X) -> (C) { C = simple_reduce(G, X); }",
        {"G": f(2, 3), "X": f(2)},
        SizeMistake,
        "do not broadcast",
        "G",
    ),
    "a recurrence without an order": (
        "function (A[N]) -> (H) { H[t : N] = H[(t - 1) % N] + A[t]; }",
        {"A": f(2)},
        NoSchedule,
        "no order computes every element of H before this read",
        "H[(t - 1) % N]",
    ),
    "a recurrence at computed places": (
        "function (A[N]) -> (H) { H[t % N : N] = +(H[t - 1] + A[t]); }",
        {"A": f(2)},
        AggregationMistake,
        "the output index of a recurrence is affine",
        "t % N",
    ),
    "a floating seed": (
        "function (S[]) -> (R) { R[k : 4] = rand(S, k); }",
        {"S": f()},
        TypeMistake,
        "the seed of rand is an integer, not float32",
        "rand(S, k)",
    ),
    "a seed of bool": (
        "function (X, S) -> (R) { R = X * randn(S > 1); }",
        {"X": f(2), "S": i()},
        TypeMistake,
        "the seed of randn is an integer, not bool",
        "randn(S > 1)",
    ),
    "a floating counter": (
        "function (S[]) -> (R) { R[k : 4] = rand(S, k * 0.5); }",
        {"S": i()},
        TypeMistake,
        "the counter of rand is an integer, not float64",
        "rand(S, k * 0.5)",
    ),
    "a seed with dimensions": (
        "function (X, S) -> (R) { R = X * rand(S + 1); }",
        {"X": f(2), "S": i(2)},
        RankMistake,
        "the seed of rand is one integer, but S has shape (2,)",
        "S",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_mistake(case: str) -> None:
    source, types, kind, message, place = CASES[case]
    error, shown = refuse(source, types)
    assert type(error) is kind or issubclass(type(error), kind)
    assert message in error.message
    assert shown == place


def test_hints_say_where_values_came_from() -> None:
    source = "function (A[N], B[M], S) -> (C) { P = N - M; C[i : P + S] = A[i]; }"
    error, _ = refuse(source, {"A": f(2), "B": f(7), "S": i()}, {"S": 1})
    assert error.hint is not None and error.hint.startswith("P is -5 (`N - M`), S is 1 (the input S); ")


def test_a_shared_size_of_a_called_function_must_agree() -> None:
    source = "function f(A[N], B[N]) -> (C) { C[i : N] = A[i] + B[i]; } function (X, Y) -> (Z) { Z = f(X, Y); }"
    error, _ = refuse(source, {"X": f(3), "Y": f(4)})
    assert isinstance(error, SizeMistake) and "sizes that must agree do not" in error.message
    assert error.hint == "X has shape (3,), Y has shape (4,)"


@pytest.mark.parametrize("index", ["i + (K & 1)", "i + (K >> 1)", "i + (K ^ 2)", "i + ~K + 4"])
def test_bits_of_a_size_in_an_index(index: str) -> None:
    assert bind(parse(f"function (A[N], K) -> (O) {{ O[i : 2] = A[{index}]; }}"), {"A": f(5), "K": i()}, {"K": 3})


@pytest.mark.parametrize("index", ["i + (1/2 >> 1)", "i + ~(1/2)", "i + (K/2 & 1)"])
def test_bits_of_a_fraction(index: str) -> None:
    error, _ = refuse(f"function (A[N], K) -> (O) {{ O[i : 2] = A[{index}]; }}", {"A": f(5), "K": i()}, {"K": 3})
    assert isinstance(error, SizeMistake) and "takes integers" in error.message


HINTS = {
    "sizes that disagree": "one name is one size",
    "a literal dimension": "a name in the place of the 3 takes any size",
    "the rank of an input": "pass a tensor of 2 dimensions, or declare A with 1",
    "a negative size": "a size is 0 or more",
    "the rank of a bare input": "write an index for each dimension, or pass a tensor of 1 dimension",
    "a dimension that is not there": "counted from 0",
    "a float as a size": "pass an int",
    "a tensor as a size": "pass an int",
    "a size without its value": "pass an int",
}


@pytest.mark.parametrize("case", HINTS)
def test_what_to_do(case: str) -> None:
    source, types, *_ = CASES[case]
    error, _ = refuse(source, types)
    assert HINTS[case] in (error.hint or "")


def test_a_further_dimension_may_be_a_batch() -> None:
    error, _ = refuse("function (A[N]) -> (B) { B = A; }", {"A": f(2, 3)})
    assert error.hint is not None and "torch.vmap" in error.hint
