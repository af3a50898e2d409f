"""The operands of a body: factors of a product, terms of a sum."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from tilec.ir.infer import expression_types
from tilec.ir.program import Call, Expr, Float, Inside, Int
from tilec.ir.types import ITEM_BYTES, ElementType, Types, is_floating

Typed = Callable[[Expr], ElementType]


def split_factors(e: Expr, types: Types) -> tuple[list[Expr], float | int] | None:
    """Factors of a body and the number they are multiplied by. Floating division is multiplication by the inverse.

    A product of integers inside a floating body wraps in its own type first, and is one factor. A number where several
    conditions hold, in a body of integers, is a product of these: `A[i, k] & B[k, j] ? n : 0`.
    """
    typed = expression_types(types)
    return _factors(e, typed, typed(e).dtype)


def _factors(e: Expr, typed: Typed, whole: str) -> tuple[list[Expr], float | int] | None:
    def split(x: Expr) -> tuple[list[Expr], float | int] | None:
        return _factors(x, typed, whole)

    match e:
        case Int(n) | Float(n):
            return [], n
        case Inside():
            return [], 1
        case Call("neg" | "mul") if not _same_arithmetic(typed(e), whole):
            return [e], 1
        case Call("neg", (a,)):
            inner = split(a)
            return None if inner is None else (inner[0], -inner[1])
        case Call("mul", (a, b)):
            x, y = split(a), split(b)
            return None if x is None or y is None else (x[0] + y[0], x[1] * y[1])
        case Call("div", (a, b)) if is_floating(typed(e).dtype):
            x = split(a)
            if isinstance(b, (Int, Float)):
                return None if x is None or not b.value else (x[0], x[1] / b.value)
            quotient = typed(e)
            own = typed(b).dtype
            if not quotient.weak and (not is_floating(own) or ITEM_BYTES[own] < ITEM_BYTES[quotient.dtype]):
                b = Call(quotient.dtype, (b,))  # its own reciprocal would be rounded to fewer digits
            return None if x is None else ([*x[0], Call("recip", (b,))], x[1])
        case Call("ident" | "reverse_grad", (a, *_)):
            return split(a)
        case Call("select", (Call("and") as every, Int() | Call("neg", (Int(),)) as n, Int(0))) if whole == "int64":
            number = split(n)
            return None if number is None else ([Call("int64", (c,)) for c in _conditions(every, typed)], number[1])
    return [e], 1


def _conditions(e: Expr, typed: Typed) -> list[Expr]:
    """What all must hold for a condition to hold."""
    match e:
        case Call("and", (a, b)) if typed(a).dtype == typed(b).dtype == "bool":
            return _conditions(a, typed) + _conditions(b, typed)
    return [e]


def _same_arithmetic(t: ElementType, whole: str) -> bool:
    return is_floating(t.dtype) or t.weak or t.dtype == whole


def split_terms(e: Expr, types: Types) -> tuple[list[Expr], float | int]:
    """Terms of a body, the factors where times is `+`, and the number that is added to them."""
    typed = expression_types(types)
    return _terms(e, typed, typed(e).dtype)


def _terms(e: Expr, typed: Typed, whole: str) -> tuple[list[Expr], float | int]:
    match e:
        case Int(n) | Float(n):
            return [], n
        case Inside():
            return [], 1
        case Call("neg", (Int(n) | Float(n),)):
            return [], -n
        case Call("add" | "sub") if not _same_arithmetic(typed(e), whole):
            return [e], 0
        case Call("add", (a, b)):
            x, y = _terms(a, typed, whole), _terms(b, typed, whole)
            return x[0] + y[0], x[1] + y[1]
        case Call("sub", (a, b)):
            return _terms(Call("add", (a, Call("neg", (b,)))), typed, whole)
        case Call("ident" | "reverse_grad", (a, *_)):
            return _terms(a, typed, whole)
    return [e], 0


def product_of(factors: Sequence[Expr]) -> Expr:
    """The factors multiplied, in order."""
    return functools.reduce(lambda a, b: Call("mul", (a, b)), factors)


def sum_of(terms: Sequence[Expr]) -> Expr:
    """The terms added, in order."""
    return functools.reduce(lambda a, b: Call("add", (a, b)), terms)
