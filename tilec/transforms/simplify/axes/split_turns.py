"""Sums that read along an axis turned round, or are written along one, at places of several variables, as sums over a
turned copy. Attention in shifted windows,

    S[u, v, i, j] = +(Q[(7*u + i + 3) % N, e] * K[(7*v + j + 3) % N, e])

has `QT[y] = Q[(y + 3) % N]` and `S[u, v, i, j] = +(QT[7*u + i, e] * KT[7*v + j, e])`, whose places are affine: products
and attention are planned for these, and the gradients, which are written to them, need no sort. A place of one variable
is left to `move_outputs`, which brings it to the output's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tilec.ir.index import Affine, canonical, linear
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
    expressions,
    index_variables,
    map_expressions,
    reads_itself,
)
from tilec.ir.types import TensorType
from tilec.lattice.sets import Box, shapes_of
from tilec.transforms.lower.tighten_domains import box_in_text, interval_over
from tilec.transforms.util.naming import Names
from tilec.transforms.util.rewrite import map_reads

LEAST_READS = 4  # of each element of a copy, in the mean

_Turn = tuple[int, Expr]  # by how much an axis is turned round, and the place in the copy


def split_turns(program: Program, inputs: Mapping[str, TensorType]) -> Program:
    """A flat program with such copies. `inputs`: types of the inputs."""
    if not any(_turned_axes(e) for s in program.statements for e in _indices(s)):
        return program
    types, shapes, names = infer(program, inputs), shapes_of(program), Names.of(program)
    copies: dict[tuple[str, tuple[int, ...]], str] = {}
    statements: list[Statement] = []
    for s in program.statements:
        box = None if reads_itself(s) or s.index is None else box_in_text(s, shapes)
        if box is None or not any(map(_turned_axes, _indices(s))):
            statements.append(s)
            continue
        points = math.prod(high - low + 1 for low, high in box.values())
        reads: dict[Access, Access] = {}
        for a in accesses_in(*s.roots):
            shape = types[a.tensor].shape
            turns = _turns(a.index, shape, box)
            if not any(n for n, _ in turns) or points < LEAST_READS * math.prod(shape):
                continue
            key = a.tensor, tuple(n for n, _ in turns)
            if key not in copies:
                copies[key] = names.fresh(f"{a.tensor}_turned")
                statements.append(_copy(copies[key], a.tensor, key[1], shape))
            reads[a] = Access(copies[key], tuple(place for _, place in turns))
        s = map_expressions(s, lambda e, reads=reads: map_reads(e, {a.tensor for a in reads}, lambda a: reads.get(a, a)))
        written = _turns(s.index or (), types[s.output].shape, box)
        if s.default is not None or not any(n for n, _ in written):
            statements.append(s)
            continue
        shape, output = types[s.output].shape, names.fresh(f"{s.output}_turned")
        made = _copy(s.output, output, [-n for n, _ in written], shape)
        statements.append(replace(s, output=output, index=tuple(place for _, place in written), attributes=()))
        statements.append(replace(made, attributes=s.attributes, span=s.span))
    return replace(program, statements=tuple(statements))


def _indices(s: Statement) -> Iterable[Sequence[Expr]]:
    return [s.index or (), *(a.index for a in accesses_in(*expressions(s)))]


def _turned_axes(index: Sequence[Expr]) -> list[int]:
    """The axes of an index that are `form % n`, of several variables."""
    return [k for k, e in enumerate(index) if isinstance(e, Call) and e.function == "mod" and _several(e)]


def _several(e: Expr) -> bool:
    return len(index_variables(e)) > 1


def _turns(index: Sequence[Expr], shape: Sequence[int], box: Box) -> list[_Turn]:
    """For each axis by how much it turns, 0 where it does not, and the place there: where an axis is of the modulus,
    and the places before that are no more than that."""
    found: list[_Turn] = []
    turned = _turned_axes(index)
    for k, (e, n) in enumerate(zip(index, shape, strict=True)):
        match e:
            case Call("mod", (inner, Int(modulus))) if k in turned and modulus == n:
                form = linear(inner)
                span = interval_over(form, box) if form.is_affine and form.is_integral else None
                if span is not None and span[1] - span[0] < n and span[0] % n:
                    found.append((span[0] % n, (form - span[0]).to_expr()))
                    continue
        found.append((0, e))
    return found


def _copy(output: str, tensor: str, turns: Sequence[int], shape: Sequence[int]) -> Statement:
    """`output[y] = tensor[(y + turn) % n]` along each axis."""
    places = [Index(f"i{k}") for k in range(len(shape))]
    read = [
        canonical(Call("mod", ((Affine.variable(p.name) + t).to_expr(), Int(n)))) if t else p
        for p, t, n in zip(places, turns, shape, strict=True)
    ]
    return Statement(output, tuple(places), tuple(map(Int, shape)), Access(tensor, tuple(read)))
