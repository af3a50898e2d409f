"""Operands that are functions of tensors, computed once before the product.

A product reads each element of an operand many times, so a function of it (`sin(K)`, `exp(A - M)`) is computed as often
inside the kernel. Where the operand is no larger as a tensor of its own than what it is read from, and used often
enough, it becomes one first: the product then reads bare elements, which Hopper's kernels take too.

A float32 product that gathers (`X[b, I[n], c] * W[n, s, c]`), or multiplies more than two tensors (a filter by its
window), reads through pointers, at a quarter of a library's rate: what is gathered or computed is stored for the
library's product or convolution where writing and reading it takes less time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from tilec.backends.common.domain import build_domain, point_conditions
from tilec.backends.common.pairs import PRODUCTS
from tilec.backends.common.scalars import value_children
from tilec.backends.common.terms import product_of
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space, build_space
from tilec.backends.triton.matmul.blocks import LEAST_REUSE
from tilec.backends.triton.matmul.dot import (
    LAUNCH_SECONDS,
    MEMORY_BYTES,
    POINTERS,
    Dot,
    MatrixProduct,
    OperandRewrite,
    operand_accesses,
    variables_outside,
)
from tilec.backends.triton.matmul.hopper.steps import lone_access
from tilec.backends.triton.plan.plan import Allocate, Release, Request, Step
from tilec.backends.triton.plan.sizes import LEAST_PADDED, contiguous, rows_of_vectors
from tilec.backends.triton.pointwise.pointwise import pointwise
from tilec.backends.triton.pointwise.tiling import choose_pointwise_tiling
from tilec.cost import size_in_bytes
from tilec.ir.functions import COSTLY_FUNCTIONS
from tilec.ir.index import Affine, linear
from tilec.ir.infer import expression_type
from tilec.ir.program import Access, Call, Expr, Int, Statement, index_variables, walk
from tilec.ir.types import FLOATS, ITEM_BYTES, NARROW, TensorType, Types
from tilec.lattice.sets import sizes_of
from tilec.transforms.util.rewrite import with_parts

MOST_STORED_OPERANDS = 2**28  # bytes
# points a second with operands that are gathered, and of a library: of float32 on an H200, of 16 bits on an H100
GATHERED = {"float32": (8e12, 15e12), **dict.fromkeys(NARROW, (75e12, 300e12))}


def hoisted(
    product: MatrixProduct,
    last: str | None = None,
    requested: bool = False,
    hopper: bool = False,
) -> OperandRewrite | None:
    """The product over operands that are computed beforehand; None where nothing is gained. `last`: the variable along
    which operands that know it shall lie. `requested`: others may ask for the same. `hopper`: Hopper's kernels would
    take bare elements."""
    dot, space = product.dot, product.space
    if len(space.classes) != 1 or dot.dtype == "int8":
        return None
    made = Precomputed(product.view)
    for side, other, zeros in (("left", dot.columns, dot.zero_left), ("right", dot.rows, dot.zero_right)):
        factors: tuple[Expr, ...] = getattr(dot, side)
        pays = hopper and _copy_pays(factors, product)
        if zeros or space.count(other) < LEAST_REUSE or not (pays or _computed(factors)):
            continue
        s = operand_of(side, factors, dot.dtype, space, made.view, last, larger=pays)
        if s is None:
            continue
        if not made.take(s, dot.dtype, requested, in_rows=hopper and _has_rows(s, dot)):
            return None
        read = (Access(s.output, s.index or ()),)
        dot = replace(dot, left=read) if side == "left" else replace(dot, right=read)
    if not made.before:
        return None
    return made.over(Call("mul", (product_of(dot.left), product_of(dot.right))), space, dot)


@dataclass
class Precomputed:
    """Tensors that are there before a statement: its `view` with them, and the steps that make and release them."""

    view: StridedView
    before: list[Step] = field(default_factory=list)
    after: list[Step] = field(default_factory=list)

    def take(self, s: Statement, dtype: str, requested: bool = False, in_rows: bool = False) -> bool:
        """Take in what a statement assigns, of this type; False where that is not all of its output. `requested`:
        others may ask for the same. `in_rows`: rows begin where boxes of them are copied fastest."""
        t = TensorType(sizes_of(s), dtype)
        memory = rows_of_vectors(t) if in_rows else t.shape
        view = self.view.with_tensor(s.output, t, contiguous(memory))
        own = build_space(s, view.types)
        if own is None or own.valid or not own.covers:
            return False
        steps = partial(assignment, own, view, s, memory)
        self.before += [Request(s, view.types, view.strides, view.int64_index, steps)] if requested else steps()
        self.after.append(Release((s.output,)))
        self.view = view
        return True

    def over(self, body: Expr, space: Space, dot: Dot | None = None) -> OperandRewrite:
        """The statement with this body, which reads them."""
        s = replace(self.view.statement, body=body)
        view, space = replace(self.view, statement=s), replace(space, statement=s)
        return OperandRewrite(view, space, tuple(self.before), tuple(self.after), dot)


def assignment(own: Space, view: StridedView, s: Statement, memory: tuple[int, ...]) -> list[Step]:
    """Steps that carry out an assignment over all of its output, which takes memory of that shape."""
    return [Allocate(s.output, memory, view.types[s.output].dtype), *(pointwise(own, view, s) or ())]


def _has_rows(s: Statement, dot: Dot) -> bool:
    """Whether an operand's last variable, of many values, is the only one of its kind: others would be one with it."""
    *outer, last = (linear(e).bare for e in s.index or ())
    kind = next((group for group in (dot.batch, dot.rows, dot.columns, dot.summed) if last in group), ())
    return {*outer}.isdisjoint(kind) and sizes_of(s)[-1] >= LEAST_PADDED


