"""Steps in which each lane reads itself alone: lanes over programs, states in registers, time in a loop.

A lane may move on its way: `H[t, i] = B[t, i] + H[t - 1, (i - 1) % D]` is the element i = w + t (modulo D) of lane w,
and without the modulo too, where what is read outside is `init`'s. The loop goes several steps at a time, and first
issues the loads of the steps after those: no compiler moves a load over a store by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilec.backends.common.code import python_name
from tilec.backends.common.domain import Condition
from tilec.backends.common.scalar_writer import ScalarValue
from tilec.backends.triton.emit.frame import free_of
from tilec.backends.triton.emit.kernel import Axis, Kernel, Scope, triton_type
from tilec.backends.triton.emit.scalar import TritonScalars, compute_dtype_of
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.backends.triton.plan.plan import Step
from tilec.backends.triton.plan.sizes import power_of_two
from tilec.backends.triton.recurrence.pointer_induction import InductionFrame, InductionState
from tilec.backends.triton.recurrence.skewed_loop import SkewedLoop, step_conditions, step_inputs
from tilec.backends.triton.recurrence.step import Moment, StepFrame, StepWriter
from tilec.ir.functions import ZERO
from tilec.ir.index import Affine, linear
from tilec.ir.infer import expression_type
from tilec.ir.program import Access, Call, Expr, Float, Int, Pad, Statement, self_reads, walk
from tilec.ir.rational import Fraction
from tilec.ir.types import NARROW

MOST_STEPS_BACK = 16  # steps back that registers hold
MOST_AHEAD = 32  # steps whose loads are in flight together
WAITING_REGISTERS = 64  # values per lane that may wait for their step
MOST_TOUCHED = 100  # loads and stores of a round: Triton's compile time grows with the cube of their number
MOST_ROUND_OPERATORS = 800  # operators of a round
FIRST_LOADS = 8  # steps whose loads are written out before the first round
LONGEST_TURN = 2**31 // MOST_AHEAD - 1  # lanes that may turn: places several steps ahead are 32-bit numbers


@dataclass(frozen=True)
class Local:
    """`back`: how many steps ago each read's state was computed. `circular_shifts`: how far each moving lane moves in a
    step. `start`: what registers hold at first, as an expression at the first step, where no read need ask whether it
    is inside: only what lies before the first step is read outside. None elsewhere. `kept`: the first and the last time
    whose states are stored, None where none are. `epilogue`: statements over the loop's variables whose elements are
    computed beside the state's."""

    loop: SkewedLoop
    back: Mapping[Access, int]
    circular_shifts: Mapping[str, int]
    start: Expr | None
    kept: tuple[int, int] | None
    epilogue: tuple[Statement, ...] = ()

    @property
    def roots(self) -> tuple[Expr, ...]:
        bodies = (e for s in self.epilogue for e in (s.body, *s.guards))
        return (*self.loop.roots, *bodies)

    @property
    def depth(self) -> int:
        return max(self.back.values())


@dataclass(frozen=True)
class LocalTiling:
    """Lanes of a block, warps, and steps of a round, which is how far ahead loads are issued."""

    lanes: int
    warps: int
    ahead: int


