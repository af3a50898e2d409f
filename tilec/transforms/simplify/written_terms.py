"""Sums of tensors of which few elements are written, as sums of what is written.

The gradient of `O[n, m] = S[n, I[n, m]]`, where S is a product of A and B, writes few elements of a tensor that sums
take as a factor, `DS[n, I[n, m]] = +(D[n, m]); DA[n, k] = +(DS[n, v] * B[v, k])`. They take the terms themselves,

    DA[n, k] = +(D[n, m] * B[I[n, m], k]);

and DS is not stored, of which nearly all is zero. So do sums of several such tensors, and of what depends on one
element by element and is zero where that is. A zero that met an infinity of the other factor is no longer a NaN.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilec.ir.constraining import asks_in_branches
from tilec.ir.functions import draws
from tilec.ir.index import Affine, distinct_variables, linear, substitute_affine
from tilec.ir.infer import infer, statement_type
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Index,
    Int,
    Name,
    Pad,
    Program,
    Statement,
    accesses_in,
    expressions,
    index_variables,
    variables_of,
    walk,
)
from tilec.ir.types import FLOATS, TensorType, Types, is_floating
from tilec.transforms.simplify.simplify import drop_dead
from tilec.transforms.simplify.sums_at_places import FEWER, bounded_extents, bounds_asked, positions_in
from tilec.transforms.util.naming import Names, all_variables, fresh_variable
from tilec.transforms.util.plain import is_pure, is_unmasked
from tilec.transforms.util.rewrite import with_parts

FEWER_WRITTEN = 128  # times as many elements as are written at places that are data


def sum_written_terms(program: Program, inputs: Mapping[str, TensorType]) -> Program:
    """The program with such sums; `inputs` are the types of its inputs."""
    found = _Written(program, dict(infer(program, inputs))).rewritten()
    return found if found is program else replace(found, statements=drop_dead(found.statements, found.outputs))


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
        """Whether a sum writes few elements."""
        t, extent = self.types[s.output], bounded_extents(s, self.types)
        if s.aggregation != "sum" or s.attributes or extent is None or asks_in_branches(s) or draws(*s.roots):
            return False
        fewer = FEWER_WRITTEN if any(accesses_in(*(s.index or ()))) else FEWER
        plain = not any(isinstance(e, Aggregate) for e in walk(*s.roots)) and is_floating(t.dtype) and not t.weak
        return plain and 0 < math.prod(extent.values()) * fewer <= t.numel

    def _terms(self, s: Statement) -> tuple[tuple[Statement, ...], Statement]:
        """The terms of a sum as a tensor, where they are none, and the sum of them."""
        if isinstance(s.body, Access) and is_unmasked(s):
            return (), s
        extent = bounded_extents(s, self.types) or {}
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
        or len({*read}) != 1
        or read[0] in walk(*r.guards)
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
    if moved & set(index_variables(*(c.expr for c in r.constraints))) or any(moved & positions_in(e) for e in r.roots):
        return None
    extent, shape = bounded_extents(s, types) or {}, types[s.output].shape
    asked = [(v, n) for a, (v, n) in bounds_asked(r, types) if a != own]
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
        case Call("add" | "sub", args):
            return all(_is_factor(own, a) for a in args)
        case Call("div", (a, b)):
            return own not in walk(b) and _is_factor(own, a)
        case Call(name, (a,)) if name == "neg" or name in FLOATS:
            return _is_factor(own, a)
    return False
