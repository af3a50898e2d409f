"""Weights that meet an operand at a difference of what is kept and what is summed, brought to that operand's places.

`O[i, d] = +(P[i, j] * (V[j, d] + R[clamp(j - i + c, 0, U - 1), d]))`, values by distance, reads R by row and column:
no matrix product makes it. Weights at the places of R, `W[i, clamp(j - i + c, 0, U - 1)] = +(P[i, j])`, make one of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tilec.backends.common.chains.sheared import ends_of, in_parts, is_aslant, written_out_terms
from tilec.backends.common.chains.values import Apart
from tilec.backends.common.pairs import LEAST, with_access
from tilec.ir.functions import call
from tilec.ir.index import distinct_variables
from tilec.ir.infer import infer, statement_type
from tilec.ir.program import (
    Access,
    Expr,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    accesses_in,
    index_variables,
    walk,
)
from tilec.ir.types import FLOATS, Types
from tilec.transforms.lower.clamps.split_clamps import split_clamps
from tilec.transforms.lower.stack_operands import LEAST_STACKED
from tilec.transforms.util.factors import Factor, added, quotient_of
from tilec.transforms.util.naming import Names, all_variables, fresh_variable
from tilec.transforms.util.plain import is_plain_sum
from tilec.transforms.util.ranges import axis_places, ranges_of

_MOST_PLACES = 2  # places of such an operand for each term that is summed, at most


def with_spread_weights(program: Program, types: Types) -> Apart:
    """A flat program with such sums written so."""
    found = in_parts(program, types, spread)
    if not found.rewritten:
        return found
    made = split_clamps(found.program, types)
    changed = frozenset(s.output for s in made.statements if s not in program.statements)
    return Apart(made, {**found.types, **infer(made, types)}, changed)


def spread(s: Statement, types: Types, names: Names) -> list[Statement] | None:
    """The statement's weights by place, its products, and what adds them up; None where it is no such sum."""
    outputs = distinct_variables(s.index)
    if not is_plain_sum(s) or outputs is None or types[s.output].dtype not in FLOATS:
        return None
    places = {
        e for a in accesses_in(s.body) for e in a.index if is_aslant(e) and not set(index_variables(e)) <= {*outputs}
    }
    if len(places) != 1 or any(isinstance(e, (Inside, Pad)) for e in walk(s.body)):
        return None
    (place,) = places
    extent = _extents(s, place, types)
    terms = written_out_terms(s.body, types)
    if extent is None or math.prod(extent.values()) < LEAST_STACKED:
        return None
    summed = set(extent) - {*outputs}
    made: list[Statement] = []
    sums: list[tuple[bool, Expr]] = []
    rest: list[tuple[bool, Expr]] = []
    for negative, factors in terms:
        if summed - set(index_variables(*(f.value for f in factors))):
            return None
        at = [k for k, f in enumerate(factors) if any(place in a.index for a in accesses_in(f.value))]
        if not at:
            rest.append((negative, quotient_of(factors)))
            continue
        parts = _parts(s, factors, at[0], place, outputs, extent, types, names) if len(at) == 1 else None
        if parts is None or (len(terms) > 1 and not _is_inside(place, extent, parts[0])):
            return None
        made += parts
        sums.append((negative, Access(parts[-1].output, s.index or ())))
    if rest:
        made.append(replace(s, output=names.fresh(f"{s.output}_straight"), body=added(rest)))
        sums.insert(0, (False, Access(made[-1].output, s.index or ())))
    known = dict(types)
    for m in made:
        known[m.output] = statement_type(m, known)
    if len(sums) == 1 and not sums[0][0]:
        made[-1] = last = replace(made[-1], output=s.output)
        return made if statement_type(last, known) == types[s.output] else None
    last = replace(s, body=added(sums), aggregation="assign")
    return [*made, last] if statement_type(last, known) == types[s.output] else None


def _extents(s: Statement, place: Expr, types: Types) -> dict[str, int] | None:
    own = dict(zip(index_variables(*(s.index or ())), types[s.output].shape, strict=True))
    found = ranges_of(axis_places(accesses_in(s.body), types), own, lambda e, n: e == place)
    return found if found is not None and set(index_variables(s.body)) <= found.keys() else None


def _parts(
    s: Statement,
    factors: tuple[Factor, ...],
    k: int,
    place: Expr,
    outputs: tuple[str, ...],
    extent: Mapping[str, int],
    types: Types,
    names: Names,
) -> list[Statement] | None:
    """The weights by place, and their product with the operand."""
    read = [*accesses_in(factors[k].value)]
    others = [f for j, f in enumerate(factors) if j != k]
    used = set(index_variables(*(f.value for f in others)))
    if len(read) != 1 or factors[k].divides or not others:
        return None
    (a,) = read
    axis, beside = a.index.index(place), {v for e in a.index if e != place for v in index_variables(e)}
    features, n = beside - used, types[a.tensor].shape[a.index.index(place)]
    within = set(index_variables(place)) <= used and beside <= {*outputs} and features
    longest = max(extent[v] for v in index_variables(place) if v not in outputs)
    if not within or n > _MOST_PLACES * longest or min(n, math.prod(extent[v] for v in features)) < LEAST:
        return None
    kept = [v for v in outputs if v in used]
    sizes = (*(Int(extent[v]) for v in kept), Int(n))
    weights = names.fresh(f"{s.output}_at")
    first = Statement(weights, (*map(Index, kept), place), sizes, quotient_of(others), "sum", span=s.span)
    u = Index(fresh_variable("u", set(all_variables(s))))
    operand = replace(a, index=tuple(u if j == axis else e for j, e in enumerate(a.index)))
    body = call("mul", Access(weights, (*map(Index, kept), u)), with_access(factors[k].value, operand))
    return [first, replace(s, output=names.fresh(f"{s.output}_spread"), body=body)]


def _is_inside(place: Expr, extent: Mapping[str, int], weights: Statement) -> bool:
    sizes = weights.sizes or ()
    found = ends_of(place, extent)
    return found is not None and isinstance(sizes[-1], Int) and 0 <= found[0] and found[1] < sizes[-1].value
