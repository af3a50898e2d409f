"""Index arithmetic: affine forms with rational coefficients over index variables and atoms.

An atom is what an index may hold besides variables: `e % N`, `clamp(e, lo, hi)`, `max` and `min` of two forms (`abs(e)`
is `max(e, -e)`), an integer tensor's element, and, before sizes are known, a dimension's name. Division is exact here,
unlike between values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from tilec.errors import AffineMistake
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Constraint,
    Expr,
    Index,
    Int,
    Name,
    Pad,
    Statement,
    index_variables,
    kept_hash,
    map_values,
    rebuild,
    walk,
)
from tilec.ir.rational import Fraction, as_fraction, as_int, least_factor, least_remainder

_ZERO, _ONE = Fraction(0), Fraction(1)
QUASI_AFFINE = ("mod", "clamp", "max", "min", "abs")


@lru_cache(maxsize=4096)
def natural(name: str) -> tuple:
    """Sort key by which v2 stands before v10 and v1_0 before v1_1."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))


def _order(term: tuple[Expr, Fraction]) -> tuple:
    atom = term[0]
    return (0, natural(atom.name)) if isinstance(atom, Index) else (1, natural(repr(atom)))


def _fraction(value: Fraction | int) -> Fraction:
    return value if type(value) is Fraction else Fraction(value)


@dataclass(frozen=True)
class Affine:
    """The sum of `terms` (atom times nonzero coefficient, in canonical order) and `constant`."""

    terms: tuple[tuple[Expr, Fraction], ...] = ()
    constant: Fraction = _ZERO
    __getstate__, __hash__ = Expr.__getstate__, kept_hash("terms", "constant")

    @staticmethod
    def of(
        terms: Mapping[Expr, Fraction] | Iterable[tuple[Expr, Fraction | int]], constant: Fraction | int = 0
    ) -> Affine:
        """The form of any terms: like ones are added up, zeros left out, the rest put in order."""
        total: dict[Expr, Fraction] = {}
        plain = type(terms) in (tuple, list)  # asked first: `isinstance` of an abstract class takes longer
        pairs: Any = terms.items() if not plain and isinstance(terms, Mapping) else terms
        for atom, coefficient in pairs:
            known = total.get(atom)
            total[atom] = _fraction(coefficient) if known is None else known + coefficient
        kept = [(a, c) for a, c in total.items() if c]
        if len(kept) > 1:
            kept.sort(key=_order)
        return Affine(tuple(kept), _fraction(constant))

    @staticmethod
    def variable(name: str, coefficient: Fraction | int = 1) -> Affine:
        return Affine.of([(Index(name), coefficient)])

    @staticmethod
    def combine(coefficients: Mapping[str, Fraction | int], constant: Fraction | int = 0) -> Affine:
        """The form of named index variables and their coefficients."""
        return Affine.of(((Index(name), c) for name, c in coefficients.items()), constant)

    def coefficient(self, name: str) -> Fraction:
        return next((c for atom, c in self.terms if type(atom) is Index and atom.name == name), _ZERO)

    def variables(self) -> tuple[str, ...]:
        """Index variables that stand in the form directly, not inside an atom."""
        return tuple(a.name for a, _ in self.terms if isinstance(a, Index))

    def atoms(self) -> tuple[Expr, ...]:
        """The terms that are no index variables."""
        return tuple(a for a, _ in self.terms if not isinstance(a, Index))

    @cached_property
    def is_affine(self) -> bool:
        """No atoms: affine in the index variables alone."""
        return all(isinstance(a, Index) for a, _ in self.terms)

    @property
    def is_integral(self) -> bool:
        """An integer wherever the variables and atoms are."""
        return self.constant.denominator == 1 and all(c.denominator == 1 for _, c in self.terms)

    @cached_property
    def bare(self) -> str | None:
        """The name, where the form is one index variable and nothing else."""
        if len(self.terms) == 1:
            ((atom, coefficient),) = self.terms
            if type(atom) is Index and coefficient == 1 and self.constant == 0:
                return atom.name
        return None

    @property
    def denominator(self) -> int:
        """Least positive integer that makes every coefficient and the constant integers."""
        return math.lcm(self.constant.denominator, *(c.denominator for _, c in self.terms))

    def __add__(self, other: Affine | Fraction | int) -> Affine:
        if isinstance(other, Affine):
            if not other.terms or not self.terms:
                return Affine(self.terms or other.terms, self.constant + other.constant)
            return Affine.of((*self.terms, *other.terms), self.constant + other.constant)
        return Affine(self.terms, self.constant + other)

    def __neg__(self) -> Affine:
        return self * -1

    def __sub__(self, other: Affine | Fraction | int) -> Affine:
        return self + -other

    def __mul__(self, factor: Fraction | int) -> Affine:
        if type(factor) is int and factor == 1 or not factor:
            return self if factor else Affine()
        return Affine(tuple((a, c * factor) for a, c in self.terms), self.constant * factor)

    def __truediv__(self, divisor: Fraction | int) -> Affine:
        return Affine(tuple((a, c / divisor) for a, c in self.terms), self.constant / divisor)

    def substitute(self, mapping: Mapping[str, Affine]) -> Affine:
        """The form with variables replaced at once, inside atoms too."""
        total, constant = list[tuple[Expr, Fraction]](), self.constant
        for atom, c in self.terms:
            if isinstance(atom, Index):
                image = mapping.get(atom.name)
            else:
                image = linear(replace_indices(atom, mapping, exact=True))
            if image is None:
                total.append((atom, c))
                continue
            total.extend((a, c * k) for a, k in image.terms)
            constant += c * image.constant
        return Affine.of(total, constant)

    def to_expr(self) -> Expr:
        """The tree that the parser builds from the form's canonical text, such as `-v0 + 1/3*v1 - 2*v2 + 1`."""
        pieces: list[tuple[Expr | None, Fraction]] = list(self.terms)
        if self.constant or not pieces:
            pieces.append((None, self.constant))
        result = _term(*pieces[0])
        for atom, c in pieces[1:]:
            result = Call("sub" if c < 0 else "add", (result, _term(atom, abs(c))))
        return result

    def to_value(self) -> Expr:
        """The same integer as a value, where division truncates: one exact division, last."""
        scale = self.denominator
        tree = (self * scale).to_expr()
        return tree if scale == 1 else Call("div", (tree, Int(scale)))


