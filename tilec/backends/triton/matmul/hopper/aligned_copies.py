"""Products over copies of operands whose rows lie as the boxes of Hopper's kernels reach them fastest.

Rows of 16-bit elements that begin anywhere, such as those of a vocabulary of 50257 words, have no tensor maps, and a
library multiplies them at a fifth of its rate. Rows that begin between lines of the caches have maps, but a box of them
takes up to twice as long to come, since its rows lie in two lines each. A copy's rows begin with lines. Where several
variables are summed, boxes take them one by one: of 68 elements of each head two boxes of 64, nearly half of them
empty. In a copy those variables lie next to each other, as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from tilec.backends.common.pairs import LEAST, PRODUCTS
from tilec.backends.triton.iteration.coalesce import StridedView, coalesce
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
    LEAST_WORK,
    CopyLayout,
    copy_name,
    is_element,
    over_copied,
    rows_aligned,
    touched_elements,
    with_axes_last,
    with_batches_apart,
)
from tilec.backends.triton.plan.plan import Setting
from tilec.backends.triton.plan.sizes import CACHE_LINE, VECTOR_BYTES, copied_row, rounded_up
from tilec.cost import size_in_bytes
from tilec.ir.at_sizes import least
from tilec.ir.index import Affine, distinct_variables, linear, substitute_affine
from tilec.ir.program import Access, Expr, accesses_in
from tilec.ir.types import ITEM_BYTES, NARROW
from tilec.transforms.util.rewrite import with_parts

UNALIGNED = 5  # times as long as others a library's products of 16 bits take where rows begin anywhere, at least
MOST_COPIED = 2**28  # bytes of a tensor that is copied for where its rows begin in lines
COPIES = 1.4  # of the time that memory takes, what copies from rows that begin anywhere do
WINDOW_AXES = 2  # of windows for which a library's convolution of odd channels takes longer than ours over copies
LIBRARY_GROUPS = 8  # what a library's convolution of groups takes, beside a product of as many terms, at least


_Copies = Mapping[Access, CopyLayout]  # by what reads a tensor: how its copy lies
_Way = tuple[float, OperandRewrite | None]  # seconds, and copies where there are some


def over_copies(
    product: MatrixProduct, setting: Setting, by_library: Callable[[], bool], left: Callable[[], bool], alone: bool
) -> OperandRewrite | None:
    """The product over copies that lie as kernels read them; None where nothing is gained. `by_library`: whether a
    library takes it as it is; `left`: whether kernels of ours are no faster then; `alone`: whether it has no
    epilogue."""
    if worthwhile(product.dot, product.space):
        found = with_batches_apart(product, setting) or with_channels_last(product, setting)
        plain = of_matrices(product) if alone and product.multiplications >= LEAST_WORK else product
        padded = plain is not product and has_channels_last(product) and not reads_windows(product) and by_library()
        given = plain if padded else product
        found = found or with_rows_aligned(given, setting, lambda: left() and by_library(), alone, padded)
        if found is not None:
            return found
    return with_channels_aligned(product, setting, by_library, left)


def of_matrices(product: MatrixProduct) -> MatrixProduct:
    """A convolution of windows of one place as a product of matrices, without the variables of one value and the axes
    that these alone walk; any other product itself."""
    space, view, dot = product.space, product.view, product.dot
    every = (*space.outputs, *space.reductions)
    places = {v: Affine.of((), space.low[0][v]) for v in every if space.single(v)} if len(space.classes) == 1 else {}
    if not places or not all(map(is_element, (*dot.left, *dot.right))):
        return product
    s = substitute_affine(view.statement, places)
    accesses = {*accesses_in(*s.roots), Access(s.output, s.index or ())}
    kept = {a.tensor: [axis for axis, e in enumerate(a.index) if linear(e) != Affine()] for a in accesses}
    if len(kept) < len(accesses):
        return product
    types, strides = dict(view.types), dict(view.strides)
    for name, axes in kept.items():
        types[name] = replace(types[name], shape=tuple(types[name].shape[axis] for axis in axes))
        strides[name] = tuple(strides[name][axis] for axis in axes)
    index, sizes = (tuple(of[axis] for axis in kept[s.output]) for of in (s.index or (), s.sizes or ()))
    moved: dict[Expr, Expr] = {a: replace(a, index=tuple(a.index[x] for x in kept[a.tensor])) for a in accesses}
    s = replace(s, index=index, sizes=sizes, body=with_parts(s.body, moved))
    found = product_over(coalesce(StridedView(s, types, strides, view.int64_index)))
    if found is None or found.dot.dtype != dot.dtype or found.counts != product.counts:
        return product
    return replace(found, dot=replace(found.dot, scale=dot.scale))


def has_channels_last(product: MatrixProduct) -> bool:
    """Whether memory runs along channels, which are no places of a window, in both operands."""
    axes = {a: _rows_axis(a.tensor, product.view) for a in product.accesses()}
    return all(x is not None and linear(a.index[x]).bare is not None for a, x in axes.items())


def reads_windows(product: MatrixProduct) -> bool:
    """Whether windows of an image and their channels are summed over, as they lie: gradients turn windows round, or
    sum over places."""
    summed, strides = {*product.dot.summed}, product.view.strides
    windowed = {*product.space.reductions}
    for a in product.accesses():
        windows = [form for e in a.index if (form := linear(e)).bare is None]
        channels = {linear(e).bare for e, n in zip(a.index, strides[a.tensor], strict=True) if n == 1}
        turned = any(form.coefficient(v) < 0 for form in windows for v in windowed & {*form.variables()})
        if windows and (turned or channels.isdisjoint(summed)):
            return False
    return True


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
    if (LIBRARY_GROUPS - 1) * product.multiplications / PRODUCTS[dot.dtype] < _copying(_in_rows(copied), product.view):
        return None
    return _on_hopper(with_axes_last(product, copied), setting)


def with_rows_aligned(
    product: MatrixProduct,
    setting: Setting,
    by_library: Callable[[], bool],
    alone: bool = True,
    padded: bool = False,
) -> OperandRewrite | None:
    """A product of matrices of 16 bits over copies of the operands whose rows do not begin at whole vectors, and of
    those whose rows begin between lines of the caches where the boxes of Hopper's kernels gain more than a copy takes;
    None where there are none, or a copy takes longer than a library loses. `padded`: a library copies the first, too,
    as it does for gradients of 1 x 1 convolutions (from 201 to 133 channels 259 us, ours 131 on an H100)."""
    dot, space, view = product.dot, product.space, product.view
    if dot.dtype not in NARROW or len(space.classes) != 1 or not space.covers or not product.is_plain:
        return None
    if not all(len(side) == 1 and is_element(side[0]) for side in (dot.left, dot.right)):
        return None
    lost = (UNALIGNED - 1) * product.multiplications / PRODUCTS[dot.dtype]
    needed = _in_need(product, setting, alone)
    lost = math.inf if padded and needed is not None and needed[0] else lost
    if needed is None or lost < _copying(needed[0], view):
        return None
    wanted, late = needed
    together = [dot.summed, *((dot.rows, dot.columns) if alone else ())]
    joined = {a: layout for a in product.accesses() if (layout := _joined(a, product, together)) is not None}
    if not wanted:
        worth = [found for found in (late, joined) if found and lost >= _copying(found, view)]
        if not worth or by_library():
            return None
    found = _timed(product, wanted, late, setting)
    over = _over(product, joined)
    inner = None if over is None else _in_need(over.coalesced, setting, alone)
    if over is not None and inner is not None and _are_one(joined, product, over.coalesced):
        times = [time for time, _ in _timed(over.coalesced, *inner, setting)]
        found += [(least(times, float) + COPIES * _copying(joined, view), over)] if times else []
    return _fastest(found)


def _in_need(product: MatrixProduct, setting: Setting, alone: bool) -> tuple[_Copies, _Copies] | None:
    """Copies of operands whose rows do not begin at whole vectors, and of those that kernels may read as they are, as
    `with_rows_aligned` says; None where one that is needed has no rows."""
    view = product.view
    axes = {a: _rows_axis(a.tensor, view) for a in product.accesses() if distinct_variables(a.index) is not None}
    unaligned = [a for a in product.accesses() if not rows_aligned(a.tensor, view, setting)]
    as_one = [a for a in unaligned if alone and a in axes and _aligned_as_one(a, product, setting)]
    if any(axes.get(a) is None for a in unaligned):
        return None
    gaining = [a for a, x in axes.items() if a not in unaligned and _gains_lines(a.tensor, x, view)]
    needed = {a: axes[a] for a in unaligned if a not in as_one}
    return _in_rows(needed), _in_rows({a: axes[a] for a in axes if a in as_one or a in gaining})


def _aligned_as_one(access: Access, product: MatrixProduct, setting: Setting) -> bool:
    """Whether an operand walks its rows, or columns, as one, so that a map of them has no strides between vectors."""
    dot, space, view = product.dot, product.space, product.view
    t, strides, at = view.types[access.tensor], view.strides[access.tensor], _axes(access)
    for group in (dot.rows, dot.columns):
        own = _as_they_lie([v for v in group if v in at], access, view)
        if len(own) > 1 and strides[at[own[-1]]] == 1 and _lie_together(own, access, view):
            others = [strides[at[v]] * ITEM_BYTES[t.dtype] for v in at if v not in own and not space.single(v)]
            return access.tensor not in setting.misaligned and all(step % VECTOR_BYTES == 0 for step in others)
    return False


def _in_rows(axes: Mapping[Access, int | None]) -> dict[Access, CopyLayout]:
    """Layouts with these axes innermost."""
    return {a: CopyLayout.with_last(axis, len(a.index)) for a, axis in axes.items() if axis is not None}


def _joined(access: Access, product: MatrixProduct, groups: Sequence[Sequence[str]]) -> CopyLayout | None:
    """The layout of a copy of an operand in which the variables of one of the groups, of which some are its innermost,
    lie next to each other, as they do in the product's other tensor that knows them; None where they lie so, are one,
    or do not there."""
    dot, space, view = product.dot, product.space, product.view
    at = _axes(access)
    every = [dot.batch, dot.rows, dot.columns, dot.summed]
    kept = [_as_they_lie([v for v in g if v in at and not space.single(v)], access, view) for g in every]
    last = [g for g in kept if g and view.strides[access.tensor][at[g[-1]]] == 1]
    inner = next((g for g in last if any({*g} <= {*own} for own in groups)), [])
    other = next((a for a in touched_elements(product) if a != access and {*inner} <= _axes(a).keys()), None)
    if len(inner) < 2 or _lie_together(inner, access, view) or other is None:
        return None
    ordered = _as_they_lie(inner, other, view)
    if ordered[-1] != inner[-1] or not _lie_together(ordered, other, view):
        return None
    outer = [v for v in at if space.single(v)] + [v for g in kept if g is not inner for v in g]
    return CopyLayout(tuple(at[v] for v in (*outer, *ordered)), len(ordered))


def _are_one(joined: _Copies, product: MatrixProduct, over: MatrixProduct) -> bool:
    """Whether what lies next to each other in copies is one variable there: else these would be copied again."""
    left = {a.tensor: len(a.index) for a in over.accesses()}
    output = product.space.statement.output
    return all(left[copy_name(output, a, x)] <= len(a.index) - x.joined + 1 for a, x in joined.items())


def _axes(a: Access) -> dict[str, int]:
    """The axes that variables walk alone."""
    return {v: axis for axis, v in enumerate(distinct_variables(a.index) or ())}


def _as_they_lie(names: Sequence[str], a: Access, view: StridedView) -> list[str]:
    """Variables in the order in which an access walks memory, outermost first."""
    at = _axes(a)
    return sorted(names, key=lambda v: -view.strides[a.tensor][at[v]])


def _lie_together(names: Sequence[str], a: Access, view: StridedView) -> bool:
    """Whether an access walks these variables, outermost first, as one."""
    at, shape, strides = _axes(a), view.types[a.tensor].shape, view.strides[a.tensor]
    return all(strides[at[v]] == strides[at[w]] * shape[at[w]] for v, w in pairwise(names))


def _over(product: MatrixProduct, copied: _Copies) -> OperandRewrite | None:
    """The product over copies, with summed variables as one that lie so there; None where there are none."""
    over = over_copied(product, copied)
    own = None if over is None else product_over(coalesce(over.view, lambda pair: pair <= {*product.dot.summed}))
    if over is None or own is None:
        return None
    return replace(over, view=own.view, space=own.space, dot=replace(own.dot, scale=product.dot.scale))


def _timed(
    product: MatrixProduct, wanted: _Copies, late: _Copies, setting: Setting, filled: bool = False
) -> list[_Way]:
    """The product over the copies that are wanted and some of those others, the smallest first: the seconds of
    Hopper's kernels, where these take it, and of copying. `filled`: rows of copies may end with boxes."""
    found = list[_Way]()
    smallest = sorted(late, key=lambda a: size_in_bytes(product.view.types[a.tensor]))
    for n in range(len(smallest) + 1):
        copied = {**wanted, **{a: late[a] for a in smallest[:n]}}
        boxes = _filled(copied, product) if filled else None
        for made in (copied,) if boxes is None else (copied, boxes):
            over = _over(product, made)
            own = None if over is None and made else product if over is None else over.coalesced
            timed = None if own is None else timed_steps(own, setting)
            if timed is not None:
                slow = {a: layout for a, layout in made.items() if a in wanted or not filled}
                quick = {a: layout for a, layout in made.items() if a not in slow}
                copying = COPIES * _copying(slow, product.view) + _copying(quick, product.view)
                found.append((timed[0] / 1e6 + copying, over))
    return found


