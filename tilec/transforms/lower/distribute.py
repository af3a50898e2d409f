"""Sums of products of which one factor is itself a sum, on flat programs: `A * (x - y)` as `A * x - A * y`.

`D[i, d] = +(G[i, j] * (X[i, d] - Y[j, d]))`, the gradient of squared distances, visits every (i, j, d) term by term.
Where what the sum's terms need falls apart, one part leaves the sum and the other is a product of two matrices:
`D[i, d] = X[i, d] * T[i] - P[i, d]` with `T[i] = +(G[i, j])` and `P[i, d] = +(G[i, j] * Y[j, d])`.

The difference of two large numbers may be small. What both parts have in common is taken out of them first: with
`C[d] = Y[0, d]` the value is `(X[i, d] - C[d]) * T[i] - +(G[i, j] * (Y[j, d] - C[d]))`, so that rounding is relative to
the spread of the points and not to their distance from the origin (torch's gradient of `cdist` is this without C).
Products of 16-bit elements are exact as they are, and are not shifted.

What has the variables of the factor beside it is a sum of fewer elements: `P[i, j] = +(A[i, d] * (Y[j, d] - X[i, d]))`,
the gradient of such weights, is a product less `+(A[i, d] * X[i, d])` of each row.

A scale's gradient, `+(A[i, d] * G[i, j] * (X[i, d] - Y[j, d]))`, sums up more than that. It is a sum of such sums: the
one over what only some terms need (j) is taken apart, for each i and d.

A sum of products of two tensors each, without a shared factor, is `stack_operands.py`'s. Where factors are computed,
`Y[n, o] = +(cos(X[n, i]) * C[o, i] + sin(X[n, i]) * D[o, i])`, each term is a sum of its own: products of matrices.

`D = P + Q` of two products by one matrix, `P[i, d] = +(G[i, j] * X[j, d])` and `Q[j, d] = +(G[i, j] * X[i, d])`, the
gradient of all pairs of rows of X, is one product of a sum: `P[i, d] = +((G[i, j] + G[j, i]) * X[j, d])`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilec.ir.functions import call
from tilec.ir.index import Affine, replace_indices
from tilec.ir.infer import expression_type, infer, statement_type
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Index,
    Int,
    Program,
    Statement,
    accesses_in,
    expressions,
    index_variables,
)
from tilec.ir.types import NARROW, TensorType, Types
from tilec.transforms.lower.decompose import points_per_element
from tilec.transforms.lower.stack_operands import LEAST_STACKED, full_extents, plain_sum, stack_operands
from tilec.transforms.util.factors import (
    Factor,
    added,
    as_accumulated,
    factors_of,
    factors_of_terms,
    in_wider_type,
    is_number,
    quotient_of,
    terms_of,
    unwidened,
)
from tilec.transforms.util.naming import Names

_FEWEST = 9  # rows, columns and terms from which a product is one of matrices
_LEAST_SHARED = 16  # columns of an operand that two products share; its square where their other operands are larger
_WIDEST = 256  # columns of the widest operand that a kernel holds beside products that it does not store
DistributedTerms = list[tuple[bool, Expr]]


def distribute(program: Program, inputs: Types) -> Program:
    """The program with such sums taken apart. `inputs`: types of the inputs."""
    types = dict(infer(program, inputs))
    names = Names.of(program)
    program = _with_shared_operands(program, types, names)
    return replace(program, statements=tuple(m for s in program.statements for m in _distributed(s, types, names)))


def _with_shared_operands(program: Program, types: dict[str, TensorType], names: Names) -> Program:
    """The program with one product in the place of two that only one sum of both reads."""
    statements, inputs = list(program.statements), set(program.input_names())
    times = Counter(a.tensor for s in statements for a in accesses_in(*expressions(s)))
    once = {s.output: s for s in statements if times[s.output] == 1 and s.output not in program.outputs}
    for s in program.statements:
        own = tuple(s.index or ())
        if (
            s.aggregation != "assign"
            or s.guard is not None
            or s.constraints
            or s.default is not None
            or s.init is not None
        ):
            continue
        terms = terms_of(s.body, False)
        parts = [(t, e.tensor) for t in terms if isinstance(e := t[1], Access) and e.index == own]
        alone = [(t, once[n]) for t, n in parts if n in once]
        for k, (first, p) in enumerate(alone):
            for second, q in alone[k + 1 :]:
                found = _of_both(p, q, first[0] != second[0], types, names, inputs)
                if found is None or p not in statements or q not in statements:
                    continue
                both, product = found
                types[both.output] = statement_type(both, types)
                statements.remove(p)
                statements[statements.index(q) : statements.index(q) + 1] = [both, product]
                terms.remove(second)
                here = next(n for n, m in enumerate(statements) if m.output == s.output)
                statements[here] = replace(s, body=added(terms))
                alone[k] = first, product
                p = product
    return replace(program, statements=tuple(statements))


def _of_both(
    p: Statement, q: Statement, minus: bool, types: Types, names: Names, inputs: set[str]
) -> tuple[Statement, Statement] | None:
    """The sum (or difference) of the operands that two products do not share, and their product with the one that they
    share; None where there is none, or where it would not pay."""
    plain, other = plain_sum(p, types), plain_sum(q, types)
    if plain is None or other is None or types[p.output] != types[q.output]:
        return None
    (outputs, extent), (left, others) = plain, other
    factors = [factors_of(m.body, types) for m in (p, q)]
    if any(len(fs) != 2 or any(f.divides or not _is_element(f.value, types) for f in fs) for fs in factors):
        return None
    sides = [[f.value for f in fs] for fs in factors]
    summed, moved = [v for v in extent if v not in outputs], [v for v in others if v not in left]
    if len(summed) != 1 or len(moved) != 1 or [extent[v] for v in summed] != [others[v] for v in moved]:
        return None
    change = {v: Affine.variable(w) for v, w in zip((*left, *moved), (*outputs, *summed), strict=True)}
    renamed = [replace_indices(e, change) for e in sides[1]]
    for place, shared in enumerate(sides[0]):
        if shared not in renamed:
            continue
        one, two = sides[0][1 - place], renamed[1 - renamed.index(shared)]
        rows, columns = set(index_variables(one)), set(index_variables(shared))
        if set(index_variables(two)) != rows or expression_type(one, types) != expression_type(two, types):
            return None
        kept = [v for v in extent if v in rows]
        points = math.prod(extent[v] for v in kept)
        deep = math.prod(extent[v] for v in columns - rows)
        larger = points > types[p.output].numel
        given = {a.tensor for a in accesses_in(one, two)} <= inputs
        if deep < _LEAST_SHARED * (_LEAST_SHARED if larger else 1) or (larger and not given and deep <= _WIDEST):
            return None  # what is computed need not be stored as it is
        index, sizes = tuple(map(Index, kept)), tuple(Int(extent[v]) for v in kept)
        dtype = types[p.output].dtype
        one, two = in_wider_type(one, dtype, types), in_wider_type(two, dtype, types)
        body = one - two if minus else one + two
        both = Statement(names.fresh(f"{p.output}_both"), index, sizes, body, "assign", None, span=p.span)
        return both, replace(p, body=call("mul", Access(both.output, index), shared))
    return None


def _is_element(e: Expr, types: Types) -> bool:
    return isinstance(unwidened(e, types), Access)


@dataclass(frozen=True)
class _Cut:
    """A sum of `shared * (leaving + summed)`, times `outer`: terms that leave the sum and those that do not. `inside`:
    of these terms those that have the variables of `shared`, and those with others."""

    shared: list[Factor]
    outer: list[Factor]
    leaving: DistributedTerms
    summed: DistributedTerms
    inside: bool


def _distributed(s: Statement, types: Types, names: Names) -> list[Statement]:
    """The statement, or those that take its place."""
    cut = _cut(s, types)
    if cut is None:
        nested = _nested(s, types, names)
        if nested is not None:
            first, last = nested
            return [*_distributed(first, {**types, first.output: statement_type(first, types)}, names), last]
        stacked = stack_operands(s, types, names)
        return stacked if len(stacked) > 1 else _each_alone(s, types, names)
    sizes = dict(zip(index_variables(*(s.index or ())), types[s.output].shape, strict=True))
    dtype = types[s.output].dtype
    halved = dtype in NARROW
    factors = [as_accumulated(f, dtype, types) for f in cut.shared]
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

    compute_dtype = "float32" if halved else dtype
    summed, leaving = (in_wider_type(added(terms), compute_dtype, types) for terms in (cut.summed, cut.leaving))
    if not halved:
        walked = full_extents(s, types)
        assert walked is not None
        there = {v: walked[v] for v in index_variables(summed)}
        kept = index_variables(*(f.value for f in factors)) if cut.inside else sizes
        origin = {v: Affine() for v in there if v not in kept}
        centre = replace_indices(summed, origin)
        summed, leaving = assigned("shifted", there, summed - centre, "assign"), leaving + centre
    of_shared = {v: n for v, n in sizes.items() if v in index_variables(*(f.value for f in factors))}
    total = assigned("total", of_shared, quotient_of([*factors, *[Factor(leaving, False)] * cut.inside]), "sum")
    mixed = assigned("mixed", sizes, quotient_of([*factors, Factor(summed, False)]), "sum")
    value = quotient_of([Factor((total if cut.inside else leaving * total) + mixed, False), *cut.outer])
    last = replace(s, body=call(types[s.output].dtype, value) if halved else value, aggregation="assign")
    count = points_per_element(s, types)
    alike = all(points_per_element(m, known) == count for m in made if m.aggregation == "sum")
    return [*made, last] if alike and statement_type(last, known) == types[s.output] else [s]


def _nested(s: Statement, types: Types, names: Names) -> tuple[Statement, Statement] | None:
    """A sum over what all terms of a factor need as one of sums that fall apart: of `+(A[i, d] * G[i, j] * (X[i, d] -
    Y[j, d]))`, a scale's gradient, that over j alone, for each i and d. None where there is none."""
    plain = None if types[s.output].dtype in NARROW else plain_sum(s, types)
    if plain is None:
        return None
    outputs, extent = plain
    factors = factors_of(s.body, types)
    for place, f in enumerate(factors):
        terms = [] if f.divides else [{*index_variables(e)} for _, e in terms_of(f.value, False)]
        for k, own in enumerate(terms):
            inner = set[str]().union(*terms[:k], *terms[k + 1 :]) - own - {*outputs}
            kept = [v for v in extent if v not in inner]
            if not inner or len(kept) == len(outputs):
                continue
            inside = [x for n, x in enumerate(factors) if n == place or inner & {*index_variables(x.value)}]
            index, sizes = tuple(map(Index, kept)), tuple(Int(extent[v]) for v in kept)
            body, output = quotient_of(inside), names.fresh(f"{s.output}_each")
            first = replace(s, output=output, index=index, sizes=sizes, body=body, attributes=())
            known = {**types, output: statement_type(first, types)}
            last = replace(
                s, body=quotient_of([Factor(Access(output, index), False), *(x for x in factors if x not in inside)])
            )
            if known[output].dtype == types[s.output].dtype == statement_type(last, known).dtype and _cut(first, known):
                return first, last
    return None


