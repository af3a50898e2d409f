"""Writes to one element of each row, as selections.

`G[r, T[r]] = +(D[r])` writes one element of each row at most. As `G[r, v] = +(T[r] == v ? D[r])` it needs no sorting,
fills the rest of the row in the same pass, and can share a kernel with what else walks the rows: the gradient of a
cross-entropy does. So it is with an element whose place is a sum of the row's variables: a diagonal, `G[r, r + 1]`.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.index import linear
from tilec.ir.program import Access, Call, Expr, Index, Int, Program, Statement, index_variables, rebuild, walk
from tilec.transforms.util.naming import all_variables, fresh_variable


def with_selections(program: Program) -> tuple[Program, frozenset[str]]:
    """The flat program with such writes as selections, and their outputs."""
    made = {s.output: new for s in program.statements if (new := _selection(s)) is not None}
    statements = tuple(made.get(s.output, s) for s in program.statements)
    return replace(program, statements=statements), frozenset(made)


def _selection(s: Statement) -> Statement | None:
    if s.index is None or s.default is not None or s.init is not None or s.constraints:
        return None
    bare = [linear(e).bare for e in s.index]
    named = [k for k, v in enumerate(bare) if v is None or v in bare[:k]]
    if len(named) != 1 or not _is_plain(s.index[named[0]]):
        return None
    rows = {v for v in bare if v is not None}
    if not set(index_variables(*s.index, *s.roots)) <= rows:
        return None
    column = Index(fresh_variable("v", all_variables(s)))
    here: Expr = Call("eq", (_as_int64(s.index[named[0]]), column))
    guard = here if s.guard is None else Call("and", (here, Call("ne", (s.guard, Int(0)))))
    index = tuple(column if k == named[0] else e for k, e in enumerate(s.index))
    return replace(s, index=index, guard=guard)


def _is_plain(e: Expr) -> bool:
    """Whether an index is made of elements, variables and integers by sums and products, and is no number."""
    parts = list(walk(e))
    inside = {id(x) for p in parts if isinstance(p, Access) for i in p.index for x in walk(i)}
    outer = [p for p in parts if id(p) not in inside]
    calls = all(p.function in ("add", "sub", "mul", "neg") for p in outer if isinstance(p, Call))
    return (
        calls
        and all(isinstance(p, (Call, Access, Index, Int)) for p in outer)
        and any(isinstance(p, (Access, Index)) for p in outer)
    )


def _as_int64(e: Expr) -> Expr:
    """The index as a value: elements as integers that do not wrap."""
    return Call("int64", (e,)) if isinstance(e, Access) else rebuild(e, _as_int64)
