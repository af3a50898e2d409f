"""Aggregates of squared distances by tiles, which the distances' kernel computes from what it has in registers.

`O[i : N] = <(S[i, j])` of distances `S[i, j : N, M] = +((X[i, d] - Y[j, d]) * (X[i, d] - Y[j, d]))` is

    O_tiles[t, i : T, N] = <(S[i, 64*t + u]), u < 64;
    O[i : N] = <(O_tiles[t, i]);  # or of larger tiles

and where the first point that holds it is asked for too, as argmin does, so is that of each tile. Nothing else may read
S, which is not stored. Columns' extrema are as rows', and both may be asked for.

So are sums of functions of distances whose other factors know rows or columns alone, as of a kernel between points,
`O[i] = +(exp(-S[i, j]) * B[j])`, over one side or both. A sum that needs another of the same distances, such as their
mean, has distances of its own, where computing them again takes less than storing them. What is computed of each of
them, as the gradient of a kernel is, may be stored beside its sums.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.chains.chain import ChainKernel, with_reads
from tilec.backends.common.units import by_unit, ordered
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
from tilec.ir.functions import RANDOM
from tilec.ir.index import Affine, distinct_variables, replace_indices
from tilec.ir.infer import expression_type
from tilec.ir.program import (
    Access,
    Call,
    Constraint,
    Expr,
    Float,
    Index,
    Int,
    Program,
    Statement,
    accesses_in,
    index_variables,
    map_values,
    reads,
    variables_of,
    walk,
)
from tilec.ir.types import Types
from tilec.lattice.sets import sizes_of
from tilec.transforms.simplify.sums_at_places import positions_in
from tilec.transforms.util.naming import Names, all_variables, fresh_variable
from tilec.transforms.util.plain import is_elementary, is_pure, is_unmasked
from tilec.transforms.util.rewrite import body_at, map_reads

MOST_TERMS_AGAIN = 32  # of distances that are computed more than once
LEAST_TILES = 16  # along the variable that is taken: extrema of tiles are few beside their elements


def with_tile_extrema(
    program: Program, types: Types, kernels: Collection[ChainKernel]
) -> tuple[Program, Types, Mapping[str, tuple[TileExtremum, ...]]]:
    """The program with such aggregates, all types, and what the tiles of each tensor of distances are asked for, by its
    name. `kernels`: of chains, whose statements stay as they are."""
    kept = with_reads(program, kernels)
    barred = {s.output for kernel in kernels for s in kernel.statements}
    known, names = dict(types), Names.of(program)
    tiled: dict[str, tuple[TileExtremum, ...]] = {}
    statements = {s.output: s for s in program.statements}
    for s in program.statements:
        found = _readers(s, kept, types)
        block = _block(found, types[s.output].shape) if found else None
        if block is None or not barred.isdisjoint((s.output, *(r.statement.output for r in found))):
            continue
        for number, readers in enumerate(_levels(found, kept)):
            own = replace(s, output=names.fresh(s.output)) if number else s
            statements[own.output], known[own.output] = own, types[s.output]
            made: dict[str, TileExtremum] = {}
            for r in readers:
                output = r.statement.output
                if r.axis is None:
                    made[output] = TileExtremum(r.statement, None, (), block, r.statement.body, r.read)
                else:
                    tile = _of_tiles(r, made.get(r.extremum), names.fresh(f"{output}_tiles"), block, types)
                    made[output] = tile
                    known[tile.statement.output] = replace(types[output], shape=sizes_of(tile.statement))
                    statements[output] = _over_tiles(r, tile, made.get(r.extremum))
                whole = _of(made[output].statement, s, own)
                made[output] = replace(made[output], statement=whole)
                statements[whole.output] = whole
            tiled[own.output] = tuple(made.values())
        stored = {r.statement.output for r in found if r.axis is None}
        for name in _maps(s, kept, types).keys() - stored:
            del statements[name]
    order = _ordered(statements, tiled, kernels) if tiled else None
    if order is None:
        return program, types, {}
    return replace(program, statements=tuple(order)), known, tiled


def _ordered(
    statements: Mapping[str, Statement], tiled: Mapping[str, Sequence[TileExtremum]], kernels: Collection[ChainKernel]
) -> list[Statement] | None:
    """The statements, distances next to what their tiles are asked for, after all that they read."""
    unit_of: dict[str, object] = {s.output: kernel.outputs for kernel in kernels for s in kernel.statements}
    read = {name: reads(s) for name, s in statements.items()}
    read |= {s.output: kernel.reads for kernel in kernels for s in kernel.statements}
    unit_of |= {name: d for d, tiles in tiled.items() for name in (d, *(t.statement.output for t in tiles))}
    units = list(by_unit(Program(None, (), (), tuple(statements.values())), unit_of).values())
    order = ordered(units, read)
    return None if order is None else [statements[name] for k in order for name in units[k]]


def _of(tile: Statement, s: Statement, own: Statement) -> Statement:
    """The statement, which reads distances of its own."""
    return map_values(tile, lambda e: map_reads(e, {s.output}, lambda a: Access(own.output, a.index)))


@dataclass(frozen=True)
class _Reader:
    """An aggregation of distances over the variable `taken` of one side at least, or the first point that
    holds that of `extremum`; `read` is where it reads them, at variables of its own, `axis` where `taken` stands there,
    and `places` where those of a tile's aggregates do. Without `taken`: what is stored element by element."""

    statement: Statement
    read: Access
    taken: str = ""
    axis: int | None = None
    places: tuple[int, ...] = ()
    extremum: str = ""


