"""Sums over what names a matrix (an expert of several), after the products with these matrices.

`Y[t, o] = +(G[t, k] * H[t, k, f] * W[E[t, k], f, o])` adds up, over the experts k of a token, products with the matrix
of each. The product over f is a statement of its own, `P[t, k, o] = +(H[t, k, f] * W[E[t, k], f, o])`, which a backend
carries out on tensor cores, and the sum over k comes after it: `Y[t, o] = +(G[t, k] * P[t, k, o])`, over the k at which
W is read inside. 16-bit sums are kept in float32 between the two. Equal products become one statement.

Two sums may be the same product, of which one has a factor of its elements: by H and by G, the gradients of the above
are `+(G[t, k] * DY[t, o] * W[E[t, k], f, o])` and `+(H[t, k, f] * DY[t, o] * W[E[t, k], f, o])`. Then the first is G
times the product that the second adds up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.ir.functions import all_of, call
from tilec.ir.index import distinct_variables, linear
from tilec.ir.infer import expression_type, infer, statement_type
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Float,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    accesses_in,
    index_variables,
    walk,
)
from tilec.ir.types import CASTS, NARROW, TensorType, Types, is_floating, shapes_in
from tilec.lattice.questions import InRange
from tilec.lattice.sets import depends_on_data, domain, sizes_of
from tilec.transforms.lower.decompose import in_type
from tilec.transforms.lower.factor import range_tests
from tilec.transforms.util.factors import Factor, as_accumulated, factors_of, quotient_of
from tilec.transforms.util.naming import Names
from tilec.transforms.util.plain import is_plain_sum

Key = tuple[Expr, tuple[Expr, ...] | None]  # of a product: its body and index
Products = dict[Key, Statement]

LEAST_SUMMED_TWICE = 256  # points of a sum for which a product in float32 is worth it that two sums of 16 bits read
LEAST_SIDE = 16  # rows, columns and points of a sum for which a product of its own is worth it


def split_keyed_sums(program: Program, inputs: Types) -> Program:
    """The program with products by matrices that computed indices name apart from sums over these indices."""
    if not any(depends_on_data(linear(i)) for s in program.statements for a in accesses_in(s.body) for i in a.index):
        return program
    types = dict(infer(program, inputs))
    names = Names.of(program)
    statements: list[Statement] = []
    products: Products = {}
    shared = _shared_products(program, types)
    for s in program.statements:
        statements += _split(s, types, names, products, shared) or _scaled(s, types, names, products, shared) or [s]
    return replace(program, statements=tuple(statements))


@dataclass(frozen=True)
class _KeyedSum:
    """A sum of products of which `matrix` is at a computed place: the variables that this depends on (`key`) and the
    others of the matrix. `size` of every variable; `summed`: those that are no output's. `asked` of the points."""

    statement: Statement
    factors: Sequence[Factor]
    matrix: Factor
    key: frozenset[str]
    others: tuple[str, ...]
    size: Mapping[str, int]
    summed: tuple[str, ...]
    asked: tuple[InRange, ...]


def _split(
    s: Statement, types: dict[str, TensorType], names: Names, products: Products, shared: frozenset[Key]
) -> list[Statement] | None:
    """Statements that take the place of this one; `products` that there are already, which new ones join; `shared`:
    products that another sum is, too."""
    whole = _keyed_sum(s, types)
    if whole is None:
        return None
    found = [_product(whole, over, types, names) for over in _candidates(whole)]
    if not found:
        return None
    ready = [(inner, rest) for inner, rest in found if _key(inner) in shared]
    ready += [(p, rest) for inner, rest in found if (p := products.get(_key(inner))) is not None]
    inner, rest = ready[0] if ready else min(found, key=lambda pair: math.prod(sizes_of(pair[0])))
    inner = products.get(_key(inner), inner)
    there = {inner.output: statement_type(inner, types), **types}
    place = Access(inner.output, inner.index or ())
    outer = replace(s, body=quotient_of([Factor(place, False), *rest]), guard=all_of(range_tests(whole.asked)))
    last = [outer]
    if statement_type(outer, there) != types[s.output]:
        if types[s.output].dtype not in NARROW:
            return None
        last = in_type(outer, types[s.output].dtype, there, names)
    return [*_added(inner, types, products), *last]


def _key(product: Statement) -> Key:
    return product.body, product.index


def _added(product: Statement, types: dict[str, TensorType], products: Products) -> list[Statement]:
    if products.setdefault(_key(product), product) is not product or product.output in types:
        return []
    types[product.output] = statement_type(product, types)
    return [product]


def _shared_products(program: Program, types: Types) -> frozenset[Key]:
    """Products that one sum adds up, and another is but for factors of its elements."""
    names = Names.of(program)
    found = [(s, whole) for s in program.statements if (whole := _keyed_sum(s, types)) is not None]
    added = {_key(_product(whole, over, types, names)[0]) for _, whole in found for over in _candidates(whole)}
    scaled = {_key(pair[0]) for s, whole in found if (pair := _without_scale(whole, types, names)) is not None}
    return frozenset(added & scaled)


