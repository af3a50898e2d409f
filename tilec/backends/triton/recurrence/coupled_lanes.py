"""Recurrences whose steps mix lanes, as a matrix does: earlier states are read back from the output tensor itself.

`resident`: one launch. A program owns whole sets of lanes that depend on each other, and a barrier stands between its
steps. `cooperative`: one launch of as many programs as run at once, each with a part of all lanes, and a barrier of all
of them between steps. `stepwise`: a launch for each step, over as many programs as its lanes fill. Sums that lanes
have in common (`shared_sums`) come first in each step, with a barrier or in a launch of their own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.code import python_name
from tilec.backends.common.domain import gathered
from tilec.backends.triton.emit.frame import free_of
from tilec.backends.triton.emit.kernel import Axis, Kernel, Scope, all_text, triton_type
from tilec.backends.triton.emit.scalar import compute_dtype_of
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.backends.triton.plan.lines import BARRIER, CodeLine, StoreLine, WhileLoop, assign
from tilec.backends.triton.plan.plan import Allocate, Launch, Release, Repeat, Setting, Step
from tilec.backends.triton.plan.sizes import Strides, contiguous_strides, power_of_two
from tilec.backends.triton.recurrence.shared_sums import SharedSum, Sharing, shared_sums, work
from tilec.backends.triton.recurrence.skewed_loop import SkewedLoop, step_inputs
from tilec.backends.triton.recurrence.step import FEW_SUMMED_POINTS, MOST_IN_BLOCK, Moment, StepFrame, StepWriter
from tilec.ir.index import linear
from tilec.ir.program import Access, Aggregate, walk

MOST_LANES = 1024  # lanes of a block, where nothing is summed over
SUMMED_LANES = 256  # where something is
RESIDENT_LANES = 2**14  # coupled lanes that one program may own
LAUNCH_WORK = 60_000  # points of sums that a program could go through while a kernel is launched
WAITING_WORK = 50_000  # points that a program could go through while it waits for the others
POINTS_PER_THREAD = 16  # of a block, about
LANES_PER_THREAD = 2  # where nothing is summed over
MOST_WAITING = 8  # loads that wait for their step
AHEAD = 4  # steps before the one that uses it, what other tensors hold is loaded


@dataclass(frozen=True)
class Blocks:
    """`lanes` of a block, `span` lanes that a program owns (0: it owns its block, and time is an argument), warps.
    `programs` (0: not so): as many run at once, and wait for each other after each step, so that any lanes may be a
    program's own."""

    lanes: int
    span: int
    warps: int
    programs: int = 0

    @property
    def cooperative(self) -> bool:
        return self.programs > 0


def sharing_of(loop: SkewedLoop, setting: Setting) -> Sharing:
    """The loop with what lanes of all programs share apart."""
    return shared_sums(loop, setting.device.multiprocessors, WAITING_WORK)


