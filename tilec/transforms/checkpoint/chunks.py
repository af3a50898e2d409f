"""Chunks of time: how a program of recurrences is computed a piece at a time, from states kept between the pieces.

Time is cut into chunks of `length`. The recurrences of values are computed chunk by chunk; of each only the states are
kept from which the next chunk starts, so that any chunk can be computed again. Their gradients run the other way, and
go through the chunks from the other end in a later sweep: each chunk's states are computed again, and what the next
chunk needs of this one is carried on. Sums over time are added up chunk by chunk.

With chunks of the square root of the number of steps, what is held at a time grows with that root.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec import knobs
from tilec.ir.index import Affine
from tilec.ir.program import Access, Index, Int, Program, Statement, reads, reads_itself
from tilec.ir.types import ITEM_BYTES, TensorType, Types
from tilec.transforms.checkpoint.timeline import WHOLE, TimedStatement, Timeline, Untimed, timeline

TimeRange = tuple[int, int]
MOST_CHUNK_STATES = 8  # tensors as large as its states that a chunk of time may need
LONG, EVEN = 64, 16  # from this length on chunks have a multiple of steps, so that all begin alike in memory


@dataclass(frozen=True)
class States:
    """What is kept of a recurrence: `depth` states before each chunk but the first to be computed, those from time
    `first + k * length` on for the k-th, one behind the other in a tensor called `kept`."""

    recurrence: str
    kept: str
    axis: int
    first: int
    depth: int


@dataclass(frozen=True)
class Chunks:
    """`count` chunks of `length` steps; the last one ends where time does."""

    length: int
    count: int
    states: tuple[States, ...]

    def times(self, k: int) -> TimeRange:
        """The first time of a chunk and of the next."""
        return k * self.length, (k + 1) * self.length

    def kept_type(self, s: States, t: TensorType) -> TensorType:
        return TensorType((self.count - 1, *(s.depth if k == s.axis else n for k, n in enumerate(t.shape))), t.dtype)

    def kept_statement(self, s: States, t: TensorType) -> Statement:
        """What is kept, read from the whole recurrence."""
        left = tuple(Index(f"i{k}") for k in range(len(t.shape)))
        time = Affine.combine({"k": self.length, left[s.axis].name: 1}, s.first).to_expr()
        body = Access(s.recurrence, tuple(time if k == s.axis else v for k, v in enumerate(left)))
        sizes = tuple(map(Int, self.kept_type(s, t).shape))
        return Statement(s.kept, (Index("k"), *left), sizes, body)


def choose_chunks(program: Program, types: Types, again: Mapping[str, str], share: float) -> Chunks | None:
    """Chunks for a flat program in which the states of the recurrences in `again` are to be computed again from what is
    kept under the names given there, and those of this share of all steps may be held at once; None where it does not
    fall into chunks."""
    try:
        schedule = CheckpointSchedule(timeline(program, types), again, frozenset(again))
        return None if set(again) != set(schedule.first) else schedule.chunks(again.__getitem__, share)
    except Untimed:
        return None


def independent(statements: Sequence[Statement], names: Iterable[str]) -> tuple[str, ...]:
    """The recurrences that depend on none of these names."""
    beyond, found = set(names), []
    for s in statements:
        if not beyond.isdisjoint(reads(s)):
            beyond.add(s.output)
        elif reads_itself(s):
            found.append(s.output)
    return tuple(found)


class CheckpointSchedule:
    """When each part of a timeline is computed. `first`: the recurrences that are computed again from the states kept
    between chunks (None: all of them); `given`: those of them whose states are at hand.

    What depends on another recurrence is `late`: it is computed once. `stage` is the sweep that a part belongs to, or
    the first one that can compute it; sweep k needs sums over time of the sweeps before it alone, and goes one way. A
    late part is `lag` steps behind the chunk's times, so that what it reads is there, and `carry` of its elements go on
    to the next chunk; if a later sweep reads it, it is `stored` whole, which is allowed where it is no larger than the
    outputs. Raises Untimed where parts cannot be put into such an order.
    """

    def __init__(self, line: Timeline, first: Collection[str] | None, given: frozenset[str]):
        self.line, self.given = line, given
        self.parts = [p for p in line.parts if p.variable is not None]
        self.rises = {p.output: p.back[0] < 0 for p in self.parts if p.back}
        self.first = tuple(name for name in self.rises if first is None or name in first)
        self.late: set[str] = set()
        self.stored: set[str] = set()
        self.stage: dict[str, int] = {}
        self.there: dict[str, int] = {}  # the stage from which a whole tensor is at hand
        self.ways: dict[int, bool] = {}  # of the sweeps with recurrences: do they rise?
        for p in line.parts:
            self._enter(p)
        self._check_stored()
        self.lag: dict[str, int] = {}
        self.carry: dict[str, int] = {}
        for p in self.parts:
            self._set_behind(p)

    def _enter(self, p: TimedStatement) -> None:
        axes, name = self.line.axes, p.output
        if p.variable is None:
            self.there[name] = max((self.there.get(n, 0) for n in reads(p.statement)), default=0)
            return
        timed = {n for n, _, _ in p.reads if n in axes}
        late = bool(timed & self.late) or bool(p.back) and name not in self.first
        if late and name in self.first:
            raise Untimed
        stage = max((self.stage[n] if n in axes else self.there.get(n, 0) for n, _, _ in p.reads), default=0)
        if p.back and name not in self.given:
            while self.ways.setdefault(stage, self.rises[name]) != self.rises[name]:
                stage += 1
        self.stage[name] = stage
        self.stored |= {n for n in timed & self.late if self.stage[n] != stage}
        if late:
            self.late.add(name)
        if p.axis is None:
            self.there[name] = stage + 1

    def _check_stored(self) -> None:
        def size(names: Iterable[str]) -> int:
            return sum(math.prod(self.line.types[n].shape) for n in names)

        if size(self.stored) > size({n for n in self.line.outputs if n in self.line.types}):
            raise Untimed

    def rising(self, stage: int) -> bool:
        """Does this sweep run from the first chunk to the last?"""
        return self.ways.get(stage, True)

    def _set_behind(self, p: TimedStatement) -> None:
        name = p.output
        self.lag[name] = 0
        if name not in self.late:
            return
        live = [(n, steps) for n, _, steps in p.reads if self.is_live(n, self.stage[name])]
        sign = 1 if self.rising(self.stage[name]) else -1
        behind = max([0, *((steps - self.lag[n]) * sign for n, steps in live)])
        self.lag[name] = -behind * sign
        for n, steps in live:
            self.carry[n] = max(self.carry[n], (self.lag[n] - self.lag[name] - steps) * sign)
        if p.axis is not None:
            self.carry[name] = p.depth

    def is_live(self, tensor: str, stage: int) -> bool:
        """Is it along time, and computed in this sweep alone?"""
        return tensor in self.late and tensor in self.line.axes and self.stage[tensor] == stage

    @property
    def stages(self) -> int:
        return 1 + max(self.stage.values())

    def fixed(self, p: TimedStatement, stage: int) -> bool:
        """Is the part computed in this sweep whether or not another reads it? Others are computed as they are read."""
        wanted = p.axis is None or p.output in self.late or p.output in self.line.outputs
        return wanted and self.stage[p.output] == stage

    def to_be_kept(self, p: TimedStatement, stage: int) -> bool:
        """Is it a recurrence of which this sweep finds the states to be kept?"""
        return p.output in self.first and p.output not in self.given and self.stage[p.output] == stage

    # chunks

    def reach(self, stage: int, edge: Mapping[str, int]) -> dict[str, TimeRange]:
        """How far before and after a chunk's times each part is needed that is not late, where those recurrences start
        and end at `edge`."""
        need: dict[str, TimeRange] = {}
        for p in reversed(self.parts):
            span = need.get(p.output)
            if self.fixed(p, stage) or self.to_be_kept(p, stage):
                span = widened(span, (self.lag[p.output], self.lag[p.output]))
            if span is None:
                continue
            if p.output in edge:
                low, high = widened(span, (0, 0))
                known = edge[p.output]
                span = (min(low, known), high) if self.rises[p.output] else (low, max(high, known))
            if p.output not in self.late:
                need[p.output] = span
            for n, axis, steps in p.reads:
                if axis != WHOLE and not self.is_live(n, stage):
                    need[n] = widened(need.get(n), (span[0] + steps, span[1] + steps))
        return need

    def edges(self, known: Mapping[str, int]) -> dict[str, int]:
        """Where, from a chunk's end, its recurrences start: as far out as any part of any sweep needs them, and at
        least at `known`."""
        edge = {**dict.fromkeys(self.first, 0), **known}
        while True:
            found = dict(edge)
            for stage in range(self.stages):
                need = self.reach(stage, edge)
                for name in self.first:
                    low, high = need.get(name, (0, 0))
                    found[name] = min(found[name], low) if self.rises[name] else max(found[name], high)
            if found == edge:
                return edge
            edge = found

    def margin(self, edge: Mapping[str, int]) -> int:
        """The least length of a chunk: beyond every step that a part reaches out of it."""
        reached = [abs(n) for k in range(self.stages) for span in self.reach(k, edge).values() for n in span]
        depths = [p.depth + abs(edge.get(p.output, 0)) for p in self.parts]
        lengths = [self.extent(p) for p in self.parts if p.output in self.first]
        ragged = max(lengths) - min(lengths)
        lags = [abs(n) for n in self.lag.values()]
        return 1 + max(0, *reached, *depths) + max(lags) + max(self.carry.values(), default=0) + ragged

    @property
    def steps(self) -> int:
        return max(self.extent(p) for p in self.parts if p.back)

    def extent(self, p: TimedStatement) -> int:
        """How many times the part's output has."""
        assert p.axis is not None
        return self.line.extent(p.output, p.axis)

    def chunks(self, kept: Callable[[str], str], share: float) -> Chunks | None:
        """Chunks of the square root of the number of steps (times what recurrences look back), or of this share of all
        steps where that is more; None where there are too few. `kept` names what is kept of a recurrence."""
        edge = self.edges({})
        depth = max(p.depth for p in self.parts if p.output in self.first)
        least = self.margin(edge)
        length = max(math.ceil(math.sqrt(self.steps * depth)), int(self.steps * share), least)
        if length >= LONG:
            length += -length % EVEN
        count, rest = divmod(self.steps, length)
        count += rest >= least
        return None if count < 2 else Chunks(length, count, self._states(edge, length, kept))

    def completed(self, chunks: Chunks, kept: Callable[[str], str]) -> Chunks | None:
        """The same chunks with states of all recurrences here; None where the parts cannot be computed in them, from
        the states that are kept."""
        there = {s.recurrence: s for s in chunks.states if s.recurrence in self.first}
        known = {name: self.edge(chunks, s) for name, s in there.items()}
        edge = self.edges(known)
        least, last = self.margin(edge), self.steps - (chunks.count - 1) * chunks.length
        if any(edge[name] != e for name, e in known.items()) or least > min(chunks.length, last):
            return None
        missing = {name: e for name, e in edge.items() if name not in there}
        return replace(chunks, states=(*there.values(), *self._states(missing, chunks.length, kept)))

    def _states(self, edge: Mapping[str, int], length: int, kept: Callable[[str], str]) -> tuple[States, ...]:
        found = []
        for p in self.parts:
            if p.output in edge:
                assert p.axis is not None
                first = length + edge[p.output] - (p.depth if self.rises[p.output] else 0)
                found.append(States(p.output, kept(p.output), p.axis, first, p.depth))
        return tuple(found)

    def edge(self, chunks: Chunks, s: States) -> int:
        return s.first - chunks.length + (s.depth if self.rises[s.recurrence] else 0)


def widened(a: TimeRange | None, b: TimeRange) -> TimeRange:
    """The least range that holds both."""
    return b if a is None else (min(a[0], b[0]), max(a[1], b[1]))


def share_at_once(program: Program, cotangents: Sequence[str], types: Types) -> float | None:
    """The share of all steps whose states a flat gradient program may hold at once where it computes states again; None
    where it may hold all. `types`: of all tensors."""
    again = independent(program.statements, cotangents)
    total = sum(math.prod(types[n].shape) * ITEM_BYTES[types[n].dtype] for n in again if n not in program.outputs)
    budget = knobs.STATE_BUDGET.value
    return None if total <= budget else budget / total / MOST_CHUNK_STATES
