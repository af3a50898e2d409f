"""Copies of operands in the layout that tensor cores read fastest.

float32 products (tf32, tf32x3) run on Hopper's wide instructions only where both operands lie along the reduction. A
product with enough work repays a copy of the smaller evil: the operand that does not, with that axis moved last.

Where elements of other batches lie between the rows of a tensor, `A[n, p, g]` for batches g, a kernel moves a sector of
memory for each element of it. Such tensors are copied, a result after the product.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.pairs import PRODUCTS
from tilec.backends.triton.emit.frame import free_of
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space, build_space
from tilec.backends.triton.matmul.blocks import LEAST_REUSE, inner_variables
from tilec.backends.triton.matmul.dot import (
    MatrixProduct,
    OperandRewrite,
)
from tilec.backends.triton.matmul.hopper.views import DESCRIPTOR_ALIGNMENT
from tilec.backends.triton.plan.plan import Allocate, Once, Release, Setting, Step
from tilec.backends.triton.plan.sizes import contiguous, rows_of_vectors
from tilec.backends.triton.pointwise.pointwise import pointwise
from tilec.backends.triton.pointwise.tiling import choose_pointwise_tiling
from tilec.cost import size_in_bytes
from tilec.ir.index import distinct_variables, linear
from tilec.ir.program import Access, Call, Expr, Index, Int, Statement, map_values, value_accesses
from tilec.ir.types import CASTS, ITEM_BYTES, TensorType
from tilec.transforms.util.rewrite import with_parts

LEAST_WORK = 2**27  # multiplications that repay a copy
LEAST_SUMMED = 16  # points of any other reduction that do
FEWEST_BATCHES, FEWEST_APART = 4, 16  # of what lies innermost, and elements that lie next to each other in the copy
LEAST_BYTES_APART = 2**21  # bytes of a tensor that caches would hold


def packed(product: MatrixProduct) -> OperandRewrite | None:
    """The product over a copy of an operand; None where nothing is gained."""
    dot, space, view = product.dot, product.space, product.view
    if dot.dtype != "float32":
        return None
    inner = inner_variables(product, LEAST_REUSE // 2)
    if product.multiplications < LEAST_WORK or len(inner) != 1:
        return None
    before: list[Step] = []
    after: list[Step] = []
    for side, other in ((dot.left, dot.columns), (dot.right, dot.rows)):
        access = side[0] if len(side) == 1 else None
        if not isinstance(access, Access) or space.count(other) < LEAST_REUSE:
            continue
        axis = _axis(access, inner[0])
        if axis is None or view.strides[access.tensor][axis] == 1:
            continue
        name, view, made, released = _copied(access.tensor, axis, view)
        before += made
        after += released
        swapped = replace(access, tensor=name)
        copies: dict[Expr, Expr] = {access: swapped}
        s = view.statement
        view = replace(view, statement=replace(s, body=with_parts(s.body, copies)))
        dot = replace(dot, left=_side(dot.left, copies), right=_side(dot.right, copies))
    if not before:
        return None
    return OperandRewrite(view, replace(space, statement=view.statement), tuple(before), tuple(after), dot)


def with_batches_apart(product: MatrixProduct, setting: Setting) -> OperandRewrite | None:
    """The product over copies of tensors of which elements of other batches are neighbours, its result's elements moved
    to their places afterwards; None where there are no such tensors."""
    dot, space = product.dot, product.space
    if len(space.classes) != 1 or not space.covers or dot.dtype not in PRODUCTS or not product.is_plain:
        return None
    if not all(len(side) == 1 and is_element(side[0]) for side in (dot.left, dot.right)):
        return None
    return with_axes_last(product, {a: _axis_apart(a, product) for a in touched_elements(product)})


def touched_elements(product: MatrixProduct) -> list[Access]:
    """The elements that a product reads, and then the one that it writes."""
    s = product.space.statement
    return [*dict.fromkeys(product.accesses()), Access(s.output, s.index or ())]


@dataclass(frozen=True)
class CopyLayout:
    """How a copy lies in memory: its axes, outermost first, of which the last `joined` make up one row. Rows begin at
    whole vectors. `shape`: of a copy that is larger than the tensor, with zeros behind it."""

    order: tuple[int, ...]
    joined: int = 1
    shape: tuple[int, ...] | None = None

    @classmethod
    def with_last(cls, axis: int, rank: int) -> CopyLayout:
        return cls((*(a for a in range(rank) if a != axis), axis))

    @property
    def in_place(self) -> bool:
        """Whether the copy differs from a contiguous tensor in where rows begin alone."""
        return self == CopyLayout(tuple(range(len(self.order))))

    def copied(self, t: TensorType) -> TensorType:
        """The type of the copy."""
        return t if self.shape is None else replace(t, shape=self.shape)

    def memory(self, t: TensorType) -> tuple[int, ...]:
        """The shape of what is allocated."""
        t = self.copied(t)
        shape = [t.shape[a] for a in self.order]
        inner = len(shape) - self.joined
        return rows_of_vectors(replace(t, shape=(*shape[:inner], math.prod(shape[inner:]))))

    def strides(self, t: TensorType) -> tuple[int, ...]:
        """The strides of the tensor's axes in the copy."""
        inside = contiguous([self.copied(t).shape[a] for a in self.order[len(self.order) - self.joined :]])
        found = dict(zip(self.order, (*contiguous(self.memory(t))[:-1], *inside), strict=True))
        return tuple(found[a] for a in range(len(self.order)))


