"""Statements of a flat program that need no memory of their own.

A statement that only inserts or drops dimensions of size 1, as a reshape does, is read through. One of a value for each
point of a reduction that alone reads it, as a gradient's is before it is summed over broadcast axes, is computed there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilec.ir.constraining import always, demands
from tilec.ir.infer import infer
from tilec.ir.program import (
    Access,
    Call,
    Constraint,
    Expr,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    expressions,
    index_variables,
    map_expressions,
    node_count,
    reads,
    reads_itself,
    substitute,
    walk,
)
from tilec.ir.types import TensorType, is_floating
from tilec.transforms.util.naming import all_variables
from tilec.transforms.util.plain import is_pure, is_unmasked
from tilec.transforms.util.rewrite import map_reads

MOST_NODES = 200  # of a body that takes another in
WORTH_A_READER = 2**20  # elements that are worth a reader's few operations
FEW_NODES = 12  # of one that each reader computes
SPREAD_BY = frozenset(("add", "sub", "mul", "div", "neg"))


def drop_views(program: Program, inputs: Mapping[str, TensorType]) -> Program:
    """The same program with fewer statements; `inputs` are the types of its inputs."""
    types = infer(program, inputs)
    found = {s.output: s for s in program.statements}
    readers: dict[str, dict[str, None]] = {}
    for s in program.statements:
        for name in reads(s):
            readers.setdefault(name, {})[s.output] = None
    for name in [s.output for s in program.statements if s.output not in program.outputs]:
        s = found[name]
        own = [found[o] for o in readers.get(name, ()) if o in found and o != name]
        changed = _read_through(s, own, types) or _computed_there(s, own, types) or _spread_there(s, own, types)
        if changed is None:
            continue
        del found[name]
        for o in changed:
            found[o.output] = o
            for read in reads(o):
                readers.setdefault(read, {})[o.output] = None
    for s in [s for s in found.values() if s.output in program.outputs]:
        found = _written_through(s, found, readers, program, types)
    return replace(program, statements=tuple(found.values()))


def _plain(s: Statement) -> bool:
    """An assignment to every element of the output, of values at points that all count as far as the output says."""
    bare = all(isinstance(e, Index) or e == Int(0) for e in s.index or ())
    names = [e.name for e in s.index or () if isinstance(e, Index)]
    free = is_pure(s) and is_unmasked(s) and not s.attributes
    return s.aggregation == "assign" and bare and len(set(names)) == len(names) and free


def _extents(s: Statement, types: Mapping[str, TensorType]) -> dict[str, int]:
    """The sizes of a statement's output variables."""
    shape = types[s.output].shape
    return {e.name: n for e, n in zip(s.index or (), shape, strict=True) if isinstance(e, Index)}


def _whole(access: Access, extents: Mapping[str, int], types: Mapping[str, TensorType]) -> bool:
    """Is the access inside its tensor at every point, its indices bare variables or numbers?"""
    for e, n in zip(access.index, types[access.tensor].shape, strict=True):
        inside = isinstance(e, Int) and e.value < n or isinstance(e, Index) and extents.get(e.name, n + 1) <= n
        if not inside:
            return False
    return True


# dimensions of size 1


def _view(s: Statement, types: Mapping[str, TensorType]) -> Access | None:
    """What a statement only gives other dimensions of size 1: the variables of the rest are in the same order."""
    if not _plain(s) or not isinstance(s.body, Access) or types[s.output] != replace(
        types[s.body.tensor], shape=types[s.output].shape
    ):  # fmt: skip
        return None
    if types[s.output].element() != types[s.body.tensor].element():
        return None  # a rank-0 tensor does not promote as one with dimensions does
    extents = {v: n for v, n in _extents(s, types).items() if n != 1}
    given = [e.name for e in s.body.index if isinstance(e, Index) and e.name in extents]
    sizes = [
        (e.name if isinstance(e, Index) else "", n)
        for e, n in zip(s.body.index, types[s.body.tensor].shape, strict=True)
    ]
    same = all(extents[v] == n if v in extents else n == 1 for v, n in sizes)
    return s.body if same and given == list(extents) and _whole(s.body, _extents(s, types), types) else None


