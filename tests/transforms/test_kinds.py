"""Kinds agree with the types that are inferred, for every function, aggregation and element type."""

from __future__ import annotations

from itertools import product

import pytest
from support.aggregations import takes

from tilec.errors import TypeMistake
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.functions import FUNCTIONS
from tilec.ir.infer import aggregate_type, expression_type
from tilec.ir.program import Access, Aggregate, Call, Float, Index, Inside, Int, Name, Pad, Statement
from tilec.ir.types import DTYPES, ElementType, TensorType, kind
from tilec.transforms.util.kinds import ANY, aggregated, kinds, statement_kinds

A, B, C = (Access(name, (Index("i"),)) for name in "ABC")
ROWS = [f for f in FUNCTIONS.values() if f.name not in ("same", "reshape", "gather", "scatter", "simple_reduce")]
SOME = ("bool", "uint8", "int64", "float16", "float64")


def exact(types):
    return {name: frozenset((kind(t.dtype),)) for name, t in types.items()}


@pytest.mark.parametrize("row", ROWS, ids=lambda f: f.name)
def test_functions(row):
    operands = (A, B, C)[: row.arity[1]]
    legal = 0
    for dtypes in product(DTYPES if len(operands) < 3 else SOME, repeat=len(operands)):
        types = {a.tensor: TensorType((3,), d) for a, d in zip(operands, dtypes, strict=True)}
        for args in (operands, (*operands[:-1], Int(2)), (*operands[:-1], Float(0.5)), (*operands[:-1], Index("i"))):
            e = Call(row.name, args)
            try:
                inferred = expression_type(e, types)
            except TypeMistake:
                continue
            legal += 1
            assert kinds(e, exact(types)) == {kind(inferred.dtype)}, (e, types)
            assert kind(inferred.dtype) in kinds(e, {})
    assert legal


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_aggregations(name):
    for dtype in (d for d in DTYPES if takes(name, d)):
        wanted = kind(aggregate_type(name, ElementType(dtype)).dtype)
        assert aggregated(name, frozenset((kind(dtype),))) == {wanted}
        assert wanted in aggregated(name, ANY)
        nested = Aggregate(name, A, ("i",))
        assert kinds(nested, exact({"A": TensorType((3,), dtype)})) == {wanted}


def test_what_is_read():
    types = {"A": TensorType((3,), "bool"), "B": TensorType((3,), "float32")}
    for e in (A, Pad(A, Int(0)), Pad(A, B), Inside(B), Pad(Inside(B), A), Int(1), Float(2.0), Index("i")):
        assert kinds(e, exact(types)) == {kind(expression_type(e, types).dtype)}
    assert kinds(A, {}) == kinds(Name("N"), {}) == ANY
    assert kinds(Call("mul", (A, Int(1))), {}) == {1, 2} and kinds(Call("sub", (A, A)), {}) == {1, 2}


def test_a_default_may_raise_what_is_weak():
    s = Statement("O", (Index("i"),), (Int(3),), Int(1), default="B")
    assert kind("float32") in statement_kinds(s, exact({"B": TensorType((3,), "float32")}))
    assert statement_kinds(s, exact({"B": TensorType((3,), "int8")})) == {1}
