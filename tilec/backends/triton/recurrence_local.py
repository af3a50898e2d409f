"""Steps in which each lane reads itself alone: lanes over programs, states in registers, time in a loop.

A lane may move on its way: `H[t, i] = B[t, i] + H[t - 1, (i - 1) % D]` is the element i = w + t (modulo D) of lane w,
and without the modulo too, where what is read outside is `init`'s. The loop goes several steps at a time, and first
issues the loads of the steps after those: no compiler moves a load over a store by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilec.backends.domain import gathered
from tilec.backends.scalars import NARROW, value_children
from tilec.backends.triton.device_text import module_text
from tilec.backends.triton.kernel import Axis, Kernel, Scope, free_of, triton_type
from tilec.backends.triton.plan import Launch, Step, python_name
from tilec.backends.triton.recurrence_course import Course
from tilec.backends.triton.recurrence_step import StepFrame, StepWriter
from tilec.backends.triton.scalar import Evaluator, Value, held_as
from tilec.backends.triton.sizes import power_of_two
from tilec.ir.functions import ZERO
from tilec.ir.index import Affine, linear
from tilec.ir.infer import expression_type
from tilec.ir.program import Access, Call, Expr, Float, Int, Pad, self_reads, walk

DEEPEST = 16  # steps back that registers hold
MOST_AHEAD = 32  # steps whose loads are in flight together
REGISTERS = 64  # values per lane that may wait for their step
MOST_WRITTEN = 1500  # operators written out for the steps of one round
MULTIPROCESSORS = 132
LONGEST_TURN = 2**31 // MOST_AHEAD - 1  # lanes that may turn: places several steps ahead are 32-bit numbers


@dataclass(frozen=True)
class Local:
    """`back`: how many steps ago each read's state was computed. `turns`: how far each moving lane moves in a step.
    `start`: what registers hold at first, as an expression at the first step, where no read need ask whether it is
    inside: only what lies before the first step is read outside. None elsewhere."""

    course: Course
    back: Mapping[Access, int]
    turns: Mapping[str, int]
    start: Expr | None

    @property
    def depth(self) -> int:
        return max(self.back.values())


@dataclass(frozen=True)
class LocalTiling:
    """Lanes of a block, warps, steps at a time."""

    lanes: int
    warps: int
    ahead: int


def recognise_local(course: Course) -> Local | None:
    """The statement as one whose lanes keep to themselves, None if they do not."""
    if not course.skew.plain or course.aggregates():
        return None
    back: dict[Access, int] = {}
    shifts: dict[str, list[tuple[int, int]]] = {v: [] for v in course.lanes}
    closed = True
    for access in self_reads(course.statement):
        given = dict(zip(course.skew.old, map(linear, access.index), strict=True))
        time, *forms = (row.substitute(given) for row in course.skew.rows)
        step = (time - Affine.variable(course.time)) * (1 if course.falling else -1)
        if step.terms or step.constant.denominator > 1 or not 1 <= step.constant <= DEEPEST:
            return None
        back[access] = int(step.constant)
        for v, form in zip(course.skew.names[1:], forms, strict=True):
            moved = _moved(form, v, course)
            if moved is None:
                return None
            shift, wraps = moved
            closed = closed and (wraps or not shift)
            shifts[v].append((back[access], shift))
    turns = {v: _turn(found, course.extent[v]) for v, found in shifts.items()}
    if not back or None in turns.values() or any(c and course.extent[v] > LONGEST_TURN for v, c in turns.items()):
        return None
    pads = {e for root in course.roots for e in walk(root) if isinstance(e, Pad) and e.access in back}
    values = {p.value for p in pads}
    start: Expr | None = None
    if closed and all(map(_is_zero, values)):
        start = ZERO
    elif closed and set(back.values()) == {1} and len(values) == 1:
        start = values.pop()
    return Local(course, back, {v: c for v, c in turns.items() if c}, start)


def _is_zero(e: Expr) -> bool:
    match e:
        case Call("bool", (x,)):
            return _is_zero(x)
        case Int(n) | Float(n):
            return n == 0
    return False


def _moved(form: Affine, v: str, course: Course) -> tuple[int, bool] | None:
    """By how much a form differs from the variable, and whether it wraps round at its range's ends."""
    n, low = course.extent[v], course.low[v]
    match form.terms:
        case ((Call("mod", (e, Int(size))), c),) if c == 1 and not form.constant and size == n and not low:
            form, wraps = linear(e), True
        case _:
            wraps = False
    shift = form - Affine.variable(v)
    if shift.terms or shift.constant.denominator > 1:
        return None
    return int(shift.constant), wraps