def _number(value: Fraction) -> Expr:
    numerator = integer(value.numerator)
    return numerator if value.denominator == 1 else Call("div", (numerator, Int(value.denominator)))


def _term(atom: Expr | None, c: Fraction) -> Expr:
    if atom is None:
        return _number(c)
    if c == 1:
        return atom
    if c == -1:
        return Call("neg", (atom,))
    return Call("mul", (_number(c), atom))


def integer(value: int) -> Expr:
    """The literal of an integer of either sign."""
    return Int(value) if value >= 0 else Call("neg", (Int(-value),))


def linear(e: Expr) -> Affine:
    """The form of an index expression, atoms' own arguments made canonical too. AffineMistake where there is none."""
    kept: Affine | None = e.__dict__.get("_form")
    if kept is not None:
        return kept
    found = _FORMS.get(type(e))
    if found is None:
        raise AffineMistake("an index must be affine in the index variables", e.span)
    form = e.__dict__["_form"] = found(e)  # asked for thousands of times, and an expression never changes
    return form


def _of_call(e: Call) -> Affine:
    match e:
        case Call("add", (a, b)):
            return linear(a) + linear(b)
        case Call("sub", (a, b)):
            return linear(a) - linear(b)
        case Call("neg", (a,)):
            return linear(a) * -1
        case Call("mul", (a, b)):
            x, y = linear(a), linear(b)
            if x.terms and y.terms:
                raise AffineMistake(
                    "an index must be affine: here two index variables, sizes or elements are multiplied", e.span
                )
            return x * y.constant if x.terms else y * x.constant
        case Call("div", (a, b)):
            divisor = linear(b)
            if divisor.terms:
                raise AffineMistake("an index must be affine: the divisor here is not a number", b.span or e.span)
            if not divisor.constant:
                raise AffineMistake("division by zero in an index", e.span, hint="divide by another number than 0")
            return linear(a) * (1 / divisor.constant)
        case Call(function, args) if function in QUASI_AFFINE:
            return _quasi_affine(e, function, [linear(a) for a in args])
    raise AffineMistake("an index must be affine in the index variables", e.span)


