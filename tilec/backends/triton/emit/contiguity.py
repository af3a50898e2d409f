"""Which way memory runs through a statement's operands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from tilec.backends.triton.emit.frame import free_of
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.ir.constraining import constraining
from tilec.ir.index import Affine, linear
from tilec.ir.program import Access, Expr, index_variables

LARGEST_WINDOW = 64  # points of a window that is walked point by point


def runs_along(space: Space, view: StridedView, reductions: Sequence[str]) -> bool:
    """Whether memory runs along the reduction in the largest tensor read. Where a short window slides along memory, it
    runs along the outputs: neighbours of these read neighbouring elements."""
    best, answer = -1, False
    short = space.count(tuple(reductions)) <= LARGEST_WINDOW
    for root in (space.statement.body, space.statement.guard):
        for a in constraining(root) if root is not None else ():
            size = math.prod(view.types[a.tensor].shape)
            if size > best and free_of(a) & set(reductions):
                best = size
                steps = [
                    (abs(step * stride), v, linear(i))
                    for i, stride in zip(a.index, view.strides[a.tensor], strict=True)
                    for v, step in strides_of_index(i).items()
                    if space.largest(v) > 1 and stride
                ]
                _, v, form = min(steps, key=lambda step: step[:2], default=(0, "", Affine()))
                answer = v in reductions and not (short and _slides(form, v, space))
    return answer


def strides_of_index(i: Expr) -> Mapping[str, Fraction]:
    """How far an index moves with each of its variables: one element where that is computed (`I[n, x]`, `x // 2`)."""
    form = linear(i)
    if not form.is_affine:
        return dict.fromkeys(index_variables(i), Fraction(1))
    return {v: form.coefficient(v) for v in form.variables()}


def fastest_variable(a: Access, view: StridedView) -> Expr | None:
    """The index that memory runs along, of an access with several."""
    axes = zip(view.strides[a.tensor], view.types[a.tensor].shape, a.index, strict=True)
    moving = [(step, place, i) for place, (step, n, i) in enumerate(axes) if step and n > 1]
    return min(moving)[2] if len(moving) > 1 else None


def _slides(form: Affine, v: str, space: Space) -> bool:
    """Whether a window along a summed variable overlaps itself at the next value of an output variable."""
    reach = abs(form.coefficient(v)) * space.largest(v)
    return any(0 < abs(form.coefficient(w)) < reach for w in space.outputs if space.largest(w) > 1)


def is_transposed(space: Space, view: StridedView, outputs: Sequence[str]) -> bool:
    """Whether memory runs along the last output variable but one in something that is read along the last too."""
    return len(outputs) > 1 and outputs[-2] in (v for v, _ in _fastest_of_reads(space, view, outputs[-1]))


def runs_across(space: Space, view: StridedView, outputs: Sequence[str]) -> str | None:
    """The output variable but the last along which memory runs in what is written, or in the largest tensor that is
    read along the last too and in which it does not run along that; None where there is none."""
    if len(outputs) < 2:
        return None
    s = space.statement
    rest, written = set(outputs[:-1]), Access(s.output, s.index or ())
    own = [v for v, step in _moves(written, view) if abs(step) == 1 and v in rest]
    if own:
        return own[0]
    read = [(math.prod(view.types[a.tensor].shape), v) for v, a in _fastest_of_reads(space, view, outputs[-1])]
    return max((x for x in read if x[1] in rest), default=(0, None))[1]


def _fastest_of_reads(space: Space, view: StridedView, last: str) -> list[tuple[str, Access]]:
    """The variables along which memory runs in what is read along that one too."""
    roots = [root for root in (space.statement.body, space.statement.guard) if root is not None]
    read = [a for root in roots for a in constraining(root) if last in free_of(a)]
    return [(v, a) for a in read for v, step in _moves(a, view) if step == 1]


def _moves(a: Access, view: StridedView) -> list[tuple[str, int]]:
    """Variables, and the elements that one of each moves on along an axis."""
    axes = zip(map(linear, a.index), view.strides[a.tensor], strict=True)
    return [(v, form.coefficient(v) * stride) for form, stride in axes for v in form.variables()]
