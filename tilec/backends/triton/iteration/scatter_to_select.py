"""Scatters of one element a row as selections (`tl.where`).

`G[r, T[r]] = +(D[r])` writes one element of each row at most. As `G[r, v] = +(T[r] == v ? D[r])` it needs no sorting,
fills the rest of the row in the same pass, and can share a kernel with what else walks the rows: the gradient of a
cross-entropy does. So it is with an element whose place is a sum of the row's variables: a diagonal, `G[r, r + 1]`.
What `G[r, T[r]] = +(D[r, c])` adds up for that element is a sum of the row first (a margin from the named element to
each other). The one elementwise statement that reads such a row holds the selection itself, which can then be the
epilogue of a product: the gradient of a contrastive loss, whose diagonal is one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilec.backends.base import Lowering
from tilec.backends.triton.iteration.space import build_space
from tilec.ir.functions import ZERO
from tilec.ir.index import distinct_variables, linear
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    accesses_in,
    index_variables,
    rebuild,
    walk,
)
from tilec.ir.types import NARROW, TensorType, Types, is_floating, shapes_in
from tilec.transforms.lower.defract import defracted_form
from tilec.transforms.util.naming import Names, all_variables, fresh_variable
from tilec.transforms.util.plain import is_pure
from tilec.transforms.util.rewrite import body_at, with_parts


def with_selections(program: Program, types: Types) -> tuple[Program, Types]:
    """The flat program with such writes as selections, and all types."""
    names, known = Names.of(program), dict(types)
    statements: list[Statement] = []
    selected: set[str] = set()
    for s in program.statements:
        place = _named(s)
        statements += [s] if place is None else _selected(s, place, names, known)
        selected |= set() if place is None else {s.output}
    return _within_readers(replace(program, statements=tuple(statements)), selected - {*program.outputs}, known), known


def lowered_with_selections(lowering: Lowering) -> Lowering:
    """With scatters that select as such: those have the axis that they write at."""
    flat, types = with_selections(lowering.stages["flat"], lowering.types)
    there = {s.output: s for s in lowering.stages["flat"].statements}
    rows: list[Statement] = []  # what the next write selects
    known: dict[str, list[Statement]] = {}
    for s in flat.statements:
        if s.output not in there:
            rows.append(s)
        elif s is not there[s.output]:
            known[s.output], rows = [*rows, s], []
    shapes, left = shapes_in(types), {s.output for s in flat.statements}
    stages = dict(lowering.stages)
    for stage in ("flat", "reduced", "defracted"):
        whole = stages[stage].statements
        statements = [m for s in whole if s.output in left for m in known.get(s.output, [s])]
        if stage == "defracted":
            statements = [s if s.output in there else defracted_form(s, shapes) for s in statements]
        stages[stage] = replace(stages[stage], statements=tuple(statements))
    return replace(lowering, stages=stages, types=types)


def _within_readers(program: Program, selected: Collection[str], types: Types) -> Program:
    """The program with selections of floats within the statement that reads them, if that is one that assigns each
    element, and reads no other elements than its own."""
    statements = {s.output: s for s in program.statements}
    for s in program.statements:
        readers = program.readers(s.output) if s.output in selected else ()
        if len(readers) != 1 or s.aggregation != "sum" or not is_floating(types[s.output].dtype):
            continue
        value = Call(types[s.output].dtype, (s.body,)) if types[s.output].dtype in NARROW else s.body
        body = value if s.guard is None else Call("select", (s.guard, value, ZERO))
        whole = replace(s, aggregation="assign", body=body, guard=None)
        reader = statements[readers[0].output]
        read = Access(s.output, reader.index or ())
        own = all(a == read for a in accesses_in(*reader.roots) if a.tensor == s.output)
        if not own or any(isinstance(e, Inside | Pad) for e in walk(*reader.roots)):
            continue
        if all(_assigns_all(x, types) for x in (whole, reader)):
            here = body_at(whole, read.index)
            statements[reader.output] = replace(reader, body=with_parts(reader.body, {read: here}))
            del statements[s.output]
    return replace(program, statements=tuple(statements.values()))


def _assigns_all(s: Statement, types: Types) -> bool:
    """Whether a statement assigns each element of its output, at one variable each, whatever its values are."""
    if s.aggregation != "assign" or s.guard is not None or s.default is not None or distinct_variables(s.index) is None:
        return False
    space = build_space(s, types) if is_pure(s) else None
    return space is not None and not space.reductions and not space.valid and space.covers


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
