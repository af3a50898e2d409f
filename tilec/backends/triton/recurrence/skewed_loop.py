"""A recurrence after loop skewing, as kernels run it: time, and lanes, which one step computes together.

Reads of the own output become reads of a tensor that holds everything earlier, padded with what `init` says. Every
element of the output is written in its own step, those without a valid point too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.domain import Condition, Domain, gathered, point_conditions, size_of
from tilec.backends.common.scalars import value_children
from tilec.backends.common.skew import Skew, level_domain, skewed
from tilec.backends.torch.recurrence.recurrence import assigned
from tilec.backends.triton.iteration.space import Space
from tilec.ir.index import Affine, linear
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Constraint,
    Expr,
    Int,
    Pad,
    Statement,
    children,
    map_expressions,
    rebuild,
    self_reads,
    walk,
)
from tilec.ir.types import TensorType
from tilec.lattice.sets import Box
from tilec.transforms.recurrence import padded


@dataclass(frozen=True)
class SkewedLoop:
    """`statement` is over `time` and lanes, `low` and `extent` their ranges and those of nested aggregations'
    variables. `parallel`: lanes along which no element depends on another lane's; `coupled`: the others. Steps run from
    the greatest time to the least where `falling`. `shared`: tensors of sums that each step computes before."""

    flat: Statement
    statement: Statement
    types: Mapping[str, TensorType]
    time: str
    falling: bool
    parallel: tuple[str, ...]
    coupled: tuple[str, ...]
    low: Mapping[str, int]
    extent: Mapping[str, int]
    skew: Skew
    shared: tuple[str, ...] = ()

    @property
    def own(self) -> str:
        return self.flat.output

    @property
    def states(self) -> frozenset[str]:
        """Tensors that steps write and read."""
        return frozenset((self.own, *self.shared))

    @property
    def steps(self) -> int:
        return self.extent[self.time]

    @property
    def lanes(self) -> tuple[str, ...]:
        return (*self.parallel, *self.coupled)

    def count(self, variables: Sequence[str]) -> int:
        return math.prod(self.extent[v] for v in variables)

    @property
    def roots(self) -> tuple[Expr, ...]:
        s = self.statement
        return s.roots

    def aggregates(self) -> tuple[Aggregate, ...]:
        """Outermost first."""
        return tuple(e for e in walk(*self.roots) if isinstance(e, Aggregate))

    def space(self) -> Space:
        """The points of a step and the conditions on them, for a kernel."""
        s = self.statement
        valid = step_conditions(self.roots, s.constraints, self.types)
        stored = [Condition(linear(e), size_of(n)) for e, n in zip(s.index or (), s.sizes or (), strict=True)]
        bound = tuple(v for v in self.extent if v not in (self.time, *self.lanes))
        box = Domain(s, self.low, {v: max(n, 1) for v, n in self.extent.items()}, (), None)
        kept = tuple(c for c in valid if not box.holds(c) and c not in stored)
        outside = tuple(c for c in stored if not box.holds(c))
        outputs = (self.time, *self.lanes)
        return Space(s, outputs, bound, (), ({},), (self.low,), (self.extent,), kept, outside, not outside)


def step_conditions(
    roots: Sequence[Expr], constraints: Sequence[Constraint], types: Mapping[str, TensorType]
) -> tuple[Condition, ...]:
    """What accesses and constraints ask of a point."""
    return point_conditions(map(_without_aggregates, roots), constraints, types)


def _without_aggregates(e: Expr) -> Expr:
    return Int(0) if isinstance(e, Aggregate) else rebuild(e, _without_aggregates)


def chart(flat: Statement, types: Mapping[str, TensorType]) -> SkewedLoop:
    """The loop of a flat recurrence whose output has elements. Raises Unsupported for what no step can compute."""
    s = _typed(padded(assigned(flat)), types)
    skew = skewed(s, types)
    time, *lanes = skew.names
    parallel = tuple(v for k, v in enumerate(lanes, 1) if _stays(skew, k))
    box = {v: (a, b) for v, a, b in zip(skew.names, skew.low, skew.high, strict=True)}
    ranges = dict(box)
    for root in (skew.statement.body, *skew.statement.guards):
        ranges.update(_ranges(skew, root, types, box))
    return SkewedLoop(
        flat,
        skew.statement,
        types,
        time,
        skew.falling,
        parallel,
        tuple(v for v in lanes if v not in parallel),
        {v: a for v, (a, _) in ranges.items()},
        {v: b - a + 1 for v, (a, b) in ranges.items()},
        skew,
    )


def _typed(s: Statement, types: Mapping[str, TensorType]) -> Statement:
    """With what lies outside of a bool output as bool, not as the number 0."""
    if types[s.output].dtype != "bool":
        return s

    def visit(e: Expr) -> Expr:
        e = rebuild(e, visit)
        if isinstance(e, Pad) and isinstance(e.access, Access) and e.access.tensor == s.output:
            return replace(e, value=Call("bool", (e.value,)))
        return e

    return map_expressions(s, visit)


def _stays(skew: Skew, k: int) -> bool:
    """Whether every read is in the lane that it is for, along the coordinate of that number."""
    for access in self_reads(skew.statement):
        given = dict(zip(skew.old, map(linear, access.index), strict=True))
        if skew.rows[k].substitute(given) != Affine.variable(skew.names[k]):
            return False
    return True


def _ranges(skew: Skew, e: Expr, types: Mapping[str, TensorType], box: Box) -> Box:
    """Ranges of the variables of nested aggregations; empty ones where there are no points."""
    found: Box = {}
    if isinstance(e, Aggregate):
        domain = level_domain(skew, e, types, box)
        own = {v: (0, -1) if domain is None else _range(domain, v) for v in e.bound}
        found.update(own)
        box = {**box, **{v: (a, max(a, b)) for v, (a, b) in own.items()}}
    for child in children(e):
        found.update(_ranges(skew, child, types, box))
    return found


def _range(domain: Domain, v: str) -> tuple[int, int]:
    return domain.low[v], domain.low[v] + domain.extent[v] - 1


def step_inputs(loop: SkewedLoop, roots: Sequence[Expr], is_known: Callable[[Pad], bool]) -> list[Access]:
    """Elements of other tensors that a step reads, sums aside, those in indices before what they are indices of, and
    none at places that states say. `is_known`: pads whose value is known already."""
    found: dict[Access, None] = {}
    s, box = loop.statement, loop.space().box(0)

    def add(access: Access) -> None:
        for i in access.index:
            for inner in gathered(linear(i)):
                add(inner)
        if access.tensor not in loop.states:
            found.setdefault(access)

    stack = list(reversed(roots))
    if s.default is not None:
        stack.append(Access(s.default, s.index or ()))
    while stack:
        e = stack.pop()
        if isinstance(e, Access):
            add(e)
        elif isinstance(e, Pad):
            access = e.access if isinstance(e.access, Access) else e.access.access
            outside = [] if box.inside(access, loop.types) else [e.value]
            stack += [] if is_known(e) else [*outside, e.access]
        else:
            stack += reversed(value_children(e))
    return [a for a in found if not any(isinstance(x, Access) and x.tensor in loop.states for x in walk(*a.index))]
