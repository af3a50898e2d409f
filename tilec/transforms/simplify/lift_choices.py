"""Functions of a choice among numbers as a choice among functions of numbers.

In `abs(i / 10.0 - (X[n, i] < 0 ? 1.0 : 0.0)) * W[n, i]` the difference and its magnitude are float64, as numbers are,
at each point of X. Of `X[n, i] < 0 ? float32(abs(i / 10.0 - 1.0)) : float32(abs(i / 10.0 - 0.0))` both numbers depend
on i alone: they are computed once for each i, and chosen in the type of what they meet. The same operations are applied
to the same numbers, so that no value changes.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.functions import RANDOM
from tilec.ir.infer import expression_type, infer
from tilec.ir.program import Call, Expr, Index, Program, map_values, rebuild, walk
from tilec.ir.types import Types
from tilec.transforms.util.factors import is_of_positions

MEETING = frozenset(("add", "sub", "mul", "div", "max", "min"))  # functions that convert their arguments first


def lift_choices(program: Program, inputs: Types) -> Program:
    """The flat program with such choices outside; `inputs` are the types of its inputs."""
    if not any(_is_choice(e) for s in program.statements for e in walk(*s.roots)):
        return program
    types = infer(program, inputs)

    def visit(e: Expr) -> Expr:
        e = rebuild(e, visit)
        if not isinstance(e, Call) or e.function in ("select", *RANDOM):
            return e
        found = [k for k, x in enumerate(e.args) if _is_choice(x) and expression_type(x, types).dtype == "float64"]
        if len(found) != 1:
            return e
        (place,) = found
        made = _outside(e, place) if _all_numbers(e, place) else _converted(e, place, types)
        return made if expression_type(made, types) == expression_type(e, types) else e

    return replace(program, statements=tuple(map_values(s, visit) for s in program.statements))


def _is_choice(e: Expr) -> bool:
    """Whether data decide between two numbers."""
    match e:
        case Call("select", (condition, a, b)):
            return not is_of_positions(condition) and is_of_positions(a) and is_of_positions(b)
    return False


def _all_numbers(e: Call, place: int) -> bool:
    """Whether all other arguments are numbers, some of which depend on where a point is."""
    others = [x for k, x in enumerate(e.args) if k != place]
    return all(map(is_of_positions, others)) and _has_place(e)


def _has_place(e: Call) -> bool:
    """Whether a number in the arguments is that of a place."""
    numbers = (x for a in e.args for x in (a.args[1:] if isinstance(a, Call) and _is_choice(a) else (a,)))
    return any(isinstance(x, Index) for n in numbers if is_of_positions(n) for x in walk(n))


def _outside(e: Call, place: int) -> Expr:
    condition, *branches = _choice(e, place).args
    own = [replace(e, args=(*e.args[:place], x, *e.args[place + 1 :])) for x in branches]
    return Call("select", (condition, *own))


def _converted(e: Call, place: int, types: Types) -> Expr:
    """With the numbers in float32, where they meet values of that type."""
    choice = _choice(e, place)
    others = [x for k, x in enumerate(e.args) if k != place]
    if e.function not in MEETING or any(expression_type(x, types).dtype != "float32" for x in others):
        return e
    if not any(isinstance(x, Index) for n in choice.args[1:] for x in walk(n)):
        return e
    condition, *branches = choice.args
    made = Call("select", (condition, *(Call("float32", (x,)) for x in branches)))
    return replace(e, args=(*e.args[:place], made, *e.args[place + 1 :]))


def _choice(e: Call, place: int) -> Call:
    found = e.args[place]
    assert isinstance(found, Call)
    return found
