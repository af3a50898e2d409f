"""Element types: promotion as torch's, casts, weak values, aggregations."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import product

import pytest
import torch
from support.aggregations import takes

from tilec.errors import TypeMistake
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.functions import FUNCTIONS
from tilec.ir.infer import aggregate_type, call_type, expression_type, infer, statement_type
from tilec.ir.program import Access, Aggregate, Call, Float, Index, Int
from tilec.ir.types import DTYPES, WEAK_FLOAT, WEAK_INDEX, WEAK_INT, ElementType, TensorType
from tilec.language import parse

FULL = {d: ElementType(d) for d in DTYPES}
# where the language differs from torch, or torch has no kernel for a type that promotion covers
OWN_RULE = {
    "div",
    "as_type",
    "reverse_grad",
    "uint16",
    "uint32",
    "pow",
    "gelu",
    "silu",
    "softplus",
    "logaddexp",
    "atan2",
}
NUMERIC = [
    f.name
    for f in FUNCTIONS.values()
    if f.torch and f.name not in OWN_RULE and f.arity[0] == f.arity[1] and f.arity[0] < 3 and f.result != "structural"
]


def tensor(dtype: str, scalar: bool = False) -> torch.Tensor:
    return torch.ones((), dtype=getattr(torch, dtype)) if scalar else torch.ones(2, dtype=getattr(torch, dtype))


def torch_type(function: str, tensors: list[torch.Tensor]) -> str | None:
    """The type that torch's own expression gives, None where torch has no such operation."""
    text = FUNCTIONS[function].torch
    assert text is not None
    try:
        result = eval(
            text.format(*(f"x{k}" for k in range(len(tensors)))),
            {"torch": torch},
            {f"x{k}": t for k, t in enumerate(tensors)},
        )
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    return str(result.dtype).removeprefix("torch.")


@pytest.mark.parametrize("function", NUMERIC)
def test_functions_follow_torch(function: str) -> None:
    checked = 0
    for dtypes in product(DTYPES, repeat=FUNCTIONS[function].arity[0]):
        for scalars in product((False, True), repeat=len(dtypes)):
            wanted = torch_type(function, [tensor(d, s) for d, s in zip(dtypes, scalars, strict=True)])
            given = [ElementType(d, scalar=s) for d, s in zip(dtypes, scalars, strict=True)]
            if wanted is None:
                continue
            checked += 1
            assert call_type(function, given).dtype == wanted, (function, dtypes, scalars)
    assert checked >= len(DTYPES) - 2


@pytest.mark.parametrize("function", ["sub", "neg", "abs", "mod", "relu", "pow", "shl"])
def test_bool_is_refused_where_torch_refuses_it(function: str) -> None:
    count = FUNCTIONS[function].arity[0]
    with pytest.raises(TypeMistake, match="does not take bool"):
        call_type(function, [FULL["bool"]] * count)


@pytest.mark.parametrize("function", ["and", "or", "xor", "shl", "shr"])
@pytest.mark.parametrize("other", ["int32", "float32"])
def test_bits_of_floats_are_refused(function: str, other: str) -> None:
    with pytest.raises(TypeMistake, match="bits") as caught:
        call_type(function, [FULL["float32"], FULL[other]])
    assert ("pow" in str(caught.value)) == (function == "xor")


def test_division_of_integers_is_an_integer() -> None:
    assert call_type("div", [FULL["int32"], FULL["int8"]]).dtype == "int32"
    assert call_type("div", [FULL["bool"], FULL["bool"]]).dtype == "int64"
    assert call_type("div", [FULL["int32"], FULL["float16"]]).dtype == "float16"


def test_weak_values_take_the_tensors_type_and_stay_weak_alone() -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        assert call_type("mul", [FULL[dtype], WEAK_FLOAT]) == FULL[dtype]
    assert call_type("add", [FULL["int8"], WEAK_INT]) == FULL["int8"]
    assert call_type("add", [FULL["int8"], WEAK_FLOAT]).dtype == "float32"
    assert call_type("add", [FULL["bool"], WEAK_INT]).dtype == "int64"
    assert call_type("mul", [WEAK_INT, WEAK_FLOAT]) == WEAK_FLOAT
    assert call_type("sqrt", [WEAK_INT]) == WEAK_FLOAT
    assert call_type("sqrt", [FULL["int8"]]).dtype == "float32"
    assert call_type("select", [ElementType("bool", scalar=True), WEAK_INT, WEAK_FLOAT]) == WEAK_FLOAT
    assert call_type("select", [FULL["float32"], WEAK_INT, WEAK_FLOAT]) == replace(WEAK_FLOAT, scalar=False)


