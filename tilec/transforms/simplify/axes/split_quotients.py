"""Axes of which sums read the quotient by a number, taken apart: heads that share keys, channels that share a group.

`O[h, i] = sum(A[h, i, j] * V[(h - h % 4)/4, j])` reads the row h/4 of V. As a kernel's place that is neither a row of
its own nor one for all h, and the gradient of V would be written at places that are to be found first. With h = 4*g + r
it is `O[g, r, i] = sum(A[g, r, i, j] * V[g, j])`, and the gradient of V is a sum over r as well. So such a variable
becomes two, in every statement that it is handed on to: an axis that computed tensors are read at by that variable
alone becomes two axes; inputs are read and outputs written as reshapes, which take no memory. So it is with sums that
are written at `h % 4`.

Nothing is taken apart where an axis would be read at other places too, where two numbers divide one axis, or in
recurrences.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from tilec.ir.constraining import always, demands
from tilec.ir.index import Affine, linear, replace_constraints, replace_indices
from tilec.ir.infer import infer
from tilec.ir.program import (
    Access,
    Call,
    Constraint,
    Expr,
    Index,
    Int,
    Program,
    Statement,
    children,
    expressions,
    index_variables,
    map_expressions,
    reads_itself,
    rebuild,
    walk,
)
from tilec.ir.types import TensorType
from tilec.transforms.util.naming import Names, all_variables, fresh_variable
from tilec.transforms.util.reshapes import reshape_statement

_Variable = tuple[str, str]  # the output of a statement, one of its variables
_Axis = tuple[str, int]  # a computed tensor, one of its axes
_Node = _Variable | _Axis


def split_quotients(program: Program, inputs: Mapping[str, TensorType]) -> Program:
    """The program with such variables and axes apart; `inputs` are the types of its inputs."""
    divisors = {v: c for s in program.statements for v, c in _divided(s)}
    if not divisors:
        return program
    types = dict(infer(program, inputs))
    parts = _Classes(program, types).parts(divisors)
    return _rewritten(program, types, parts) if parts else program


def _divided(s: Statement) -> Iterator[tuple[_Variable, int]]:
    """The variables that stand as quotients in what a sum of products reads, or in the place where a sum is written, or
    as rests there; and the divisors: 0 for two divisors."""
    places = [*_reads(s)]
    if s.aggregation == "assign" or len({e.tensor for e in places}) < 2 or reads_itself(s) or s.init is not None:
        return
    written = s.index or ()
    read = [i for e in places for i in e.index] if all_variables(s) - set(index_variables(*written)) else []
    found: dict[str, int] = {}
    for i in (*written, *read):
        for v, c in _quotients(linear(i), i in written):
            found[v] = c if found.get(v, c) == c else 0
    for v, c in found.items():
        yield (s.output, v), c


def _reads(s: Statement) -> Iterator[Access]:
    """The accesses that are no part of a place: rows by a page's number are read at computed places as it is."""
    pending = [*expressions(s)]
    while pending:
        e = pending.pop()
        if isinstance(e, Access):
            yield e
        else:
            pending += children(e)


def _quotients(form: Affine, rests: bool) -> Iterator[tuple[str, int]]:
    """v and c, where `v - v % c` stands in the form, or v in `v % c` alone."""
    for atom, coefficient in form.terms:
        match atom:
            case Call("mod", (Index(v), Int(c))) if c > 1:
                if form.coefficient(v) == -coefficient or (rests and not form.coefficient(v)):
                    yield v, c


class _Classes:
    """Variables and axes that are taken apart together or not at all."""

    def __init__(self, program: Program, types: Mapping[str, TensorType]):
        self.types = types
        self.parents: dict[_Node, _Node] = {}
        self.closed: set[_Node] = set()  # what cannot be taken apart
        computed = {s.output for s in program.statements}
        for s in program.statements:
            fixed = reads_itself(s) or s.init is not None or s.default is not None or bool(s.attributes)
            places = [e for e in walk(*expressions(s)) if isinstance(e, Access) and e.tensor in computed]
            for e in (Access(s.output, s.index or ()), *places):
                for d, i in enumerate(e.index):
                    v = linear(i).bare
                    axis: _Axis = (e.tensor, d)
                    if v is None or fixed:
                        self.closed.add(axis)
                    else:
                        self.join(axis, (s.output, v))
            if s.default is not None:
                self.closed.update((s.default, d) for d in range(len(types[s.default].shape)))

    def root(self, node: _Node) -> _Node:
        while (above := self.parents.get(node, node)) != node:
            node = above
        return node

    def join(self, a: _Node, b: _Node) -> None:
        self.parents.setdefault(a, a)
        self.parents.setdefault(b, b)
        self.parents[self.root(a)] = self.root(b)

    def parts(self, divisors: Mapping[_Variable, int]) -> dict[_Node, int]:
        """What is taken apart, and by which numbers."""
        wanted: dict[_Node, set[int]] = {}
        for v, c in divisors.items():
            wanted.setdefault(self.root(v), set()).add(c)
        refused = {self.root(n) for n in self.closed}
        for n in self.parents:
            if isinstance(n[1], int):  # an axis
                size = self.types[n[0]].shape[n[1]]
                if any(c == 0 or size % c for c in wanted.get(self.root(n), ())):
                    refused.add(self.root(n))
        chosen = {r: min(c) for r, c in wanted.items() if len(c) == 1 and min(c) > 1 and r not in refused}
        found = {n: chosen[r] for n in self.parents if (r := self.root(n)) in chosen}
        return found | {v: c for v, c in divisors.items() if self.root(v) in chosen}


