"""Recurrences whose step is affine in a semiring, many times at once: `a x h + b` composes to the same form.

The steps are cut into chunks of about the square root of their number. All chunks run side by side, each composing its
own steps; their ends give the states between them; the compositions are then applied to these. The semiring is found by
taking the step's expression apart, however it is written: `a*h + b`, `max(c, d + h)`, `relu(b + h)`,
`logaddexp(c, d + h)`. Results are rounded differently than step by step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilec.backends.reference.steps import reads_own
from tilec.ir.aggregations import SEMIRINGS, Semiring
from tilec.ir.functions import ZERO
from tilec.ir.program import Access, Call, Expr, Float, Int

FEWEST_STEPS = 512
MOST_LANES = 64  # with more, a step has enough to do, and the chunks' passes over memory cost more than they save


@dataclass(frozen=True)
class Affine:
    """`scale` times the state, plus `offset`; None for the semiring's zero."""

    scale: Expr | None
    offset: Expr | None


def affine_steps(body: Expr, state: Access) -> Iterator[tuple[Semiring, Expr, Expr]]:
    """The semirings in which a step is affine in the state, with scale and offset."""
    for s in SEMIRINGS.values():
        if s.kind == 2:
            found = _Parts(s, state).of(body)
            if found is not None and found.scale is not None:
                yield s, found.scale, literal(s.zero) if found.offset is None else found.offset


def literal(x: float) -> Expr:
    """The number as an expression."""
    n = abs(x)
    e: Expr = Int(int(n)) if math.isfinite(n) and n == int(n) else Float(float(n))
    return -e if x < 0 else e


class _Parts:
    def __init__(self, semiring: Semiring, state: Access):
        self.s, self.state = semiring, state

    def of(self, e: Expr) -> Affine | None:
        s = self.s
        if e == self.state:
            return Affine(literal(s.one), None)
        if not self._moves(e):
            return Affine(None, e)
        if not isinstance(e, Call):
            return None
        args = [self.of(a) for a in e.args]
        if e.function == "select" and not self._moves(e.args[0]):
            return None if args[1] is None or args[2] is None else self._either(e.args[0], args[1], args[2])
        if any(a is None for a in args):
            return None
        parts = [a for a in args if a is not None]
        match e.function:
            case "ident":
                return parts[0]
            case "relu" if s.add == "max":
                return self._sum(parts[0], Affine(None, ZERO))
            case f if f == s.add:
                return self._sum(*parts)
            case "sub" if s.add == "add":
                return self._sum(parts[0], self._each(parts[1], lambda x: -x))
            case "neg" if s.add == "add":
                return self._each(parts[0], lambda x: -x)
            case "mul" | "div" | "add" | "sub" as f:
                inverse = {"div": "mul", "sub": "add"}
                if inverse.get(f, f) != s.times:
                    return None
                if not self._moves(e.args[1]):
                    return self._each(parts[0], lambda x: Call(f, (x, e.args[1])))
                if f == s.times and not self._moves(e.args[0]):
                    return self._each(parts[1], lambda x: Call(f, (e.args[0], x)))
        return None

    def _moves(self, e: Expr) -> bool:
        return reads_own(e, self.state.tensor)

    def _sum(self, a: Affine, b: Affine) -> Affine:
        return Affine(self._joined(a.scale, b.scale), self._joined(a.offset, b.offset))

    def _joined(self, a: Expr | None, b: Expr | None) -> Expr | None:
        return b if a is None else a if b is None else Call(self.s.add, (a, b))

    def _each(self, a: Affine, f: Callable[[Expr], Expr]) -> Affine:
        return Affine(*(None if x is None else f(x) for x in (a.scale, a.offset)))

    def _either(self, condition: Expr, a: Affine, b: Affine) -> Affine:
        zero = literal(self.s.zero)
        pairs = ((a.scale, b.scale), (a.offset, b.offset))
        return Affine(
            *(None if x is None and y is None else Call("select", (condition, x or zero, y or zero)) for x, y in pairs)
        )
