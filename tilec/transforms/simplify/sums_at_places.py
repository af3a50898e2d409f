"""Aggregations of which few elements are read, computed at these places alone.

`S[n, v] = +(A[n, k] * B[v, k]); O[n, m] = S[n, I[n, m]]` needs as many elements of S as I has: they are

    S_at[n, m] = +(A[n, k] * B[I[n, m], k]);

and where all that reads S does so at few places, S is not computed, nor what is elementwise between. A place may be
data, a number, or any form: so is the last of many positions computed alone. Whether a place is inside, of which S says
nothing any longer, is asked of an operand: `in(B[I[n, m], 0])`.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilec.ir.constraining import access_of, always, asks_in_branches, demands
from tilec.ir.functions import draws
from tilec.ir.index import Affine, distinct_variables, linear, replace_indices
from tilec.ir.infer import infer, statement_type
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    accesses_in,
    children,
    expressions,
    index_variables,
    map_values,
    reads,
    variables_of,
    walk,
)
from tilec.ir.types import TensorType, Types
from tilec.transforms.simplify.simplify import drop_dead
from tilec.transforms.util.naming import Names, all_variables, fresh_variable
from tilec.transforms.util.plain import is_pure
from tilec.transforms.util.rewrite import with_parts

FEWER = 4  # times as many elements as are read where blocks of rows still serve blocks of columns
FEWER_ALONE = 64  # where each element reads operands for itself; a GPU would gain from 12 on, a CPU does not
_SUMMED = ("assign", "sum", "prod", "max", "min", "logsumexp")


def aggregate_where_read(program: Program, inputs: Mapping[str, TensorType]) -> Program:
    """The program with such aggregations; `inputs` are the types of its inputs."""
    types, found = dict(infer(program, inputs)), program
    while (fewer := _Read(found, types).rewritten()) is not found:
        found = fewer
    return found if found is program else replace(found, statements=drop_dead(found.statements, found.outputs))


class _Read:
    def __init__(self, program: Program, types: dict[str, TensorType]):
        self.program, self.types = program, types
        self.made = {s.output: s for s in program.statements}
        self.extents = {s.output: bounded_extents(s, types) for s in program.statements}
        self.taken = self._taken()

    def rewritten(self) -> Program:
        if not self.taken:
            return self.program
        names = Names.of(self.program)
        known: dict[tuple[object, ...], Statement] = {}
        done: list[Statement] = []
        for s in self.program.statements:
            if s.output in self.taken:
                continue
            parts: dict[Expr, Expr] = {}
            for asking in dict.fromkeys(e for e in walk(*s.roots) if isinstance(e, Inside)):
                if access_of(asking).tensor in self.taken and (asked := self._asking(asking)) is not None:
                    parts[asking] = asked
            hidden = {e.access for e in parts if isinstance(e, Inside)}
            read = [a for a in accesses_in(*s.roots) if a.tensor in self.taken]
            for a in (a for a in dict.fromkeys(read) if a not in hidden or _reads(a, s)):
                whole = self.made[a.tensor]
                key, variables = self._key(a, s)
                if key not in known:
                    known[key] = self._at(whole, a, s, names.fresh(f"{a.tensor}_at"), variables)
                    self.types[known[key].output] = statement_type(known[key], self.types)
                    done.append(known[key])
                value: Expr = Access(known[key].output, tuple(map(Index, variables)))
                asked_too = self._asked(whole, a.index) or []
                value = functools.reduce(operator.mul, asked_too, value)
                parts[a] = Call("bool", (value,)) if asked_too and self.types[a.tensor].dtype == "bool" else value
            done.append(map_values(s, functools.partial(_with, parts)) if parts else s)
        return replace(self.program, statements=tuple(done))

    def _taken(self) -> set[str]:
        """Such aggregations, none of which depends on another: what stands in their places reads it still."""
        taken: set[str] = set()
        needed: set[str] = set()
        for s in reversed(self.program.statements):
            if s.output not in needed and self._is_taken(s):
                taken.add(s.output)
            if s.output in taken | needed:
                needed.update(reads(s))
        return taken

    def _is_taken(self, s: Statement) -> bool:
        """Whether an aggregation is read at few places alone, each of which it can be computed at."""
        names, t = distinct_variables(s.index), self.types[s.output]
        if names is None or s.output in self.program.outputs or t.weak or not t.numel:
            return False
        if s.aggregation not in _SUMMED or not is_pure(s) or s.constraints or s.attributes or asks_in_branches(s):
            return False
        if any(isinstance(e, (Pad, Inside, Aggregate)) for e in walk(*expressions(s))) or draws(*s.roots):
            return False
        if any(positions_in(e) & set(names) for e in s.roots):
            return False
        points: dict[tuple[object, ...], int] = {}
        asked = False
        for r in self.program.readers(s.output):
            extent, every = self.extents[r.output], expressions(r)
            asking = [e for e in walk(*every) if isinstance(e, Inside) and access_of(e).tensor == s.output]
            asked = asked or bool(asking)
            kept: list[Expr] = [e for e in walk(*every) if isinstance(e, Pad)]
            kept += [i for e in walk(*every) if isinstance(e, Access) for i in e.index]
            if extent is None or any(a.tensor == s.output for a in accesses_in(*kept, *(r.index or ()))):
                return False
            if any(self._asking(e) is None for e in asking):
                return False
            for a in (a for a in accesses_in(*r.roots) if a.tensor == s.output and _reads(a, r)):
                if not set(index_variables(*a.index)) <= extent.keys() or self._asked(s, a.index) is None:
                    return False
                key, variables = self._key(a, r)
                fewer = FEWER if _has_rows_and_columns(s, a.index) else FEWER_ALONE
                points[key] = fewer * math.prod(extent[v] for v in variables)
        sized = asked and s.aggregation != "assign"  # what is elementwise is cheap, and `tighten_domains` asks for less
        return (sized or bool(points)) and sum(points.values()) <= t.numel

    def _key(self, a: Access, s: Statement) -> tuple[tuple[object, ...], tuple[str, ...]]:
        """What reads of the same places have in common, and the variables that name one as the statement walks them."""
        extent = self.extents[s.output] or {}
        variables = index_variables(*a.index)
        written = distinct_variables(s.index) or ()
        if set(variables) <= set(written):
            variables = tuple(v for v in written if v in variables)
        form = {v: Affine.variable(f"v{k}") for k, v in enumerate(variables)}
        moved = replace_indices(a, form)
        return (moved, tuple(extent[v] for v in variables)), variables

    def _at(self, s: Statement, a: Access, reader: Statement, output: str, variables: Sequence[str]) -> Statement:
        """The aggregation at the places of an access."""
        extent = self.extents[reader.output] or {}
        names = distinct_variables(s.index) or ()
        used = all_variables(s) | set(variables)
        own = {
            v: Affine.variable(fresh_variable(v, used)) for v in variables_of(s) if v not in names and v in variables
        }
        place = own | dict(zip(names, map(linear, a.index), strict=True))
        whole = map_values(s, lambda e: replace_indices(e, place))
        index, sizes = tuple(map(Index, variables)), tuple(Int(extent[v]) for v in variables)
        return replace(whole, output=output, index=index, sizes=sizes)

    def _asked(self, s: Statement, place: Sequence[Expr]) -> list[Expr] | None:
        """Factors of 1 that ask whether a place is inside of what a statement writes, as far as bare variables and
        numbers do not say so; None where no operand has its extents."""
        found: list[Expr] = []
        for v, i, n in zip(distinct_variables(s.index) or (), place, self.types[s.output].shape, strict=True):
            if isinstance(i, Index) or isinstance(i, Int) and i.value < n:
                continue
            own = self._along(s, v, n)
            if own is None:
                return None
            found.append(Inside(Access(own.tensor, tuple(i if x == Index(v) else Int(0) for x in own.index))))
        return found

    def _asking(self, e: Inside) -> Expr | None:
        """What asks the same of inputs, and of what is computed whole; None where nothing does."""
        own = access_of(e)
        s = self.made.get(own.tensor)
        names = None if s is None else distinct_variables(s.index)
        if s is None or names is None:
            return e
        along = [self._along(s, v, n) for v, n in zip(names, self.types[s.output].shape, strict=True)]
        if None in along or not along:
            return None
        places: dict[Expr, Expr] = dict(zip(map(Index, names), own.index, strict=True))
        found = [Inside(Access(a.tensor, tuple(places.get(x, x) for x in a.index))) for a in along if a is not None]
        return functools.reduce(operator.mul, found)

    def _along(self, s: Statement, v: str, n: int) -> Access | None:
        """What a statement, or what computes its operands, reads at each of n values of a variable, as `A[v, 0]`."""
        for a, bound in bounds_asked(s, self.types):
            made = self.made.get(a.tensor)
            names = None if made is None else distinct_variables(made.index)
            if bound != (v, n) or not self.types[a.tensor].numel:
                continue
            axis = a.index.index(Index(v))
            deeper = None if made is None or names is None or not is_pure(made) else self._along(made, names[axis], n)
            if deeper is None:
                return Access(a.tensor, tuple(Index(v) if k == axis else Int(0) for k in range(len(a.index))))
            return Access(deeper.tensor, tuple(Index(v) if isinstance(x, Index) else x for x in deeper.index))
        return None


def bounded_extents(s: Statement, types: Types) -> dict[str, int] | None:
    """How many values each variable of a statement takes at most, from 0 on, where bare indices and constraints bound
    all of them; None elsewhere."""
    if s.index is None or not is_pure(s):
        return None
    extent: dict[str, int] = {}
    places = [(s.index, types[s.output].shape)]
    places += [(a.index, types[a.tensor].shape) for a in always(demands(*s.roots))]
    bounds = [(i, n) for index, shape in places for i, n in zip(index, shape, strict=True)]
    bounds += [(c.expr, c.bound.value) for c in s.constraints if isinstance(c.bound, Int)]
    for i, n in bounds:
        if isinstance(i, Index):
            extent[i.name] = min(extent.get(i.name, n), n)
    return extent if extent.keys() >= set(variables_of(s)) else None


def _with(parts: Mapping[Expr, Expr], e: Expr) -> Expr:
    return with_parts(e, parts)


def _reads(a: Access, s: Statement) -> bool:
    """Whether a statement reads an element, not only asks whether it is there."""

    def visit(e: Expr) -> bool:
        return e == a or not isinstance(e, Inside) and any(map(visit, children(e)))

    return any(map(visit, s.roots))


def bounds_asked(s: Statement, types: Types) -> Iterator[tuple[Access, tuple[str, int]]]:
    """The bare variables that index what a statement reads at every point, and the sizes there."""
    for a in always(demands(*s.roots)):
        for i, n in zip(a.index, types[a.tensor].shape, strict=True):
            if isinstance(i, Index):
                yield a, (i.name, n)


def positions_in(e: Expr) -> set[str]:
    """The index variables that are values in an expression."""
    if isinstance(e, Access):
        return set()
    if isinstance(e, Index):
        return {e.name}
    return set().union(*map(positions_in, e.args)) if isinstance(e, Call) else set()


def _has_rows_and_columns(s: Statement, place: Sequence[Expr]) -> bool:
    """Whether either of two operands, at a place of the output, has a variable that the other lacks."""
    moved = replace_indices(s.body, dict(zip(distinct_variables(s.index) or (), map(linear, place), strict=True)))
    outputs = set(index_variables(*place))
    own = [outputs & set(index_variables(*a.index)) for a in accesses_in(moved)]
    return any(a - b and b - a for a, b in itertools.combinations(own, 2))
