"""Grouped products and convolutions of small groups, several groups in one product over block-diagonal operands.

`O[n, g, o] = +(I[n, g, c] * K[g, o, c])` with 8 values of o and of c leaves most of a tensor core's tile empty. Eight
groups as one are a product of 64 by 64: with g = 8 h + q, `O[n, h, q, o] = +(I[n, h, r, c] * B[h, q, o, r, c])`, where
the smallest of the three tensors is the one that grows. An operand becomes block diagonal, `B` being `K` where q is r
and 0 elsewhere; of an output the blocks on the diagonal are taken: `D[h, q, o, r, c]` at q = r. Zeros multiply other
groups' elements, so that results which are not finite are computed again without them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tilec.backends.triton.iteration.coalesce import StridedView, coalesce
from tilec.backends.triton.matmul.dot import MatrixProduct, StagedProduct, operand_accesses, product_over
from tilec.backends.triton.matmul.hopper.steps import hopper_steps
from tilec.backends.triton.plan.plan import Setting
from tilec.backends.triton.plan.sizes import contiguous
from tilec.ir.functions import ZERO, call
from tilec.ir.index import linear
from tilec.ir.program import Access, Call, Index, Int, Statement, index_variables
from tilec.ir.types import NARROW, TensorType
from tilec.transforms.util.naming import fresh_variable
from tilec.transforms.util.rewrite import with_parts

WIDTH_TOGETHER = 64  # rows or columns of a product of groups side by side, at most
LEAST_GROUP = 4  # of a group itself


def side_by_side(given: MatrixProduct, setting: Setting) -> StagedProduct | None:
    """The product, and before it the statement that makes an operand block diagonal, or after it the one that takes the
    output's diagonal. None where groups fill a tile as they are or Hopper's kernels do not take the product."""
    dot, space, view = given.dot, given.space, given.view
    s = view.statement
    plain = len(space.classes) == 1 and s.guard is None and not s.constraints and dot.dtype in NARROW
    if not plain or s.index is None or not isinstance(s.body, Call) or s.body.function != "mul":
        return None
    if not all(len(side) == 1 and isinstance(side[0], Access) for side in (dot.left, dot.right)):
        return None
    left, right = dot.left[0], dot.right[0]
    assert isinstance(left, Access) and isinstance(right, Access)
    if left.tensor == right.tensor or not set(s.body.args) == {left, right}:
        return None
    accesses = (left, right, Access(s.output, s.index))
    small = min(accesses, key=lambda a: math.prod(view.types[a.tensor].shape))
    extent = space.extent[0]
    for g in reversed(dot.batch):
        places = [[linear(e).bare == g for e in a.index].count(True) for a in accesses]
        if places != [1, 1, 1] or any(sum(g in index_variables(e) for e in a.index) != 1 for a in accesses):
            continue
        beside = (_beside(a, g, view.types, view.strides) for a in accesses)
        width = max((extent[v] for v in beside if v is not None), default=0)
        count = _groups(extent[g], width) if width >= LEAST_GROUP else 1
        if count > 1:
            return _apart(s, accesses, small, g, count, view, setting)
    return None


def _beside(a: Access, g: str, types: Mapping[str, TensorType], strides: Mapping) -> str | None:
    """The variable whose axis the group's steps over: a channel within the group."""
    axis = next(k for k, e in enumerate(a.index) if linear(e).bare == g)
    stride = strides[a.tensor][axis]
    for e, step, n in zip(a.index, strides[a.tensor], types[a.tensor].shape, strict=True):
        v = linear(e).bare
        if v is not None and v != g and step * n == stride:
            return v
    return None


def _groups(extent: int, width: int) -> int:
    """How many groups make a tile: a power of two that divides their number."""
    count = 1
    while extent % (2 * count) == 0 and 2 * count * width <= WIDTH_TOGETHER:
        count *= 2
    return count


