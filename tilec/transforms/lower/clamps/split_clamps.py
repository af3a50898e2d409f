"""Sums written at a clamped place, as sums written at the place itself and two that its ends receive beside.

`G[clamp(x - 1, 0, N - 1)] = +(D[x])`, the gradient of a read at an edge repeated, adds up what the place itself says
(which can be turned into a read), at 0 also the points below, and at N - 1 those above:

    G_inside[x - 1] = +(D[x]); G_first[i] = +(i == 0 ? D[0]); G_last[i] = +(i == N - 1 ? D[N]);
    G[i] = G_inside[i] + G_first[i] + G_last[i];

Where more than one value of a variable lies beyond an end, these are added up first, in a tensor without that axis; the
last sum reads that tensor at its end. Sums written at several clamped places are first parted by axes, if they can be
(`separate_clamps`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir.functions import ZERO, call
from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.infer import expression_type, infer, statement_type
from tilec.ir.program import (
    Access,
    Call,
    Constraint,
    Expr,
    Index,
    Int,
    Program,
    Statement,
    index_variables,
    reads_itself,
)
from tilec.ir.rational import as_int
from tilec.ir.types import NARROW, TensorType
from tilec.lattice.sets import Shapes, bounds, bounds_of, domain, interval_of, shapes_of
from tilec.transforms.lower.clamps.separate_clamps import is_clamp, one_axis_first
from tilec.transforms.lower.reduce import keep_constraint_variables
from tilec.transforms.util.naming import Names, all_variables, fresh_variable


def split_clamps(program: Program, inputs: Mapping[str, TensorType]) -> Program:
    """The flat program with such sums in parts. `inputs`: types of the inputs."""
    if not any(_clamped(s) is not None for s in program.statements):
        return program
    types, names, shapes = dict(infer(program, inputs)), Names.of(program), shapes_of(program)
    done: list[Statement] = []
    pending = list(reversed(program.statements))
    while pending:
        s = pending.pop()
        parts = one_axis_first(s, types, shapes, names) if _clamped(s) is not None else None
        parts = parts or _parts(s, types, shapes, names)
        if len(parts) > 1:
            pending += reversed(parts)
            continue
        types[s.output] = statement_type(s, types)
        shapes[s.output] = types[s.output].shape
        done.append(s)
    return replace(program, statements=tuple(done))


def _clamped(s: Statement) -> int | None:
    """The first axis whose index is clamped between two numbers, the others being such or affine; None where there is
    none."""
    if s.aggregation != "sum" or s.default is not None or reads_itself(s):
        return None
    rows = list(map(linear, s.index or ()))
    clamped = [axis for axis, row in enumerate(rows) if is_clamp(row)]
    return clamped[0] if clamped and all(row.is_affine or is_clamp(row) for row in rows) else None


def _parts(s: Statement, types: Mapping[str, TensorType], shapes: Shapes, names: Names) -> list[Statement]:
    axis = _clamped(s)
    box = None if axis is None else bounds_of(domain(s, shapes))
    if axis is None or box is None:
        return [s]
    assert s.index is not None and s.sizes is not None
    clamp = linear(s.index[axis]).terms[0][0]
    assert isinstance(clamp, Call)
    form, first, last = linear(clamp.args[0]), *(as_int(linear(e).constant) for e in clamp.args[1:])
    least, most = interval_of(form, lambda v: box[v.name])
    if first > last:
        return [s]
    target = statement_type(s, types)
    widens = target.dtype in NARROW
    body = call("float32", s.body) if widens and expression_type(s.body, types).dtype in NARROW else s.body
    written = s.index
    s = replace(s, body=body)
    index = tuple(form.to_expr() if a == axis else e for a, e in enumerate(written))
    within = Constraint((form - first).to_expr(), Int(last - first + 1))
    inside = replace(
        s,
        output=names.fresh(f"{s.output}_inside"),
        index=index,
        constraints=tuple(dict.fromkeys((*s.constraints, within))),
        attributes=(),
    )
    places = tuple(Index(f"i{a}") for a in range(len(target.shape)))
    made: list[Statement] = []
    value: Expr = Access(inside.output, places)
    for place, beyond, count in (
        (first, form * -1 + (first - 1), as_int(first - least // 1)),
        (last, form - (last + 1), as_int(-(-most // 1) - last)),
    ):
        if count > 0 and 0 <= place < target.shape[axis]:
            limit = Constraint(beyond.to_expr(), Int(count))
            beside = replace(s, constraints=tuple(dict.fromkeys((*s.constraints, limit))), attributes=())
            end, received = _end(beside, axis, place, places, shapes, names)
            made.append(end)
            value = call("add", value, received)
    if widens:
        value = call(target.dtype, value)
    return [*made, inside, Statement(s.output, places, s.sizes, value, attributes=s.attributes, span=s.span)]


def _end(
    s: Statement, axis: int, place: int, places: tuple[Index, ...], shapes: Shapes, names: Names
) -> tuple[Statement, Expr]:
    """What one end receives, and what of that the element at these places does."""
    assert s.index is not None and s.sizes is not None
    name = names.fresh(f"{s.output}_{'last' if place else 'first'}")
    box = bounds(replace(s, index=_without(s.index, axis), sizes=_without(s.sizes, axis)), shapes)
    v = fresh_variable("i", all_variables(s))
    others = {x for a, e in enumerate(s.index) if a != axis for x in index_variables(e)}
    own = [x for x in all_variables(s) if x not in others]
    if box is not None and all(box[x][0] == box[x][1] for x in own):
        at = call("eq", Index(v), Int(place))
        fixed = substitute_affine(s, {x: Affine.of((), box[x][0]) for x in own})
        guard = at if fixed.guard is None else call("and", at, call("ne", fixed.guard, Int(0)))
        index = tuple(Index(v) if a == axis else e for a, e in enumerate(fixed.index or ()))
        constraints = tuple(c for c in fixed.constraints if index_variables(c.expr))
        spread = replace(fixed, output=name, index=index, guard=guard, constraints=constraints)
        return keep_constraint_variables(spread), Access(name, places)
    total = replace(s, output=names.fresh(f"{name}_sum"), index=_without(s.index, axis), sizes=_without(s.sizes, axis))
    received = call("select", call("eq", places[axis], Int(place)), Access(total.output, _without(places, axis)), ZERO)
    return keep_constraint_variables(total), received


def _without(items: tuple[Expr, ...], axis: int) -> tuple[Expr, ...]:
    return (*items[:axis], *items[axis + 1 :])
