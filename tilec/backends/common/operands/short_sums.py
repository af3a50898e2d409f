"""Products whose sums have up to four terms, with these written out: points turned by matrices, quaternions, steps of a
butterfly; of products of three operands or more, up to eight.

Such a sum takes as long as memory does, and a library made for large matrices longer. As `A[n, i, 0] * X[n, 0, j] +
A[n, i, 1] * X[n, 1, j]` it is an elementwise statement, which shares a kernel with others.

So are products of few factors where there are many more of them than factors, and of all factors but one, `P[d, n] =
*(e != d ? F[n, e])`, which are gradients of such: the sum that reads them computes each where it needs it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from dataclasses import replace

from tilec.backends.common.terms import product_of, sum_of
from tilec.ir.index import Affine, distinct_variables, linear, replace_indices
from tilec.ir.infer import statement_type
from tilec.ir.program import Access, Call, Float, Index, Int, Program, Statement, index_variables, walk
from tilec.ir.types import FLOATS, Types
from tilec.transforms.util.plain import is_elementary, is_plain_sum, is_pure

_MOST_TERMS = 4
_MOST_OF_SEVERAL = 8  # terms of three operands or more, of which no library makes a product
_MOST_FACTORS = 8  # of a product
_TIMES_LARGER = 8  # than what it is made of, at least


def with_short_sums(program: Program, types: Types, barred: Collection[str]) -> Program:
    """The program with such sums as assignments, but for those `barred`."""

    def made(s: Statement) -> Statement:
        return s if s.output in barred else _written_out(s, types) or _factors_written_out(s, types) or s

    return replace(program, statements=tuple(map(made, program.statements)))


def _written_out(s: Statement, types: Types) -> Statement | None:
    outputs = distinct_variables(s.index)
    if not is_plain_sum(s) or outputs is None or types[s.output].dtype not in FLOATS or s.attributes:
        return None
    if not is_elementary(walk(s.body)):
        return None
    extent = dict(zip(outputs, types[s.output].shape, strict=True))
    walks: list[set[str]] = []
    for a in (e for e in walk(s.body) if isinstance(e, Access)):
        for e, n in zip(a.index, types[a.tensor].shape, strict=True):
            v = linear(e).bare
            if (v is None or extent.setdefault(v, n) != n) and not isinstance(e, Int):
                return None
        walks.append(set(index_variables(a)))
    summed = [v for v in index_variables(s.body) if v not in outputs]
    factors = {e for e in walk(s.body) if isinstance(e, Access)}
    several = len(factors) > 2 and all(e.function == "mul" for e in walk(s.body) if isinstance(e, Call))
    most = _MOST_OF_SEVERAL if several else _MOST_TERMS
    if not set(summed) <= extent.keys() or not 1 < math.prod(extent[v] for v in summed) <= most:
        return None
    if any({v for v, n in extent.items() if n > 1} <= own for own in walks):
        return None  # a member of groups as it is
    places = itertools.product(*(range(extent[v]) for v in summed))
    terms = [replace_indices(s.body, {v: Affine.of((), k) for v, k in zip(summed, at, strict=True)}) for at in places]
    new = replace(s, aggregation="assign", body=sum_of(terms))
    return new if statement_type(new, types) == types[s.output] else None


def _factors_written_out(s: Statement, types: Types) -> Statement | None:
    """A product of few factors, or of all but one, as an assignment."""
    outputs = distinct_variables(s.index)
    if s.aggregation != "prod" or not is_pure(s) or s.constraints or s.attributes or outputs is None:
        return None
    inner = {*index_variables(s.body)} - {*outputs}
    if len(inner) != 1 or types[s.output].dtype not in FLOATS or not is_elementary(walk(s.body)):
        return None
    (factor,) = inner
    ranges = dict(zip(outputs, types[s.output].shape, strict=True))
    read = [a for a in walk(s.body) if isinstance(a, Access)]
    places = [(e, n) for a in read for e, n in zip(a.index, types[a.tensor].shape, strict=True)]
    count = next((n for e, n in places if linear(e).bare == factor), 0)
    extent = {**ranges, factor: count}
    if any(extent.get(linear(e).bare or "") != n and not isinstance(e, Int) for e, n in places):
        return None
    known = {a.tensor: types[a.tensor].numel for a in read}
    if not 1 < count <= _MOST_FACTORS or math.prod(ranges.values()) < _TIMES_LARGER * sum(known.values()):
        return None
    factors = [replace_indices(s.body, {factor: Affine.of((), k)}) for k in range(count)]
    match s.guard:
        case None:
            pass
        case Call("ne", (Index(v), Index(w))) if {v, w} - {factor} <= {*outputs} and factor in (v, w):
            left = Index(v if w == factor else w)
            if ranges[left.name] != count:
                return None
            factors = [Call("select", (Call("ne", (left, Int(k))), f, Float(1.0))) for k, f in enumerate(factors)]
        case _:
            return None
    new = replace(s, aggregation="assign", guard=None, body=product_of(factors))
    return new if statement_type(new, types) == types[s.output] else None
