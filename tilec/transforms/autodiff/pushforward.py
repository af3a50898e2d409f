"""Forward mode through one scalar expression: its tangent from the tangents of the tensor elements that it reads.

A derivative by a number is a number, so the table's pullbacks serve both ways: what a pullback makes of a cotangent is
the derivative times it, and a tangent stands in the cotangent's place. Conditions are put around whole terms, so that
no derivative is multiplied by a zero that ought to have hidden it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilec.ir.functions import ZERO
from tilec.ir.program import Access, Aggregate, Call, Expr, Name, Pad, rebuild, walk
from tilec.transforms.autodiff.pullback import Cotangent, arguments, inside, live_nodes, shortened, total

TANGENT = Name("#")  # stands for the tangent that a derivative is multiplied by

# The tangent of what is read: an element, a whole tensor, a nested aggregation; None where it is zero.
LeafTangent = Callable[[Expr], Expr | None]


def push_forward(
    body: Expr, seed: Cotangent, active: Callable[[str], bool], leaf: LeafTangent, known: Expr | None = None
) -> Expr | None:
    """The tangent of `body` with `seed`, a product that holds TANGENT once, around each of its terms; None for zero.
    `known` is an expression that already holds the body's value."""
    return _Forward(body, active, leaf, known).run(seed)


class _Forward:
    def __init__(self, body: Expr, active: Callable[[str], bool], leaf: LeafTangent, known: Expr | None):
        self.body, self.active, self.leaf, self.known = body, active, leaf, known
        self.live = live_nodes(body, active)

    def run(self, seed: Cotangent) -> Expr | None:
        return _sum(self._terms(self.body, seed))

    def _terms(self, e: Expr, g: Cotangent) -> list[Expr]:
        """What adds up to the tangent of e with g around it."""
        if g.masks:
            value = _sum(self._terms(e, Cotangent(g.value)))
            return [] if value is None else [Cotangent(value, g.masks).expression()]
        if id(e) not in self.live:
            return []
        match e:
            case Access() | Name() | Aggregate():
                tangent = self.leaf(e)
            case Pad():
                tangent = self.leaf(e) or self._pad(e)
            case Call("select", (condition, yes, no)):
                return self._select(condition, yes, no, g)
            case Call():
                value = self.known if e is self.body and self.known is not None else e
                found = arguments(e, g, value, self.live)
                return [t for a, c in found if c is not None for t in self._terms(a, c)]
            case _:
                return []
        return [] if tangent is None else [_placed(shortened(g.value), tangent)]

    def _pad(self, e: Pad) -> Expr | None:
        within = self.leaf(e.access) if id(e.access) in self.live else None
        outside = _sum(self._terms(e.value, Cotangent(TANGENT)))
        if within is None:
            if outside is None:
                return None
            return Call("select", (Call("eq", (Pad(inside(e.access), ZERO), ZERO)), outside, ZERO))
        assert isinstance(within, Access)
        return Pad(within, outside or ZERO)

    def _select(self, condition: Expr, yes: Expr, no: Expr, g: Cotangent) -> list[Expr]:
        taken, other = _sum(self._terms(yes, g)), _sum(self._terms(no, g))
        if taken is None and other is None:
            return []
        return [Call("select", (condition, taken or ZERO, other or ZERO))]


def _sum(terms: list[Expr]) -> Expr | None:
    return added_tangents(terms) if terms else None


def added_tangents(terms: Sequence[Expr]) -> Expr:
    """The sum of one or more expressions; equal ones are counted."""
    return total([Cotangent(t) for t in terms]).value


def addends(e: Expr) -> list[Expr]:
    match e:
        case Call("add", (a, b)):
            return [*addends(a), *addends(b)]
        case Call("sub", (a, b)):
            return [*addends(a), *(-x for x in addends(b))]
    return [e]


def _placed(derivative: Expr, tangent: Expr) -> Expr:
    if derivative == TANGENT:
        return tangent
    if not any(e == TANGENT for e in walk(derivative)):
        return derivative
    return rebuild(derivative, lambda e: _placed(e, tangent))


def signed_factors(e: Expr) -> tuple[bool, list[Expr]]:
    """What a product is the product of, and whether it is negated."""
    match e:
        case Call("neg", (a,)):
            negative, factors = signed_factors(a)
            return not negative, factors
        case Call("mul", (a, b)):
            (first, left), (second, right) = signed_factors(a), signed_factors(b)
            return first != second, [*left, *right]
    return False, [e]
