"""Sums written at a clamped place, as sums written at the place itself and two that its ends receive beside.

`G[clamp(x - 1, 0, N - 1)] = +(D[x])`, the gradient of a read at an edge repeated, adds up what the place itself says
(which can be turned into a read), at 0 also the points below, and at N - 1 those above:

    G_inside[x - 1] = +(D[x]); G_first[i] = +(i == 0 ? D[0]); G_last[i] = +(i == N - 1 ? D[N]);
    G[i] = G_inside[i] + G_first[i] + G_last[i];

Where more than one value of a variable lies beyond an end, these are added up first, in a tensor without that axis; the
last sum reads that tensor at its end.

So it is with every place that has pieces (`pieces`): reflected at an end, `G[abs(x - 1)] = +(D[x])`, or turned round,
unless that is one variable's turn (`move_outputs`). Where a remainder has many pieces, or is part of something else
(`G[(x - x % 2)/2]`, the gradient of repeated elements), it is its number less a multiple, which is summed over:

    G[(x - x % 2)/2] = +(D[x]);   is   G[w] = +(D[x]), x - 2*w < 2;
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from tilec.errors import UnboundIndex
from tilec.ir.functions import ZERO, call
from tilec.ir.index import Affine, canonical, integer, linear, substitute_affine
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
    accesses_in,
    index_variables,
    reads_itself,
    rebuild,
)
from tilec.ir.types import NARROW, TensorType, Types
from tilec.lattice.sets import Shapes, bounds, shapes_of
from tilec.transforms.lower.clamps.pieces import AffinePiece, is_folded, pieces_of
from tilec.transforms.lower.move_outputs import unrotated
from tilec.transforms.lower.reduce import keep_constraint_variables
from tilec.transforms.util.factors import widened_body
from tilec.transforms.util.naming import Names, all_variables, fresh_variable
from tilec.transforms.util.reshapes import without_axis


def split_clamps(program: Program, inputs: Mapping[str, TensorType]) -> Program:
    """The flat program with such sums in parts. `inputs`: types of the inputs."""
    if not any(map(_folded, program.statements)):
        return program
    types, names, shapes = dict(infer(program, inputs)), Names.of(program), shapes_of(program)
    done: list[Statement] = []
    pending = list(reversed(program.statements))
    while pending:
        s = pending.pop()
        parts = _split(s, types, shapes, names) if _folded(s) else None
        if parts is not None:
            pending += reversed(parts)
            continue
        types[s.output] = statement_type(s, types)
        shapes[s.output] = types[s.output].shape
        done.append(s)
    return replace(program, statements=tuple(done))


def _folded(s: Statement) -> tuple[int, ...]:
    """The axes of a sum whose indices have pieces, the others being affine; () where there are none."""
    if s.aggregation != "sum" or s.default is not None or reads_itself(s):
        return ()
    rows = list(map(linear, s.index or ()))
    folded = tuple(axis for axis, row in enumerate(rows) if is_folded(row))
    return folded if all(row.is_affine for axis, row in enumerate(rows) if axis not in folded) else ()


def _split(s: Statement, types: Types, shapes: Shapes, names: Names) -> list[Statement] | None:
    """The statements that take the place of such a sum, None where it stays. What is turned is left to `move_outputs`
    where that takes it, and an element that a row's other indices name to a selection."""
    bare = {v for e in s.index or () if (v := linear(e).bare) is not None}
    named = any({*index_variables((s.index or ())[axis])} <= bare for axis in _folded(s))
    if named or _moves_products(s) or unrotated(s, shapes) is not s:
        return None
    s = _clamped(s, shapes)
    for axis in _folded(s):
        found = _pieces(s, axis, shapes)
        if found is not None:
            return _parts(s, axis, *found, types, shapes, names)
    return _over_multiples(s)


def _is_clamp(row: Affine) -> bool:
    """Whether an index is clamped between two numbers."""
    match row.terms:
        case ((Call("clamp", (form, *ends)), c),) if c == 1 and not row.constant:
            return linear(form).is_affine and all(not linear(e).terms and linear(e).is_integral for e in ends)
    return False


def _moves_products(s: Statement) -> bool:
    """Whether what is put at a folded place of several variables is a sum over others, of an operand that has an axis
    for each: one product gives all values, and pieces would add them up point by point."""
    index = s.index or ()
    summed = {*all_variables(s)} - {*index_variables(*index)}
    folded = [set(index_variables(index[axis])) for axis in _folded(s)]
    read = [{v for e in a.index if (v := linear(e).bare) is not None} for a in accesses_in(s.body)]
    return any(len(own) > 1 and own <= bare and summed & bare for own in folded for bare in read)


def _pieces(s: Statement, axis: int, shapes: Shapes) -> tuple[Affine, tuple[AffinePiece, ...]] | None:
    """The pieces of one index over all values that its form takes, those included whose place is outside."""
    index, sizes = s.index or (), s.sizes or ()
    try:
        box = bounds(replace(s, index=without_axis(index, axis), sizes=without_axis(sizes, axis)), shapes)
    except UnboundIndex:
        return None
    return None if box is None else pieces_of(linear(index[axis]), box)


def _clamped(s: Statement, shapes: Shapes) -> Statement:
    """With indices that stop at their ends as `clamp`, however they are written."""
    index = list(s.index or ())
    for axis in _folded(s):
        found = None if _is_clamp(linear(index[axis])) else _pieces(s, axis, shapes)
        ends = None if found is None else _ends(found[1])
        if found is not None and ends is not None:
            moving, low, high = ends
            index[axis] = Call("clamp", ((found[0] + moving.rest).to_expr(), integer(low), integer(high)))
    return replace(s, index=tuple(index))


