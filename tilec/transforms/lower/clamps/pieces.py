"""The pieces of a place that stops at an end, is reflected there or turns round.

`clamp`, `max`, `min`, `abs` and `%` of a form are, between two of its values, a multiple of it and a number:
`N - 1 - abs(N - 1 - e)` is e below N and 2*N - 2 - e from there on, `e % N` of an e from 0 to N + 3 is e and e - N. In
an output index the places of each piece are affine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tilec.ir.index import Affine, linear
from tilec.ir.program import Call, Index, walk
from tilec.ir.rational import Fraction, as_int
from tilec.lattice.sets import Box, interval_of

_MOST = 6  # pieces of a place: each is a pass over all elements
_FOLDS = ("clamp", "max", "min", "mod")


@dataclass(frozen=True)
class AffinePiece:
    """Where the form is from `first` to `last`, the place is `slope` times the form and `rest`."""

    first: int
    last: int
    slope: int
    rest: int

    def at(self, value: int) -> int:
        return self.slope * value + self.rest


_Pieces = tuple[AffinePiece, ...]


def is_folded(row: Affine) -> bool:
    """Whether an index is no affine form, and made of such by what has pieces."""
    calls = [e for a in row.atoms() for e in walk(a) if isinstance(e, Call) and e.function in _FOLDS]
    return bool(calls) and all(isinstance(a, Index) or a in calls for a in row.atoms())


def pieces_of(row: Affine, box: Box) -> tuple[Affine, _Pieces] | None:
    """A form and the pieces of a folded index over its values, in their order; None where there are none, or many."""
    base = _first_form(row)
    if base is None or not {*base.variables()} <= box.keys():
        return None
    least, most = interval_of(base, lambda v: box[v.name])
    low, high = as_int(-(-least // 1)), as_int(most // 1)
    found = None if low > high else _of_form(row, base, low, high)
    return (base, found) if found is not None and len(found) <= _MOST else None


def _first_form(row: Affine) -> Affine | None:
    """The first affine form of variables in an index."""
    own = Affine.of([(a, c) for a, c in row.terms if isinstance(a, Index)], 0)
    if own.terms:
        return own if len(own.terms) < len(row.terms) else row
    for atom, _ in row.terms:
        for arg in atom.args if isinstance(atom, Call) and atom.function in _FOLDS else ():
            found = _first_form(linear(arg))
            if found is not None:
                return found
    return None


def _of_form(row: Affine, base: Affine, low: int, high: int) -> _Pieces | None:
    if row.is_affine:
        return _of_affine(row, base, low, high)
    own = Affine.of([(a, c) for a, c in row.terms if isinstance(a, Index)], row.constant)
    total = _of_affine(own, base, low, high)
    for atom, c in row.terms:
        if isinstance(atom, Index):
            continue
        part = _of_call(atom, base, low, high) if isinstance(atom, Call) and c.denominator == 1 else None
        if total is None or part is None:
            return None
        k = as_int(c)
        total = _joined(
            [AffinePiece(a, b, p.slope + k * q.slope, p.rest + k * q.rest) for a, b, p, q in _both(total, part)]
        )
    return total


def _of_affine(form: Affine, base: Affine, low: int, high: int) -> _Pieces | None:
    """A form as a multiple of another and a number, both integers."""
    slope = Fraction(0)
    if form.terms:
        atom, c = base.terms[0]
        slope = dict(form.terms).get(atom, Fraction(0)) / c
    rest = form - base * slope
    if rest.terms or slope.denominator != 1 or Fraction(rest.constant).denominator != 1:
        return None
    return (AffinePiece(low, high, as_int(slope), as_int(rest.constant)),)


def _of_call(e: Call, base: Affine, low: int, high: int) -> _Pieces | None:
    if e.function not in _FOLDS:
        return None
    args = [_of_form(linear(a), base, low, high) for a in e.args]
    known = [a for a in args if a is not None]
    if len(known) < len(args):
        return None
    if e.function == "mod":
        return _remainders(*known)
    if e.function == "clamp":
        form, least, most = known
        if any(a.slope or b.slope or a.rest > b.rest for _, _, a, b in _both(least, most)):
            return None
        return _extreme(_extreme(form, least, max), most, min)
    left, right = known
    return _extreme(left, right, max if e.function == "max" else min)


def _both(f: _Pieces, g: _Pieces) -> Iterator[tuple[int, int, AffinePiece, AffinePiece]]:
    """Where each piece of one meets one of the other."""
    for p in f:
        for q in g:
            first, last = max(p.first, q.first), min(p.last, q.last)
            if first <= last:
                yield first, last, p, q


def _joined(pieces: list[AffinePiece]) -> _Pieces:
    """With neighbours that are one piece as one; what is one value alone is a number."""
    out: list[AffinePiece] = []
    for p in pieces:
        p = AffinePiece(p.first, p.last, 0, p.at(p.first)) if p.first == p.last else p
        if out and (out[-1].slope, out[-1].rest) == (p.slope, p.rest):
            out[-1] = replace(out[-1], last=p.last)
        else:
            out.append(p)
    return tuple(out)


def _extreme(f: _Pieces, g: _Pieces, choose: Callable[[int, int], int]) -> _Pieces:
    out = []
    for first, last, p, q in _both(f, g):
        slope = p.slope - q.slope
        # up to where they cross one of them is chosen, then the other; where they meet, the one that moves on
        cross = (q.rest - p.rest) // slope if slope else last
        if slope and slope * cross == q.rest - p.rest:
            before, after = (_chosen(p, q, x, choose) for x in (cross - 1, cross + 1))
            cross -= (after.slope != 0, after.slope) > (before.slope != 0, before.slope)
        cross = max(min(cross, last), first - 1)
        for a, b in ((first, cross), (cross + 1, last)):
            if a <= b:
                chosen = _chosen(p, q, a if a < cross else b, choose)
                out.append(AffinePiece(a, b, chosen.slope, chosen.rest))
    return _joined(out)


def _chosen(p: AffinePiece, q: AffinePiece, value: int, choose: Callable[[int, int], int]) -> AffinePiece:
    return p if choose(p.at(value), q.at(value)) == p.at(value) else q


def _remainders(f: _Pieces, g: _Pieces) -> _Pieces | None:
    out: list[AffinePiece] = []
    for first, last, p, q in _both(f, g):
        n = q.rest
        if q.slope or n <= 0 or abs(p.slope) > 1:
            return None
        whole = p.at(first) // n
        while first <= last:
            start = p.rest - whole * n
            end = {0: last, 1: n - 1 - start, -1: start}[p.slope]
            out.append(AffinePiece(first, min(end, last), p.slope, start))
            first, whole = min(end, last) + 1, whole + p.slope
            if len(out) > _MOST:
                return None
    return _joined(out)
