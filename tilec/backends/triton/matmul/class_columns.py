"""Input gradients of strided convolutions of few channels: residue classes beside the channels as columns of a product.

In `D[n, 2*y + p, 2*x + q, c] = +(G[n, y - j, x - i, o] * K[o, 2*j + p, 2*i + q, c])` with c below 3 tensor cores have
three columns for each class (p, q), of the sixteen that they take at once, and every class reads G again. A product
with a column for each (p, q, c) reads it once: over a copy of the kernel with a place for each class and tap, which is
0 where the class has no such tap, and into a tensor of rows, whose elements then go where they belong.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilec.backends.common.pairs import LEAST
from tilec.backends.triton.iteration.coalesce import StridedView, coalesce
from tilec.backends.triton.matmul.dot import MatrixProduct, StagedProduct, product_over
from tilec.backends.triton.matmul.hopper.steps import hopper_steps
from tilec.backends.triton.matmul.steps import dot_steps, repair_steps
from tilec.backends.triton.plan.device_info import HOPPER
from tilec.backends.triton.plan.plan import Setting
from tilec.backends.triton.plan.sizes import WHOLE_VECTOR, contiguous, copied_row
from tilec.ir.functions import ZERO
from tilec.ir.index import Affine, linear, replace_indices
from tilec.ir.program import Access, Call, Index, Int, Pad, Statement, index_variables
from tilec.ir.types import ITEM_BYTES, NARROW, Types

MOST_COLUMNS = 64  # of a product for few channels


def class_columns(given: MatrixProduct, setting: Setting) -> StagedProduct | None:
    """The statement as such a product; None where it is of another form, or multiplies as much as it is."""
    dot, space, view = given.dot, given.space, given.view
    s = view.statement
    classes = {v: len({c[v] for c in space.classes}) for v in space.residues}
    many = [v for v in dot.columns if space.largest(v) > 1] or list(dot.columns)
    if dot.dtype not in NARROW or dot.batch or s.guard is not None or not classes or len(many) != 1:
        return None
    if math.prod(classes.values()) != len(space.classes) or any(low[v] for low in space.low for v in space.outputs):
        return None
    if {v for c in s.constraints for v in index_variables(c.expr)} - set(classes) or dot.scale != 1:
        return None
    if not isinstance(s.body, Call) or s.body.function != "mul" or len(dot.left) + len(dot.right) != 2:
        return None
    kernel, image = dot.right[0], dot.left[0]
    if not isinstance(kernel, Access) or not isinstance(image, Access) or kernel.tensor == image.tensor:
        return None
    (channel,) = many
    if set(index_variables(*image.index)) & {*classes, channel} or set(index_variables(*kernel.index)) & set(dot.rows):
        return None
    channels = space.largest(channel)
    padded = next(n for n in range(channels, channels + LEAST) if _fits(n * len(space.classes)))
    columns = padded * len(space.classes)
    inner = [v for v in dot.summed if linear(kernel.index[_axis(kernel, v)]).bare is not None]
    windows = [v for v in dot.summed if v not in inner]
    low = {v: min(a[v] for a in space.low) for v in dot.summed}
    taps = {v: max(a[v] + e[v] for a, e in zip(space.low, space.extent, strict=True)) - low[v] for v in dot.summed}
    before = sum(math.prod(e[v] for v in dot.summed) for e in space.extent) * -(-channels // LEAST) * LEAST
    if columns > MOST_COLUMNS or math.prod(taps.values()) * columns >= before:
        return None
    rows = [v for v in space.outputs if v in dot.rows]
    written = {v for v in space.outputs if space.largest(v) > 1} | {channel}
    if s.index is None or not inner or {v for v in rows if space.largest(v) > 1} | {channel} != written:
        return None

    shifts = {v: Affine.variable(v) + low[v] for v in dot.summed if low[v]}
    for v in {*index_variables(*image.index, *kernel.index)} - {*classes, channel, *rows, *dot.summed}:
        values = {x for a, e in zip(space.low, space.extent, strict=True) for x in (a[v], a[v] + e[v] - 1)}
        if len(values) != 1:
            return None
        shifts[v] = Affine.combine({}, values.pop())

    types, strides = dict(view.types), dict(view.strides)
    memory: dict[str, tuple[int, ...]] = {}
    extent = {**classes, channel: padded, **taps, **{v: space.largest(v) for v in rows}}

    def tensor(name: str, variables: list[str], like: str) -> Access:
        *outer, row = (extent[v] for v in variables)
        memory[name] = (*outer, copied_row(row, ITEM_BYTES[types[like].dtype]))
        types[name], strides[name] = replace(types[like], shape=(*outer, row)), contiguous(memory[name])
        return Access(name, tuple(map(Index, variables)))

    copy = tensor(f"{kernel.tensor}.classes", [*classes, channel, *windows, *inner], kernel.tensor)
    result = tensor(f"{s.output}.columns", [*rows, *classes, channel], s.output)
    made = Statement(copy.tensor, copy.index, _sizes(types, copy), Pad(_at(kernel, shifts), ZERO), "assign")
    product = Statement(
        result.tensor, result.index, _sizes(types, result), Call("mul", (_at(image, shifts), copy)), "sum"
    )
    placed = replace(s, body=result, aggregation="assign")
    over = product_over(coalesce(StridedView(product, types, strides, view.int64_index)))
    if over is None:
        return None
    steps = hopper_steps(over, setting)
    if steps is None and (setting.device.capability < HOPPER or channels == 1):  # one channel alone is no product
        steps = dot_steps(over, product, setting)
    if steps is None:
        return None
    first, view, last = (StridedView(x, types, strides) for x in (made, product, placed))
    return StagedProduct(view, memory, (first,), (last,), steps, repair_steps(given, s))


def _fits(columns: int) -> bool:
    return columns >= LEAST and columns % WHOLE_VECTOR == 0


def _axis(a: Access, v: str) -> int:
    return next(k for k, e in enumerate(a.index) if v in linear(e).variables())


def _at(a: Access, shifts: dict[str, Affine]) -> Access:
    moved = replace_indices(a, shifts)
    assert isinstance(moved, Access)
    return moved


def _sizes(types: Types, a: Access) -> tuple[Int, ...]:
    return tuple(map(Int, types[a.tensor].shape))