def copy_name(output: str, access: Access, layout: CopyLayout) -> str:
    """The name of a copy for the product that is called so."""
    *_, last = order = layout.order
    axes = (last,) if replace(layout, shape=None) == CopyLayout.with_last(last, len(order)) else order
    return f"{output}.{access.tensor}_{'_'.join(map(str, axes))}"


def with_axes_last(product: MatrixProduct, axes: Mapping[Access, int | None]) -> OperandRewrite | None:
    """The product over copies of tensors with these axes innermost, their rows at whole vectors, its result moved to
    its place afterwards; None where there are none."""
    found = {a: CopyLayout.with_last(x, len(a.index)) for a, x in axes.items() if x is not None}
    return over_copied(product, found)


def over_copied(product: MatrixProduct, layouts: Mapping[Access, CopyLayout]) -> OperandRewrite | None:
    """The product over copies of tensors that lie so, its result moved to its place afterwards; None where there are
    none."""
    space, view = product.space, product.view
    s, index = view.statement, view.statement.index or ()
    before: list[Step] = []
    after: list[Step] = []
    copies: dict[Expr, Expr] = {}
    named: dict[str, CopyLayout] = {}
    for access in dict.fromkeys(product.accesses()):
        layout = layouts.get(access)
        if layout is not None:
            name = copy_name(s.output, access, layout)
            while named.setdefault(name, layout) != layout:  # of a tensor that is read twice, only one copy ends so
                name = f"{name}.other"
            view, once, released = copied_apart(name, access.tensor, layout, view)
            view = _in_order(name, layout, view)
            before.append(once)
            after += released
            copies[access] = replace(access, tensor=name, index=tuple(access.index[a] for a in layout.order))
    s = replace(s, body=with_parts(s.body, copies))
    layout = layouts.get(Access(s.output, index))
    if layout is not None:
        name, output = f"{s.output}.apart", s.output
        view = _with_copy(name, output, layout, view)
        before.append(Allocate(name, layout.memory(view.types[name]), view.types[name].dtype))
        after = [*_copy(name, output, view), Release((name,)), *after]
        s = replace(s, output=name)
    if not before:
        return None
    view = replace(view, statement=s)
    return OperandRewrite(view, replace(space, statement=s), tuple(before), tuple(after))


