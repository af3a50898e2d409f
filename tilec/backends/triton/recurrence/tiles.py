"""States of few elements, as the matrix that a memory is, in registers: a program holds those of whole sets of coupled
lanes as a block in which each coupled lane variable has an axis of its own.

What a step adds up of states runs along an axis of the block where it can take that of a lane which it does not depend
on, as `sum[k](S[t - 1, i, k] * K[t, k])` takes that of `j` for the elements `i, j`; other sums are blocks of their own,
or products of two matrices by `tl.dot`. No state is read back from memory, and no step waits for another's stores.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.domain import free
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.backends.triton.plan.sizes import power_of_two
from tilec.backends.triton.recurrence.skewed_loop import SkewedLoop, step_conditions
from tilec.backends.triton.recurrence.step import MOST_IN_BLOCK, reached
from tilec.ir.functions import operands_of
from tilec.ir.index import Affine, linear
from tilec.ir.infer import expression_type
from tilec.ir.program import (
    Access,
    Aggregate,
    Expr,
    Int,
    Pad,
    Statement,
    accesses_in,
    index_variables,
    walk,
)
from tilec.ir.types import NARROW, is_floating
from tilec.transforms.util.naming import rename, rename_constraint
from tilec.transforms.util.rewrite import with_parts

MOST_STATES = 4096  # elements of a program's states
LEAST_BY_DOT = 16  # elements along each axis of what `tl.dot` multiplies
STATES_PER_THREAD = 8  # elements of a block of states, about
TERMS_PER_STATE = 8  # that take a thread as long: warps more than that wait for each other at each sum
TILE_WARPS = 8
BUSY_SHARE = 4  # times as many keep all multiprocessors busy
ROUND_STEPS = 4  # at most, whose loads are in flight together
WAITING_VALUES = 96  # of a thread, for a round
ROUND_TERMS = 32  # that a thread adds up in a round


@dataclass(frozen=True)
class StateTile:
    """A loop whose states are held so. `start`: they are before the first step, over a step's own lanes. `sets`: of
    coupled lanes in a program, side by side along the axis "row"; other axes have the names of their variables.
    `sums`: statements over the loop's variables that add up what they make of a step's states, or of each. `kept`: the
    first and the last time whose states are stored, None where none are."""

    loop: SkewedLoop
    start: Expr
    sets: int
    sums: tuple[Statement, ...] = ()
    kept: tuple[int, int] | None = None

    def axes(self, variables: Collection[str]) -> tuple[str, ...]:
        loop = self.loop
        found = [v for v in (*loop.coupled, *loop.extent) if v in variables and v not in (*loop.parallel, loop.time)]
        several = [v for v in loop.parallel if v in variables and loop.extent[v] > 1]
        return (
            *(["row"] if self.sets > 1 and several else []),
            *(v for v in dict.fromkeys(found) if loop.extent[v] > 1),
        )

    def points(self, axes: Collection[str]) -> int:
        """Elements of a block with these axes."""
        return math.prod(self.sets if a == "row" else power_of_two(self.loop.extent[a]) for a in axes)

    @property
    def programs(self) -> int:
        return -(-self.loop.count(self.loop.parallel) // self.sets)

    @property
    def warps(self) -> int:
        exponentials = any(e.aggregation == "logsumexp" for e in self.loop.aggregates())
        added = self.largest // (TERMS_PER_STATE // 2 if exponentials else TERMS_PER_STATE)
        points = max(self.points(self.axes(self.loop.lanes)), added)
        return max(1, min(TILE_WARPS, power_of_two(points // (32 * STATES_PER_THREAD))))

    def rounds(self, accesses: Collection[frozenset[str]]) -> int:
        """Steps of a round, whose reads over these variables wait for it; one where a step takes as long as a read."""
        if self.products:
            return 1
        read, summed = (
            sum(-(-self.points(a) // (32 * self.warps)) for a in blocks)
            for blocks in ([self.axes(v) for v in accesses], [axes for axes, _ in self.blocks()])
        )
        most = min(WAITING_VALUES // max(read, 1), ROUND_TERMS // summed, ROUND_STEPS)
        return max(1, power_of_two(most + 1) // 2)

    @property
    def largest(self) -> int:
        """Points of the largest block that a sum takes."""
        return max(self.points(axes) for axes, _ in self.blocks())

    @property
    def products(self) -> int:
        return sum(multiplied for _, multiplied in self.blocks())

    def blocks(self) -> list[tuple[tuple[str, ...], bool]]:
        """Axes of the blocks that sums take, and whether these are multiplied by `tl.dot`."""

        def below(roots: Sequence[Expr], around: Sequence[str]) -> Iterator[tuple[tuple[str, ...], bool]]:
            for e in reached(roots):
                if isinstance(e, Aggregate):
                    e = in_place(e, around, self.loop)
                    operands = by_dot(e, self)
                    whole = MatrixOperand(self.axes({*index_variables(e), *e.bound}), e.roots)
                    for o in operands or (whole,):
                        yield o.axes, operands is not None
                        yield from below(o.factors, o.axes)

        return [*below(self.loop.roots, self.axes(self.loop.lanes))]


@dataclass(frozen=True)
class MatrixOperand:
    """A matrix that a sum multiplies: axes, those added up along last, and what it is the product of."""

    axes: tuple[str, ...]
    factors: tuple[Expr, ...]


def recognise_tile(loop: SkewedLoop) -> StateTile | None:
    """The loop as one whose states a program can hold; None where a step reads others than the last one's, or at other
    places than lanes are, or where blocks would be too large. Lanes along which no states meet are held together where
    sums are products of matrices then."""
    lanes = [linear(e).bare for e in loop.statement.index or ()]
    plain = {*lanes} == {loop.time, *loop.lanes} and loop.space().covers and loop.skew.plain
    if not plain or not loop.coupled or not is_floating(loop.types[loop.own].dtype):
        return None
    sums = loop.aggregates()
    several = (e for e in sums if e.aggregation == "logsumexp" and sum(loop.extent[v] > 1 for v in e.bound) != 1)
    if not sums or any(several) or any(loop.extent[v] < 1 for e in sums for v in e.bound):
        return None
    starts, read = set[Expr](), dict[Expr, Expr]()
    for e in {*walk(*loop.roots)}:
        if isinstance(e, Pad) and isinstance(e.access, Access) and e.access.tensor == loop.own:
            names = _lanes_read(e.access, lanes, loop)
            if names is None:
                return None
            read[e] = Int(0)
            starts.add(rename(e.value, names))
    if len(starts) != 1 or any(a.tensor == loop.own for a in accesses_in(*(with_parts(r, read) for r in loop.roots))):
        return None
    (start,) = starts
    if any(isinstance(e, Aggregate) for e in walk(start)):
        return None
    found = _fitting(loop, start)
    for v in loop.parallel:
        other = _fitting(with_lanes(loop, (v,)), start)
        busy = other is not None and BUSY_SHARE * other.programs >= MULTIPROCESSORS
        if other is not None and busy and other.products > (0 if found is None else found.products):
            found = other
    if found is not None and found.programs == 1 and found.products and found.largest >= MOST_STATES:
        return None  # all multiprocessors together take less time
    return found


def with_lanes(loop: SkewedLoop, more: Collection[str]) -> SkewedLoop:
    """The loop with some lanes more among those that one program has all of."""
    own = [linear(e).bare or "" for e in loop.statement.index or ()]
    coupled = tuple(v for v in own if v in loop.coupled or v in more)
    return replace(loop, parallel=tuple(v for v in loop.parallel if v not in more), coupled=coupled)


def _fitting(loop: SkewedLoop, start: Expr) -> StateTile | None:
    """With as many sets of coupled lanes in a program as keep all multiprocessors busy, where their blocks fit."""
    whole = loop.low[loop.time], loop.low[loop.time] + loop.steps - 1
    sets = power_of_two(max(1, -(-loop.count(loop.parallel) // MULTIPROCESSORS)))
    while sets:
        tile = StateTile(loop, start, sets, (), whole)
        if 1 < tile.points(tile.axes(loop.lanes)) <= MOST_STATES and tile.largest <= MOST_IN_BLOCK:
            return tile
        sets //= 2
    return None


def reads_states(s: Statement, tile: StateTile) -> bool:
    """Whether a statement over the loop's variables reads, of states, each step's own and those of the step before."""
    loop, parts = tile.loop, dict[Expr, Expr]()
    lanes = [linear(e).bare for e in loop.statement.index or ()]
    for e in {*walk(*s.roots)}:
        if isinstance(e, Access) and (e.tensor, e.index) == (loop.own, loop.statement.index):
            parts[e] = Int(0)
        elif isinstance(e, Pad) and isinstance(e.access, Access) and e.access.tensor == loop.own:
            names = _lanes_read(e.access, lanes, loop)
            if e.access.index != loop.statement.index and names is not None and e.value == tile.start:
                parts[e] = Int(0)
    pads = [e for e in walk(*s.roots) if isinstance(e, Pad) and e not in parts]
    plain = not any(a.tensor == loop.own for a in accesses_in(*(e.access for e in pads)))
    return plain and not any(a.tensor == loop.own for a in accesses_in(*(with_parts(r, parts) for r in s.roots)))


def _lanes_read(access: Access, lanes: Sequence[str | None], loop: SkewedLoop) -> dict[str, str] | None:
    """By the variables that an access of the last step's states has in the places of coupled lanes, these lanes."""
    names: dict[str, str] = {}
    for e, v in zip(access.index, lanes, strict=True):
        form = linear(e)
        if v == loop.time:
            back = form - Affine.variable(v)
            if back.terms or back.constant != (1 if loop.falling else -1):
                return None
            continue
        u = form.bare
        if u is None or v is None or u in names or u != v and v in loop.parallel:
            return None
        if (loop.low.get(u), loop.extent.get(u)) != (loop.low[v], loop.extent[v]):
            return None
        names[u] = v
    return names


