"""Comparisons of a negated magnitude with a number, written as comparisons of what it is the magnitude of.

ptxas 12.8, which comes with Triton 3.6, takes `-|x| > n` of 32-bit integers for false in masks of loops, so that the
load is left out: `A[min(i, -i)]` was 0 everywhere. LLVM makes -|x| of `min(x, -x)` and of `-max(x, -x)` too.
"""

from __future__ import annotations

from tilec.ir.functions import ZERO
from tilec.ir.index import Affine, linear
from tilec.ir.program import Call, Expr

# of -|x| and n <= 0: the test of x that says the same, at the least integer too
OF_MAGNITUDE = {
    "ge": "(({x} >= {low}) & ({x} <= {high}))",
    "gt": "(({x} > {low}) & ({x} < {high}))",
    "lt": "(({x} < {low}) | ({x} > {high}))",
    "le": "(({x} <= {low}) | ({x} >= {high}))",
    "eq": "(({x} == {low}) | ({x} == {high}))",
    "ne": "(({x} != {low}) & ({x} != {high}))",
}


def parts_of_lower_bound(form: Affine) -> tuple[Affine, ...]:
    """Forms that are all at least 0 exactly where `form` is; more than one where it has a negated magnitude."""
    for atom, c in form.terms:
        match atom:
            case Call("min" | "max" as extremum, (a, b)) if (c > 0) == (extremum == "min"):
                if not (linear(a) + linear(b)).terms and (linear(a) + linear(b)).constant == 0:
                    rest = form - Affine.of([(atom, c)])
                    return rest + linear(a) * c, rest + linear(b) * c
    return (form,)


def of_negated_magnitude(e: Expr) -> Expr | None:
    """x where an expression is -|x|."""
    match e:
        case Call("min", (a, b)) if _are_opposite(a, b):
            return a
        case Call("neg", (magnitude,)):
            pass
        case Call("sub", (zero, magnitude)) if zero == ZERO:
            pass
        case _:
            return None
    match magnitude:
        case Call("abs", (x,)):
            return x
        case Call("max", (a, b)) if _are_opposite(a, b):
            return a
    return None


def _are_opposite(a: Expr, b: Expr) -> bool:
    return _is_negation(a, b) or _is_negation(b, a)


def _is_negation(a: Expr, b: Expr) -> bool:
    match b:
        case Call("neg", (x,)):
            return x == a
        case Call("sub", (x, y)):
            return a == (y if x == ZERO else Call("sub", (y, x)))
    return False
