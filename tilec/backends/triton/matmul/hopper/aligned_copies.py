"""Products over copies of operands whose rows lie as the boxes of Hopper's kernels reach them fastest.

Rows of 16-bit elements that begin anywhere, such as those of a vocabulary of 50257 words, have no tensor maps, and a
library multiplies them at a fifth of its rate. Rows that begin between lines of the caches have maps, but a box of them
takes up to twice as long to come, since its rows lie in two lines each. A copy's rows begin with lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from tilec.backends.common.pairs import LEAST, PRODUCTS
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.matmul.class_columns import class_columns
from tilec.backends.triton.matmul.dot import (
    LAUNCH_SECONDS,
    MEMORY_BYTES,
    POINTERS,
    MatrixProduct,
    OperandRewrite,
    product_over,
    worthwhile,
)
from tilec.backends.triton.matmul.hopper.steps import hopper_steps, timed_steps
from tilec.backends.triton.matmul.pack import (
    FEWEST_BATCHES,
    OWN_SHAPES,
    is_element,
    rows_aligned,
    touched_elements,
    with_axes_last,
    with_batches_apart,
)
from tilec.backends.triton.plan.plan import Setting
from tilec.backends.triton.plan.sizes import CACHE_LINE, copied_row, rounded_up
from tilec.cost import size_in_bytes
from tilec.ir.at_sizes import least
from tilec.ir.index import distinct_variables, linear
from tilec.ir.program import Access
from tilec.ir.types import ITEM_BYTES, NARROW

UNALIGNED = 5  # times as long as others a library's products of 16 bits take where rows begin anywhere, at least
MOST_COPIED = 2**28  # bytes of a tensor that is copied for where its rows begin in lines
COPIES = 1.4  # of the time that memory takes, what copies from rows that begin anywhere do
WINDOW_AXES = 2  # of windows for which a library's convolution of odd channels takes longer than ours over copies
LIBRARY_GROUPS = 8  # what a library's convolution of groups takes, beside a product of as many terms, at least


def over_copies(
    product: MatrixProduct, setting: Setting, by_library: Callable[[], bool], left: Callable[[], bool]
) -> OperandRewrite | None:
    """The product over copies that lie as kernels read them; None where nothing is gained. `by_library`: whether a
    library takes it as it is; `left`: whether kernels of ours are no faster then."""
    if worthwhile(product.dot, product.space):
        found = with_batches_apart(product, setting) or with_channels_last(product, setting)
        found = found or with_rows_aligned(product, setting, lambda: left() and by_library())
        if found is not None:
            return found
    return with_channels_aligned(product, setting, by_library, left)


def with_channels_last(product: MatrixProduct, setting: Setting) -> OperandRewrite | None:
    """A convolution in 16 bits with a kernel of its own for each image or group over copies whose channels lie
    innermost, as Hopper's kernels read and store them; None where it is none, lies so, or a library takes no longer."""
    dot, space = product.dot, product.space
    windows = any(linear(e).bare is None for a in product.accesses() for e in a.index)
    if dot.dtype not in NARROW or not windows or space.count(dot.batch) < FEWEST_BATCHES:
        return None
    if space.statement.guard is not None or len(space.classes) != 1 or not space.covers:
        return None
    if len(dot.left) + len(dot.right) != 2 or not all(map(is_element, (*dot.left, *dot.right))):
        return None
    axes = {a: _channels(a, product) for a in touched_elements(product)}
    if None in axes.values() or hopper_steps(product, setting) is not None:
        return None
    copied = {a: axis for a, axis in axes.items() if product.view.strides[a.tensor][axis or 0] != 1}
    if (LIBRARY_GROUPS - 1) * product.multiplications / PRODUCTS[dot.dtype] < _copying(copied, product.view):
        return None
    return _on_hopper(with_axes_last(product, copied), setting)


