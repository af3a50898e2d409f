"""Long filters as products of matrices: neighbouring outputs are the columns.

`Y[t] = +(X[c, t + l] * H[c, l])` has no columns: H knows no output, and each of its elements is read again for every
one. Of blocks of 64 outputs, t = 64*u + r, it is the product `Y[u, r] = +(X[c, 64*u + w] * H[c, w - r])`, whose
elements of H lie in a band. Tensor cores multiply it in less time than the terms are added up one by one, although a
block of 64 outputs and L taps has L + 63 places w for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.pairs import PRODUCTS
from tilec.backends.common.terms import split_factors
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space, build_space
from tilec.backends.triton.matmul.dot import (
    LAUNCH_SECONDS,
    MEMORY_BYTES,
    POINTERS,
    StagedProduct,
    product_over,
    worthwhile,
)
from tilec.backends.triton.matmul.pack import with_axes_last
from tilec.backends.triton.plan.sizes import contiguous, rounded_up
from tilec.cost import size_in_bytes
from tilec.ir.index import Affine, distinct_variables, linear, substitute_affine
from tilec.ir.infer import statement_type
from tilec.ir.program import Access, Constraint, Expr, Float, Index, Int, Statement, index_variables
from tilec.ir.types import Types
from tilec.transforms.util.factors import Factor, quotient_of
from tilec.transforms.util.naming import all_variables, fresh_variable

_TERMS_OF_FILTERS = 1e12  # points a second, term by term, as measured on an H100
_ACROSS = 64  # outputs that are columns
_FEWEST_TAPS = 32
_GAIN = 1.5  # what is gained at least


@dataclass(frozen=True)
class _Slide:
    """The access with the place `across * v + along * tap` but for a number, and the other access."""

    moved: Access
    other: Access
    v: str
    tap: str
    across: int
    along: int


def recognise_sliding(view: StridedView) -> StagedProduct | None:
    """The statement as such a product; None where it is none, or takes less time term by term."""
    s, types = view.statement, view.types
    outputs = distinct_variables(s.index)
    if s.aggregation != "sum" or outputs is None or s.guard is not None or s.default is not None or s.constraints:
        return None
    dtype = types[s.output].dtype
    if dtype not in PRODUCTS or statement_type(s, types).dtype != dtype:
        return None
    split = split_factors(s.body, types)
    if split is not None and len(split[0]) > 2:
        return _of_two(view, *split)
    space = build_space(s, types) if split is not None and len(split[0]) == 2 else None
    if split is None or space is None or len(space.classes) != 1 or not space.covers:
        return None
    a, b = split[0]
    if not isinstance(a, Access) or not isinstance(b, Access) or {types[x.tensor].dtype for x in (a, b)} != {dtype}:
        return None
    slides = [x for pair in ((a, b), (b, a)) for x in _slides(*pair, space)]
    best = max(slides, key=lambda x: space.largest(x.tap), default=None)
    if best is None or not _pays(best, space, types):
        return None
    found = _over_batch_copies(_in_blocks(view, best, space), best, space)
    product = product_over(found.product)
    return found if product is not None and worthwhile(product.dot, product.space) else None


def _of_two(view: StridedView, factors: Sequence[Expr], scale: float) -> StagedProduct | None:
    """The product of one of several factors, at a place of two variables, and of all others, which are multiplied
    first: none of them knows that place."""
    s, types = view.statement, view.types
    moved = [f for f in factors if any(len(linear(e).variables()) > 1 for e in getattr(f, "index", ()))]
    rest = [f for f in factors if f not in moved and isinstance(f, Access)]
    whole = next((f for f in rest if {*index_variables(*f.index)} >= {*index_variables(*rest)}), None)
    if len(moved) != 1 or len(rest) + 1 < len(factors) or whole is None or distinct_variables(whole.index) is None:
        return None
    if not {*index_variables(*moved)} - {*index_variables(whole)}:
        return None
    name, t = f"{s.output}.factor", replace(types[s.output], shape=types[whole.tensor].shape)
    if any(types[f.tensor].dtype != t.dtype for f in rest):
        return None
    first = Statement(
        name, whole.index, tuple(map(Int, t.shape)), quotient_of([Factor(f, False) for f in rest]), "assign"
    )
    both = moved[0] * Access(name, whole.index)
    seen = view.with_tensor(name, t, contiguous(t.shape))
    body = both if scale == 1 else both * Float(float(scale))
    found = recognise_sliding(replace(seen, statement=replace(s, body=body)))
    if found is None:
        return None
    made = {name: t.shape, **found.made}
    return replace(found, made=made, before=(replace(seen, statement=first), *found.before))


def _slides(moved: Access, other: Access, space: Space) -> Iterator[_Slide]:
    elsewhere = index_variables(*other.index)
    for axis, e in enumerate(moved.index):
        form = linear(e)
        names = form.variables()
        if len(names) != 2 or not form.is_affine or not form.is_integral or set(names) <= set(space.reductions):
            continue
        v, tap = sorted(names, key=space.reductions.__contains__)
        beside = index_variables(*(x for d, x in enumerate(moved.index) if d != axis))
        taps = [linear(x) for x in other.index if tap in index_variables(x)]
        steps = int(form.coefficient(v)), int(form.coefficient(tap))
        if v not in space.outputs or tap not in space.reductions or {abs(n) for n in steps} != {1}:
            continue
        if not {v, tap} & set(beside) and v not in elsewhere and len(taps) == 1 and taps[0].bare == tap:
            yield _Slide(moved, other, v, tap, *steps)


def _over_batch_copies(found: StagedProduct, x: _Slide, space: Space) -> StagedProduct:
    """The product over copies, where elements of other batches (what both tensors know and each output has of its own)
    are neighbours: of tensors along the filter, of the result along its blocks."""
    product = product_over(found.product)
    batch = {*index_variables(*x.moved.index)} & {*index_variables(*x.other.index)} & {*space.outputs}
    if product is None or not batch:
        return found
    written = Access(product.space.statement.output, product.space.statement.index or ())
    axes: dict[Access, int | None] = {}
    for a in (*product.accesses(), written):
        strides = product.view.strides[a.tensor]
        inside = any(step == 1 and batch & {*index_variables(e)} for e, step in zip(a.index, strides, strict=True))
        own = [d for d, e in enumerate(a.index) if not batch & {*index_variables(e)}]
        axes[a] = min(own, key=lambda d: strides[d], default=None) if inside else None
    over = with_axes_last(product, axes)
    if over is None:
        return found
    return replace(found, product=over.view, before=over.before, after=(*over.after, *found.after))


def _pays(x: _Slide, space: Space, types: Types) -> bool:
    taps, (extent,) = space.largest(x.tap), space.extent
    points = math.prod(extent.values())
    tensors = (space.statement.output, x.moved.tensor, x.other.tensor)
    moved = sum(size_in_bytes(types[name]) for name in tensors) / MEMORY_BYTES + LAUNCH_SECONDS
    rate = POINTERS * PRODUCTS[types[space.statement.output].dtype]
    blocks = rounded_up(extent[x.v], _ACROSS) / extent[x.v]
    takes = blocks * points * (taps + _ACROSS - 1) / max(taps, 1) / rate
    return taps >= _FEWEST_TAPS and points / _TERMS_OF_FILTERS > _GAIN * (takes + 2 * moved)


def _in_blocks(view: StridedView, x: _Slide, space: Space) -> StagedProduct:
    """The product, into a view of the result; or, where that is no whole number of blocks, into a tensor of its own,
    from which the result is taken."""
    s, types, strides = view.statement, view.types, view.strides
    known = set(all_variables(s))
    u = fresh_variable("u", known)
    r, w = fresh_variable("r", known | {u}), fresh_variable("w", known | {u})
    taps, outputs, low = space.largest(x.tap), space.largest(x.v), space.low[0][x.tap]
    start = min(x.along * low, x.along * (low + taps - 1)) + min(0, x.across * (_ACROSS - 1))
    place = Affine.of([(Index(w), x.along), (Index(r), -x.along * x.across)], x.along * start)
    count = -(-outputs // _ACROSS)
    shape, whole = types[s.output].shape, outputs == count * _ACROSS
    filled = tuple(n if linear(e).bare != x.v else count * _ACROSS for e, n in zip(s.index or (), shape, strict=True))
    steps = strides[s.output] if whole else contiguous(filled)
    axes: list[tuple[Expr, int, int]] = []  # index, size and stride
    for e, n, step in zip(s.index or (), shape, steps, strict=True):
        blocks = [(Index(u), count, _ACROSS * step), (Index(r), _ACROSS, step)]
        axes += blocks if linear(e).bare == x.v else [(e, n, step)]
    index, sizes, own = zip(*axes, strict=True)
    name = s.output if whole else f"{s.output}.blocks"
    product = replace(
        substitute_affine(s, {x.v: Affine.of([(Index(u), _ACROSS), (Index(r), 1)]), x.tap: place}),
        output=name,
        index=index,
        sizes=tuple(map(Int, sizes)),
        constraints=(Constraint(Index(w), Int(taps + _ACROSS - 1)),),
    )
    made = replace(view, statement=product).with_tensor(name, replace(types[s.output], shape=sizes), own)
    if whole:
        return StagedProduct(made, {})
    last = replace(s, body=Access(name, s.index or ()), aggregation="assign")
    apart = replace(view, statement=last).with_tensor(name, types[s.output], steps)
    return StagedProduct(made, {name: filled}, after=(apart,))
