"""Scatters of one element a row as selections (`tl.where`).

`G[r, T[r]] = +(D[r])` writes one element of each row at most. As `G[r, v] = +(T[r] == v ? D[r])` it needs no sorting,
fills the rest of the row in the same pass, and can share a kernel with what else walks the rows: the gradient of a
cross-entropy does. So it is with an element whose place is a sum of the row's variables: a diagonal, `G[r, r + 1]`.
What `G[r, T[r]] = +(D[r, c])` adds up for that element is a sum of the row first (a margin from the named element to
each other).
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.index import linear
from tilec.ir.program import Access, Call, Expr, Index, Int, Program, Statement, index_variables, rebuild, walk
from tilec.ir.types import TensorType, Types
from tilec.transforms.util.naming import Names, all_variables, fresh_variable
from tilec.transforms.util.plain import is_pure


def with_selections(program: Program, types: Types) -> tuple[Program, Types]:
    """The flat program with such writes as selections, and all types."""
    names, known = Names.of(program), dict(types)
    statements: list[Statement] = []
    for s in program.statements:
        place = _named(s)
        statements += [s] if place is None else _selected(s, place, names, known)
    return replace(program, statements=tuple(statements)), known


def _named(s: Statement) -> int | None:
    """Which index names an element of each row; None where none does."""
    if s.index is None or not is_pure(s) or s.constraints:
        return None
    bare = [linear(e).bare for e in s.index]
    named = [k for k, v in enumerate(bare) if v is None or v in bare[:k]]
    if len(named) != 1 or not _is_plain(s.index[named[0]]):
        return None
    rows = {v for v in bare if v is not None}
    if not set(index_variables(*s.index)) <= rows:
        return None
    return named[0] if set(index_variables(*s.roots)) <= rows or s.aggregation in ("sum", "max", "min") else None


def _selected(s: Statement, place: int, names: Names, types: dict[str, TensorType]) -> list[Statement]:
    """The write as a selection, after the aggregation of each row where it has further variables. `types` learns that
    one's."""
    index, made = s.index or (), list[Statement]()
    if not set(index_variables(*s.roots)) <= set(index_variables(*index)):
        t = types[s.output]
        others = [k for k in range(len(index)) if k != place]
        row = names.fresh(f"{s.output}_row")
        types[row] = TensorType(tuple(t.shape[k] for k in others), t.dtype)
        own = tuple(index[k] for k in others)
        made = [replace(s, output=row, index=own, sizes=tuple(map(Int, types[row].shape)), attributes=())]
        s = replace(s, body=Access(row, own), guard=None)
    column = Index(fresh_variable("v", all_variables(s)))
    here: Expr = Call("eq", (_as_int64(index[place]), column))
    guard = here if s.guard is None else Call("and", (here, Call("ne", (s.guard, Int(0)))))
    return [*made, replace(s, index=tuple(column if k == place else e for k, e in enumerate(index)), guard=guard)]


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
