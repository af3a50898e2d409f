"""Elementwise statements that one reduction alone reads, written into it: their values are never stored.

Groups take most of them. What is left are reductions that are split over programs, such as a mean of all elements of
`abs(X - T)`, and sums over an axis that no group walks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tilec.backends.common.domain import build_domain
from tilec.backends.triton.recurrence.fuse_producers import element_at
from tilec.ir.index import linear, replace_indices
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
    accesses_in,
    index_variables,
    reads_itself,
    rebuild,
    variables_of,
    walk,
)
from tilec.ir.types import NARROW, Types


def with_producers(
    program: Program, types: Types, barred: Collection[str], reads: Mapping[str, Sequence[str]]
) -> tuple[Program, frozenset[str]]:
    """The program without elementwise statements that one reduction reads, each element once; the outputs of
    reductions that compute them. `barred`: outputs that stay as they are; `reads`: by output, what each reads."""
    statements = {s.output: s for s in program.statements}
    read = {output: set(names) for output, names in reads.items() if output in statements}
    changed: set[str] = set()
    for s in reversed(program.statements):
        readers = [output for output, names in read.items() if s.output in names]
        if s.output in program.outputs or s.output in barred or len(readers) != 1 or readers[0] in barred:
            continue
        made = _computing(statements[readers[0]], s, types)
        if made is not None:
            (reader,) = readers
            statements[reader] = made
            read[reader] = (read[reader] | read.pop(s.output)) - {s.output}
            del statements[s.output]
            changed.add(reader)
            changed.discard(s.output)
    left = tuple(statements[s.output] for s in program.statements if s.output in statements)
    return replace(program, statements=left), frozenset(changed)


def _computing(reader: Statement, s: Statement, types: Types) -> Statement | None:
    """The reduction with what it reads of an elementwise statement computed at each of its points; None where that is
    of another form or would compute elements more than once."""
    if s.aggregation != "assign" or s.index is None or s.constraints or s.guard is not None or reads_itself(s):
        return None
    if s.default is not None or s.init is not None or reader.default is not None or reads_itself(reader):
        return None
    own = [linear(e).bare for e in s.index]
    names = [v for v in own if v is not None]
    if len(set(names)) != len(own) or not set(variables_of(s)) <= set(names):
        return None
    roots = (reader.body, *(() if reader.guard is None else (reader.guard,)))
    places = {a.index for a in accesses_in(*roots) if a.tensor == s.output}
    hidden = (*(c.expr for c in reader.constraints), *(reader.index or ()))
    if len(places) != 1 or any(a.tensor == s.output for a in accesses_in(*hidden)):
        return None
    asked = (e.access for root in roots for e in walk(root) if isinstance(e, Inside | Pad))
    if any(a.tensor == s.output for e in asked for a in accesses_in(e)):
        return None  # at places outside of it too
    (place,) = places
    found = [e.name for e in place if isinstance(e, Index)]
    if len(set(found)) != len(place) or not set(variables_of(reader)) <= set(found):
        return None
    if not set(found) - set(index_variables(*(reader.index or ()))):
        return None  # no reduction
    if any(a.tensor == s.output for root in roots for e in walk(root) if isinstance(e, Access) for a in _inside(e)):
        return None
    filled = _fills(s, dict(zip(names, types[s.output].shape, strict=True)), types)
    if filled:
        value = replace_indices(s.body, {v: linear(e) for v, e in zip(names, place, strict=True)})
        if types[s.output].dtype in NARROW:
            value = Call(types[s.output].dtype, (value,))
    else:
        value = element_at(s, Access(s.output, place), types)

    def computed(e: Expr) -> Expr:
        return value if isinstance(e, Access) and e.tensor == s.output else rebuild(e, computed)

    extent = dict(zip(found, types[s.output].shape, strict=True))
    ranges = _unbounded(value if filled else None, extent, types)
    guard = None if reader.guard is None else computed(reader.guard)
    return replace(reader, body=computed(reader.body), guard=guard, constraints=(*reader.constraints, *ranges))


def _fills(s: Statement, extent: Mapping[str, int], types: Types) -> bool:
    """Does an elementwise statement write every element? Where it does not, the element is 0."""
    domain = build_domain(s, types)
    if domain is None or domain.conditions:
        return False
    return all(domain.low[v] == 0 and domain.extent[v] == n for v, n in extent.items())


def _unbounded(value: Expr | None, extent: Mapping[str, int], types: Types) -> tuple[Constraint, ...]:
    """What says how far variables go that a value's reads do not bound by themselves, or at other places; None for a
    value whose reads bound nothing."""
    bounds: set[tuple[str | None, int]] = set()
    for a in () if value is None else accesses_in(value):
        bounds |= {(linear(e).bare, n) for e, n in zip(a.index, types[a.tensor].shape, strict=True)}
    shifted = any(v is None for v, _ in bounds)
    return tuple(Constraint(Index(v), Int(n)) for v, n in extent.items() if shifted or (v, n) not in bounds)


def _inside(e: Access) -> list[Access]:
    """What is read to find where an access reads."""
    return list(accesses_in(*e.index))