def _filled(copied: _Copies, product: MatrixProduct) -> _Copies | None:
    """The copies with rows that end with boxes, of half a line where these leave less empty (5 x 5 from 80 to 48: 90 us
    instead of 119), where those of some would end inside of one, which takes longer to come; else None. What is summed
    is filled with zeros in both operands."""
    types, accesses = product.view.types, product.accesses()
    whole: dict[str, int] = {}
    for a, layout in copied.items():
        t, axis = types[a.tensor], layout.order[-1]
        if (v := linear(a.index[axis]).bare) is not None:
            n, line = t.shape[axis], CACHE_LINE // ITEM_BYTES[t.dtype]
            whole[v] = rounded_up(n, line // 2 if n > line and 0 < n % line <= line // 2 else line)
    for v in {*whole} & {*product.dot.summed}:
        if any(a not in copied and v in linear(e).variables() for a in accesses for e in a.index):
            del whole[v]
    filled = dict[Access, CopyLayout]()
    for a, layout in copied.items():
        own = types[a.tensor].shape
        shape = tuple(whole.get(linear(e).bare or "", n) for e, n in zip(a.index, own, strict=True))
        filled[a] = replace(layout, shape=None if shape == own else shape)
    return filled if filled != copied else None


def _fastest(ways: Sequence[_Way]) -> OperandRewrite | None:
    """None where that is the product as it is, or there are none."""
    return least(ways, lambda way: way[0])[1] if ways else None


def _copying(copied: _Copies, view: StridedView) -> float:
    """Seconds that copies take."""
    moved = 0.0
    for a, layout in copied.items():
        t = view.types[a.tensor]
        moved += size_in_bytes(t) + math.prod(layout.memory(t)) * ITEM_BYTES[t.dtype]
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
    single = product.space.single
    taps = any(sum(not single(v) for v in linear(e).variables()) > 1 for a in product.accesses() for e in a.index)
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
    copied = _in_rows({a: axis for a, axis in channels.items() if a in unaligned})
    if copied and windows > WINDOW_AXES and by_library():
        return None
    late = _in_rows({a: x for a, x in channels.items() if a not in copied and _gains(a.tensor, x, view)})
    took = math.prod(max(n, LEAST) for n in product.counts) * product.repeated / PRODUCTS[dot.dtype]
    lost = math.inf if taps and by_library() else (1 / POINTERS - 1) * took  # a library copies, too
    if copied and lost < _copying(copied, view) or not copied and (not late or left()):
        return None
    if worthwhile(dot, product.space):
        return _fastest(_timed(product, copied, late, setting, filled=True))
    over = over_copied(product, copied)
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
