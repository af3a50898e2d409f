"""Counts that a gradient divides by, as tensors that may be kept: the number of positive pixels, the sum of a mask.

An integer of rank 0 promotes otherwise than an input of that rank would, so none is kept (`saving.py`), and what a
count is made of would be read again. Where that is much, the gradient reads an element of a tensor, which promotes as
the count does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tilec.ir.infer import infer
from tilec.ir.program import Access, Call, Expr, Index, Int, Program, Statement, map_expressions, reads, rebuild
from tilec.ir.types import TensorType, is_floating
from tilec.transforms.bind.scalars import promoted
from tilec.transforms.util.naming import Names

_LEAST_READ = 2**16  # elements of what is counted


def with_stored_counts(program: Program, inputs: Mapping[str, TensorType], cotangents: Collection[str]) -> Program:
    """The flat program, in which what depends on cotangents reads such counts so; `inputs` are the types of its
    inputs."""
    types = dict(infer(program, inputs))
    names = Names.of(program)
    beyond = set(cotangents)
    kept: dict[str, str] = {}
    statements: list[Statement] = []

    def visit(e: Expr) -> Expr:
        if isinstance(e, Access) and e.tensor in kept:
            return Call("as_scalar", (Access(kept[e.tensor], (Int(0),)),))
        return rebuild(e, visit)

    for s in program.statements:
        if not beyond.isdisjoint(reads(s)):
            beyond.add(s.output)
            statements.append(promoted(map_expressions(s, visit), types) if kept.keys() & set(reads(s)) else s)
            continue
        statements.append(s)
        t = types[s.output]
        counted = max((types[n].numel for n in reads(s)), default=0)
        if s.aggregation != "assign" and t.shape == () and not t.weak and not is_floating(t.dtype):
            if counted >= _LEAST_READ and s.output not in program.outputs:
                name = kept[s.output] = names.fresh(f"{s.output}_kept")
                types[name] = replace(t, shape=(1,))
                statements.append(Statement(name, (Index("i"),), (Int(1),), Access(s.output, ()), span=s.span))
    return program if not kept else replace(program, statements=tuple(statements))
