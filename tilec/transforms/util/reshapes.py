"""Where the elements of one shape stand in another one, in row-major order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilec.ir.index import Affine
from tilec.ir.program import Access, Call, Expr, Index, Int, Statement
from tilec.ir.rational import Fraction, as_int
from tilec.transforms.util.broadcast import Shape


def without_axis(items: Sequence[Expr], axis: int) -> tuple[Expr, ...]:
    """An index, or sizes, but for those of one axis."""
    return (*items[:axis], *items[axis + 1 :])


def reshape_indices(shape: Shape, source: Shape, variables: Sequence[Index]) -> list[Affine]:
    """For each dimension of `source`, its index at the row-major position of `variables` in `shape`."""
    if 0 in source:
        return [Affine() for _ in source]
    steps = zip(variables, row_major_steps(shape), shape, strict=True)
    position = Affine.of((v, n) for v, n, size in steps if size != 1)
    sizes: dict[Expr, int] = dict(zip(variables, shape, strict=True))
    indices, above = [], position
    for size, stride in zip(source, row_major_steps(source), strict=True):
        below = above if size == 1 else _modulo(position, stride, sizes)
        indices.append((above - below) / stride)
        above = below
    return indices


def reshape_statement(output: str, shape: Shape, source: str, there: Shape) -> Statement:
    """All elements of `source`, which has the shape `there`, in order."""
    variables = tuple(Index(f"v{k}") for k in range(len(shape)))
    places = tuple(form.to_expr() for form in reshape_indices(shape, there, variables))
    return Statement(output, variables, tuple(map(Int, shape)), Access(source, places))


def row_major_steps(shape: Shape) -> list[int]:
    return [math.prod(shape[d + 1 :]) for d in range(len(shape))]


def digits_of(form: Affine, size: int, extent: Mapping[str, int]) -> tuple[str, ...] | None:
    """The variables that are digits of an index along an axis of a size, the highest first, each counted from its first
    value; None where the index has no such digits."""
    if not form.is_affine:
        return None
    variables = sorted(form.variables(), key=lambda v: (form.coefficient(v), extent[v]), reverse=True)
    sizes = tuple(extent[v] for v in variables)
    exact = [form.coefficient(v) for v in variables] == row_major_steps(sizes) and math.prod(sizes) == size
    return tuple(variables) if exact else None


def _modulo(form: Affine, modulus: int, sizes: Mapping[Expr, int]) -> Affine:
    """`form % modulus`, coefficients reduced, over as few variables as may be: `(20*i + 5*j + k) % 40` is
    `20*(i % 2) + 5*j + k` where `5*j + k` stays below 20. Without `%` where nothing can wrap."""
    reduced = ((v, c if 0 <= c < modulus else c % modulus) for v, c in form.terms)
    terms = sorted(((v, c) for v, c in reduced if c), key=lambda term: term[1])
    low, unit, greatest = (
        0,
        1,
        Fraction(0),
    )  # the first `low` terms stay below `unit`, which the others are multiples of
    for count, (v, c) in enumerate(terms):
        if greatest < c and modulus % c == 0 and all(other % c == 0 for _, other in terms[count:]):
            low, unit = count, as_int(c)
        greatest += c * (sizes[v] - 1)
    if greatest < modulus:
        return Affine.of(terms)
    inner = Affine.of((v, c / unit) for v, c in terms[low:])
    wrapped = Call("mod", (inner.to_expr(), Int(modulus // unit)))
    return Affine.of([*terms[:low], (wrapped, Fraction(unit))])
