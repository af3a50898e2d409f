"""What conditions, and places that end or go round, are all over a box of index variables."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tilec.backends.common.domain import Domain
from tilec.errors import TileError
from tilec.ir.index import Affine, linear
from tilec.ir.infer import expression_type
from tilec.ir.program import Access, Call, Expr, Index, Inside, Int, Pad, rebuild, walk
from tilec.ir.rational import Fraction
from tilec.ir.types import Types
from tilec.transforms.simplify.simplify import is_bool


def _known(true: bool, false: bool) -> bool | None:
    return True if true else False if false else None


# by comparison with 0: what it says of all numbers from a least to a greatest
SPANS: dict[str, Callable[[Fraction | float, Fraction | float], bool | None]] = {
    "eq": lambda a, b: _known(a == b == 0, a > 0 or b < 0),
    "ne": lambda a, b: _known(a > 0 or b < 0, a == b == 0),
    "lt": lambda a, b: _known(b < 0, a >= 0),
    "le": lambda a, b: _known(b <= 0, a > 0),
    "gt": lambda a, b: _known(a > 0, b <= 0),
    "ge": lambda a, b: _known(a >= 0, b < 0),
}


def difference(a: Expr, b: Expr) -> Affine | None:
    """The one less the other, where both are affine in index variables, with `%` and `clamp`."""
    if not all(isinstance(x, Index | Int | Call) for x in walk(a, b)):
        return None
    try:
        form = linear(a) - linear(b)
    except TileError:
        return None
    return form if form.is_integral else None


def truth_over(e: Expr, box: Domain, types: Types) -> bool | None:
    """What a condition is all over a box; None where it differs, or is about values of tensors."""
    match e:
        case Int(value):
            return value != 0
        case Pad(Inside(access), _) if box.inside(access, types):
            return True
        case Call("bool", (a,)):
            return truth_over(a, box, types)
        case Call("select", (condition, a, b)):
            known = truth_over(condition, box, types)
            return None if known is None else truth_over(a if known else b, box, types)
        case Call("and" | "or", args):
            found, decisive = [truth_over(a, box, types) for a in args], e.function == "or"
            return decisive if decisive in found else None if None in found else not decisive
        case Call("eq" | "ne", (a, Int(0))) if (known := truth_over(a, box, types)) is not None:
            return known == (e.function == "ne")
        case Call(function, (a, b)) if function in SPANS and (form := difference(a, b)) is not None:
            return SPANS[function](*box.interval(form))
    return None


def resolved(e: Expr, box: Domain, types: Types) -> Expr:
    """The expression without branches that are taken nowhere in the box, nor values beside what is inside at all of it,
    its places resolved as well."""

    def visit(x: Expr) -> Expr:
        return resolved(x, box, types)

    match e:
        case Pad(Inside(access), _) if box.inside(_at_resolved(access, box), types):
            return Int(1)
        case Pad(Access() as access, _) if box.inside(found := _at_resolved(access, box), types):
            if expression_type(e, types) == expression_type(access, types):
                return found
        case Access():
            return _at_resolved(e, box)
        case Call("select", (condition, a, b)) if (known := truth_over(condition, box, types)) is not None:
            taken, t = (a if known else b), expression_type(e, types)
            own = expression_type(taken, types)
            if own == t or own.weak and t.weak and own.dtype == t.dtype:
                return visit(taken)
            if not t.weak:  # a cast of a number would have its type prevail where it is used
                return visit(Call(t.dtype, (taken,)))
        case Call("and", args):
            left = [a for a in args if truth_over(a, box, types) is not True]
            if len(left) == 1 and is_bool(left[0]):
                return visit(left[0])
    return rebuild(e, visit)


def _at_resolved(a: Access, box: Domain) -> Access:
    return replace(a, index=tuple(resolved_form(linear(i), box).to_expr() for i in a.index))


def resolved_form(form: Affine, box: Domain) -> Affine:
    """The form without `%` that goes round nowhere in the box, or at all of it as often, and without ends that all of
    it is before, or beyond."""
    total = Affine((), form.constant)
    for atom, c in form.terms:
        total += (_resolved(atom, box) if isinstance(atom, Call) else Affine.of([(atom, 1)])) * c
    return total


def _resolved(atom: Call, box: Domain) -> Affine:
    first, *others = (resolved_form(linear(e), box) for e in atom.args)
    whole = linear(replace(atom, args=tuple(f.to_expr() for f in (first, *others))))
    if atom.function == "mod":
        return _remainder(first, others[0], box) or whole
    sides = {"clamp": ("max", "min"), "max": ("max",), "min": ("min",)}.get(atom.function)
    if sides is None:
        return whole
    for side, other in zip(sides, others, strict=True):
        if not (first - other).is_integral:
            return whole
        low, high = box.interval(first - other)
        if (low if side == "max" else -high) >= 0:
            continue
        if (high if side == "max" else -low) > 0:
            return whole
        first = other
    return first


def _remainder(form: Affine, size: Affine, box: Domain) -> Affine | None:
    """A form modulo a size, where it goes round at most once."""
    if size.terms or not form.is_integral or size.constant <= 0:
        return None
    low, high = box.interval(form)
    if low == -math.inf or high == math.inf or low // size.constant != high // size.constant:
        return None
    return form - size.constant * (low // size.constant)
