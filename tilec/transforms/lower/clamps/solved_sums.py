"""Sums over a variable that an equation gives, without that variable, on bound programs.

In `R[t, u] = +(Dst[e] == v & Src[e] == u ? R[t + 1, v])`, summed over e and v, one v counts for each e: it is `+(Src[e]
== u ? R[t + 1, Dst[e]])`. So it is in any statement.

A recurrence whose steps read clamped neighbours, as a stencil's do at its edges, has a gradient whose steps add up all
places that are clamped to an element, `sum(G[t + 1, y']), clamp(y' - 1, 0, N - 1) - y < 1`. By the pieces of the place
(`pieces`) these are few: y + 1, and beside it those beyond the end that y is at. With two terms in the place of N a
step knows its neighbours alone. Elsewhere such a sum is a statement that writes to the place (`split_clamps`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from tilec.errors import AffineMistake
from tilec.ir.constraining import constraining
from tilec.ir.functions import ONE, ZERO, all_of, call, operands_of
from tilec.ir.index import Affine, linear, replace_constraints, replace_indices
from tilec.ir.infer import expression_type, infer
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Constraint,
    Expr,
    Float,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    children,
    index_variables,
    map_values,
    reads_itself,
    rebuild,
    variables_of,
    walk,
)
from tilec.ir.types import Kind, Types, kind
from tilec.lattice.conditions import has_room
from tilec.transforms.lower.clamps.pieces import AffinePiece, is_folded, pieces_of
from tilec.transforms.simplify.keep_variables import as_conditions

_ANY_TERM = ("sum", "prod", "max", "min", "logsumexp", "any", "all")  # of one term: that, whichever it is
_BOUND = Int(1)
_Node = TypeVar("_Node", Statement, Aggregate)


def solve_sums(program: Program, inputs: Types) -> Program:
    """The program with such sums. `inputs`: types of the inputs."""
    if not any(_asks(s) for s in program.statements):
        return program
    types = infer(program, inputs)
    return replace(program, statements=tuple(_solved(s, types) for s in program.statements))


def _asks(s: Statement) -> bool:
    """Whether a place stands in a condition, which may be an equation."""
    nodes: list[Statement | Aggregate] = [s, *(e for e in walk(*s.roots) if isinstance(e, Aggregate))]
    conditions = [c.expr for x in nodes for c in x.constraints]
    tests = [e for x in nodes if x.guard is not None for e in walk(x.guard)]
    return any(map(_of_data, conditions)) or any(isinstance(e, Access) for e in tests) or reads_itself(s)


def _of_data(e: Expr) -> bool:
    return any(isinstance(x, Access) for x in walk(e))


def _solved(s: Statement, types: Types) -> Statement:
    def visit(e: Expr) -> Expr:
        e = rebuild(e, visit)
        if not isinstance(e, Aggregate):
            return e
        e = _with_used(_without_named(e, e.bound, types))
        return _by_pieces(e, s.output, types) if reads_itself(s) and e.aggregation == "sum" else e

    s = map_values(s, visit) if any(isinstance(e, Aggregate) for e in walk(*s.roots)) else s
    written = index_variables(*(s.index or ()))
    return s if reads_itself(s) else _without_named(s, tuple(v for v in variables_of(s) if v not in written), types)


# a variable that data names


@dataclass(frozen=True)
class _Equation:
    """`form` is 0; `guard` and `constraints` are the other conditions."""

    form: Affine
    guard: Expr | None
    constraints: tuple[Constraint, ...]


def _equations(x: Statement | Aggregate) -> Iterator[_Equation]:
    tests = [] if x.guard is None else list(operands_of("and", x.guard))
    for test in tests:
        left = all_of(t for t in tests if t is not test)
        match test:
            case Call("eq", (a, b)) if (form := _difference(a, b)) is not None:
                yield _Equation(form, left, x.constraints)
            case Call("ge", (a, b)) if b == ZERO:
                below = [t for t in tests if t == Call("lt", (a, _BOUND))]
                if below and (form := _difference(a, b)) is not None:
                    yield _Equation(form, all_of(t for t in tests if t is not test and t not in below), x.constraints)
    for c in x.constraints:
        if c.bound == _BOUND:
            yield _Equation(linear(c.expr), x.guard, tuple(d for d in x.constraints if d is not c))


def _difference(a: Expr, b: Expr) -> Affine | None:
    if any(isinstance(e, (Float, Aggregate)) for e in walk(a, b)) or not (has_room(a) and has_room(b)):
        return None
    try:
        return linear(a) - linear(b)
    except AffineMistake:
        return None


def _without_named(x: _Node, bound: tuple[str, ...], types: Types) -> _Node:
    """Without variables that are an element's value wherever a term counts."""
    if x.aggregation not in _ANY_TERM:
        return x
    for equation in _equations(x):
        for v in bound:
            value = _value_of(v, equation.form, types)
            if value is None or _stands_as_value(v, x.body):
                continue
            left = tuple(u for u in bound if u != v)
            if not left and isinstance(x, Aggregate):
                continue
            made = replace(x, guard=equation.guard, constraints=equation.constraints)
            return _without_named(_substituted(made, v, value), left, types)
    return x


def _value_of(v: str, form: Affine, types: Types) -> Affine | None:
    """What the variable is, of integers that tensors hold, if the form is 0."""
    c = form.coefficient(v)
    if abs(c) != 1 or not form.is_integral or form.is_affine:
        return None
    value = (Affine.variable(v) * c - form) * c
    read = [e for atom in value.atoms() for e in walk(atom) if isinstance(e, Access)]
    plain = all(isinstance(atom, Access) for atom in value.atoms())
    integers = all(kind(types[e.tensor].dtype) is Kind.INTEGER for e in read)
    return value if plain and integers and v not in index_variables(value.to_expr()) else None


