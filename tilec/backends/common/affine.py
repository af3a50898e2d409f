"""Steps of a recurrence that are affine in its state: `a x h + b` in some semiring, which compose to the same form.

The semiring is found by taking the step's expression apart, however it is written: `a*h + b`, `max(c, d + h)`,
`relu(b + h)`, `logaddexp(c, d + h)`. What is combined is brought to the state's element type first: factors that meet
the state one by one must not wrap, or be rounded, among themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilec.ir.aggregations import SEMIRINGS, Semiring
from tilec.ir.functions import ZERO
from tilec.ir.program import Access, Call, Expr, Float, Int, walk
from tilec.ir.types import Kind, kind


@dataclass(frozen=True)
class AffineStep:
    """`scale` times the state, plus `offset`; None for the semiring's zero."""

    scale: Expr | None
    offset: Expr | None


def affine_steps(body: Expr, state: Access, dtype: str) -> Iterator[tuple[Semiring, Expr, Expr]]:
    """The semirings in which a step is affine in the state, of this element type, with scale and offset."""
    for s in SEMIRINGS.values():
        if s.kind == kind(dtype):
            found = _Parts(s, state, dtype).of(body)
            if found is not None and found.scale is not None:
                yield s, found.scale, literal_expr(s.zero) if found.offset is None else found.offset


def literal_expr(x: float) -> Expr:
    """The number as an expression."""
    n = abs(x)
    e: Expr = Int(int(n)) if math.isfinite(n) and n == int(n) else Float(float(n))
    return -e if x < 0 else e


class _Parts:
    def __init__(self, semiring: Semiring, state: Access, dtype: str):
        self.s, self.state, self.dtype = semiring, state, dtype

    def of(self, e: Expr) -> AffineStep | None:
        s = self.s
        if e == self.state:
            return AffineStep(self._typed(literal_expr(s.one)), None)
        if not self._moves(e):
            return AffineStep(None, self._typed(e))
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
                return self._sum(parts[0], AffineStep(None, ZERO))
            case f if f == s.add:
                return self._sum(*parts)
            case "sub" if s.add == "add":
                return self._sum(parts[0], self._each(parts[1], lambda x: -x))
            case "neg" if s.add == "add":
                return self._each(parts[0], lambda x: -x)
            case "mul" | "div" | "add" | "sub" as f:
                inverse = {"div": "mul", "sub": "add"}
                if inverse.get(f, f) != s.times or f == "div" and s.kind is not Kind.FLOATING:
                    return None
                first, second = (self._typed(a) for a in e.args)
                unit = self._typed(literal_expr(s.one))
                if not self._moves(e.args[1]):
                    return self._each(parts[0], lambda x: second if (x, f) == (unit, s.times) else Call(f, (x, second)))
                if f == s.times and not self._moves(e.args[0]):
                    return self._each(parts[1], lambda x: first if x == unit else Call(f, (first, x)))
        return None

    def _moves(self, e: Expr) -> bool:
        return any(isinstance(x, Access) and x.tensor == self.state.tensor for x in walk(e))

    def _typed(self, e: Expr) -> Expr:
        return Call(self.dtype, (e,))

    def _sum(self, a: AffineStep, b: AffineStep) -> AffineStep:
        return AffineStep(self._joined(a.scale, b.scale), self._joined(a.offset, b.offset))

    def _joined(self, a: Expr | None, b: Expr | None) -> Expr | None:
        return b if a is None else a if b is None else Call(self.s.add, (a, b))

    def _each(self, a: AffineStep, f: Callable[[Expr], Expr]) -> AffineStep:
        return AffineStep(*(None if x is None else f(x) for x in (a.scale, a.offset)))

    def _either(self, condition: Expr, a: AffineStep, b: AffineStep) -> AffineStep:
        zero = literal_expr(self.s.zero)
        pairs = ((a.scale, b.scale), (a.offset, b.offset))
        return AffineStep(
            *(None if x is None and y is None else Call("select", (condition, x or zero, y or zero)) for x, y in pairs)
        )
