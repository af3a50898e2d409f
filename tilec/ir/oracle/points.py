"""Enumeration of the integer points of a contraction: affine forms, an enclosing box, and the points in it.

Exact integers throughout: a form with rational coefficients is kept as integer coefficients over one denominator. The
box comes from interval propagation, and from inverting the forms where no single one bounds a variable; it may be
larger than the set of valid points, never smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tilec.errors import AffineMistake, SizeMistake, UnboundIndex, Unsupported
from tilec.ir.program import Access, Call, Expr, Index, Int, Name, Pad, index_variables, walk

Columns = dict[str, np.ndarray]  # values of index variables, one row a point; "" holds the number of the starting row
IntegerInterval = tuple[int | None, int | None]  # inclusive; None is unbounded

MOST_POINTS = 10**8  # most points that one statement may make us look at
POINTS_AT_ONCE = 2**18  # points looked at together
BOX_ROUNDS = 16  # of interval propagation: more could tighten the box, never correct it


@dataclass(frozen=True, slots=True)
class LinearForm:
    """(sum of coefficient * key, + constant) / denominator, over index variables (str) and atoms (Expr).

    It holds at a point where the value is an integer and, unless `extent` is None, 0 <= value < extent.
    """

    terms: tuple[tuple[str | Expr, int], ...]
    constant: int
    denominator: int
    extent: int | None

    @property
    def top(self) -> int:
        """Greatest numerator in range, where the form has one."""
        assert self.extent is not None
        return (self.extent - 1) * self.denominator

    @property
    def affine(self) -> bool:
        """No atoms: index variables alone."""
        return all(isinstance(key, str) for key, _ in self.terms)

    @property
    def variables(self) -> set[str]:
        """Those that it depends on, at these sizes."""
        atoms = [key for key, _ in self.terms if not isinstance(key, str)]
        return {key for key, _ in self.terms if isinstance(key, str)}.union(index_variables(*atoms))

    @property
    def dynamic(self) -> bool:
        """Holds a tensor's element."""
        return any(isinstance(e, Access) for key, _ in self.terms if not isinstance(key, str) for e in walk(key))


def form(e: Expr, extent: int | None, size: Callable[[Expr], int]) -> LinearForm:
    """The form of an index expression; `size` gives the integer that a size expression stands for."""
    terms, constant = _linear(e, size)
    kept = [(key, c) for key, c in terms.items() if c]
    denominator = math.lcm(constant.denominator, *(c.denominator for _, c in kept))
    scaled = tuple((key, int(c * denominator)) for key, c in kept)
    return LinearForm(scaled, int(constant * denominator), denominator, extent)


def _truths(*parts: tuple[dict, Fraction | int]) -> bool:
    """Are these truth values, which together make one?"""
    return all(not terms and isinstance(constant, bool) for terms, constant in parts)


def _linear(e: Expr, size: Callable[[Expr], int]) -> tuple[dict, Fraction | int]:
    constant: Fraction | int
    match e:
        case Index(name):
            return {name: 1}, 0
        case Int(value):
            return {}, value
        case Name():
            return {}, size(e)
        case Access() | Pad():
            return {e: 1}, 0
        case Call("neg", (a,)):
            return _scaled(_linear(a, size), -1)
        case Call("add" | "sub", (a, b)):
            terms, constant = _linear(a, size)
            sign = 1 if e.function == "add" else -1
            others, other = _linear(b, size)
            if sign == 1 and _truths((terms, constant), (others, other)):
                return {}, bool(constant or other)
            terms = dict(terms)
            for key, c in others.items():
                terms[key] = terms.get(key, 0) + sign * c
            return terms, constant + sign * other
        case Call("mul", (a, b)):
            x, y = _linear(a, size), _linear(b, size)
            if _truths(x, y):
                return {}, bool(x[1] and y[1])
            if not any(x[0].values()):
                return _scaled(y, x[1])
            if not any(y[0].values()):
                return _scaled(x, y[1])
        case Call("div", (a, b)):
            variables, divisor = _linear(b, size)
            if not any(variables.values()):
                if divisor == 0:
                    raise AffineMistake("division by zero in an index", e.span)
                return _scaled(_linear(a, size), Fraction(1) / divisor)
        case Call("mod" | "clamp" | "max" | "min" | "abs", args):
            parts = [_linear(a, size) for a in args]
            if e.function == "mod" and not any(parts[1][0].values()):
                _check_modulus(parts[1][1], e)
            if any(any(terms.values()) for terms, _ in parts):
                by_one = e.function == "mod" and not parts[1][0] and parts[1][1] == 1
                whole = all(isinstance(key, str) and c == int(c) for key, c in parts[0][0].items())
                return ({}, 0) if by_one and whole and parts[0][1] == int(parts[0][1]) else ({e: 1}, 0)
            first, *rest = (part[1] for part in parts)
            if e.function == "abs":
                return {}, max(first, -first)
            if e.function != "mod":
                extreme = min(first, rest[0]) if e.function == "min" else max(first, rest[0])
                extreme = min(extreme, rest[1]) if e.function == "clamp" else extreme
                return {}, extreme if _truths(*parts) else extreme + 0
            if rest[0]:
                return {}, first - rest[0] * math.floor(Fraction(first) / rest[0])
            return {}, Fraction(1, 2)  # which is no integer: the point does not count
        case Call():
            return {}, size(e)
    raise AffineMistake("an index must be affine in the index variables", e.span)