def _readers(s: Statement, program: Program, types: Types) -> list[_Reader]:
    """All that read distances, or what is computed of each, if all are such aggregates, extrema before the points that
    hold them, and at most one tensor of what is computed of each is read otherwise; else none."""
    if s.aggregation != "sum" or s.output in program.outputs or len(types[s.output].shape) < 2:
        return []
    maps = _maps(s, program, types)
    values = {name: m.statement for name, m in maps.items()}
    readers = {r.output: r for name in (s.output, *maps) for r in program.readers(name) if r.output not in maps}
    whole = {name: _through(r, values) for name, r in readers.items()}
    extrema = {name: e for name, r in whole.items() if (e := _aggregate(r, s.output, types)) is not None}
    others = {name: r for name, r in readers.items() if name not in extrema}
    firsts = {name: f for name, r in others.items() if (f := _first(r, s.output, extrema, types)) is not None}
    others = {name: r for name, r in others.items() if name not in firsts}
    stored = {n for n in maps if n in program.outputs or any(n in reads(r) for r in others.values())}
    if not extrema or len(stored) > 1 or any(s.output in reads(r) for r in others.values()):
        return []
    space = build_space(s, types)
    found = None
    if space is not None:
        found = recognise_distances(space, StridedView(s, types, contiguous_strides(types)))
    names = distinct_variables(s.index)
    if found is None or names is None:
        return []
    sides = (found.dot.rows, found.dot.columns)
    if not all((names[r.axis],) in sides for r in (*extrema.values(), *firsts.values()) if r.axis is not None):
        return []
    asked = [*(maps[n] for n in stored), *extrema.values(), *firsts.values()]
    again = (len(_levels(asked, program)) - 1) * found.space.count(found.dot.summed)
    return asked if again <= MOST_TERMS_AGAIN else []


def _maps(s: Statement, program: Program, types: Types) -> dict[str, _Reader]:
    """What is computed of each of the distances, of what is computed of them so as well, by its name."""
    found: dict[str, _Reader] = {}
    pending = [s.output]
    while pending:
        for r in program.readers(pending.pop(0)):
            values = {name: m.statement for name, m in found.items()}
            m = _map(_through(r, values), s.output, types) if r.output not in found else None
            if m is not None:
                found[r.output] = m
                pending.append(r.output)
    return found


def _through(r: Statement, values: Mapping[str, Statement]) -> Statement:
    """The statement, which computes what it reads of these."""
    return map_values(r, lambda e: map_reads(e, values, lambda a: body_at(values[a.tensor], a.index)))


def _map(r: Statement, distances: str, types: Types) -> _Reader | None:
    """What is computed of each of the distances and of what knows less, element by element."""
    read = next((a for a in accesses_in(r.body) if a.tensor == distances), None)
    own = None if read is None else distinct_variables(read.index)
    if read is None or own is None or r.aggregation not in ("assign", "sum") or not is_pure(r) or not is_unmasked(r):
        return None
    extent = dict(zip(own, types[distances].shape, strict=True))
    names = distinct_variables(r.index)
    if names is None or {*names} != {*own} or {*variables_of(r)} != {*own} or types[r.output].dtype != "float32":
        return None
    alike = types[r.output].shape == tuple(extent[v] for v in names)
    return _Reader(r, read) if alike and _is_of_sides(r.body, read, types) else None


def _levels(asked: Sequence[_Reader], program: Program) -> list[list[_Reader]]:
    """Those that need none of the others but the extrema that they look for, then those that need these, and so on."""
    level: dict[str, int] = {}
    own = {r.statement.output: r for r in asked}
    for s in program.statements:
        if s.output in own and own[s.output].extremum:
            level[s.output] = level[own[s.output].extremum]
            continue
        needed = max(
            (level[n] for n in reads(own[s.output].statement if s.output in own else s) if n in level), default=-1
        )
        if s.output in own:
            level[s.output] = needed + 1
        elif needed >= 0:
            level[s.output] = needed
    return [found for k in sorted({*level.values()}) if (found := [r for r in asked if level[r.statement.output] == k])]


def _block(asked: Sequence[_Reader], shape: Sequence[int]) -> Config | None:
    """The tiles of which these are asked for; None where that would be of too few."""
    shortest, side = min(shape[r.axis] for r in asked if r.axis is not None), min(DISTANCE_BLOCK.bm, DISTANCE_BLOCK.bn)
    most = EXTREMA_BLOCK.bm
    busy = math.prod(shape) >= WAVES * MULTIPROCESSORS * most**2
    extrema = all(r.axis is not None and r.statement.aggregation != "sum" and not r.extremum for r in asked)
    if busy and shortest >= LEAST_TILES * most and extrema:
        return EXTREMA_BLOCK
    return replace(DISTANCE_BLOCK, bm=side, bn=side) if shortest >= LEAST_TILES * side else None