def _of_access(e: Access) -> Affine:
    return Affine(((canonical_access(e), _ONE),))


def _of_padded(e: Pad) -> Affine:
    return Affine(((rebuild(e, lambda x: canonical_access(x) if x is e.access else x), _ONE),))


_FORMS: dict[type, Callable[[Any], Affine]] = {
    Index: lambda e: Affine(((e, _ONE),)),
    Name: lambda e: Affine(((e, _ONE),)),
    Int: lambda e: Affine((), as_fraction(e.value)),
    Call: _of_call,
    Access: _of_access,
    Pad: _of_padded,
}


def _quasi_affine(e: Call, function: str, args: list[Affine]) -> Affine:
    if all(not a.terms and a.is_integral for a in args):
        values = [as_int(a.constant) for a in args]
        if function != "mod":
            return Affine((), Fraction(_EXTREMA[function](*values)))
        if values[1]:
            return Affine((), Fraction(values[0] % values[1]))
    if function == "abs":
        return _quasi_affine(Call("max", (), span=e.span), "max", [args[0], -args[0]])
    if function == "mod":
        args[0] = _without_modulo(args[0], args[1].to_expr())
        rest = _remainder(*args)
        if rest is not None:
            return Affine((), Fraction(rest))
    return Affine(((replace(e, args=tuple(a.to_expr() for a in args)), _ONE),))


_EXTREMA: dict[str, Callable[..., int]] = {
    "abs": abs,
    "max": max,
    "min": min,
    "clamp": lambda x, low, high: min(max(x, low), high),
}


def _remainder(form: Affine, modulus: Affine) -> int | None:
    """What a form in index variables is modulo a number, where that is the same for all of their values."""
    n = 0 if modulus.terms or not modulus.is_integral else as_int(modulus.constant)
    if not n or not form.is_integral or not all(isinstance(a, Index) and as_int(c) % n == 0 for a, c in form.terms):
        return None
    return as_int(form.constant) % n


def _without_modulo(form: Affine, modulus: Expr) -> Affine:
    """A form that is taken modulo `modulus` anyway, without the same modulo of its terms, which may keep sums with
    elements to 64 bits, with the least constant and factors: a turn has as many values as they reach."""
    n, total = getattr(modulus, "value", 0), Affine((), form.constant)
    for atom, c in form.terms:
        inner = Affine(((atom, c),))
        if isinstance(atom, Call) and atom.function == "mod" and atom.args[1] == modulus and c.denominator == 1:
            argument = linear(atom.args[0])
            inner = argument * c if argument.is_integral and argument.is_affine else inner
        total += inner
    return Affine.of([(a, least_factor(c, n)) for a, c in total.terms], least_remainder(total.constant, n))


def canonical(e: Expr) -> Expr:
    """An index expression in canonical form."""
    return linear(e).to_expr()


def canonical_access(e: Expr) -> Expr:
    """An access, or `in` of one, with canonical indices."""
    return replace(e, index=tuple(map(canonical, e.index))) if isinstance(e, Access) else rebuild(e, canonical_access)


