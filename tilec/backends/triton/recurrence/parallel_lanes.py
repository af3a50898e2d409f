"""Recurrences in which each lane reads itself alone: lanes over programs, states in registers, time in a loop.

The loop goes several steps at a time, and first issues the loads of the steps after those: no compiler moves a load
over a store by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilec.backends.common.code import python_name
from tilec.backends.common.domain import Condition
from tilec.backends.common.scalar_writer import ScalarValue
from tilec.backends.triton.emit.kernel import Axis, Kernel, Scope, all_text, triton_type, where_text
from tilec.backends.triton.emit.scalar import TritonScalars, compute_dtype_of
from tilec.backends.triton.plan.plan import Step
from tilec.backends.triton.recurrence.independent_lanes import Local, LocalTiling, starts_at_zero
from tilec.backends.triton.recurrence.pointer_induction import InductionFrame, InductionState
from tilec.backends.triton.recurrence.skewed_loop import step_conditions
from tilec.backends.triton.recurrence.step import Moment, StepFrame, StepWriter
from tilec.ir.index import Affine
from tilec.ir.infer import expression_type
from tilec.ir.program import Access, Expr, Pad, Statement, walk
from tilec.ir.types import NARROW

FIRST_LOADS = 8  # steps whose loads are written out before the first round


class _Frame(InductionFrame):
    """`history`: names of earlier states, the last first."""

    local: Local
    history: list[str]

    def read(self, access: Access, other: float | int | None, wanted: Sequence[str] = ()) -> str:
        back = self.local.back.get(access)
        return super().read(access, other) if back is None else self.history[back - 1]


class _Writer(StepWriter):
    frames = _Frame

    def __init__(self, kernel: Kernel, local: Local, tiling: LocalTiling):
        super().__init__(kernel, local.loop)
        self.local, self.tiling = local, tiling
        self.moving = frozenset((local.loop.time, *local.circular_shifts))
        self.step_inputs = local.step_inputs()
        self.repeated_inputs = local.repeated_inputs(self.step_inputs)
        self.fixed: dict[Access, str] = {}
        self.dtype = local.loop.types[local.loop.own].dtype
        self.totals = {s.output: kernel.names.fresh("total") for s in local.totals}
        self.parts = {s.output: kernel.names.fresh("part") for s in local.totals if s.aggregation == "sum"}

    def at(
        self,
        moment: Moment,
        places: Mapping[str, str],
        history: list[str],
        loaded: dict[Access, str],
        walk: InductionState | None = None,
        number: int = 0,
    ) -> _Frame:
        """The frame of the step of that number, at these places of moving lanes; `number`: of the step in the walk."""
        k, depth = self.kernel, len(self.kernel.scopes) - 1
        running = self.moment(moment, False)
        k.value_of.update(places)
        self.bound |= dict.fromkeys(places, depth)
        frame = self.frame(["row"], {"row": "row_in"}, (self.moving,) * depth, None)
        assert isinstance(frame, _Frame)
        frame.local, frame.history = self.local, history
        frame.loop, frame.circular_shifts, frame.steps = self.loop, self.local.circular_shifts, self.tiling.ahead
        frame.walk, frame.number = walk, number
        frame.loaded, frame.running = {**self.fixed, **loaded}, running
        return frame

    def walk(self, moment: Moment, places: Mapping[str, str]) -> InductionState:
        """Steps from that one on, at these places of moving lanes."""
        k, name = self.kernel, self.kernel.names.fresh("left")
        n = k.extent(self.loop.time)
        k.assign(name, f"tl.where(row_in, {n} - ({moment}), 0)")
        return InductionState(places, name)

    def carried(self, first: Mapping[str, str]) -> dict[str, str]:
        """Names for the moving lanes' places in a loop: what it changes stands in no text before."""
        names = {v: self.kernel.names.fresh(f"{python_name(v)}_at") for v in first}
        self.let({name: first[v] for v, name in names.items()})
        return names

    def load(self, frame: _Frame, fixed: bool = False) -> dict[Access, str]:
        """Issue a step's loads of what changes from step to step, or of what does not; their names."""
        for a in self.step_inputs:
            if a not in frame.loaded and a not in self.repeated_inputs and self.local.moves(a) != fixed:
                frame.loaded[a] = frame.read(a, None)
                if fixed:
                    self.fixed[a] = frame.loaded[a]
        return {a: name for a, name in frame.loaded.items() if a not in self.fixed}

    def step(self, frame: _Frame) -> str:
        """Compute a step and store what is kept of it; the name of its state."""
        code, compute_dtype = self.element(frame, self.tiling.lanes)
        name = self.state(code)
        if self.local.kept is not None:
            low = self.local.kept[0]
            form = Affine.variable(self.loop.time) - low
            self.store(frame, name, compute_dtype, tests=frame.tests([Condition(form, self.local.kept[1] - low + 1)]))
        for s in self.local.epilogue:
            self.emit_epilogue(frame, s, name)
        for s in self.local.totals:
            self._add_up(frame, s, name)
        return name

    def evaluator(self, frame: StepFrame, roots: Sequence[Expr], points: int) -> TritonScalars:
        """With states for the reads that need no test."""
        given = self.insides(frame, roots)
        if self.local.start is not None:
            for e in {e for e in walk(*roots) if isinstance(e, Pad) and e.access in self.local.back}:
                assert isinstance(e.access, Access)
                t = expression_type(e, self.loop.types)
                compute_dtype, code = compute_dtype_of(t.dtype), frame.read(e.access, None)
                code = (
                    code
                    if compute_dtype == compute_dtype_of(self.dtype)
                    else f"{code}.to({triton_type(compute_dtype)})"
                )
                given[e] = ScalarValue(code, t, compute_dtype, self.moving, exact=True)
        return TritonScalars(frame, *roots, given=given)

    def places(self, first: Mapping[str, str], count: int) -> list[dict[str, str]]:
        """Names of the moving lanes' places at as many steps, of which the first are given."""
        return [{v: self._place(v, x, u) for v, x in first.items()} for u in range(count)]

    def _place(self, v: str, first: str, steps: int) -> str:
        if not steps:
            return first
        k, n = self.kernel, self.kernel.extent(v)
        shift = k.number(("turn", v), "turn", self.local.circular_shifts[v], False)
        offset = k.line("hop", f"({steps} * {shift}) % {n}", 0)
        there = k.line("there", f"{first} + {offset}")
        return k.line(python_name(v), f"tl.where({there} < {n}, {there}, {there} - {n})")

    def state(self, code: str) -> str:
        """Emit a state's block, rounded as the tensor's elements are; its name."""
        if self.dtype in NARROW:
            code = f"({code}).to({triton_type(self.dtype)}).to(tl.float32)"
        name = self.kernel.names.fresh("state")
        self.kernel.assign(name, f"tl.broadcast_to({code}, (BM,))")
        return name

    def emit_epilogue(self, frame: _Frame, s: Statement, state: str) -> None:
        """Compute and store the elements of a statement beside the state."""
        evaluator, valid = self._beside(frame, s, state)
        code, compute_dtype = self.selected(frame, s, evaluator, valid)
        name = self.kernel.names.fresh("beside")
        self.kernel.assign(name, f"tl.broadcast_to({code}, (BM,))")
        self.store(frame, name, compute_dtype, s.output)

    def _beside(self, frame: _Frame, s: Statement, state: str) -> tuple[TritonScalars, tuple[Condition, ...]]:
        loop = self.loop
        variables = frozenset((loop.time, *loop.lanes))
        t = loop.types[loop.own]
        given = ScalarValue(state, t.element(), compute_dtype_of(t.dtype), variables, exact=True)
        state_read = Access(loop.own, loop.statement.index or ())
        evaluator = TritonScalars(frame, *s.roots, given={**self.insides(frame, s.roots), state_read: given})
        return evaluator, step_conditions(s.roots, s.constraints, loop.types)

    def zeros(self, names: Mapping[str, str]) -> None:
        dtypes = {name: triton_type(compute_dtype_of(self.loop.types[s].dtype)) for s, name in names.items()}
        self.let({name: f"tl.full((BM,), 0, {dtype})" for name, dtype in dtypes.items()})

    def _add_up(self, frame: _Frame, s: Statement, state: str) -> None:
        """Add what a statement makes of the state to its sum, or keep it where it is the one that is asked for."""
        evaluator, valid = self._beside(frame, s, state)
        tests = [*frame.store_tests(), *frame.tests(valid), *map(evaluator.test, s.guards)]
        dtype = compute_dtype_of(self.loop.types[s.output].dtype)
        code, part = evaluator.text(s.body, dtype), self.parts.get(s.output)
        name = part or self.totals[s.output]
        value = where_text(tests, code, f"tl.full((), 0, {triton_type(dtype)})" if part else name)
        self.kernel.assign(name, f"{part} + {value}" if part else f"tl.broadcast_to({value}, (BM,))")

    def store_totals(self, frame: _Frame) -> None:
        for s in self.local.totals:
            dtype = self.loop.types[s.output].dtype
            cast = "" if compute_dtype_of(dtype) == dtype else f".to({triton_type(dtype)})"
            mask = f"tl.broadcast_to({all_text([*frame.tails.values()])}, (BM,))"
            self.kernel.store(frame.element_address(s), f"{self.totals[s.output]}{cast}", mask)

    def start(self, frame: _Frame) -> str:
        compute_dtype, start = compute_dtype_of(self.dtype), self.local.start
        if start is None or starts_at_zero(start):
            return self.state(f"tl.full((BM,), 0, {triton_type(compute_dtype)})")
        return self.state(TritonScalars(frame, start).text(start, compute_dtype))


