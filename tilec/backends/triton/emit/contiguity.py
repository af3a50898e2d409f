"""Which way memory runs through a statement's operands."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilec.backends.triton.emit.frame import free_of
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.ir.constraining import constraining
from tilec.ir.index import Affine, linear
from tilec.ir.program import Access, Expr

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
                    (abs(form.coefficient(v) * stride), v, form)
                    for form, stride in zip(map(linear, a.index), view.strides[a.tensor], strict=True)
                    for v in form.variables()
                    if space.largest(v) > 1 and stride
                ]
                _, v, form = min(steps, key=lambda step: step[:2], default=(0, "", Affine()))
                answer = v in reductions and not (short and _slides(form, v, space))
    return answer


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
    s = space.statement
    return len(outputs) > 1 and any(
        view.strides[a.tensor][axis] * linear(e).coefficient(outputs[-2]) == 1 and outputs[-1] in free_of(a)
        for root in (s.body, s.guard)
        if root is not None
        for a in constraining(root)
        for axis, e in enumerate(a.index)
    )
