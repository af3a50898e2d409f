"""Scores by places of a window, `S[i, w] = +(Q[i, d] * K[i + w - c, d])`, as scores by columns: `S[i, j]` at `j = i +
w - c`. Rows and columns have an operand each, so that a chain takes them, and what adds them up goes through a band.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.chains.values import Apart, plain_index, reduction_variables
from tilec.ir.functions import operands_of
from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.infer import infer
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Constraint,
    Expr,
    Float,
    Index,
    Int,
    Pad,
    Program,
    Statement,
    accesses_in,
    index_variables,
    map_expressions,
    reads,
    reads_itself,
    rebuild,
    value_accesses,
    variables_of,
    walk,
)
from tilec.ir.rational import as_int
from tilec.ir.types import FLOATS, Types
from tilec.lattice.conditions import bound_of
from tilec.transforms.util.naming import all_variables, fresh_variable

FEWEST_SCORES = 2**18  # of scores, and places of a window, from which on they are columns
FEWEST_OF_A_WINDOW = 8


@dataclass(frozen=True)
class _Window:
    """Positions of the row and of the place in the scores' indices; the column is row + place + `shift`, one of
    `columns`."""

    row: int
    place: int
    shift: int
    columns: int
    places: int


def with_scores_by_columns(program: Program, types: Types) -> Apart:
    """A flat program with scores by columns, which keep their names."""
    for s in program.statements:
        window = _window(s, types)
        if window is not None and (made := _rewritten(program, s, window, types)) is not None:
            changed = {m.output: m for m in made}
            statements = tuple(changed.get(t.output, t) for t in program.statements)
            program = replace(program, statements=statements)
            return Apart(program, {**types, **infer(program, types)}, frozenset(changed))
    return Apart(program, types)


def _window(s: Statement, types: Types) -> _Window | None:
    index = plain_index(s)
    plain = s.aggregation == "sum" and s.guard is None and not s.constraints and not reads_itself(s)
    if index is None or not plain or types[s.output].dtype not in FLOATS or not reduction_variables(s):
        return None
    sizes = dict(zip(index, types[s.output].shape, strict=True))
    if any(isinstance(e, (Aggregate, Pad)) for e in walk(s.body)):
        return None
    places = [(a, e) for a in accesses_in(s.body) for e in a.index if len(index_variables(e)) == 2]
    if len({(a.tensor, e) for a, e in places}) != 1 or math.prod(sizes.values()) < FEWEST_SCORES:
        return None
    a, e = places[0]
    form = linear(e)
    if not form.is_affine or not form.is_integral or any(form.coefficient(v) != 1 for v in form.variables()):
        return None
    every = [i for x in accesses_in(s.body) for i in x.index if i != e]
    inside = [v for v in form.variables() if v in index and v not in index_variables(*every)]
    if len(inside) != 1 or not set(form.variables()) <= set(index) or sizes[inside[0]] < FEWEST_OF_A_WINDOW:
        return None
    (row,) = (v for v in form.variables() if v != inside[0])
    columns = types[a.tensor].shape[a.index.index(e)]
    place = index.index(inside[0])
    return _Window(index.index(row), place, as_int(form.constant), columns, sizes[inside[0]])


def _rewritten(program: Program, first: Statement, w: _Window, types: Types) -> list[Statement] | None:
    scores = {first.output}
    low: set[str] = set()  # scores that are -inf where there is no column
    none: set[str] = set()  # scores that are 0 there
    made: list[Statement] = []
    for s in program.statements:
        read = [a for a in accesses_in(s.body, s.guard) if a.tensor in scores]
        if not read and s is not first:
            if scores & {*reads(s)}:  # as a default, or where they begin
                return None
            continue
        if s.output in program.outputs and s is first or reads_itself(s) or s.default is not None:
            return None
        index = plain_index(s)
        if index is None or any(isinstance(e, (Aggregate, Pad)) for e in walk(s.body)):
            return None
        at = {(linear(a.index[w.row]).bare, linear(a.index[w.place]).bare) for a in read}
        if s is first:
            at = {(index[w.row], index[w.place])}
        if len(at) != 1:
            return None
        ((row, place),) = at
        if row is None or place is None or row not in index:
            return None
        if place in index:
            if s.aggregation not in ("sum", "assign") or s.output in program.outputs:
                return None
            if len(index) != len(first.index or ()) or (index.index(row), index.index(place)) != (w.row, w.place):
                return None
            if s is not first and reduction_variables(s):
                return None
            scores.add(s.output)
            if _masked(s.body, row, place, w, types[first.output].shape[w.row]):
                low.add(s.output)
            elif _is_exponential(s.body, low):
                none.add(s.output)
        elif not (_inside(s, row, place, w, types) or _is_nothing(s, low, none)):
            return None
        made.append(_by_columns(s, row, place, w, scores))
    return made


def _inside(s: Statement, row: str, place: str, w: _Window, types: Types) -> bool:
    """Whether all points of an aggregation over places have a column."""
    column = Affine.variable(row) + Affine.variable(place) + w.shift
    if any(linear(e) == column and n == w.columns for a in accesses_in(s.body) for e, n in _axes(a, types)):
        return True
    rows = dict(zip(plain_index(s) or (), types[s.output].shape, strict=True))[row]
    always = w.shift >= 0 and rows + w.places - 2 + w.shift < w.columns
    return always or s.guard is not None and _implied(s.guard, row, place, w, rows)


def _implied(condition: Expr, row: str, place: str, w: _Window, rows: int) -> bool:
    """Whether a condition holds of no point without a column."""
    column = Affine.variable(row) + Affine.variable(place) + w.shift
    forms = [f for c in operands_of("and", condition) if (f := bound_of(c)) is not None]
    low = w.shift >= 0 or any(_implies(f, column) for f in forms)
    most = -column + (w.columns - 1)
    return low and (rows + w.places - 2 + w.shift < w.columns or any(_implies(f, most) for f in forms))


def _masked(e: Expr, row: str, place: str, w: _Window, rows: int) -> bool:
    """Whether a value is -inf where there is no column, and a row has a column of its own."""
    match e:
        case Call("select", (condition, _, Call("neg", (Float(n),)) | Float(n))) if math.isinf(n):
            own = 0 <= -w.shift < w.places and rows <= w.columns
            return own and _implied(condition, row, place, w, rows) and not (isinstance(e.args[2], Float) and n > 0)
    return False


def _is_exponential(e: Expr, low: Collection[str]) -> bool:
    match e:
        case Call("exp", (Call("sub", (Access(name), _)),)):
            return name in low
    return False


def _is_nothing(s: Statement, low: Collection[str], none: Collection[str]) -> bool:
    """Whether an aggregation has its identity where there is no column."""
    body = s.body
    while isinstance(body, Call) and len(body.args) == 1 and body.function in FLOATS:
        (body,) = body.args
    if s.aggregation in ("max", "logsumexp"):
        return isinstance(body, Access) and body.tensor in low
    lone = isinstance(body, Access) and body.tensor in none
    return s.aggregation == "sum" and (lone or _is_exponential(body, low))


def _axes(a: Access, types: Types) -> list[tuple[Expr, int]]:
    return list(zip(a.index, types[a.tensor].shape, strict=True))


def _implies(known: Affine, wanted: Affine) -> bool:
    """Whether a form that is not negative says that of another."""
    rest = wanted - known
    return not rest.terms and rest.constant >= 0


def _by_columns(s: Statement, row: str, place: str, w: _Window, scores: Collection[str]) -> Statement:
    column = fresh_variable("j", all_variables(s) | set(variables_of(s)))
    there = Affine.variable(column) - Affine.variable(row) - w.shift

    def at(e: Expr) -> Expr:
        e = rebuild(e, at)
        if isinstance(e, Access) and e.tensor in scores:
            return replace(e, index=tuple(Index(column) if k == w.place else i for k, i in enumerate(e.index)))
        return e

    within = Constraint(there.to_expr(), Int(w.places))  # of scores too: a function of others may be infinite
    kept = tuple(Index(column) if e == Index(place) else e for e in s.index or ())
    sizes = s.sizes
    if kept != s.index:  # otherwise the places are added up
        sizes = tuple(Int(w.columns) if k == w.place else n for k, n in enumerate(s.sizes or ()))
    made = replace(s, index=kept, sizes=sizes)
    made = replace(substitute_affine(made, {place: there}), constraints=(*made.constraints, within))
    return map_expressions(made, at)


def asked_by_readers(program: Program) -> tuple[Program, frozenset[str]]:
    """A flat program without the constraints of values that hold wherever these are read, which a kernel that computes
    the values where it reads them asks anyway; and the outputs of the statements that have lost some."""
    made: dict[str, Statement] = {}
    for s in program.statements:
        index = plain_index(s)
        if index is None or not s.constraints or s.output in program.outputs or s.default or reads_itself(s):
            continue
        own = tuple(c for c in s.constraints if not _is_asked(program, s.output, index, c))
        if own != s.constraints:
            made[s.output] = replace(s, constraints=own)
    return replace(program, statements=tuple(made.get(s.output, s) for s in program.statements)), frozenset(made)


def _is_asked(program: Program, name: str, index: Sequence[str], c: Constraint) -> bool:
    """Whether a constraint of these variables of a tensor's element holds at every point that reads the element."""
    form, readers = linear(c.expr), program.readers(name)
    if name in program.outputs or not readers or not {*index_variables(c.expr)} <= {*index} or not form.is_affine:
        return False
    for s in readers:
        read = [a for a in value_accesses(s) if a.tensor == name]
        if not read or s.default or s.init or any(isinstance(e, Aggregate) for e in walk(s.body)):
            return False
        there = plain_index(s)
        for a in read:
            own = form.substitute(dict(zip(index, map(linear, a.index), strict=True)))
            asked = replace(c, expr=own.to_expr())
            if any(linear(k.expr) == own and k.bound == c.bound for k in s.constraints):
                continue
            if there is None or not _is_asked(program, s.output, there, asked):
                return False
    return True
