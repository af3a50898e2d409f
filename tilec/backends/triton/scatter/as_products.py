"""Scatters of which each element looks at all points, as products of matrices.

`Y[n, P[x]] = +(D[n, x] * U[x])` and `Z[n, Q[x]] = +(D[n, x] * V[x])`, of which the gradient of an interpolation is the
sum, are `Y[n, v] = +(D[n, x] * W[x, v])`, where W is `(P[x] == v ? U[x] : 0) + (Q[x] == v ? V[x] : 0)`, which is stored
beside what says where it is meant: an infinity of D goes to its own places alone. Variables of few values that D lacks,
such as the taps of a window, are written out, so that they make W no longer. Of places along two axes that different
points name, `Y[n, P[y], Q[x]]`, the last ones are added up first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from tilec.backends.common.domain import Domain, point_conditions, size_of
from tilec.backends.common.scalars import accumulation_dtype
from tilec.backends.common.terms import product_of, split_factors, sum_of
from tilec.ir.functions import ZERO, all_of, operands_of, without_casts
from tilec.ir.index import Affine, distinct_variables, linear, place_value
from tilec.ir.infer import expression_type
from tilec.ir.program import (
    Access,
    Call,
    Constraint,
    Expr,
    Float,
    Index,
    Inside,
    Int,
    Statement,
    children,
    index_variables,
    substitute,
)
from tilec.ir.types import NARROW, TensorType, Types, is_floating
from tilec.transforms.util.factors import in_common
from tilec.transforms.util.naming import all_variables, fresh_variable
from tilec.transforms.util.rewrite import map_reads

FEW_MULTIPLIED = 2**27  # terms that tensor cores multiply in the time of the launches of a sort and of its runs
_MOST_POINTS = 1024  # points of an element
_MOST_WRITTEN_OUT = 8  # terms of a point


@dataclass(frozen=True)
class LookedAt:
    """A scatter: `named` are the forms of its index whose places are data."""

    statement: Statement
    domain: Domain
    named: tuple[Affine, ...]

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(a for a, e in enumerate(self.statement.index or ()) if linear(e) in self.named)


@dataclass(frozen=True)
class _Term:
    """What a point adds where the tests hold."""

    tests: list[Expr]
    factors: list[Expr]
    scale: float | int
    domain: Domain


def as_product(members: Sequence[LookedAt], types: Types, output: str) -> tuple[list[Statement], Types] | None:
    """The sum of scatters of the same points as one sum over these, after what says which points go to which place, and
    their weights; and all types. None where their terms have no factors in common that know further outputs, or too
    many points are looked at."""
    first, axes = members[0].statement, members[0].axes
    if not axes or any(_differs(m, members[0], types) for m in members):
        return None
    used = {v for m in members for v in all_variables(m.statement)}
    index = tuple(Index(fresh_variable("v", used)) if a in axes else e for a, e in enumerate(first.index or ()))
    found = [_term(m, types, [index[a] for a in axes]) for m in members]
    terms = [t for t in found if t is not None]
    outputs = {*index_variables(*(e for a, e in enumerate(index) if a not in axes))}
    common = [e for e in in_common([t.factors for t in terms])[0] if outputs & {*index_variables(e)}]
    known = {*index_variables(*common)}
    points = {v: n for v, n in members[0].domain.extent.items() if v in known - outputs}
    if len(terms) < len(found) or not points:
        return None
    apart = [[v for v in t.domain.low if v not in (*outputs, *points)] for t in terms]
    if any(
        math.prod(t.domain.extent[v] for v in names) > _MOST_WRITTEN_OUT for t, names in zip(terms, apart, strict=True)
    ):
        return None
    looked_at = math.prod(points.values())
    if looked_at > _MOST_POINTS or types[first.output].numel * looked_at > FEW_MULTIPLIED:
        return None
    values = [value for t, names in zip(terms, apart, strict=True) for value in _written_out(t, common, names)]
    weight = sum_of([Call("select", (test, e, ZERO)) for test, e in values])
    if all(isinstance(e, Float) for _, e in values):
        dtype = expression_type(product_of(common), types).dtype
        if not {dtype, types[output].dtype} & {*NARROW}:
            return None  # a sum of elements as they are, which tensor cores would round
        weight = Call(dtype, (weight,))
    chosen = reduce(lambda a, b: Call("or", (a, b)), (test for test, _ in values))
    low, extent = members[0].domain.low, {v: n for v, n in zip(index, types[first.output].shape, strict=True)}
    at = (*map(Index, points), *(index[a] for a in axes))
    if any(low[v] for v in points) or not {*index_variables(chosen, weight)} <= {*index_variables(*at)}:
        return None  # weights know outputs too
    shape = (*points.values(), *(extent[index[a]] for a in axes))
    every, made = dict(types), list[Statement]()
    for name, value in (("chosen", chosen), ("weights", weight)):
        own = f"{output}.{name}"
        every[own] = TensorType(shape, expression_type(value, types).dtype)
        made.append(Statement(own, at, tuple(map(Int, shape)), value, span=first.span))
    is_chosen, weighed = (Access(s.output, at) for s in made)
    body = product_of([*common, weighed])
    return [*made, replace(first, output=output, index=index, body=body, guard=is_chosen, constraints=())], every


def in_turn(
    members: Sequence[LookedAt], types: Types, output: str, look: Callable[[Statement, Types], LookedAt]
) -> tuple[list[Statement], Types] | None:
    """The same along two axes one after the other, as statements, and all types. `look`: a statement as a scatter."""
    column = fresh_variable("w", {v for m in members for v in all_variables(m.statement)})
    found = [_in_two_sums(m, Index(column), types) for m in members]
    both = [f for f in found if f is not None]
    known, firsts, seconds = dict(types), dict[frozenset[Statement], str](), list[LookedAt]()
    made: list[Statement] = []
    for second in dict.fromkeys(second for _, second in both):
        parts = [first for first, other in both if other == second]
        own = firsts.setdefault(frozenset(parts), f"{output}.columns{len(firsts)}")
        if own not in known:
            shape, dtype = tuple(size_of(n) for n in parts[0].sizes or ()), types[members[0].statement.output].dtype
            known[own] = TensorType(shape, accumulation_dtype("sum", dtype))
            product = as_product([look(replace(p, output=own), known) for p in parts], known, own)
            if product is None:
                return None
            made, known = [*made, *product[0]], {**product[1]}
        body = map_reads(second.body, ("",), partial(replace, tensor=own))
        seconds.append(look(replace(second, output=output, body=body), known))
    last = as_product(seconds, known, output) if seconds and len({*both}) == len(members) else None
    return None if last is None else ([*made, *last[0]], last[1])


def _in_two_sums(m: LookedAt, column: Expr, types: Types) -> tuple[Statement, Statement] | None:
    """A scatter along two axes as a sum along the last one for each point of the other, and the sum of those; both
    without the name of what is made first."""
    s, low, extent = m.statement, m.domain.low, m.domain.extent
    if len(m.axes) != 2 or s.aggregation != "sum" or s.default is not None:
        return None
    (a, b), index = m.axes, s.index or ()
    of_a, of_b = ({*index_variables(index[k])} for k in (a, b))
    outputs = {*index_variables(*(e for k, e in enumerate(index) if k not in (a, b)))}
    term = _term(m, types)
    if term is None or of_a & of_b or (of_a | of_b) & outputs:
        return None

    def is_second(e: Expr) -> bool:
        known = {*index_variables(e)}
        return bool(of_a & known) and not (of_b | outputs) & known

    one, two = ([e for e in term.factors if is_second(e) is second] for second in (False, True))
    shared = of_a & {*index_variables(*one)}
    before, later = ([t for t in term.tests if is_second(t) is second] for second in (False, True))
    apart = {*index_variables(*two, *later, index[a])} - shared
    if len(shared) != 1 or low[(row := shared.pop())] or apart & {*index_variables(*one, *before, index[b])}:
        return None

    def over(variables: Iterable[str]) -> tuple[Constraint, ...]:
        return tuple(Constraint((Affine.variable(v) - low[v]).to_expr(), Int(extent[v])) for v in variables)

    def at(e: Expr | None, f: Expr | None) -> tuple[Expr, ...]:
        """The index with these in the places of the two axes', if given."""
        return tuple(e if k == a and e else f if k == b and f else old for k, old in enumerate(index))

    summed = [v for v in low if v not in outputs]
    sizes = tuple(Int(extent[row]) if k == a else n for k, n in enumerate(s.sizes or ()))
    scale = [] if term.scale == 1 else [Float(float(term.scale))]
    first = replace(s, output="", index=at(Index(row), None), sizes=sizes, body=product_of([*one, *scale]))
    first = replace(first, guard=all_of(before), constraints=over(v for v in summed if v != row and v not in apart))
    value = product_of([Access("", at(Index(row), column)), *two])
    second = replace(s, output="", index=at(None, column), body=value, guard=all_of(later))
    return first, replace(second, constraints=over(v for v in summed if v == row or v in apart))