def _each_alone(s: Statement, types: Types, names: Names) -> list[Statement]:
    """A sum of several products, none of whose factors has all variables, as a sum for each of them; the statement
    where what they are of is stored, they are few, or they are one product of what they share and of sums."""
    terms = terms_of(s.body, False)
    plain = None if len(terms) < 2 or types[s.output].dtype in NARROW else plain_sum(s, types, fixed=True)
    if plain is None:
        return [s]
    outputs, extent = plain
    points = math.prod(extent.values())
    products = [factors_of(e, types) for _, e in terms]
    values = [f.value for fs in products for f in fs]
    stored = all(isinstance(v, Access) or is_number(v) for v in values)
    deep = math.prod(n for v, n in extent.items() if v not in outputs)
    widest = max(math.prod(extent[v] for v in index_variables(v)) for v in values)
    if stored or points < LEAST_STACKED or deep < _FEWEST or widest * _LEAST_SHARED > points:
        return [s]
    shared = [index_variables(f.value) for f in factors_of_terms(s.body, types)]
    if max(math.prod(extent[v] for v in own) for own in shared) < points:
        return [s]
    dtype, made, known = types[s.output].dtype, [], dict(types)
    parts: DistributedTerms = []
    for (negative, _), factors in zip(terms, products, strict=True):
        body = quotient_of([as_accumulated(f, dtype, types) for f in factors])
        output = names.fresh(f"{s.output}_term")
        made.append(replace(s, output=output, body=body, attributes=()))
        known[output] = statement_type(made[-1], known)
        parts.append((negative, Access(output, s.index or ())))
    last = replace(s, body=added(parts), aggregation="assign")
    count = points_per_element(s, types)
    alike = all(points_per_element(m, known) == count for m in made)
    return [*made, last] if alike and statement_type(last, known) == types[s.output] else [s]


