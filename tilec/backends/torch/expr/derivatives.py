"""Expressions that a call computes in fewer passes: products with derivatives, sums of tests by numbers."""

from __future__ import annotations

from functools import lru_cache

from tilec.ir.program import Access, Call, Expr, Float, Int
from tilec.language import parse

_DERIVATIVES = {  # as differentiation writes them
    "gelu": "0.5 * (1 + erf(X[i] * 0.7071067811865476)) + X[i] * (0.3989422804014327 * exp(0.5 * -(X[i] * X[i])))",
    "silu": "sigmoid(X[i]) * (1 + X[i] * (1 - sigmoid(X[i])))",
}


@lru_cache
def _patterns() -> tuple[tuple[str, Expr], ...]:
    bodies = {f: parse(f"function (X[N]) -> (Y) {{ Y[i : N] = {text}; }}") for f, text in _DERIVATIVES.items()}
    return tuple((f, p.statements[0].body) for f, p in bodies.items())


def by_derivative(e: Expr) -> tuple[str, Expr, Expr] | None:
    """The function, the factor and the argument of a product with a function's derivative."""
    if not isinstance(e, Call) or e.function != "mul":
        return None
    for outer, inner in (e.args, e.args[::-1]):
        if not isinstance(inner, Call) or inner.function not in ("add", "mul"):
            continue
        for function, pattern in _patterns():
            argument = _matched(pattern, inner, None)
            if argument is not None:
                return function, outer, argument
    return None


_TESTS, _COUNTED = ("eq", "ne", "lt", "le", "gt", "ge"), ("uint8", "int16", "int32", "int64")
MOST_COUNTED = 2**24  # up to which float32 has all integers


def tests_by_numbers(e: Expr) -> list[tuple[Call, int]] | None:
    """Comparisons and numbers of which `int16(a == b) * int16(3) + ...` is the sum of products, where all sums are
    numbers that float32 has."""
    found: list[tuple[Call, int]] = []
    stack = [e]
    while stack:
        match stack.pop():
            case Call("add", (a, b)):
                stack += [b, a]
            case Call("mul", (Call(cast, (Call(function) as test,)), n)) if cast in _COUNTED and function in _TESTS:
                n = n.args[0] if isinstance(n, Call) and n.function == cast else n
                if not isinstance(n, Int) or n.value < 0:
                    return None
                found.append((test, n.value))
            case _:
                return None
    return found if len(found) > 1 and sum(n for _, n in found) < MOST_COUNTED else None


def _matched(p: Expr, e: Expr, argument: Expr | None) -> Expr | None:
    """What stands for the pattern's argument, which is `argument` where that is known."""
    match p:
        case Access():
            return e if argument in (None, e) else None
        case Int() | Float():
            return argument or p if isinstance(e, Int | Float) and e.value == p.value else None
        case Call() if isinstance(e, Call) and e.function == p.function and len(e.args) == len(p.args):
            for x, y in zip(p.args, e.args, strict=True):
                found = _matched(x, y, argument)
                if found is None:
                    return None
                argument = argument if isinstance(x, Int | Float) else found
            return argument
    return None
