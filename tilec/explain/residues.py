"""Residue classes, as `defract` makes them: which elements of an output share a program without divisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from itertools import product
from math import prod

import numpy as np

from tilec.explain.drawing import Marked, grid
from tilec.explain.reach import Reached, TilePoints, dimension_names, middle, tile_points
from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.program import Statement, accesses_in, index_variables
from tilec.language import show_statement
from tilec.lattice.sets import sizes_of
from tilec.transforms.util.roles import roles

COLORS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#ff9da7", "#9c755f")
LISTED = 16  # classes that are listed one by one
PERIODS = 3  # of classes along each dimension that are drawn


@dataclass(frozen=True)
class ResidueClass:
    """One class: the values of the residues, the statement with these put in, the valid points of each element of a
    class away from the border."""

    residues: Mapping[str, int]
    statement: Statement
    terms: int


def classes_of(s: Statement) -> tuple[tuple[str, int], ...]:
    """The residues of a statement, each with its number of values."""
    found = roles(s)
    return () if found is None else found.classes


def residues_of(s: Statement, shapes: Mapping[str, tuple[int, ...]]) -> tuple[ResidueClass, ...]:
    """The classes of a defracted statement, in order; none where it is not split."""
    if not classes_of(s):
        return ()
    points = tile_points(s, shapes, _tile(s, 1))
    made = []
    for values in product(*(range(n) for _, n in classes_of(s))):
        residues = dict(zip((v for v, _ in classes_of(s)), values, strict=True))
        change = {v: Affine.combine({}, r) for v, r in residues.items()}
        inside = substitute_affine(s, change)
        inside = replace(inside, constraints=tuple(c for c in inside.constraints if index_variables(c.expr)))
        made.append(ResidueClass(residues, inside, _terms(s, points, residues)))
    return tuple(made)


def _terms(s: Statement, points: TilePoints | None, residues: Mapping[str, int]) -> int:
    if points is None:
        return 0
    chosen = _chosen(points, residues)
    written = points.positions(s.index or ())
    count = 0 if written is None else len(np.unique(written[chosen], axis=0))
    return int(chosen.sum()) // count if count else 0


def _chosen(points: TilePoints, residues: Mapping[str, int]) -> np.ndarray:
    return np.logical_and.reduce([points.values[v] == r for v, r in residues.items()])


def _tile(s: Statement, periods: int) -> list[tuple[int, int]]:
    """So many periods of the classes in the middle of each dimension that is split, one element of the others."""
    split = {v for v, _ in classes_of(s)}
    tile = []
    for e, n in zip(s.index or (), sizes_of(s), strict=True):
        form = linear(e)
        period = max((abs(int(form.coefficient(v))) for v in form.variables()), default=1)
        tile.append(middle(n, periods * period if {*form.variables()} & split else 1))
    return tile


def residue_section(s: Statement, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The classes drawn on the output and on the inputs that they share out, and listed; empty without classes."""
    classes = residues_of(s, shapes)
    if not classes:
        return ""
    points = tile_points(s, shapes, _tile(s, PERIODS))
    names = ", ".join(f"<code>{escape(v)}</code> &lt; {n}" for v, n in classes_of(s))
    count = len(classes)
    head = (
        f"<h5>{count} residue classes ({names})</h5><p>Each element belongs to one class; within a class every index "
        "is a combination with integer coefficients, so no divisibility is tested.</p>"
    )
    figures = "" if points is None else "".join(_figures(s, shapes, classes, points))
    rows = "".join(_row(n, c) for n, c in enumerate(classes[:LISTED]))
    rest = f"<p>and {count - LISTED} more</p>" if count > LISTED else ""
    table = f"<table class='classes'><tr><th>class</th><th>terms</th><th>statement</th></tr>{rows}</table>{rest}"
    return f'<div class="residues">{head}<div class="reach">{figures}</div>{table}</div>'


def _row(number: int, c: ResidueClass) -> str:
    values = ", ".join(map(str, c.residues.values()))
    chip = f"<span class='chip' style='background: {color_of(number)}'></span>"
    terms = f"{c.terms:,}" if c.terms else "none: the default"
    text = escape(show_statement(replace(c.statement, sizes=None)))
    return f"<tr><td>{chip} {values}</td><td>{terms}</td><td><code>{text}</code></td></tr>"


def color_of(number: int) -> str:
    return COLORS[number % len(COLORS)]


def _figures(
    s: Statement, shapes: Mapping[str, tuple[int, ...]], classes: tuple[ResidueClass, ...], points: TilePoints
) -> list[str]:
    chosen = [_chosen(points, c.residues) for c in classes]
    split = {v for v, _ in classes_of(s)}
    found = []
    for tensor in dict.fromkeys([s.output, *(a.tensor for a in accesses_in(s.body))]):
        shape = sizes_of(s) if tensor == s.output else shapes[tensor]
        indices = (
            [s.index or ()] if tensor == s.output else [a.index for a in accesses_in(s.body) if a.tensor == tensor]
        )
        at = [points.positions(index) for index in indices]
        if not shape or any(a is None for a in at):
            continue
        parts = [np.unique(np.concatenate([a[c] for a in at if a is not None]), axis=0) for c in chosen]
        if _disjoint(parts, shape):
            first = [d for d in range(len(shape)) for index in indices if split & {*index_variables(index[d])}]
            every = Reached(tensor, shape, np.concatenate(parts), dimension_names(indices), points.cut)
            layers: list[Marked] = [(p, color_of(n)) for n, p in enumerate(parts) if len(p)]
            found.append(grid(every, layers, "colored by class", first))
    return found


def _disjoint(parts: list[np.ndarray], shape: tuple[int, ...]) -> bool:
    """Is each element read by one class alone?"""
    flat = np.concatenate([p @ np.array([prod(shape[d + 1 :]) for d in range(len(shape))], int) for p in parts])
    return len(np.unique(flat)) == len(flat)
