"""Remainders in an index of what may take more than 64 bits, as remainders of its terms.

`(T[j] - i) % 7` is one of seven whatever the elements of `T` are, but at the least of them the difference is no int64
any more. That of `T[j] % 7 - i` is the same, and stays small. For a power of two the last bits say all there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir.index import Affine, linear
from tilec.ir.infer import infer
from tilec.ir.program import Access, Call, Expr, Int, Pad, Program, Statement, accesses_in, rebuild, walk
from tilec.ir.rational import as_int
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import TensorType, Types

MOST = 2**31  # a size up to which two remainders have a product of 64 bits


def exact_remainders(program: Program, inputs: Mapping[str, TensorType]) -> Program:
    """A program whose indices compute no remainder of a sum with int64 elements."""
    places = (e for s in program.statements for e in walk(*(s.index or ()), *(c.expr for c in s.constraints), *s.roots))
    if not any(isinstance(e, Call) and e.function == "mod" and any(accesses_in(e.args[0])) for e in places):
        return program
    types = infer(program, inputs)
    return replace(program, statements=tuple(_exact(s, types) for s in program.statements))


def _exact(s: Statement, types: Types) -> Statement:
    def value(e: Expr) -> Expr:
        return replace(e, index=tuple(map(place, e.index))) if isinstance(e, Access) else rebuild(e, value)

    def place(e: Expr) -> Expr:
        if isinstance(e, Access):
            return value(e)
        e = rebuild(e, place)
        match e:
            case Call("mod", (x, Int(n))) if not is_symbolic(n) and 0 < n < MOST and n & (n - 1):
                form = linear(x)
                apart = _term_by_term(form, n, types)
                return e if apart == form else Call("mod", (apart.to_expr(), Int(n)), span=e.span)
        return e

    return replace(
        s,
        index=None if s.index is None else tuple(map(place, s.index)),
        guard=None if s.guard is None else value(s.guard),
        body=value(s.body),
        constraints=tuple(replace(c, expr=place(c.expr)) for c in s.constraints),
    )


def _term_by_term(form: Affine, n: int, types: Types) -> Affine:
    """A form that differs from this one by a multiple of n, and whose value has 64 bits."""
    if not form.is_integral or len(form.terms) == 1 and not form.constant and form.terms[0][1] == 1:
        return form
    if not any(_may_be_any(a, types) for a, _ in form.terms):
        return form
    terms: list[tuple[Expr, int]] = []
    for atom, c in form.terms:
        if _may_be_any(atom, types):
            factor = as_int(c) % n
            terms.append((Call("mod", (atom, Int(n))), factor - n if factor > n // 2 else factor))
        else:
            terms.append((atom, as_int(c)))
    return Affine.of(terms, form.constant)


def _may_be_any(atom: Expr, types: Types) -> bool:
    """Whether the values of an atom may be any of 64 bits."""
    match atom:
        case Access(tensor):
            return types[tensor].dtype == "int64"
        case Pad():
            return True
        case Call("max" | "min", args):
            return any(_may_be_any(a, types) for x in args for a, _ in linear(x).terms)
    return False