def _in_order(name: str, layout: CopyLayout, view: StridedView) -> StridedView:
    """The view with a copy's axes in the order in which they lie."""
    t, strides = view.types[name], view.strides[name]
    shape = tuple(t.shape[a] for a in layout.order)
    return view.with_tensor(name, replace(t, shape=shape), tuple(strides[a] for a in layout.order))


def copied_apart(name: str, tensor: str, layout: CopyLayout, view: StridedView) -> tuple[StridedView, Once, list[Step]]:
    """All tensors with a copy that lies so, the step that makes it, of which one serves all, and what lets it go."""
    shape, strides = view.types[tensor].shape, view.strides[tensor]
    rows = _rows(shape, strides) if layout.in_place else (shape, strides)
    key = ("apart", tensor, *rows, CopyLayout(tuple(range(len(rows[0])))) if layout.in_place else layout)
    view, made, released = _copied_to(name, tensor, layout, view, as_stored=True)
    return view, Once(key, (name,), tuple(made)), released


def _rows(shape: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A tensor's shape and strides with all axes but the last as one that lie so: of equal ones copies are equal."""
    found = [*zip(shape[-1:], strides[-1:], strict=True)]
    for n, step in reversed([*zip(shape[:-1], strides[:-1], strict=True)]):
        count, least = found[-1]
        joined = len(found) > 1 and step == count * least
        found[-1:] = [(n * count, least)] if joined else [found[-1], (n, step)]
    sizes, steps = zip(*reversed(found), strict=True) if shape else ((), ())
    return sizes, steps


def is_element(e: Expr) -> bool:
    """Whether a factor is an element of a tensor, perhaps in another type."""
    return isinstance(e, Access) or isinstance(e, Call) and e.function in CASTS and isinstance(e.args[0], Access)


def _axis_apart(access: Access, product: MatrixProduct) -> int | None:
    """The axis to lie innermost in a copy of a tensor in which batches do; None where they do not, or caches help."""
    space, batch = product.space, product.dot.batch
    t, strides = product.view.types[access.tensor], product.view.strides[access.tensor]
    names = distinct_variables(access.index)
    if names is None or size_in_bytes(t) < LEAST_BYTES_APART:
        return None
    axes = sorted((a for a, v in enumerate(names) if not space.single(v)), key=lambda a: strides[a])
    others = [a for a in axes if names[a] not in batch]
    if not others or strides[axes[0]] != 1:
        return None
    inner = [space.count((names[a],)) for a in axes[: axes.index(others[0])]]
    far = math.prod(inner) >= FEWEST_BATCHES and space.count((names[others[0]],)) >= FEWEST_APART
    return others[0] if inner and far else None


def wanted_along(product: MatrixProduct) -> str | None:
    """The summed variable along which operands that are computed beforehand shall lie, so that none is copied."""
    inner, much = inner_variables(product, LEAST_REUSE // 2), product.multiplications >= LEAST_WORK
    copied = product.dot.dtype == "float32" or any(_axis_apart(a, product) is not None for a in product.accesses())
    return inner[0] if copied and len(inner) == 1 and much else None


def columns_packed(space: Space, view: StridedView) -> OperandRewrite | None:
    """The same for any other reduction over pairs of rows and columns: what columns alone read lies along the columns
    then, so that a block's reads are of whole vectors. None where nothing is gained."""
    tiling = choose_pointwise_tiling(space, view)
    reductions = [v for v in space.reductions if not space.single(v)]
    if not tiling.outer or tiling.lanes is not None or len(reductions) != 1 or len(space.classes) != 1:
        return None
    (rows, _), (columns, _) = tiling.axes
    if min(space.count(rows), space.count(columns)) < LEAST_REUSE or space.count(tuple(reductions)) < LEAST_SUMMED:
        return None
    before: list[Step] = []
    after: list[Step] = []
    copies: dict[Expr, Expr] = {}
    s = space.statement
    for access in dict.fromkeys(value_accesses(s)):
        used = free_of(access)
        if reductions[0] not in used or not used & set(columns):
            continue
        axis = _axis(access, columns[-1])
        if axis is None or view.strides[access.tensor][axis] == 1:
            continue
        name, view, made, released = _copied(access.tensor, axis, view)
        before += made
        after += released
        copies[access] = replace(access, tensor=name)
    s = map_values(s, lambda e: with_parts(e, copies))
    view, space = replace(view, statement=s), replace(space, statement=s)
    if not copies or choose_pointwise_tiling(space, view).lanes is None:
        return None
    return OperandRewrite(view, space, tuple(before), tuple(after))


def _copied(tensor: str, axis: int, view: StridedView) -> tuple[str, StridedView, list[Step], list[Step]]:
    """The name of a copy with that axis last, all tensors with it, steps that make it and let it go."""
    name = f"{tensor}.packed{axis}"
    if name in view.types:  # a tensor times itself is copied once
        return name, view, [], []
    return name, *_copied_to(name, tensor, CopyLayout.with_last(axis, len(view.types[tensor].shape)), view)


def _copied_to(
    name: str, tensor: str, layout: CopyLayout, view: StridedView, as_stored: bool = False
) -> tuple[StridedView, list[Step], list[Step]]:
    """All tensors with the copy, steps that make it and let it go. `as_stored`: neighbours of a block are neighbours
    in the copy."""
    view = _with_copy(name, tensor, layout, view)
    made = Allocate(name, layout.memory(view.types[tensor]), view.types[name].dtype)
    copied = _copy(tensor, name, view, layout.order if as_stored else None)
    return view, [made, *copied], [Release((name,))]


def _with_copy(name: str, tensor: str, layout: CopyLayout, view: StridedView) -> StridedView:
    """The view with a copy of a tensor that lies so."""
    t = view.types[tensor]
    return view.with_tensor(name, layout.copied(t), layout.strides(t))


def source_of_rows(step: Step) -> str | None:
    """The tensor of which the step makes a copy that differs from it in where rows begin alone."""
    match step:
        case Once(key=("apart", str(tensor), tuple(shape), tuple(strides), CopyLayout() as layout)) if layout.in_place:
            return tensor if strides == contiguous(shape) else None
    return None


def rows_aligned(tensor: str, view: StridedView, setting: Setting) -> bool:
    """Whether rows of a tensor begin where vectors do, which maps of it ask for too."""
    t, whole = view.types[tensor], DESCRIPTOR_ALIGNMENT
    apart = (step for n, step in zip(t.shape, view.strides[tensor], strict=True) if n > 1 and step != 1)
    return tensor not in setting.misaligned and all(step * ITEM_BYTES[t.dtype] % whole == 0 for step in apart)


def _axis(access: Access, v: str) -> int | None:
    """The one axis that the variable walks, element by element."""
    found = [a for a, e in enumerate(access.index) if linear(e).coefficient(v)]
    return found[0] if len(found) == 1 and abs(linear(access.index[found[0]]).coefficient(v)) == 1 else None


def _copy(source: str, target: str, view: StridedView, order: Sequence[int] | None = None) -> list[Step]:
    """`order`: of the axes in which elements are walked, that of the source's unless it is said."""
    order = range(len(view.types[source].shape)) if order is None else order
    shape = tuple(view.types[target].shape[a] for a in order)
    index, read = (tuple(Index(f"i{a}") for a in axes) for axes in (order, sorted(order)))
    s = Statement(target, index, tuple(map(Int, shape)), Access(source, read))
    t, strides = replace(view.types[target], shape=shape), tuple(view.strides[target][a] for a in order)
    view = view.with_tensor(target, t, strides)
    space = build_space(s, view.types)
    assert space is not None
    return pointwise(space, replace(view, statement=s), s) or []


def _side(factors: tuple[Expr, ...], made: Mapping[Expr, Expr]) -> tuple[Expr, ...]:
    return tuple(with_parts(f, made) for f in factors)
