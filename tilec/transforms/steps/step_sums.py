"""Sums in a recurrence's step over what it reads of no state, as statements of their own, on flat programs.

`S[t, i] = +(S[t - 1, j] * A[j, k] * M[t, k]) + X[t, i]` adds up over j and k in each step, one after the other. What is
added up over k knows no state: with `T[t, j] = +(A[j, k] * M[t, k])` of all steps at once a step adds up over j alone.
Gradients of recurrences that read an element of their state in several factors (a Kalman filter's covariance) have sums
over four variables, of which the state has two. Those of a diagonal have sums of one term.

Exact as sums of products are that are added up in another order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from tilec.ir.constraining import constraining
from tilec.ir.functions import all_of, call, operands_of
from tilec.ir.index import Affine, distinct_variables, linear, replace_indices
from tilec.ir.infer import expression_type, infer, statement_type
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Float,
    Index,
    Inside,
    Int,
    Program,
    Statement,
    index_variables,
    reads_itself,
    rebuild,
    walk,
)
from tilec.ir.types import NARROW, TensorType, Types, is_floating
from tilec.transforms.util.factors import Factor, factors_of, quotient_of
from tilec.transforms.util.naming import Names
from tilec.transforms.util.ranges import axis_places, ranges_of

_LEAST_SAVED = 2**20  # terms, for which a statement more is worth its launch


def lift_step_sums(program: Program, inputs: Types) -> Program:
    """The program with such sums before their recurrences. `inputs`: types of the inputs."""
    if not any(map(reads_itself, program.statements)):
        return program
    types, names = dict(infer(program, inputs)), Names.of(program)
    statements: list[Statement] = []
    for s in program.statements:
        outputs = distinct_variables(s.index) if reads_itself(s) else None
        if outputs is not None and is_floating(types[s.output].dtype) and types[s.output].dtype not in NARROW:
            made: list[Statement] = []
            extent = dict(zip(outputs, types[s.output].shape, strict=True))
            s = replace(s, body=_lifted(s.body, s, extent, types, names, made))
            statements += made
        statements.append(s)
    return replace(program, statements=tuple(statements))


def _lifted(
    e: Expr, s: Statement, outputs: Mapping[str, int], types: dict[str, TensorType], names: Names, made: list[Statement]
) -> Expr:
    e = rebuild(e, lambda x: _lifted(x, s, outputs, types, names, made))
    if not isinstance(e, Aggregate) or e.aggregation != "sum":
        return e
    if (term := _only_term(e, outputs, types)) is not None:
        return term
    if not any(isinstance(x, Access) and x.tensor == s.output for x in walk(e)):
        known = _known_before(e, s, outputs, types, names)
        return e if known is None else _emitted(known, types, made)
    factors = factors_of(e.body, types)
    stays = [f for f in factors if f.divides or _reads(f.value, s.output) or isinstance(f.value, Inside)]
    others = [f for f in factors if f not in stays]
    conditions = [x for c in e.constraints for x in (c.expr, c.bound)] + [*e.guards]
    kept = {*index_variables(*(f.value for f in stays), *conditions)}
    free = [v for v in e.bound if v not in kept]
    if not free or not set(e.bound) & kept:
        return e
    for own, inner in _components(free, others):
        read = constraining(*(f.value for f in inner), gathers=False)
        extent = ranges_of(axis_places(read, types), outputs, lambda i, n: isinstance(i, Int) and i.value < n)
        variables = index_variables(*(f.value for f in inner))
        if extent is None or not {*variables} <= extent.keys():
            continue
        if not _saves(outputs, extent, own):
            continue
        body = quotient_of(inner)
        if expression_type(body, types).dtype != types[s.output].dtype:
            continue
        order = [*(v for v in outputs if v in variables), *(v for v in variables if v not in outputs and v not in own)]
        place = tuple(map(Index, order))
        name = names.fresh(f"{s.output}_step")
        known = Statement(name, place, tuple(Int(extent[v]) for v in order), body, "sum", span=s.span)
        factors = [*(f for f in factors if f not in inner), Factor(_emitted(known, types, made), False)]
        e = replace(e, body=quotient_of(factors), bound=tuple(v for v in e.bound if v not in own))
    return e


def _emitted(known: Statement, types: dict[str, TensorType], made: list[Statement]) -> Access:
    types[known.output] = statement_type(known, types)
    made.append(known)
    return Access(known.output, known.index or ())


def _known_before(
    e: Aggregate, s: Statement, outputs: Mapping[str, int], types: Types, names: Names
) -> Statement | None:
    """The statement of a sum that reads no state."""
    bounds = [(c.expr, c.bound.value) for c in e.constraints if isinstance(c.bound, Int)]
    extent = ranges_of([*bounds, *axis_places(constraining(*e.roots, gathers=False), types)], outputs)
    variables = [v for v in index_variables(*e.roots) if v not in e.bound]
    if extent is None or len(bounds) < len(e.constraints) or not {*variables, *e.bound} <= extent.keys():
        return None
    if any(isinstance(x, Aggregate) for x in walk(*e.roots)) or not _saves(outputs, extent, e.bound):
        return None
    place = tuple(map(Index, [*(v for v in outputs if v in variables), *(v for v in variables if v not in outputs)]))
    sizes = tuple(Int(extent[v.name]) for v in place)
    name = names.fresh(f"{s.output}_step")
    known = Statement(name, place, sizes, e.body, "sum", e.guard, e.constraints, span=s.span)
    return known if statement_type(known, types).dtype == types[s.output].dtype else None


def _saves(outputs: Mapping[str, int], extent: Mapping[str, int], summed: Collection[str]) -> bool:
    """Whether a recurrence over these adds up that much less without a sum over those."""
    return math.prod(outputs.values()) * (math.prod(extent[v] for v in summed) - 1) >= _LEAST_SAVED


def _only_term(e: Aggregate, outputs: Mapping[str, int], types: Types) -> Expr | None:
    """The one term that is left of a sum over v where the guard asks `i == v`, or 0 where it does not hold; None where
    it asks no such thing, or some element may lie outside."""
    tests = [] if e.guard is None else list(operands_of("and", e.guard))
    for test in tests:
        match test:
            case Call("eq", (Index(i), Index(v))) if {i, v} & {*e.bound} and len(e.bound) == 1:
                (v,), i = e.bound, i if v in e.bound else v
            case _:
                continue
        here = {v: Affine.variable(i)}
        kept = [replace_indices(t, here) for t in tests if t is not test]
        body, guard = replace_indices(e.body, here), all_of(kept)
        accesses = [x.access if isinstance(x, Inside) else x for x in walk(body) if isinstance(x, (Access, Inside))]
        places = (place for a in accesses for place in zip(map(linear, a.index), types[a.tensor].shape, strict=True))
        if i == v or e.constraints or any(outputs.get(f.bare or "", n + 1) > n for f, n in places):
            continue
        body = quotient_of([f for f in factors_of(body, types) if not isinstance(f.value, Inside)])
        dtype = expression_type(body, types).dtype
        return body if guard is None else Call("select", (guard, body, call(dtype, Float(0.0))))
    return None


def _reads(e: Expr, output: str) -> bool:
    return any(isinstance(x, Access) and x.tensor == output for x in walk(e))


def _components(free: Collection[str], factors: list[Factor]) -> Iterator[tuple[set[str], list[Factor]]]:
    """Variables that factors have in common with each other and with no other one, and these factors."""
    left = set(free)
    while left:
        own = {next(v for v in free if v in left)}
        while True:
            inner = [f for f in factors if own & {*index_variables(f.value)}]
            grown = own | set(free) & {*index_variables(*(f.value for f in inner))}
            if grown == own:
                break
            own = grown
        yield own, inner
        left -= own