def _aggregate(r: Statement, distances: str, types: Types) -> _Reader | None:
    """An extremum of distances over one variable, or a sum of functions of them and of what knows less."""
    read = next((a for a in accesses_in(r.body) if a.tensor == distances), None)
    if read is None or not is_pure(r) or not is_unmasked(r) or types[r.output].dtype != "float32":
        return None
    if r.body != read and (r.aggregation != "sum" or not _is_of_sides(r.body, read, types)):
        return None
    if r.aggregation not in ("max", "min", "sum") or {*variables_of(r)} != {*index_variables(*read.index)}:
        return None
    return _reader(r, read, distances, types)


def _is_of_sides(e: Expr, read: Access, types: Types) -> bool:
    """Whether an expression is made of this element and of others that know fewer of its variables, at all points."""
    extent = dict(zip(read.index, types[read.tensor].shape, strict=True))
    others = {a for a in accesses_in(e) if a != read}
    places = [(i, n) for a in others for i, n in zip(a.index, types[a.tensor].shape, strict=True)]
    bare = all(i.value < n if isinstance(i, Int) else extent.get(i) == n for i, n in places)
    known = all({*read.index} - {*a.index} and a.tensor != read.tensor for a in others)
    calls = [x.function for x in walk(e) if isinstance(x, Call)]
    plain = is_elementary(walk(e)) and not positions_in(e) and not {"eq", "ne", *RANDOM} & {*calls}
    return bare and known and plain and expression_type(e, types).dtype == "float32"


def _first(r: Statement, distances: str, extrema: Mapping[str, _Reader], types: Types) -> _Reader | None:
    """The least or the greatest number of a point that holds an extremum, or is NaN, or how many do."""
    match r.guard:
        case Call("or", (Call("eq", (Access() as own, Access() as extremum)), Call("ne", (x, y)))) if own == x == y:
            pass
        case _:
            return None
    if r.aggregation not in ("min", "max", "sum") or not is_pure(r) or r.constraints or extremum.index != r.index:
        return None
    found, e = _reader(r, own, distances, types), extrema.get(extremum.tensor)
    number = r.body.args[0] if isinstance(r.body, Call) and r.body.function in ("int32", "int64", "float32") else r.body
    if found is None or e is None or (found.axis, found.places) != (e.axis, e.places):
        return None
    asked = Float(1.0) if r.aggregation == "sum" else Index(found.taken)
    return replace(found, extremum=extremum.tensor) if number == asked else None


def _reader(r: Statement, read: Access, distances: str, types: Types) -> _Reader | None:
    """A statement over all points of a tensor, each of which it reads, one of whose variables it takes; a sum may take
    others too."""
    names, own = distinct_variables(read.index), distinct_variables(r.index)
    if read.tensor != distances or names is None or own is None or not {*own} < {*names}:
        return None
    *more, axis = (d for d, v in enumerate(names) if v not in own)
    shape = types[distances].shape
    if more and r.aggregation != "sum" or types[r.output].shape != tuple(shape[names.index(v)] for v in own):
        return None
    kept = tuple(read.index.index(Index(v)) for v in own)
    if more:
        kept = tuple(d for d in range(len(names)) if d != axis)
    return _Reader(r, read, names[axis], axis, kept)


def _of_tiles(r: _Reader, extremum: TileExtremum | None, output: str, block: Config, types: Types) -> TileExtremum:
    """The same of each tile."""
    s = r.statement
    used, side = set(all_variables(s)), block.bm
    tile, within = fresh_variable("t", used), fresh_variable("u", used)
    place = {r.taken: Affine.variable(tile, side) + Affine.variable(within)}
    shape = types[r.read.tensor].shape
    assert r.axis is not None, "a variable is taken"
    index = (Index(tile), *(r.read.index[d] for d in r.places))
    sizes = tuple(map(Int, (-(-shape[r.axis] // side), *(shape[d] for d in r.places))))

    def moved(e: Expr) -> Expr:
        if extremum is not None:
            e = map_reads(e, {r.extremum}, lambda a: Access(extremum.statement.output, (Index(tile), *a.index)))
        return replace_indices(e, place)

    made = replace(map_values(s, moved), output=output, index=index, sizes=sizes)
    made = replace(made, constraints=(Constraint(Index(within), Int(side)),))
    return TileExtremum(made, r.axis, r.places, block, s.body, r.read, extremum.statement.output if extremum else "")


def _over_tiles(r: _Reader, tile: TileExtremum, extremum: TileExtremum | None) -> Statement:
    """The same of what the tiles have."""
    index, guard = tile.statement.index or (), r.statement.guard
    if extremum is not None and guard is not None:
        least = Access(extremum.statement.output, index)
        guard = map_reads(guard, {r.read.tensor}, lambda a: least)
    return replace(r.statement, body=Access(tile.statement.output, index), guard=guard)