def _turn(shifts: Sequence[tuple[int, int]], n: int) -> int | None:
    """c with which every read is of its own lane: what was read `b` steps ago at `v + shift` has come c*b further."""
    found = [-shift // b for b, shift in shifts if shift % b == 0]
    for c in dict.fromkeys(x % n for x in found):
        if all((shift + c * b) % n == 0 for b, shift in shifts):
            return c
    return None


def choose_local(local: Local) -> LocalTiling:
    course = local.course
    lanes = course.count(course.lanes)
    carried = [a for a in feeds(local) if _moves(local, a)]
    words = sum(2 if course.types[a.tensor].dtype in ("float64", "int64") else 1 for a in carried)
    operators = sum(isinstance(e, Call) for root in course.roots for e in walk(root))
    ahead = min(MOST_AHEAD, REGISTERS // max(words, 1), MOST_WRITTEN // max(operators, 1))
    if lanes >= MULTIPROCESSORS * 1024:
        ahead = min(ahead, 8)
    ahead = max(1, power_of_two(ahead + 1) // 2)
    warps = 1 if lanes < MULTIPROCESSORS * 512 else 4
    return LocalTiling(min(32 * warps, power_of_two(lanes)), warps, min(ahead, power_of_two(course.steps)))


def feeds(local: Local) -> list[Access]:
    """Elements of other tensors that a step reads, those in indices before what they are indices of."""
    found: dict[Access, None] = {}
    s = local.course.statement

    def add(access: Access) -> None:
        for i in access.index:
            for inner in gathered(linear(i)):
                add(inner)
        if access.tensor != s.output:
            found.setdefault(access)

    stack = list(reversed(local.course.roots))
    if s.default is not None:
        stack.append(Access(s.default, s.index or ()))
    while stack:
        e = stack.pop()
        if isinstance(e, Access):
            add(e)
        elif isinstance(e, Pad) and e.access in local.back and local.start is not None:
            continue
        elif isinstance(e, Pad):
            stack += [e.value, e.access]
        else:
            stack += reversed(value_children(e))
    return list(found)


def _moves(local: Local, access: Access) -> bool:
    """Whether an element changes from step to step."""
    return bool(free_of(access) & {local.course.time, *local.turns})


class _Frame(StepFrame):
    """`history`: names of earlier states, the last first; `loaded`: names of elements that were read already;
    `running`: the test that the step takes place at all."""

    local: Local
    history: list[str]
    loaded: dict[Access, str]
    running: str

    def read(self, access: Access, other: float | int | None) -> str:
        if access in self.local.back:
            return self.history[self.local.back[access] - 1]
        return self.loaded.get(access) or super().read(access, other)

    def tail_tests(self, variables: frozenset[str]) -> list[str]:
        running = [self.running] if self.local.course.time in variables else []
        return [*super().tail_tests(variables), *running]


class _Writer(StepWriter):
    def __init__(self, kernel: Kernel, local: Local, tiling: LocalTiling):
        super().__init__(kernel, local.course)
        self.local, self.tiling = local, tiling
        self.moving = frozenset((local.course.time, *local.turns))
        self.feeds = feeds(local)
        self.fixed: dict[Access, str] = {}
        self.dtype = local.course.types[local.course.own].dtype

    def at(self, moment: str, places: Mapping[str, str], history: list[str], loaded: dict[Access, str]) -> _Frame:
        """The frame of the step of that number, at these places of moving lanes."""
        k, course = self.kernel, self.course
        depth = len(k.scopes) - 1
        low, n = k.low(course.time), k.extent(course.time)
        count = k.line("count", f"tl.full((), 0, {'tl.int64' if k.wide else 'tl.int32'}) + {moment}")
        place = f"{n} - 1 - {count}" if course.falling else count
        name = k.line("now", place if low == "0" else f"{low} + {place}") if place != count or low != "0" else count
        k.value_of[course.time] = name
        k.value_of.update(places)
        self.scopes |= dict.fromkeys((name, *places.values()), depth)
        frame = _Frame(k, ["row"], {"row": "row_in"}, (self.moving,) * depth, course.own, self.scopes)
        frame.local, frame.history, frame.loaded = self.local, history, {**self.fixed, **loaded}
        frame.running = k.line("running", f"{count} < {n}")
        self.scopes.setdefault(frame.running, depth)
        return frame

    def load(self, frame: _Frame) -> dict[Access, str]:
        """Issue a step's loads; the names of those that change from step to step."""
        for a in self.feeds:
            if a not in frame.loaded:
                frame.loaded[a] = frame.read(a, None)
                if not _moves(self.local, a):
                    self.fixed[a] = frame.loaded[a]
        return {a: name for a, name in frame.loaded.items() if a not in self.fixed}

    def evaluator(self, frame: StepFrame, roots: Sequence[Expr], points: int) -> Evaluator:
        """With states for the reads that need no test."""
        given: dict[Expr, Value] = {}
        if self.local.start is not None:
            for e in {e for root in roots for e in walk(root) if isinstance(e, Pad) and e.access in self.local.back}:
                assert isinstance(e.access, Access)
                t = expression_type(e, self.course.types)
                held, code = held_as(t.dtype), frame.read(e.access, None)
                code = code if held == held_as(self.dtype) else f"{code}.to({triton_type(held)})"
                given[e] = Value(code, t, held, self.moving, exact=True)
        return Evaluator(frame, *roots, given=given)

    def places(self, first: Mapping[str, str], count: int) -> list[dict[str, str]]:
        """Names of the moving lanes' places at as many steps, of which the first are given."""
        return [{v: self._place(v, x, u) for v, x in first.items()} for u in range(count)]

    def _place(self, v: str, first: str, steps: int) -> str:
        if not steps:
            return first
        k, n = self.kernel, self.kernel.extent(v)
        turn = k.number(("turn", v), "turn", self.local.turns[v], False)
        hop = k.line("hop", f"({steps} * {turn}) % {n}", 0)
        there = k.line("there", f"{first} + {hop}")
        return k.line(python_name(v), f"tl.where({there} < {n}, {there}, {there} - {n})")

    def state(self, code: str) -> str:
        """Emit a state's block, rounded as the tensor's elements are; its name."""
        if self.dtype in NARROW:
            code = f"({code}).to({triton_type(self.dtype)}).to(tl.float32)"
        name = self.kernel.names.fresh("state")
        self.kernel.emit(f"{name} = tl.broadcast_to({code}, (BM,))")
        self.scopes[name] = len(self.kernel.scopes) - 1
        return name

    def start(self, frame: _Frame) -> str:
        held, start = held_as(self.dtype), self.local.start
        if start is None or _is_zero(start):
            return self.state(f"tl.full((BM,), 0, {triton_type(held)})")
        evaluator = Evaluator(frame, start)
        value = evaluator.value(start)
        return self.state(evaluator.condition(value) if held == "bool" else evaluator.tensor(value, held))


def local_steps(local: Local, strides: Mapping[str, tuple[int, ...]], wide: bool, tiling: LocalTiling) -> list[Step]:
    """Steps that compute the output."""
    course = local.course
    k = Kernel(python_name(course.own) + "_kernel", course.space(), course.types, strides, wide)
    k.constants["BM"] = tiling.lanes
    w = _Writer(k, local, tiling)
    ahead = tiling.ahead
    k.emit(f"row = tl.program_id(0){'.to(tl.int64)' if wide else ''} * BM + tl.arange(0, BM)")
    k.emit(f"row_in = row < {k.count([v for v in course.lanes if k.space.largest(v) > 1])}")
    k.decode(Axis("row", course.lanes, "BM"))
    places = w.places({v: k.value_of[v] for v in local.turns}, ahead)
    waiting: list[dict[Access, str]] = []
    first: list[str] = []
    for u in range(ahead):
        frame = w.at(str(u), places[u], [], {})
        first = first or [w.start(frame)]
        waiting.append({})
        for a, name in w.load(frame).items():
            waiting[u][a] = k.names.fresh(f"next_{python_name(a.tensor).lower()}")
            k.emit(f"{waiting[u][a]} = {name}")
            w.scopes[waiting[u][a]] = 1
    carried = {v: k.names.fresh(f"{python_name(v)}_at") for v in local.turns}  # no name that the loop changes has
    for v, name in carried.items():  # stood in a text before it
        k.emit(f"{name} = {places[0][v]}")
    states = [k.names.fresh("state") for _ in range(local.depth)]
    for name in states:
        k.emit(f"{name} = {first[0]}")
        w.scopes[name] = 1
    k.scopes.append(Scope())
    places = w.places(carried, ahead + 1)
    later = w.places(places[ahead], ahead)
    coming = [w.load(w.at(f"at_step + {ahead + u}", later[u], [], {})) for u in range(ahead)]
    history = states
    for u in range(ahead):
        frame = w.at(f"at_step + {u}" if u else "at_step", places[u], history, waiting[u])
        code, held = w.element(frame, tiling.lanes)
        history = [w.state(code), *history][: local.depth]
        w.store(frame, history[0], held)
    for name, value in reversed(list(zip(states, history, strict=True))):
        k.emit(f"{name} = {value}")
    for old, new in zip(waiting, coming, strict=True):
        for a, name in old.items():
            k.emit(f"{name} = {new[a]}")
    for v, name in carried.items():
        k.emit(f"{name} = {places[ahead][v]}")
    lines = k.scopes.pop().lines
    for line in (f"for at_step in range(0, {k.extent(course.time)}, {ahead}):", *(f"    {x}" for x in lines)):
        k.emit(line)
    grid = (-(-course.count(course.lanes) // tiling.lanes), 1, 1)
    arguments, constants = tuple(k.parameters.items()), tuple(k.constants.items())
    text = module_text(k.text(course.flat))
    return [Launch(k.name, text, grid, arguments, constants, tiling.warps, 1, (course.own,), fusion=False)]