def test_a_value_has_dimensions_where_any_part_of_it_has() -> None:
    single = ElementType("float64", scalar=True)
    assert not call_type("select", [FULL["bool"], single, single]).scalar
    assert not call_type("mul", [single, WEAK_INDEX]).scalar
    assert call_type("mul", [single, WEAK_INT]).scalar


def test_casts_make_strong_values() -> None:
    assert call_type("float64", [WEAK_INT]) == FULL["float64"]
    assert call_type("mul", [FULL["float32"], call_type("float64", [WEAK_FLOAT])]).dtype == "float64"
    assert call_type("float64", [ElementType("float32", scalar=True)]).scalar
    assert call_type("uint16", [FULL["int8"]]).dtype == "int64"
    assert call_type("as_type", [FULL["float32"], FULL["int8"]]).dtype == "int8"
    assert call_type("as_type", [FULL["float16"], WEAK_FLOAT]) == FULL["float16"]


@pytest.mark.parametrize(("aggregation", "dtype"), [(a, d) for a in AGGREGATIONS for d in DTYPES if takes(a, d)])
def test_aggregations(aggregation: str, dtype: str) -> None:
    floating = dtype.startswith(("f", "bf"))
    wanted = {
        "sum": dtype if floating else "int64",
        "prod": dtype if floating else "int64",
        "logsumexp": dtype if floating else "float32",
        "mean": dtype if floating else "float32",
        "any": "bool",
        "all": "bool",
        "argmax": "int64",
        "argmin": "int64",
    }.get(aggregation, dtype)
    assert aggregate_type(aggregation, FULL[dtype]).dtype == wanted


def test_a_nested_aggregation_counts_as_the_tensor_it_becomes() -> None:
    tensors = {"A": TensorType((3,), "float16"), "B": TensorType((3,), "float32")}
    total = Aggregate("sum", Access("B", (Index("j"),)), ("j",))
    scaled = Call("mul", (Access("A", (Index("i"),)), total))
    assert expression_type(scaled, tensors) == FULL["float16"]  # a rank-0 tensor does not raise a tensor's type
    windowed = Aggregate("sum", Access("B", (Call("add", (Index("i"), Index("j"))),)), ("j",))
    assert expression_type(Call("mul", (Access("A", (Index("i"),)), windowed)), tensors) == FULL["float32"]


def test_an_index_holds_integers() -> None:
    tensors = {"A": TensorType((3,), "float32"), "I": TensorType((3,), "float32")}
    with pytest.raises(TypeMistake, match="an index holds integers"):
        expression_type(Access("A", (Access("I", (Int(0),)),)), tensors)
    with pytest.raises(TypeMistake, match="an index holds integers"):
        expression_type(Access("A", (Call("add", (Access("I", (Int(0),)), Int(1))),)), tensors)


def test_infer_gives_every_tensor() -> None:
    program = parse("function (A[2, 3]) -> (S, W) { S[i : 2] = +(A[i, j]), j < 3; W[i : 2] = i; T[] = W[0] * 0.5; }")
    types = infer(program, {"A": TensorType((2, 3), "bfloat16"), "other": TensorType((), "bool")})
    assert types == {
        "A": TensorType((2, 3), "bfloat16"),
        "S": TensorType((2,), "bfloat16"),
        "W": TensorType((2,), "int64", weak=True),
        "T": TensorType((), "float64", weak=True, strong=True),
    }
    assert expression_type(Float(0.5), {}) == WEAK_FLOAT


@pytest.mark.parametrize(
    ("body", "default", "dtype"),
    [
        ("int32", "float32", None),
        ("float32", "int32", "float32"),
        ("bool", "int32", None),
        ("float16", "float64", "float16"),
    ],
)
def test_a_default_takes_the_outputs_type(body: str, default: str, dtype: str | None) -> None:
    program = parse("function (A[2], D[3]) -> (O) { O[i : 3] = A[i] default D; }")
    types = {"A": TensorType((2,), body), "D": TensorType((3,), default)}
    if dtype is None:
        with pytest.raises(TypeMistake, match="the default D"):
            infer(program, types)
    else:
        assert infer(program, types)["O"].dtype == dtype


def test_a_statement_keeps_its_type_for_the_types_it_was_asked_with() -> None:
    (s,) = parse("function (X[N], Y[N]) -> (Z) { Z[i : 5] = X[i] * Y[i]; }").statements
    types = {name: TensorType((5,), "float32") for name in ("X", "Y")}
    found = statement_type(s, types)
    assert statement_type(s, {**types, "V": TensorType((), "bool")}) is found
    assert statement_type(s, {**types, "Y": TensorType((5,), "float64")}).dtype == "float64"
    assert statement_type(s, types) == found and statement_type(s, dict.fromkeys("XY", types["X"])) == found
    again = pickle.loads(pickle.dumps(s))
    assert again == s and not any(name.startswith("_") for name in vars(again))
