"""Sums of a recurrence's step with one variable added up after the other.

`sum[i, j](G[t + 1, i] * E[i, j, t] * F[k, j, t])` has a term for every i and j for each k. What has i does not name k:
`sum[j](F[k, j, t] * sum[i](G[t + 1, i] * E[i, j, t]))` adds that up once a step. Gradients of steps that hold one
aggregation in another are such sums, with a variable for each level. Lanes that differ in what it does not name have it
in common, as those of each p in `S[t, p, q] = sum[b](B[b, q] * sum[a](S[t - 1, a, b] * A[a, p]))`. Exact as sums of
products are that are added up in another order; a greatest sum of terms is the one of the same terms added up in the
same order, to which a gradient compares them. These and `logsumexp` stay as they are where a guard could leave an inner
one no term: its identity, an infinity, would meet what is added to it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.constraining import constraining
from tilec.ir.functions import ZERO, all_of, operands_of
from tilec.ir.index import Affine, distinct_variables, linear
from tilec.ir.infer import expression_type
from tilec.ir.program import (
    Access,
    Aggregate,
    Constraint,
    Expr,
    Index,
    Inside,
    Int,
    Pad,
    Statement,
    index_variables,
    map_values,
    rebuild,
    walk,
)
from tilec.ir.types import NARROW, Types, is_floating
from tilec.transforms.util.factors import Factor, added, factors_of_terms, quotient_of, terms_of
from tilec.transforms.util.ranges import axis_places, ranges_of

LEAST_TIMES = 8  # as many terms are saved, at least
MOST_ORDERED = 5  # variables, all orders of which are compared


def inner_sums_first(s: Statement, types: Types) -> Statement:
    """The recurrence with such sums in two."""
    names = distinct_variables(s.index or ())
    if names is None:
        return s
    lanes = dict(zip(names, types[s.output].shape, strict=True))
    apart = frozenset(_parallel(s, list(lanes)))

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Aggregate):
            return rebuild(e, visit)
        if any(isinstance(x, Aggregate) for x in walk(*e.roots)):
            return e
        while (found := _in_two(e, s.output, lanes, apart, types)) is not e:
            e = found
        return _times_own(e, s.output, lanes, types)

    return map_values(s, visit)


def _parallel(s: Statement, names: list[str]) -> Iterator[str]:
    """The output's variables at whose own place all reads of the recurrence are."""
    reads = [x for x in walk(*s.roots) if isinstance(x, Access) and x.tensor == s.output]
    return (v for k, v in enumerate(names) if all(linear(a.index[k]).bare == v for a in reads))


def _in_two(e: Aggregate, own: str, lanes: dict[str, int], apart: frozenset[str], types: Types) -> Aggregate:
    dtype = expression_type(e.body, types).dtype
    if AGGREGATIONS[e.aggregation].times is None or len(e.bound) < 2 or not is_floating(dtype) or dtype in NARROW:
        return e
    extent = _extents(e, own, lanes, types)
    if extent is None or not {*e.bound, *index_variables(*e.roots)} <= extent.keys():
        return e
    factors = _parts(e, types)
    if not all(is_floating(expression_type(f.value, types).dtype) or not index_variables(f.value) or _is_inside(f)
               for f in factors):  # fmt: skip
        return e
    tests = [p for g in e.guards for p in operands_of("and", g)]
    in_order = e.aggregation in ("max", "min")
    if in_order and e.body != _sum_of(factors):
        return e
    steps = _times(e, own, list(lanes)) | apart
    every = math.prod(extent[v] for v in index_variables(*e.roots))
    if not every:
        return e
    parts = [frozenset(index_variables(x)) for x in (*(f.value for f in factors), *tests)]
    choices = []
    for v in e.bound:
        inside, outside = _partitioned(factors, v)
        used = index_variables(*(f.value for f in inside), *(t for t in tests if v in index_variables(t)))
        first, rest = math.prod(extent[w] for w in used), every // extent[v]
        movable = any(not f.divides and not _is_inside(f) for f in inside) and any(not f.divides for f in outside)
        apart_lanes = lanes.keys() - steps
        shared = not apart_lanes or bool(apart_lanes - {*used})
        movable = movable and (not in_order or inside == factors[: len(inside)])
        movable = movable and (e.aggregation == "sum" or not any(v in index_variables(t) for t in tests))
        if movable and shared and every >= LEAST_TIMES * (first + rest):
            choices.append((_terms(parts, e.bound, extent, v), v))
    if not choices:
        return e
    v = min(choices)[1]
    inside, outside = _partitioned(factors, v)
    here = [t for t in tests if v in index_variables(t)]
    limits = {w: Constraint(Index(w), Int(extent[w])) for w in e.bound}
    kept = tuple(c for c in e.constraints if linear(c.expr).bare not in limits)
    if any(v in index_variables(c.expr) for c in kept):
        return e
    together = quotient_of if AGGREGATIONS[e.aggregation].times == "mul" else _sum_of
    inner = Aggregate(e.aggregation, together(inside), (v,), all_of(here), (limits.pop(v),), span=e.span)
    body = together([Factor(inner, False), *outside] if together is _sum_of else [*outside, Factor(inner, False)])
    guard = all_of([t for t in tests if t not in here])
    bound = tuple(w for w in e.bound if w != v)
    return replace(e, body=body, bound=bound, guard=guard, constraints=(*kept, *limits.values()))


