"""How the steps of a recurrence depend on one another along a dimension that is sharded."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.backends.common.affine import affine_steps
from tilec.ir.aggregations import Semiring
from tilec.ir.index import linear
from tilec.ir.program import Expr, Inside, Pad, Statement, self_reads, walk
from tilec.ir.types import TensorType
from tilec.lattice.sets import Shapes, covers


def depth_along(s: Statement, k: int) -> int | None:
    """How far back along a dimension a recurrence reads itself, forth as a negative number; None where that is not one
    way, or depends on more than the position."""
    own, e = self_reads(s), (s.index or ())[k]
    if any(x in own for outer in _padded(s) for x in walk(outer)):  # `pad` stands in outside the whole, not a part
        return None
    steps = [linear(access.index[k]) - linear(e) for access in own]
    if any(step.terms for step in steps):
        return None
    back = [-int(step.constant) for step in steps]
    one_way = all(n >= 0 for n in back) or all(n <= 0 for n in back)
    return max(back, key=abs) if one_way else None


def _padded(s: Statement) -> Iterator[Expr]:
    """What `pad` and `in` stand around."""
    for root in s.roots:
        yield from (e.access for e in walk(root) if isinstance(e, (Pad, Inside)))


def composes(s: Statement, k: int, t: TensorType, shapes: Shapes) -> bool:
    """Do the steps along a dimension compose: is every element an affine function of the one before, in its lane?"""
    if abs(depth_along(s, k) or 0) != 1 or composing_steps(s, t) is None or not covers(s, shapes):
        return False
    (access,) = set(self_reads(s))
    return all(i == e for d, (i, e) in enumerate(zip(access.index, s.index or (), strict=True)) if d != k)


def composing_steps(s: Statement, t: TensorType) -> tuple[Semiring, Expr, Expr] | None:
    """The semiring, scale and offset of a recurrence whose elements depend on one element before, in the same lane."""
    own = set(self_reads(s))
    if len(own) != 1 or s.guard is not None or s.default is not None or t.dtype not in ("float32", "float64"):
        return None
    return next(affine_steps(s.body, own.pop(), t.dtype), None)
