"""Sums of a step that many of its lanes have in common, as tensors of their own that each step computes first.

`F[t, i] = logsumexp(B[j] - C[i, j] - logsumexp(F[t - 1, k] + A[k] - C[k, j]))`: the inner sum is over k for each j, of
which no lane i knows anything. Where programs share a step's lanes each would take it again; as `F.shared[j]` they
share it as well, and wait for each other before they go on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilec.backends.triton.recurrence.skewed_loop import SkewedLoop
from tilec.ir.infer import aggregate_type, expression_type
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Expr,
    Index,
    Int,
    Pad,
    Statement,
    accesses_in,
    index_variables,
    map_values,
    rebuild,
)
from tilec.ir.types import TensorType, is_floating
from tilec.transforms.util.naming import all_variables, fresh_variable, rename

_CHEAP = ("add", "sub", "mul", "neg", "select", "and", "or", "eq", "ne", "lt", "le", "gt", "ge", "max", "min")
_COSTLY = 8  # times as much as one of these any other function takes
_GAIN = 2  # what is gained at least


@dataclass(frozen=True)
class SharedSum:
    """`statement` gives the element at `variables` of a tensor that serves one step; it reads those of lower levels."""

    statement: Statement
    variables: tuple[str, ...]
    level: int


@dataclass(frozen=True)
class Sharing:
    """A loop that reads such tensors, and these."""

    loop: SkewedLoop
    sums: tuple[SharedSum, ...] = ()

    def of_level(self, level: int) -> list[SharedSum]:
        return [s for s in self.sums if s.level == level]

    def part(self, programs: int, s: SharedSum | None = None) -> int:
        """The elements of a shared sum, or states, that each program computes in a step."""
        return -(-self.loop.count(self.loop.lanes if s is None else s.variables) // programs)

    @property
    def levels(self) -> int:
        return max((s.level + 1 for s in self.sums), default=0)


def shared_sums(loop: SkewedLoop, programs: int, waiting: int) -> Sharing:
    """The loop with the sums apart that take less time so, although all wait for each other for as long as a program
    goes through `waiting` points."""
    finder = _Finder(loop, programs, waiting)
    statement = map_values(loop.statement, lambda e: finder.visit(e, ()))
    if not finder.found:
        return Sharing(loop)
    names = tuple(s.statement.output for s in finder.found)
    return Sharing(replace(finder.loop, statement=statement, shared=names), tuple(finder.found))


def work(loop: SkewedLoop, e: Expr) -> int:
    """Additions of products that an expression takes about as long as."""
    match e:
        case Aggregate():
            each = work(loop, e.body) + sum(work(loop, g) for g in e.guards)
            return loop.count(e.bound) * max(1, each + _COSTLY * (e.aggregation == "logsumexp"))
        case Pad():
            return work(loop, e.access)
        case Call(function, args):
            own = 0 if function == "mul" else 1 if function in _CHEAP else _COSTLY
            return own + sum(work(loop, x) for x in args)
    return 0


class _Finder:
    def __init__(self, loop: SkewedLoop, programs: int, waiting: int):
        self.loop, self.programs, self.waiting = loop, programs, waiting
        self.found: list[SharedSum] = []
        self._known: dict[Expr, Expr] = {}
        self._used = all_variables(loop.statement)

    def visit(self, e: Expr, around: tuple[Aggregate, ...]) -> Expr:
        match e:
            case Aggregate():
                if e in self._known:
                    return self._known[e]
                inner = map_values(e, lambda x: self.visit(x, (*around, e)))
                return self._known.setdefault(e, self._apart(inner)) if self._pays(inner, around) else inner
            case Call():
                return rebuild(e, lambda x: self.visit(x, around))
        return e

    def _variables(self, e: Aggregate) -> tuple[str, ...]:
        return tuple(v for v in index_variables(e) if v != self.loop.time)

    def _pays(self, e: Aggregate, around: Sequence[Aggregate]) -> bool:
        loop, variables = self.loop, self._variables(e)
        t = aggregate_type(e.aggregation, expression_type(e.body, loop.types))
        if {*loop.lanes, *(v for a in around for v in a.bound)} <= {*variables}:
            return False  # each is for one lane alone
        if not variables or t.weak or not is_floating(t.dtype) or not set(variables) <= loop.extent.keys():
            return False
        among = not {*variables}.isdisjoint(loop.coupled)
        own, sets = work(loop, e), -(-loop.count(loop.parallel) // self.programs)
        lanes = loop.count(loop.coupled) if among else 1
        alone = sets * lanes * math.prod(loop.count(a.bound) for a in around) * own
        together = -(-loop.count(variables) // self.programs) * own + self.waiting
        return alone > _GAIN * together

    def _apart(self, e: Aggregate) -> Access:
        loop, variables = self.loop, self._variables(e)
        t = aggregate_type(e.aggregation, expression_type(e.body, loop.types))
        name = f"{loop.own}.shared{len(self.found)}"
        fresh = {v: fresh_variable(v, self._used) for v in variables}
        shape = tuple(loop.extent[v] for v in variables)
        low, extent = dict(loop.low), dict(loop.extent)
        for v, new in fresh.items():
            low[new], extent[new] = loop.low[v], loop.extent[v]
        self.loop = replace(loop, types={**loop.types, name: TensorType(shape, t.dtype)}, low=low, extent=extent)

        def place(names: Sequence[str]) -> tuple[Expr, ...]:
            return tuple(Index(u) - Int(low[u]) if low[u] else Index(u) for u in names)

        own = tuple(fresh[v] for v in variables)
        body = rename(e, fresh)
        read = {x.tensor for x in accesses_in(body)}
        level = max((s.level + 1 for s in self.found if s.statement.output in read), default=0)
        sizes = tuple(map(Int, shape))
        self.found.append(SharedSum(Statement(name, place(own), sizes, body, "assign"), own, level))
        return Access(name, place(variables))
