"""Sums of 16 bits and what is added to them first, for a gradient to read in the place of the sums.

`O[m, j] = +(X[m, h] * W[j, h]); Y = O + A > 0 ? O + A : 0.1 * (O + A)` asks in its gradient too which elements of
`O + A` are positive. Where `O` is kept it has been rounded before the bias is added, which may decide this otherwise
than the forward pass did. The statement

    O_biased[m, j] = O[m, j] + A[j]

is rounded once, takes as much memory, and is all that either pass reads of `O`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import repeat

from tilec.ir.index import distinct_variables, linear
from tilec.ir.infer import infer
from tilec.ir.program import (
    Access,
    Call,
    Expr,
    Index,
    Inside,
    Program,
    Statement,
    children,
    expressions,
    index_variables,
    map_values,
    reads,
    reads_itself,
    rebuild,
    walk,
)
from tilec.ir.types import NARROW, Types
from tilec.lattice.sets import interval_of
from tilec.transforms.util.naming import Names
from tilec.transforms.util.rewrite import body_at


def with_biased_sums(
    program: Program,
    inputs: Types,
    cotangents: Collection[str] = (),
    admits: Callable[[Statement, Statement], bool] | None = None,
) -> Program:
    """The flat program with such statements: of values and gradient, where both read a sum, or of any for sums and
    statements that are admitted. `inputs`: types of the inputs."""
    types = infer(program, inputs)
    if not any(t.dtype in NARROW for t in types.values()):
        return program
    names, beyond = Names.of(program), set(cotangents)
    for s in program.statements:
        if not beyond.isdisjoint(reads(s)):
            beyond.add(s.output)
    for s in program.statements:
        if types[s.output].dtype not in NARROW or s.output in program.outputs or s.aggregation != "sum":
            continue
        readers = [t for t in program.statements if s.output in reads(t)]
        asked = {t.output in beyond for t in readers} == {True, False} and s.output not in beyond
        biased = _biased(s, readers, types) if readers and (asked or admits is not None) else None
        if biased is not None and (admits(s, biased) if admits else beyond.isdisjoint(reads(biased))):
            program = _read_in(program, s, replace(biased, output=names.fresh(f"{s.output}_biased")))
    return program


def _biased(s: Statement, readers: list[Statement], types: Types) -> Statement | None:
    """The one sum of a statement's elements and others of their type that all readers read, or None."""
    found: set[Expr | None] = set()
    for reader in readers:
        if reads_itself(reader) or any(isinstance(e, Inside) and e.access.tensor == s.output for e in _parts(reader)):
            return None
        sums = [e for e in _parts(reader) if _term(e, s.output) is not None]
        alone = sum(isinstance(e, Access) and e.tensor == s.output for e in _parts(reader))
        if not sums or alone != len(sums):
            return None
        found |= {_at_own_place(s, e, types) for e in sums}
    body = found.pop()
    if found or body is None:
        return None
    return replace(s, body=body, aggregation="assign", guard=None, constraints=(), attributes=())


def _parts(s: Statement) -> Iterator[Expr]:
    return walk(*expressions(s))


def _term(e: Expr, name: str) -> tuple[Access, Access] | None:
    """The element of a tensor, and the other that is added to it."""
    match e:
        case Call("add", (Access() as a, Access() as b)) if name in (a.tensor, b.tensor) and a.tensor != b.tensor:
            return (a, b) if a.tensor == name else (b, a)
    return None


def _at_own_place(s: Statement, e: Expr, types: Types) -> Expr | None:
    """The sum as a statement of the elements would write it; None where that is not one of the same type."""
    term, own = _term(e, s.output), distinct_variables(s.index)
    there = None if term is None else distinct_variables(term[0].index)
    if term is None or own is None or there is None or types[term[1].tensor].dtype != types[s.output].dtype:
        return None
    if not {*index_variables(term[1])} <= {*there}:
        return None
    box: dict[Expr, tuple[int, int]] = {Index(v): (0, n - 1) for v, n in zip(there, types[s.output].shape, strict=True)}
    if not all(map(_lies_inside, term[1].index, types[term[1].tensor].shape, repeat(box))):
        return None  # the readers have fewer points than there are elements
    return body_at(replace(s, index=tuple(map(Index, there)), body=Call("add", term)), tuple(map(Index, own)))


def _lies_inside(place: Expr, size: int, box: Mapping[Expr, tuple[int, int]]) -> bool:
    form = linear(place)
    if not form.is_affine or not form.is_integral:
        return False
    low, high = interval_of(form, box.__getitem__)
    return low >= 0 and high < size


def _read_in(program: Program, s: Statement, biased: Statement) -> Program:
    """The program in which all readers of a sum but one read that one."""

    def visit(e: Expr) -> Expr:
        term = _term(e, s.output)
        if term is not None:
            return Access(biased.output, term[0].index)
        return rebuild(e, visit) if children(e) else e

    statements: list[Statement] = []
    for t in program.statements:
        reading = s.output in reads(t)
        if reading and biased not in statements:
            statements.append(biased)
        statements.append(map_values(t, visit) if reading else t)
    return replace(program, statements=tuple(statements))
