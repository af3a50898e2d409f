"""Where a matrix value is zero because of a condition: such points need not be visited."""

from __future__ import annotations

from collections.abc import Collection

from tilec.backends.common.chains.values import conjuncts
from tilec.ir.functions import ZERO, all_of
from tilec.ir.program import Call, Expr, accesses_in, is_zero, rebuild
from tilec.ir.types import Types, kind


def zero_outside(e: Expr, types: Types) -> frozenset[Expr]:
    """Conditions on indices and integers outside of which a value is zero, for factors that are finite there: as in
    `in(...)`, what a condition drops is no product of zero with something infinite."""
    match e:
        case Call("select", (c, x, y)) if is_zero(y):
            return frozenset(p for p in conjuncts(c) if is_mask(p, types)) | zero_outside(x, types)
        case Call("mul", (x, y)):
            return zero_outside(x, types) | zero_outside(y, types)
        case Call("div", (x, _)) | Call("neg", (x,)):
            return zero_outside(x, types)
        case Call("add" | "sub", (x, y)):
            return zero_outside(x, types) & zero_outside(y, types)
        case Call(function, (x,)) if function in ("float32", "bfloat16", "float16"):
            return zero_outside(x, types)
    return frozenset()


def is_mask(condition: Expr, types: Types) -> bool:
    """Whether a condition depends on indices, integers and truth values alone."""
    return all(kind(types[a.tensor].dtype) < 2 for a in accesses_in(condition))


def where(e: Expr, known: Collection[Expr]) -> Expr:
    """The value where these conditions hold."""
    if not known or not isinstance(e, Call):
        return e
    if e.function == "select" and is_zero(e.args[2]):
        left = all_of(p for p in conjuncts(e.args[0]) if p not in known)
        inner = where(e.args[1], known)
        return inner if left is None else Call("select", (left, inner, ZERO))
    return rebuild(e, lambda x: where(x, known))