def _ends(pieces: tuple[AffinePiece, ...]) -> tuple[AffinePiece, int, int] | None:
    """The piece that moves and the ends at which it stops, None where it does not."""
    moving = [k for k, p in enumerate(pieces) if p.slope]
    if len(moving) != 1 or pieces[moving[0]].slope != 1 or len(pieces) == 1:
        return None
    p = pieces[moving[0]]
    low, high = p.at(p.first), p.at(p.last)
    first, last = [q.rest for q in pieces[: moving[0]]] or [low], [q.rest for q in pieces[moving[0] + 1 :]] or [high]
    stops = len(first) == len(last) == 1 and low - first[0] in (0, 1) and last[0] - high in (0, 1)
    return (p, first[0], last[0]) if stops else None


def _parts(
    s: Statement, axis: int, form: Affine, pieces: tuple[AffinePiece, ...], types: Types, shapes: Shapes, names: Names
) -> list[Statement]:
    assert s.index is not None and s.sizes is not None
    target = statement_type(s, types)
    if len(pieces) == 1 and pieces[0].slope:
        moved = (form * pieces[0].slope + pieces[0].rest).to_expr()
        return [replace(s, index=tuple(moved if a == axis else e for a, e in enumerate(s.index)))]
    widens = target.dtype in NARROW
    body = widened_body(s.body, types) if widens and expression_type(s.body, types).dtype in NARROW else s.body
    s = replace(s, body=body)
    places = tuple(Index(f"i{a}") for a in range(len(target.shape)))
    ends, insides, values = list[Statement](), list[Statement](), list[Expr]()
    for p in pieces:
        low, high = sorted((p.at(p.first), p.at(p.last)))
        if high < 0 or low >= target.shape[axis]:
            continue
        limit = Constraint((form - p.first).to_expr(), Int(p.last - p.first + 1))
        limited = replace(s, constraints=tuple(dict.fromkeys((*s.constraints, limit))), attributes=())
        if not p.slope:
            end, received = _end(limited, axis, low, places, shapes, names)
            ends.append(end)
            values.append(received)
            continue
        place = (form * p.slope + p.rest).to_expr()
        index = tuple(place if a == axis else e for a, e in enumerate(s.index or ()))
        insides.append(replace(limited, output=names.fresh(f"{s.output}_inside"), index=index))
        values.insert(len(insides) - 1, Access(insides[-1].output, places))
    value = functools.reduce(lambda x, y: call("add", x, y), values) if values else call(target.dtype, ZERO)
    if widens:
        value = call(target.dtype, value)
    return [*ends, *insides, Statement(s.output, places, s.sizes, value, attributes=s.attributes, span=s.span)]


def _over_multiples(s: Statement) -> list[Statement] | None:
    """With the remainders in its output index as numbers less a multiple that is summed over; None where one is not of
    an affine form by a number."""
    multiples: dict[Expr, Affine] = {}
    limits: list[Constraint] = []
    taken = set(all_variables(s))

    def visit(e: Expr) -> Expr:
        match e:
            case Call("mod", (inner, Int(n))) if n > 0 and (form := linear(inner)).is_affine and form.is_integral:
                if e not in multiples:
                    v = fresh_variable("w", taken)
                    multiples[e] = form - Affine.variable(v, n)
                    limits.append(Constraint(multiples[e].to_expr(), Int(n)))
                return multiples[e].to_expr()
        return rebuild(e, visit)

    index = tuple(linear(visit(e)).to_expr() for e in map(canonical, s.index or ()))
    turned = replace(s, index=index, constraints=(*s.constraints, *limits))
    return [keep_constraint_variables(turned)] if limits else None


def _end(
    s: Statement, axis: int, place: int, places: tuple[Index, ...], shapes: Shapes, names: Names
) -> tuple[Statement, Expr]:
    """What one end receives, and what of that the element at these places does."""
    assert s.index is not None and s.sizes is not None
    name = names.fresh(f"{s.output}_{'last' if place else 'first'}")
    box = bounds(replace(s, index=without_axis(s.index, axis), sizes=without_axis(s.sizes, axis)), shapes)
    v = fresh_variable("i", all_variables(s))
    others = {x for a, e in enumerate(s.index) if a != axis for x in index_variables(e)}
    own = [x for x in all_variables(s) if x not in others]
    alone = {} if box is None else {x: Affine.of((), box[x][0]) for x in own if box[x][0] == box[x][1]}
    fixed = substitute_affine(s, alone)
    s = replace(fixed, constraints=tuple(c for c in fixed.constraints if index_variables(c.expr)))
    assert s.index is not None and s.sizes is not None
    if box is not None and len(alone) == len(own):
        at = call("eq", Index(v), Int(place))
        guard = at if s.guard is None else call("and", at, call("ne", s.guard, Int(0)))
        index = tuple(Index(v) if a == axis else e for a, e in enumerate(s.index))
        return keep_constraint_variables(replace(s, output=name, index=index, guard=guard)), Access(name, places)
    total = replace(
        s, output=names.fresh(f"{name}_sum"), index=without_axis(s.index, axis), sizes=without_axis(s.sizes, axis)
    )
    received = call(
        "select", call("eq", places[axis], Int(place)), Access(total.output, without_axis(places, axis)), ZERO
    )
    return keep_constraint_variables(total), received
