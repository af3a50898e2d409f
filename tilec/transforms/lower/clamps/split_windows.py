"""Sums over windows of an axis, as sums over windows that are an axis of their own.

Attention in shifted windows reads, and its gradients write, an axis rolled round at places of several variables:

    S[u, i, j] = +(Q[(7*u + i + 3) % N, e] * K[(7*u + j + 3) % N, e])
    DQ[(7*u + i + 3) % N, e : N, E] = +(DS[u, i, j] * K[(7*u + j + 3) % N, e])

A rolled copy, `QR[y] = Q[(y + 3) % N]`, is read at affine places, `QR[7*u + i]`, which is what products and attention
are planned for; what is written there is rolled back. What is written in windows of two axes, `O[7*u + i, 7*v + j]`,
rolled or not, is computed over (u, v) and (i, j) and copied to its places: an element for each residue of these is no
product of matrices. Windows are what all factors of a sum share; other sums, such as those of transposed convolutions,
stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.ir.index import Affine, canonical, linear, replace_indices
from tilec.ir.infer import infer
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Index,
    Int,
    Program,
    Statement,
    accesses_in,
    index_variables,
    map_expressions,
    reads_itself,
)
from tilec.ir.types import TensorType, Types, is_floating
from tilec.lattice.sets import Box, shapes_of
from tilec.transforms.lower.tighten_domains import box_in_text, interval_over
from tilec.transforms.util.naming import Names
from tilec.transforms.util.reshapes import reshape_indices, row_major_steps
from tilec.transforms.util.rewrite import map_reads

_LEAST_READS = 2  # of each element of a copy, in the mean


@dataclass(frozen=True)
class _Axis:
    """Of a sum over windows: at what it is written, how long it is, and at what it is read for an element of the whole.
    `digit`: the variable, where it is one digit of several in a place."""

    written: Expr
    size: int
    read: Expr
    digit: str = ""


def split_windows(program: Program, inputs: Mapping[str, TensorType]) -> Program:
    """A flat program in which such sums are over windows. `inputs`: types of the inputs."""
    if not any(map(_has_windows, program.statements)):
        return program
    types, shapes, names = infer(program, inputs), shapes_of(program), Names.of(program)
    copies: dict[tuple[str, tuple[int, ...]], str] = {}
    statements: list[Statement] = []
    for s in program.statements:
        box = box_in_text(s, shapes) if _has_windows(s) else None
        shared = _shared_variables(s, types)
        if box is None or not shared:
            statements.append(s)
            continue
        reads: dict[Access, Access] = {}
        points = math.prod(high - low + 1 for low, high in box.values())
        for a in accesses_in(*s.roots):
            shape, (shifts, place) = types[a.tensor].shape, _shifts(a.index, types[a.tensor].shape, box, shared)
            if place == a.index or points < _LEAST_READS * math.prod(shape):
                continue
            if any(shifts) and (a.tensor, shifts) not in copies:
                copies[a.tensor, shifts] = names.fresh(f"{a.tensor}_rolled")
                statements.append(_rolled_copy(copies[a.tensor, shifts], a.tensor, shifts, shape))
            reads[a] = Access(copies.get((a.tensor, shifts), a.tensor), place)
        s = map_expressions(
            s, lambda e, reads=reads: map_reads(e, {a.tensor for a in reads}, lambda a: reads.get(a, a))
        )
        statements += _written(s, types[s.output].shape, box, shared, names)
    return replace(program, statements=tuple(statements))


def _has_windows(s: Statement) -> bool:
    """Whether a sum reads, or is written along, an axis at a place of several variables."""
    if s.aggregation != "sum" or s.index is None or s.default is not None or reads_itself(s):
        return False
    read = (e for a in accesses_in(*s.roots) for e in a.index if isinstance(e, Call))
    return any(len(index_variables(e)) > 1 for e in (*s.index, *read))


def _shared_variables(s: Statement, types: Types) -> set[str]:
    """Variables at which all factors of a sum are read, of two or more."""
    factors = [{*index_variables(a)} for a in accesses_in(s.body) if is_floating(types[a.tensor].dtype)]
    return set.intersection(*factors) if len(factors) > 1 else set()


def _shifts(
    index: Sequence[Expr], shape: Sequence[int], box: Box, shared: set[str]
) -> tuple[tuple[int, ...], tuple[Expr, ...]]:
    """For each axis by how much windows in it are rolled round, 0 where they are not, and the place without that."""
    shifts, places = [0] * len(shape), list(index)
    for k, (e, n) in enumerate(zip(index, shape, strict=True)):
        match e:
            case Call("mod", (inner, Int(modulus))) if modulus == n and {*index_variables(e)} & shared:
                form = linear(inner)
                span = interval_over(form, box) if form.is_affine and len(form.terms) > 1 else None
                if span is not None and span[1] - span[0] < n:
                    shifts[k], places[k] = span[0] % n, (form - span[0]).to_expr()
    return tuple(shifts), tuple(places)


def _rolled_copy(output: str, tensor: str, shifts: Sequence[int], shape: Sequence[int]) -> Statement:
    """`output[y] = tensor[(y + shift) % n]` along each axis."""
    variables = [Index(f"i{k}") for k in range(len(shape))]
    read = tuple(map(_rolled_at, variables, shifts, shape))
    return Statement(output, tuple(variables), tuple(map(Int, shape)), Access(tensor, read))


def _rolled_at(v: Index, by: int, n: int) -> Expr:
    return canonical(Call("mod", ((Affine.variable(v.name) + by).to_expr(), Int(n)))) if by else v


def _written_rolled(
    s: Statement, shape: tuple[int, ...], shifts: Sequence[int], places: tuple[Expr, ...], names: Names
) -> Iterator[Statement]:
    """The sum at places that nothing rolls round, and the copy that does."""
    if any(shifts):
        output = names.fresh(f"{s.output}_rolled")
        yield replace(s, output=output, index=places, attributes=())
        back = _rolled_copy(s.output, output, [-n for n in shifts], shape)
        yield replace(back, attributes=s.attributes, span=s.span)
    else:
        yield replace(s, index=places)


def _written(s: Statement, shape: tuple[int, ...], box: Box, shared: set[str], names: Names) -> Iterator[Statement]:
    """The sum, over windows where it is written in those of several axes, and what brings these to their places.
    Windows come before the places in them, which are the rows of what is computed in each."""
    shifts, places = _shifts(s.index or (), shape, box, shared)
    digits = [_digits(e, n, box) if {*index_variables(e)} & shared else [] for e, n in zip(places, shape, strict=True)]
    apart = [v for own in digits for v in own]
    others = {v for e, own in zip(places, digits, strict=True) if not own for v in index_variables(e)}
    if sum(map(bool, digits)) < 2 or len({*apart}) < len(apart) or {*apart} & others:
        yield from _written_rolled(s, shape, shifts, places, names)
        return
    axes: list[_Axis] = []
    variables = [Index(f"i{k}") for k in range(len(shape))]
    for v, e, n, own, shift in zip(variables, places, shape, digits, shifts, strict=True):
        at = _rolled_at(v, -shift, n)
        sizes = tuple(_count(d, box) for d in own)
        forms = reshape_indices((n,), sizes, [v]) if own else []
        read = [canonical(replace_indices(form.to_expr(), {v.name: linear(at)})) for form in forms]
        written = [(Affine.variable(d) - box[d][0]).to_expr() for d in own]
        axes += map(_Axis, written, sizes, read, own) if own else [_Axis(e, n, at)]
    first = next(k for k, a in enumerate(axes) if a.digit)
    inside = sorted((a for a in axes if a.digit), key=lambda a: a.digit not in shared)
    axes = [*axes[:first], *inside, *(a for a in axes[first:] if not a.digit)]
    windows = names.fresh(f"{s.output}_windows")
    index, sizes = tuple(a.written for a in axes), tuple(Int(a.size) for a in axes)
    yield replace(s, output=windows, index=index, sizes=sizes, attributes=())
    value = Access(windows, tuple(a.read for a in axes))
    yield Statement(s.output, tuple(variables), tuple(map(Int, shape)), value, attributes=s.attributes, span=s.span)


def _digits(place: Expr, n: int, box: Box) -> list[str]:
    """The variables that are digits of a place along an axis of n, the highest first; none where it has no digits."""
    form = linear(place)
    if not form.is_affine or len(form.terms) < 2:
        return []
    variables = sorted(form.variables(), key=form.coefficient, reverse=True)
    sizes = tuple(_count(v, box) for v in variables)
    first = form.constant + sum(form.coefficient(v) * box[v][0] for v in variables)
    exact = [form.coefficient(v) for v in variables] == row_major_steps(sizes)
    return variables if exact and first == 0 and math.prod(sizes) == n else []


def _count(v: str, box: Box) -> int:
    return box[v][1] - box[v][0] + 1
