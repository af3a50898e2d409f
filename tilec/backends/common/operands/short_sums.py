"""Products whose sums have up to four terms, with these written out: points turned by matrices, quaternions, steps of a
butterfly.

Such a sum takes as long as memory does, and a library made for large matrices longer. As `A[n, i, 0] * X[n, 0, j] +
A[n, i, 1] * X[n, 1, j]` it is an elementwise statement, which shares a kernel with others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from dataclasses import replace

from tilec.backends.common.terms import sum_of
from tilec.ir.index import Affine, distinct_variables, linear, replace_indices
from tilec.ir.infer import statement_type
from tilec.ir.program import Access, Call, Float, Index, Int, Program, Statement, index_variables, walk
from tilec.ir.types import FLOATS, Types
from tilec.transforms.util.plain import is_plain_sum

_MOST_TERMS = 4


def with_short_sums(program: Program, types: Types, barred: Collection[str]) -> Program:
    """The program with such sums as assignments, but for those `barred`."""
    found = {s.output: m for s in program.statements if s.output not in barred and (m := _written_out(s, types))}
    return replace(program, statements=tuple(found.get(s.output, s) for s in program.statements))


def _written_out(s: Statement, types: Types) -> Statement | None:
    outputs = distinct_variables(s.index)
    if not is_plain_sum(s) or outputs is None or types[s.output].dtype not in FLOATS or s.attributes:
        return None
    if not all(isinstance(e, (Access, Call, Index, Int, Float)) for e in walk(s.body)):
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
    if not set(summed) <= extent.keys() or not 1 < math.prod(extent[v] for v in summed) <= _MOST_TERMS:
        return None
    if any({v for v, n in extent.items() if n > 1} <= own for own in walks):
        return None  # a member of groups as it is
    places = itertools.product(*(range(extent[v]) for v in summed))
    terms = [replace_indices(s.body, {v: Affine.of((), k) for v, k in zip(summed, at, strict=True)}) for at in places]
    new = replace(s, aggregation="assign", body=sum_of(terms))
    return new if statement_type(new, types) == types[s.output] else None
