"""Which way memory runs through a statement's operands."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilec.backends.triton.emit.frame import free_of
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.ir.constraining import constraining
from tilec.ir.index import linear


def runs_along(space: Space, view: StridedView, reductions: Sequence[str]) -> bool:
    """Whether memory runs along the reduction in the largest tensor read."""
    best, answer = -1, False
    for root in (space.statement.body, space.statement.guard):
        for a in constraining(root) if root is not None else ():
            size = math.prod(view.types[a.tensor].shape)
            if size > best and free_of(a) & set(reductions):
                best = size
                steps = [
                    (abs(linear(e).coefficient(v) * stride), v)
                    for e, stride in zip(a.index, view.strides[a.tensor], strict=True)
                    for v in linear(e).variables()
                    if space.largest(v) > 1 and stride
                ]
                answer = bool(steps) and min(steps)[1] in reductions
    return answer


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