def _check_modulus(n: Fraction | int, e: Expr) -> None:
    """Zero is legal: it leaves no valid point."""
    if n < 0 or n != int(n):
        raise SizeMistake(f"a modulus of {n}; it must be a positive integer", e.span)


def _scaled(part: tuple[dict, Fraction | int], factor: Fraction | int) -> tuple[dict, Fraction | int]:
    return {key: c * factor for key, c in part[0].items()}, part[1] * factor


def _rest(form: LinearForm, box: dict, skip: str | Expr | None, keys=None) -> IntegerInterval:
    """Range of the form's numerator without the term `skip` and, if `keys` is given, without terms outside it."""
    low: int | None = form.constant
    high: int | None = form.constant
    for key, c in form.terms:
        if key == skip or keys is not None and key not in keys:
            continue
        a, b = box[key] if c > 0 else box[key][::-1]
        low = None if low is None or a is None else low + c * a
        high = None if high is None or b is None else high + c * b
    return low, high


def _tighten(forms: Sequence[LinearForm], box: dict) -> bool:
    """Propagate intervals through the forms to a fixed point (or BOX_ROUNDS). False if some interval is empty."""
    for _ in range(BOX_ROUNDS):
        changed = False
        for f in forms:
            top = f.top
            for key, c in f.terms:
                low, high = _rest(f, box, key)
                # -high <= c * key <= top - low
                least = None if high is None else -high
                most = None if low is None else top - low
                if c < 0:
                    least, most = (None if most is None else -most), (None if least is None else -least)
                a, b = box[key]
                if least is not None:
                    least = -(-least // abs(c))
                    if a is None or least > a:
                        a, changed = least, True
                if most is not None:
                    most //= abs(c)
                    if b is None or most < b:
                        b, changed = most, True
                if a is not None and b is not None and a > b:
                    return False
                box[key] = (a, b)
        if not changed:
            break
    return True


def _invert(forms: Sequence[LinearForm], box: dict, variables: Sequence[str]) -> None:
    """Bound each open variable by a rational combination of forms, found by elimination."""
    unsolved = [v for v in variables if None in box[v]]
    rows: list[tuple[dict, dict]] = []  # coefficients of open variables, combination of forms
    ranges: list[tuple[int, int]] = []
    for f in forms:
        known = [key for key, _ in f.terms if None not in box[key]]
        row = {key: Fraction(c) for key, c in f.terms if None in box[key]}
        if row:
            low, high = _rest(f, box, None, known)
            assert low is not None and high is not None
            ranges.append((-high, f.top - low))
            rows.append((row, {len(ranges) - 1: Fraction(1)}))
    pivots: dict = {}
    for row, source in rows:
        for pivot, (other, origin) in pivots.items():
            row, source = _eliminate(row, source, pivot, other, origin)
        if not row:
            continue
        pivot = next(iter(row))
        scale = row[pivot]
        row = {k: c / scale for k, c in row.items()}
        source = {k: c / scale for k, c in source.items()}
        for p, (other, origin) in list(pivots.items()):
            pivots[p] = _eliminate(other, origin, pivot, row, source)
        pivots[pivot] = row, source
    for v in unsolved:
        row, source = pivots.get(v, ({}, {}))
        if len(row) != 1:
            continue
        low = sum(w * ranges[k][0 if w > 0 else 1] for k, w in source.items())
        high = sum(w * ranges[k][1 if w > 0 else 0] for k, w in source.items())
        box[v] = (math.ceil(low), math.floor(high))


def _eliminate(row: dict, source: dict, pivot, other: dict, origin: dict) -> tuple[dict, dict]:
    factor = row.get(pivot, 0)
    return (row, source) if not factor else (_minus(row, factor, other), _minus(source, factor, origin))


def _minus(x: dict, factor: Fraction, y: dict) -> dict:
    result = dict(x)
    for key, c in y.items():
        result[key] = result.get(key, 0) - factor * c
    return {key: c for key, c in result.items() if c}


def enclose(forms: Sequence[LinearForm], variables: Sequence[str], known: dict) -> dict | None:
    """A box around every point where the affine forms hold: interval of each variable; None if there is no point.

    `known` gives intervals of variables and atoms that are already bounded. UnboundIndex names what nothing bounds.
    """
    box: dict = {v: (None, None) for v in variables} | known
    for f in forms:
        for key, _ in f.terms:
            box.setdefault(key, (None, None))
        if f.extent is not None and f.extent <= 0:
            return None
    if not _tighten(forms, box):
        return None
    if any(None in box[v] for v in variables):
        _invert(forms, box, variables)
        if not _tighten(forms, box):
            return None
    loose = [v for v in variables if None in box[v]]
    if loose:
        raise UnboundIndex(f"nothing bounds the index variable{'s' * (len(loose) > 1)} {', '.join(loose)}")
    return box


@dataclass(frozen=True)
class _Check:
    """A form over the variables known so far, with the range that the others leave it."""

    terms: tuple[tuple[str, int], ...]
    low: int
    high: int
    constant: int
    denominator: int  # 1 while variables are missing

    def mask(self, columns: Columns) -> np.ndarray | bool:
        total: np.ndarray | int = self.constant
        for key, c in self.terms:
            total = total + (columns[key] if c == 1 else columns[key] * c)
        good = (total >= self.low) & (total <= self.high)
        return good if self.denominator == 1 else good & (total % self.denominator == 0)


def _check(f: LinearForm, box: dict, known: set[str]) -> _Check:
    terms = tuple((key, c) for key, c in f.terms if key in known)
    if len(terms) == len(f.terms):
        return _Check(terms, 0, f.top, f.constant, f.denominator)
    rest = LinearForm(tuple(t for t in f.terms if t[0] not in known), 0, f.denominator, f.extent)
    low, high = _rest(rest, box, None)
    assert low is not None and high is not None
    return _Check(terms, -high, f.top - low, f.constant, 1)


def take(columns: Columns, mask: np.ndarray | bool) -> Columns:
    """The rows where mask holds; a plain bool keeps all or none."""
    if mask is True or isinstance(mask, np.bool_) and mask:
        return columns
    if mask is False or isinstance(mask, np.bool_):
        return {key: column[:0] for key, column in columns.items()}
    if mask.all():
        return columns
    return {key: column[mask] for key, column in columns.items()}


def enumerate_points(forms: Sequence[LinearForm], variables: Sequence[str], start: Columns) -> Iterator[Columns]:
    """Blocks of all points that extend a row of `start` by the variables and satisfy the affine forms.

    Always at least one block, possibly of no rows. Points of one row come in lexicographic order of the variables.
    """
    rows = len(start[""])
    outer = {v: (int(c.min()), int(c.max())) if rows else (0, -1) for v, c in start.items() if v}
    box = None if not rows else enclose(forms, variables, outer)
    if box is None:
        yield {v: np.zeros(0, np.int64) for v in (*start, *variables)}
        return
    known = set(outer)
    levels: list[list[_Check]] = [[_check(f, box, known) for f in forms if all(k in known for k, _ in f.terms)]]
    for v in variables:
        known.add(v)
        # the box alone already holds the range of a form in one new variable
        touched = [f for f in forms if any(k == v for k, _ in f.terms) and (len(f.terms) > 1 or f.denominator > 1)]
        levels.append([_check(f, box, known) for f in touched])
    seen = 0
    made = False

    def extend(columns: Columns, level: int) -> Iterator[Columns]:
        nonlocal seen, made
        for check in levels[level]:
            columns = take(columns, check.mask(columns))
        if level == len(variables):
            made = True
            yield columns
            return
        low, high = box[variables[level]]
        count = high - low + 1
        step = max(1, POINTS_AT_ONCE // count)
        total = len(columns[""])
        for first in range(0, total, step):
            size = min(step, total - first)
            seen += size * count
            if seen > MOST_POINTS:
                raise Unsupported(f"more than {MOST_POINTS} points to enumerate: too many for the oracle")
            wider = {v: np.repeat(c[first : first + size], count) for v, c in columns.items()}
            wider[variables[level]] = np.tile(np.arange(low, high + 1), size)
            yield from extend(wider, level + 1)

    yield from extend(start, 0)
    if not made:
        yield {v: np.zeros(0, np.int64) for v in (*start, *variables)}
