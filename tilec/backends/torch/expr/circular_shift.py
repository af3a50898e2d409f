"""Self-reads of a lane that turns, `H[t - 1, (i - 1) % D]`, as reads of the row as it lies and a turn of what is read.

A margin that repeats an end of the lane makes such a read a view, and keeps the rows apart in memory, which short rows
in NumPy pay for at each operation. Turning the row into a scratch array is two copies, and all else is contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilec.errors import AffineMistake
from tilec.ir.index import linear
from tilec.ir.program import Access, Call, Expr, Index, Int, Statement, rebuild
from tilec.ir.rational import as_int
from tilec.ir.types import Types


@dataclass(frozen=True)
class CircularShift:
    """Element v of the lane `variable` is read at (v + shift) % size."""

    variable: str
    shift: int
    size: int


def untwisted(s: Statement, types: Types) -> tuple[Statement, dict[Access, CircularShift]] | None:
    """The statement with plain reads in the place of those that turn in one lane, and how each turns; None where there
    are none, or two would read one row in two ways."""
    places = {d: e.name for d, e in enumerate(s.index or ()) if isinstance(e, Index)}
    circular_shifts: dict[Access, CircularShift] = {}
    others: set[Access] = set()

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Access) or e.tensor != s.output:
            return rebuild(e, visit)
        found = [(d, _shift_of(i, places.get(d, ""), types[s.output].shape[d])) for d, i in enumerate(e.index)]
        turned = [(d, turn) for d, turn in found if turn is not None]
        if len(turned) != 1:
            others.add(e)
            return e
        ((d, turn),) = turned
        plain = replace(e, index=(*e.index[:d], Index(turn.variable), *e.index[d + 1 :]))
        if circular_shifts.setdefault(plain, turn) != turn:
            others.add(plain)
        return plain

    body = visit(s.body)
    return None if not circular_shifts or others & circular_shifts.keys() else (replace(s, body=body), circular_shifts)


def _shift_of(e: Expr, variable: str, size: int) -> CircularShift | None:
    match e:
        case Call("mod", (inner, Int(n))) if n == size and variable:
            try:
                form = linear(inner)
            except AffineMistake:
                return None
            moved = form - linear(Index(variable))
            whole = not moved.terms and moved.constant.denominator == 1
            return (
                CircularShift(variable, as_int(moved.constant) % size, size)
                if whole and moved.constant % size
                else None
            )
    return None
