"""What the types of a bound statement decide. What promotes as a tensor of rank 0 although it has dimensions,
`as_scalar(X)`: casts take its place. And a condition that is an integer's bits, `K[i] & (j == 0)`, which is no
conjunction: it is compared with 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir.functions import FUNCTIONS, ZERO
from tilec.ir.infer import expression_type, statement_type
from tilec.ir.program import (
    Aggregate,
    Call,
    Expr,
    Inside,
    Pad,
    Statement,
    expressions,
    map_expressions,
    map_values,
    rebuild,
    walk,
)
from tilec.ir.types import TensorType, promote

_APART = ("like0", "like1", "random", "structural")  # the arguments do not take one type


def promoted(s: Statement, types: Mapping[str, TensorType]) -> Statement:
    """The bound statement, its elements of the same types, without `as_scalar`."""
    if not any(_marks(e) for e in expressions(s)):
        return s
    wanted = statement_type(s, types)
    known = {**types, s.output: wanted}
    made = map_expressions(s, lambda e: _promoted(e, known))
    if s.init is None or statement_type(made, types).dtype == wanted.dtype:
        return made
    assert made.init is not None
    return replace(made, body=_cast(made.body, wanted.dtype, known), init=_cast(made.init, wanted.dtype, known))


def with_tests(s: Statement, types: Mapping[str, TensorType]) -> Statement:
    """The bound statement in which `&` of conditions joins bools alone."""
    if not any(isinstance(x, Call) and x.function == "and" for e in s.roots for x in walk(e)):
        return s
    known = {**types, s.output: statement_type(s, types)}

    def test(e: Expr) -> Expr:
        bits = isinstance(e, Call) and e.function == "and" and expression_type(e, known).dtype != "bool"
        return Call("ne", (e, ZERO)) if bits else e

    def visit(e: Expr) -> Expr:
        e = rebuild(e, visit)
        match e:
            case Call("select", (condition, *branches)) if test(condition) is not condition:
                return replace(e, args=(test(condition), *branches))
            case Aggregate(guard=Expr() as guard) if test(guard) is not guard:
                return replace(e, guard=test(guard))
        return e

    s = map_values(s, visit)
    return s if s.guard is None or test(s.guard) is s.guard else replace(s, guard=test(s.guard))


def _marks(e: Expr) -> bool:
    return any(isinstance(x, Call) and x.function == "as_scalar" for x in walk(e))


def _promoted(e: Expr, types: Mapping[str, TensorType]) -> Expr:
    if not _marks(e):
        return e
    made = rebuild(e, lambda x: _promoted(x, types))
    match e, made:
        case Call("as_scalar"), Call(_, (value,)):
            return value
        case Call(function, args), Call(_, values) if FUNCTIONS[function].result not in _APART:
            apart = 1 if function == "select" else 0
            dtype = promote(*(expression_type(a, types) for a in args[apart:])).dtype
            if promote(*(expression_type(a, types) for a in values[apart:])).dtype != dtype:
                return replace(made, args=(*values[:apart], *(_cast(a, dtype, types) for a in values[apart:])))
        case Pad(access, value), Pad() if not isinstance(access, Inside):
            return replace(made, value=_cast(made.value, expression_type(e, types).dtype, types))
    return made


def _cast(e: Expr, dtype: str, types: Mapping[str, TensorType]) -> Expr:
    element = expression_type(e, types)
    return e if element.weak or element.dtype == dtype else Call(dtype, (e,), span=getattr(e, "span", None))
