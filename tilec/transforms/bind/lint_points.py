"""Statements none of whose points can be valid at the sizes at hand, though no size is 0."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.errors import SizeMistake, TileError
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.constraining import constraining
from tilec.ir.program import Program, reads_itself
from tilec.lattice.sets import bounds, shapes_of


def pointless(program: Program) -> Iterator[SizeMistake]:
    """One for each such statement of a bound program that stands in the source."""
    shapes = shapes_of(program)
    for s in program.statements:
        if s.span is None or reads_itself(s) or 0 in shapes[s.output]:
            continue
        if any(0 in shapes[a.tensor] for a in constraining(s.guard, s.body)):
            continue
        try:
            empty = bounds(s, shapes) is None
        except TileError:
            continue
        if empty:
            held = "the default's" if s.default is not None else f"{AGGREGATIONS[s.aggregation].identity}"
            yield SizeMistake(
                f"no point of this statement is valid at these sizes: every element of `{s.output}` is {held}",
                s.span,
                hint="an access outside of its tensor at every point, or a constraint that never holds",
            )