def with_rows_aligned(
    product: MatrixProduct, setting: Setting, by_library: Callable[[], bool]
) -> OperandRewrite | None:
    """A product of matrices of 16 bits over copies of the operands whose rows do not begin at whole vectors, and of
    those whose rows begin between lines of the caches where the boxes of Hopper's kernels gain more than a copy takes;
    None where there are none, or a copy takes longer than a library loses."""
    dot, space, view = product.dot, product.space, product.view
    if dot.dtype not in NARROW or len(space.classes) != 1 or not space.covers or not product.is_plain:
        return None
    if not all(len(side) == 1 and is_element(side[0]) for side in (dot.left, dot.right)):
        return None
    lost = (UNALIGNED - 1) * product.multiplications / PRODUCTS[dot.dtype]
    axes = {a: _rows_axis(a.tensor, view) for a in product.accesses() if distinct_variables(a.index) is not None}
    copied = {a: axes.get(a) for a in product.accesses() if not rows_aligned(a.tensor, view, setting)}
    if None in copied.values() or lost < _copying(copied, view):
        return None
    late = {a: axis for a, axis in axes.items() if a not in copied and _gains_lines(a.tensor, axis, view)}
    if not copied and (not late or lost < _copying(late, view) or by_library()):
        return None
    return _fastest(product, copied, late, setting)


def _fastest(
    product: MatrixProduct,
    wanted: Mapping[Access, int | None],
    late: Mapping[Access, int | None],
    setting: Setting,
    filled: bool = False,
) -> OperandRewrite | None:
    """The product over the copies that are wanted and those others, the smallest first, with which Hopper's kernels
    take the least time, that of copying included; None where that is none, or they take none. `filled`: rows of copies
    may end with boxes."""
    found: list[tuple[float, OperandRewrite | None]] = []
    smallest = sorted(late, key=lambda a: size_in_bytes(product.view.types[a.tensor]))
    for some in (smallest[:n] for n in range(len(smallest) + 1)):
        copied = {**wanted, **{a: late[a] for a in some}}
        for shapes in (OWN_SHAPES, *filter(None, [_filled(copied, product)] if filled else [])):
            over = with_axes_last(product, copied, shapes)
            own = product if over is None else product_over(over.view)
            timed = None if own is None else timed_steps(own, setting)
            if own is not None and timed is not None:
                dot = replace(own.dot, scale=product.dot.scale)
                over = None if over is None else replace(over, view=own.view, space=own.space, dot=dot)
                found.append((timed[0] / 1e6 + COPIES * _copying(copied, product.view, shapes), over))
    return least(found, lambda way: way[0])[1] if found else None