def replace_indices(e: Expr, mapping: Mapping[str, Affine], exact: bool = False) -> Expr:
    """An expression with index variables replaced by forms: canonical in indices (`exact`: e itself is part of one),
    `to_value` in values. Variables that a nested aggregation binds must not stand in the mapping's forms."""
    match e:
        case Index(name):
            form = mapping.get(name)
            return e if form is None else form.to_expr() if exact else form.to_value()
        case Access(tensor, old):
            at = (mapping.get(i.name, linear(i)) if type(i) is Index else linear(i).substitute(mapping) for i in old)
            return Access(tensor, tuple([form.to_expr() for form in at]), span=e.span)
        case Pad():
            return rebuild(e, lambda x: replace_indices(x, mapping))
        case Aggregate():
            free = {name: form for name, form in mapping.items() if name not in e.bound}
            inner = map_values(e, lambda x: replace_indices(x, free))
            return replace(inner, constraints=replace_constraints(e.constraints, free))
        case Call("div", (a, Int(divisor))) if divisor and not exact and _is_whole(a):
            quotient = linear(a).substitute(mapping) * Fraction(1, divisor)
            if quotient.is_integral:
                return quotient.to_value()
    return rebuild(e, lambda x: replace_indices(x, mapping, exact))


def place_value(e: Expr) -> Expr:
    """An index as a value, in 64 bits whatever the type of the elements in it; divisions in it come out even."""
    match e:
        case Access():
            return Call("int64", (e,))
        case Call(function, args) if function in QUASI_AFFINE:
            return replace(e, args=tuple(place_value(linear(a).to_value()) for a in args))
    return rebuild(e, place_value)


def _is_whole(e: Expr) -> bool:
    """Is a value an integer combination of index variables, such as `to_value` divides?"""
    match e:
        case Index() | Int():
            return True
        case Call("add" | "sub" | "neg", args):
            return all(map(_is_whole, args))
        case Call("mul", (Int() | Call("neg", (Int(),)), b)):
            return _is_whole(b)
    return False


def replace_constraints(constraints: tuple[Constraint, ...], mapping: Mapping[str, Affine]) -> tuple[Constraint, ...]:
    return tuple(replace(c, expr=linear(c.expr).substitute(mapping).to_expr()) for c in constraints)


def substitute_affine(s: Statement, mapping: Mapping[str, Affine]) -> Statement:
    """A statement with index variables replaced by forms, each place by its own division; `init`, whose variables name
    an element, stays."""
    return replace(
        s,
        index=None if s.index is None else tuple(linear(i).substitute(mapping).to_expr() for i in s.index),
        guard=None if s.guard is None else replace_indices(s.guard, mapping),
        body=replace_indices(s.body, mapping),
        constraints=replace_constraints(s.constraints, mapping),
    )


def same_form(a: Expr, b: Expr) -> bool:
    """Are they one form, or, where they have none, one expression?"""
    try:
        return canonical(a) == canonical(b)
    except AffineMistake:
        return a == b


def as_stored(variables: Sequence[str], moving: Collection[str], operands: Sequence[Expr]) -> tuple[str, ...]:
    """Variables of a product of operands in an order in which it can be stored and read again: `moving` ones stand as
    they index the operands, which are multiplied as they lie in memory then; the others in the order given."""
    earlier: dict[str, set[str]] = {v: set() for v in variables}
    for a in (a for e in operands for a in walk(e) if isinstance(a, Access)):
        indexed = [v for v in index_variables(*a.index) if v in earlier]
        for k, v in enumerate(indexed):
            earlier[v].update(u for u in indexed[:k] if u in moving or v in moving)
    found: list[str] = []
    while len(found) < len(variables):
        left = [v for v in variables if v not in found]
        still = next((v for v in left if v not in moving), None)  # the others keep their order where nothing bars that
        free = [v for v in left if earlier[v] <= set(found)]
        found.append(next((v for v in free if v in moving or v == still), free[0] if free else left[0]))
    return tuple(found)


def distinct_variables(index: Sequence[Expr] | None) -> tuple[str, ...] | None:
    """The variables of an index each part of which is one of its own; None for any other index."""
    names = [e.name if type(e) is Index else linear(e).bare for e in index or ()]
    found = tuple(v for v in names if v is not None)
    return found if len(found) == len(names) == len(set(found)) else None
