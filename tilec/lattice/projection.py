"""Projections of integer points by Fourier-Motzkin elimination, where that is exact: small systems of inequalities with
coefficients of 1 mostly, whose constants may be sizes that are left open."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilec.ir.index import Affine
from tilec.ir.program import Index
from tilec.ir.rational import as_int
from tilec.ir.symbolic import is_symbolic

MOST_INEQUALITIES = 64  # inequalities at a time


@dataclass(frozen=True)
class Inequality:
    """The sum of `terms` (variable, integer other than 0; in order) and `constant` is not negative."""

    terms: tuple[tuple[str, int], ...]
    constant: int

    def coefficient(self, v: str) -> int:
        for name, c in self.terms:
            if name == v:
                return c
        return 0


class Inexact(Exception):
    """Elimination would not say exactly which integers are left."""


def inequalities(conditions: Iterable[tuple[Affine, int]]) -> list[Inequality]:
    """Those of `0 <= form < bound`. Raises Inexact for forms that are not integral and affine."""
    found: dict[tuple[tuple[str, int], ...], int] = {}
    for form, bound in conditions:
        if not form.is_affine or not form.is_integral:
            raise Inexact
        terms = tuple(sorted((a.name, as_int(c)) for a, c in form.terms if isinstance(a, Index)))
        if any(is_symbolic(c) for _, c in terms):
            raise Inexact
        _add(found, terms, as_int(form.constant))
        _add(found, tuple((n, -c) for n, c in terms), bound - 1 - as_int(form.constant))
    return [Inequality(terms, constant) for terms, constant in found.items()]


def _add(found: dict[tuple[tuple[str, int], ...], int], terms: tuple[tuple[str, int], ...], constant: int) -> None:
    """Of those with the same terms the tightest counts; integers satisfy what is left without a common divisor."""
    divisor = math.gcd(*[c for _, c in terms])
    if divisor > 1:
        terms, constant = tuple((n, c // divisor) for n, c in terms), constant // divisor
    if terms not in found or constant < found[terms]:
        found[terms] = constant


def project_out(system: Sequence[Inequality], variables: Sequence[str]) -> list[Inequality]:
    """What the points of a system satisfy in the other variables, exactly. Raises Inexact."""
    left = list(variables)
    while left:
        v = min(left, key=lambda name: _cost(system, name))
        left.remove(v)
        system = _without(system, v)
    return list(system)


def _cost(system: Sequence[Inequality], v: str) -> tuple[int, int]:
    """Coefficients of 1 first, then few combinations."""
    coefficients = [c for q in system if (c := q.coefficient(v))]
    return max(map(abs, coefficients), default=1), sum(c > 0 for c in coefficients) * sum(c < 0 for c in coefficients)


def _without(system: Sequence[Inequality], v: str) -> list[Inequality]:
    lower: list[tuple[Inequality, int]] = []
    upper: list[tuple[Inequality, int]] = []
    found: dict[tuple[tuple[str, int], ...], int] = {}
    for q in system:
        c = q.coefficient(v)
        if not c:
            found[q.terms] = q.constant
        else:
            (lower if c > 0 else upper).append((q, abs(c)))
    for low, a in lower:
        for high, b in upper:
            terms: dict[str, int] = {}
            for name, c in (*((n, b * c) for n, c in low.terms), *((n, a * c) for n, c in high.terms)):
                terms[name] = terms.get(name, 0) + c
            kept = tuple(sorted((n, c) for n, c in terms.items() if c))
            constant = b * low.constant + a * high.constant
            if a > 1 and b > 1 and (kept or constant < (a - 1) * (b - 1)):
                raise Inexact  # an integer lies between the two only where they are that far apart
            _add(found, kept, constant)
    if len(found) > MOST_INEQUALITIES:
        raise Inexact
    return [Inequality(terms, constant) for terms, constant in found.items()]


def possible(system: Sequence[Inequality]) -> bool:
    """Whether inequalities without variables hold."""
    return all(q.constant >= 0 for q in system)


def interval(system: Sequence[Inequality], v: str) -> tuple[int | None, int | None] | None:
    """Least and greatest value of the one variable of a system (None: there is none); None where it has no value."""
    low: int | None = None
    high: int | None = None
    for q in system:
        c = q.coefficient(v)
        if not c:
            if q.constant < 0:
                return None
            continue
        end = -(q.constant // c) if c > 0 else q.constant // -c
        if c > 0:
            low = end if low is None or end > low else low
        else:
            high = end if high is None or end < high else high
    return None if low is not None and high is not None and low > high else (low, high)


def ranges(system: Sequence[Inequality], variables: Sequence[str]) -> list[tuple[int, int]] | None:
    """Exact range of each variable over the integer points of a system, None if there are none. Raises Inexact, and
    where a variable is not bounded."""
    if not variables and not possible(system):
        return None
    found = []
    for v in variables:
        ends = interval(project_out(system, [name for name in variables if name != v]), v)
        if ends is None:
            return None
        low, high = ends
        if low is None or high is None:
            raise Inexact
        found.append((low, high))
    return found


def holds_on(system: Sequence[Inequality], box: Mapping[str, tuple[int, int]]) -> bool:
    """Whether every point of a box satisfies a system."""
    return all(q.constant + sum(c * box[n][c < 0] for n, c in q.terms) >= 0 for q in system)