def _filled(copied: Mapping[Access, int | None], product: MatrixProduct) -> Mapping[Access, tuple[int, ...]]:
    """Shapes of copies whose rows end with boxes, of those whose own would end inside of one, which takes longer to
    come. What is summed is filled with zeros in both operands."""
    types, accesses = product.view.types, product.accesses()
    whole: dict[str, int] = {}
    for a, axis in copied.items():
        t = types[a.tensor]
        if axis is not None and (v := linear(a.index[axis]).bare) is not None:
            whole[v] = rounded_up(t.shape[axis], CACHE_LINE // ITEM_BYTES[t.dtype])
    for v in {*whole} & {*product.dot.summed}:
        if any(a not in copied and v in linear(e).variables() for a in accesses for e in a.index):
            del whole[v]
    bare = {a: [linear(e).bare for e in a.index] for a in copied}
    shapes = {
        a: tuple(whole.get(v or "", n) for v, n in zip(bare[a], types[a.tensor].shape, strict=True)) for a in bare
    }
    return {a: shape for a, shape in shapes.items() if shape != types[a.tensor].shape}


def _copying(
    copied: Mapping[Access, int | None],
    view: StridedView,
    shapes: Mapping[Access, tuple[int, ...]] = OWN_SHAPES,
) -> float:
    """Seconds that copies take."""
    moved = 0.0
    for a, axis in copied.items():
        t = view.types[a.tensor]
        made = replace(t, shape=shapes.get(a, t.shape))
        row = made.shape[axis or 0]
        moved += size_in_bytes(t) + size_in_bytes(made) * copied_row(row, ITEM_BYTES[t.dtype]) / max(row, 1)
    return moved / MEMORY_BYTES + len(copied) * LAUNCH_SECONDS


def with_channels_aligned(
    product: MatrixProduct, setting: Setting, by_library: Callable[[], bool], left: Callable[[], bool]
) -> OperandRewrite | None:
    """A convolution in 16 bits over copies of the operands whose channels lie innermost and fill no whole vectors, and
    of those whose channels begin between lines of the caches where the boxes of Hopper's kernels gain more than a copy
    takes; None where it is none, or a copy takes longer than kernels that read through pointers lose. A library copies
    channels that fill no vectors too, and its kernels then take longer: 1 x 5 from 205 to 203 channels 487 us, and 734
    backward, where ours take 146 and 254 (H100). Not in windows of three axes: 3 x 3 x 3 from 40 to 73 takes 1103
    backward, cuDNN 809."""
    dot, view = product.dot, product.view
    windows = max((sum(linear(e).bare is None for e in a.index) for a in product.accesses()), default=0)
    if dot.dtype not in NARROW or not windows:
        return None
    if not all(map(is_element, (*dot.left, *dot.right))):
        return None
    rows = {a: axis for a in product.accesses() if (axis := _rows_axis(a.tensor, view)) is not None}
    channels = {a: axis for a, axis in rows.items() if linear(a.index[axis]).bare is not None}
    unaligned = {a for a in rows if not rows_aligned(a.tensor, view, setting)}
    if not unaligned <= channels.keys():
        return None
    channels = {a: axis for a, axis in channels.items() if view.types[a.tensor].shape[axis] >= LEAST}
    copied = {a: axis for a, axis in channels.items() if a in unaligned}
    if copied and windows > WINDOW_AXES and by_library():
        return None
    late = {a: x for a, x in channels.items() if a not in copied and _gains(a.tensor, x, view)}
    took = math.prod(max(n, LEAST) for n in product.counts) * product.repeated / PRODUCTS[dot.dtype]
    lost = math.inf if by_library() else (1 / POINTERS - 1) * took  # a library copies, too
    if copied and lost < _copying(copied, view) or not copied and (not late or left()):
        return None
    if worthwhile(dot, product.space):
        return _fastest(product, copied, late, setting, filled=True)
    over = with_axes_last(product, copied)
    own = None if over is None else product_over(over.view)
    return None if own is None or class_columns(own, setting) is None else over


def _gains(tensor: str, axis: int, view: StridedView) -> bool:
    """Whether boxes of a copy, which is not too large, come faster: a tensor's channels begin between lines of the
    caches, or they end inside of boxes."""
    t = view.types[tensor]
    ending = t.shape[axis] % (CACHE_LINE // ITEM_BYTES[t.dtype]) != 0 and size_in_bytes(t) <= MOST_COPIED
    return ending or _gains_lines(tensor, axis, view)


def _gains_lines(tensor: str, axis: int | None, view: StridedView) -> bool:
    """Whether a tensor's rows begin between lines of the caches, and those of a copy, which is not too large, with
    them."""
    t, size = view.types[tensor], ITEM_BYTES[view.types[tensor].dtype]
    if axis is None or copied_row(t.shape[axis], size) * size % CACHE_LINE or size_in_bytes(t) > MOST_COPIED:
        return False
    steps = [step for a, step in enumerate(view.strides[tensor]) if a != axis and t.shape[a] > 1]
    return any(step * size % CACHE_LINE for step in steps)


def _rows_axis(tensor: str, view: StridedView) -> int | None:
    """The axis along which elements lie next to each other."""
    strides = view.strides[tensor]
    return strides.index(1) if 1 in strides else None


def _on_hopper(over: OperandRewrite | None, setting: Setting) -> OperandRewrite | None:
    """A product over copies where Hopper's kernels take these."""
    own = None if over is None else product_over(over.view)
    return over if own is not None and hopper_steps(own, setting) is not None else None


def _channels(access: Access, product: MatrixProduct) -> int | None:
    """The axis of a tensor's channels, whole vectors of them: of rows, columns or what is summed, and no part of a
    window; of several that of nearest neighbours, which a copy moves least."""
    dot, strides = product.dot, product.view.strides[access.tensor]
    places = [linear(e) for a in touched_elements(product) for e in a.index]
    apart = {*dot.batch, *(v for e in places if e.bare is None for v in e.variables())}
    bare = [(d, v) for d, e in enumerate(access.index) if (v := linear(e).bare) is not None and v not in apart]
    whole = [(d, v) for d, v in bare if product.space.count((v,)) % LEAST == 0]
    return min(whole, key=lambda x: strides[x[0]], default=(None, ""))[0]