def _computed(factors: tuple[Expr, ...]) -> bool:
    """Whether there is anything to compute: casts of one element are free."""
    lone = factors[0]
    if isinstance(lone, Call) and len(lone.args) == 1 and lone.function in FLOATS:
        lone = lone.args[0]
    return len(factors) > 1 or not isinstance(lone, Access)


def _copy_pays(factors: tuple[Expr, ...], product: MatrixProduct) -> bool:
    """Whether an operand of 16 bits that is cast or computed (a weight of 4 bits) is better stored: Hopper's kernels
    do not take it as it is, and those that do reach a share of their rate."""
    dtype, types = product.dot.dtype, product.view.types
    read = {a.tensor for f in factors for a in operand_accesses(f)}
    lone = len(factors) == 1 and lone_access(factors, dtype, product.view) is not None
    if dtype not in NARROW or not read or lone:
        return False
    used = frozenset().union(*map(variables_outside, factors))
    stored = product.space.count(tuple(used)) * ITEM_BYTES[dtype]
    moved = sum(size_in_bytes(types[name]) for name in read) + 2 * stored
    if stored > MOST_STORED_OPERANDS:
        return False
    return product.multiplications / PRODUCTS[dtype] * (1 / POINTERS - 1) > moved / MEMORY_BYTES + LAUNCH_SECONDS


def operand_of(
    side: str,
    factors: tuple[Expr, ...],
    dtype: str,
    space: Space,
    view: StridedView,
    last: str | None,
    larger: bool = False,
) -> Statement | None:
    """The operand as an assignment over its own variables; `larger`: than what it is read from, perhaps."""
    compute_dtype = "float32" if dtype in NARROW else dtype
    body = Call(dtype, (product_of([Call(compute_dtype, (f,)) for f in factors]),))
    return _assigned(side, body, space, view, last, larger)


def _assigned(
    label: str, body: Expr, space: Space, view: StridedView, last: str | None = None, larger: bool = False
) -> Statement | None:
    """A statement that assigns the body over its own variables, `last` at the end; None where the tensor would be
    larger than what it is read from, unless it may be."""
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
    if not larger and math.prod(shape) > math.prod(view.types[largest.tensor].shape):
        return None
    index = tuple((Affine.variable(v) - low[v]).to_expr() for v in variables)
    return Statement(f"{space.statement.output}.{label}", index, tuple(map(Int, shape)), body)


def _in_order(e: Expr, names: frozenset[str]) -> list[str]:
    """The variables of an index, those first that go furthest: of a window's places, then of places within it."""
    form = linear(e)
    found = [v for v in index_variables(e) if v in names]
    return sorted(found, key=lambda v: -abs(form.coefficient(v))) if form.is_affine else found


def shared(space: Space, view: StridedView) -> OperandRewrite | None:
    """The same for any other reduction over pairs of rows and columns: what is costly in the body and known to one
    side is computed once for all points of the other. None where nothing is gained."""
    s = space.statement
    if len(space.classes) != 1 or not choose_pointwise_tiling(space, view).outer:
        return None
    made = Precomputed(view)
    found: dict[Expr, Expr] = {}
    outputs = {v for v in space.outputs if not space.single(v)}
    for e in _costly(s.body, outputs, set(space.reductions)):
        others = tuple(v for v in space.outputs if v in outputs - variables_outside(e))
        dtype = expression_type(e, view.types).dtype
        if e in found or space.count(others) < LEAST_REUSE or dtype not in FLOATS:
            continue
        own = _assigned(f"shared{len(found)}", e, space, made.view)
        if own is None:
            continue
        found[e] = Access(own.output, own.index or ())
        if not made.take(own, dtype):
            return None
    return made.over(with_parts(s.body, found), space) if found else None


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


@dataclass(frozen=True)
class StoredOperands:
    """Statements that store operands, and the product of these; `view` knows them all. `checked`: where zeros stand for
    what is outside, which infinities may have met."""

    operands: tuple[Statement, ...]
    product: Statement
    view: StridedView
    checked: bool


