"""Reduce: a rational change of variables after which every output index is a variable of its own.

One new variable per linearly independent row of the output index (the element's coordinate itself); beside them as
many of the old variables are kept as make the change of variables invertible. The others become rational forms. That
they are integers is then said by the remaining indices and constraints, or by a constraint that is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir.constraining import asks_in_branches
from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.program import Constraint, Int, Program, Statement, index_variables, reads_itself
from tilec.lattice.hermite import contains, identity_matrix
from tilec.lattice.sets import Box, IntegerSet, Shapes, bounds_of, domain, shapes_of
from tilec.transforms.simplify.keep_variables import anchor


def reduce(program: Program) -> Program:
    """A flat program with each statement in reduced form. Statements with a data-dependent, `%` or `clamp` output
    index, recurrences (flat ones are in such a form), and statements whose output indices are distinct bare variables
    while no index is fractional, stay as they are."""
    shapes = shapes_of(program)
    return replace(
        program, statements=tuple(s if reads_itself(s) else reduce_statement(s, shapes) for s in program.statements)
    )


def reduce_statement(s: Statement, shapes: Shapes) -> Statement:
    """One statement in reduced form, given the shapes of what it reads: variables v0, v1, ... for the independent rows
    of the output index in order, then the kept ones in order of appearance."""
    output = [linear(e) for e in s.index or ()]
    if not all(row.is_affine for row in output):
        return s
    points = domain(s, shapes)
    bare = [row.bare for row in output]
    if None not in bare and len(set(bare)) == len(bare) and all(c.form.is_integral for c in points.conditions):
        return s
    box = bounds_of(points)
    solved = _eliminate(output, points.variables, box)
    kept = [v for v in points.variables if v not in solved]
    names = {v: Affine.variable(f"v{i}") for i, v in enumerate([*map(_coordinate, range(len(solved))), *kept])}
    change = {v: solved[v].substitute(names) if v in solved else names[v] for v in points.variables}
    reduced = substitute_affine(s, change)
    unsure = asks_in_branches(s)
    lost = tuple(_integrality(v, change, box) for v in solved if unsure or not _implied(v, change, points))
    return keep_constraint_variables(replace(reduced, constraints=tuple(dict.fromkeys((*reduced.constraints, *lost)))))


def keep_constraint_variables(s: Statement) -> Statement:
    """The statement with its variables that only constraints are left to name kept in sight: a source may not have such
    variables, and what a pass makes is to be a source."""
    named = set(index_variables(*(s.index or ()), *s.roots))
    alone = [v for v in index_variables(*(c.expr for c in s.constraints)) if v not in named]
    return anchor(s, alone) if alone else s


def _coordinate(i: int) -> str:
    """A name for the i-th independent output coordinate that no variable of a source can have."""
    return f"#{i}"


def _eliminate(output: list[Affine], variables: tuple[str, ...], box: Box | None) -> dict[str, Affine]:
    """One variable for each independent row, as a form in the coordinates and the other variables. The one whose range
    times coefficient is largest is taken, so that few points remain to be visited for the others; the largest
    coefficient where that is equal."""
    extent = {v: box[v][1] - box[v][0] + 1 if box else 1 for v in variables}
    solved: dict[str, Affine] = {}
    for form in output:
        row = form.substitute(solved)
        candidates = [v for v in variables if row.coefficient(v)]
        if not candidates:
            continue
        weight = {v: (abs(row.coefficient(v)) * extent[v], abs(row.coefficient(v))) for v in candidates}
        pivot = max(candidates, key=lambda v: weight[v])
        c = row.coefficient(pivot)
        value = (Affine.variable(_coordinate(len(solved))) - row + Affine.variable(pivot, c)) * (1 / c)
        solved = {v: other.substitute({pivot: value}) for v, other in solved.items()}
        solved[pivot] = value
    return solved


def _implied(v: str, change: Mapping[str, Affine], points: IntegerSet) -> bool:
    """Do the conditions make an eliminated variable an integer wherever the new variables are? They do where its form
    is an integer combination of theirs, of the variables and of one."""
    forms = [c.form for c in points.conditions if c.form.is_affine]
    target = change[v]
    if target.is_integral or any(f.is_integral and f.variables() == (v,) and abs(f.coefficient(v)) == 1 for f in forms):
        return True
    fractional = [f for f in (f.substitute(change) for f in forms) if not f.is_integral]
    variables = dict.fromkeys(name for f in (target, *fractional) for name in f.variables())
    names = [name for name in variables if any(f.coefficient(name).denominator > 1 for f in (target, *fractional))]
    rows = [[*(f.coefficient(name) for name in names), f.constant] for f in (target, *fractional)]
    return contains([*rows[1:], *identity_matrix(len(names) + 1)], rows[0])


def _integrality(v: str, change: Mapping[str, Affine], box: Box | None) -> Constraint:
    """A constraint that a variable is an integer in its exact range, none if there is no valid point."""
    low, high = box[v] if box else (0, -1)
    return Constraint((change[v] - low).to_expr(), Int(high - low + 1))
