"""Smaller domains for the same points: what a guard says of an index becomes a constraint, and an output index that
only turns a variable round, or moves it, becomes that variable. What asks no more of a tensor that is computed than
whether an index lies inside asks its size, so that it need not be computed for that. A constraint that an access or an
output's size states as well is left out, so that what takes statements without constraints takes those too.

`Y[i] = sum(i - k >= 0 ? X[k])` adds up the same terms for every i, and more of them: there the guard becomes a
constraint, which is how a cumulative sum is recognised. Elsewhere such a guard stays: causal attention has one. And
`Y[t] = +(X[s] * H[t - s])` goes over all s, of which a short H leaves few: it is summed over the index of H.

Gradients ask both: what `init` receives comes from points at which a read lies outside, `pad(in(H[t - 1]), 0) == 0`,
which is `t < 1`; and where the read turns, it is added up at `(i - 1) % D`, which is i' where i is `(i' + 1) % D`. What
goes to `t + S[k]` is read back at `t - S[k]`: each term of k moves by an element of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tilec.errors import UnboundIndex
from tilec.ir.aggregations import SPLITTABLE
from tilec.ir.constraining import asks_in_branches, constraining
from tilec.ir.functions import COMPARISONS, ZERO, all_of, operands_of
from tilec.ir.index import QUASI_AFFINE, Affine, distinct_variables, linear, place_value, substitute_affine
from tilec.ir.program import (
    Access,
    Call,
    Constraint,
    Expr,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    accesses_in,
    children,
    expressions,
    index_variables,
    reads_itself,
    walk,
)
from tilec.ir.rational import as_int
from tilec.lattice.conditions import bound_of, has_room, is_affine
from tilec.lattice.index_values import index_values
from tilec.lattice.sets import Box, Shapes, bounds_of, domain, interval_of, shapes_of, sizes_of
from tilec.transforms.lower.clamps.pieces import is_folded, pieces_of
from tilec.transforms.lower.move_outputs import unrotated, with_inverted_index
from tilec.transforms.lower.reduce import keep_constraint_variables
from tilec.transforms.simplify.simplify import is_bool
from tilec.transforms.util.rewrite import with_parts

_FEW_VALUES = 64  # of a variable, each of which conditions are asked for
_BAND = 8  # as many times as long as the band is what is summed over, at least, to be summed over the band


def tighten_domains(program: Program) -> Program:
    """A flat program with both done wherever they can be; recurrences stay as they are."""
    shapes, computed = shapes_of(program), frozenset(s.output for s in program.statements)
    return replace(program, statements=tuple(narrowed(s, shapes, computed) for s in program.statements))


def narrowed(s: Statement, shapes: Shapes, computed: frozenset[str] = frozenset()) -> Statement:
    """One statement. `computed`: tensors that are no inputs."""
    if reads_itself(s):
        return s
    s = _pinned(_running(_confined(without_repeats(s, shapes), shapes), shapes), shapes)
    return _sized(_over_bands(with_inverted_index(unrotated(s, shapes), shapes), shapes), shapes, computed)


# constraints that accesses state as well


def without_repeats(s: Statement, shapes: Shapes) -> Statement:
    """The statement without constraints that its accesses, or its output's sizes, state as well."""
    if not s.constraints or asks_in_branches(s):
        return s
    stated: dict[Affine, int] = {}
    written = [] if s.index is None or s.sizes is None else [(s.index, sizes_of(s))]
    for index, shape in (*written, *((a.index, shapes[a.tensor]) for a in constraining(*s.roots))):
        for e, n in zip(index, shape, strict=True):
            form = linear(e)
            stated[form] = min(n, stated.get(form, n))

    def repeats(c: Constraint) -> bool:
        bound = linear(c.bound)
        return not bound.terms and stated.get(linear(c.expr), bound.constant + 1) <= bound.constant

    kept = tuple(c for c in s.constraints if not repeats(c))
    return s if len(kept) == len(s.constraints) else replace(s, constraints=kept)


# sizes


