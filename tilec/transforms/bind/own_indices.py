"""Reads at a place that a recurrence's own elements name, `Rule[Y[t - 1, i]]` in the statement of Y: sums over all
places of which one is the named one, so that no index holds what the statement writes and no backend looks a state up.

A read outside of its tensor drops its point, as everywhere; one of the recurrence itself is what `init` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir.functions import ONE, ZERO, all_of
from tilec.ir.infer import infer
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Constraint,
    Expr,
    GuardedNode,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    map_values,
    reads_itself,
    rebuild,
    walk,
)
from tilec.ir.types import TensorType, Types
from tilec.transforms.recurrence import initial
from tilec.transforms.util.naming import all_variables, fresh_variable


def own_indices_as_sums(program: Program, types: Mapping[str, TensorType]) -> Program:
    """A bound program none of whose recurrences has its own elements in an index."""
    if not any(reads_itself(s) and _names_places(s, s.output) for s in program.statements):
        return program
    known = infer(program, types)
    statements = tuple(
        _Spread(s, known).guarded(s) if reads_itself(s) and _names_places(s, s.output) else s
        for s in program.statements
    )
    return replace(program, statements=statements)


def _reads(e: Expr, own: str) -> bool:
    return any(isinstance(x, Access) and x.tensor == own for x in walk(e))


def _names_places(s: Statement, own: str) -> bool:
    return any(isinstance(e, Access) and any(_reads(i, own) for i in e.index) for e in walk(*s.roots))


class _Spread:
    def __init__(self, s: Statement, types: Types):
        self.s, self.types, self.used = s, types, all_variables(s)
        self.asked: list[Expr] = []  # where the point counts, of the statement or aggregation at hand
        self.path: tuple[Expr, ...] = ()  # the conditions of the branches around

    def guarded(self, s: GuardedNode) -> GuardedNode:
        """The statement or aggregation with its reads spread out, at the points at which these lie inside."""
        outer, self.asked, path, self.path = self.asked, [], self.path, ()
        s = map_values(s, self.visit)
        guards = self.asked if s.guard is None else [s.guard, *self.asked]
        s = replace(s, guard=all_of(guards))
        self.asked, self.path = outer, path
        return s

    def visit(self, e: Expr) -> Expr:
        if not any(isinstance(x, Access) and self._named(x) for x in walk(e)):
            return e
        match e:
            case Aggregate():
                return self.guarded(e)
            case Call("select", (condition, a, b)):
                condition = self.visit(condition)
                args = condition, self._branch(a, condition), self._branch(b, _not(condition))
                return Call("select", args, span=e.span)
            case Pad():
                return self._padded(e)
            case Inside():
                inside, _, rest = self._apart(e.access)
                self._ask(inside)
                return replace(e, access=rest)
            case Access():
                if not self._named(e):
                    return rebuild(e, self.visit)
                inside, read, rest = self._apart(e)
                if e.tensor == self.s.output:
                    return Call("select", (inside, read, self.visit(initial(self.s, e))), span=e.span)
                self._ask(inside)
                if rest.index == (ZERO,) * len(rest.index):
                    return read
                both = "and" if self.types[e.tensor].dtype == "bool" else "mul"
                return Call(both, (read, Inside(rest)), span=e.span)
        return rebuild(e, self.visit)

    def _branch(self, e: Expr, condition: Expr) -> Expr:
        before, self.path = self.path, (*self.path, condition)
        e = self.visit(e)
        self.path = before
        return e

    def _ask(self, inside: Expr) -> None:
        for condition in reversed(self.path):
            inside = Call("select", (condition, inside, Call("bool", (ONE,))))
        self.asked.append(inside)

    def _padded(self, e: Pad) -> Expr:
        access = e.access if isinstance(e.access, Access) else e.access.access
        value = self.visit(e.value)
        if not self._named(access):
            return replace(e, value=value)
        inside, read, rest = self._apart(access)
        found = read if isinstance(e.access, Access) else ONE
        met = Call("eq", (Pad(Inside(rest), ZERO), ONE))
        return Call("select", (Call("and", (inside, met)), found, value), span=e.span)

    def _named(self, access: Access) -> bool:
        return any(_reads(i, self.s.output) for i in access.index)

    def _apart(self, access: Access) -> tuple[Expr, Expr, Access]:
        """Whether the places named lie inside, what stands there, and the access at the first of all places."""
        inside: list[Expr] = []
        here: list[Expr] = []
        index, first, limits = [], [], []
        for i, n in zip(access.index, self.types[access.tensor].shape, strict=True):
            if not _reads(i, self.s.output):
                index.append(i)
                first.append(i)
                continue
            place, k = self.visit(i), Index(fresh_variable("k", self.used))
            inside += [Call("ge", (place, ZERO)), Call("lt", (place, Int(n)))]
            here.append(Call("eq", (k, place)))
            limits.append(Constraint(k, Int(n)))  # reads of the recurrence itself bound nothing
            index.append(k)
            first.append(ZERO)
        bound = tuple(c.expr.name for c in limits if isinstance(c.expr, Index))
        there = replace(access, index=tuple(index))
        read: Expr = Aggregate("sum", there, bound, all_of(here), tuple(limits), span=access.span)
        dtype = self.types[access.tensor].dtype
        if dtype not in ("int64", "float32", "float64"):
            read = Call(dtype, (read,))
        found = all_of(inside)
        assert found is not None
        return found, read, replace(access, index=tuple(first))


def _not(condition: Expr) -> Expr:
    return Call("eq", (Call("bool", (condition,)), Call("bool", (ZERO,))))
