"""Extrema of squared distances by tiles, which the distances' kernel computes from what it has in registers.

`O[i : N] = <(S[i, j])` of distances `S[i, j : N, M] = +((X[i, d] - Y[j, d]) * (X[i, d] - Y[j, d]))` is

    O_tiles[t, i : T, N] = <(S[i, 64*t + u]), u < 64;
    O[i : N] = <(O_tiles[t, i]);  # or of larger tiles

and where the first point that holds it is asked for too, as argmin does, so is that of each tile. Nothing else may read
S, which is not stored. Columns' extrema are as rows', and both may be asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import build_space
from tilec.backends.triton.matmul.blocks import WAVES, Config
from tilec.backends.triton.matmul.distances import (
    DISTANCE_BLOCK,
    EXTREMA_BLOCK,
    TileExtremum,
    recognise_distances,
)
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.backends.triton.plan.sizes import contiguous_strides
from tilec.ir.index import Affine, distinct_variables, replace_indices
from tilec.ir.program import Access, Call, Constraint, Expr, Index, Int, Program, Statement, map_values
from tilec.ir.types import Types
from tilec.lattice.sets import sizes_of
from tilec.transforms.util.naming import Names, all_variables, fresh_variable
from tilec.transforms.util.plain import is_pure, is_unmasked
from tilec.transforms.util.rewrite import map_reads

LEAST_TILES = 16  # along the variable that is taken: extrema of tiles are few beside their elements


def with_tile_extrema(program: Program, types: Types) -> tuple[Program, Types, Mapping[str, tuple[TileExtremum, ...]]]:
    """The program with such extrema, all types, and what the tiles of each tensor of distances are asked for, by its
    name."""
    known, names = dict(types), Names.of(program)
    tiled: dict[str, tuple[TileExtremum, ...]] = {}
    statements: dict[str, Statement] = {s.output: s for s in program.statements}
    order: list[str] = []
    for s in program.statements:
        order.append(s.output)
        found = _readers(s, program, types)
        block = _block(found, types[s.output].shape) if found else None
        if block is None:
            continue
        made: dict[str, TileExtremum] = {}
        for r in found:
            tile = _of_tiles(r, made.get(r.extremum), names.fresh(f"{r.statement.output}_tiles"), block, types)
            made[r.statement.output], t = tile, tile.statement
            known[t.output] = replace(types[r.statement.output], shape=sizes_of(t))
            statements[t.output], statements[r.statement.output] = t, _over_tiles(r, tile, made.get(r.extremum))
            order.append(t.output)
        tiled[s.output] = tuple(made.values())
    if not tiled:
        return program, types, {}
    return replace(program, statements=tuple(statements[name] for name in order)), known, tiled


@dataclass(frozen=True)
class _Reader:
    """An extremum of distances over the variable `taken` of one side, or the first point that holds that of
    `extremum`; `read` is where it reads them, at variables of its own, and `axis` where `taken` stands there."""

    statement: Statement
    read: Access
    taken: str
    axis: int
    extremum: str = ""


def _readers(s: Statement, program: Program, types: Types) -> list[_Reader]:
    """All that read distances, if each is such a statement, extrema before the points that hold them; else none."""
    readers = program.readers(s.output)
    if s.aggregation != "sum" or s.output in program.outputs or len(types[s.output].shape) < 2:
        return []
    extrema = {e.statement.output: e for r in readers if (e := _extremum(r, s.output, types)) is not None}
    others = [r for r in readers if r.output not in extrema]
    firsts = [f for r in others if (f := _first(r, s.output, extrema, types)) is not None]
    if not readers or len(firsts) < len(others):
        return []
    space = build_space(s, types)
    found = None
    if space is not None:
        found = recognise_distances(space, StridedView(s, types, contiguous_strides(types)))
    names = distinct_variables(s.index)
    if found is None or names is None:
        return []
    sides = (found.dot.rows, found.dot.columns)
    asked = [*extrema.values(), *firsts]
    return asked if all((names[r.axis],) in sides for r in asked) else []


def _block(asked: Sequence[_Reader], shape: Sequence[int]) -> Config | None:
    """The tiles of which these are asked for; None where that would be of too few."""
    shortest, side = min(shape[r.axis] for r in asked), min(DISTANCE_BLOCK.bm, DISTANCE_BLOCK.bn)
    most = EXTREMA_BLOCK.bm
    busy = math.prod(shape) >= WAVES * MULTIPROCESSORS * most**2
    if busy and shortest >= LEAST_TILES * most and not any(r.extremum for r in asked):
        return EXTREMA_BLOCK
    return replace(DISTANCE_BLOCK, bm=side, bn=side) if shortest >= LEAST_TILES * side else None


def _extremum(r: Statement, distances: str, types: Types) -> _Reader | None:
    plain = r.aggregation in ("max", "min") and is_pure(r) and is_unmasked(r)
    return _reader(r, r.body, distances, types) if plain and isinstance(r.body, Access) else None


def _first(r: Statement, distances: str, extrema: Mapping[str, _Reader], types: Types) -> _Reader | None:
    """The least number of a point that holds an extremum, or is NaN."""
    match r.guard:
        case Call("or", (Call("eq", (Access() as own, Access() as extremum)), Call("ne", (x, y)))) if own == x == y:
            pass
        case _:
            return None
    if r.aggregation != "min" or not is_pure(r) or r.constraints or extremum.index != r.index:
        return None
    found, e = _reader(r, own, distances, types), extrema.get(extremum.tensor)
    number = r.body.args[0] if isinstance(r.body, Call) and r.body.function in ("int32", "int64") else r.body
    if found is None or e is None or found.axis != e.axis or _places(found) != _places(e):
        return None
    return replace(found, extremum=extremum.tensor) if number == Index(found.taken) else None


def _reader(r: Statement, read: Access, distances: str, types: Types) -> _Reader | None:
    """A statement over all points of a tensor, each of which it reads, one of whose variables it takes."""
    names, own = distinct_variables(read.index), distinct_variables(r.index)
    if read.tensor != distances or names is None or own is None or len(own) != len(names) - 1 or not {*own} < {*names}:
        return None
    (axis,) = (d for d, v in enumerate(names) if v not in own)
    shape = types[distances].shape
    if types[r.output].shape != tuple(shape[names.index(v)] for v in own):
        return None
    return _Reader(r, read, names[axis], axis)


def _places(r: _Reader) -> tuple[int, ...]:
    """The dimensions of the distances that those of the statement are."""
    return tuple(r.read.index.index(e) for e in r.statement.index or ())


def _of_tiles(r: _Reader, extremum: TileExtremum | None, output: str, block: Config, types: Types) -> TileExtremum:
    """The same of each tile."""
    s = r.statement
    used, side = set(all_variables(s)), block.bm
    tile, within = fresh_variable("t", used), fresh_variable("u", used)
    place = {r.taken: Affine.variable(tile, side) + Affine.variable(within)}
    index = (Index(tile), *(s.index or ()))
    sizes = tuple(map(Int, (-(-types[r.read.tensor].shape[r.axis] // side), *types[s.output].shape)))

    def moved(e: Expr) -> Expr:
        if extremum is not None:
            e = map_reads(e, {r.extremum}, lambda a: Access(extremum.statement.output, (Index(tile), *a.index)))
        return replace_indices(e, place)

    made = replace(map_values(s, moved), output=output, index=index, sizes=sizes)
    made = replace(made, constraints=(Constraint(Index(within), Int(side)),))
    return TileExtremum(made, r.axis, _places(r), block, "" if extremum is None else extremum.statement.output)


def _over_tiles(r: _Reader, tile: TileExtremum, extremum: TileExtremum | None) -> Statement:
    """The same of what the tiles have."""
    index, guard = tile.statement.index or (), r.statement.guard
    if extremum is not None and guard is not None:
        least = Access(extremum.statement.output, index)
        guard = map_reads(guard, {r.read.tensor}, lambda a: least)
    return replace(r.statement, body=Access(tile.statement.output, index), guard=guard)
