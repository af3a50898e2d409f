"""mean, argmax and argmin by way of sum, max and min. Each function gives the statements that take the place of one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tilec.ir.constraining import constraining
from tilec.ir.functions import call, operands_of
from tilec.ir.index import Affine, integer
from tilec.ir.infer import expression_type, once, own_shapes, statement_type
from tilec.ir.program import Access, Expr, Float, Index, Inside, Int, Statement
from tilec.ir.types import NARROW, ElementType, TensorType, Types, is_floating
from tilec.lattice.sets import Box, bounds, bounds_of, domain, is_box, sizes_of
from tilec.transforms.simplify.keep_variables import combined_condition, keep_variables
from tilec.transforms.util.broadcast import Axes, axes
from tilec.transforms.util.factors import widened_body
from tilec.transforms.util.naming import Names

FEWEST_OF_MATRIX = 16  # rows, columns and terms of a product of matrices


def spell_mean(s: Statement, bound: tuple[str, ...], types: Types, names: Names) -> list[Statement]:
    """The sum (16-bit floats in float32) over the number of valid points; 0, or the default, where there are none."""
    element = expression_type(s.body, types)
    target = statement_type(s, types)
    body = widened_body(s.body, types) if element.dtype in NARROW else s.body
    total = replace(s, output=names.fresh(f"{s.output}_sum"), body=body, aggregation="sum", default=None)
    whole = axes(target.shape)
    value = _floating(whole.read(total.output, target.shape), element)
    points = points_per_element(s, types)
    if points and _is_matrix_product(s, types):
        scaled = replace(s, body=s.body / Int(points), aggregation="sum")
        if statement_type(scaled, types) == target:
            return [scaled]  # products are scaled as they are stored
    if points:
        return [total, _elementwise(s, whole, value / Int(points), target, types, total)]
    count = replace(total, output=names.fresh(f"{s.output}_count"), body=_product_of_insides(s.body), attributes=())
    count = keep_variables(count, total)
    n = whole.read(count.output, target.shape)
    value = value / call("max", n, Int(1))
    if s.default is not None:
        value = call("select", call("gt", n, Int(0)), value, _default(s, whole, target, types))
    return [total, count, _elementwise(s, whole, value, target, types, total, count)]


def _is_matrix_product(s: Statement, types: Types) -> bool:
    """Whether a sum is a product of matrices, of rows, columns and terms enough for a library's."""
    factors = operands_of("mul", s.body)
    if len(factors) != 2 or not all(isinstance(f, Access) for f in factors) or s.guards or s.constraints or s.default:
        return False
    left, right = (f for f in factors if isinstance(f, Access))
    sizes: list[dict[str, int]] = []
    for a in (left, right):
        if not is_floating(types[a.tensor].dtype) or not all(isinstance(e, Index) for e in a.index):
            return False
        sizes.append({e.name: n for e, n in zip(a.index, types[a.tensor].shape, strict=True) if isinstance(e, Index)})
    written = {e.name for e in s.index or () if isinstance(e, Index)}
    rows, columns = (sizes[k].keys() & written - sizes[1 - k].keys() for k in (0, 1))
    summed = sizes[0].keys() - written
    counts = [math.prod(sizes[k][v] for v in names) for k, names in ((0, rows), (1, columns), (0, summed))]
    return (
        types[left.tensor].dtype == types[right.tensor].dtype
        and summed == sizes[1].keys() - written
        and min(counts) >= FEWEST_OF_MATRIX
    )


def spell_extreme(s: Statement, bound: tuple[str, ...], types: Types, names: Names) -> list[Statement]:
    """The extreme, then the least number of a point that holds it (a NaN does); -1 or the default where there is none.
    Points are numbered row by row in the exact bounding box of the variables `bound`."""
    kept = "max" if s.aggregation == "argmax" else "min"
    extreme = replace(s, output=names.fresh(f"{s.output}_{kept}"), aggregation=kept, default=None)
    element = expression_type(s.body, types)
    target = statement_type(s, types)
    number, count = _numbers(bounds(s, own_shapes(s, types)), bound)
    short = count < 2**31  # half of the work
    first = replace(
        extreme,
        output=names.fresh(f"{s.output}_first"),
        aggregation="min",
        body=call("int32", number) if short else number,
        guard=combined_condition([*s.guards, _holds(s, extreme, element)]),
        attributes=(),
    )
    whole = axes(target.shape)
    n = whole.read(first.output, target.shape)
    empty = integer(-1) if s.default is None else _default(s, whole, target, types)
    value = call("select", call("lt", n, Int(count)), call("int64", n) if short else n, empty)
    return [extreme, first, _elementwise(s, whole, value, target, types, extreme, first)]


