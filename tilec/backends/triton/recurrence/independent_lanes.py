"""Recurrences in which each lane reads itself alone: which these are, and how they are tiled.

A lane may move on its way: `H[t, i] = B[t, i] + H[t - 1, (i - 1) % D]` is the element i = w + t (modulo D) of lane w,
and without the modulo too, where what is read outside is `init`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilec.backends.triton.emit.frame import free_of
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.backends.triton.plan.sizes import power_of_two
from tilec.backends.triton.recurrence.skewed_loop import SkewedLoop, step_inputs
from tilec.ir.functions import ZERO, is_zero
from tilec.ir.index import Affine, linear
from tilec.ir.program import Access, Call, Expr, Int, Pad, Statement, self_reads, walk
from tilec.ir.rational import Fraction

MOST_STEPS_BACK = 16  # steps back that registers hold
MOST_AHEAD = 32  # steps whose loads are in flight together
WAITING_REGISTERS = 64  # values per lane that may wait for their step
MOST_TOUCHED = 100  # loads and stores of a round: Triton's compile time grows with the cube of their number
MOST_ROUND_OPERATORS = 800  # operators of a round
LONGEST_TURN = 2**31 // MOST_AHEAD - 1  # lanes that may turn: places several steps ahead are 32-bit numbers


@dataclass(frozen=True)
class Local:
    """`back`: how many steps ago each read's state was computed. `circular_shifts`: how far each moving lane moves in a
    step. `start`: what registers hold at first, as an expression at the first step, where no read need ask whether it
    is inside: only what lies before the first step is read outside. None elsewhere. `kept`: the first and the last time
    whose states are stored, None where none are. `epilogue`: statements over the loop's variables whose elements are
    computed beside the state's. `totals`: those with an element for each lane, a sum over time or a value of one."""

    loop: SkewedLoop
    back: Mapping[Access, int]
    circular_shifts: Mapping[str, int]
    start: Expr | None
    kept: tuple[int, int] | None
    epilogue: tuple[Statement, ...] = ()
    totals: tuple[Statement, ...] = ()

    @property
    def roots(self) -> tuple[Expr, ...]:
        bodies = (e for s in (*self.epilogue, *self.totals) for e in (s.body, *s.guards))
        return (*self.loop.roots, *bodies)

    @property
    def depth(self) -> int:
        return max(self.back.values())

    def step_inputs(self) -> list[Access]:
        """Elements of other tensors that a step and its epilogue read."""

        def is_known(e: Pad) -> bool:
            return e.access in self.back and self.start is not None

        return step_inputs(self.loop, self.roots, is_known)

    def repeated_inputs(self, accesses: Sequence[Access]) -> dict[Access, Access]:
        """Elements that the step before has read already, each with the access by which it did."""
        loop = self.loop
        before = {loop.time: Affine.variable(loop.time) + (1 if loop.falling else -1)}
        for v, shift in self.circular_shifts.items():
            back = Affine.variable(v) - shift
            before[v] = Affine.of([(Call("mod", (back.to_expr(), Int(loop.extent[v]))), 1)])
        inner = {x for a in accesses for i in a.index for x in walk(i)}
        plain = [a for a in accesses if self.moves(a) and not inner & {a, *accesses} and a not in inner]
        read = {(b.tensor, tuple(_turned(linear(i).substitute(before)) for i in b.index)): b for b in plain}
        found: dict[Access, Access] = {}
        for a in plain:
            b = read.get((a.tensor, tuple(_turned(linear(i)) for i in a.index)))
            if b is not None and b not in found and a not in found.values() and a != b:
                found[a] = b
        return found

    def moves(self, access: Access) -> bool:
        """Whether an element changes from step to step."""
        return bool(free_of(access) & {self.loop.time, *self.circular_shifts})


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
    if closed and all(map(starts_at_zero, values)):
        start = ZERO
    elif closed and set(back.values()) == {1} and len(values) == 1:
        start = values.pop()
    whole = loop.low[loop.time], loop.low[loop.time] + loop.steps - 1
    return Local(loop, back, {v: c for v, c in circular_shifts.items() if c}, start, whole)


def starts_at_zero(start: Expr) -> bool:
    """Whether a first state is zero, or false."""
    match start:
        case Call("bool", (x,)):
            return starts_at_zero(x)
    return is_zero(start)


def _moved(form: Affine, v: str, loop: SkewedLoop) -> tuple[int, bool] | None:
    """By how much a form differs from the variable, and whether it wraps round at its range's ends."""
    n, low = loop.extent[v], loop.low[v]
    match form.terms:
        case ((Call("mod", (e, Int(size))), c),) if c == 1 and not form.constant and size == n and not low:
            form, wraps = linear(e), True
        case _:
            wraps = False
    shift = form - Affine.variable(v)
    return None if shift.terms or shift.constant.denominator > 1 else (int(shift.constant), wraps)


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
    accesses = local.step_inputs()
    repeated_inputs = local.repeated_inputs(accesses)
    carried = [a for a in accesses if local.moves(a) and a not in repeated_inputs]
    words = sum(2 if loop.types[a.tensor].dtype in ("float64", "int64") else 1 for a in carried)
    operators = sum(isinstance(e, Call) for e in walk(*local.roots))
    touched = max(1, len(carried) + len(local.epilogue) + (local.kept is not None))
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