def _differs(m: LookedAt, first: LookedAt, types: Types) -> bool:
    """Whether a scatter is no sum of floats, or goes over other variables of an output of another form."""
    s, t = m.statement, first.statement
    if s.aggregation != "sum" or s.default is not None or not is_floating(types[s.output].dtype):
        return True
    if m.axes != first.axes or types[s.output] != types[t.output]:
        return True
    rest = [[e for a, e in enumerate(x.statement.index or ()) if a not in x.axes] for x in (m, first)]
    shared = m.domain.low.keys() & first.domain.low.keys()
    ranges = [{v: (d.low[v], d.extent[v]) for v in shared} for d in (m.domain, first.domain)]
    return rest[0] != rest[1] or ranges[0] != ranges[1]


def adds_up(total: Statement, outputs: Collection[str]) -> bool:
    """Whether a statement adds the elements of these tensors at each of its own, and nothing else."""
    terms, own = operands_of("add", without_casts(total.body)), total.index
    alone = total.guard is None and not total.constraints and total.default is None and distinct_variables(own)
    names = [e.tensor for e in terms if isinstance(e, Access) and e.index == own]
    return bool(alone) and len(names) == len(terms) and sorted(names) == sorted(outputs)


def _term(m: LookedAt, types: Types, places: Sequence[Expr] = ()) -> _Term | None:
    """What a scatter's point adds, where it goes to these places; None where it reads what need not be there."""
    s, split = m.statement, split_factors(m.statement.body, types)
    if split is None or not all(m.domain.inside(a, types) for a in _values(*s.roots, *(s.index or ()))):
        return None
    wanted = [c for c in point_conditions((s.body, *s.guards), s.constraints, types) if not m.domain.holds(c)]
    tests: list[Expr] = [Call("eq", (place_value(row.to_value()), v)) for row, v in zip(m.named, places, strict=False)]
    tests += [] if s.guard is None else [Call("ne", (s.guard, ZERO))]
    for c in sorted(wanted, key=repr):  # equal parts of several scatters are found whatever comes first
        value = place_value(c.form.to_value())
        tests += [Call("ge", (value, ZERO)), Call("lt", (value, Int(c.bound)))]
    return _Term(tests, split[0], split[1], m.domain) if all(c.form.is_integral for c in wanted) else None


def _values(*roots: Expr) -> Iterator[Access]:
    """The accesses whose elements are read, not those that are asked whether they lie inside."""
    for e in roots:
        if isinstance(e, Access):
            yield e
        yield from _values(*(e.access.index if isinstance(e, Inside) else children(e)))


def _written_out(t: _Term, common: Sequence[Expr], names: Sequence[str]) -> list[tuple[Expr, Expr]]:
    """The tests and the values, without the factors in common, of a term at each combination of these variables'."""
    left = list(t.factors)
    for e in common:
        left.remove(e)
    value = product_of([*left, *([] if t.scale == 1 and left else [Float(float(t.scale))])])
    ranges = [range(t.domain.low[v], t.domain.low[v] + t.domain.extent[v]) for v in names]
    points: Iterable[Iterable[Expr]] = (map(Int, point) for point in itertools.product(*ranges))
    at = [dict(zip(names, point, strict=True)) for point in points]
    test = all_of(t.tests)
    assert test is not None
    return [(substitute(test, point), substitute(value, point)) for point in at]
