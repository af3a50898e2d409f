"""Reads at computed positions that a kernel carries out where it needs them: rows through a table (`K[Table[j], d]`).

`with_gathers_apart` gives such reads statements of their own. Where chains alone read what one of them makes, and few
rows of each chain do, the kernel reads the table and then the elements, and the statement is gone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.chains.chain import ChainKernel, ReadInPlace
from tilec.backends.common.chains.values import is_elementwise, plain_index
from tilec.ir.functions import ZERO, all_of, call, is_zero
from tilec.ir.index import Affine, linear, place_value
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Index,
    Inside,
    Int,
    Program,
    Statement,
    accesses_in,
    index_variables,
    reads,
)
from tilec.ir.rational import Fraction, as_int
from tilec.ir.types import Types, kind

# rows of a kernel that read an element, at most: more of them wait for positions and addresses longer than a copy of
# what they read would take
MOST_ROWS_IN_PLACE = 256


@dataclass(frozen=True)
class InPlace:
    """A program without the statements that its kernels carry out themselves."""

    program: Program
    kernels: list[ChainKernel]


def with_reads_in_place(
    program: Program, kernels: Sequence[ChainKernel], types: Types, matrices: Collection[str]
) -> InPlace:
    """`matrices`: values that the kernels compute and nothing stores."""
    found: dict[str, ReadInPlace] = {}
    for s in program.statements:
        made = _read_in_place(s, found, types)
        if made is not None:
            found[s.output] = made
    members = {*matrices, *(s.output for k in kernels for s in k.statements)}
    stored = {*program.outputs} & found.keys()
    stored |= {n for k in kernels for n in found if n in _names(k) and not _pays(n, found[n], k)}
    while True:
        others = [s for s in program.statements if s.output not in members and s.output not in found.keys() - stored]
        more = {n for s in others for n in reads(s) if n in found} | stored
        if more == stored:
            break
        stored = more
    gone = {n: r for n, r in found.items() if n not in stored}
    read = {n for k in kernels for n in _names(k)}
    if not gone.keys() & read:
        return InPlace(program, list(kernels))
    left = tuple(s for s in program.statements if s.output not in gone)
    own = [{n: r for n, r in gone.items() if n in _names(k)} for k in kernels]
    return InPlace(
        replace(program, statements=left), [replace(k, in_place=r) for k, r in zip(kernels, own, strict=True)]
    )


def _read_in_place(s: Statement, known: Mapping[str, ReadInPlace], types: Types) -> ReadInPlace | None:
    """An element at a computed position, or whether there is one, as a statement makes it; None for others."""
    index = plain_index(s)
    if index is None or not is_elementwise(s) or s.guard is not None or s.constraints:
        return None
    if isinstance(s.body, Access) and s.body.tensor in known:
        made = ReadInPlace(index, known[s.body.tensor].at(s.body))
        reads_all = (e for a in accesses_in(made.body) for e in a.index)
        return made if all(is_place(e, types) for e in reads_all) else None
    match s.body:
        case Call("ne", (Inside(a), zero)) if is_zero(zero):
            extent = dict(zip(index, types[s.output].shape, strict=True))
            body = all_of(_within(a, extent, types))
        case Access() as a:
            body = a
        case _:
            return None
    computed = any(True for _ in accesses_in(*a.index)) and all(is_place(e, types) for e in a.index)
    return ReadInPlace(index, body) if computed and body is not None else None


def _within(a: Access, extent: Mapping[str, int], types: Types) -> Iterator[Expr]:
    """What says that there is an element, and those that its positions are computed of."""
    for e, n in zip(a.index, types[a.tensor].shape, strict=True):
        form = linear(e)
        for x in form.atoms():
            yield from _within(x, extent, types) if isinstance(x, Access) else ()
        place = e if isinstance(e, Access) else place_value(form.to_value())
        if form.bare is None and form.terms:
            yield call("ge", place, ZERO)
        if form.bare is None and form.terms or n < extent.get(form.bare or "", n):
            yield call("lt", place, Int(n))


def is_place(e: Expr, types: Types) -> bool:
    """Whether a position is made of variables, elements of integers, and remainders and quotients of forms that are not
    negative."""
    form = linear(e)
    quotients, rest = quotients_of(form)
    parts = [*(x for x, _, _ in quotients), *(linear(a.args[0]) for a in rest.atoms() if isinstance(a, Call))]
    if not rest.is_integral or not all(map(_is_natural, parts)):
        return False
    for a in rest.atoms():
        match a:
            case Access(tensor, index):
                if kind(types[tensor].dtype) != 1 or not all(is_place(i, types) for i in index):
                    return False
            case Call("mod", (_, Int(n))) if n > 0:
                pass
            case _:
                return False
    return True


def _is_natural(form: Affine) -> bool:
    """Whether a form is an integer that is not negative wherever its variables are."""
    return form.is_affine and form.is_integral and form.constant >= 0 and all(c > 0 for _, c in form.terms)


def quotients_of(form: Affine) -> tuple[list[tuple[Affine, int, int]], Affine]:
    """Forms x, divisors n and factors k of the terms `k * (x - x % n) / n` of a form, and what else it has."""
    found: list[tuple[Affine, int, int]] = []
    for atom, c in form.terms:
        match atom:
            case Call("mod", (x, Int(n))) if n > 0 and c.denominator > 1 and (c * n).denominator == 1:
                k = as_int(-c * n)
                whole = linear(x) - Affine(((atom, Fraction(1)),))
                found.append((linear(x), n, k))
                form = form - (whole * k) / n
    return found, form


def place_ends(form: Affine, extent: Mapping[str, int]) -> tuple[int, int]:
    """Least and greatest value of a place, wherever its variables are below their extents; elements in it aside."""

    def greatest(x: Expr) -> int:
        match x:
            case Index(v):
                return extent[v] - 1
            case Call("mod", (_, Int(n))):
                return n - 1
        return 0

    quotients, rest = quotients_of(form)
    ends = [(as_int(x.constant + sum(c * greatest(a) for a, c in x.terms)) // n, k) for x, n, k in quotients]
    ends += [(greatest(a), as_int(c)) for a, c in rest.terms]
    low, high = (as_int(rest.constant) + sum(side(0, k * last) for last, k in ends) for side in (min, max))
    return low, high


def _names(kernel: ChainKernel) -> dict[str, set[str]]:
    """What a kernel reads, and the variables of the kernel along which each of these is read."""
    found: dict[str, set[str]] = {}
    for r in kernel.targets:
        for a in accesses_in(r.target.body, *r.target.conditions):
            inner = kernel.inners.get(a.tensor)
            if inner is None:
                found.setdefault(a.tensor, set()).update(index_variables(a))
                continue
            own = dict(zip(inner.index, a.index, strict=True))
            for x in accesses_in(inner.body):
                used = {v for w in index_variables(x) if w in own for v in index_variables(own[w])}
                found.setdefault(x.tensor, set()).update(used)
    return found


def _pays(name: str, read: ReadInPlace, kernel: ChainKernel) -> bool:
    """Whether few rows of a kernel read each element, all of them by one side of the matrix. A condition takes what its
    elements' positions take anyway."""
    used = _names(kernel)[name]
    sides = {*kernel.blocked, kernel.looped}
    if kernel.elementwise or kernel.looped is None or sides <= used or sides.isdisjoint(used):
        return False
    if not isinstance(read.body, Access):
        return True
    others = (*kernel.blocked, *kernel.batch, *kernel.walked)
    return math.prod(kernel.extent[v] for v in others if v not in used) <= MOST_ROWS_IN_PLACE