def _cut(s: Statement, types: Types) -> _Cut | None:
    factors = factors_of(s.body, types) if s.aggregation == "sum" else []
    divided = [(k, _scales_inside(terms_of(_uncast(f.value), False))) for k, f in enumerate(factors) if not f.divides]
    divided = [(k, terms) for k, terms in divided if len(terms) > 1]
    plain = plain_sum(s, types) if divided else None
    if plain is None:
        return None
    outputs, extent = plain
    for place, terms in divided:
        found = _sorted(factors[:place] + factors[place + 1 :], terms, set(outputs), extent)
        if found is not None:
            return found
    return None


def _scales_inside(terms: DistributedTerms) -> DistributedTerms:
    """`x + h * (y - z)` as `x + h * y - h * z`, where a scale is the same everywhere."""
    found: DistributedTerms = []
    for negative, e in terms:
        parts = [(negative, e)]
        match e:
            case Call("mul", (a, b)) if not index_variables(a):
                parts = [(n, call("mul", a, x)) for n, x in terms_of(b, negative)]
            case Call("mul" | "div" as function, (a, b)) if not index_variables(b):
                parts = [(n, call(function, x, b)) for n, x in terms_of(a, negative)]
        found += parts
    return found


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
    needed = [set(index_variables(e)) & varying for _, e in terms]
    inside = all(v & reduced for v in needed)  # no term leaves the sum
    leaves = [v <= own if inside else not v & reduced for v in needed]
    leaving = [t for t, alone in zip(terms, leaves, strict=True) if alone]
    summed = [t for t, alone in zip(terms, leaves, strict=True) if not alone]
    if not leaving or not summed or not reduced or not reduced <= own or all(f.divides for f in shared):
        return None
    if any(is_number(e) for _, e in terms):
        return None
    mixed = set(index_variables(*(e for _, e in summed))) & varying
    rows, columns = (own - mixed) & outputs, (mixed - own) & outputs
    known = set(index_variables(*(e for _, e in leaving))) & rows
    counts = [math.prod(extent[v] for v in side) for side in (rows, columns, reduced & mixed)]
    return _Cut(shared, outer, leaving, summed, inside) if known and min(counts) >= _FEWEST else None
