"""The program of one chunk of time in one sweep.

Time starts at 0 where a part's own times do, tensors are cut to the times that are read, and what a recurrence reads
before its first step are states that were kept, or carried here from the chunk before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tilec.ir.functions import ZERO
from tilec.ir.index import Affine
from tilec.ir.program import (
    Access,
    Aggregate,
    Call,
    Constraint,
    Expr,
    Index,
    Input,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    index_variables,
    rebuild,
)
from tilec.ir.types import TensorType
from tilec.transforms.checkpoint.chunk_context import ChunkContext, ChunkInputs
from tilec.transforms.checkpoint.chunks import TimeRange, widened
from tilec.transforms.checkpoint.timeline import WHOLE, TimedStatement, Untimed, at_times
from tilec.transforms.recurrence import outside_zero
from tilec.transforms.util.tiled import (
    Carried,
    CarriedSlice,
    Combine,
    Into,
    Sink,
    Slice,
    Start,
    TiledCall,
    TypedProgram,
    Whole,
)


class Chunk:
    """The program of one chunk in one sweep."""

    def __init__(self, frame: ChunkContext, stage: int, k: int):
        self.frame, self.schedule, self.stage, self.k = frame, frame.schedule, stage, k
        self.axes, self.types = frame.schedule.line.axes, frame.types
        self.start = frame.chunks.times(k)[0]
        self.rising = frame.schedule.rising(stage)
        self.span: dict[str, TimeRange] = {}  # the times at which parts are computed
        self.store: dict[str, TimeRange] = {}  # the times that tensors hold, what was carried included
        self.cut: dict[tuple[str, int], TimeRange] = {}  # the times that are read of what is not computed here
        self.inputs = ChunkInputs()
        self.statements: list[Statement] = []

    def call(self) -> TiledCall[TypedProgram] | None:
        """None where nothing is to be done."""
        parts = self._ranges()
        if not parts:
            return None
        outputs: list[str] = []
        sinks: list[tuple[int, Sink]] = []
        for p in parts:
            self._emit(p)
        for p in parts:
            for name, sink in self._sinks(p):
                if name not in outputs:
                    outputs.append(name)
                sinks.append((outputs.index(name), sink))
        i = self.inputs
        declared = tuple(Input(n, t.shape) for n, t in zip(i.names, i.types, strict=True))
        program = Program(None, declared, tuple(outputs), tuple(self.statements))
        return TiledCall((program, tuple(i.types)), tuple(i.sources), tuple(sinks))

    # times

    def _ranges(self) -> list[TimedStatement]:
        """The parts that are computed here, with their times set."""
        need: dict[str, TimeRange] = {}
        chosen = []
        for p in reversed(self.schedule.parts):
            span = self._span(p, need)
            if span is None:
                continue
            self.span[p.output] = span
            if p.axis is not None:
                self.store[p.output] = self._stored(p, span)
            chosen.append(p)
            for n, axis, steps in p.reads:
                times = span[0] + steps, span[1] + steps
                if self._is_here(n):
                    need[n] = widened(need.get(n), times)
                elif axis != WHOLE:
                    self.cut[n, axis] = widened(self.cut.get((n, axis)), times)
        for (n, axis), times in self.cut.items():
            self.cut[n, axis] = _within(times, self.types[n].shape[axis])
        return list(reversed(chosen))

    def _span(self, p: TimedStatement, need: Mapping[str, TimeRange]) -> TimeRange | None:
        schedule, name = self.schedule, p.output
        span = need.get(name)
        if schedule.fixed(p, self.stage):
            times = self.frame.cut(p, self.k)
            there = times[0] < times[1]
            if name in schedule.late or p.axis is None:
                return times if there else None
            span = widened(span, times) if there else span
        if schedule.to_be_kept(p, self.stage) and (states := self._next_states(p)) is not None:
            span = widened(span, states)
        if span is None:
            return None
        low, high = _within(span, schedule.extent(p))
        if p.back:
            edge = schedule.edge(self.frame.chunks, self.frame.states[name])
            a, b = self.frame.chunks.times(self.k)
            if schedule.rises[name]:
                low = 0 if self.k == 0 else a + edge
            else:
                high = schedule.extent(p) if self._is_last else b + edge
        return low, high

    @property
    def _is_last(self) -> bool:
        return self.k == self.frame.chunks.count - 1

    def _next_states(self, p: TimedStatement) -> TimeRange | None:
        """The times of the states from which the next chunk starts."""
        s = self.frame.states[p.output]
        k = self._kept_after(p.output)
        if k is None:
            return None
        first = s.first + k * self.frame.chunks.length
        return first, first + s.depth

    def _kept_after(self, name: str) -> int | None:
        """Which of a recurrence's kept states this chunk finds."""
        k = self.k if self.schedule.rises[name] else self.k - 1
        return k if 0 <= k < self.frame.chunks.count - 1 else None

    def _kept_before(self, name: str) -> int | None:
        """Which of a recurrence's kept states this chunk starts from."""
        k = self.k - 1 if self.schedule.rises[name] else self.k
        return k if 0 <= k < self.frame.chunks.count - 1 else None

    def _is_here(self, name: str) -> bool:
        """Is the tensor computed here if it is read? One of an earlier sweep that could not be is there whole."""
        return name in self.axes and (name not in self.schedule.late or self.schedule.stage[name] == self.stage)

    def _stored(self, p: TimedStatement, span: TimeRange) -> TimeRange:
        """The times of a part that are computed here or were carried here."""
        carry = self.schedule.carry.get(p.output, 0)
        if self.rising:
            return max(span[0] - carry, 0), span[1]
        return span[0], min(span[1] + carry, self.schedule.extent(p))

    # statements

    def _emit(self, p: TimedStatement) -> None:
        s, t = p.statement, p.variable
        assert t is not None and s.index is not None and s.sizes is not None
        low, high = self.span[p.output]
        n = high - low
        offset = low - self.start

        def place(access: Access, axis: int, steps: int) -> Access:
            return self._placed(p, access, axis, steps)

        def move(root: Expr) -> Expr:
            time = (Affine.variable(t) + offset).to_value()
            counts = any(x == t for x in index_variables(_values(root)))
            value = time + Access(self._start(), ()) if counts else None
            return at_times(root, t, place, value)

        constraints = [c for c in s.constraints if t not in index_variables(c.expr)]
        if p.axis is None:
            constraints.append(Constraint(Index(t), Int(n)))
        elif p.low > low or p.high < high:
            inside = max(p.low, low) < min(p.high, high)
            only = Constraint((Affine.variable(t) + (low - p.low)).to_expr(), Int(p.high - p.low))
            never = Constraint((Affine.variable(t) - n).to_expr(), Int(1))
            constraints.append(only if inside else never)
        body, guard = move(s.body), None if s.guard is None else move(s.guard)
        if self.frame.summed_up(p):
            body = _widened(body)
        sizes = s.sizes if p.axis is None else tuple(Int(n) if k == p.axis else e for k, e in enumerate(s.sizes))
        index = tuple(i if k == p.axis else at_times(i, t, place, None) for k, i in enumerate(s.index))
        self.statements.append(
            Statement(
                p.output,
                index,
                sizes,
                body,
                s.aggregation,
                guard,
                tuple(constraints),
                init=self._init(p, move) if p.back else None,
                no_defract=s.no_defract,
            )
        )
        if p.axis is not None and self._is_joined(p):
            self._join(p)

    def _start(self) -> str:
        name = self.frame.local("start", "Start")
        self.inputs.add(name, TensorType((), "int64", True), Start(self.start))
        return name

    def _placed(self, p: TimedStatement, access: Access, axis: int, steps: int) -> Access:
        """The access in this chunk's tensors."""
        n = access.tensor
        if axis == WHOLE:
            name = n
            self.inputs.add(n, self.types[n], Whole(n))
        elif n == p.output:
            return access
        elif self._is_here(n):
            if n not in self.span:
                raise Untimed
            name = self._joined(n) if self._is_joined(n) else n
            steps += self.span[p.output][0] - (self.store if self._is_joined(n) else self.span)[n][0]
        else:
            low, high = self.cut[n, axis]
            steps += self.span[p.output][0] - low
            name = self.frame.local((n, axis), f"{n}_part")
            shape = tuple(high - low if k == axis else size for k, size in enumerate(self.types[n].shape))
            self.inputs.add(name, replace(self.types[n], shape=shape), Slice(n, axis, high - low, low))
        if axis == WHOLE:
            return access
        time = (Affine.variable(p.variable or "") + steps).to_expr()
        return replace(access, tensor=name, index=tuple(time if k == axis else i for k, i in enumerate(access.index)))

    def _init(self, p: TimedStatement, move: Callable[[Expr], Expr]) -> Expr | None:
        """What a recurrence reads outside of this chunk: what is kept or carried, and elsewhere what its own `init`
        says."""
        s, axis = p.statement, p.axis
        assert axis is not None and s.index is not None and p.variable is not None
        own = None if s.init is None else move(outside_zero(s.init))
        low, high = self.span[p.output]
        if p.output in self.schedule.late:
            found = self._carried(p)
            before = self.rising
        else:
            k = self._kept_before(p.output)
            if k is None:
                return own
            states = self.frame.states[p.output]
            found = self.frame.local((states.kept, "k"), f"{p.output}_before")
            shape = self.types[states.kept].shape[1:]
            self.inputs.add(found, TensorType(shape, self.types[p.output].dtype), Slice(states.kept, 0, None, k))
            before = self.schedule.rises[p.output]
        if found is None:
            return own
        length = self.inputs.types[self.inputs.names.index(found)].shape[axis]
        time = (Affine.variable(p.variable) + (length if before else low - high)).to_expr()
        access = Access(found, tuple(time if k == axis else i for k, i in enumerate(s.index)))
        return access if own is None else Pad(access, own)

    def _carried(self, p: TimedStatement) -> str | None:
        """The name of what was carried here of a late part."""
        (low, high), (first, last) = self.span[p.output], self.store[p.output]
        count = (low - first) + (last - high)
        if not count:
            return None
        name = self.frame.local((p.output, "carried"), f"{p.output}_before")
        t = self.types[p.output]
        shape = tuple(count if k == p.axis else n for k, n in enumerate(t.shape))
        self.inputs.add(name, replace(t, shape=shape), Carried(p.output))
        return name

    def _joined(self, name: str) -> str:
        return self.frame.local((name, "joined"), f"{name}_all")

    def _is_joined(self, p: TimedStatement | str) -> bool:
        """Do other parts read what was carried here of this one?"""
        name = p if isinstance(p, str) else p.output
        if name not in self.schedule.late or self.store.get(name) == self.span.get(name):
            return False
        low, high = self.span[name]
        for q in self.schedule.parts:
            if q.output in self.span:
                a, b = self.span[q.output]
                if any(n == name and (a + steps < low or b + steps > high) for n, _, steps in q.reads):
                    return True
        return False

    def _join(self, p: TimedStatement) -> None:
        """A statement of what was carried here and what is computed here, one behind the other."""
        found, axis = self._carried(p), p.axis
        assert found is not None and axis is not None
        (low, high), (first, last) = self.span[p.output], self.store[p.output]
        left = tuple(Index(f"i{k}") for k in range(len(self.types[p.output].shape)))
        time = Affine.variable(left[axis].name)

        def at(name: str, steps: int) -> Access:
            return Access(name, tuple((time + steps).to_expr() if k == axis else i for k, i in enumerate(left)))

        value = Pad(at(p.output, first - low), Pad(at(found, 0 if self.rising else low - high), ZERO))
        shape = tuple(last - first if k == axis else n for k, n in enumerate(self.types[p.output].shape))
        self.statements.append(Statement(self._joined(p.output), left, tuple(map(Int, shape)), value))

    # results

    def _sinks(self, p: TimedStatement) -> list[tuple[str, Sink]]:
        name, axis = p.output, p.axis
        if axis is None:
            return [(name, Combine(name, p.statement.aggregation))]
        low, high = self.span[name]
        found: list[tuple[str, Sink]] = []
        if self.frame.is_whole(name) and self.schedule.stage[name] == self.stage:
            a, b = self.frame.cut(p, self.k)
            if a < b:
                inner = None if (a, b) == (low, high) else (axis, a - low, b - low)
                found.append((name, Into(name, axis, b - a, a, part=inner)))
        if self.schedule.to_be_kept(p, self.stage) and (states := self._next_states(p)) is not None:
            k = self._kept_after(p.output)
            assert k is not None
            part = axis, states[0] - low, states[1] - low
            found.append((name, Into(self.frame.states[name].kept, 0, None, k, part=part)))
        carry = self.schedule.carry.get(name, 0)
        if name in self.schedule.late and carry:
            holder, (first, last) = name, self.span[name]
            if self._is_joined(name):
                holder, (first, last) = self._joined(name), self.store[name]
            a, b = (max(high - carry, 0), high) if self.rising else (low, min(low + carry, self.schedule.extent(p)))
            if a < first or b > last:
                raise Untimed
            if not (self._is_last if self.rising else self.k == 0):
                found.append((holder, CarriedSlice(name, (axis, a - first, b - first))))
        return found


def _within(times: TimeRange, extent: int) -> TimeRange:
    """The times that a tensor has among these, one at least."""
    low = min(max(times[0], 0), extent - 1)
    return low, min(max(times[1], low + 1), extent)


def _values(e: Expr) -> Expr:
    """The expression without what stands in indices."""
    if isinstance(e, Pad):
        return _values(e.value)
    return ZERO if isinstance(e, (Access, Inside)) else rebuild(e, _values)


def _widened(e: Expr) -> Expr:
    """The expression over elements in float32."""
    match e:
        case Access() | Pad():
            return Call("float32", (e,))
        case Inside():
            return e
        case Aggregate():
            return replace(e, guard=e.guard, body=_widened(e.body))
    return rebuild(e, _widened)
