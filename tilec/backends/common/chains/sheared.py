"""Sums of products that read one operand at a difference of output variables, as products of matrices read aslant.

`S[i, j] = +(Q[i, d] * (K[j, d] + R[i - j + c, d]))`, scores with relative keys, reads R by row and column together: no
matrix product makes it. All products `P[i, u] = +(Q[i, d] * R[u, d])` are one, and `S[i, j] = +(Q[i, d] * K[j, d]) +
P[i, i - j + c]` reads what it needs of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.chains.values import Apart
from tilec.backends.common.pairs import LEAST, with_access
from tilec.ir.functions import without_casts
from tilec.ir.index import Affine, distinct_variables, linear
from tilec.ir.infer import statement_type
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
    accesses_in,
    index_variables,
    walk,
)
from tilec.ir.rational import as_int
from tilec.ir.types import FLOATS, Types
from tilec.lattice.sets import interval_of
from tilec.transforms.lower.stack_operands import LEAST_STACKED
from tilec.transforms.util.factors import Factor, added, factors_of, quotient_of, terms_of
from tilec.transforms.util.naming import Names, all_variables, fresh_variable
from tilec.transforms.util.plain import is_plain_sum
from tilec.transforms.util.ranges import axis_places, ranges_of

_ALIGNED = 8  # elements of a row, in multiples of which products are stored: libraries read odd rows one by one
_MOST_WIDER = 2  # times as many products as terms, at most


_Step = Callable[[Statement, Types, Names], "list[Statement] | None"]


def with_sheared_products(program: Program, types: Types) -> Apart:
    """A program with sizes, with such sums written so; `types`: of all that it names."""
    return in_parts(program, types, sheared)


def in_parts(program: Program, types: Types, step: _Step) -> Apart:
    """The program with the statements that a step makes of one in its place, where it makes some."""
    names, known = Names.of(program), dict(types)
    statements: list[Statement] = []
    rewritten: set[str] = set()
    for s in program.statements:
        parts = step(s, known, names) or [s]
        if len(parts) > 1:
            rewritten |= {p.output for p in parts}
            known.update((p.output, statement_type(p, known)) for p in parts if p.output != s.output)
        statements += parts
    return Apart(replace(program, statements=tuple(statements)), known, frozenset(rewritten))


def is_aslant(e: Expr) -> bool:
    """Whether a position is computed of several variables."""
    return len(index_variables(e)) > 1


@dataclass(frozen=True)
class _Term:
    """Factors whose product is added up or, if `negative`, taken away. `aslant`: the place of the one that is read at
    a difference, `axis` which one of its indices that is; None of another."""

    negative: bool
    factors: tuple[Factor, ...]
    aslant: int | None = None
    axis: int = 0
    form: Affine = Affine()


def sheared(s: Statement, types: Types, names: Names) -> list[Statement] | None:
    """The statement as such products, what is left of its sum, and what adds them up; None where it is none."""
    outputs = distinct_variables(s.index)
    if not is_plain_sum(s) or outputs is None or types[s.output].dtype not in FLOATS:
        return None
    if not any(is_aslant(e) for a in accesses_in(s.body) for e in a.index):
        return None
    if any(isinstance(e, (Inside, Pad)) for e in walk(s.body)):
        return None
    terms = [_term(negative, f, outputs) for negative, f in written_out_terms(s.body, types)]
    aslant = [t for t in terms if t.aslant is not None]
    extent = _extents(s, aslant, types)
    if extent is None or not aslant:
        return None
    summed = set(extent) - set(outputs)
    if any(summed - set(index_variables(*(f.value for f in t.factors))) for t in terms):
        return None
    if len(terms) > 1 and not all(_is_inside(t, extent, types) for t in aslant):
        return None
    made: list[Statement] = []
    known = dict(types)
    sums: list[tuple[bool, Expr]] = []
    rest = [t for t in terms if t.aslant is None]
    if rest:
        body = added([(t.negative, quotient_of(t.factors)) for t in rest])
        made.append(replace(s, output=names.fresh(f"{s.output}_straight"), body=body))
        sums.append((False, Access(made[-1].output, s.index or ())))
    for t in aslant:
        whole, t = _aligned(s, t, types, names)
        known.update((m.output, statement_type(m, known)) for m in whole)
        product = _product(s, t, outputs, extent, known, names)
        if product is None:
            return None
        made += [*whole, product]
        kept = (product.index or ())[:-1]
        sums.append((t.negative, Access(product.output, (*kept, t.form.to_expr()))))
    known.update((m.output, statement_type(m, known)) for m in made)
    last = replace(s, body=added(sums), aggregation="assign")
    return [*made, last] if statement_type(last, known) == types[s.output] else None


def written_out_terms(e: Expr, types: Types) -> list[tuple[bool, tuple[Factor, ...]]]:
    """What a body adds up, with products written out over sums of which a part is read at a difference."""
    found: list[tuple[bool, tuple[Factor, ...]]] = []
    for negative, term in terms_of(e, False):
        factors = factors_of(term, types)
        split = next((k for k, f in enumerate(factors) if not f.divides and _adds_aslant(f.value)), None)
        if split is None:
            found.append((negative, tuple(factors)))
            continue
        others = [f for k, f in enumerate(factors) if k != split]
        for minus, part in terms_of(factors[split].value, negative):
            found.append((minus, (*others, *factors_of(part, types))))
    return found


def _adds_aslant(e: Expr) -> bool:
    parts = terms_of(e, False)
    return len(parts) > 1 and any(is_aslant(i) for _, x in parts for a in accesses_in(x) for i in a.index)


def _term(negative: bool, factors: tuple[Factor, ...], outputs: Sequence[str]) -> _Term:
    for k, f in enumerate(factors):
        read = [*accesses_in(f.value)]
        if len(read) != 1 or f.divides:
            continue
        (a,) = read
        others = {v for j, g in enumerate(factors) if j != k for v in index_variables(g.value)}
        for axis, e in enumerate(a.index):
            form = linear(e)
            beside = {v for j, i in enumerate(a.index) if j != axis for v in index_variables(i)}
            alone = [v for v in form.variables() if v not in others | beside and abs(form.coefficient(v)) == 1]
            plain = form.is_affine and form.is_integral and set(form.variables()) <= set(outputs)
            if (
                plain
                and len(form.terms) > 1
                and alone
                and set(index_variables(f.value)) == beside | {*form.variables()}
            ):
                return _Term(negative, factors, k, axis, form)
    return _Term(negative, factors)


def _extents(s: Statement, aslant: Sequence[_Term], types: Types) -> dict[str, int] | None:
    """How many values each variable has; None where one is bounded otherwise than by whole axes."""
    differences = {t.form for t in aslant}
    own = dict(zip(index_variables(*(s.index or ())), types[s.output].shape, strict=True))
    return ranges_of(axis_places(accesses_in(s.body), types), own, lambda e, n: linear(e) in differences)


def _is_inside(t: _Term, extent: Mapping[str, int], types: Types) -> bool:
    """Whether every point reads what is there."""
    assert t.aslant is not None
    (a,) = accesses_in(t.factors[t.aslant].value)
    ends = ends_of(t.form.to_expr(), extent)
    return ends is not None and ends[0] >= 0 and ends[1] < types[a.tensor].shape[t.axis]


def ends_of(e: Expr, extent: Mapping[str, int]) -> tuple[int, int] | None:
    """The least and the greatest position, if they are known."""
    match e:
        case Call("clamp", (x, Int(low), Int(high))):
            own = ends_of(x, extent)
            return (low, high) if own is None else (min(max(own[0], low), high), min(max(own[1], low), high))
        case Call("mod", (_, Int(n))):
            return 0, n - 1
        case Call("abs", (x,)):
            own = ends_of(x, extent)
            return None if own is None else (0, max(map(abs, own)))
    form = linear(e)
    if not form.is_affine or not form.is_integral:
        return None
    least, most = interval_of(form, lambda v: (0, extent[v.name] - 1))
    return as_int(least), as_int(most)


def _aligned(s: Statement, t: _Term, types: Types, names: Names) -> tuple[list[Statement], _Term]:
    """The term with an operand whose axis has whole vectors, and the statement that makes it of one that has not. What
    a function makes of the zeros at its end would count, so that of another operand stays."""
    assert t.aslant is not None
    f = t.factors[t.aslant]
    (a,) = accesses_in(f.value)
    shape = list(types[a.tensor].shape)
    if not shape[t.axis] % _ALIGNED or not isinstance(without_casts(f.value), Access):
        return [], t
    shape[t.axis] = -(-shape[t.axis] // _ALIGNED) * _ALIGNED
    index = tuple(Index(f"i{k}") for k in range(len(shape)))
    name = names.fresh(f"{a.tensor}_wide")
    made = Statement(name, index, tuple(map(Int, shape)), replace(a, index=index), "assign", span=s.span)
    read = Factor(with_access(f.value, replace(a, tensor=name)), False)
    factors = tuple(read if k == t.aslant else g for k, g in enumerate(t.factors))
    return [made], replace(t, factors=factors)


def _product(
    s: Statement, t: _Term, outputs: Sequence[str], extent: Mapping[str, int], types: Types, names: Names
) -> Statement | None:
    """The products of a term's rows and all that its operand has; None where tensor cores would not take them."""
    assert t.aslant is not None
    f = t.factors[t.aslant]
    (a,) = accesses_in(f.value)
    u = fresh_variable("u", set(all_variables(s)))
    index = tuple(Index(u) if k == t.axis else e for k, e in enumerate(a.index))
    there = Factor(with_access(f.value, replace(a, index=index)), False)
    rest = [g for k, g in enumerate(t.factors) if k != t.aslant]
    sides = {*index_variables(*(g.value for g in rest))}, {*index_variables(there.value)} - {u}
    kept = [v for v in outputs if v in sides[0] | sides[1]]
    n = types[a.tensor].shape[t.axis]
    rows = math.prod(extent[v] for v in kept if v not in sides[1])
    summed = math.prod(extent[v] for v in sides[0] & sides[1] if v not in outputs)
    count = math.prod(extent[v] for v in kept) * n
    if min(rows, n, summed) < LEAST or count * summed < LEAST_STACKED:
        return None
    if count > _MOST_WIDER * math.prod(types[s.output].shape):
        return None
    body = quotient_of([there, *rest] if t.aslant == 0 else [*rest, there])
    sizes = (*(Int(extent[v]) for v in kept), Int(n))
    name = names.fresh(f"{s.output}_all")
    return Statement(name, (*map(Index, kept), Index(u)), sizes, body, "sum", span=s.span)
