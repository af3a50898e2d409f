"""Computed operands, computed once.

A product reads each element of an operand many times, so a function of it (`sin(K)`, `exp(A - M)`) is computed as often
inside the kernel. Where the operand is no larger as a tensor of its own than what it is read from, and used often
enough, it becomes one first: the product then reads bare elements, which Hopper's kernels take too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tilec.backends.common.scalars import value_children
from tilec.backends.common.terms import product_of
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space, build_space
from tilec.backends.triton.matmul.blocks import LEAST_REUSE
from tilec.backends.triton.matmul.dot import Dot, OperandRewrite, operand_accesses, variables_outside
from tilec.backends.triton.plan.plan import Allocate, Release, Request, Step
from tilec.backends.triton.plan.sizes import contiguous
from tilec.backends.triton.pointwise.pointwise import pointwise
from tilec.backends.triton.pointwise.tiling import choose_pointwise_tiling
from tilec.ir.functions import COSTLY_FUNCTIONS
from tilec.ir.index import Affine
from tilec.ir.infer import expression_type
from tilec.ir.program import Access, Call, Expr, Int, Statement, index_variables, rebuild, walk
from tilec.ir.types import FLOATS, NARROW, TensorType


def hoisted(
    dot: Dot,
    space: Space,
    view: StridedView,
    int64_index: bool = False,
    last: str | None = None,
    together: bool = False,
) -> OperandRewrite | None:
    """The product over operands that are computed beforehand; None where nothing is gained. `last`: the variable along
    which operands that know it shall lie. `together`: others may ask for the same."""
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
        operand = operand_of(side, factors, dot.dtype, space, view, last)
        if operand is None:
            continue
        s, shape, read = operand
        t = TensorType(shape, dot.dtype)
        strides = contiguous(shape)
        view = StridedView(view.statement, {**view.types, s.output: t}, {**view.strides, s.output: strides})
        own = build_space(s, view.types)
        if own is None or own.valid or not own.covers:
            return None
        made = partial(assignment, own, view, s, int64_index)
        before += [Request(s, view.types, view.strides, int64_index, made)] if together else made()
        after.append(Release((s.output,)))
        dot = replace(dot, left=(read,)) if side == "left" else replace(dot, right=(read,))
    if not before:
        return None
    body: Expr = Call("mul", (product_of(dot.left), product_of(dot.right)))
    statement = replace(view.statement, body=body)
    view, space = replace(view, statement=statement), replace(space, statement=statement)
    return OperandRewrite(view, space, tuple(before), tuple(after), dot)


def assignment(own: Space, view: StridedView, s: Statement, int64_index: bool) -> list[Step]:
    """Steps that carry out an assignment over all of its output."""
    t = view.types[s.output]
    return [Allocate(s.output, t.shape, t.dtype), *(pointwise(own, view, s, int64_index) or ())]


def _computed(factors: tuple[Expr, ...]) -> bool:
    """Whether there is anything to compute: casts of one element are free."""
    lone = factors[0]
    if isinstance(lone, Call) and len(lone.args) == 1 and lone.function in FLOATS:
        lone = lone.args[0]
    return len(factors) > 1 or not isinstance(lone, Access)


def operand_of(
    side: str, factors: tuple[Expr, ...], dtype: str, space: Space, view: StridedView, last: str | None
) -> tuple[Statement, tuple[int, ...], Access] | None:
    """The operand as an assignment over its own variables, its shape, and how it is read."""
    compute_dtype = "float32" if dtype in NARROW else dtype
    return _assigned(side, Call(dtype, (product_of([Call(compute_dtype, (f,)) for f in factors]),)), space, view, last)


def _assigned(
    label: str, body: Expr, space: Space, view: StridedView, last: str | None = None
) -> tuple[Statement, tuple[int, ...], Access] | None:
    """A statement that assigns the body over its own variables, `last` at the end, its shape, and how it is read; None
    where the tensor would be larger than what it is read from."""
    low, extent = space.low[0], space.extent[0]
    names = variables_outside(body)
    accesses = operand_accesses(body)
    if any(space.single(v) for v in names):
        return None  # it would be summed over all of its axis in a statement of its own
    largest = max(accesses, key=lambda a: math.prod(view.types[a.tensor].shape), default=None)
    if largest is None:
        return None
    order = dict.fromkeys(v for e in largest.index for v in _in_order(e, names))
    order.update(dict.fromkeys(sorted(names - order.keys())))
    variables = sorted((v for v in order if not space.single(v)), key=lambda v: v == last)
    shape = tuple(extent[v] for v in variables)
    if math.prod(shape) > math.prod(view.types[largest.tensor].shape):
        return None
    index = tuple((Affine.variable(v) - low[v]).to_expr() for v in variables)
    output = f"{space.statement.output}.{label}"
    s = Statement(output, index, tuple(map(Int, shape)), body)
    return s, shape, Access(output, index)


def _in_order(e: Expr, names: frozenset[str]) -> list[str]:
    return [v for v in index_variables(e) if v in names]


def shared(space: Space, view: StridedView, int64_index: bool) -> OperandRewrite | None:
    """The same for any other reduction over pairs of rows and columns: what is costly in the body and known to one
    side is computed once for all points of the other. None where nothing is gained."""
    s = space.statement
    if len(space.classes) != 1 or not choose_pointwise_tiling(space, view).outer:
        return None
    before: list[Step] = []
    after: list[Step] = []
    found: dict[Expr, Expr] = {}
    outputs = {v for v in space.outputs if not space.single(v)}
    for e in _costly(s.body, outputs, set(space.reductions)):
        others = tuple(v for v in space.outputs if v in outputs - variables_outside(e))
        dtype = expression_type(e, view.types).dtype
        if e in found or space.count(others) < LEAST_REUSE or dtype not in FLOATS:
            continue
        made = _assigned(f"shared{len(found)}", e, space, view)
        if made is None:
            continue
        own_statement, shape, found[e] = made
        name = own_statement.output
        types = {**view.types, name: TensorType(shape, dtype)}
        view = StridedView(view.statement, types, {**view.strides, name: contiguous(shape)})
        own = build_space(own_statement, types)
        if own is None or own.valid or not own.covers:
            return None
        before += [Allocate(name, shape, dtype), *(pointwise(own, view, own_statement, int64_index) or ())]
        after.append(Release((name,)))
    if not found:
        return None

    def put(e: Expr) -> Expr:
        return found[e] if e in found else rebuild(e, put)

    statement = replace(s, body=put(s.body))
    view, space = replace(view, statement=statement), replace(space, statement=statement)
    return OperandRewrite(view, space, tuple(before), tuple(after))


def _costly(e: Expr, outputs: set[str], summed: set[str]) -> Iterator[Expr]:
    """The largest subexpressions that a reduction would compute again for each of the outputs that they do not know,
    and that divide or call the device's library."""
    names = variables_outside(e)
    heavy = [x for x in walk(e) if isinstance(x, Call) and x.function in COSTLY_FUNCTIONS]
    if heavy and names & summed and outputs - names:
        yield e
    elif heavy:
        for child in value_children(e):
            yield from _costly(child, outputs, summed)