def in_place(e: Aggregate, around: Sequence[str], loop: SkewedLoop) -> Aggregate:
    """A sum with lanes `around` it, which it does not depend on, in the place of variables that read states there."""
    lanes = [linear(i).bare for i in loop.statement.index or ()]
    taken, names = {*index_variables(e)}, dict[str, str]()
    for access in accesses_in(*e.roots):
        for i, v in zip(access.index, lanes, strict=True) if access.tensor == loop.own else ():
            u = linear(i).bare
            if u in e.bound and u not in names and v in around and v in loop.coupled and v not in taken:
                names[u] = v
                taken.add(v)
    if not names:
        return e
    moved = rename(replace(e, bound=(), constraints=()), names)
    assert isinstance(moved, Aggregate)
    constraints = tuple(rename_constraint(c, names) for c in e.constraints)
    return replace(moved, bound=tuple(names.get(v, v) for v in e.bound), constraints=constraints)


def by_dot(e: Aggregate, tile: StateTile) -> tuple[MatrixOperand, MatrixOperand] | None:
    """The matrices that a sum multiplies; None where it is no such product, or of too small ones."""
    loop, bound = tile.loop, tile.axes(e.bound)
    box = loop.space().box(0)
    plain = e.aggregation == "sum" and e.guard is None
    asked = step_conditions(e.roots, e.constraints, loop.types)
    plain = plain and all(box.holds(c) or {*free(c.form)} <= {loop.time} for c in asked)
    dtype = expression_type(e.body, loop.types).dtype
    if not plain or dtype not in ("float32", *NARROW) or not bound:
        return None
    found, every = list[MatrixOperand](), tile.axes(loop.extent)
    for f in operands_of("mul", e.body):
        own = tile.axes(index_variables(f))
        met = [o for o in found if {*o.axes}.difference(bound) & {*own}]
        axes = {*own}.union(*(o.axes for o in met))
        found = [o for o in found if o not in met]
        found.append(MatrixOperand(tuple(a for a in every if a in axes), (*(x for o in met for x in o.factors), f)))

    plain_ones = [o for o in found if {*o.axes} <= {*bound}]
    found = [o for o in found if o not in plain_ones]
    if len(found) != 2:
        return None
    found[0] = MatrixOperand(found[0].axes, (*found[0].factors, *(x for o in plain_ones for x in o.factors)))
    read = [{*tile.axes(index_variables(*o.factors))} for o in found]
    kept = [tuple(a for a in o.axes if a not in bound) for o in found]
    sizes = [tile.points(axes) for axes in (*kept, bound)]
    if not all({*bound} <= axes for axes in read) or min(sizes) < LEAST_BY_DOT:
        return None
    first, second = (MatrixOperand((*own, *bound), o.factors) for own, o in zip(kept, found, strict=True))
    return first, second
