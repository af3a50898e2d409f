"""Tensors that cancel out, as a softmax's maximum does: no derivative flows through them.

`exp(X[i, j] - M[i]) / sum(exp(X[i, k] - M[i]))` is the same for every M. That is told from the text: let M[i] grow by
t[i], and follow what becomes of each statement. A value may stay as it is, grow by c*t, or grow by the factor
exp(c*t); every function either keeps one of these forms or ends the search. If all outputs stay as they are, the
derivative by M is zero in exact arithmetic, and what would be computed of it is rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from tilec.ir.constraining import always, conditional, demands
from tilec.ir.functions import COMPARISONS, RANDOM, STRUCTURAL, is_infinite, is_zero
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Float,
    Index,
    Inside,
    Int,
    Name,
    Pad,
    Program,
    Statement,
    index_variables,
    reads,
    reads_itself,
    substitute,
    walk,
)
from tilec.ir.rational import Fraction
from tilec.ir.types import FLOATS
from tilec.transforms.util.extents import Extent

MOST_STATEMENTS = 200  # of a program that is looked through
STEADYING = ("max", "min", "mean", "logsumexp")  # aggregations whose results people subtract


@dataclass(frozen=True)
class Shift:
    """What a value does when M[...] grows by t[...]: `factor` False: it grows by `count * t[at]`; True: by the factor
    exp(count * t[at]). A count of 0 is a value that stays."""

    count: Fraction = Fraction(0)
    factor: bool = False
    at: tuple[Expr, ...] = ()


STAYS = Shift()


class _Unknown(Exception):
    """The value changes in another way."""


def cancelling(program: Program, extents: Mapping[str, Extent]) -> frozenset[str]:
    """Outputs of aggregations that the program's outputs do not depend on, whatever their values."""
    if len(program.statements) > MOST_STATEMENTS:
        return frozenset()
    tried = (s.output for s in program.statements if s.aggregation in STEADYING and s.output not in program.outputs)
    return frozenset(name for name in tried if _cancels(program, name, extents))


def _cancels(program: Program, name: str, extents: Mapping[str, Extent]) -> bool:
    known: dict[str, Shift] = {}
    for s in program.statements:
        try:
            if s.output == name:
                assert s.index is not None, "an aggregation has indices"
                known[name] = Shift(Fraction(1), False, tuple(Index(f"v{d}") for d in range(len(s.index))))
            elif not known.keys().isdisjoint(reads(s)):
                shift = _statement(s, known, extents)
                if shift != STAYS:
                    known[s.output] = shift
        except _Unknown:
            return False
    return known.keys().isdisjoint(program.outputs)


def _statement(s: Statement, known: Mapping[str, Shift], extents: Mapping[str, Extent]) -> Shift:
    """The shift of a statement's output; `at` holds its dimensions as v0, v1, ..."""
    if reads_itself(s) or s.default in known or s.init is not None:
        raise _Unknown
    if s.index is None:
        return _elementwise(s, known, extents)
    left = s.index
    if len(set(left)) < len(left) or not all(isinstance(e, Index | Access) for e in left):
        raise _Unknown
    for e in left:
        _stays(e, known)
    shift = _aggregated(s.aggregation, s.guard, s.body, left, known)
    unreached = s.default is not None or s.aggregation == "assign" and not shift.factor and not _covered(s, extents)
    if shift != STAYS and unreached:
        raise _Unknown
    places: dict[Expr, Expr] = {e: Index(f"v{d}") for d, e in enumerate(left)}
    return _at(shift, tuple([_place(e, places) for e in shift.at]))


def _covered(s: Statement, extents: Mapping[str, Extent]) -> bool:
    """Is every element assigned, as far as the text says? One that is not stays 0."""
    sizes = extents[s.output]
    if isinstance(sizes, str) or s.guard is not None or s.constraints:
        return False
    given = dict(zip(s.index or (), sizes, strict=True))
    asked = demands(s.body)
    if conditional(asked):
        return False
    wanted = [(access, extents[access.tensor]) for access in always(asked)]
    return all(tuple(given.get(i) for i in access.index) == extent for access, extent in wanted)


def _place(e: Expr, places: Mapping[Expr, Expr]) -> Expr:
    """A place in terms of others: `places` holds what it is one of, or what it is made of."""
    if e in places:
        return places[e]
    inside = {v: places.get(Index(v)) for v in index_variables(e)}
    found = {v: place for v, place in inside.items() if place is not None}
    if len(found) < len(inside):
        raise _Unknown
    return substitute(e, found)


def _is_place(e: Expr) -> bool:
    """Is the expression of one value wherever it stands, and free of variables of its own?"""
    return not any(isinstance(x, Aggregate) or isinstance(x, Call) and x.function in RANDOM for x in walk(e))


def _fixed(e: Expr, left: Collection[Expr]) -> bool:
    """Is a place the same for all terms of an element whose indices are `left`?"""
    return e in left or all(Index(v) in left for v in index_variables(e))


def _elementwise(s: Statement, known: Mapping[str, Shift], extents: Mapping[str, Extent]) -> Shift:
    """Over tensors of one shape: what broadcasts is not followed."""
    body = s.body
    if isinstance(body, Call) and body.function in STRUCTURAL or isinstance(extents[s.output], str):
        raise _Unknown
    if any(extents[name] != extents[s.output] for name in reads(s) if name in known):
        raise _Unknown
    return _value(body, known)


