"""Float32 values that sums read rounded to 16 bits, and other statements as they are, with a rounded copy for the sums:
weights of attention, `P[i, j] = exp(S[i, j] - L[i])`, that are mixed by heads, and whose gradient reads them too.

The kernel that computes the values stores the copy, and often nothing else. Products read it as it is; they would
copy the values themselves, or add up term by term.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilec.ir.index import distinct_variables
from tilec.ir.infer import statement_type
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Inside,
    Program,
    Statement,
    accesses_in,
    children,
    index_variables,
    map_values,
    reads_itself,
    rebuild,
    walk,
)
from tilec.ir.types import NARROW, Types
from tilec.transforms.util.naming import Names


def with_rounded_operands(program: Program, types: Types, barred: Collection[str]) -> tuple[Program, Types]:
    """The program with such copies, and its types, but for what statements `barred` make and read."""
    values = {
        s.output
        for s in program.statements
        if s.output not in barred and types[s.output].dtype == "float32" and not reads_itself(s)
        if s.aggregation == "assign" and distinct_variables(s.index) is not None
    }
    sums = {s.output for s in program.statements if s.output not in barred and _adds_up(s)}
    rounded = [c for s in program.statements if s.output in sums for c in _rounded(s)]
    wanted = {(a.tensor, c.function) for c in rounded for a in accesses_in(c) if a.tensor in values}
    dtypes = {name: {d for n, d in wanted if n == name} for name in values}
    known, names = dict(types), Names.of(program)
    copies: dict[tuple[str, str], str] = {}
    statements: list[Statement] = []
    for s in program.statements:
        s = _reading(s, copies) if s.output in sums else s
        statements.append(s)
        if len(dtypes.get(s.output, ())) == 1 and _is_read_whole(s.output, program):
            (dtype,) = dtypes[s.output]
            body = Call(dtype, (Access(s.output, s.index or ()),))
            copy = Statement(names.fresh(f"{s.output}_rounded"), s.index, s.sizes, body, "assign", span=s.span)
            copies[s.output, dtype] = copy.output
            known[copy.output] = statement_type(copy, known)
            statements.append(copy)
    return (replace(program, statements=tuple(statements)), known) if copies else (program, types)


def _adds_up(s: Statement) -> bool:
    return s.aggregation == "sum" and not set(index_variables(s.body)) <= set(index_variables(*(s.index or ())))


def _rounded(s: Statement) -> list[Call]:
    """What a statement reads under a cast to 16 bits."""
    return [e for e in walk(s.body) if isinstance(e, Call) and e.function in NARROW and isinstance(e.args[0], Access)]


def _is_read_whole(name: str, program: Program) -> bool:
    """Whether some statement reads elements without rounding them."""
    for s in program.statements:
        own = [a for e in s.roots for a in accesses_in(e) if a.tensor == name]
        if len(own) > sum(a.tensor == name for c in _rounded(s) for a in accesses_in(c)):
            return True
    return name in program.outputs


def _reading(s: Statement, copies: dict[tuple[str, str], str]) -> Statement:
    def visit(e: Expr) -> Expr:
        match e:
            case Call(dtype, (Access(tensor) as a,)) if (tensor, dtype) in copies:
                return replace(a, tensor=copies[tensor, dtype])
        return e if not children(e) or isinstance(e, Inside) else rebuild(e, visit)

    return map_values(s, visit) if copies else s