def _sized(s: Statement, shapes: Shapes, computed: frozenset[str]) -> Statement:
    """With conditions on indices in the place of `in(...)` of tensors that are computed and not read."""
    unread = computed.difference(e.tensor for e in _read(s))
    inside = {e.access for e in walk(s.body) if isinstance(e, Inside) and e.access.tensor in unread}
    asked = [a for a in constraining(s.body) if a.tensor in unread and a in inside] if inside else []
    for a in dict.fromkeys(asked):
        forms = list(zip(map(linear, a.index), shapes[a.tensor], strict=True))
        known = replace(s, body=with_parts(s.body, {Inside(a): Int(1)}))
        box = box_in_text(known, shapes)
        read_at = [(form, n) for form, n in forms if not form.is_affine and not _clamped_inside(form, n)]
        if not all(form.is_integral for form, _ in forms) or not all(
            _is_read(form, box, shapes) for form, _ in read_at
        ):
            continue
        affine = [(form, n) for form, n in forms if form.is_affine]
        for form, n in read_at:
            value = place_value(form.to_value())
            for test in (Call("ge", (value, ZERO)), Call("lt", (value, Int(n)))):
                known = replace(known, guard=test if known.guard is None else Call("and", (known.guard, test)))
        spans = [(form, n, None if box is None else interval_over(form, box)) for form, n in affine]
        limits = (Constraint(f.to_expr(), Int(n)) for f, n, span in spans if not span or span[0] < 0 or span[1] >= n)
        s = keep_constraint_variables(replace(known, constraints=tuple(dict.fromkeys((*s.constraints, *limits)))))
    return s


def _is_read(form: Affine, box: Box | None, shapes: Shapes) -> bool:
    """Whether a form is a combination of variables and of elements that are there at all points."""
    for atom in form.atoms():
        if isinstance(atom, Index):
            continue
        if isinstance(atom, Call) and atom.function in QUASI_AFFINE and any(accesses_in(atom)):
            inner = [linear(a) for a in atom.args]
            if all(f.is_integral and _is_read(f, box, shapes) for f in inner):
                continue
        if not isinstance(atom, Access) or box is None or atom.tensor not in shapes:
            return False
        for e, n in zip(atom.index, shapes[atom.tensor], strict=True):
            span = interval_over(linear(e), box)
            if span is None or span[0] < 0 or span[1] >= n:
                return False
    return True


def box_in_text(s: Statement, shapes: Shapes) -> Box | None:
    """The ranges of a statement's variables, None where there are no points or nothing bounds some variable. `max` and
    `min` in an index bound nothing in a text, so nothing here."""
    points = domain(s, shapes)
    if asks_in_branches(s):
        return None
    try:
        return bounds_of(replace(points, conditions=tuple(c for c in points.conditions if c.form.is_affine)))
    except UnboundIndex:
        return None


def _read(s: Statement) -> Iterator[Access]:
    """Accesses of a statement, those that are only asked whether they lie inside left out."""
    pending = [*expressions(s)]
    while pending:
        e = pending.pop()
        if isinstance(e, Access):
            yield e
        pending += [i for i in e.access.index] if isinstance(e, Inside) else children(e)


def _clamped_inside(form: Affine, n: int) -> bool:
    """Whether a clamped index can only lie inside."""
    match form.terms:
        case ((Call("clamp", (inner, Int(low), Int(high))), c),) if c == 1 and not form.constant:
            return linear(inner).is_affine and linear(inner).is_integral and 0 <= low <= high < n
    return False


# guards


def _confined(s: Statement, shapes: Shapes) -> Statement:
    tests = () if s.guard is None else operands_of("and", s.guard)
    if not any(map(_outside, tests)) or not all(map(is_bool, tests)):
        return s
    box = bounds_of(domain(s, shapes))
    if box is None:
        return s
    constraints, kept = list(s.constraints), []
    for test in tests:
        found = _confinement(test, box, shapes)
        if found is None:
            kept.append(test)
        else:
            constraints.append(found)
    if len(kept) == len(tests):
        return s
    return keep_constraint_variables(replace(s, guard=all_of(kept), constraints=tuple(dict.fromkeys(constraints))))


