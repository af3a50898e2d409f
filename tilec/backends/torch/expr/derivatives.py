"""Products with derivatives that torch computes in one pass."""

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
