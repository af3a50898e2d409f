"""Writes at places that turn a variable round, as the variable itself.

`Y[(i + c) % N] = +(X[i])`, where i takes N values, is `Y[i] = +(X[(i - c) % N])`. What it is turned by may depend on
the other variables in any way, `c = K[q]` included: for each of their values all places are different.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.program import Call, Index, Int, Statement, index_variables
from tilec.ir.rational import as_int
from tilec.lattice.sets import Box, Shapes, bounds_of, domain, sizes_of


def turned_back(s: Statement, shapes: Shapes) -> Statement:
    for place, row in enumerate(map(linear, s.index or ())):
        match row.terms:
            case ((Call("mod", (inner, Int(n))), c),) if c == 1 and not row.constant and n > 0:
                form = linear(inner)
            case _:
                continue
        box = bounds_of(domain(s, shapes))
        if not _is_integer(form) or sizes_of(s)[place] > n or box is None:
            continue
        v = next((v for v in form.variables() if form.coefficient(v) == 1 and _goes_round(v, box, n)), None)
        if v is None or any(v in index_variables(a) for a, _ in form.terms if a != Index(v)):
            continue
        if any(v in index_variables(e) for k, e in enumerate(s.index or ()) if k != place):
            continue
        low = box[v][0]
        back = Affine.variable(v) * 2 - form - low
        turned = Affine.of([(Call("mod", (back.to_expr(), Int(n))), 1)], low)
        index = list(s.index or ())
        moved = substitute_affine(s, {v: turned})
        index[place] = Index(v)
        s = replace(moved, index=tuple(index))
    return s


def _goes_round(v: str, box: Box, n: int) -> bool:
    return box[v][1] - box[v][0] + 1 == n


def _is_integer(form: Affine) -> bool:
    """Whether a form is an integer for all integers that its variables and atoms can be: `(q - q % 3)/3` is."""
    whole = math.lcm(form.constant.denominator, *(c.denominator for _, c in form.terms))
    scaled = form * whole
    plain = Affine.of([], scaled.constant)
    for atom, c in scaled.terms:
        match atom:
            case Call("mod", (inner, Int(n))) if n and as_int(c) * n % whole == 0 and linear(inner).is_integral:
                plain = plain + linear(inner) * c  # but for multiples of n
            case _:
                plain = plain + Affine.of([(atom, c)], 0)
    return all(as_int(c) % whole == 0 for c in (plain.constant, *(c for _, c in plain.terms)))
