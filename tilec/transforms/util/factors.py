"""Expressions as sums of terms, and terms as products of factors: taken apart, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilec.ir.functions import ONE, call
from tilec.ir.infer import expression_types
from tilec.ir.program import Call, Expr, Float, Inside, Int
from tilec.ir.types import Types, is_floating


@dataclass(frozen=True)
class Factor:
    """Of a product; `divides`: it stands below the line. `float_dtype`: of an integer, the type that the product's
    floating factors turn it into."""

    value: Expr
    divides: bool
    float_dtype: str | None = None


def is_number(e: Expr) -> bool:
    cast = isinstance(e, Call) and len(e.args) == 1 and isinstance(e.args[0], Int)
    return cast or isinstance(e, (Int, Float, Inside))


def factors_of(e: Expr, types: Types) -> list[Factor]:
    """What a chain of floating products and quotients is made of; a sign is a factor. A product of integers wraps in
    its own type and their quotient truncates: either is one factor."""
    typed = expression_types(types)

    def split(x: Expr, divides: bool, whole: str | None) -> list[Factor]:
        own = typed(x)
        if is_floating(own.dtype):
            match x:
                case Call("mul", (a, b)):
                    return [*split(a, divides, own.dtype), *split(b, divides, own.dtype)]
                case Call("div", (a, b)):
                    return [*split(a, divides, own.dtype), *split(b, not divides, own.dtype)]
                case Call("neg", (a,)) if not isinstance(a, (Int, Float)):
                    return [Factor(-Float(1.0), divides), *split(a, divides, own.dtype)]
            return [Factor(x, divides)]
        if whole is None or is_number(x):
            return [Factor(x, divides)]
        return [Factor(x, divides, "float64" if whole == "float64" else "float32")]

    return split(e, False, None)


def quotient_of(factors: Sequence[Factor]) -> Expr:
    """The product of factors in their order, floating ones before integers and numbers, so that no two integers
    meet: where none is floating, the first becomes so."""
    if not factors:
        return ONE
    if len(factors) == 1 and not factors[0].divides:
        return factors[0].value
    ordered = sorted(factors, key=_is_integer) if _is_integer(factors[0]) else list(factors)
    first = next((f for f in ordered if not f.divides), None)
    result = ONE if first is None else first.value
    if all(map(_is_integer, factors)):
        dtype = next((f.float_dtype for f in factors if f.float_dtype), None)
        result = call(dtype, result) if dtype else Float(float(result.value)) if isinstance(result, Int) else result
    for f in ordered:
        if f is not first:
            result = Call("div" if f.divides else "mul", (result, f.value))
    return result


def _is_integer(f: Factor) -> bool:
    return f.float_dtype is not None or is_number(f.value)


def as_float32(f: Factor, halved: bool) -> Factor:
    """A factor of a sum that is held in float32."""
    return Factor(call("float32", f.value), False) if halved and not f.divides else f


def terms_of(e: Expr, negative: bool) -> list[tuple[bool, Expr]]:
    match e:
        case Call("add", (a, b)):
            return [*terms_of(a, negative), *terms_of(b, negative)]
        case Call("sub", (a, b)):
            return [*terms_of(a, negative), *terms_of(b, not negative)]
    return [(negative, e)]


def added(terms: list[tuple[bool, Expr]]) -> Expr:
    (negative, result), *rest = terms
    result = -result if negative else result
    for minus, e in rest:
        result = result - e if minus else result + e
    return result