def _parts(e: Aggregate, types: Types) -> list[Factor]:
    """The factors of its products, or the terms of what its semiring has in their place; those that are subtracted
    divide."""
    if AGGREGATIONS[e.aggregation].times == "mul":
        return factors_of_terms(e.body, types)
    return [Factor(x, negative) for negative, x in terms_of(e.body, False)]


def _sum_of(terms: Sequence[Factor]) -> Expr:
    return added([(f.divides, f.value) for f in terms])


def _times_own(e: Aggregate, own: str, lanes: dict[str, int], types: Types) -> Expr:
    """The sum times what each lane multiplies all of its terms by, `K[j] * sum[i](G[t + 1, i] * K[i])`, where what is
    left is the same for these lanes. What it is multiplied by is inside wherever there are terms."""
    dtype = expression_type(e.body, types).dtype
    if e.aggregation != "sum" or not is_floating(dtype) or dtype in NARROW:
        return e
    factors = factors_of_terms(e.body, types)
    alone = [f for f in factors if not f.divides and isinstance(f.value, Access) and not _names_any(f, (*e.bound,))]
    alone = [f for f in alone if _places(f, own, types)]
    kept = [f for f in factors if f not in alone]
    named = {*index_variables(*(f.value for f in kept), *e.guards, *(c.expr for c in e.constraints))}
    taken = [f for f in alone if _names_any(f, lanes.keys() - named)]
    kept = [f for f in factors if f not in taken]
    left = replace(e, body=quotient_of(kept))
    stated = {place for f in kept for place in _places(f, own, types)}
    known = all(lanes.get(form.bare or "", n + 1) <= n or (form, n) in stated
                for f in taken for form, n in _places(f, own, types))  # fmt: skip
    saved = math.prod(lanes[v] for v in lanes.keys() - {*index_variables(left)})
    if not taken or not known or saved < LEAST_TIMES or expression_type(left.body, types).dtype != dtype:
        return e
    read = [Factor(Pad(f.value, ZERO), False) for f in taken if isinstance(f.value, Access)]
    return quotient_of([*read, Factor(left, False)])


def _names_any(f: Factor, names: Collection[str]) -> bool:
    return not {*names}.isdisjoint(index_variables(f.value))


def _places(f: Factor, own: str, types: Types) -> list[tuple[Affine, int]]:
    """Where a factor that is read, or asked whether it lies inside, states that its points lie, and the sizes there."""
    match f.value:
        case (Access() as a) | Inside(Access() as a) if a.tensor != own:
            return [(linear(i), n) for i, n in zip(a.index, types[a.tensor].shape, strict=True)]
    return []


def _terms(
    parts: Sequence[frozenset[str]], summed: Sequence[str], extent: Mapping[str, int], first: str | None = None
) -> int:
    """The terms of sums over one variable after the other, in the order that has the fewest, of factors with these
    variables; the first of them may be given."""
    if len(summed) == 1 or not parts:
        return math.prod(extent[v] for v in frozenset().union(*parts))
    if first is None:
        few = summed if len(summed) <= MOST_ORDERED else summed[:1]
        return min(_terms(parts, summed, extent, v) for v in few)
    inside = frozenset().union(*(p for p in parts if first in p))
    left = [*(p for p in parts if first not in p), inside - {first}]
    return math.prod(extent[v] for v in inside) + _terms(left, [v for v in summed if v != first], extent)


def _partitioned(factors: list[Factor], v: str) -> tuple[list[Factor], list[Factor]]:
    inside = [f for f in factors if v in index_variables(f.value)]
    return inside, [f for f in factors if f not in inside]


def _is_inside(f: Factor) -> bool:
    return isinstance(f.value, Inside) and not f.divides


def _extents(e: Aggregate, own: str, lanes: dict[str, int], types: Types) -> dict[str, int] | None:
    """How many values each variable has; None where accesses or constraints do not agree."""
    bounds = [(c.expr, c.bound.value) for c in e.constraints if isinstance(c.bound, Int)]
    read = [a for a in constraining(*e.roots, gathers=False) if a.tensor != own]
    return ranges_of([*bounds, *axis_places(read, types)], lanes, lambda i, n: linear(i).bare in (None, *lanes))


def _times(e: Aggregate, own: str, names: list[str]) -> frozenset[str]:
    """The output's variables along which all reads of the recurrence are of other steps."""
    reads = [x for x in walk(*e.roots) if isinstance(x, Access) and x.tensor == own]
    moved: set[str] = set()
    for k, v in enumerate(names):
        forms = [linear(a.index[k]) for a in reads]
        if reads and all(f.coefficient(v) == 1 and len(f.terms) == 1 and f.constant for f in forms):
            moved.add(v)
    return frozenset(moved)