def local_steps(
    local: Local, strides: Mapping[str, tuple[int, ...]], int64_index: bool, tiling: LocalTiling
) -> list[Step]:
    """Steps that compute the output."""
    loop = local.loop
    k = Kernel(python_name(loop.own) + "_kernel", loop.space(), loop.types, strides, int64_index)
    k.constants["BM"] = tiling.lanes
    w = _Writer(k, local, tiling)
    k.assign("row", f"{k.program()} * BM + tl.arange(0, BM)")
    k.assign("row_in", f"row < {k.count([v for v in loop.lanes if k.space.largest(v) > 1])}")
    k.decode(Axis("row", loop.lanes, "BM"))
    first = {v: k.value_of[v] for v in local.circular_shifts}
    frame = w.at(Moment("0"), first, [], {})
    w.load(frame, fixed=True)
    states = [k.names.fresh("state") for _ in range(local.depth)]
    start = w.start(frame)
    w.let(dict.fromkeys(states, start))
    waiting = w.waiting(
        frame, [a for a in w.step_inputs if a not in w.fixed and a not in w.repeated_inputs], tiling.ahead
    )
    if any(waiting):
        _first_loads(w, first, waiting)
    w.zeros(w.totals)
    _rounds(w, first, waiting, states)
    w.store_totals(frame)
    grid = (-(-loop.count(loop.lanes) // tiling.lanes), 1, 1)
    return [k.launch(grid, tiling.warps, 1, loop.flat, *local.epilogue, *local.totals, fusion=False)]


def _first_loads(w: _Writer, first: Mapping[str, str], waiting: Sequence[dict[Access, str]]) -> None:
    """Lines that load what the first steps read, a few steps at a time: all written out would take long to compile."""
    count = min(FIRST_LOADS, len(waiting))
    carried = w.carried(first)
    w.kernel.scopes.append(Scope())
    places = w.places(carried, count + 1)
    walk = w.walk(Moment("at_step", 0), places[0])
    coming = [w.load(w.at(Moment("at_step", u), places[u], [], {}, walk, u)) for u in range(count)]
    for old, new in zip(waiting, [*waiting[count:], *coming], strict=True):
        w.let({name: new[a] for a, name in old.items()})
    w.let({name: places[count][v] for v, name in carried.items()})
    w.kernel.close("at_step", f"range(0, {len(waiting)}, {count})")


def _rounds(w: _Writer, first: Mapping[str, str], waiting: Sequence[dict[Access, str]], states: list[str]) -> None:
    """The loop over rounds of steps. A round first issues all loads of the next one, and takes them over when its own
    steps are done: loads between steps would make each step wait for those just issued, as a warp can tell few groups
    of pending loads apart. What a step reads that the step before it has read is not loaded."""
    count = len(waiting)
    carried = w.carried(first)
    frame = w.at(Moment("0"), first, [], {})
    last = {a: w.kernel.names.fresh(f"last_{python_name(a.tensor).lower()}") for a in w.repeated_inputs}
    w.let({name: frame.read(a, None) for a, name in last.items()})
    w.kernel.scopes.append(Scope())
    w.zeros(w.parts)
    places, history = w.places(carried, 2 * count), list(states)
    next_walk = w.walk(Moment("at_step", count), places[count])
    coming = [w.load(w.at(Moment("at_step", count + u), places[count + u], [], {}, next_walk, u)) for u in range(count)]
    walk = w.walk(Moment("at_step", 0), places[0])
    for u in range(count):
        before = {a: waiting[u - 1][b] if u else last[a] for a, b in w.repeated_inputs.items()}
        frame = w.at(Moment("at_step", u), places[u], history, {**waiting[u], **before}, walk, u)
        history = [w.step(frame), *history][: w.local.depth]
    w.let({w.totals[s]: f"{w.totals[s]} + {name}" for s, name in w.parts.items()})
    w.let({name: waiting[-1][w.repeated_inputs[a]] for a, name in last.items()})
    for old, new in zip(waiting, coming, strict=True):
        w.let({name: new[a] for a, name in old.items()})
    w.let(dict(reversed(list(zip(states, history, strict=True)))))
    w.let({name: places[count][v] for v, name in carried.items()})
    w.kernel.close("at_step", f"range(0, {w.kernel.extent(w.local.loop.time)}, {count})")
