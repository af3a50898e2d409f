"""Defract: integer coefficients again, by residue classes of the output's coordinates.

The integer points of a reduced statement at which every index and every constraint is an integer are a shifted lattice.
With its basis B in Hermite form over (outputs, reductions), an output coordinate whose residue matters is split into a
residue r and a tile q, v = ... + b r + m q with 0 <= r < m / b, m the least period that leaves the reductions' residues
alone; a reduction becomes an integer combination of residues and of new reductions. Inside one class all accesses are
affine with integer coefficients, and nothing is left to be tested for divisibility. The m[i] e[i] and the reductions'
own columns span a sublattice; by triangularity the residues number its classes, each once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter

from tilec.ir.constraining import asks_in_branches
from tilec.ir.index import QUASI_AFFINE, Affine, linear, natural, substitute_affine
from tilec.ir.program import (
    Call,
    Constraint,
    Expr,
    Index,
    Int,
    Program,
    Statement,
    accesses_in,
    expressions,
    reads_itself,
    walk,
)
from tilec.lattice.hermite import integral_points, rank
from tilec.lattice.sets import IntegerSet, Shapes, bounds_of, domain, shapes_of
from tilec.transforms.lower.reduce import keep_constraint_variables, reduce_statement


def defract(program: Program) -> Program:
    """A reduced program without fractions, `no_defract` statements aside. Those whose output index is not made of bare
    variables and combinations of them, or that have no valid point for want of an integer, stay as they are; fractions
    inside `pad`, or times a tensor's element, stay where they are, and so do recurrences."""
    shapes = shapes_of(program)
    return replace(program, statements=tuple(defract_statement(s, shapes) for s in program.statements))


def defract_statement(s: Statement, shapes: Shapes) -> Statement:
    """One statement without fractions, given the shapes of what it reads."""
    output = [linear(e) for e in s.index or ()]
    outputs = list(dict.fromkeys(row.bare for row in output if row.bare))
    if (
        s.no_defract
        or not any(map(_may_be_fraction, walk(*expressions(s))))
        or reads_itself(s)
        or any(not row.is_affine or set(row.variables()) - set(outputs) for row in output)
    ):
        return s
    points = domain(s, shapes)
    forms = [f for c in (*points.conditions, *points.dependent) for f in _integer_parts(c.form)]
    fractions = [f for f in forms if not f.is_integral]
    splits: list[_Split] = []
    for order in _orders(fractions, outputs, points):
        for centred in (False, True):
            split = _split(fractions, outputs, order, points.variables, centred)
            if split is not None and split not in splits:
                splits.append(split)
    made, *others = [_defracted(s, split, shapes) for split in splits] or [s]
    least, count = min(((other, _points(other, shapes)) for other in others), key=itemgetter(1), default=(made, 0))
    return least if others and _LEAST_GAIN * count <= _points(made, shapes) else made


def _may_be_fraction(e: Expr) -> bool:
    """Whether an index can have a fraction from it: from a quotient by a number."""
    return isinstance(e, Call) and e.function == "div" and not any(accesses_in(e.args[1]))


def _points(s: Statement, shapes: Shapes) -> int:
    """How many points the box of the statement's has."""
    box = bounds_of(domain(s, shapes)) or {}
    return math.prod(high - low + 1 for low, high in box.values())


def _defracted(s: Statement, split: _Split, shapes: Shapes) -> Statement:
    change, classes = split
    result = substitute_affine(s, change)
    fractional = [new for old, new in zip(s.constraints, result.constraints, strict=True) if not _integral(old)]
    result = replace(result, constraints=(*result.constraints, *(Constraint(Index(v), Int(n)) for v, n in classes)))
    for constraint in fractional:
        result = _without(constraint, result, shapes)
    return keep_constraint_variables(result)


def defracted_form(s: Statement, shapes: Shapes) -> Statement:
    """A flat statement in reduced form and without fractions."""
    return defract_statement(reduce_statement(s, shapes), shapes)


def _integral(c: Constraint) -> bool:
    return linear(c.expr).is_integral


def _integer_parts(form: Affine) -> Iterator[Affine]:
    """The affine forms that must be integers for an index to be one: its own terms in variables, where the atoms add
    integers to them, and the arguments of `%` and `clamp`."""
    variables = Affine.combine({v: form.coefficient(v) for v in form.variables()}, form.constant)
    if (form - variables).is_integral:
        yield variables
    for atom in form.atoms():
        if isinstance(atom, Call) and atom.function in QUASI_AFFINE:
            for argument in atom.args:
                yield from _integer_parts(linear(argument))