def _without_scale(whole: _KeyedSum, types: Types, names: Names) -> tuple[Statement, list[Factor]] | None:
    """The product of all summed variables without the factors that have none of them; None where there are none."""
    over = frozenset(whole.summed)
    least = LEAST_SUMMED_TWICE if types[whole.statement.output].dtype in NARROW else 0
    if not over or not over <= {*whole.others} or math.prod(whole.size[v] for v in over) < least:
        return None
    inner, rest = _product(whole, over, types, names)
    same = {*map(Index, whole.size)} - {*map(Index, over)} == {*(inner.index or ())}
    return (inner, rest) if rest and same else None


def _scaled(
    s: Statement, types: dict[str, TensorType], names: Names, products: Products, shared: frozenset[Key]
) -> list[Statement] | None:
    """The sum as a product that another one adds up, times factors of each element."""
    whole = _keyed_sum(s, types) if shared else None
    found = None if whole is None else _without_scale(whole, types, names)
    if whole is None or found is None or _key(found[0]) not in shared:
        return None
    inner = products.get(_key(found[0]), found[0])
    made = _added(inner, types, products)
    value = quotient_of([Factor(Access(inner.output, inner.index or ()), False), *found[1]])
    test, t = all_of(range_tests(whole.asked)), types[s.output]
    value = value if test is None else Call("select", (test, value, Float(0.0)))
    value = value if expression_type(value, types).dtype == t.dtype else call(t.dtype, value)
    return [*made, replace(s, body=value, aggregation="assign", guard=None)]


def _keyed_sum(s: Statement, types: Types) -> _KeyedSum | None:
    """None where it is none, and where points are no box but for what data say."""
    outputs = distinct_variables(s.index) if is_plain_sum(s) else None
    if (
        outputs is None
        or not is_floating(types[s.output].dtype)
        or any(isinstance(e, Inside | Pad) for e in walk(s.body))
    ):
        return None
    factors = factors_of(s.body, types)
    if any(not is_floating(expression_type(f.value, types).dtype) for f in factors if index_variables(f.value)):
        return None
    size = dict(zip(outputs, types[s.output].shape, strict=True))
    matrices = []
    for f in factors:
        for a in accesses_in(f.value):
            for e, n in zip(a.index, types[a.tensor].shape, strict=True):
                form = linear(e)
                if depends_on_data(form):
                    matrices.append((f, form, a))
                elif form.bare is None or size.setdefault(form.bare, n) != n:
                    return None
    if len(matrices) != 1 or not set(index_variables(s.body)) <= size.keys():
        return None
    ((matrix, form, access),) = matrices
    read = matrix.value.args[0] if isinstance(matrix.value, Call) and matrix.value.function in CASTS else matrix.value
    key = frozenset(index_variables(form.to_expr()))
    others = tuple(v for e in access.index if (v := linear(e).bare) is not None)
    if read != access or matrix.divides or key & {*others} or len({*others}) != len(others):
        return None
    asked = domain(s, shapes_in(types)).dependent
    if not all(c.form.is_integral and key.issuperset(index_variables(c.form.to_expr())) for c in asked):
        return None
    summed = tuple(v for v in index_variables(s.body) if v not in outputs)
    return _KeyedSum(s, factors, matrix, key, others, size, summed, asked)


def _candidates(whole: _KeyedSum) -> Iterator[frozenset[str]]:
    """Sums over some variables of the matrix, which other variables are summed after."""
    inside = [v for v in whole.others if v in whole.summed]
    for over in [frozenset(inside), *(frozenset((v,)) for v in inside if len(inside) > 1)]:
        columns = [v for v in whole.others if v not in over]
        operands = [f for f in whole.factors if f is not whole.matrix and over & {*index_variables(f.value)}]
        variables = {v for f in operands for v in index_variables(f.value)}
        counts = (
            math.prod(whole.size[v] for v in over),
            math.prod(whole.size[v] for v in columns if v not in variables),
            math.prod(whole.size[v] for v in whole.key),
        )
        left = {*whole.summed} - over
        if over and left and over <= variables and not any(f.divides for f in operands) and min(counts) >= LEAST_SIDE:
            yield over


def _product(whole: _KeyedSum, over: frozenset[str], types: Types, names: Names) -> tuple[Statement, list[Factor]]:
    """The product summed over these variables, and the factors that stay outside of it."""
    s = whole.statement
    inner = [f for f in whole.factors if f is whole.matrix or over & {*index_variables(f.value)}]
    used = {v for f in inner for v in index_variables(f.value)} - over
    columns = [v for v in whole.others if v in used and v not in whole.key]
    order = [*(v for v in whole.size if v in used and v not in columns), *columns]
    dtype = types[s.output].dtype
    body = quotient_of([as_accumulated(f, dtype, types) for f in inner])
    sizes = tuple(Int(whole.size[v]) for v in order)
    index = tuple(map(Index, order))
    product = Statement(names.fresh(f"{s.output}_product"), index, sizes, body, "sum", span=s.span)
    return product, [f for f in whole.factors if f not in inner]