def _running(s: Statement, shapes: Shapes) -> Statement:
    """With a guard that compares an output variable to a summed one as a constraint, where no term depends on both:
    where other variables are summed too, no term on the former at all, since a product of matrices may be left."""
    names = distinct_variables(s.index)
    if s.guard is None or names is None or s.default is not None or s.aggregation not in SPLITTABLE:
        return s
    tests = operands_of("and", s.guard)
    for test in tests:
        form = bound_of(test)
        pair = () if form is None else form.variables()
        if form is None or len(pair) != 2 or len({*pair} & {*names}) != 1:
            continue
        rest = [t for t in tests if t is not test]
        bounds = {c: found for c in s.constraints if (found := _bounds_on(form, c)) is not None}
        constraints = tuple(c for c in s.constraints if c not in bounds)
        others = (*rest, *(c.expr for c in constraints))
        if any({*pair} <= set(index_variables(e)) for e in (*others, *_terms(s.body))) or not all(map(is_bool, rest)):
            continue
        if {*pair} & set(index_variables(s.body)) & {*names} and {*index_variables(s.body)} - {*names} - {*pair}:
            continue
        made = replace(s, guard=all_of(rest))
        box = box_in_text(made, shapes)
        span = None if box is None else interval_over(form, box)
        low = max([0, *(first for first, _ in bounds.values())])
        high = -1 if span is None else min([span[1], *(last for _, last in bounds.values())])
        if high < low:
            continue
        constraint = Constraint((form - low).to_expr(), Int(high - low + 1))
        return keep_constraint_variables(replace(made, constraints=(*constraints, constraint)))
    return s


def _bounds_on(form: Affine, c: Constraint) -> tuple[int, int] | None:
    """The least and the greatest value of an integer form that a constraint on it alone allows."""
    bound = linear(c.bound)
    for sign in (1, -1):
        rest = linear(c.expr) - form * sign
        if not rest.terms and not bound.terms and rest.is_integral:
            ends = sorted((-rest.constant * sign, (bound.constant - 1 - rest.constant) * sign))
            return as_int(ends[0]), as_int(ends[1])
    return None


def _pinned(s: Statement, shapes: Shapes) -> Statement:
    """With the one value of a summed variable that a guard leaves in its place: `+(i == 0 ? A[n, i])` is `A[n, 0]`, and
    so is `+(i != 1 & i != 2 ? A[n, i])` where A has three columns."""
    tests = () if s.guard is None else operands_of("and", s.guard)
    barred = {*index_variables(*(s.index or ()), *(c.expr for c in s.constraints))}
    names = dict.fromkeys(v for t in tests for v in index_variables(t) if v not in barred)
    if s.aggregation not in SPLITTABLE or not names or asks_in_branches(s):
        return s
    box = box_in_text(s, shapes)
    for v in names:
        own = [t for t in tests if index_variables(t) == (v,) and _compares_places(t)]
        value = None if box is None else _only_value(v, own, box[v])
        if value is not None:
            rest = replace(s, guard=all_of(t for t in tests if t not in own))
            return _pinned(substitute_affine(rest, {v: Affine.of((), value)}), shapes)
    return s


def _compares_places(e: Expr) -> bool:
    return isinstance(e, Call) and e.function in COMPARISONS and all(is_affine(a) and has_room(a) for a in e.args)


def _only_value(v: str, tests: Sequence[Expr], span: tuple[int, int]) -> int | None:
    """The value of a variable in a span at which all tests hold; None where there are several, or that is not known."""
    equal = [e.args for e in tests if isinstance(e, Call) and e.function == "eq"]
    named = [n.value for variable, n in equal if variable == Index(v) and isinstance(n, Int)]
    low, high = (named[0], named[0]) if named and span[0] <= named[0] <= span[1] else span
    values = {v: np.arange(low, min(high + 1, low + _FEW_VALUES))}
    holds = [index_values(t, values) for t in tests]
    if not tests or high - low >= _FEW_VALUES or any(h is None for h in holds):
        return None
    left = values[v][np.logical_and.reduce([np.asarray(h, bool) for h in holds])]
    return int(left[0]) if len(left) == 1 else None


