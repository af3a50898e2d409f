"""What conditions say of index variables."""

from __future__ import annotations

from tilec.errors import AffineMistake
from tilec.ir.functions import ZERO
from tilec.ir.index import Affine, linear
from tilec.ir.program import Call, Expr, Float, Index, Int, index_variables
from tilec.lattice.questions import InRange

MOST_PATHS = 64  # through the conditionals of one region that are looked at one by one
_GREATEST = 2**32  # of numbers whose products with positions, and sums of these, have 64 bits
ENDLESS = 2**62  # the bound of a condition that has none


def alternatives(e: Expr, sense: bool) -> list[tuple[InRange, ...]]:
    """Conditions of which some hold wherever `e` is true (or, by `sense`, false); no conditions where it says nothing
    of indices."""
    match e:
        case Int(value) | Float(value):
            return [()] if bool(value) == sense else []
        case Call("and" | "or", (a, b)) if (e.function == "and") == sense:  # the bits of any two integers
            return _both(alternatives(a, sense), alternatives(b, sense))
        case Call("and" | "or", (a, b)) if e.function == "or" or _truth(a) and _truth(b):  # 1 & 2 is false
            return [*alternatives(a, sense), *alternatives(b, sense)]
        case Call("select", (test, yes, no)):
            taken = _both(alternatives(test, True), alternatives(yes, sense))
            return [*taken, *_both(alternatives(test, False), alternatives(no, sense))]
        case Call("eq" | "ne", (a, b)) if b == ZERO and _truth(a):
            return alternatives(a, sense == (e.function == "ne"))
        case Call("lt" | "le" | "gt" | "ge" | "eq" | "ne", (a, b)):
            x, y = _form(a), _form(b)
            if x is not None and y is not None:
                return _compared(e.function, x - y, sense)
    return [()]


def _both(left: list[tuple[InRange, ...]], right: list[tuple[InRange, ...]]) -> list[tuple[InRange, ...]]:
    both = [(*x, *y) for x in left for y in right]
    return both if len(both) <= MOST_PATHS else [()]


def bound_of(e: Expr) -> Affine | None:
    """The form that is not negative exactly where a comparison of affine integers holds; None for other values."""
    match e:
        case Call("ge" | "gt" | "le" | "lt" as order, (a, b)) if is_affine(a) and is_affine(b):
            form = linear(a) - linear(b) if order in ("ge", "gt") else linear(b) - linear(a)
            form = form - 1 if order in ("gt", "lt") else form
            return form if has_room(a) and has_room(b) else None
    return None


def has_room(e: Expr) -> bool:
    """Whether values of 64 bits hold one of positions and each of its parts: where they wrap, a comparison says nothing
    of its form, in which what has wrapped may have been cancelled."""
    return _greatest(e) <= _GREATEST


def _greatest(e: Expr) -> int:
    """A bound of all factors of variables in a value, and of its constants."""
    match e:
        case Int(value):
            return abs(value) if type(value) is int else 1
        case Call("mul", (a, b)):
            return max(1, _greatest(a)) * max(1, _greatest(b))
        case Call(_, args):
            return sum(map(_greatest, args))
    return 1


def is_affine(e: Expr) -> bool:
    """Whether a value is an integer combination of index variables and literals, as an index would be."""
    match e:
        case Call("add" | "sub" | "neg", args):
            return all(map(is_affine, args))
        case Call("mul", (a, b)):
            return is_affine(a) and is_affine(b) and not (index_variables(a) and index_variables(b))
    return isinstance(e, Index | Int)


def _truth(e: Expr) -> bool:
    match e:
        case Call("and" | "or" | "xor", (a, b)):
            return _truth(a) and _truth(b)
    return isinstance(e, Call) and e.function in _NOT


_NOT = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


def _compared(function: str, difference: Affine, sense: bool) -> list[tuple[InRange, ...]]:
    function = function if sense else _NOT[function]
    below, above = InRange(-difference - 1, ENDLESS), InRange(difference - 1, ENDLESS)
    match function:
        case "lt":
            return [(below,)]
        case "gt":
            return [(above,)]
        case "le":
            return [(InRange(-difference, ENDLESS),)]
        case "ge":
            return [(InRange(difference, ENDLESS),)]
        case "eq":
            return [(InRange(difference, 1),)]
    return [(below,), (above,)]


def _form(e: Expr) -> Affine | None:
    """The form of a value that is integer arithmetic of index variables; between values `/` truncates, so none."""
    stack = [e]
    while stack:
        match stack.pop():
            case Index() | Int():
                pass
            case Call("add" | "sub" | "neg" | "mul" | "max" | "min" | "abs" | "clamp", args):
                stack.extend(args)
            case Call("mod", (a, Int(n))) if n:
                stack.append(a)
            case _:
                return None
    if not has_room(e):
        return None
    try:
        return linear(e)
    except AffineMistake:
        return None
