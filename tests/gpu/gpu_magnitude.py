"""How large the terms are that an output is made of: what a result may be off where they cancel.

    P = A * B; Q = B * A; D = P - Q;

is 0, and rounded as it stands it is exactly 0. A kernel that computes all of it at once may leave one product unrounded
(a fused multiply-add): its result is the other product's rounding error. Such a result is right if it is off by no more
than a rounding of the terms, |P| + |Q|, whatever the exact one is. These are computed here by the same program over
magnitudes: a difference becomes a sum, a product that of the magnitudes, and any other function's magnitude is its
value's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

import tilec
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Float,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    reads_itself,
)
from tilec.ir.types import is_floating
from tilec.language import show

SUMS = ("sum", "mean", "prod", "assign", "max", "min")


def magnitudes(function: tilec.Function, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """For each output the magnitude of its terms in float64; None where it is not floating."""
    lowered = function.lower(*inputs)
    flat, types = lowered.stages["flat"], lowered._types
    floating = {name for name, t in types.items() if is_floating(t.dtype)}
    if not floating & set(flat.outputs):
        return [None] * len(flat.outputs)
    f = tilec.compile(show(_program(flat, floating)), backend="torch")
    results = f(*inputs)
    found = iter(results if isinstance(results, tuple) else (results,))
    return [next(found) if name in floating else None for name in flat.outputs]


def _program(flat: Program, floating: set[str]) -> Program:
    statements: list[Statement] = []
    for name in flat.input_names():
        if name in floating:
            declared = next(i for i in flat.inputs if i.name == name)
            index = tuple(Index(f"i{k}") for k in range(len(declared.dims or ())))
            sizes = tuple(Int(int(n)) for n in declared.dims or ())
            value = Call("abs", (Call("float64", (Access(name, index),)),))
            statements.append(Statement(_named(name), index, sizes, value))
    for s in flat.statements:
        statements.append(s)
        if s.output not in floating:
            continue
        body = _magnitude(s.body, floating) if s.aggregation in SUMS else Call("abs", (s.body,))
        made = replace(
            s,
            output=_named(s.output),
            body=body,
            aggregation="max" if s.aggregation == "min" else s.aggregation,
            default=None if s.default is None else _named(s.default),
            init=None if s.init is None else _magnitude(s.init, floating),
        )
        if reads_itself(s) and not reads_itself(made):  # a recurrence that is not linear
            made = replace(made, body=Call("abs", (Access(s.output, s.index or ()),)), init=None, aggregation="assign")
        statements.append(made)
    outputs = tuple(_named(n) for n in flat.outputs if n in floating)
    return replace(flat, statements=tuple(statements), outputs=outputs)


def _named(tensor: str) -> str:
    return f"Terms_{tensor.replace(chr(39), '_')}"


def _magnitude(e: Expr, floating: set[str]) -> Expr:
    def of(x: Expr) -> Expr:
        return _magnitude(x, floating)

    match e:
        case Access(tensor) if tensor in floating:
            return replace(e, tensor=_named(tensor))
        case Access() | Index():
            return Call("abs", (Call("float64", (e,)),))
        case Int() | Float() | Inside():
            return e
        case Pad(access, value):
            inside = of(access) if isinstance(access, Access) and access.tensor in floating else access
            return replace(e, access=inside, value=of(value))
        case Call("add" | "sub", (a, b)):
            return Call("add", (of(a), of(b)))
        case Call("mul", (a, b)):
            return Call("mul", (of(a), of(b)))
        case Call("div", (a, b)):
            return Call("div", (of(a), Call("abs", (b,))))
        case Call("max" | "min", (a, b)):
            return Call("max", (of(a), of(b)))
        case Call("neg" | "ident" | "relu" | "abs" | "float64" | "float32" | "float16" | "bfloat16", (a,)):
            return of(a)
        case Call("select", (c, a, b)):
            return Call("select", (c, of(a), of(b)))
        case Aggregate(aggregation, body) if aggregation in SUMS:
            return replace(e, aggregation="max" if aggregation == "min" else aggregation, body=of(body))
    return Call("abs", (Call("float64", (e,)),))