def _stands_as_value(v: str, e: Expr) -> bool:
    """Whether a value is computed of the variable, whose type an element in its place need not have."""
    match e:
        case Index(name):
            return name == v
        case Access() | Inside():
            return False
    return any(_stands_as_value(v, x) for x in children(e))


def _with_used(e: Aggregate) -> Aggregate:
    """Without the variables that nothing in it names."""
    used = index_variables(*children(e))
    return e if {*e.bound} <= {*used} else replace(e, bound=tuple(v for v in e.bound if v in used))


def _substituted(x: _Node, v: str, value: Affine) -> _Node:
    mapping = {v: value}
    moved = map_values(x, lambda e: replace_indices(e, mapping))
    return replace(moved, constraints=replace_constraints(x.constraints, mapping))


# a variable whose place has pieces


def _by_pieces(e: Aggregate, own: str, types: Types) -> Expr:
    """The sum over what each piece gives, where an equation says such a place of one variable."""
    for equation in _equations(e):
        for v in e.bound:
            found = _pieces_at(v, equation.form, e, own, types)
            if found is None:
                continue
            inner = replace(e, guard=equation.guard, constraints=equation.constraints)
            parts = [_part(inner, v, p, *found[1:], own, types) for p in found[0]]
            if any(part is None for part in parts):
                continue
            terms = [_by_pieces(p, own, types) if isinstance(p, Aggregate) else p for p in parts if p is not None]
            total = terms[0]
            for term in terms[1:]:
                total = call("add", total, term)
            return total
    return e


def _pieces_at(
    v: str, form: Affine, e: Aggregate, own: str, types: Types
) -> tuple[tuple[AffinePiece, ...], Affine, Affine] | None:
    """The pieces of the place, the form that they are of, which v is one time in, and what the place is to be."""
    atoms = [(atom, c) for atom, c in form.terms if v in index_variables(atom)]
    rest = form - Affine.of(atoms)
    signs = {c for _, c in atoms}
    if len(signs) != 1 or not signs <= {1, -1} or not rest.is_integral or not rest.is_affine:
        return None
    sign = signs.pop()
    row, target = Affine.of([(atom, 1) for atom, _ in atoms]), rest * -sign
    extents = {u: _extent(u, e, own, types) for u in index_variables(row.to_expr())}
    box = {u: (0, n - 1) for u, n in extents.items() if n and u in e.bound}
    if not is_folded(row) or len(box) < len(extents):
        return None
    found = pieces_of(row, box)
    if found is None or abs(found[0].coefficient(v)) != 1:
        return None
    base, pieces = found
    return pieces, base, target


def _extent(v: str, e: Aggregate, own: str, types: Types) -> int | None:
    """How many values, from 0 on, the variable has at most."""
    read = constraining(e.body, *e.guards, own=own)
    sizes = [n for a in read for i, n in zip(a.index, types[a.tensor].shape, strict=True) if linear(i).bare == v]
    return min(sizes, default=None)


def _part(
    e: Aggregate, v: str, piece: AffinePiece, base: Affine, target: Affine, own: str, types: Types
) -> Expr | None:
    """The sum over the values of v in a piece at which the place is the target; None where it has no form."""
    c = base.coefficient(v)
    count = piece.last - piece.first + 1
    if piece.slope:
        if abs(piece.slope) != 1:
            return None
        at = (target - piece.rest) * piece.slope
        asked = Constraint((at - piece.first).to_expr(), Int(count))
    else:
        at = Affine.of((), piece.first)
        asked = Constraint((target - piece.rest).to_expr(), Int(1))
        if count > 1:
            return replace(
                e, constraints=(*e.constraints, asked, Constraint((base - piece.first).to_expr(), Int(count)))
            )
    value = (at - (base - Affine.variable(v) * c)) * c
    moved = _with_used(_substituted(replace(e, constraints=(*e.constraints, asked)), v, value))
    return moved if moved.bound else _only_term(moved, own, types)


def _only_term(e: Aggregate, own: str, types: Types) -> Expr | None:
    """The term of a sum that binds no variable, 0 where it does not count; None where places of it are data."""
    read = [*constraining(e.body, *e.guards, own=own)]
    if any(map(_of_data, (*(i for a in read for i in a.index), *(c.expr for c in e.constraints)))):
        return None
    conditions: dict[Expr, None] = {}
    known: set[tuple[Expr, int]] = set()
    for c in e.constraints:
        conditions |= dict.fromkeys(as_conditions(c))
    for a in read:
        asked = set(zip(a.index, types[a.tensor].shape, strict=True))
        if not asked <= known:
            conditions[Call("ne", (Pad(Inside(a), ZERO), ZERO))] = None
            known |= asked

    def padded(x: Expr) -> Expr:
        match x:
            case Access() if x.tensor != own:
                return Pad(x, Call("bool", (ZERO,)) if types[x.tensor].dtype == "bool" else ZERO)
            case Inside():
                return ONE
            case Pad():
                return replace(x, value=padded(x.value))
            case Access() | Aggregate():
                return x
        return rebuild(x, padded)

    tests = [*conditions, *(padded(t) for t in e.guards)]
    value = padded(e.body)
    zero = call(expression_type(e.body, types).dtype, Float(0.0))
    test = all_of(tests)
    return value if test is None else Call("select", (test, value, zero))