def _read_through(
    s: Statement, readers: Sequence[Statement], types: Mapping[str, TensorType]
) -> list[Statement] | None:
    negated = isinstance(s.body, Call) and s.body.function == "neg"
    source = _view(replace(s, body=s.body.args[0]) if isinstance(s.body, Call) and negated else s, types)
    if source is None or not readers or any(o.default == s.output for o in readers):
        return None
    if negated and any(not _only_values(o, s.output) for o in readers):
        return None
    places = {e.name: d for d, e in enumerate(s.index or ()) if isinstance(e, Index)}
    dropped = [d for d, n in enumerate(types[s.output].shape) if n == 1]
    for o in readers:
        for e in walk(*expressions(o)):
            if isinstance(e, Access) and e.tensor == s.output and any(e.index[d] != Int(0) for d in dropped):
                return None

    def read(e: Access) -> Expr:
        index = tuple(e.index[places[i.name]] if isinstance(i, Index) else i for i in source.index)
        moved = replace(e, tensor=source.tensor, index=index)
        return Call("neg", (moved,)) if negated else moved

    return [map_expressions(o, lambda e: map_reads(e, (s.output,), read)) for o in readers]


def _only_values(s: Statement, tensor: str) -> bool:
    """Whether an elementwise statement or a sum over its points reads a tensor as a value, and nothing as a place."""
    asked = (e.access for e in walk(*expressions(s)) if isinstance(e, Inside | Pad))
    places = (i for e in walk(*expressions(s)) if isinstance(e, Access) for i in e.index)
    places_of = (*(s.index or ()), *(c.expr for c in s.constraints), *asked, *places)
    return not any(isinstance(e, Access) and e.tensor == tensor for e in walk(*places_of))


def _written_through(
    s: Statement,
    statements: dict[str, Statement],
    known: Mapping[str, dict[str, None]],
    program: Program,
    types: Mapping[str, TensorType],
) -> dict[str, Statement]:
    """Where an output only drops or inserts dimensions of size 1, its source is written to it at once."""
    source = _view(s, types)
    made = statements.get(source.tensor) if source is not None else None
    if source is None or made is None or made.output in program.outputs or made.default or reads_itself(made):
        return statements
    readers = [statements[o] for o in known.get(made.output, ()) if o in statements]
    if [o for o in readers if made.output in reads(o)] != [s]:
        return statements
    at = dict(zip([e.name if isinstance(e, Index) else "" for e in source.index], made.index or (), strict=False))
    ones = [e for e, n in zip(made.index or (), types[made.output].shape, strict=True) if n == 1]
    if any(e != Int(0) for e in ones):
        return statements
    index = tuple(at.get(e.name, Int(0)) if isinstance(e, Index) else Int(0) for e in s.index or ())
    direct = replace(made, output=s.output, index=index, sizes=s.sizes)
    for name in reads(direct):
        known.get(name, {})[s.output] = None
    moved = ((direct if o is made else o) for o in statements.values() if o is not s)
    return {o.output: o for o in moved}


# values that one reduction reads


