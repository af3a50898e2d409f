"""Fewer walks over long rows.

A sum over a row that weighs exponentials relative to the row's maximum needs no walk of its own: with the maximum as it
is known so far, what is added up is scaled down whenever a greater value comes (Milakov and Gimelshein, "Online
normalizer calculation for softmax", 2018). So that more sums are of this form, what members compute at each point is
written into the sums that read it, and factors that a row shares leave them.

The first place of a row's greatest or least value is found with it likewise: where a column's value beats those before
it, its number is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilec.backends.triton.fusion.groups import Group, conditions
from tilec.ir.functions import ONE, call
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Float,
    Inside,
    Pad,
    Statement,
    accesses_in,
    index_variables,
    node_count,
    rebuild,
    variables_of,
    walk,
)
from tilec.ir.types import Types, is_floating
from tilec.transforms.util.factors import factors_of

MOST_INLINED_NODES = 200  # of a body with everything written into it


@dataclass(frozen=True)
class Rescaled:
    """A group in which some sums are over `weights * exp(value - maximum)`: their bodies are the weights, and `maxima`
    names the maximum of each. `places`: by first places of a greatest or least value, whose. `types` has those of the
    statements that were made."""

    group: Group
    types: Types
    maxima: Mapping[str, str]
    places: Mapping[str, str]


def rescaled(group: Group, types: Types) -> Rescaled:
    """The group with such sums marked."""
    columns = {v for v in group.columns if group.extent[v] > 1}
    bodies: dict[str, Expr] = {}  # what members compute at each point
    largest: dict[str, Expr] = {}  # what the maxima are taken of
    extremes: dict[str, Statement] = {}  # with what they are of
    maxima: dict[str, str] = {}
    places: dict[str, str] = {}
    known = dict(types)
    members = {s.output for s in group.statements}
    statements: list[Statement] = []
    for s in group.statements:
        plain = s.guard is None and not s.constraints and not conditions(s, group, types)
        body = inlined(s.body, bodies)
        small = node_count(body) <= MOST_INLINED_NODES
        moving = bool(columns & set(variables_of(s)))
        first = _first_place(s, bodies, extremes, columns)
        if first is not None and first[0] not in maxima.values() and s.output not in group.sums:
            places[s.output], s = first
        elif not group.reductions(s):
            if plain and moving and small and is_floating(types[s.output].dtype) and s.index is not None:
                bodies[s.output] = body
        elif plain and small and s.output not in group.sums:
            if s.aggregation in ("max", "min"):
                extremes[s.output] = replace(s, body=body)
            if s.aggregation == "max" and types[s.output].dtype in ("float32", "float64"):
                largest[s.output] = body
            found = _relative(body, columns, largest, known) if s.aggregation == "sum" else None
            if found is not None and found[0] in places.values():
                found = None
            if found is not None and is_floating(types[s.output].dtype) and not members & tensors_read(found[1]):
                maximum, weight, shared = found
                total = f"{s.output}.scaled"
                known[total] = types[s.output]
                maxima[total] = maximum
                statements.append(replace(s, output=total, body=weight))
                s = replace(s, body=Call("mul", (Access(total, s.index or ()), shared)), aggregation="assign")
        statements.append(s)
    return Rescaled(replace(group, statements=tuple(statements)), known, maxima, places)


def _first_place(
    s: Statement, bodies: Mapping[str, Expr], extremes: Mapping[str, Statement], columns: set[str]
) -> tuple[str, Statement] | None:
    """The extreme that a least or greatest number of columns is the place of, and the numbers at all of its points;
    None where it is none such."""
    match s.guard:
        case Call("or", (Call("eq", (x, Access(m, index))), Call("ne", (y, z)))) if x == y == z:
            pass
        case Call("eq", (x, Access(m, index))):
            pass
        case _:
            return None
    extreme = extremes.get(m)
    if s.aggregation not in ("min", "max") or s.constraints or extreme is None or extreme.index != index:
        return None
    number = s.body.args[0] if isinstance(s.body, Call) and s.body.function == "int32" else s.body
    alone = not any(isinstance(e, (Access, Pad)) for e in walk(number)) and columns & set(index_variables(number))
    if inlined(x, bodies) != extreme.body or not alone or s.index != extreme.index:
        return None
    body = number
    for a in dict.fromkeys(e for e in walk(extreme.body) if isinstance(e, Access)):
        body = body * Inside(a)  # the points are those of the extreme
    return m, replace(s, guard=None, body=body)


def tensors_read(e: Expr) -> set[str]:
    return {a.tensor for a in accesses_in(e)}


def inlined(e: Expr, bodies: Mapping[str, Expr]) -> Expr:
    """The expression with bodies in place of what reads their tensors."""
    if isinstance(e, Access) and e.tensor in bodies:
        return bodies[e.tensor]
    return e if isinstance(e, (Access, Pad)) else rebuild(e, lambda x: inlined(x, bodies))


def _relative(
    body: Expr, columns: set[str], largest: Mapping[str, Expr], types: Types
) -> tuple[str, Expr, Expr] | None:
    """The maximum that a product's exponential is relative to, the weight of that at each point, what rows share."""
    maximum: str | None = None
    weight: Expr = ONE
    shared: Expr = Float(1.0)
    for f in factors_of(body, types):
        value, divides = call(f.float_dtype, f.value) if f.float_dtype else f.value, f.divides
        if not columns & set(index_variables(value)):
            shared = Call("div" if divides else "mul", (shared, value))
            continue
        match value:
            case Call("exp", (Call("sub", (x, Access(m))),)) if maximum is None and not divides and largest.get(m) == x:
                maximum = m
                for a in (e for e in walk(x) if isinstance(e, Access)):
                    weight = weight * Inside(a)  # 1, but the points are those of the maximum
            case _:
                weight = Call("div" if divides else "mul", (weight, value))
    return None if maximum is None else (maximum, weight, shared)