def with_stored_operands(given: MatrixProduct) -> StoredOperands | None:
    """None where nothing that is gathered or computed would gain by being stored. A gathered batch has blocks of its
    own, which kernels read as fast as others."""
    dot, space, view = given.dot, given.space, given.view
    s = view.statement
    plain = dot.scale == 1 and not dot.zero_result and s.guard is None and not s.constraints
    if dot.dtype not in GATHERED or not plain or space.count(dot.batch) > 1:
        return None
    sides = [dot.left, dot.right]
    made: list[Statement] = []
    checked = False
    for k, (factors, zeros) in enumerate(((dot.left, dot.zero_left), (dot.right, dot.zero_right))):
        gathered = any(is_gathered(f) for f in factors)
        if not gathered and len(factors) == 1 and isinstance(factors[0], Access):
            continue  # a library knows what is outside of a window
        if not set(zeros) <= set(point_conditions(factors, (), view.types)) or zeros and not gathered:
            return None
        own = operand_of(("left", "right")[k], factors, dot.dtype, space, view, None, larger=gathered)
        if own is None:
            return None
        checked = checked or bool(zeros)
        shape = sizes_of(own)
        types = {**view.types, own.output: TensorType(shape, dot.dtype)}
        view = replace(view, types=types, strides={**view.strides, own.output: contiguous(shape)})
        made.append(own)
        sides[k] = (Access(own.output, own.index or ()),)
    stored = sum(size_in_bytes(view.types[own.output]) for own in made)
    if not made or stored > MOST_STORED_OPERANDS:
        return None
    if checked and dot.dtype in NARROW:
        return None
    moved = 2 * stored + (size_in_bytes(view.types[s.output]) if checked else 0)
    launches = len(made) + checked
    slow, library = GATHERED[dot.dtype]
    if given.multiplications * (1 / slow - 1 / library) <= moved / MEMORY_BYTES + launches * LAUNCH_SECONDS:
        return None
    product = replace(s, body=Call("mul", (product_of(sides[0]), product_of(sides[1]))))
    return StoredOperands(tuple(made), product, replace(view, statement=product), checked)


def products_before_sums(
    flat: Statement, defracted: Statement, types: Types, given: MatrixProduct
) -> list[Statement] | None:
    """A float32 sum of products that meet where they are written, `Y[n + 160*t] = +(D[t, f] * W[n, f])`, as two
    statements: products, which a library makes, and the sums of these. None where that gains nothing."""
    dtype, rates = "float32", GATHERED["float32"]
    forms, domain = [linear(e) for e in flat.index or ()], build_domain(flat, types)
    written = [v for e in flat.index or () for v in _in_order(e, frozenset(index_variables(e)))]
    sides = operand_accesses(flat.body), operand_accesses(defracted.body)
    if given.dot.dtype != dtype or domain is None or flat.guard is not None or flat.default is not None:
        return None
    if all(form.bare is not None for form in forms) or len(written) > len({*written}) or flat.constraints:
        return None
    if not all(form.is_affine for form in forms) or not isinstance(flat.body, Call) or flat.body.function != "mul":
        return None
    if [flat.body.args, defracted.body] != [tuple(sides[0]), Call("mul", tuple(sides[1]))]:
        return None
    places: dict[str, Affine] = {}
    for a, b in zip(*sides, strict=True):
        for e, place in zip(a.index, b.index, strict=True):
            v = linear(e).bare
            if v is None:
                return None
            places[v] = linear(place)
    extent = [domain.extent[v] for v in written]
    stored = ITEM_BYTES[dtype] * math.prod(extent)
    moved = 2 * stored / MEMORY_BYTES + LAUNCH_SECONDS
    if given.multiplications * (1 / rates[0] - 1 / rates[1]) <= moved or stored > MOST_STORED_OPERANDS:
        return None
    name = f"{flat.output}.products"
    index = tuple((Affine.variable(v) - domain.low[v]).to_expr() for v in written)
    product = replace(flat, output=name, index=index, sizes=tuple(map(Int, extent)))
    read = Access(name, tuple((places[v] - domain.low[v]).to_expr() for v in written))
    return [product, replace(defracted, body=read)]


def has_stored_operands(dot: Dot) -> bool:
    """Whether a library would take an operand only if it were stored: it is gathered, or made of several elements.
    Hopper's kernels take stored operands of 16 bits as fast as a library."""
    sides = dot.left, dot.right
    return any(map(is_gathered, (*dot.left, *dot.right))) or dot.dtype not in NARROW and any(map(_computed, sides))


def is_gathered(e: Expr) -> bool:
    """Whether an operand is read at places that are no sums of multiples of variables."""
    return any(not linear(i).is_affine for a in operand_accesses(e) for i in a.index)