def _computed_there(
    s: Statement, readers: Sequence[Statement], types: Mapping[str, TensorType]
) -> list[Statement] | None:
    """The reader takes the body in where it visits each element once: all its variables index what it reads."""
    if not _plain(s) or not is_floating(types[s.output].dtype) or types[s.output].weak or isinstance(s.body, Access):
        return None
    extents = _extents(s, types)
    if not all(_whole(e, extents, types) for e in walk(s.body) if isinstance(e, Access)):
        return None
    if any(isinstance(e, (Pad, Inside)) for e in walk(s.body)):
        return None
    found = [(o, e) for o in readers for e in walk(*expressions(o)) if isinstance(e, Access) and e.tensor == s.output]
    if len(found) != 1 or any(o.default == s.output for o in readers):
        return None
    ((reader, access),) = found
    names = [e.name for e in access.index if isinstance(e, Index)]
    bare = len(set(names)) == len(names) and all(isinstance(e, Index) or e == Int(0) for e in access.index)
    reduction = reader.aggregation == "sum" and set(index_variables(*reader.index or ())) < all_variables(reader)
    alone = reader.body == access and reader.guard is None and not reader.constraints
    if not (bare and reduction and alone and set(names) == all_variables(reader)):
        return None
    if node_count(s.body) > MOST_NODES:
        return None
    new = {i.name: e for i, e in zip(s.index or (), access.index, strict=True) if isinstance(i, Index)}
    body = substitute(s.body, new)
    read = {v for a in always(demands(body)) for v in index_variables(*a.index)}
    if read != set(names):
        return None  # a variable that nothing read would bound
    sizes = {e: n for e, n in zip(access.index, types[s.output].shape, strict=True) if isinstance(e, Index)}
    bounds = _bounds(body, reader, types)
    constraints = tuple(Constraint(v, Int(n)) for v, n in sizes.items() if (v, n) not in bounds)
    return [replace(reader, body=body, constraints=constraints)]


def _spread_there(
    s: Statement, readers: Sequence[Statement], types: Mapping[str, TensorType]
) -> list[Statement] | None:
    """Readers take the body in where it only spreads what is smaller: `G[i, j] = D[i] / 8192` is as large as what reads
    it at its own elements, and quickly computed."""
    t, alone = types[s.output], {*index_variables(*s.roots)} <= {*index_variables(*(s.index or ()))}
    s = replace(s, aggregation="assign") if s.aggregation == "sum" and alone else s
    if (
        not readers
        or math.prod(t.shape) < WORTH_A_READER
        or not _plain(s)
        or not is_floating(t.dtype)
        or t.weak
        or node_count(s.body) > FEW_NODES
    ):
        return None
    extents, read = _extents(s, types), [e for e in walk(s.body) if isinstance(e, Access)]
    spread = {v for v, n in extents.items() if n != 1} - {*index_variables(s.body)}
    cheap = all(e.function in SPREAD_BY for e in walk(s.body) if isinstance(e, Call))
    floats = [x for e in read if is_floating((x := types[e.tensor]).dtype)]
    same = bool(floats) and all(x.dtype == t.dtype and not x.weak for x in floats)
    if not read or not spread or not cheap or not same or not all(_whole(e, extents, types) for e in read):
        return None
    if not all(_reads_own(o, s.output, types) for o in readers):
        return None

    def value(e: Access) -> Expr:
        at = {i.name: x for i, x in zip(s.index or (), e.index, strict=True) if isinstance(i, Index)}
        return substitute(s.body, at)

    return [map_expressions(o, lambda e: map_reads(e, (s.output,), value)) for o in readers]


def _reads_own(s: Statement, tensor: str, types: Mapping[str, TensorType]) -> bool:
    """Whether a statement reads a tensor as values alone, and at elements that its own output index names."""
    own = {e: n for e, n in zip(s.index or (), types[s.output].shape, strict=True) if isinstance(e, Index)}
    at = [e for e in walk(*expressions(s)) if isinstance(e, Access) and e.tensor == tensor]
    inside = all((e, n) in own.items() for a in at for e, n in zip(a.index, types[tensor].shape, strict=True))
    return inside and s.default != tensor and not reads_itself(s) and _only_values(s, tensor)


def _bounds(body: Expr, reader: Statement, types: Mapping[str, TensorType]) -> set[tuple[Expr, int]]:
    """The variables that an access of the body, or the output, confines to the elements below a size."""
    places = [(reader.index or (), types[reader.output].shape)]
    places += [(e.index, types[e.tensor].shape) for e in walk(body) if isinstance(e, Access)]
    return {pair for index, shape in places for pair in zip(index, shape, strict=True)}
