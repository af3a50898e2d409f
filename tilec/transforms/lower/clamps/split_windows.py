"""Sums over windows of an axis, as sums over windows that are an axis of their own.

Attention in shifted windows reads, and its gradients write, an axis rolled round at places of several variables:

    S[u, i, j] = +(Q[(7*u + i + 3) % N, e] * K[(7*u + j + 3) % N, e])
    DQ[(7*u + i + 3) % N, e : N, E] = +(DS[u, i, j] * K[(7*u + j + 3) % N, e])

A rolled copy, `QR[y] = Q[(y + 3) % N]`, is read at affine places, `QR[7*u + i]`, which is what products and attention
are planned for; what is written there is rolled back. Windows of two axes, `X[7*u + i, 7*v + j]`, rolled or not, are
read in a copy over (u, v) and (i, j), and written to one: places in windows are the rows of products then, while an
element for each residue of `7*u + i` is none. Windows are what all factors of a sum share; other sums, such as those of
transposed convolutions, stay as they are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
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
from tilec.transforms.util.reshapes import digits_of, reshape_indices, row_major_steps
from tilec.transforms.util.rewrite import map_reads

_LEAST_READS = 2  # of each element of a copy, in the mean


@dataclass(frozen=True)
class _Axis:
    """Of a copy: where a statement is in it, how long it is, and where an element of the whole is. `digit`: the
    variable that counts so many steps of the whole's axis, where that is in windows."""

    place: Expr
    size: int
    back: Expr
    whole: int
    digit: str = ""
    step: int = 1


@dataclass(frozen=True)
class _Copy:
    """Of a tensor, in windows or rolled round: where a statement is in it, its shape, where elements of the whole
    (`i0`, ...) are in the copy, and elements of the copy in the whole. `kind`: "" where it is the tensor itself."""

    kind: str
    place: tuple[Expr, ...]
    shape: tuple[int, ...]
    back: tuple[Expr, ...]
    forth: tuple[Expr, ...]


def split_windows(program: Program, inputs: Mapping[str, TensorType]) -> Program:
    """A flat program in which such sums are over windows. `inputs`: types of the inputs."""
    if not any(map(_has_windows, program.statements)):
        return program
    types, shapes, names = infer(program, inputs), shapes_of(program), Names.of(program)
    copies: dict[tuple[str, _Copy], str] = {}
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
            found = _copy(a.index, types[a.tensor].shape, box, shared)
            if found.place == a.index or points < _LEAST_READS * math.prod(found.shape):
                continue
            key = a.tensor, replace(found, place=())
            if found.kind and key not in copies:
                copies[key] = names.fresh(f"{a.tensor}_{found.kind}")
                statements.append(_assigned(copies[key], found.shape, Access(a.tensor, found.forth)))
            reads[a] = Access(copies.get(key, a.tensor), found.place)
        s = map_expressions(s, functools.partial(_moved, reads=reads))
        written = _copy(s.index or (), types[s.output].shape, box, shared)
        if written.kind:
            output = names.fresh(f"{s.output}_{written.kind}")
            sizes = tuple(map(Int, written.shape))
            statements.append(replace(s, output=output, index=written.place, sizes=sizes, attributes=()))
            whole = _assigned(s.output, types[s.output].shape, Access(output, written.back))
            s = replace(whole, attributes=s.attributes, span=s.span)
        else:
            s = replace(s, index=written.place)
        statements.append(s)
    return replace(program, statements=tuple(statements))


def _moved(e: Expr, reads: Mapping[Access, Access]) -> Expr:
    return map_reads(e, {a.tensor for a in reads}, lambda a: reads.get(a, a))


def _assigned(output: str, shape: Sequence[int], value: Expr) -> Statement:
    return Statement(output, tuple(Index(f"i{k}") for k in range(len(shape))), tuple(map(Int, shape)), value)


def _has_windows(s: Statement) -> bool:
    """Whether a sum reads, or is written along, an axis at a place of several variables."""
    if s.aggregation != "sum" or s.index is None or s.default is not None or reads_itself(s):
        return False
    read = (e for a in accesses_in(*s.roots) for e in a.index if isinstance(e, Call))
    return any(len(index_variables(e)) > 1 for e in (*s.index, *read))


def _shared_variables(s: Statement, types: Types) -> set[str]:
    """Variables at which all factors of a sum, of two or more, are read and its elements written."""
    factors = [{*index_variables(a)} for a in accesses_in(s.body) if is_floating(types[a.tensor].dtype)]
    return set.intersection({*index_variables(*(s.index or ()))}, *factors) if len(factors) > 1 else set()


def _copy(index: Sequence[Expr], shape: tuple[int, ...], box: Box, shared: set[str]) -> _Copy:
    """Of windows of several axes a copy with windows before the places in them, the rows of what is computed in each;
    else one that is rolled round, where axes are."""
    variables = [Index(f"i{k}") for k in range(len(shape))]
    shifts, places = _shifts(index, shape, box, shared)
    digits = [_digits(e, n, box) if {*index_variables(e)} & shared else () for e, n in zip(places, shape, strict=True)]
    apart = [v for own in digits for v in own]
    others = {v for e, own in zip(places, digits, strict=True) if not own for v in index_variables(e)}
    if sum(map(bool, digits)) < 2 or len({*apart}) < len(apart) or {*apart} & others:
        back = tuple(_rolled(v, -shift, n) for v, shift, n in zip(variables, shifts, shape, strict=True))
        return _Copy(
            "rolled" if any(shifts) else "", places, shape, back, tuple(map(_rolled, variables, shifts, shape))
        )
    axes: list[_Axis] = []
    for k, (v, e, n, own) in enumerate(zip(variables, places, shape, digits, strict=True)):
        at = _rolled(v, -shifts[k], n)
        if not own:
            axes.append(_Axis(e, n, at, k))
            continue
        sizes = tuple(_count(d, box) for d in own)
        for d, size, step, form in zip(
            own, sizes, row_major_steps(sizes), reshape_indices((n,), sizes, [v]), strict=True
        ):
            digit = canonical(replace_indices(form.to_expr(), {v.name: linear(at)}))
            axes.append(_Axis((Affine.variable(d) - box[d][0]).to_expr(), size, digit, k, d, step))
    first = next(k for k, a in enumerate(axes) if a.digit)
    inside = sorted((a for a in axes if a.digit), key=lambda a: a.digit not in shared)
    axes = [*axes[:first], *inside, *(a for a in axes[first:] if not a.digit)]
    whole = [Affine() for _ in shape]
    for k, a in enumerate(axes):
        whole[a.whole] += Affine.variable(f"i{k}", a.step)
    forth = tuple(_rolled(form.to_expr(), shift, n) for form, shift, n in zip(whole, shifts, shape, strict=True))
    place, back = tuple(a.place for a in axes), tuple(a.back for a in axes)
    return _Copy("windows", place, tuple(a.size for a in axes), back, forth)


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


def _rolled(e: Expr, by: int, n: int) -> Expr:
    return canonical(Call("mod", ((linear(e) + by).to_expr(), Int(n)))) if by else e


def _digits(place: Expr, n: int, box: Box) -> tuple[str, ...]:
    """The variables that are digits of a place along an axis of n, the highest first; none where it has no digits."""
    form = linear(place)
    if not form.is_affine or len(form.terms) < 2:
        return ()
    first = form.constant + sum(form.coefficient(v) * box[v][0] for v in form.variables())
    return digits_of(form, n, {v: _count(v, box) for v in form.variables()}) or () if first == 0 else ()


def _count(v: str, box: Box) -> int:
    return box[v][1] - box[v][0] + 1
