"""Elements that a program writes at each place of its block: one formula each, and the points of its sum."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.box_values import resolved, truth_over
from tilec.backends.common.domain import Domain
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.pointwise.unrolled import Element, inside_tile, tiled
from tilec.ir.functions import is_zero
from tilec.ir.index import Affine, substitute_affine
from tilec.ir.program import Call, Constraint, Expr, Int, Statement
from tilec.ir.types import FLOATS, Types
from tilec.transforms.util.naming import all_variables, fresh_variable


@dataclass(frozen=True)
class Residues:
    """`periods`: by output variable, after how many values its formulas are the same again; other residues are those
    of the space. `joined`: how many of the elements are stored side by side; `last`: the variable that counts them."""

    periods: Mapping[str, int]
    elements: int
    joined: int = 1
    last: str = ""


@dataclass(frozen=True)
class WrittenOut:
    """What a program writes at each place of `space`: `elements`, and for each point the element that it belongs to,
    and the statement there. `joined`: the elements where those that are stored side by side are one, whose place among
    them the last variable names."""

    space: Space
    elements: tuple[Element, ...]
    points: tuple[tuple[int, Statement], ...]
    joined: tuple[Element, ...] = ()


def class_elements(found: Residues, space: Space, types: Types) -> WrittenOut:
    """All classes, one formula each."""
    s = space.statement
    tiles: dict[str, tuple[str, int]] = {}
    for v, count in found.periods.items():
        tiles[v] = fresh_variable(v, all_variables(s) | {tile for tile, _ in tiles.values()}), count
    own = _joint_box(space)
    places = tiled(own, tiles)
    box = places.box(0)
    elements: list[Element] = []
    points: list[tuple[int, Statement]] = []
    joined: list[Element] = []
    last = found.last
    for n, (change, limits, summed) in enumerate(_elements(space, own, tiles, last)):
        elements.append(Element(substitute_affine(s, change), limits))
        at = (substitute_affine(s, {**change, **p}) for p in summed)
        visited = (p for p in at if p.guard is None or truth_over(p.guard, box, types) is not False)
        written = (resolved_statement(p, box, types) for p in visited)
        points += [(n, p) for p in written if s.aggregation != "sum" or not _vanishes(p.body)]
        if found.joined > 1 and n % found.joined == 0:
            together = {**change, last: change[last] + Affine.variable(last)}
            if last in tiles:
                end = Constraint((together[last] - own.low[0][last]).to_expr(), Int(own.extent[0][last]))
                limits = (*limits[:-1], end)
            joined.append(Element(substitute_affine(s, together), limits))
    if found.joined > 1:
        low, extent = ({**of, last: n} for of, n in ((places.low[0], 0), (places.extent[0], found.joined)))
        places = replace(places, low=(low,), extent=(extent,))
    return WrittenOut(places, tuple(elements), tuple(points), tuple(joined))


def _joint_box(space: Space) -> Space:
    """The box of all classes, without their residues and what is summed."""
    outputs = tuple(v for v in space.outputs if v not in space.steps)
    low = {v: min(a[v] for a in space.low) for v in outputs}
    ends = {v: max(a[v] + e[v] for a, e in zip(space.low, space.extent, strict=True)) for v in outputs}
    extent = {v: ends[v] - low[v] for v in outputs}
    return replace(
        space, outputs=outputs, reductions=(), residues=(), classes=({},), low=(low,), extent=(extent,), valid=(),
        stored=(), steps=frozenset(),
    )  # fmt: skip


_Values = dict[str, Affine]


def _elements(
    space: Space, own: Space, tiles: Mapping[str, tuple[str, int]], last: str
) -> Iterator[tuple[_Values, tuple[Constraint, ...], list[_Values]]]:
    """For each element at a place: what variables are there, the conditions for it to be there, and what the summed
    variables are at each of its points. `last`: whose values come one after the other."""
    ordered = sorted((v for v in space.outputs if v in space.steps), key=lambda v: v == last)
    steps = [(v, range(space.extent[0][v])) for v in ordered]
    places = [(v, range(count)) for v, (_, count) in tiles.items()]
    for residues, low, extent in zip(space.classes, space.low, space.extent, strict=True):
        limits = [
            Constraint((Affine.variable(v) - low[v]).to_expr(), Int(extent[v]))
            for v in own.outputs
            if (low[v], extent[v]) != (own.low[0][v], own.extent[0][v])
        ]
        ranges = [(v, range(low[v], low[v] + extent[v])) for v in space.reductions]
        points = [{v: _number(n) for v, n in p.items()} for p in _product(ranges)]
        for values, offsets in itertools.product(_product(steps), _product(places)):
            change = {v: _number(n) for v, n in {**residues, **values}.items()}
            inside = []
            for v, u in offsets.items():
                change[v] = Affine.variable(*tiles[v]) + (own.low[0][v] + u)
                inside.append(inside_tile(*tiles[v], u, own.extent[0][v]))
            yield change, (*limits, *inside), points


def _product(ranges: Sequence[tuple[str, range]]) -> Iterator[dict[str, int]]:
    names = [v for v, _ in ranges]
    for values in itertools.product(*(r for _, r in ranges)):
        yield dict(zip(names, values, strict=True))


def _number(n: int) -> Affine:
    return Affine.of((), n)


# one class's formula


def _vanishes(e: Expr) -> bool:
    return is_zero(e) or (isinstance(e, Call) and e.function in ("add", *FLOATS) and all(map(_vanishes, e.args)))


def resolved_statement(s: Statement, box: Domain, types: Types) -> Statement:
    """The statement without the branches that are taken nowhere in the box."""
    guard = None if s.guard is None or truth_over(s.guard, box, types) else resolved(s.guard, box, types)
    return replace(s, guard=guard, body=resolved(s.body, box, types))