def recognise_local(loop: SkewedLoop) -> Local | None:
    """The statement as one whose lanes keep to themselves, None if they do not."""
    if not loop.skew.plain or loop.aggregates():
        return None
    back: dict[Access, int] = {}
    shifts: dict[str, list[tuple[int, int]]] = {v: [] for v in loop.lanes}
    closed = True
    for access in self_reads(loop.statement):
        given = dict(zip(loop.skew.old, map(linear, access.index), strict=True))
        time, *forms = (row.substitute(given) for row in loop.skew.rows)
        step = (time - Affine.variable(loop.time)) * (1 if loop.falling else -1)
        if step.terms or step.constant.denominator > 1 or not 1 <= step.constant <= MOST_STEPS_BACK:
            return None
        back[access] = int(step.constant)
        for v, form in zip(loop.skew.names[1:], forms, strict=True):
            moved = _moved(form, v, loop)
            if moved is None:
                return None
            shift, wraps = moved
            closed = closed and (wraps or not shift)
            shifts[v].append((back[access], shift))
    circular_shifts = {v: _circular_shift(found, loop.extent[v]) for v, found in shifts.items()}
    if (
        not back
        or None in circular_shifts.values()
        or any(c and loop.extent[v] > LONGEST_TURN for v, c in circular_shifts.items())
    ):
        return None
    pads = {e for e in walk(*loop.roots) if isinstance(e, Pad) and e.access in back}
    values = {p.value for p in pads}
    start: Expr | None = None
    if closed and all(map(_is_zero, values)):
        start = ZERO
    elif closed and set(back.values()) == {1} and len(values) == 1:
        start = values.pop()
    whole = loop.low[loop.time], loop.low[loop.time] + loop.steps - 1
    return Local(loop, back, {v: c for v, c in circular_shifts.items() if c}, start, whole)


def _is_zero(e: Expr) -> bool:
    match e:
        case Call("bool", (x,)):
            return _is_zero(x)
        case Int(n) | Float(n):
            return n == 0
    return False


def _moved(form: Affine, v: str, loop: SkewedLoop) -> tuple[int, bool] | None:
    """By how much a form differs from the variable, and whether it wraps round at its range's ends."""
    n, low = loop.extent[v], loop.low[v]
    match form.terms:
        case ((Call("mod", (e, Int(size))), c),) if c == 1 and not form.constant and size == n and not low:
            form, wraps = linear(e), True
        case _:
            wraps = False
    shift = form - Affine.variable(v)
    if shift.terms or shift.constant.denominator > 1:
        return None
    return int(shift.constant), wraps