def _terms(e: Expr) -> Iterator[Expr]:
    """What a value is a sum, a product and a quotient of."""
    if isinstance(e, Call) and e.function in ("add", "sub", "neg", "mul", "div"):
        for x in e.args:
            yield from _terms(x)
    else:
        yield e


def _outside(e: Expr) -> bool:
    match e:
        case Call("eq", (Pad(Inside(), value), zero)):
            return value == ZERO == zero
    return False


def _confinement(test: Expr, box: Box, shapes: Shapes) -> Constraint | None:
    """The constraint that an access lies outside, where it can do so on one side of one dimension alone."""
    if not _outside(test):
        return None
    assert isinstance(test, Call) and isinstance(test.args[0], Pad)
    inside = test.args[0].access
    assert isinstance(inside, Inside)
    access = inside.access
    open_: list[Constraint] = []
    for e, n in zip(access.index, shapes[access.tensor], strict=True):
        form = linear(e)
        span = interval_over(form, box)
        if span is None:
            return None
        low, high = span
        if low < 0:
            open_.append(Constraint((form * -1 - 1).to_expr(), Int(-low)))
        if high >= n:
            open_.append(Constraint((form - n).to_expr(), Int(high - n + 1)))
        if (low < 0 or high >= n) and not form.is_affine:
            return None
    return open_[0] if len(open_) == 1 else None


def interval_over(form: Affine, box: Box) -> tuple[int, int] | None:
    """Least and greatest value of an integer form over a box; None for forms of other kinds."""
    spans = {atom: span for atom, _ in form.terms if (span := _atom_interval(atom, box)) is not None}
    if not form.is_integral or len(spans) < len(form.terms):
        found = pieces_of(form, box) if is_folded(form) and {*index_variables(form.to_expr())} <= box.keys() else None
        whole = found is not None and found[0].is_integral  # else some points do not count
        ends = [p.at(x) for p in found[1] for x in (p.first, p.last)] if found and whole else ()
        return (min(ends), max(ends)) if ends else None
    low, high = interval_of(form, spans.__getitem__)
    return as_int(low), as_int(high)


def _atom_interval(atom: Expr, box: Box) -> tuple[int, int] | None:
    match atom:
        case Index(v) if v in box:
            return box[v]
        case Call("mod", (inner, Int(n))) if n > 0 and linear(inner).is_integral:
            return 0, n - 1
    return None


# bands


def _over_bands(s: Statement, shapes: Shapes, done: frozenset[str] = frozenset()) -> Statement:
    """`Y[t] = +(X[s] * H[2*t - 3*s])` as `Y[t] = +(X[(2*t - k)/3] * H[k])`: where a tensor is read at an index of a
    summed variable and others, and is much shorter than that variable runs, by the index that it is read at."""
    if s.aggregation not in SPLITTABLE or reads_itself(s) or asks_in_branches(s):
        return s
    outputs = set(index_variables(*(s.index or ())))
    accesses = list(constraining(*s.roots))
    bare = {(v, n) for a in accesses for e, n in zip(a.index, shapes[a.tensor], strict=True) if (v := linear(e).bare)}
    for a in accesses:
        for e, n in zip(a.index, shapes[a.tensor], strict=True):
            form = linear(e)
            if not form.is_affine or not form.is_integral or not outputs & {*form.variables()}:
                continue
            for v in form.variables():
                step = form.coefficient(v)
                long = (
                    n > 0
                    and v not in outputs
                    and v not in done
                    and any(w == v and m * abs(step) >= _BAND * n for w, m in bare)
                )
                if long and (abs(step) == 1 or not any(_valued(x, v) for x in s.roots)):
                    rest = form - Affine.variable(v) * step
                    moved = substitute_affine(s, {v: (Affine.variable(v) - rest) * (1 / step)})
                    return _over_bands(moved, shapes, done | {v})
    return s


def _valued(e: Expr, v: str) -> bool:
    """Whether an index variable stands as a value."""
    if isinstance(e, Index):
        return e.name == v
    return not isinstance(e, (Access, Inside, Pad)) and any(_valued(x, v) for x in children(e))