def choose_blocks(sharing: Sharing, setting: Setting) -> Blocks:
    """By the points that a program goes through in a step; waiting for all others costs as much as some of those."""
    loop = sharing.loop
    coupled, parallel = loop.count(loop.coupled), loop.count(loop.parallel)
    points = max([1, *(loop.count(e.bound) for e in loop.aggregates())])
    span = -(-coupled * parallel // setting.device.multiprocessors)
    if points <= FEW_SUMMED_POINTS and coupled > RESIDENT_LANES:  # a map of so many elements, before the host is back
        waits, points = span * sum(work(loop, e) for e in loop.roots) < LAUNCH_WORK, 1
    else:
        waits = points > 1 and span * points + WAITING_WORK < coupled * points
    waits = waits or bool(sharing.sums)
    if waits and setting.device.capability:
        widest = max([coupled * parallel, *(loop.count(s.variables) for s in sharing.sums)])
        programs = min(setting.device.multiprocessors, widest)
        span = -(-coupled * parallel // programs)
        parts = [(span, points), *(_part_of(s, sharing, programs) for s in sharing.sums)]
        warps = max(_part_warps(*part) for part in parts)
        used = programs if sharing.sums else -(-coupled * parallel // span)
        return Blocks(_lanes(span, points), span, warps, used)
    least = LAUNCH_WORK + span * points
    if sharing.sums or coupled > RESIDENT_LANES or points > 1 and coupled * points > least:
        few = max(MOST_LANES // 8, min(MOST_LANES, power_of_two(coupled * parallel // (4 * MULTIPROCESSORS))))
        lanes = min(power_of_two(coupled * parallel), 16 if points > 1 else few)
        return Blocks(lanes, 0, _block_warps(lanes, points, 1024 * lanes))
    sets, most = 1, SUMMED_LANES if points > 1 else MOST_LANES
    if coupled < most // 4:
        sets = max(1, min(most // 4 // coupled, -(-parallel // MULTIPROCESSORS)))
    lanes = min(power_of_two(sets * coupled), most)
    return Blocks(lanes, sets * coupled, _block_warps(lanes, points, 64 * lanes))


def _lanes(span: int, points: int) -> int:
    """Lanes of a block, of so many of a program's own, each of so many points."""
    return min(power_of_two(span), SUMMED_LANES if points > 1 else MOST_LANES)


def _part_warps(span: int, points: int) -> int:
    return _block_warps(_lanes(span, points), points, MOST_IN_BLOCK)


def _part_of(s: SharedSum, sharing: Sharing, programs: int) -> tuple[int, int]:
    """Elements of a shared sum that each program computes, and terms of each."""
    points = max(sharing.loop.count(e.bound) for e in walk(s.statement.body) if isinstance(e, Aggregate))
    return sharing.part(programs, s), points


def _block_warps(lanes: int, points: int, most: int) -> int:
    """`most`: lanes x points that are held at once."""
    if points == 1:
        return max(1, min(16, lanes // (32 * LANES_PER_THREAD)))
    points = min(lanes * power_of_two(points), most)
    return max(1, min(16, power_of_two(points // (32 * POINTS_PER_THREAD))))


def swept(sharing: Sharing, strides: Strides, int64_index: bool, blocks: Blocks) -> list[Step]:
    """Steps that compute the output."""
    loop, tensors = sharing.loop, {name: sharing.loop.types[name] for name in sharing.loop.shared}
    known = {**strides, **contiguous_strides(tensors)}
    made: list[Step] = [Allocate(name, t.shape, t.dtype) for name, t in tensors.items()]
    if blocks.span:
        made += _Sweep(sharing, known, int64_index, blocks).steps()
    else:
        parts = [_launched(s, sharing, blocks) for level in range(sharing.levels) for s in sharing.of_level(level)]
        steps = [_Sweep(sharing, known, int64_index, b, s).step() for s, b in [*parts, (None, blocks)]]
        made.append(Repeat(tuple(launch for launch, _ in steps), tuple(c for _, c in steps), loop.steps))
    return [*made, Release(tuple(tensors))] if tensors else made


def _launched(s: SharedSum, sharing: Sharing, blocks: Blocks) -> tuple[SharedSum, Blocks]:
    elements, points = _part_of(s, sharing, 1)
    lanes = min(power_of_two(elements), 16)
    return s, replace(blocks, lanes=lanes, warps=_block_warps(lanes, points, 1024 * lanes))


class TimeWalk(StepWriter):
    """Steps one after the other in a loop."""

    @abstractmethod
    def step_frame(self, *inner: frozenset[str]) -> StepFrame:
        """The frame of a step, in the loop or before it."""

    @abstractmethod
    def compute(self, frame: StepFrame) -> None:
        """The lines that compute a step and store it."""

    def between(self) -> list[CodeLine]:
        """Lines between two steps."""
        return []

    def through(self, accesses: Sequence[Access], ahead: int, steps: int = 1) -> None:
        """The loop over time, in rounds of steps. What is read at `accesses` is loaded so many steps before."""
        k, n, moving = self.kernel, self.loop.steps, frozenset((self.loop.time,))
        waiting = self.waiting(self.step_frame(), accesses, ahead)
        for u, names in enumerate(waiting):
            self.let({names[a]: text for a, text in self._loads(accesses, Moment(str(u))).items()})
        k.scopes.append(Scope())
        coming = [self._loads(accesses, Moment("at_step", ahead + u), moving) for u in range(steps)]
        for u in range(steps):
            running = self.moment(Moment("at_step", u), not u or n % steps == 0)
            frame = self.step_frame(moving)
            frame.loaded, frame.running = dict(waiting[u]), running
            self.compute(frame)
        for old, new in zip(waiting, [*waiting[steps:], *coming], strict=True):
            self.let({name: new[a] for a, name in old.items()})
        k.add(*self.between())
        k.close("at_step", f"range(0, {k.extent(self.loop.time)}{f', {steps}' if steps > 1 else ''})")

    def _loads(self, accesses: Sequence[Access], moment: Moment, *inner: frozenset[str]) -> dict[Access, str]:
        """Names of what the step of that number reads, if there is one."""
        running = self.moment(moment, False)
        frame = self.step_frame(*inner)
        frame.running = running
        for a in accesses:
            frame.loaded[a] = frame.read(a, None)
        return frame.loaded


class _Sweep(TimeWalk):
    """Of all that a step computes; stepwise of a shared sum alone, or of the states."""

    def __init__(
        self, sharing: Sharing, strides: Strides, int64_index: bool, blocks: Blocks, part: SharedSum | None = None
    ):
        loop, name = sharing.loop, sharing.loop.own if part is None else part.statement.output
        kernel = Kernel(python_name(name) + "_kernel", loop.space(), loop.types, strides, int64_index)
        super().__init__(kernel, loop)
        self.sharing, self.part = sharing, part
        self.tiling, self.warps, self.together = blocks, blocks.warps, blocks.cooperative
        kernel.constants["BM"] = blocks.lanes
        self.programs = blocks.programs or -(-loop.count(loop.lanes) // max(blocks.span, 1))
        self.program = kernel.program()
        self.moving = frozenset((loop.time,))
        self.arrived = f"{loop.own}.arrived"

    def steps(self) -> list[Step]:
        loop, blocks = self.loop, self.tiling
        if self.sharing.sums:
            self._in_turn()
        elif blocks.span <= blocks.lanes:
            self._lanes("tl.arange(0, BM)")
            accesses = [a for a in step_inputs(loop, loop.roots, lambda e: False) if loop.time in free_of(a)]
            accesses = [a for a in accesses if not any(gathered(linear(i)) for i in a.index)]
            self.through(accesses, max(1, min(AHEAD, MOST_WAITING // max(len(accesses), 1), loop.steps)))
        else:
            self.kernel.scopes.append(Scope())
            self.moment(Moment("at_step"), True)
            self.kernel.scopes.append(Scope())
            self._lanes("lanes_at + tl.arange(0, BM)")
            inner = frozenset(("row", "lane", *loop.lanes))
            self.compute(self.step_frame(self.moving, inner))
            self.kernel.close("lanes_at", f"range(0, {self._span()}, BM)")
            self.kernel.add(*self.between())
            self.kernel.close("at_step", f"range(0, {self.kernel.extent(loop.time)})")
        launch = self._launch(self.programs)
        if not blocks.cooperative:
            return [launch]
        return [Allocate(self.arrived, (1,), "int32", 0), launch, Release((self.arrived,))]

    def step(self) -> tuple[Launch, str]:
        """The launch of a step, and its argument that says which."""
        k = self.kernel
        counter = k.number("moment", "moment", 0, False)
        self.moment(Moment(counter), True)
        variables = self._order() if self.part is None else self.part.variables
        self._decode(f"{self.program} * BM + tl.arange(0, BM)", variables, [])
        self._computed(self.part, self.step_frame())
        programs = -(-self.loop.count(variables) // self.tiling.lanes)
        return self._launch(programs), counter

    def _in_turn(self) -> None:
        """The loop over time, in which all programs compute their parts of what is shared, level by level, and then
        their lanes, and wait for each other after each."""
        k, sharing, blocks = self.kernel, self.sharing, self.tiling
        k.scopes.append(Scope())
        self.moment(Moment("at_step"), True)
        phases: list[list[SharedSum | None]] = [[*sharing.of_level(level)] for level in range(sharing.levels)]
        phases.append([None])
        for phase, parts in enumerate(phases):
            for part in parts:
                self._own_part(part, blocks)
            k.add(*self._waits(phase, len(phases)))
        k.close("at_step", f"range(0, {k.extent(self.loop.time)})")

    def _own_part(self, part: SharedSum | None, blocks: Blocks) -> None:
        k = self.kernel
        variables = self._order() if part is None else part.variables
        span = self.sharing.part(self.programs, part)
        axis = "row" if part is None else k.names.fresh("place")
        block = "BM" if part is None else k.names.fresh("BP")
        lanes = blocks.lanes if part is None else _lanes(*_part_of(part, self.sharing, self.programs))
        k.constants[block] = lanes
        self.blocks[axis] = block
        own = k.number(("span", axis), "span", span)
        whole, depth = span <= lanes, 0 if span <= lanes else None
        lane = k.names.fresh("lane")
        if not whole:
            first = k.names.fresh("lanes_at")
            k.scopes.append(Scope())
        lines = k.scopes[0] if whole else k.scopes[-1]
        lines.lines.append(assign(lane, f"tl.arange(0, {block})" if whole else f"{first} + tl.arange(0, {block})"))
        lines.lines.append(assign(axis, f"{self.program} * {own} + {lane}"))
        total = k.count([v for v in variables if k.space.largest(v) > 1])
        tail = "row_in" if part is None else k.names.fresh(f"{axis}_in")
        lines.lines.append(assign(tail, f"({lane} < {own}) & ({axis} < {total})"))
        k.decode(Axis(axis, tuple(variables), block), depth)
        inner = [self.moving] if whole else [self.moving, frozenset((axis, lane, *variables))]
        self._computed(part, self.step_frame(*inner, axis=axis, tail=tail))
        if not whole:
            k.close(first, f"range(0, {own}, {block})")

    def step_frame(self, *inner: frozenset[str], axis: str = "row", tail: str = "row_in") -> StepFrame:
        frame = self.frame([axis], {axis: tail}, inner, None)
        if self.tiling.cooperative:  # what other multiprocessors have stored is not in this one's cache
            frame.shared = ', cache_modifier=".cg"'
        return frame

    def _computed(self, part: SharedSum | None, frame: StepFrame) -> None:
        """The lines that compute and store a part of a step."""
        if part is None:
            return self.compute(frame)
        k, s = self.kernel, part.statement
        dtype, block = self.loop.types[s.output].dtype, self.blocks[frame.axes[0]]
        code = self.evaluator(frame, (s.body,), k.constants[block]).text(s.body, compute_dtype_of(dtype))
        value = f"({code}).to({triton_type(dtype)})"
        mask = f"tl.broadcast_to({all_text(frame.store_tests())}, ({block},))"
        k.store(frame.element_address(s), f"tl.broadcast_to({value}, ({block},))", mask)

    def compute(self, frame: StepFrame) -> None:
        code, compute_dtype = self.element(frame, self.tiling.lanes)
        self.kernel.assign("result", code)
        self.store(frame, "tl.broadcast_to(result, (BM,))", compute_dtype)

    def between(self) -> list[CodeLine]:
        return self._waits(0, 1)

    def _waits(self, phase: int, phases: int) -> list[CodeLine]:
        """Lines that wait until all lanes have come to the end of that phase of a step."""
        if not self.tiling.cooperative:
            return [BARRIER]
        arrived = self.kernel.pointer(self.arrived)
        counted = StoreLine(arrived, "1", None, "atomic_add", ', sem="release"')
        passed = "at_step + 1" if phases == 1 else f"at_step * {phases} + {phase + 1}"
        wait = WhileLoop(f'tl.atomic_add({arrived}, 0, sem="acquire") < ({passed}) * tl.num_programs(0)')
        return [BARRIER, counted, wait, BARRIER]

    # lanes

    def _span(self) -> str:
        return self.kernel.number("span", "span", self.tiling.span)

    def _order(self) -> tuple[str, ...]:
        """All lanes in the order of their positions. Where a program has a part of a set, sets stand side by side in
        it: what coupled lanes weigh their sums with is then read by few programs."""
        parallel, coupled = self.loop.parallel, self.loop.coupled
        return (*parallel, *coupled) if self.tiling.span and not self.tiling.cooperative else (*coupled, *parallel)

    def _lanes(self, lane: str) -> None:
        """A block of the program's own lanes. Parallel lanes have one value where a program owns one set of coupled
        ones."""
        k, loop = self.kernel, self.loop
        k.assign("lane", lane)
        if self.tiling.span == loop.count(loop.coupled) and not self.tiling.cooperative:
            batch = k.line("batch", f"{self.program} + tl.full((), 0, tl.int32)", 0)
            k.decode(Axis(batch, loop.parallel, None), 0)
            self._decode("lane", loop.coupled, [])
        else:
            place = k.line("lanes_from", f"{self.program} * {self._span()}", 0)
            self._decode(f"{place} + lane", self._order(), [f"(lane < {self._span()})"])

    def _decode(self, position: str, variables: Sequence[str], tests: Sequence[str]) -> None:
        k = self.kernel
        k.assign("row", position)
        total = k.count([v for v in variables if k.space.largest(v) > 1])
        k.assign("row_in", f"{' & '.join([*tests, f'(row < {total})'])}")
        k.decode(Axis("row", tuple(variables), "BM"))

    def _launch(self, programs: int) -> Launch:
        fusion, cooperative = bool(self.sharing.sums or self.loop.aggregates()), self.tiling.cooperative
        grid, warps = (programs, 1, 1), self.tiling.warps
        return self.kernel.launch(grid, warps, 1, self.loop.flat, fusion=fusion, cooperative=cooperative)
