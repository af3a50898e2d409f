"""Where a matrix value is zero because of a condition: such points need not be visited."""

from __future__ import annotations

from collections.abc import Collection

from tilec.backends.common.chains.values import bound_of, conjuncts
from tilec.ir.functions import ZERO
from tilec.ir.program import Call, Expr, Float, Int, rebuild


def zero_outside(e: Expr) -> frozenset[Expr]:
    """Comparisons of affine integers outside of which a value is zero, for factors that are finite there: as in
    `in(...)`, what a condition drops is no product of zero with something infinite."""
    match e:
        case Call("select", (c, x, y)) if _is_zero(y):
            return frozenset(p for p in conjuncts(c) if bound_of(p) is not None) | zero_outside(x)
        case Call("mul", (x, y)):
            return zero_outside(x) | zero_outside(y)
        case Call("div", (x, _)) | Call("neg", (x,)):
            return zero_outside(x)
        case Call("add" | "sub", (x, y)):
            return zero_outside(x) & zero_outside(y)
        case Call(function, (x,)) if function in ("float32", "bfloat16", "float16"):
            return zero_outside(x)
    return frozenset()


def _is_zero(e: Expr) -> bool:
    return isinstance(e, (Int, Float)) and e.value == 0


def where(e: Expr, known: Collection[Expr]) -> Expr:
    """The value where these conditions hold."""
    if not known or not isinstance(e, Call):
        return e
    if e.function == "select" and _is_zero(e.args[2]):
        left = [p for p in conjuncts(e.args[0]) if p not in known]
        inner = where(e.args[1], known)
        if not left:
            return inner
        condition = left[0]
        for p in left[1:]:
            condition = Call("and", (condition, p))
        return Call("select", (condition, inner, ZERO))
    return rebuild(e, lambda x: where(x, known))