def _rewritten(program: Program, types: Mapping[str, TensorType], parts: Mapping[_Node, int]) -> Program:
    apart = _QuotientRewriter(types, parts, Names.of(program), frozenset(program.input_names()))
    statements: list[Statement] = []
    for s in program.statements:
        new = apart.statement(s)
        statements += (*apart.views, new)
        apart.views.clear()
        if new.output != s.output and s.output in program.outputs:
            statements.append(reshape_statement(s.output, types[s.output].shape, new.output, apart.shape(s.output)))
    return replace(program, statements=tuple(statements))


class _QuotientRewriter:
    """Statements with variables and axes apart. `views`: reshapes of inputs that the last one is the first to read."""

    def __init__(
        self, types: Mapping[str, TensorType], parts: Mapping[_Node, int], names: Names, inputs: Collection[str]
    ):
        self.types, self.parts, self.names, self.inputs = types, parts, names, inputs
        self.known: dict[tuple[str, tuple[int | None, ...]], str] = {}
        self.views: list[Statement] = []

    def divided(self, tensor: str) -> tuple[int | None, ...]:
        """For each axis of a computed tensor what divides it."""
        return tuple(self.parts.get((tensor, d)) for d in range(len(self.types[tensor].shape)))

    def shape(self, tensor: str, by: tuple[int | None, ...] | None = None) -> tuple[int, ...]:
        pairs = zip(self.types[tensor].shape, by or self.divided(tensor), strict=True)
        return tuple(m for n, c in pairs for m in ((n,) if c is None else (n // c, c)))

    def name(self, tensor: str, by: tuple[int | None, ...]) -> str:
        """The tensor with these axes apart."""
        if (tensor, by) not in self.known:
            name = self.known[tensor, by] = self.names.fresh(f"{tensor}_apart")
            if tensor in self.inputs:
                shape = self.shape(tensor, by)
                self.views.append(reshape_statement(name, shape, tensor, self.types[tensor].shape))
        return self.known[tensor, by]

    def statement(self, s: Statement) -> Statement:
        used = all_variables(s)
        sizes = {v: self.parts[s.output, v] for v in sorted(used) if (s.output, v) in self.parts}
        pairs = {v: (Index(fresh_variable(v, used)), Index(fresh_variable(v, used))) for v in sizes}
        forms = {v: Affine.of([(q, sizes[v]), (r, 1)]) for v, (q, r) in pairs.items()}

        def rests(e: Expr) -> Expr:
            match e:
                case Call("mod", (Index(v), Int(c))) if sizes.get(v) == c:
                    return pairs[v][1]
            return rebuild(e, rests)

        def apart(e: Expr) -> Expr:
            e = rebuild(e, apart)
            return element(e) if isinstance(e, Access) else e

        def element(e: Access) -> Access:
            """The element of the tensor whose axes are apart."""
            shape = self.types[e.tensor].shape
            by = self.divided(e.tensor)
            if e.tensor in self.inputs:
                divisors = [sizes.get(linear(i).bare or "") for i in e.index]
                by = tuple(c if c and n % c == 0 else None for c, n in zip(divisors, shape, strict=True))
            if not any(by):
                return e
            index: list[Expr] = []
            for i, c in zip(e.index, by, strict=True):
                index += [i] if c is None else pairs[linear(i).bare or ""]
            return Access(self.name(e.tensor, by), tuple(index), span=e.span)

        written = element(Access(s.output, s.index or ()))
        new = replace(s, output=written.tensor, index=written.index, sizes=tuple(map(Int, self.shape(s.output))))
        for step in (rests, apart, lambda e: replace_indices(e, forms)):
            new = map_expressions(new, step)
        index = tuple(linear(i).to_expr() for i in new.index or ())
        constraints = dict.fromkeys(replace_constraints(new.constraints, forms))
        bounded = {
            i for a in (written, *always(demands(*new.roots))) for i in a.index if a.tensor in self.known.values()
        }
        constraints |= {Constraint(r, Int(sizes[v])): None for v, (_, r) in pairs.items() if r not in bounded}
        return replace(new, index=index, constraints=tuple(constraints))
