"""Index variables that most likely were meant to run over equal sizes, and do not.

`C[i, j : I, J] = +(A[i, k] * B[k, j])` with 3 columns of A and 5 rows of B is legal: three points count, and two rows
of B are never read. Nothing in the text asks for that. It does where a constraint or a condition limits the points, and
where an index is shifted, strided or padded, so those are left alone; so is what the output's sizes cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilec.errors import SizeMistake
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Index,
    Pad,
    Program,
    Statement,
    children,
    index_variables,
    reads_itself,
)
from tilec.lattice.sets import Shapes, shapes_of


@dataclass(frozen=True)
class Place:
    """A dimension of a tensor over which a variable runs."""

    tensor: str
    axis: int
    size: int
    access: Access


def mismatches(program: Program, bound: Program) -> Iterator[SizeMistake]:
    """One a variable of a statement of a bound program that stands in the source, `program`."""
    names = {(i.name, d): name for i in program.inputs for d, name in enumerate(i.dims or ()) if isinstance(name, str)}
    shapes = shapes_of(bound)
    for s in bound.statements:
        if s.span is None or reads_itself(s):
            continue
        left = index_variables(*s.index or ())
        yield from _in_region(s, [v for v in index_variables(s.body) if v not in left], shapes, names)


def _in_region(
    s: Statement | Aggregate, summed: Sequence[str], shapes: Shapes, names: Mapping[tuple[str, int], str]
) -> Iterator[SizeMistake]:
    limited = index_variables(*_limits(s))
    for v in summed:
        found: dict[tuple[str, int], Place] = {}
        if v in limited or not _only_bare(s.body, v, shapes, found):
            continue
        sizes = {p.size for p in found.values()}
        if len(sizes) > 1 and 0 not in sizes:
            yield _mistake(v, tuple(found.values()), names)
    yield from _nested(s.body, shapes, names)


def _nested(e: Expr, shapes: Shapes, names: Mapping[tuple[str, int], str]) -> Iterator[SizeMistake]:
    if isinstance(e, Aggregate):
        yield from _in_region(e, e.bound, shapes, names)
        return
    for child in children(e):
        yield from _nested(child, shapes, names)


def _limits(s: Statement | Aggregate) -> tuple[Expr, ...]:
    """What limits the points of a region: its constraints and its condition."""
    return (*(c.expr for c in s.constraints), *s.guards)


def _only_bare(e: Expr, v: str, shapes: Shapes, found: dict[tuple[str, int], Place]) -> bool:
    """Does v stand nowhere but as a whole index that always counts? Notes the dimensions."""
    match e:
        case Index(name):
            return name != v
        case Pad() | Call("select"):
            return v not in index_variables(e)
        case Aggregate() if v in e.bound:
            return True
        case Aggregate() if v in index_variables(*_limits(e)):
            return False
        case Access():
            for d, (i, size) in enumerate(zip(e.index, shapes[e.tensor], strict=True)):
                if isinstance(i, Index) and i.name == v:
                    found.setdefault((e.tensor, d), Place(e.tensor, d, size, e))
                elif v in index_variables(i):
                    return False
            return True
    return all([_only_bare(child, v, shapes, found) for child in children(e)])


def _mistake(v: str, places: Sequence[Place], names: Mapping[tuple[str, int], str]) -> SizeMistake:
    called = [names.get((p.tensor, p.axis)) for p in places]
    sizes = [
        f"{p.size if name is None else f'{name} = {p.size}'} (dimension {p.axis} of {p.tensor})"
        for p, name in zip(places, called, strict=True)
    ]
    least = min(p.size for p in places)
    first, *others = (p.access.span for p in places)
    declare = "declare the inputs' sizes" if None in called else f"call the dimension {called[0]} everywhere"
    return SizeMistake(
        f"`{v}` stands as an index of different sizes: {', '.join(sizes)}; only the first {least} of each count",
        first,
        hint=f"{declare} to have them checked, or say that it is meant: ..., {v} < {least}",
        others=tuple(span for span in others if span is not None),
    )
