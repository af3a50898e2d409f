"""Statements as walks over boxes of points, and which variables walk along the tensors that they touch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from tilec.backends.common.domain import build_domain
from tilec.backends.triton.emit.epilogue import find_epilogue
from tilec.backends.triton.recurrence.epilogue import find_recurrence_epilogue
from tilec.ir.constraining import constraining
from tilec.ir.index import distinct_variables, linear
from tilec.ir.program import (
    Access,
    Expr,
    Program,
    Statement,
    index_variables,
    reads,
    reads_itself,
    value_accesses,
    variables_of,
)
from tilec.ir.types import Types

Touched = tuple[tuple[str, tuple[str | None, ...]], ...]  # tensors, and which variables walk along their axes


@dataclass(frozen=True)
class LoopNest:
    """A statement as a walk over a box: the extent of each variable."""

    statement: Statement
    extent: Mapping[str, int]

    @cached_property
    def touched(self) -> Touched:
        return touched_by(self.statement)


def touched_by(s: Statement) -> Touched:
    """The output, then what is read."""
    found = (Access(s.output, s.index or ()), *value_accesses(s))
    summed = set(variables_of(s)) - set(index_variables(*(s.index or ())))
    return tuple((a.tensor, tuple(walked_by(e, summed) for e in a.index)) for a in found)


def walked_by(e: Expr, summed: Collection[str]) -> str | None:
    """The variable that walks along an axis; a number may be added to one that is summed."""
    form = linear(e)
    v = (form - form.constant).bare
    return v if not form.constant or v in summed else None


def form_of(s: Statement, types: Types) -> LoopNest | None:
    """None where the statement is no walk over a box, or reads less than it walks, as products do."""
    if s.index is None or s.default is not None or s.init is not None or reads_itself(s):
        return None
    names = distinct_variables(s.index)
    if names is None:
        return None
    extent = dict(zip(names, types[s.output].shape, strict=True))
    reductions = tuple(v for v in variables_of(s) if v not in extent)
    bounding = [a for r in s.roots for a in constraining(r)]
    axes = [(e, n) for a in bounding for e, n in zip(a.index, types[a.tensor].shape, strict=True)]
    for v in reductions:
        sizes = [n for e, n in axes if linear(e).bare == v]
        if not sizes:
            sizes = [n for e, n in axes if walked_by(e, reductions) == v]
            domain = build_domain(s, types) if sizes else None
            if domain is None or domain.low[v] < 0 or domain.low[v] + domain.extent[v] > min(sizes):
                return None
        extent[v] = min(sizes)
    if 0 in extent.values() or any(0 in types[a.tensor].shape for a in value_accesses(s)):
        return None
    form = LoopNest(s, extent)
    if any(extent[v] > 1 for v in reductions):
        many = {v for v, n in extent.items() if n > 1}
        if s.aggregation == "assign" or not any(many <= walked(a, reductions) for a in bounding):
            return None
    return form


def walked(a: Access, summed: Collection[str]) -> set[str]:
    """The variables that walk along its axes, none twice."""
    names = [v for e in a.index if (v := walked_by(e, summed)) is not None]
    return set(names) if len(set(names)) == len(names) else set()


def reduced(s: Statement, extent: Mapping[str, int]) -> set[str]:
    """The variables of more than one value that it aggregates over."""
    written = index_variables(*(s.index or ()))
    return {v for v in variables_of(s) if v not in written and extent[v] > 1}


def taken_by_products(program: Program, types: Types, forms: Mapping[str, LoopNest]) -> set[str]:
    """Outputs of the epilogues of products and recurrences; those of products that end in statistics of rows are for
    the kernel of these, unless they read the product alone, which several kernels may compute again."""
    taken: set[str] = set()
    for place, s in enumerate(program.statements):
        if reads_itself(s):
            taken |= {r.output for r in find_recurrence_epilogue(program, place, types)}
        elif s.output not in forms and s.aggregation != "assign":
            epilogue = find_epilogue(program, place, types)
            read = {n for r in epilogue for n in reads(r)} - {s.output, *(r.output for r in epilogue)}
            last = epilogue[-1].output if epilogue else s.output
            readers = (forms[r.output] for r in program.readers(last) if r.output in forms)
            if not read or not any(reduced(r.statement, r.extent) for r in readers):
                taken |= {r.output for r in epilogue}
    return taken