def _apart(
    s: Statement, accesses: tuple[Access, ...], small: Access, g: str, count: int, view: StridedView, setting: Setting
) -> StagedProduct | None:
    taken = set(index_variables(*(e for a in accesses for e in a.index)))
    q = fresh_variable(f"{g}_q", taken)
    r = fresh_variable(f"{g}_r", taken | {q})
    types, strides = dict(view.types), dict(view.strides)
    split: dict[str, Access] = {}
    for a in accesses:
        axis = next(k for k, e in enumerate(a.index) if linear(e).bare == g)
        shape, step = types[a.tensor].shape, strides[a.tensor]
        sizes = (shape[axis] // count, count)
        types[a.tensor] = replace(types[a.tensor], shape=(*shape[:axis], *sizes, *shape[axis + 1 :]))
        strides[a.tensor] = (*step[:axis], count * step[axis], *step[axis:])
        split[a.tensor] = replace(a, index=(*a.index[:axis], Index(g), Index(q), *a.index[axis + 1 :]))
    output, left, right = s.output, *(a.tensor for a in accesses[:2])
    other = {left: right, right: left, output: right}[small.tensor]
    split[other] = _moved(split[other], q, r)
    grown = f"{small.tensor}.blocks"
    own = split[small.tensor]
    third = next(a.tensor for a in accesses if a.tensor not in (small.tensor, other))
    # each axis of the small tensor: its index in the product, its size, its variable where it is copied
    axes = [(e, n, f"i{k}") for k, (e, n) in enumerate(zip(own.index, types[small.tensor].shape, strict=True))]
    alone = tuple(Index(name) for *_, name in axes)
    along = next(a for a in axes if linear(a[0]).bare == q)
    axes.remove(along)
    axes.insert(_before(axes, split[third], q, types, strides), along)
    across = (Index(r), count, r)
    axes.insert(_before(axes, split[other], r, types, strides), across)
    index, shape = tuple(e for e, *_ in axes), tuple(n for _, n, _ in axes)
    types[grown], strides[grown] = replace(types[small.tensor], shape=shape), contiguous(shape)
    if small.tensor == output:
        diagonal = tuple(Index(along[2] if name == r else name) for *_, name in axes)
        whole = tuple(map(Int, types[output].shape))
        blocks = replace(s, index=alone, sizes=whole, body=Access(grown, diagonal), aggregation="assign")
        made = {a: split[a.tensor] for a in accesses[:2]}
        product = replace(s, output=grown, index=index, sizes=tuple(map(Int, shape)), body=with_parts(s.body, made))
    else:
        inside = call("eq", Index(along[2]), Index(r))
        body = Call("select", (inside, Access(small.tensor, alone), call(types[small.tensor].dtype, ZERO)))
        places = tuple(Index(name) for *_, name in axes)
        blocks = Statement(grown, places, tuple(map(Int, shape)), body, span=s.span)
        made = {a: split[a.tensor] if a is not small else Access(grown, index) for a in accesses[:2]}
        out = split[output]
        product = replace(s, index=out.index, sizes=tuple(map(Int, types[output].shape)), body=with_parts(s.body, made))
    as_it_is = StridedView(product, types, strides)
    over, first = product_over(coalesce(as_it_is)), small.tensor != output
    if over is None:
        return None
    same = (_merged_into(q, as_it_is, over.view), _merged_into(r, as_it_is, over.view)) if first else None
    steps = hopper_steps(over, setting, same=same)
    if steps is None:
        return None
    apart = (replace(as_it_is, statement=blocks),)
    before, after = (apart, ()) if first else ((), apart)
    return StagedProduct(as_it_is, {grown: shape}, before, after, steps)


def _merged_into(group: str, view: StridedView, merged: StridedView) -> tuple[str, int]:
    """The variable of the merged statement that counts this one, and by what it is divided for that."""
    s = view.statement
    left = set(index_variables(*(e for a in operand_accesses(merged.statement.body) for e in a.index)))
    for a in (*operand_accesses(s.body), Access(s.output, s.index or ())):
        names, divisor = [linear(e).bare for e in a.index], 1
        if group in names:
            for name, n in list(zip(names, view.types[a.tensor].shape, strict=True))[names.index(group) :]:
                divisor *= 1 if name == group else n
                if name in left:
                    return name, divisor
    raise AssertionError(f"{group} is no variable of the product")


def _before(axes: list, a: Access, group: str, types: Mapping[str, TensorType], strides: Mapping) -> int:
    """Where the group's number stands so that it is one with what the access has beside it: the channels."""
    beside = _beside(a, group, types, strides)
    found = [k for k, (e, *_) in enumerate(axes) if beside is not None and linear(e).bare == beside]
    return found[0] if found else 0


def _moved(a: Access, q: str, r: str) -> Access:
    return replace(a, index=tuple(Index(r) if linear(e).bare == q else e for e in a.index))
