"""Shapes as far as they are known without a call: as size expressions, or as `the shape of that tensor`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilec.ir.functions import RANDOM, STRUCTURAL
from tilec.ir.program import Access, Call, Expr, Index, Int, Name, Program, Statement, expressions, walk

# The size of each dimension, or the name of a tensor of the same shape where not even the rank is known.
Extent = tuple[Expr, ...] | str


def extents(program: Program) -> dict[str, Extent]:
    """Of every input and every statement's output."""
    known: dict[str, Extent] = {}
    for i in program.inputs:
        known[i.name] = i.name if i.dims is None else tuple(Name(d) if isinstance(d, str) else Int(d) for d in i.dims)
    for s in program.statements:
        known[s.output] = statement_extent(s, known)
    return known


def sizes(extent: Extent, rank: int) -> tuple[Expr, ...]:
    """The sizes of a tensor of that many dimensions as expressions."""
    if isinstance(extent, str):
        return tuple(Call("shape", (Name(extent), Int(d))) for d in range(rank))
    return extent


def statement_extent(s: Statement, known: Mapping[str, Extent]) -> Extent:
    if s.index is not None:
        if s.sizes is not None:
            return s.sizes
        found = [_left_out(v, s, known) for v in s.index]
        complete = tuple(e for e in found if e is not None)
        return complete if len(complete) == len(found) else s.output
    if isinstance(s.body, Call) and s.body.function in STRUCTURAL:
        return _structural(s.body, known) or s.output
    operands = dict.fromkeys(known[e.name] for e in shaping(s.body) if e.name in known)
    return _broadcast(list(operands)) or s.output


def _left_out(v: Expr, s: Statement, known: Mapping[str, Extent]) -> Expr | None:
    """The size of a dimension whose index is the bare variable v: that of the first access that v indexes as well."""
    for e in walk(*expressions(s)):
        if isinstance(e, Access) and v in e.index and e.tensor in known and isinstance(v, Index):
            return sizes(known[e.tensor], len(e.index))[e.index.index(v)]
    return None


def _structural(call: Call, known: Mapping[str, Extent]) -> Extent | None:
    like = {"simple_reduce": 1, "scatter": 2}.get(call.function)
    if call.function == "reshape":
        like = 1
        if not (isinstance(call.args[1], Call) and call.args[1].function == "shape" and len(call.args[1].args) == 1):
            return call.args[1:]
        return _shape_of(call.args[1].args[0], known)
    return None if like is None else _shape_of(call.args[like], known)


def _shape_of(e: Expr, known: Mapping[str, Extent]) -> Extent | None:
    return known.get(e.name) if isinstance(e, Name) else None


def shaping(e: Expr) -> Iterator[Name]:
    """The names that give an elementwise expression its shape."""
    match e:
        case Name():
            yield e
        case Call("index" | "as_type", (first, *_)):
            yield from shaping(first)
        case Call(function, args) if function != "shape":  # a seed is of rank 0
            for a in args[function in RANDOM :]:
                yield from shaping(a)


def _broadcast(operands: list[Extent]) -> Extent | None:
    """NumPy's rule where it can be told: sizes that are written alike are equal; any other may be 1 at the call."""
    operands = [o for o in operands if o != ()]
    if not operands:
        return ()
    if len(operands) == 1:
        return operands[0]
    result: list[Expr] = []
    for operand in operands:
        if isinstance(operand, str):
            return None
        while len(result) < len(operand):
            result.insert(0, Int(1))
        offset = len(result) - len(operand)
        for d, size in enumerate(operand, offset):
            if result[d] == Int(1):
                result[d] = size
            elif size not in (Int(1), result[d]):
                return None
    return tuple(result)
