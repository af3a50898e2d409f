"""Aggregations of which few elements are read, or summands of which few are written, computed at these places alone.

`S[n, v] = +(A[n, k] * B[v, k]); O[n, m] = S[n, I[n, m]]` needs as many elements of S as I has: they are

    S_at[n, m] = +(A[n, k] * B[I[n, m], k]);

and where all that reads S does so at few places, S is not computed. Its gradient writes few elements of a tensor that
sums take as a factor, `DS[n, I[n, m]] = +(D[n, m]); DA[n, k] = +(DS[n, v] * B[v, k])`. These sums take the terms
themselves, `DA[n, k] = +(D[n, m] * B[I[n, m], k])`, and the zeros of DS are multiplied by nothing.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilec.ir.constraining import always, asks_in_branches, demands
from tilec.ir.functions import draws
from tilec.ir.index import Affine, distinct_variables, linear, replace_indices, substitute_affine
from tilec.ir.infer import infer, statement_type
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Index,
    Inside,
    Int,
    Name,
    Pad,
    Program,
    Statement,
    accesses_in,
    expressions,
    index_variables,
    map_values,
    variables_of,
    walk,
)
from tilec.ir.types import FLOATS, TensorType, Types, is_floating
from tilec.transforms.simplify.simplify import drop_dead
from tilec.transforms.util.naming import Names, all_variables, fresh_variable
from tilec.transforms.util.plain import is_pure, is_unmasked
from tilec.transforms.util.rewrite import with_parts

_FEWER = 4  # times as many elements as are read where blocks of rows still serve blocks of columns
_FEWER_ALONE = 32  # where each element reads operands for itself
_SUMMED = ("sum", "prod", "max", "min", "logsumexp")


def aggregate_where_read(program: Program, inputs: Mapping[str, TensorType]) -> Program:
    """The program with such aggregations and summands; `inputs` are the types of its inputs."""
    types = dict(infer(program, inputs))
    written = _Written(program, types).rewritten()
    found = _Read(written, types).rewritten()
    return found if found is program else replace(found, statements=drop_dead(found.statements, found.outputs))


# what few places are read of


class _Read:
    def __init__(self, program: Program, types: dict[str, TensorType]):
        self.program, self.types = program, types
        self.extents = {s.output: extents_of(s, types) for s in program.statements}
        self.taken = {s.output for s in program.statements if self._is_taken(s)}

    def rewritten(self) -> Program:
        if not self.taken:
            return self.program
        names, made = Names.of(self.program), {s.output: s for s in self.program.statements}
        known: dict[tuple[object, ...], Statement] = {}
        done: list[Statement] = []
        for s in self.program.statements:
            if s.output in self.taken:
                continue
            read = [a for a in accesses_in(*s.roots) if a.tensor in self.taken]
            parts: dict[Expr, Expr] = {}
            for a in dict.fromkeys(read):
                whole = made[a.tensor]
                key, variables = self._key(a, s)
                if key not in known:
                    known[key] = self._at(whole, a, s, names.fresh(f"{a.tensor}_at"), variables)
                    self.types[known[key].output] = statement_type(known[key], self.types)
                    done.append(known[key])
                value: Expr = Access(known[key].output, tuple(map(Index, variables)))
                for inside in _asked(whole, a.index, self.types) or ():
                    value = Call("mul", (value, inside))
                parts[a] = value
            done.append(map_values(s, lambda e, parts=parts: with_parts(e, parts)) if parts else s)
        return replace(self.program, statements=tuple(done))

    def _is_taken(self, s: Statement) -> bool:
        """Whether an aggregation is read at few places alone, each of which it can be computed at."""
        names, t = distinct_variables(s.index), self.types[s.output]
        if names is None or s.output in self.program.outputs or t.weak:
            return False
        if s.aggregation not in _SUMMED or not is_pure(s) or s.constraints or s.attributes or asks_in_branches(s):
            return False
        if any(isinstance(e, (Pad, Inside, Aggregate)) for e in walk(*expressions(s))) or draws(*s.roots):
            return False
        if not set(variables_of(s)) - set(names) or any(places_in(e) & set(names) for e in s.roots):
            return False
        points: dict[tuple[object, ...], int] = {}
        for r in self.program.readers(s.output):
            hidden = [a for e in walk(*expressions(r)) if isinstance(e, (Pad, Inside)) for a in accesses_in(e)]
            extent = self.extents[r.output]
            if extent is None or any(a.tensor == s.output for a in hidden):
                return False
            within = [
                a for e in walk(*expressions(r)) if isinstance(e, Access) for i in e.index for a in accesses_in(i)
            ]
            if any(a.tensor == s.output for a in within):
                return False
            for a in accesses_in(*r.roots):
                if a.tensor == s.output:
                    if not set(index_variables(*a.index)) <= extent.keys() or _asked(s, a.index, self.types) is None:
                        return False
                    key, variables = self._key(a, r)
                    fewer = _FEWER if _has_rows_and_columns(s, a.index) else _FEWER_ALONE
                    points[key] = fewer * math.prod(extent[v] for v in variables)
        return bool(points) and sum(points.values()) <= t.numel

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


def extents_of(s: Statement, types: Types) -> dict[str, int] | None:
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


def _asked(s: Statement, place: Sequence[Expr], types: Types) -> list[Expr] | None:
    """Factors of 1 that ask whether a place is inside of what a statement writes, as far as bare variables and numbers
    do not say so; None where no operand has its extents."""
    names = distinct_variables(s.index) or ()
    found: list[Expr] = []
    for v, i, n in zip(names, place, types[s.output].shape, strict=True):
        if isinstance(i, Index) or isinstance(i, Int) and i.value < n:
            continue
        own = next((a for a, e in _bounds(s, types) if e == (v, n) and types[a.tensor].numel), None)
        if own is None:
            return None
        found.append(Inside(Access(own.tensor, tuple(i if x == Index(v) else Int(0) for x in own.index))))
    return found


def _bounds(s: Statement, types: Types) -> Iterator[tuple[Access, tuple[str, int]]]:
    """The bare variables that index what a statement reads at every point, and the sizes there."""
    for a in always(demands(*s.roots)):
        for i, n in zip(a.index, types[a.tensor].shape, strict=True):
            if isinstance(i, Index):
                yield a, (i.name, n)


def places_in(e: Expr) -> set[str]:
    """The index variables that are values in an expression."""
    if isinstance(e, Access):
        return set()
    if isinstance(e, Index):
        return {e.name}
    return set().union(*map(places_in, e.args)) if isinstance(e, Call) else set()


def _has_rows_and_columns(s: Statement, place: Sequence[Expr]) -> bool:
    """Whether either of two operands, at a place of the output, has a variable that the other lacks."""
    moved = replace_indices(s.body, dict(zip(distinct_variables(s.index) or (), map(linear, place), strict=True)))
    outputs = set(index_variables(*place))
    own = [outputs & set(index_variables(*a.index)) for a in accesses_in(moved)]
    return any(a - b and b - a for a, b in itertools.combinations(own, 2))


# what is written at few places


class _Written:
    def __init__(self, program: Program, types: dict[str, TensorType]):
        self.program, self.types, self.names = program, types, Names.of(program)

    def rewritten(self) -> Program:
        for output in [s.output for s in self.program.statements]:
            terms = self._few_terms(output)
            changed = self._absorbed(output, terms) if terms else None
            if changed is not None:
                statements = [x for old in self.program.statements for x in changed.get(old.output, (old,))]
                self.program = replace(self.program, statements=tuple(statements))
        return self.program

    def _few_terms(self, output: str) -> tuple[Statement, ...]:
        """A sum that writes few elements of a tensor, or those that add up to it and are read nowhere else."""
        made = {s.output: s for s in self.program.statements}
        s = made.get(output)
        if s is None or self._writes_few(s):
            return () if s is None else (s,)
        added = _added(s.body) if s.aggregation == "assign" and is_pure(s) and is_unmasked(s) else ()
        names = [a.tensor for a in added if a.index == s.index and distinct_variables(a.index) is not None]
        terms = [made[n] for n in names if n in made and self._writes_few(made[n])]
        alone = all(len(self.program.readers(n)) == 1 and n not in self.program.outputs for n in names)
        alike = all(self.types[n] == self.types[output] for n in names)
        whole = 1 < len(added) == len({*names}) == len(terms)
        return tuple(terms) if whole and alone and alike else ()

    def _absorbed(self, output: str, sums: Sequence[Statement]) -> dict[str, tuple[Statement, ...]] | None:
        """What stands in the place of statements, by their outputs, once sums take the terms of these sums, which
        write few elements of a tensor, and what depends on it element by element does so too; None where something
        needs all of it."""
        readers = self.program.readers(output)
        if output in self.program.outputs or not readers or not all(map(self._writes_few, sums)):
            return None
        found: dict[str, tuple[Statement, ...]] = {output: ()}
        values = []
        for s in sums:
            terms, value = self._terms(s)
            found[s.output] = terms if s.output != output else (*found[output], *terms)
            values.append(replace(value, output=output))
        for r in readers:
            if set(variables_of(r)) > set(index_variables(*(r.index or ()))):
                wholes = [_taking(r, value, self.types) for value in values]
                if any(x is None or statement_type(x, self.types) != self.types[r.output] for x in wholes):
                    return None
                found[r.output] = self._together(r, [x for x in wholes if x is not None])
            else:
                links = [_taking(r, replace(s, output=output), self.types) for s in sums]
                more = None if None in links else self._absorbed(r.output, [x for x in links if x is not None])
                if more is None or more.keys() & found.keys():
                    return None
                found |= more
        return found

    def _together(self, r: Statement, wholes: Sequence[Statement]) -> tuple[Statement, ...]:
        """The statements, the outputs of which add up to that of one."""
        if len(wholes) == 1:
            return tuple(wholes)
        parts = [replace(x, output=self.names.fresh(f"{r.output}_part")) for x in wholes]
        self.types |= {x.output: self.types[r.output] for x in parts}
        index = tuple(Index(f"i{axis}") for axis in range(len(r.index or ())))
        body = functools.reduce(operator.add, (Access(x.output, index) for x in parts))
        return (*parts, replace(r, index=index, body=body, aggregation="assign", guard=None, constraints=()))

    def _writes_few(self, s: Statement) -> bool:
        """Whether a sum writes to places that are data, and few of them."""
        t, extent = self.types[s.output], extents_of(s, self.types)
        if s.aggregation != "sum" or s.attributes or extent is None or asks_in_branches(s) or draws(*s.roots):
            return False
        gathers = any(any(accesses_in(i)) for i in s.index or ())
        plain = not any(isinstance(e, Aggregate) for e in walk(*s.roots)) and is_floating(t.dtype) and not t.weak
        return gathers and plain and math.prod(extent.values()) * _FEWER_ALONE <= t.numel

    def _terms(self, s: Statement) -> tuple[tuple[Statement, ...], Statement]:
        """The terms of a sum as a tensor, where they are none, and the sum of them."""
        if isinstance(s.body, Access) and is_unmasked(s):
            return (), s
        extent = extents_of(s, self.types) or {}
        index, sizes = tuple(map(Index, extent)), tuple(map(Int, extent.values()))
        terms = replace(s, output=self.names.fresh(f"{s.output}_terms"), index=index, sizes=sizes, aggregation="assign")
        self.types[terms.output] = statement_type(terms, self.types)
        return (terms,), replace(s, body=Access(terms.output, index), guard=None, constraints=())


def _added(e: Expr) -> tuple[Access, ...]:
    """The elements that an expression adds up; none where it is no such sum."""
    match e:
        case Access():
            return (e,)
        case Call("add", (a, b)):
            left, right = _added(a), _added(b)
            return (*left, *right) if left and right else ()
    return ()


def _taking(r: Statement, s: Statement, types: Types) -> Statement | None:
    """A statement that has elements of a sum as a factor, as a sum of these elements' terms; None where it is no such
    statement, or where a place of the sum may be outside and nothing else says so."""
    read = [a for a in accesses_in(*expressions(r)) if a.tensor == s.output]
    if (
        r.aggregation not in ("assign", "sum")
        or not is_pure(r)
        or r.attributes
        or asks_in_branches(r)
        or len(read) != 1
    ):
        return None
    own = read[0]
    names = distinct_variables(own.index)
    if names is None or not _is_factor(own, r.body) or any(isinstance(e, Aggregate | Pad) for e in walk(*r.roots)):
        return None
    used = all_variables(r) - set(names)
    s = substitute_affine(s, {v: Affine.variable(fresh_variable(v, used)) for v in variables_of(s)})
    place = dict(zip(names, map(linear, s.index or ()), strict=True))
    moved = {v for v, form in place.items() if form.bare is None}
    if moved & set(index_variables(*(c.expr for c in r.constraints))) or any(moved & places_in(e) for e in r.roots):
        return None
    extent, shape = extents_of(s, types) or {}, types[s.output].shape
    asked = [(v, n) for a, (v, n) in _bounds(r, types) if a != own]
    asked += [(i.name, n) for i, n in zip(r.index or (), types[r.output].shape, strict=True) if isinstance(i, Index)]
    for v, n in zip(names, shape, strict=True):
        inside = extent.get(place[v].bare or "", n + 1) <= n
        if not inside and not any(u == v and m <= n for u, m in asked):
            return None
    whole = substitute_affine(replace(r, body=with_parts(r.body, {own: Name("")})), place)
    if whole.guards and s.guards:
        return None
    return replace(
        whole,
        body=with_parts(whole.body, {Name(""): s.body}),
        aggregation="sum",
        guard=whole.guard or s.guard,
        constraints=(*whole.constraints, *s.constraints),
    )


def _is_factor(own: Access, e: Expr) -> bool:
    """Whether an expression is proportional to this part of it, and is zero where that is."""
    match e:
        case Access():
            return e == own
        case Call("mul", args):
            return sum(own in walk(a) for a in args) == 1 and any(_is_factor(own, a) for a in args)
        case Call("div", (a, b)):
            return own not in walk(b) and _is_factor(own, a)
        case Call(name, (a,)) if name == "neg" or name in FLOATS:
            return _is_factor(own, a)
    return False
