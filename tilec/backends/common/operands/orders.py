"""Products of products in the order that takes least time, across statements.

Of `S[i, j] = +(Q[i, d] * K[j, d]); O[i, e] = +(S[i, j] * V[j, e])`, where nothing else reads S, all pairs i, j are
visited. `T[d, e] = +(K[j, d] * V[j, e]); O[i, e] = +(Q[i, d] * T[d, e])` is the same sum and visits none. So it is with
a matrix that is made of two narrow ones and meets a vector (`W = A B; Y = X W`), and with what reads a decomposition of
a tensor. The order is chosen as within a statement (`common/pairs.py`), of all that the readers add up.

Sums are added up in another order, as those of several operands are. What is between is rounded to the type of the
statement that it is for; of float16, which would overflow sooner, orders stay as they are written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.pairs import (
    GAIN,
    FactorSpace,
    factor_space,
    operands_of_factors,
    paired,
    scaled,
    seconds_of,
    variables_in,
)
from tilec.backends.common.terms import product_of
from tilec.ir.functions import call
from tilec.ir.index import Affine, distinct_variables, replace_indices
from tilec.ir.infer import expression_type, statement_type
from tilec.ir.program import Access, Index, Int, Program, Statement, accesses_in
from tilec.ir.types import Types, is_floating
from tilec.transforms.util.factors import unwidened
from tilec.transforms.util.naming import Names, all_variables, fresh_variable

_FEWER = 2  # times as many points in the order as written, at least
_LEAST = 2**22  # points of what is left out, for which it is worth looking


@dataclass(frozen=True)
class Orders:
    """The statements that stand for others; those of no statement at all are not needed any more."""

    parts: Mapping[str, tuple[Statement, ...]]

    def applied(self, program: Program) -> Program:
        parts = self.parts
        return replace(program, statements=tuple(p for s in program.statements for p in parts.get(s.output, (s,))))


def better_orders(program: Program, types: Types) -> Orders:
    """Of a program of which sizes are known."""
    names = Names.of(program)
    parts: dict[str, tuple[Statement, ...]] = {}
    for s in program.statements:
        readers = program.readers(s.output)
        if s.output in program.outputs or not readers or {s.output, *(r.output for r in readers)} & parts.keys():
            continue
        made = _through(s, readers, types, names)
        if made is not None:
            parts |= {s.output: (), **made}
    return Orders(parts)


def with_better_orders(program: Program, types: Types) -> tuple[Program, Types]:
    """The flat program in such orders, and all types."""
    orders, known = better_orders(program, types), dict(types)
    for s in (p for parts in orders.parts.values() for p in parts):
        known.setdefault(s.output, statement_type(s, known))
    return orders.applied(program), known


def _through(
    s: Statement, readers: Sequence[Statement], types: Types, names: Names
) -> dict[str, tuple[Statement, ...]] | None:
    """The readers of a sum of products as sums of what it is made of; None where that gains nothing."""
    inner = factor_space(s, types)
    if inner is None or types[s.output].dtype == "float16" or _points(inner) < _LEAST:
        return None
    before, visited = seconds_of(inner, types[s.output].dtype), _points(inner)
    after, left = 0.0, 0
    made: dict[str, tuple[Statement, ...]] = {}
    for r in readers:
        outer = factor_space(r, types)
        whole = None if outer is None else _substituted(inner, outer, types)
        if outer is None or whole is None:
            return None
        parts, known = _in_parts(whole, types, names)
        dtype = types[r.output].dtype
        before += seconds_of(outer, dtype)
        visited += _points(outer)
        for space in (factor_space(p, known) for p in parts):
            if space is None:
                return None
            after += seconds_of(space, dtype)
            left += _points(space)
        made[r.output] = tuple(parts)
    return made if GAIN * after < before and _FEWER * left < visited else None


def _in_parts(whole: FactorSpace, types: Types, names: Names) -> tuple[list[Statement], Types]:
    """A sum of products in pairs, after what one factor alone is summed over; and all types."""
    s, known = whole.statement, dict(types)
    operands = operands_of_factors(whole.factors, variables_in)
    made: list[Statement] = []
    for k, (own, e) in enumerate(operands):
        others = frozenset().union(*(g for j, (g, _) in enumerate(operands) if j != k))
        left = [v for v in (*whole.outputs, *whole.summed) if v in own & (others | {*whole.outputs})]
        if len(left) < len(own) and others:
            index = tuple(map(Index, left))
            sizes = tuple(Int(whole.extent[v]) for v in left)
            made.append(Statement(names.fresh(f"{s.output}_pair"), index, sizes, e, "sum", span=s.span))
            known[made[-1].output] = statement_type(made[-1], known)
            operands[k] = frozenset(left), Access(made[-1].output, index)
    s = replace(s, body=scaled(product_of([e for _, e in operands]), whole.scale))
    rest = factor_space(s, known)
    pairs = (
        paired(rest, types[s.output].dtype, variables_in, lambda _: names.fresh(f"{s.output}_pair")) if rest else None
    )
    for p in (pairs or [])[:-1]:
        known[p.output] = statement_type(p, known)
    return [*made, *(pairs or [s])], known


def _points(whole: FactorSpace) -> int:
    return math.prod(whole.extent.values())


def _substituted(inner: FactorSpace, outer: FactorSpace, types: Types) -> FactorSpace | None:
    """What reads a sum of products once, as a factor of its own, with its factors in its place."""
    s, r = inner.statement, outer.statement
    read = [f for f in outer.factors if any(a.tensor == s.output for a in accesses_in(f))]
    access = unwidened(read[0], types) if len(read) == 1 else None
    own, here = distinct_variables(s.index), distinct_variables(access.index) if isinstance(access, Access) else None
    if own is None or here is None:
        return None
    taken = set(all_variables(r))
    renamed = dict(zip(own, here, strict=True))
    for v in inner.summed:
        renamed[v] = fresh_variable(v, taken | set(renamed.values()))
    dtype = types[r.output].dtype
    stays = dtype == types[s.output].dtype
    own_factors = [
        f if stays or not is_floating(expression_type(f, types).dtype) else call(dtype, f) for f in inner.factors
    ]
    moves = {v: Affine.variable(w) for v, w in renamed.items()}
    moved = [replace_indices(f, moves) for f in own_factors]
    others = [f for f in outer.factors if f is not read[0]]
    body = scaled(scaled(product_of([*others, *moved]), inner.scale), outer.scale)
    return factor_space(replace(r, body=body), types)