def _aggregated(
    aggregation: str, guard: Expr | None, body: Expr, left: Collection[Expr], known: Mapping[str, Shift]
) -> Shift:
    if guard is not None:
        _stays(guard, known)
    shift = _value(body, known)
    if shift == STAYS:
        return shift
    fixed = all(_fixed(e, left) for e in shift.at)
    kept = ("sum", "max", "min", "assign", "mean") if shift.factor else ("max", "min", "assign", "logsumexp")
    if aggregation in ("argmax", "argmin") and fixed:
        return STAYS
    if aggregation not in kept or not fixed:
        raise _Unknown
    return shift


def _value(e: Expr, known: Mapping[str, Shift]) -> Shift:
    match e:
        case Int() | Float() | Index() | Inside():
            return STAYS
        case Name():
            return known.get(e.name, STAYS)
        case Access():
            for i in e.index:
                _stays(i, known)
            shift = known.get(e.tensor, STAYS)
            if shift != STAYS and not all(map(_is_place, e.index)):
                raise _Unknown
            places: dict[Expr, Expr] = {Index(f"v{d}"): i for d, i in enumerate(e.index)}
            return _at(shift, tuple([_place(i, places) for i in shift.at]))
        case Pad():
            _stays(e.access, known)
            _stays(e.value, known)
            return STAYS
        case Aggregate():
            free = set(map(Index, index_variables(e)))
            return _aggregated(e.aggregation, e.guard, e.body, free, known)
        case Call():
            return _call(e, known)
    raise _Unknown


def _stays(e: Expr, known: Mapping[str, Shift]) -> None:
    if _value(e, known) != STAYS:
        raise _Unknown


def _call(e: Call, known: Mapping[str, Shift]) -> Shift:
    args = [_value(a, known) for a in e.args]
    if all(a == STAYS for a in args):
        return STAYS
    rule = None if e.function in RANDOM else _RULES.get(e.function)
    if rule is None:
        raise _Unknown
    return rule(e, *args)


def _at(shift: Shift, at: tuple[Expr, ...]) -> Shift:
    return replace(shift, at=at) if shift.count else STAYS


def _combined(a: Shift, b: Shift, sign: int, factor: bool) -> Shift:
    """Both of the kind `factor`, at one place."""
    for x in (a, b):
        if x.count and x.factor is not factor:
            raise _Unknown
    if a.count and b.count and a.at != b.at:
        raise _Unknown
    return _at(Shift(a.count + sign * b.count, factor), a.at or b.at) if a.count + sign * b.count else STAYS


def _same(e: Call, a: Shift, b: Shift) -> Shift:
    """Equal ones; a zero goes with every factor, an infinity with every sum."""
    for x, y, literal in ((a, b, e.args[-1]), (b, a, e.args[-2])):
        anything = is_zero(literal) if x.factor else is_infinite(literal)
        if x == y or y == STAYS and x.count and anything:
            return x
    raise _Unknown


def _sum(sign: int) -> Callable[..., Shift]:
    def rule(e: Call, a: Shift, b: Shift) -> Shift:
        return _same(e, a, b) if a.factor or b.factor else _combined(a, b, sign, False)

    return rule


def _power(p: Fraction) -> Callable[..., Shift]:
    def rule(e: Call, a: Shift) -> Shift:
        if not a.factor:
            raise _Unknown
        return replace(a, count=a.count * p)

    return rule


def _between(factor: bool) -> Callable[..., Shift]:
    """From sums to factors (exp) or from factors to sums (log)."""

    def rule(e: Call, a: Shift) -> Shift:
        if a.factor is factor:
            raise _Unknown
        return replace(a, factor=factor)

    return rule


def _compared(e: Call, a: Shift, b: Shift) -> Shift:
    _same(e, a, b)
    return STAYS


def _same_sums(e: Call, a: Shift, b: Shift) -> Shift:
    if a.factor or b.factor:
        raise _Unknown
    return _same(e, a, b)


def _select(e: Call, condition: Shift, a: Shift, b: Shift) -> Shift:
    if condition != STAYS:
        raise _Unknown
    return STAYS if a == b == STAYS else _same(e, a, b)


_RULES: dict[str, Callable[..., Shift]] = {
    "add": _sum(1),
    "sub": _sum(-1),
    "mul": lambda e, a, b: _combined(a, b, 1, True),
    "div": lambda e, a, b: _combined(a, b, -1, True),
    "neg": lambda e, a: a if a.factor else replace(a, count=-a.count),
    "exp": _between(True),
    "log": _between(False),
    "sqrt": _power(Fraction(1, 2)),
    "rsqrt": _power(Fraction(-1, 2)),
    "recip": _power(Fraction(-1)),
    "abs": _power(Fraction(1)),
    "relu": _power(Fraction(1)),
    **dict.fromkeys(("ident", *FLOATS), lambda e, a: a),
    "max": _same_sums,
    "min": _same_sums,
    "logaddexp": _same_sums,
    "select": _select,
    **dict.fromkeys(COMPARISONS, _compared),
}
