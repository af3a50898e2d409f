"""Expressions as sums of terms, and terms as products of factors: taken apart, and put together again."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tilec.ir.functions import ONE, RANDOM, call, operands_of
from tilec.ir.infer import expression_type, expression_types
from tilec.ir.program import Access, Aggregate, Call, Expr, Float, Inside, Int, Name, Pad, children, walk
from tilec.ir.types import ITEM_BYTES, NARROW, Types, is_floating

_Item = TypeVar("_Item")
MINUS_ONE = -Float(1.0)  # the factor that a sign is


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


def is_of_positions(e: Expr) -> bool:
    """Whether a value is made of literals and positions alone."""
    parts = tuple(walk(e))
    drawn = any(isinstance(x, Call) and x.function in RANDOM for x in parts)
    return not drawn and not any(isinstance(x, Access | Inside | Pad | Name | Aggregate) for x in parts)


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
                    return [Factor(MINUS_ONE, divides), *split(a, divides, own.dtype)]
            return [Factor(x, divides)]
        if whole is None or is_number(x):
            return [Factor(x, divides)]
        return [Factor(x, divides, "float64" if whole == "float64" else "float32")]

    return split(e, False, None)


def factors_of_terms(e: Expr, types: Types) -> list[Factor]:
    """Factors like those of `factors_of`, and those that all terms of a floating sum share before what is left of it:
    `a * x - a * y` is `a * (x - y)`."""
    found: list[Factor] = []
    for f in factors_of(e, types):
        terms = terms_of(f.value, False)
        alike = None if len(terms) < 2 or f.divides else _shared(terms, types)
        found += [f] if alike is None else alike
    return found


def _shared(terms: list[tuple[bool, Expr]], types: Types) -> list[Factor] | None:
    """The factors of a sum of terms that have some in common that are no numbers; None where they have none."""
    if not all(is_floating(expression_type(t, types).dtype) for _, t in terms):
        return None
    products = [factors_of(t, types) for _, t in terms]
    common, rest = in_common(products)
    if all(is_number(f.value) or f.value == MINUS_ONE for f in common):
        return None
    if any(rest):
        left = added([(minus, quotient_of(r)) for (minus, _), r in zip(terms, rest, strict=True)])
    else:
        left = Float(float(sum(-1 if minus else 1 for minus, _ in terms)))
    return [*common, Factor(left, False)]


def in_common(lists: Sequence[Sequence[_Item]]) -> tuple[list[_Item], list[list[_Item]]]:
    """What all of them have, as often as it is in each, and what is left of each."""
    common, rest = list[_Item](), [list(items) for items in lists]
    for x in lists[0] if lists else ():
        if all(x in items for items in rest):
            common.append(x)
            for items in rest:
                items.remove(x)
    return common, rest


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


def as_accumulated(f: Factor, output: str, types: Types) -> Factor:
    """A factor of a sum of which elements of type `output` are made: it is added up in float32 where these have 16
    bits, and where other factors are wider, in their type."""
    if f.divides:
        return f
    if output in NARROW:
        return Factor(call("float32", f.value), False)
    value = in_wider_type(f.value, output, types)
    return f if value is f.value else replace(f, value=value)


def in_wider_type(e: Expr, dtype: str, types: Types) -> Expr:
    """A floating value that is narrower than this type in it, another as it is."""
    own = expression_type(e, types)
    narrower = is_floating(own.dtype) and not own.weak and ITEM_BYTES[own.dtype] < ITEM_BYTES[dtype]
    return call(dtype, e) if narrower else e


def widened_body(body: Expr, types: Types) -> Expr:
    """A 16-bit body in float32. A product of elements of several places is one of float32 elements, which is not
    rounded, as in a sum, and is a matrix product where it sums over one."""
    factors = operands_of("mul", body)
    if len({*factors}) > 1 and all(isinstance(f, Access) and types[f.tensor].dtype in NARROW for f in factors):
        return functools.reduce(operator.mul, (call("float32", f) for f in factors))
    return call("float32", body)


def unwidened(e: Expr, types: Types) -> Expr:
    """What a cast turns into a wider float, another value as it is."""
    match e:
        case Call(dtype, (x,)) if is_floating(dtype):
            own = expression_type(x, types)
            return x if is_floating(own.dtype) and ITEM_BYTES[own.dtype] < ITEM_BYTES[dtype] else e
    return e


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


def shared_factors(some: Sequence[Factor], others: Sequence[Factor]) -> list[Factor]:
    left, found = list(others), []
    for f in some:
        if f in left:
            left.remove(f)
            found.append(f)
    return found


def without_factors(factors: Sequence[Factor], taken: Sequence[Factor]) -> list[Factor]:
    left = list(factors)
    for f in taken:
        left.remove(f)
    return left


def outside_of_pads(roots: Iterable[Expr]) -> Iterator[Expr]:
    """The nodes of expressions, but for reads that constrain nothing and all that these ask."""
    stack = [*roots]
    while stack:
        e = stack.pop()
        if not _is_padded(e):
            yield e
            stack += children(e)


def _is_padded(e: Expr) -> bool:
    """Whether it is a read that constrains nothing, its padding's too."""
    if not isinstance(e, Pad) or isinstance(e.access, Inside):
        return False
    return _is_padded(e.value) or isinstance(e.value, (Int, Float))


def with_places(f: Factor, dtype: str) -> Factor:
    """A factor of positions, `i - j`, in the type of the product; as it is where that has 16 bits, to which nothing
    rounded it."""
    if f.float_dtype != dtype or is_number(f.value) or not is_of_positions(f.value):
        return f
    return replace(f, value=Call(dtype, (f.value,)), float_dtype=None)