_LEAST_GAIN = 4  # what a basis must spare to be taken in the place of Hermite's
_Split = tuple[dict[str, Affine], list[tuple[str, int]]]


def _orders(forms: list[Affine], outputs: Sequence[str], points: IntegerSet) -> list[list[str]]:
    """The reductions that have fractions: by name, and those that have few values first."""
    fractional = {v for v in points.variables if any(f.coefficient(v).denominator > 1 for f in forms)}
    named = sorted(fractional - {*outputs}, key=natural)
    box = bounds_of(points) if len(named) > 1 else None
    return [named] if box is None else [named, sorted(named, key=lambda v: box[v][1] - box[v][0])]


def _split(
    forms: list[Affine], outputs: Sequence[str], reductions: list[str], variables: Sequence[str], centred: bool = False
) -> _Split | None:
    """The old variables as forms in the new, and the residues with their numbers of values; None where no form asks for
    a change or no point makes all of them integers. Reductions follow from those before them: of `(x - k - l)/64` the
    first of k and l takes all of its values, best the one that has few. `centred`: a reduction's coefficients in others
    are as small as they get, of either sign, and not from 0 on, so that boxes are not aslant: of `(x - k - l)/512` l is
    512*q - k, not 512*q + 511*k."""
    split_outputs = [v for v in outputs if any(f.coefficient(v).denominator > 1 for f in forms)]
    names = [*split_outputs, *reductions]
    rows = [[f.coefficient(v) for v in names] for f in forms]
    solution = integral_points(rows, [f.constant for f in forms], len(names)) if forms else None
    if solution is None:
        return None
    origin, basis = solution
    if centred:
        basis = _centred(basis, len(split_outputs))
    period = [math.lcm(*(row[i].denominator for row in rows)) for i in range(len(split_outputs))]
    fresh = _Fresh(variables)
    coefficients: list[dict[str, int]] = [{} for _ in names]
    classes: list[tuple[str, int]] = []
    for i, v in enumerate(names):
        if i >= len(split_outputs):
            columns = [(fresh.name(v, 0), [row[i] for row in basis])]
        else:
            count = period[i] // basis[i][i]
            columns = [(fresh.name(v, int(count > 1)), [period[i] * int(j == i) for j in range(len(names))])]
            if count > 1:
                residue = fresh.name(v, 0)
                classes.append((residue, count))
                columns.append((residue, [row[i] for row in basis]))
        for name, column in columns:
            for row, x in zip(coefficients, column, strict=True):
                row[name] = x
    change = (Affine.combine(row, x) for row, x in zip(coefficients, origin, strict=True))
    return dict(zip(names, change, strict=True)), classes


def _centred(basis: Sequence[Sequence[int]], outputs: int) -> list[list[int]]:
    """A triangular basis with columns of reductions taken from others so that these are near zero."""
    rows = [list(row) for row in basis]
    for i in range(len(rows)):
        for j in range(max(i + 1, outputs), len(rows)):
            times = (2 * rows[j][i] + rows[j][j] - 1) // (2 * rows[j][j])
            for row in rows[j:]:
                row[i] -= times * row[j]
    return rows


class _Fresh:
    """Names `v_0`, `v_1` of the parts of v (`v_0'`, `v_1'` of v'), with `_` repeated while the statement has such a
    variable already."""

    def __init__(self, taken: Sequence[str]):
        self.taken = frozenset(taken)

    def name(self, v: str, part: int) -> str:
        stem, prime = v.rstrip("'"), "'" * v.endswith("'")
        joint = "_"
        while f"{stem}{joint}{part}{prime}" in self.taken:
            joint += "_"
        return f"{stem}{joint}{part}{prime}"


def _without(c: Constraint, s: Statement, shapes: Shapes) -> Statement:
    """The statement without a constraint that asked for an integer, if the other conditions imply it and are still
    enough to bound every variable."""
    form = linear(c.expr)
    if not form.is_integral or not form.is_affine or not isinstance(c.bound, Int) or asks_in_branches(s):
        return s
    trial = replace(s, constraints=tuple(other for other in s.constraints if other is not c))
    points = domain(trial, shapes)
    if not set(form.variables()) <= set(points.variables):
        return s
    rows = [[d.form.coefficient(v) for v in points.variables] for d in points.conditions if d.form.is_affine]
    if rank(rows) < len(points.variables):
        return s
    box = bounds_of(points)
    if box is None:
        return s
    ends = [(form.coefficient(v) * box[v][0], form.coefficient(v) * box[v][1]) for v in form.variables()]
    low = form.constant + sum(min(pair) for pair in ends)
    high = form.constant + sum(max(pair) for pair in ends)
    return trial if low >= 0 and high < c.bound.value else s
