"""Aggregations of whole matrices as aggregations of rows, and then of what these gave: a kernel has a block of rows."""

from __future__ import annotations

from dataclasses import replace

from tilec.backends.common.chains.targets import REDUCED, matrices_of, roles_of
from tilec.backends.common.chains.values import DOT_DTYPES, extents_of, plain_index, reduction_variables
from tilec.backends.common.scalars import NARROW
from tilec.ir.program import Access, Index, Int, Program, Statement
from tilec.ir.types import TensorType, Types
from tilec.transforms.util.naming import Names


def by_rows(program: Program, types: Types) -> tuple[Program, Types, frozenset[str]]:
    """The program with aggregations over both sides of a matrix in two steps, types of it, and the outputs of the
    statements that are not the old ones. What a row gives is held in float32."""
    matrices = matrices_of(program, types)
    names = Names.of(program)
    known = dict(types)
    made: list[Statement] = []
    changed: set[str] = set()
    for s in program.statements:
        roles = None if s.output in matrices.values or s.aggregation not in REDUCED else roles_of(s, matrices)
        index, extent = plain_index(s), extents_of(s, types)
        summed = reduction_variables(s)
        whole = roles is not None and set(roles) <= set(summed) and types[s.output].dtype in DOT_DTYPES
        if not whole or roles is None or index is None or extent is None:
            made.append(s)
            continue
        _, column = roles
        kept = (*index, *(v for v in summed if v != column))
        dtype = types[s.output].dtype
        t = TensorType(tuple(extent[v] for v in kept), "float32" if dtype in NARROW else dtype)
        name = names.fresh(f"{s.output}_rows")
        known[name] = t
        place = tuple(map(Index, kept))
        made.append(replace(s, output=name, index=place, sizes=tuple(map(Int, t.shape))))
        made.append(
            replace(
                s, body=Access(name, place), guard=None, constraints=(), sizes=tuple(map(Int, types[s.output].shape))
            )
        )
        changed |= {name, s.output}
    return replace(program, statements=tuple(made)), known, frozenset(changed)
