"""Elements that are written by digits of their place, computed where they are read at the same place.

`W[m, 2*p + r] = r == 0 ? T[B[m, p]] : T[C[m, p]], r < 2; Y[m, 64*g + u] = W[m, 64*g + u] * S[m, g], u < 64` unpacks
numbers of four bits and scales them by blocks. Each statement has digits of its own, so no kernel would compute both. Y
is computed over the digits of both, `Z[m, g, q, r] = (r == 0 ? T[B[m, 32*g + q]] : ...) * S[m, g]`, and is Z in another
shape.

The elements are assigned, each once, no other statement reads them, and none of them is missing. So it is with what
their values are made of elementwise, if nothing else reads that either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tilec.ir.constraining import Branch, Demand, access_of, demands
from tilec.ir.functions import RANDOM, ZERO
from tilec.ir.index import Affine, linear, replace_indices
from tilec.ir.infer import expression_type, infer
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
    expressions,
    node_count,
    rebuild,
    walk,
)
from tilec.ir.types import Types
from tilec.lattice.sets import interval_of
from tilec.transforms.simplify.simplify import drop_dead
from tilec.transforms.util.naming import Names, all_variables
from tilec.transforms.util.plain import is_pure
from tilec.transforms.util.reshapes import reshape_statement, row_major_steps

_MOST_NODES = 128  # of an element's expression


@dataclass(frozen=True)
class _Digits:
    """An assignment to all elements: for each axis of its output its variables, highest first, and what each counts."""

    statement: Statement
    variables: tuple[tuple[str, ...], ...]
    sizes: tuple[tuple[int, ...], ...]

    @property
    def apart(self) -> bool:
        """Whether an axis has several digits."""
        return any(len(names) > 1 for names in self.variables)

    @property
    def extent(self) -> dict[str, int]:
        pairs = zip(self.variables, self.sizes, strict=True)
        return {v: n for names, sizes in pairs for v, n in zip(names, sizes, strict=True)}


def join_digits(program: Program, inputs: Types) -> Program:
    """The program with such elements computed by who reads them; `inputs` are the types of its inputs."""
    if not any(s.constraints and s.aggregation == "assign" for s in program.statements):
        return program
    types = infer(program, inputs)
    found = {s.output: d for s in program.statements if (d := _digits(s, types)) is not None}
    if not any(d.apart for d in found.values()):
        return program
    names = Names.of(program)
    readers = {s.output: list(program.readers(s.output)) for s in program.statements}
    alone = {
        n: d for n, d in found.items() if n not in program.outputs and len(readers[n]) == 1 and _gives_all(d, types)
    }
    statements: list[Statement] = []
    for s in program.statements:
        own = found.get(s.output)
        joined = None if own is None else _joined(own, alone, types)
        statements += [s] if joined is None else _over_digits(joined, alone, types, names)
        if joined is not None and s.output in alone:
            alone[s.output] = joined
    if tuple(statements) == program.statements:
        return program
    return replace(program, statements=drop_dead(statements, program.outputs))


def _digits(s: Statement, types: Types) -> _Digits | None:
    if s.aggregation != "assign" or not is_pure(s) or s.attributes or s.index is None:
        return None
    if s.guard is not None:  # what that drops is 0
        s = replace(s, body=Call("select", (s.guard, s.body, ZERO)), guard=None)
    limits = {linear(c.expr).bare: c.bound for c in s.constraints}
    variables: list[tuple[str, ...]] = []
    sizes: list[tuple[int, ...]] = []
    for e, n in zip(s.index or (), types[s.output].shape, strict=True):
        form = linear(e)
        names = sorted(form.variables(), key=form.coefficient, reverse=True)
        plain = form.is_affine and form.is_integral and not form.constant
        if not plain or len(names) not in (1, 2) or form.coefficient(names[-1]) != 1:
            return None
        c = form.coefficient(names[0])
        if len(names) == 2 and (limits.pop(names[1], None) != Int(int(c)) or n % int(c)):
            return None
        variables.append(tuple(names))
        sizes.append((n,) if len(names) == 1 else (n // int(c), int(c)))
    own = [v for names in variables for v in names]
    if limits or len(own) != len(set(own)) or set(own) != set(all_variables(s)):
        return None
    return _Digits(s, tuple(variables), tuple(sizes))


def _gives_all(d: _Digits, types: Types) -> bool:
    """Whether each element has a value, of its own type, whatever the data are."""
    body, t = d.statement.body, types[d.statement.output]
    drawn = any(isinstance(e, Call) and e.function in RANDOM for e in walk(body))
    if drawn or node_count(body) > _MOST_NODES or expression_type(body, types) != t.element():
        return False
    extent = d.extent
    for a in _asked(demands(body)):
        for i, n in zip(a.index, types[a.tensor].shape, strict=True):
            form = linear(i)
            if not form.is_affine or not extent.keys() >= {*form.variables()}:
                return False
            low, high = interval_of(form, lambda v: (0, extent[v.name] - 1))
            if low < 0 or high >= n:
                return False
    return True


def _asked(wanted: Sequence[Demand]) -> Iterator[Access]:
    """The accesses that have to be inside, in some branch at least."""
    for d in wanted:
        if isinstance(d, Branch):
            yield from _asked((*d.yes, *d.no))
        else:
            yield access_of(d)


def _walks(index: Sequence[Affine], shape: Sequence[int], counts: Mapping[str, int]) -> bool:
    """Whether an index goes through all of a tensor once, each axis by variables of its own."""
    used = [v for form in index for v in form.variables()]
    whole = all(
        form.is_affine
        and not form.constant
        and math.prod(counts[v] for v in form.variables()) == n
        and sum(form.coefficient(v) * (counts[v] - 1) for v in form.variables()) == n - 1
        for form, n in zip(index, shape, strict=True)
    )
    return whole and len(used) == len(set(used))


def _joined(own: _Digits, alone: Mapping[str, _Digits], types: Types) -> _Digits | None:
    """The statement over the digits of what it reads at its own place; None where it reads nothing so."""
    s = own.statement
    here = [e for e in walk(*expressions(replace(s, index=None))) if isinstance(e, Access) and e.tensor in alone]
    read = {e.tensor: alone[e.tensor] for e in here}
    hidden = {e.tensor for x in walk(s.body) if isinstance(x, (Pad, Inside)) for e in walk(x) if isinstance(e, Access)}
    read = {n: d for n, d in read.items() if n not in hidden and all(e.index == s.index for e in here if e.tensor == n)}
    members = (own, *read.values())
    shape = types[s.output].shape
    steps = [sorted({x for d in members for x in row_major_steps(d.sizes[a])}) for a in range(len(shape))]
    if not read or not any(d.apart for d in members):
        return None
    if not all(y % x == 0 for axis, n in zip(steps, shape, strict=True) for x, y in pairwise((*axis, n))):
        return None
    fine = [[(f"v{a}_{k}", x) for k, x in enumerate(reversed(axis))] for a, axis in enumerate(steps)]
    sizes = [tuple(y // x for x, y in reversed([*pairwise((*axis, n))])) for axis, n in zip(steps, shape, strict=True)]

    def forms(d: _Digits) -> dict[str, Affine]:
        """The variables of a statement by the digits of all."""
        found: dict[str, Affine] = {}
        for variables, counts, axis in zip(d.variables, d.sizes, fine, strict=True):
            for v, n, step in zip(variables, counts, row_major_steps(counts), strict=True):
                inside = [(name, x // step) for name, x in axis if step <= x < step * n]
                found[v] = Affine.of((Index(name), x) for name, x in inside)
        return found

    def through(e: Expr) -> Expr:
        if isinstance(e, Access) and e.tensor in read:
            return replace_indices(read[e.tensor].statement.body, forms(read[e.tensor]))
        inner = any(isinstance(x, Access) and x.tensor in read for x in walk(e))
        return rebuild(e, through) if inner else replace_indices(e, forms(own))

    body = through(s.body)
    if node_count(body) > _MOST_NODES:
        return None
    variables = tuple(tuple(name for name, _ in axis) for axis in fine)
    return _Digits(replace(s, body=body), variables, tuple(sizes))


def _over_digits(d: _Digits, alone: Mapping[str, _Digits], types: Types, names: Names) -> list[Statement]:
    """The statement over its digits, and its output as that in another shape."""
    s, counts = d.statement, d.extent
    beside: dict[Expr, Statement] = {}

    def elementwise(e: Expr) -> Expr:
        """With what is elementwise, and read here alone, as statements over these digits too."""
        e = rebuild(e, elementwise)
        if not isinstance(e, Access) or e.tensor not in alone or alone[e.tensor].apart:
            return e
        made, at = alone[e.tensor], [linear(i) for i in e.index]
        if e not in beside:
            if not _walks(at, types[e.tensor].shape, counts):
                return e
            across = [v for v in counts if any(v in form.variables() for form in at)]
            value = replace_indices(made.statement.body, {v: i for (v,), i in zip(made.variables, at, strict=True)})
            index, lengths = tuple(map(Index, across)), tuple(Int(counts[v]) for v in across)
            output = names.fresh(f"{e.tensor}_apart")
            beside[e] = replace(made.statement, output=output, index=index, sizes=lengths, body=elementwise(value))
        return Access(beside[e].output, beside[e].index or ())

    apart, shape, sizes = names.fresh(f"{s.output}_apart"), types[s.output].shape, tuple(counts.values())
    index = tuple(map(Index, counts))
    fine = replace(s, output=apart, index=index, sizes=tuple(map(Int, sizes)), body=elementwise(s.body), constraints=())
    return [*beside.values(), fine, replace(reshape_statement(s.output, shape, apart, sizes), span=s.span)]
