"""Sums that write one slice of a concatenation, as tensors without its axis.

`P[n, 0 : N, 4] = +(A[n, m] * B[m, 2])` and `Q[n, 2 : N, 4] = +(...)`, of which a gradient reads `P[n, i] + Q[n, i]`,
are `P[n]`, `Q[n]` and `(i == 0 ? P[n] : 0) + (i == 2 ? Q[n] : 0)`. Nothing is filled with zeros, and sums that have the
rows and the terms in common are members of one group, or share what they read.

What is added up at places in data in some columns alone, `Y[T[m], c + 64 : N, 192] = +(X[m, c])`, is a tensor of these
columns, which go to their places afterwards: so each point is one of all columns, and not each element one by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.backends.common.domain import build_domain
from tilec.backends.triton.fusion.fuse_producers import elementwise
from tilec.backends.triton.iteration.space import build_space
from tilec.backends.triton.pointwise.residues import MOST_CLASS_ELEMENTS
from tilec.ir.functions import ZERO, all_of
from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    index_variables,
    map_values,
    reads_itself,
    rebuild,
    walk,
)
from tilec.ir.rational import as_int
from tilec.ir.types import TensorType, Types, is_floating
from tilec.transforms.lower.reduce import keep_constraint_variables
from tilec.transforms.util.naming import Names


def with_numbered_parts(program: Program, types: Types) -> tuple[Program, Types, frozenset[str]]:
    """The program with such sums over fewer axes, its types, and the outputs of statements that changed."""
    places = {s.output: found for s in program.statements if (found := _places(s, program, types)) is not None}
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


def with_narrow_scatters(program: Program, types: Types) -> tuple[Program, Types, frozenset[str]]:
    """The program with sums at places in data of no more columns than they write, its types, and the outputs of
    statements that changed."""
    known, names = dict(types), Names.of(program)
    changed: set[str] = set()
    statements: list[Statement] = []
    for s in program.statements:
        columns = _columns(s, types)
        if columns:
            part = _narrow(s, columns, names.fresh(f"{s.output}_part"))
            shape, index = types[s.output].shape, tuple(Index(f"i{d}") for d in range(len(s.index or ())))
            narrow = tuple(columns[d][2] if d in columns else n for d, n in enumerate(shape))
            known[part.output] = TensorType(narrow, types[s.output].dtype)
            places = tuple((linear(e) - columns[d][1]).to_expr() if d in columns else e for d, e in enumerate(index))
            put = Statement(s.output, index, s.sizes, Pad(Access(part.output, places), ZERO), span=s.span)
            statements.append(part)
            changed |= {part.output, s.output}
            s = put
        statements.append(s)
    return replace(program, statements=tuple(statements)), known, frozenset(changed)


def _columns(s: Statement, types: Types) -> dict[int, tuple[str, int, int]]:
    """Of a sum at places in data, the axes along which it writes a part: by axis the variable, the first place, and how
    many there are."""
    plain = s.aggregation == "sum" and s.default is None and s.init is None and not reads_itself(s)
    rows = [linear(e) for e in s.index or ()]
    if not plain or not is_floating(types[s.output].dtype) or all(row.is_affine for row in rows):
        return {}
    domain, found = build_domain(s, types), dict[int, tuple[str, int, int]]()
    for d, (row, size) in enumerate(zip(rows, types[s.output].shape, strict=True)):
        v = row.variables()[0] if row.is_affine and len(row.variables()) == 1 else ""
        beside = {w for k, e in enumerate(s.index or ()) if k != d for w in index_variables(e)}
        if domain is None or not v or v in beside or row.coefficient(v) != 1 or not row.is_integral:
            continue
        first, count = domain.low[v] + as_int(row.constant), domain.extent[v]
        if 0 <= first and first + count <= size and count < size:
            found[d] = v, first, count
    return found


def _narrow(s: Statement, columns: Mapping[int, tuple[str, int, int]], output: str) -> Statement:
    rows = [linear(e) for e in s.index or ()]
    moved = {v: Affine.variable(v) + first - rows[d].constant for d, (v, first, _) in columns.items()}
    index = tuple(
        Index(columns[d][0]) if d in columns else e for d, e in enumerate(substitute_affine(s, moved).index or ())
    )
    sizes = tuple(Int(columns[d][2]) if d in columns else n for d, n in enumerate(s.sizes or ()))
    return keep_constraint_variables(replace(substitute_affine(s, moved), output=output, index=index, sizes=sizes))


def _read(s: Statement) -> list[Access]:
    return [e for e in walk(*s.roots) if isinstance(e, Access)]


def _places(s: Statement, program: Program, types: Types) -> tuple[int | None, ...] | None:
    """The number of the place along each axis, None along others; None for another form, and for sums so short that the
    program which puts the parts together computes them."""
    plain = s.default is None and s.init is None and not reads_itself(s) and s.output not in program.outputs
    rows = [linear(e) for e in s.index or ()]
    if not plain or s.aggregation != "sum":
        return None
    bare = [row.bare for row in rows if row.terms]
    if None in bare or len(set(bare)) < len(bare) or not bare or len(bare) == len(rows):
        return None
    space = build_space(s, types)
    if space is None or 1 < space.count(space.reductions) <= MOST_CLASS_ELEMENTS:
        return None
    return tuple(None if row.terms else as_int(row.constant) for row in rows)


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
