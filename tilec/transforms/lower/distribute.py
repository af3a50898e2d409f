"""Sums of products of which one factor is itself a sum, on flat programs: `A * (x - y)` as `A * x - A * y`.

`D[i, d] = +(G[i, j] * (X[i, d] - Y[j, d]))`, the gradient of squared distances, visits every (i, j, d) term by term.
Where what the sum's terms need falls apart, one part leaves the sum and the other is a product of two matrices:
`D[i, d] = X[i, d] * T[i] - P[i, d]` with `T[i] = +(G[i, j])` and `P[i, d] = +(G[i, j] * Y[j, d])`.

The difference of two large numbers may be small. What both parts have in common is taken out of them first: with
`C[d] = Y[0, d]` the value is `(X[i, d] - C[d]) * T[i] - +(G[i, j] * (Y[j, d] - C[d]))`, so that rounding is relative to
the spread of the points and not to their distance from the origin (torch's gradient of `cdist` is this without C).
Products of 16-bit elements are exact as they are, and are not shifted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilec.ir.functions import call
from tilec.ir.index import Affine, distinct_variables, linear, replace_indices
from tilec.ir.infer import infer, statement_type
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    index_variables,
    reads_itself,
    walk,
)
from tilec.ir.types import NARROW, Types, is_floating
from tilec.transforms.lower.decompose import points_per_element
from tilec.transforms.lower.factor import Factor, added, as_float32, factors_of, is_number, quotient_of, terms_of
from tilec.transforms.util.naming import Names

_FEWEST = 9  # rows, columns and terms from which a product is one of matrices
DistributedTerms = list[tuple[bool, Expr]]


def distribute(program: Program, inputs: Types) -> Program:
    """The program with such sums taken apart. `inputs`: types of the inputs."""
    types = dict(infer(program, inputs))
    names = Names.of(program)
    return replace(program, statements=tuple(m for s in program.statements for m in _apart(s, types, names)))


@dataclass(frozen=True)
class _Cut:
    """A sum of `shared * (leaving + summed)`, times `outer`: terms that leave the sum and those that do not."""

    shared: list[Factor]
    outer: list[Factor]
    leaving: DistributedTerms
    summed: DistributedTerms


def _apart(s: Statement, types: Types, names: Names) -> list[Statement]:
    """The statement, or those that take its place."""
    cut = _cut(s, types)
    if cut is None:
        return [s]
    sizes = dict(zip(index_variables(*(s.index or ())), types[s.output].shape, strict=True))
    halved = types[s.output].dtype in NARROW
    factors = [as_float32(f, halved) for f in cut.shared]
    known = dict(types)
    made: list[Statement] = []

    def assigned(purpose: str, variables: dict[str, int], body: Expr, aggregation: str) -> Access:
        index = tuple(map(Index, variables))
        output = names.fresh(f"{s.output}_{purpose}")
        new = replace(
            s, output=output, index=index, sizes=tuple(map(Int, variables.values())), body=body, attributes=()
        )
        made.append(replace(new, aggregation=aggregation))
        known[output] = statement_type(made[-1], known)
        return Access(output, index)

    summed, leaving = added(cut.summed), added(cut.leaving)
    if not halved:
        walked = _extents(s, types)
        assert walked is not None
        there = {v: walked[v] for v in index_variables(summed)}
        origin = {v: Affine() for v in there if v not in sizes}
        centre = replace_indices(summed, origin)
        summed, leaving = assigned("shifted", there, summed - centre, "assign"), leaving + centre
    else:
        summed, leaving = call("float32", summed), call("float32", leaving)
    of_shared = {v: n for v, n in sizes.items() if v in index_variables(*(f.value for f in factors))}
    total = assigned("total", of_shared, quotient_of(factors), "sum")
    mixed = assigned("mixed", sizes, quotient_of([*factors, Factor(summed, False)]), "sum")
    value = quotient_of([Factor(leaving * total + mixed, False), *cut.outer])
    last = replace(s, body=call(types[s.output].dtype, value) if halved else value, aggregation="assign")
    count = points_per_element(s, types)
    alike = all(points_per_element(m, known) == count for m in made if m.aggregation == "sum")
    return [*made, last] if alike and statement_type(last, known) == types[s.output] else [s]


def _cut(s: Statement, types: Types) -> _Cut | None:
    if s.aggregation != "sum" or s.index is None or s.default is not None or s.guard is not None or s.constraints:
        return None
    outputs = distinct_variables(s.index)
    if outputs is None or reads_itself(s) or not is_floating(types[s.output].dtype):
        return None
    if any(isinstance(e, (Inside, Pad)) for e in walk(s.body)):
        return None
    extent = _extents(s, types)
    if extent is None or points_per_element(s, types) is None:
        return None
    factors = factors_of(s.body, False)
    for place, f in enumerate(factors):
        inner = _uncast(f.value)
        terms = terms_of(inner, False)
        if f.divides or len(terms) < 2:
            continue
        found = _sorted(factors[:place] + factors[place + 1 :], terms, set(outputs), extent)
        if found is not None:
            return found
    return None


def _uncast(e: Expr) -> Expr:
    return e.args[0] if isinstance(e, Call) and e.function == "float32" else e


def _sorted(rest: list[Factor], terms: DistributedTerms, outputs: set, extent: Mapping[str, int]) -> _Cut | None:
    """Which factors and terms the sum keeps; None where it does not fall apart into a sum of fewer variables and a
    product of matrices, or is a product already."""
    varying = {v for v, n in extent.items() if n > 1}
    reduced = varying - outputs
    shared = [f for f in rest if set(index_variables(f.value)) & reduced]
    outer = [f for f in rest if f not in shared]
    own = set(index_variables(*(f.value for f in shared))) & varying
    leaving = [t for t in terms if not set(index_variables(t[1])) & reduced]
    summed = [t for t in terms if set(index_variables(t[1])) & reduced]
    if not leaving or not summed or not reduced or not reduced <= own or all(f.divides for f in shared):
        return None
    if any(is_number(e) for _, e in terms):
        return None
    mixed = set(index_variables(*(e for _, e in summed))) & varying
    rows, columns = (own - mixed) & outputs, (mixed - own) & outputs
    known = set(index_variables(*(e for _, e in leaving))) & rows
    counts = [math.prod(extent[v] for v in side) for side in (rows, columns, reduced & mixed)]
    return _Cut(shared, outer, leaving, summed) if known and min(counts) >= _FEWEST else None


def _extents(s: Statement, types: Types) -> dict[str, int] | None:
    """How many values each variable has, where all are bare in what they index and every tensor says the same."""
    found = dict(zip(index_variables(*(s.index or ())), types[s.output].shape, strict=True))
    for a in walk(s.body):
        if isinstance(a, Access):
            for e, n in zip(a.index, types[a.tensor].shape, strict=True):
                v = linear(e).bare
                if v is None or found.setdefault(v, n) != n:
                    return None
    return found