DECOMPOSITIONS: dict[str, Callable[[Statement, tuple[str, ...], Types, Names], list[Statement]]] = {
    "mean": spell_mean,
    "argmax": spell_extreme,
    "argmin": spell_extreme,
}


def in_type(s: Statement, dtype: str, types: Types, names: Names) -> list[Statement]:
    """The statement with elements of this type, whatever its body's is; a sum is rounded when it is complete."""
    if s.default is not None or s.aggregation not in ("sum", "prod", "logsumexp", "mean"):
        return [replace(s, body=call(dtype, s.body))]
    widened = replace(s, output=names.fresh(f"{s.output}_wide"), attributes=())
    target = replace(statement_type(s, types), dtype=dtype)
    whole = axes(target.shape)
    return [widened, _elementwise(s, whole, whole.read(widened.output, target.shape), target, types, widened)]


def _elementwise(
    s: Statement, whole: Axes, value: Expr, target: TensorType, types: Types, *read: Statement
) -> Statement:
    """The last statement, under the name and in the type that the one spelled out had."""
    new = Statement(s.output, whole.variables, whole.sizes, value, attributes=s.attributes, span=s.span)
    known = dict(types)
    known.update((r.output, statement_type(r, known)) for r in read)
    given = statement_type(new, known)
    if (given.dtype, given.weak) != (target.dtype, target.weak):
        new = replace(new, body=call(target.dtype, value))
    # of rank 0, an aggregation of one point counts as what it is, and a name as its value
    return new if statement_type(new, known) == target else replace(new, aggregation="max")


def _default(s: Statement, whole: Axes, target: TensorType, types: Types) -> Expr:
    assert s.default is not None
    t = types[s.default]
    value = whole.read(s.default, t.shape)
    return value if t.dtype == target.dtype or t.weak else call(target.dtype, value)


def _floating(value: Expr, element: ElementType) -> Expr:
    if is_floating(element.dtype):
        return value
    return value * Float(1.0) if element.weak else call("float32", value)


def points_per_element(s: Statement, types: Types, data: bool = False) -> int | None:
    """How many valid points each output element has, where that is one positive number known now. `data`: where the
    conditions on tensors' elements hold."""
    return _points_where_data_hold(s, types) if data else _points_of_elements(s, types)


@once
def _points_of_elements(s: Statement, types: Types) -> int | None:
    return _count_points(s, types, False)


@once
def _points_where_data_hold(s: Statement, types: Types) -> int | None:
    return _count_points(s, types, True)


def _count_points(s: Statement, types: Types, data: bool) -> int | None:
    points = domain(s, own_shapes(s, types))
    box = bounds_of(points) if s.guard is None and (data or not points.dependent) else None
    if box is None:
        return None
    written = {e.name: n for e, n in zip(s.index or (), sizes_of(s), strict=True) if isinstance(e, Index)}
    whole = len(written) == len(s.index or ()) and all(box[v] == (0, n - 1) for v, n in written.items())
    if not whole or not is_box(points, box):
        return None
    return math.prod(high - low + 1 for v, (low, high) in box.items() if v not in written)


def _product_of_insides(body: Expr) -> Expr:
    """1 at every point that the body's accesses allow."""
    insides = [Inside(a) for a in dict.fromkeys(constraining(body, gathers=False))]
    result: Expr = insides[0] if insides else Int(1)
    for inside in insides[1:]:
        result = result * inside
    return result


def _numbers(box: Box | None, bound: tuple[str, ...]) -> tuple[Expr, int]:
    """The row-major number of a point in the box, as a value, and how many numbers there are."""
    if box is None:
        return Int(0), 0
    number, count = Affine(), 1
    for v in reversed(bound):
        low, high = box[v]
        number += (Affine.variable(v) - low) * count
        count *= high - low + 1
    return number.to_expr(), count


def _holds(s: Statement, extreme: Statement, element: ElementType) -> Expr:
    """Does the point hold the extreme? Compared as the extreme is stored."""
    body = s.body
    if element.dtype in NARROW and not isinstance(body, Access):
        body = call(element.dtype, body)
    found = call("eq", body, Access(extreme.output, s.index or ()))
    if not is_floating(element.dtype):
        return found
    return call("or", found, call("ne", body, body))
