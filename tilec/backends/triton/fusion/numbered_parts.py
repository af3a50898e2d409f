"""Sums that write one slice of a concatenation, as tensors without its axis.

`P[n, 0 : N, 4] = +(A[n, m] * B[m, 2])` and `Q[n, 2 : N, 4] = +(...)`, of which a gradient reads `P[n, i] + Q[n, i]`,
are `P[n]`, `Q[n]` and `(i == 0 ? P[n] : 0) + (i == 2 ? Q[n] : 0)`. Nothing is filled with zeros, and sums that have the
rows and the terms in common are members of one group, or share what they read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.backends.triton.fusion.fuse_producers import elementwise
from tilec.backends.triton.iteration.space import build_space
from tilec.backends.triton.pointwise.residues import MOST_CLASS_ELEMENTS
from tilec.ir.functions import ZERO, all_of
from tilec.ir.index import linear
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    map_values,
    reads_itself,
    rebuild,
    walk,
)
from tilec.ir.rational import as_int
from tilec.ir.types import TensorType, Types
from tilec.transforms.util.naming import Names


def with_numbered_parts(program: Program, types: Types) -> tuple[Program, Types, frozenset[str]]:
    """The program with such sums over fewer axes, its types, and the outputs of statements that changed. Where nothing
    but short sums is put together, the program that does so computes them."""
    places = {s.output: found for s in program.statements if (found := _places(s, program, types)) is not None}
    short = {s.output for s in program.statements if s.output in places and _is_short(s, types)}
    for s in program.statements if short else ():
        own = {a.tensor for a in _read(s)}
        if own & short and own <= short:
            for t in own:
                places.pop(t, None)
    for s in program.statements:
        for t in {a.tensor for a in _read(s) if a.tensor in places} - _at_own_index(s, types):
            del places[t]
    if not places:
        return program, types, frozenset()
    known, names = dict(types), Names.of(program)
    parts = {t: (names.fresh(f"{t}_part"), found) for t, found in places.items()}
    changed: set[str] = set()
    statements: list[Statement] = []
    for s in program.statements:
        if s.output in places:
            output, found = parts[s.output]
            kept = [d for d, n in enumerate(found) if n is None]
            shape, index, sizes = types[s.output].shape, s.index or (), s.sizes or ()
            known[output] = TensorType(tuple(shape[d] for d in kept), types[s.output].dtype)
            s = replace(s, output=output, index=tuple(index[d] for d in kept), sizes=tuple(sizes[d] for d in kept))
            changed.add(output)
        if any(a.tensor in places for a in _read(s)):
            s = map_values(s, lambda e: _where_it_is(e, parts))
            changed.add(s.output)
        statements.append(s)
    return replace(program, statements=tuple(statements)), known, frozenset(changed)


def _read(s: Statement) -> list[Access]:
    return [e for e in walk(*s.roots) if isinstance(e, Access)]


def _places(s: Statement, program: Program, types: Types) -> tuple[int | None, ...] | None:
    """The number of the place along each axis, None along others; None for another form."""
    plain = s.default is None and s.init is None and not reads_itself(s) and s.output not in program.outputs
    rows = [linear(e) for e in s.index or ()]
    if not plain or s.aggregation != "sum":
        return None
    bare = [row.bare for row in rows if row.terms]
    if None in bare or len(set(bare)) < len(bare) or not bare or len(bare) == len(rows):
        return None
    if build_space(s, types) is None:
        return None
    return tuple(None if row.terms else as_int(row.constant) for row in rows)


def _is_short(s: Statement, types: Types) -> bool:
    space = build_space(s, types)
    return space is not None and space.count(space.reductions) <= MOST_CLASS_ELEMENTS


def _at_own_index(s: Statement, types: Types) -> set[str]:
    """What an elementwise statement reads at its own index alone."""
    if elementwise(s) is None:
        return set()
    asked = {a.tensor for e in walk(*s.roots) if isinstance(e, Inside | Pad) for a in walk(e) if isinstance(a, Access)}
    found = {a.tensor for a in _read(s)} - asked
    moved = {a.tensor for a in _read(s) if a.index != s.index or types[a.tensor].shape != types[s.output].shape}
    return found - moved


def _where_it_is(e: Expr, parts: Mapping[str, tuple[str, tuple[int | None, ...]]]) -> Expr:
    if not isinstance(e, Access) or e.tensor not in parts:
        return rebuild(e, lambda x: _where_it_is(x, parts))
    name, places = parts[e.tensor]
    found = list(zip(e.index, places, strict=True))
    here = all_of([Call("eq", (i, Int(n))) for i, n in found if n is not None])
    assert here is not None
    return Call("select", (here, Access(name, tuple(i for i, n in found if n is None)), ZERO))