def _circular_shift(shifts: Sequence[tuple[int, int]], n: int) -> int | None:
    """c with which every read is of its own lane: what was read `b` steps ago at `v + shift` has come c*b further."""
    found = [-shift // b for b, shift in shifts if shift % b == 0]
    for c in dict.fromkeys(x % n for x in found):
        if all((shift + c * b) % n == 0 for b, shift in shifts):
            return c
    return None


def choose_local(local: Local) -> LocalTiling:
    loop = local.loop
    lanes = loop.count(loop.lanes)
    accesses = _step_inputs(local)
    repeated_inputs = _repeated_inputs(local, accesses)
    carried = [a for a in accesses if _moves(local, a) and a not in repeated_inputs]
    words = sum(2 if loop.types[a.tensor].dtype in ("float64", "int64") else 1 for a in carried)
    operators = sum(isinstance(e, Call) for e in walk(*local.roots))
    touched = len(carried) + len(local.epilogue) + (local.kept is not None)
    ahead = min(
        MOST_AHEAD,
        WAITING_REGISTERS // max(words, 1),
        MOST_TOUCHED // touched,
        MOST_ROUND_OPERATORS // max(operators, 1),
    )
    if lanes >= MULTIPROCESSORS * 1024:
        ahead = min(ahead, 8)
    ahead = max(1, power_of_two(ahead + 1) // 2)
    warps = 1 if lanes < MULTIPROCESSORS * 512 else 4
    return LocalTiling(min(32 * warps, power_of_two(lanes)), warps, min(ahead, power_of_two(loop.steps)))


def _step_inputs(local: Local) -> list[Access]:
    """Elements of other tensors that a step and its epilogue read."""

    def is_known(e: Pad) -> bool:
        return e.access in local.back and local.start is not None

    return step_inputs(local.loop, local.roots, is_known)


def _repeated_inputs(local: Local, accesses: Sequence[Access]) -> dict[Access, Access]:
    """Elements that the step before has read already, each with the access by which it did."""
    loop = local.loop
    before = {loop.time: Affine.variable(loop.time) + (1 if loop.falling else -1)}
    for v, shift in local.circular_shifts.items():
        back = Affine.variable(v) - shift
        before[v] = Affine.of([(Call("mod", (back.to_expr(), Int(loop.extent[v]))), 1)])
    inner = {x for a in accesses for i in a.index for x in walk(i)}
    plain = [a for a in accesses if _moves(local, a) and not inner & {a, *accesses} and a not in inner]
    read = {(b.tensor, tuple(_turned(linear(i).substitute(before)) for i in b.index)): b for b in plain}
    found: dict[Access, Access] = {}
    for a in plain:
        b = read.get((a.tensor, tuple(_turned(linear(i)) for i in a.index)))
        if b is not None and b not in found and a not in found.values() and a != b:
            found[a] = b
    return found


def _turned(form: Affine) -> Affine:
    """The form with what is taken modulo a number between 0 and that."""
    terms: list[tuple[Expr, Fraction | int]] = []
    for atom, c in form.terms:
        match atom:
            case Call("mod", (e, Int(n))) if linear(e).is_integral and n > 0:
                inner = linear(e)
                atom = Call("mod", ((inner + (inner.constant % n - inner.constant)).to_expr(), Int(n)))
        terms.append((atom, c))
    return Affine.of(terms, form.constant)


def _moves(local: Local, access: Access) -> bool:
    """Whether an element changes from step to step."""
    return bool(free_of(access) & {local.loop.time, *local.circular_shifts})


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
        self.step_inputs = _step_inputs(local)
        self.repeated_inputs = _repeated_inputs(local, self.step_inputs)
        self.fixed: dict[Access, str] = {}
        self.dtype = local.loop.types[local.loop.own].dtype

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
            if a not in frame.loaded and a not in self.repeated_inputs and _moves(self.local, a) != fixed:
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
        loop = self.loop
        variables = frozenset((loop.time, *loop.lanes))
        t = loop.types[loop.own]
        given = ScalarValue(state, t.element(), compute_dtype_of(t.dtype), variables, exact=True)
        state_read = Access(loop.own, loop.statement.index or ())
        evaluator = TritonScalars(frame, *s.roots, given={**self.insides(frame, s.roots), state_read: given})
        code, compute_dtype = self.selected(frame, s, evaluator, step_conditions(s.roots, s.constraints, loop.types))
        name = self.kernel.names.fresh("beside")
        self.kernel.assign(name, f"tl.broadcast_to({code}, (BM,))")
        self.store(frame, name, compute_dtype, s.output)

    def start(self, frame: _Frame) -> str:
        compute_dtype, start = compute_dtype_of(self.dtype), self.local.start
        if start is None or _is_zero(start):
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
    _rounds(w, first, waiting, states)
    grid = (-(-loop.count(loop.lanes) // tiling.lanes), 1, 1)
    return [k.launch(grid, tiling.warps, 1, loop.flat, *local.epilogue, fusion=False)]


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
    places, history = w.places(carried, 2 * count), list(states)
    next_walk = w.walk(Moment("at_step", count), places[count])
    coming = [w.load(w.at(Moment("at_step", count + u), places[count + u], [], {}, next_walk, u)) for u in range(count)]
    walk = w.walk(Moment("at_step", 0), places[0])
    for u in range(count):
        before = {a: waiting[u - 1][b] if u else last[a] for a, b in w.repeated_inputs.items()}
        frame = w.at(Moment("at_step", u), places[u], history, {**waiting[u], **before}, walk, u)
        history = [w.step(frame), *history][: w.local.depth]
    w.let({name: waiting[-1][w.repeated_inputs[a]] for a, name in last.items()})
    for old, new in zip(waiting, coming, strict=True):
        w.let({name: new[a] for a, name in old.items()})
    w.let(dict(reversed(list(zip(states, history, strict=True)))))
    w.let({name: places[count][v] for v, name in carried.items()})
    w.kernel.close("at_step", f"range(0, {w.kernel.extent(w.local.loop.time)}, {count})")
