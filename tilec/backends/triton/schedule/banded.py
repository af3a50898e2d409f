"""Banded products, such as a correlation volume, `V[x, d] = +(F[x, c] * G[x + d - 4, c])`.

Of the products of all rows and columns, few are asked for each row. Tensor cores compute all of them, `P[x, u] = +(F[x,
c] * G[u, c])`, in less time than those few take term by term. The result reads its band, `V[x, d] = P[x, x + d - 4]`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilec.backends.common.pairs import PRODUCTS
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import build_space
from tilec.backends.triton.matmul.dot import LAUNCH_SECONDS, MEMORY_BYTES, POINTERS, StagedProduct
from tilec.backends.triton.plan.sizes import Strides, contiguous
from tilec.cost import size_in_bytes
from tilec.ir.functions import ZERO
from tilec.ir.index import distinct_variables, linear
from tilec.ir.infer import statement_type
from tilec.ir.program import Access, Call, Expr, Index, Int, Pad, Statement, index_variables
from tilec.ir.types import NARROW, TensorType, Types
from tilec.transforms.util.naming import all_variables, fresh_variable
from tilec.transforms.util.plain import is_plain_sum

TERMS_OF_BANDS = 1e12  # points a second, term by term, as measured on an H100
MOST_PRODUCTS = 2**28  # bytes of all products


def recognise_banded(s: Statement, types: Types, strides: Strides) -> StagedProduct | None:
    """The statement as all products of rows and columns, the fewest, and a band of them; None where it is none,
    or takes less time term by term."""
    space = build_space(s, types)
    outputs = distinct_variables(s.index)
    if space is None or outputs is None or not is_plain_sum(s) or len(space.classes) != 1 or not space.covers:
        return None
    t = types[s.output]
    if t.dtype not in NARROW or statement_type(s, types).dtype != t.dtype:
        return None
    match s.body:
        case Call("mul", (Access() as a, Access() as b)):
            found = [x for pair in ((a, b), (b, a)) for x in _bands(s, *pair, outputs, types, strides)]
        case _:
            return None
    summed = math.prod(space.extent[0][v] for v in space.reductions)
    best = min(found, key=lambda f: math.prod(_result(f).shape), default=None)
    if best is None or not summed:
        return None
    stored = _result(best)
    points = math.prod(stored.shape) * summed
    moved = 2 * size_in_bytes(stored) / MEMORY_BYTES + 2 * LAUNCH_SECONDS
    takes = points / (POINTERS * PRODUCTS[t.dtype]) + moved
    pays = takes < math.prod(t.shape) * summed / TERMS_OF_BANDS
    return best if pays and size_in_bytes(stored) <= MOST_PRODUCTS else None


def _result(found: StagedProduct) -> TensorType:
    return found.product.types[found.product.statement.output]


def _bands(
    s: Statement, rows: Access, columns: Access, outputs: tuple[str, ...], types: Types, strides: Strides
) -> list[StagedProduct]:
    """For each index of `columns` that is computed of output variables, it as a variable of its own."""
    found = []
    sizes = dict(zip(outputs, types[s.output].shape, strict=True))
    for axis, e in enumerate(columns.index):
        own = set(index_variables(e))
        if linear(e).bare is not None or not own or not own <= set(outputs) or not linear(e).is_integral:
            continue
        u = fresh_variable("u", set(all_variables(s)))
        each = replace(columns, index=tuple(Index(u) if k == axis else i for k, i in enumerate(columns.index)))
        indexed = set(index_variables(*rows.index, *each.index))
        kept = [v for v in outputs if v in indexed]
        if set(outputs) - own - indexed or not own & set(index_variables(*rows.index)):
            continue
        name = f"{s.output}.products"
        shape = (*(sizes[v] for v in kept), types[columns.tensor].shape[axis])
        index = (*map(Index, kept), Index(u))
        body = Call("mul", (rows, each))
        products = Statement(name, index, tuple(map(Int, shape)), body, "sum")
        there: tuple[Expr, ...] = (*map(Index, kept), e)
        band = replace(s, body=Pad(Access(name, there), ZERO), aggregation="assign")
        known = {**types, name: TensorType(shape, types[s.output].dtype)}
        view = StridedView(products, known, {**strides, name: contiguous(shape)})
        found.append(StagedProduct(view, {name: shape}, after=(replace(view, statement=band),)))
    return found
