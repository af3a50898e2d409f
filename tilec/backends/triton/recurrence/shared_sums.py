"""Sums of a step that many of its lanes have in common, as tensors of their own that each step computes first.

`F[t, i] = logsumexp(B[j] - C[i, j] - logsumexp(F[t - 1, k] + A[k] - C[k, j]))`: the inner sum is over k for each j, of
which no lane i knows anything. Where programs share a step's lanes each would take it again; as `F.shared[j]` they
share it as well, and wait for each other before they go on. A program that has whole sets of lanes to itself waits for
its own threads alone: `S[t, p, q] = sum[b](B[b, q] * sum[a](S[t - 1, a, b] * A[a, p]))` takes the inner sum once for
all q.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilec.backends.triton.recurrence.skewed_loop import SkewedLoop
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.functions import all_of, operands_of
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
from tilec.ir.types import NARROW, TensorType, is_floating
from tilec.transforms.util.naming import all_variables, fresh_variable, rename

_CHEAP = ("add", "sub", "mul", "neg", "select", "and", "or", "eq", "ne", "lt", "le", "gt", "ge", "max", "min")
_COSTLY = 8  # times as much as one of these any other function takes
_GAIN = 2  # what is gained at least


@dataclass(frozen=True)
class SharedSum:
    """`statement` gives the element at `variables` of a tensor that serves one step; it reads those of lower levels.
    `of_a_set`: its elements for one set of coupled lanes."""

    statement: Statement
    variables: tuple[str, ...]
    level: int
    of_a_set: int


@dataclass(frozen=True)
class Sharing:
    """A loop that reads such tensors, and these. `owned`: each program computes those of its own sets of lanes."""

    loop: SkewedLoop
    sums: tuple[SharedSum, ...] = ()
    owned: bool = False

    def of_level(self, level: int) -> list[SharedSum]:
        return [s for s in self.sums if s.level == level]

    def part(self, programs: int, s: SharedSum | None = None) -> int:
        """The elements of a shared sum, or states, that each program computes in a step."""
        loop = self.loop
        if self.owned:
            return _sets(loop, programs) * (loop.count(loop.coupled) if s is None else s.of_a_set)
        return -(-loop.count(loop.lanes if s is None else s.variables) // programs)

    @property
    def levels(self) -> int:
        return max((s.level + 1 for s in self.sums), default=0)


def shared_sums(loop: SkewedLoop, programs: int, waiting: int, owned: bool = False) -> Sharing:
    """The loop with the sums apart that take less time so, although all wait for each other for as long as a program
    goes through `waiting` points. `owned`: each program has whole sets of coupled lanes to itself."""
    finder = _Finder(loop, programs, waiting, owned)
    statement = map_values(loop.statement, lambda e: finder.visit(e, ()))
    if not finder.found:
        return Sharing(loop)
    names = tuple(s.statement.output for s in finder.found)
    return Sharing(replace(finder.loop, statement=statement, shared=names), tuple(finder.found), owned)


def sums_at_once(loop: SkewedLoop, most: int) -> SkewedLoop:
    """The loop with sums of products with other such sums, which differ from lane to lane, as one sum over all
    variables each, where a step adds up fewer terms than `most` so."""

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Aggregate):
            return rebuild(e, visit)
        inner, terms = _factor_added_up(e, loop), loop.count((*loop.lanes, *e.bound))
        found, whole = [], e
        while inner is not None:
            found.append(inner)
            terms *= loop.count(inner.bound)
            whole = _at_once(whole, inner, loop)
            inner = _factor_added_up(whole, loop)
        cost = _COSTLY if e.aggregation == "logsumexp" else 1
        return whole if found and terms * cost < most else map_values(e, visit)

    return replace(loop, statement=map_values(loop.statement, visit))


def _factor_added_up(e: Aggregate, loop: SkewedLoop) -> Aggregate | None:
    """The one factor that is itself aggregated as the whole is, over variables that no other factor has. What gradients
    compare, extrema of sums, is added up in the same order at once."""
    times = AGGREGATIONS[e.aggregation].times
    dtype = expression_type(e.body, loop.types).dtype
    if times is None or not is_floating(dtype) or dtype in NARROW:
        return None
    factors = operands_of(times, e.body)
    inner = [f for f in factors if isinstance(f, Aggregate) and f.aggregation == e.aggregation]
    if len(inner) != 1 or {*index_variables(inner[0])}.isdisjoint(loop.coupled):
        return None
    in_order = inner[0] is factors[0] and all(
        x == _in_turn(times, operands_of(times, x)) for x in (e.body, inner[0].body)
    )
    if e.aggregation in ("max", "min") and not in_order:
        return None
    others = index_variables(*(f for f in factors if f is not inner[0]), *e.guards)
    if expression_type(inner[0].body, loop.types).dtype != dtype:
        return None
    return inner[0] if {*inner[0].bound}.isdisjoint((*others, *e.bound)) else None


def _at_once(e: Aggregate, inner: Aggregate, loop: SkewedLoop) -> Aggregate:
    """Both sums as one, whose points run as the states lie that it reads."""
    times = AGGREGATIONS[e.aggregation].times or ""
    others = [f for f in operands_of(times, e.body) if f is not inner]
    body = _in_turn(times, [*operands_of(times, inner.body), *others])
    places = index_variables(*(i for a in accesses_in(body) if a.tensor == loop.own for i in a.index))
    bound = sorted((*inner.bound, *e.bound), key=lambda v: places.index(v) if v in places else len(places))
    guard = all_of([*e.guards, *inner.guards])
    return replace(e, body=body, bound=tuple(bound), guard=guard, constraints=(*e.constraints, *inner.constraints))


def _in_turn(function: str, args: Sequence[Expr]) -> Expr:
    return functools.reduce(lambda a, b: Call(function, (a, b)), args)


def step_work(sharing: Sharing, programs: int, waiting: int) -> int:
    """Points that a program goes through in a step, waiting included."""
    loop = sharing.loop
    parts = [(sharing.part(programs, s), s.statement.body) for s in sharing.sums]
    parts += [(sharing.part(programs), e) for e in loop.roots]
    return sum(elements * work(loop, e) for elements, e in parts) + (sharing.levels + 1) * waiting


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
    def __init__(self, loop: SkewedLoop, programs: int, waiting: int, owned: bool):
        self.loop, self.programs, self.waiting, self.owned = loop, programs, waiting, owned
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
        """Those of sets of lanes first."""
        found = [v for v in index_variables(e) if v != self.loop.time]
        return tuple(sorted(found, key=lambda v: v not in self.loop.parallel) if self.owned else found)

    def _pays(self, e: Aggregate, around: Sequence[Aggregate]) -> bool:
        loop, variables = self.loop, self._variables(e)
        t = aggregate_type(e.aggregation, expression_type(e.body, loop.types))
        if {*loop.lanes, *(v for a in around for v in a.bound)} <= {*variables}:
            return False  # each is for one lane alone
        if not variables or t.weak or not is_floating(t.dtype) or not set(variables) <= loop.extent.keys():
            return False
        among = not {*variables}.isdisjoint(loop.coupled)
        if self.owned and not (among and {v for v in loop.parallel if loop.extent[v] > 1} <= {*variables}):
            return False  # what all lanes of a block have in common, it computes once
        own, sets = work(loop, e), _sets(loop, self.programs)
        lanes = loop.count(loop.coupled) if among else 1
        alone = sets * lanes * math.prod(loop.count(a.bound) for a in around) * own
        elements = sets * self._of_a_set(variables) if self.owned else -(-loop.count(variables) // self.programs)
        together = elements * own + self.waiting
        return alone > _GAIN * together

    def _of_a_set(self, variables: Sequence[str]) -> int:
        return self.loop.count([v for v in variables if v not in self.loop.parallel])

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
        self.found.append(
            SharedSum(Statement(name, place(own), sizes, body, "assign"), own, level, self._of_a_set(variables))
        )
        return Access(name, place(variables))


def _sets(loop: SkewedLoop, programs: int) -> int:
    """The sets of coupled lanes that a program owns."""
    return -(-loop.count(loop.parallel) // programs)
