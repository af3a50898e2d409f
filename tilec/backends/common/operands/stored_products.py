"""Products of matrices beside factors of each row and column, as sums of their own: the gradient of a weight of
attention, `+(j < i ? D[i, e] * V[j, e] * exp(S[i, j] - M[i]))`.

As one statement it has three operands and would be added up term by term, the factor computed for each. Where no
condition stands in the way and nobody else has the product, the planner divides it itself (`paired`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from tilec.backends.common.chains.chain import Inner
from tilec.backends.common.chains.values import as_inner, plain_index, rebuilt
from tilec.backends.common.pairs import LEAST
from tilec.ir.functions import ONE
from tilec.ir.index import Affine, replace_indices
from tilec.ir.infer import statement_type
from tilec.ir.program import Access, Expr, Index, Int, Program, Statement, index_variables
from tilec.ir.types import Types
from tilec.transforms.util.naming import Names

_Key = tuple[Expr, int]


def with_stored_products(program: Program, types: Types, barred: Collection[str]) -> tuple[Program, Types]:
    """The program with such products as statements, once each, and its types, but for statements `barred`."""
    found = {s.output: f for s in program.statements if s.output not in barred and (f := _factored(s, types))}
    times = Counter(_key(inner) for inner, _ in found.values())
    known, names = dict(types), Names.of(program)
    made: dict[_Key, str] = {}
    statements: list[Statement] = []
    for s in program.statements:
        inner, whole = found.get(s.output, (None, s))
        if inner is None or s.guard is None and times[_key(inner)] < 2:
            statements.append(s)
            continue
        place = tuple(map(Index, inner.index))
        shape = dict(zip(plain_index(s) or (), types[s.output].shape, strict=True))
        product = replace(
            s,
            output=names.fresh(f"{s.output}_product"),
            index=place,
            sizes=tuple(Int(shape[v]) for v in inner.index),
            body=inner.body,
            guard=None,
            constraints=(),
        )
        name = made.setdefault(_key(inner), product.output)
        if name == product.output:
            known[name] = statement_type(product, known)
            statements.append(product)
        statements.append(replace(whole, body=_with(whole.body, inner.output, Access(name, place))))
    return replace(program, statements=tuple(statements)), known


def _factored(s: Statement, types: Types) -> tuple[Inner, Statement] | None:
    """A long product of rows and columns, and the statement that multiplies it by a factor of both."""
    found = as_inner(s, types)
    if found is None or s.attributes:
        return None
    inner, whole, row, column = found
    outside = set(index_variables(_with(whole.body, inner.output, ONE)))
    if inner.left is None or inner.extent < LEAST or not {row, column} <= outside:
        return None
    known = {**types, inner.output: replace(types[s.output], dtype=inner.dtype)}
    return (inner, whole) if statement_type(whole, known) == types[s.output] else None


def _with(e: Expr, name: str, value: Expr) -> Expr:
    """A value with another in the place of a tensor's elements."""
    return rebuilt(e, lambda a: value if a.tensor == name else a)


def _key(inner: Inner) -> _Key:
    """The product, whatever its variables are called."""
    order = {v: Affine.variable(f"v{k}") for k, v in enumerate((*inner.index, inner.axis))}
    return replace_indices(inner.body, order), inner.extent
