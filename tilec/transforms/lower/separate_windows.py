"""Windows of several axes, one axis after the other.

`A[y, x] = +(X[y + j, x + i] * K[j] * K[i])` takes |j| |i| terms for each element. The sum over i is the same for all j
that see a row of X: `T[h, x] = +(X[h, x + i] * K[i]); A[y, x] = +(T[y + j, x] * K[j])` take |i| and |j|. So do extrema,
and gradients, which write at `y + j` what they read at y. A variable of a sum (or an extremum) goes last where what it
meets with others of them depends on it through one position alone, that of a window: filters are known as separable.

Exact as sums are that are added up in another order: every element of what goes first has a point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tilec.ir.index import Affine, distinct_variables, linear, replace_indices, substitute_affine
from tilec.ir.infer import infer, statement_type
from tilec.ir.program import (
    Access,
    Call,
    Constraint,
    Expr,
    Index,
    Int,
    Program,
    Statement,
    accesses_in,
    index_variables,
    walk,
)
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import NARROW, Types, is_floating, shapes_in
from tilec.lattice.sets import Box, bounds, covers, sizes_of
from tilec.transforms.util.factors import Factor, as_accumulated, factors_of, quotient_of
from tilec.transforms.util.naming import Names, fresh_variable
from tilec.transforms.util.plain import is_elementary, is_pure
from tilec.transforms.util.rewrite import at_variables, rounded_after

SPARED = 32  # terms that storing and reading an element again is worth, in float32: 5x5 is quicker whole
FEWEST = 2**21  # terms spared in all: fewer take less time than another launch


def separate_windows(program: Program, inputs: Types) -> Program:
    """The program with such windows one axis after the other. `inputs`: types of the inputs."""
    if not any(_slides(s) or any(_hop(s, c) for c in s.constraints) for s in program.statements):
        return program
    types = dict(infer(program, inputs))
    names = Names.of(program)
    statements: list[Statement] = []
    for s in program.statements:
        made = _in_hops(s, types, names) or _separated(s, types, names)
        statements += made
        types.update((m.output, statement_type(m, types)) for m in made[:-1])
    return replace(program, statements=tuple(statements))


def _in_hops(s: Statement, types: Types, names: Names) -> list[Statement] | None:
    """Sums over windows that overlap, one of `c` positions after the other, each of which the next windows have too:
    `E[t] = +(f(X[c*t + w])), w < c*m` is the sum of m values of `P[t] = +(f(X[c*t + w])), w < c`. What writes to all
    positions of its window, `D[c*t + w] = +(E[t] * g(X[c*t + w])), w < c*m`, has the sum of m of the E first. None
    where that spares little."""
    if s.aggregation != "sum" or s.guard is not None or not is_pure(s) or s.index is None:
        return None
    if types[s.output].dtype not in ("float32", "float64") or not is_elementary(walk(s.body)) or _counts(s.body):
        return None
    hops = [found for c in s.constraints if (found := _hop(s, c)) is not None]
    shapes = shapes_in(types)
    box = bounds(s, shapes) if hops else None
    made = [x for hop in hops if box is not None and (x := _over_hops(s, *hop, box, types, names)) is not None]
    return list(made[0]) if made else None


def _hop(s: Statement, c: Constraint) -> tuple[str, str, int, int] | None:
    """The variable of a window's places that a constraint bounds, that of its first place, by how much this moves, and
    how many moves a window is long."""
    w, bound = linear(c.expr).bare, c.bound
    if w is None or not isinstance(bound, Int) or is_symbolic(bound.value):
        return None
    forms = [form for form in _forms(s, c) if w in index_variables(form.to_expr())]
    for t in forms[0].variables() if forms else ():
        steps = {form.coefficient(t) / form.coefficient(w) if form.coefficient(w) else 0 for form in forms}
        step = next(iter(steps))
        if t != w and len(steps) == 1 and step.denominator == 1 and step > 1 and bound.value % step == 0:
            return (w, t, int(step), bound.value // int(step)) if bound.value > step else None
    return None


def _forms(s: Statement, but: Constraint) -> list[Affine]:
    """Where a statement writes and reads, and what is bounded."""
    places = [i for a in accesses_in(s.body) for i in a.index]
    return [linear(e) for e in (*(s.index or ()), *places, *(c.expr for c in s.constraints if c is not but))]


def _over_hops(
    s: Statement, w: str, t: str, step: int, moves: int, box: Box, types: Types, names: Names
) -> tuple[Statement, Statement] | None:
    """What is summed first of such a window, and the rest."""
    own = next(c for c in s.constraints if linear(c.expr).bare == w)
    narrowed = tuple(replace(c, bound=Int(step)) if c is own else c for c in s.constraints)
    alone = [f for f in _forms(s, own) if t in index_variables(f.to_expr()) and w not in f.variables()]
    written = [f for f in map(linear, s.index or ()) if f in alone]
    factors = factors_of(s.body, types)
    known = [f for f in factors if any(f in alone for a in accesses_in(f.value) for f in map(linear, a.index))]
    extent = {v: high - low + 1 for v, (low, high) in box.items()}
    extent[t] += moves - 1
    k = fresh_variable("k", {*index_variables(*s.roots, *(s.index or ()))})
    later = {t: Affine.variable(t) - Affine.variable(k)}
    if known and not written:
        if any(w in index_variables(f.value) for f in known) or any(linear(c.expr) in alone for c in s.constraints):
            return None
        variables = index_variables(*(f.value for f in known))
        body = replace_indices(quotient_of(known), later)
        constraints: tuple[Constraint, ...] = (Constraint(Index(k), Int(moves)),)
        kept = [f for f in factors if f not in known]
    elif not known and len(written) == 1 and written[0].bare == t and distinct_variables(s.index) is not None:
        if len(alone) > 1:
            return None
        variables, body, constraints, kept = distinct_variables(s.index) or (), s.body, narrowed, []
    else:
        return None
    place = tuple((Affine.variable(v) - box[v][0]).to_expr() for v in variables)
    name, sizes = names.fresh(f"{s.output}_hops"), tuple(Int(extent[v]) for v in variables)
    first = Statement(name, place, sizes, body, "sum", constraints=constraints, span=s.span)
    points, elements = math.prod(high - low + 1 for low, high in box.values()), math.prod(extent[v] for v in variables)
    if known:
        last = replace(s, body=quotient_of([Factor(Access(name, place), False), *kept]), constraints=narrowed)
    else:
        read = Access(name, tuple(replace_indices(e, {t: Affine.variable(t) + Affine.variable(k)}) for e in place))
        last = replace(s, body=read, constraints=(Constraint(Index(k), Int(moves)),))
    spared = points - points // moves - elements * moves
    if spared < max(SPARED * elements, FEWEST) or known and not covers(first, shapes_in(types)):
        return None
    return first, last


def _slides(s: Statement) -> bool:
    """Whether there may be a window: sums over two variables and positions of two."""
    written = s.index or ()
    moving = [i for i in (*written, *(i for a in accesses_in(s.body) for i in a.index)) if len(index_variables(i)) > 1]
    plain = s.guard is None and is_pure(s)
    return s.aggregation in ("sum", "max", "min") and plain and bool(written) and len(moving) > 1


def _separated(s: Statement, types: Types, names: Names) -> list[Statement]:
    """The statement, or those that take its place."""
    whole = _gathered(s, types) if _slides(s) else None
    dtype = types[s.output].dtype if s.output in types else statement_type(s, types).dtype
    if whole is None or s.aggregation == "sum" and not is_floating(dtype):
        return [s]
    if not is_elementary(walk(whole.body)) or _counts(whole.body):
        return [s]
    sums = s.aggregation == "sum"
    factors = factors_of(whole.body, types) if sums else [Factor(whole.body, False)]
    written = distinct_variables(whole.index) or ()
    orders = [
        (v, made)
        for v in dict.fromkeys(index_variables(whole.body))
        if v not in written and (made := _last(whole, v, factors, types, names, dtype)) is not None
    ]
    shapes = shapes_in(types)
    box = bounds(whole, shapes) if orders else None
    if box is None:
        return [s]
    least = SPARED * 1.5 if dtype in NARROW and sums else SPARED
    spared = [(_terms_saved(whole, v, first, box), first, last) for v, (first, last) in orders]
    found = [x for x in spared if x[0] >= max(least * math.prod(sizes_of(x[1])), FEWEST)]
    best = sorted(found, key=lambda x: -x[0])
    first, last = next(((f, g) for _, f, g in best if not sums or covers(f, shapes)), (None, s))
    if first is None:
        return [s]
    inner = _separated(first, {**types, first.output: statement_type(first, types)}, names)
    return [*inner, *(rounded_after(last, dtype, names) if dtype in NARROW and sums else [last])]


def _gathered(s: Statement, types: Types) -> Statement | None:
    """The statement with a variable of its own for each dimension of its output: `O[y + j]` with h for y + j."""
    if distinct_variables(s.index) is not None:
        return s
    longest: dict[str, int] = {}
    for a in accesses_in(s.body):
        for e, n in zip(a.index, types[a.tensor].shape, strict=True):
            if isinstance(e, Index):
                longest[e.name] = max(n, longest.get(e.name, 0))
    for k, e in enumerate(s.index or ()):
        form = linear(e)
        if form.bare is not None:
            continue
        here = [v for v in form.variables() if abs(form.coefficient(v)) == 1]
        apart = {v for n, other in enumerate(s.index or ()) if n != k for v in index_variables(other)}
        if not form.is_affine or len(form.variables()) != 2 or not here or apart & set(form.variables()):
            return None
        v = max(here, key=lambda v: longest.get(v, 0))
        h = fresh_variable("h", set(index_variables(*s.roots, *(s.index or ()))))
        rest = form - Affine.variable(v, form.coefficient(v))
        s = substitute_affine(s, {v: (Affine.variable(h) - rest) * form.coefficient(v)})
    return s if distinct_variables(s.index) is not None else None


def _counts(e: Expr) -> bool:
    """Whether an index variable is a value in the expression."""
    return isinstance(e, Index) or isinstance(e, Call) and any(map(_counts, e.args))


def _last(
    s: Statement, v: str, factors: Sequence[Factor], types: Types, names: Names, dtype: str
) -> tuple[Statement, Statement] | None:
    """What is summed before `v` where that goes last, and the rest; None where it cannot be."""
    written = distinct_variables(s.index) or ()
    others = {w for w in index_variables(s.body) if w not in written and w != v}
    outer = [f for f in factors if not others & set(index_variables(f.value))]
    inner = [f for f in factors if f not in outer]
    positions = {
        (linear(e), n)
        for f in inner
        for a in accesses_in(f.value)
        for e, n in zip(a.index, types[a.tensor].shape, strict=True)
    }
    window = [(form, n) for form, n in positions if v in form.variables()]
    if len(window) != 1 or not all(form.is_affine and form.is_integral for form, _ in positions):
        return None
    form, n = window[0]
    moved = [w for w in form.variables() if w != v]
    elsewhere = {w for other, _ in positions if other != form for w in other.variables()}
    if not moved or not set(moved) <= set(written) or elsewhere & set(form.variables()):
        return None
    early: list[Constraint] = []
    late: list[Constraint] = []
    for c in s.constraints:
        used = set(index_variables(c.expr))
        if used & others and used & set(form.variables()):
            return None
        (early if used & others else late).append(c)
    h = fresh_variable("h", {*index_variables(*s.roots), *written})
    used = set(index_variables(*(f.value for f in inner), *(c.expr for c in early)))
    place = tuple(h if w == moved[0] else w for w in written if w in used and w not in moved[1:])
    shape = dict(zip(written, sizes_of(s), strict=True))
    sizes = tuple(n if w == h else shape[w] for w in place)
    inner = [replace(f, value=at_variables(f.value, {form: h})) for f in inner]
    read = tuple(form.to_expr() if w == h else Index(w) for w in place)
    first = replace(s, index=tuple(map(Index, place)), sizes=tuple(map(Int, sizes)), constraints=tuple(early))
    if s.aggregation == "sum":
        inner, outer = ([as_accumulated(f, dtype, types) for f in factors] for factors in (inner, outer))
    first = replace(first, output=names.fresh(f"{s.output}_along"), body=quotient_of(inner), attributes=())
    body = quotient_of([*outer, Factor(Access(first.output, read), False)])
    return first, replace(s, body=body, constraints=tuple(late))


def _terms_saved(s: Statement, v: str, first: Statement, box: Box) -> int:
    """How many terms the sum over `v` after the first statement's spares."""
    written = distinct_variables(s.index) or ()
    extent = {w: high - low + 1 for w, (low, high) in box.items()}
    others = math.prod(extent[w] for w in set(index_variables(s.body)) - {*written, v})
    elements = math.prod(sizes_of(s))
    return elements * extent[v] * (others - 1) - math.prod(sizes_of(first)) * others
