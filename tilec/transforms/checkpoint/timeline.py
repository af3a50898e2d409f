"""Which dimension of each tensor of a flat program is time: the one along which its recurrences run.

A statement of the timeline reads every tensor that has a time at one variable plus a number of steps (`H[t - 1, i]`),
and either has that variable as an output index or sums over it. Statements that depend on no recurrence join the
timeline where everything after them reads them so; the others stay whole, and so do the program's inputs, which may be
read both ways. A read at a fixed time, `H[T - 1, i]`, becomes a statement of its own, which sums over the one time
there is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tilec.ir.functions import ZERO
from tilec.ir.index import Affine, linear, substitute_affine
from tilec.ir.program import (
    Access,
    Aggregate,
    Constraint,
    Expr,
    Index,
    Inside,
    Int,
    Pad,
    Program,
    Statement,
    index_variables,
    map_expressions,
    reads,
    reads_itself,
    rebuild,
    self_reads,
    walk,
)
from tilec.ir.types import TensorType, Types
from tilec.transforms.recurrence import outside_zero
from tilec.transforms.util.naming import Names, all_variables, fresh_variable

WHOLE = -1  # in the place of an axis: a read without time
SUMMED = ("sum", "assign", "max", "min", "logsumexp", "any", "all")  # of parts, in turn

PlaceAccess = Callable[[Access, int, int], Access]


class Untimed(Exception):
    """The program has no timeline."""


@dataclass(frozen=True)
class TimedStatement:
    """A statement and its time. `variable`: the index variable that is time, None for a whole statement; `axis`: its
    place among the output's dimensions, None where it is summed over. Only times in `low .. high - 1` count. `reads`:
    tensors that are read, each with the axis at which time stands (WHOLE: at none) and the steps between; those of
    `init` at the times outside that it is asked for. `back`: the steps to what a recurrence reads of itself."""

    statement: Statement
    variable: str | None = None
    axis: int | None = None
    low: int = 0
    high: int = 0
    reads: tuple[tuple[str, int, int], ...] = ()
    back: tuple[int, ...] = ()

    @property
    def output(self) -> str:
        return self.statement.output

    @property
    def depth(self) -> int:
        """How many steps a recurrence looks back."""
        return max(map(abs, self.back), default=0)


@dataclass(frozen=True)
class Timeline:
    """`axes`: the tensors that are computed along time, and where their time stands."""

    parts: tuple[TimedStatement, ...]
    axes: Mapping[str, int]
    types: Types
    outputs: tuple[str, ...]

    def extent(self, tensor: str, axis: int) -> int:
        return self.types[tensor].shape[axis]


def timeline(program: Program, types: Types) -> Timeline:
    """The timeline of a flat program. Raises Untimed where a tensor that depends on a recurrence along time is read in
    another way, or no recurrence runs along an axis."""
    return _Build(program, types).run()


def at_times(e: Expr, t: str, place: PlaceAccess, value: Expr | None) -> Expr:
    """An expression over time t with each access, or what `in` asks about, replaced by `place(access, axis, steps)`,
    and t as a value by `value`. Raises Untimed where t stands elsewhere, or as a value and there is none."""
    match e:
        case Index(name) if name == t:
            if value is None:
                raise Untimed
            return value
        case Access():
            return _placed(e, t, place)
        case Aggregate() if t in e.bound or any(t in index_variables(c.expr, c.bound) for c in e.constraints):
            raise Untimed
    return rebuild(e, lambda x: at_times(x, t, place, value))


def _placed(e: Access, t: str, place: PlaceAccess) -> Access:
    axis, steps = WHOLE, 0
    index = []
    for k, i in enumerate(e.index):
        form = linear(i)
        rest = form - Affine.variable(t)
        if form.coefficient(t):
            if rest.terms or not rest.is_integral or axis != WHOLE:
                raise Untimed
            axis, steps = k, int(rest.constant)
            index.append(i)
        else:
            index.append(at_times(i, t, place, None))
    return place(replace(e, index=tuple(index)), axis, steps)


def _interval(c: Constraint, t: str) -> tuple[int, int] | None:
    """The times that a constraint allows; None where it does not speak of time. Raises Untimed for one that mixes."""
    form = linear(c.expr)
    if t not in index_variables(c.expr):
        return None
    sign = int(form.coefficient(t))
    if form != Affine.variable(t, sign) + form.constant or sign not in (1, -1) or form.constant.denominator > 1:
        raise Untimed
    if not isinstance(c.bound, Int):
        raise Untimed
    low = -int(form.constant) if sign > 0 else int(form.constant) - c.bound.value + 1
    return low, low + c.bound.value


class _Build:
    def __init__(self, program: Program, types: Types):
        self.program = program
        self.types = dict(types)
        self.names = Names.of(program)
        self.axes: dict[str, int] = {}
        self.parts: list[TimedStatement] = []
        self.fixed: dict[tuple[str, int], str] = {}

    def run(self) -> Timeline:
        for s in self.program.statements:
            s = map_expressions(s, self._without_fixed)
            self.parts.append(self._recurrence(s) if reads_itself(s) else self._statement(s))
        if not any(p.back for p in self.parts):
            raise Untimed
        for k in reversed(range(len(self.parts))):
            if self.parts[k].variable is None and not reads_itself(self.parts[k].statement):
                self.parts[k] = self._joined(self.parts[k])
        return Timeline(tuple(self.parts), self.axes, self.types, self.program.outputs)

    def _without_fixed(self, e: Expr) -> Expr:
        """With elements at a fixed time read from tensors of their own."""
        e = rebuild(e, self._without_fixed)
        if not isinstance(e, Access) or e.tensor not in self.axes:
            return e
        axis = self.axes[e.tensor]
        form = linear(e.index[axis])
        if form.terms or form.constant.denominator > 1:
            return e
        name = self._at(e.tensor, axis, int(form.constant))
        return replace(e, tensor=name, index=tuple([Int(0) if k == axis else i for k, i in enumerate(e.index)]))

    def _at(self, tensor: str, axis: int, time: int) -> str:
        """The name of the tensor's part at one time."""
        if (tensor, time) in self.fixed:
            return self.fixed[tensor, time]
        t = self.types[tensor]
        name = self.fixed[tensor, time] = self.names.fresh(f"{tensor}_at")
        left = tuple(Index(f"i{k}") for k in range(len(t.shape)))
        shape = tuple(1 if k == axis else n for k, n in enumerate(t.shape))
        self.types[name] = TensorType(shape, t.dtype, t.weak)
        index = tuple(Int(0) if k == axis else v for k, v in enumerate(left))
        only = Constraint((Affine.variable(left[axis].name) - time).to_expr(), Int(1))
        s = Statement(name, index, tuple(map(Int, shape)), Access(tensor, left), constraints=(only,))
        self.parts.append(self._part(s, left[axis].name, None))
        return name

    def _recurrence(self, s: Statement) -> TimedStatement:
        index = s.index or ()
        bare = [e.name for e in index if isinstance(e, Index)]
        if len(set(bare)) == len(index) and s.default is None:
            for axis, t in enumerate(bare):
                steps = [_steps(a, axis, t) for a in self_reads(s)]
                if all(n is not None and n * (steps[0] or 0) > 0 for n in steps):
                    self.axes[s.output] = axis
                    try:
                        return self._part(s, t, axis)
                    except Untimed:
                        del self.axes[s.output]
        if self.axes.keys() & set(reads(s)):
            raise Untimed
        return TimedStatement(s)

    def _statement(self, s: Statement) -> TimedStatement:
        found = {
            v
            for e in walk(s.body, *s.guards)
            if isinstance(e, Access) and e.tensor in self.axes
            for v in (linear(e.index[self.axes[e.tensor]]).variables() or ("",))
        }
        if not found and not self.axes.keys() & set(reads(s)):
            return TimedStatement(s)
        if len(found) != 1 or s.default is not None:
            raise Untimed
        (t,) = found
        places = _places(s, t)
        if not places and t and s.aggregation in SUMMED:
            return self._part(s, t, None)
        if len(places) != 1:
            raise Untimed
        s = _bare(s, t, places[0])
        self.axes[s.output] = places[0]
        return self._part(s, t, places[0])

    def _summed(self, p: TimedStatement) -> TimedStatement:
        """A whole statement as one that sums over time. Raises Untimed where it does not."""
        part = TimedStatement(p.statement) if reads_itself(p.statement) else self._statement(p.statement)
        if part.axis is not None:
            del self.axes[part.output]
        if part.variable is None or part.axis is not None:
            raise Untimed
        return part

    def _joined(self, p: TimedStatement) -> TimedStatement:
        """A whole statement as one of the timeline, if all that read it do so along one axis; those that do not belong
        to the timeline must sum over time."""
        s = p.statement
        readers = [k for k, q in enumerate(self.parts) if s.output in reads(q.statement)]
        if s.output in self.program.outputs or s.default is not None or s.index is None:
            return p
        axes = {axis for k in readers for tensor, axis, _ in self.parts[k].reads if tensor == s.output}
        if len(axes) != 1 or WHOLE in axes:
            return p
        (axis,) = axes
        place = s.index[axis]
        if isinstance(place, Int):
            t = fresh_variable("t", all_variables(s))
            only = Constraint((Affine.variable(t) - place.value).to_expr(), Int(1))
            moved = tuple(Index(t) if k == axis else i for k, i in enumerate(s.index))
            s = replace(s, index=moved, constraints=(*s.constraints, only))
        elif len(linear(place).variables()) == 1:
            (t,) = linear(place).variables()
        else:
            return p
        try:
            part = self._part(_bare(s, t, axis), t, axis)
            self.axes[s.output] = axis
            summed = {k: self._summed(self.parts[k]) for k in readers if self.parts[k].variable is None}
        except Untimed:
            self.axes.pop(s.output, None)
            return p
        for k, q in summed.items():
            self.parts[k] = q
        return part

    def _part(self, s: Statement, t: str, axis: int | None) -> TimedStatement:
        found: dict[tuple[str, int, int], None] = {}
        back: dict[int, None] = {}
        steps = [0]

        def note(access: Access, at: int, n: int) -> Access:
            tensor = access.tensor
            if tensor in self.axes and at != self.axes[tensor]:
                raise Untimed
            if tensor == s.output:
                back[n] = None
            else:
                found.update(dict.fromkeys((tensor, at, n + k if at != WHOLE else 0) for k in steps))
            return access

        for root in (s.body, *s.guards):
            at_times(root, t, note, Index(t))
        for k, i in enumerate(s.index or ()):
            if k != axis:
                at_times(i, t, note, None)
        low, high = self._times(s, t, axis)
        if s.init is not None:
            steps = list(back)
            at_times(outside_zero(s.init), t, note, Index(t))
        if low >= high:
            raise Untimed
        return TimedStatement(s, t, axis, low, high, tuple(found), tuple(back))

    def _times(self, s: Statement, t: str, axis: int | None) -> tuple[int, int]:
        """The times at which a statement counts, or more."""
        lows, highs = [], []
        if axis is not None:
            lows, highs = [0], [self.types[s.output].shape[axis]]
        else:

            def note(access: Access, at: int, n: int) -> Access:
                if at != WHOLE:
                    lows.append(-n)
                    highs.append(self.types[access.tensor].shape[at] - n)
                return access

            for root in (s.body, *s.guards):
                at_times(_constraining(root), t, note, ZERO)
        for c in s.constraints:
            if (times := _interval(c, t)) is not None:
                lows.append(times[0])
                highs.append(times[1])
        if not lows:
            raise Untimed
        return max(lows), min(highs)


def _places(s: Statement, t: str) -> list[int]:
    """Where time stands among a statement's output indices, other than in the elements that they hold."""
    return [k for k, i in enumerate(s.index or ()) if linear(i).coefficient(t)]


def _bare(s: Statement, t: str, axis: int) -> Statement:
    """The statement with t alone as an index of its output. Raises Untimed where something else stands there than t and
    a number of steps."""
    assert s.index is not None
    rest = linear(s.index[axis]) - Affine.variable(t)
    if rest.terms or not rest.is_integral:
        raise Untimed
    return s if not rest.constant else substitute_affine(s, {t: Affine.variable(t) - rest.constant})


def _constraining(e: Expr) -> Expr:
    """The expression without what does not constrain its points."""
    if isinstance(e, (Pad, Aggregate)):
        return ZERO
    return e if isinstance(e, (Access, Inside)) else rebuild(e, _constraining)


def _steps(access: Access, axis: int, t: str) -> int | None:
    """How far along the axis a self-read lies; None where that is no number."""
    rest = linear(access.index[axis]) - Affine.variable(t)
    return None if rest.terms or not rest.is_integral else int(rest.constant)
