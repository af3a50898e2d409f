"""Computed operands, computed once.

A product reads each element of an operand many times, so a function of it (`sin(K)`, `exp(A - M)`) is computed as often
inside the kernel. Where the operand is no larger as a tensor of its own than what it is read from, and used often
enough, it becomes one first: the product then reads bare elements, which Hopper's kernels take too.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilec.backends.terms import product_of
from tilec.backends.triton.coalesce import Viewed
from tilec.backends.triton.dot import NARROW, Dot, accesses_in, variables_of
from tilec.backends.triton.plan import Allocate, Release, Step
from tilec.backends.triton.pointwise import pointwise
from tilec.backends.triton.sizes import contiguous
from tilec.backends.triton.space import Space, build_space
from tilec.ir.index import Affine
from tilec.ir.program import Access, Call, Expr, Int, Statement, index_variables
from tilec.ir.types import TensorType

LEAST_REUSE = 64  # times that each element must be used


def hoisted(
    dot: Dot, space: Space, seen: Viewed, wide: bool = False
) -> tuple[list[Step], Viewed, Space, Dot, list[Step]] | None:
    """Steps that compute an operand, the statement over it, and steps afterwards; None where nothing is gained."""
    if len(space.classes) != 1 or dot.dtype == "int8":
        return None
    before: list[Step] = []
    after: list[Step] = []
    for side, other, zeros in (
        ("left", dot.columns, dot.zero_left),
        ("right", dot.rows, dot.zero_right),
    ):
        factors: tuple[Expr, ...] = getattr(dot, side)
        if zeros or space.count(other) < LEAST_REUSE or not _computed(factors):
            continue
        made = _operand(side, factors, dot.dtype, space, seen)
        if made is None:
            continue
        s, shape, read = made
        t = TensorType(shape, dot.dtype)
        strides = contiguous(shape)
        seen = Viewed(seen.statement, {**seen.types, s.output: t}, {**seen.strides, s.output: strides})
        own = build_space(s, seen.types)
        if own is None or own.valid or not own.covers:
            return None
        before += [Allocate(s.output, shape, dot.dtype), *(pointwise(own, seen, s, wide) or ())]
        after.append(Release((s.output,)))
        dot = replace(dot, left=(read,)) if side == "left" else replace(dot, right=(read,))
    if not before:
        return None
    body: Expr = Call("mul", (product_of(dot.left), product_of(dot.right)))
    statement = replace(seen.statement, body=body)
    return before, replace(seen, statement=statement), replace(space, statement=statement), dot, after


def _computed(factors: tuple[Expr, ...]) -> bool:
    """Whether there is anything to compute: casts of one element are free."""
    lone = factors[0]
    if isinstance(lone, Call) and len(lone.args) == 1 and lone.function.startswith(("float", "bfloat")):
        lone = lone.args[0]
    return len(factors) > 1 or not isinstance(lone, Access)


def _operand(
    side: str, factors: tuple[Expr, ...], dtype: str, space: Space, seen: Viewed
) -> tuple[Statement, tuple[int, ...], Access] | None:
    """The operand as an assignment over its own variables, its shape, and how it is read."""
    low, extent = space.low[0], space.extent[0]
    names = frozenset().union(*(variables_of(f) for f in factors))
    accesses = [a for f in factors for a in accesses_in(f)]
    if any(space.single(v) for v in names):
        return None  # it would be summed over all of its axis in a statement of its own
    largest = max(accesses, key=lambda a: math.prod(seen.types[a.tensor].shape), default=None)
    if largest is None:
        return None
    order = dict.fromkeys(v for e in largest.index for v in _in_order(e, names))
    order.update(dict.fromkeys(sorted(names - order.keys())))
    variables = [v for v in order if not space.single(v)]
    shape = tuple(extent[v] for v in variables)
    if math.prod(shape) > math.prod(seen.types[largest.tensor].shape):
        return None
    index = tuple((Affine.variable(v) - low[v]).to_expr() for v in variables)
    output = f"{space.statement.output}.{side}"
    held = "float32" if dtype in NARROW else dtype
    body = Call(dtype, (product_of([Call(held, (f,)) for f in factors]),))
    s = Statement(output, index, tuple(map(Int, shape)), body)
    return s, shape, Access(output, index)


def _in_order(e: Expr, names: frozenset[str]) -> list[str]:
    return [v for v in index_variables(e) if v in names]
