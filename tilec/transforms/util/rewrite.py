"""Expressions with other parts, bodies at other places, and statements in two."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilec.ir.index import Affine, distinct_variables, linear, replace_indices
from tilec.ir.program import Access, Call, Expr, Index, Statement, rebuild
from tilec.transforms.util.naming import Names


def with_parts(e: Expr, parts: Mapping[Any, Expr]) -> Expr:
    """The expression with others in the place of these parts of it."""
    return parts[e] if e in parts else rebuild(e, lambda x: with_parts(x, parts))


def map_reads(e: Expr, tensors: Container[str], f: Callable[[Access], Expr]) -> Expr:
    """The expression with f of each read of these tensors in its place, those in its index before."""
    e = rebuild(e, lambda x: map_reads(x, tensors, f))
    return f(e) if isinstance(e, Access) and e.tensor in tensors else e


def at_variables(e: Expr, names: Mapping[Affine, str]) -> Expr:
    """The expression with a variable for each position that is one of these forms."""
    if isinstance(e, Access):
        return replace(e, index=tuple(Index(names[linear(i)]) if linear(i) in names else i for i in e.index))
    return rebuild(e, lambda x: at_variables(x, names))


def body_at(s: Statement, place: Sequence[Expr]) -> Expr:
    """The body of a statement, the variables of whose output index are distinct, for the element at a place."""
    return replace_indices(s.body, dict(zip(distinct_variables(s.index) or (), map(linear, place), strict=True)))


def rounded_after(s: Statement, dtype: str, names: Names) -> list[Statement]:
    """A sum as it is added up, and then in this type of 16 bits, element by element."""
    total = replace(s, output=names.fresh(f"{s.output}_total"), attributes=())
    plain = distinct_variables(s.index) is not None
    index = s.index or () if plain else tuple(Index(f"i{axis}") for axis in range(len(s.index or ())))
    value = Call(dtype, (Access(total.output, index),))
    return [total, replace(s, index=index, body=value, aggregation="assign", guard=None, constraints=())]
