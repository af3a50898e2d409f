"""Recurrences whose steps mix lanes, as a matrix does: earlier states are read back from the output tensor itself.

`resident`: one launch. A program owns whole sets of lanes that depend on each other, and a barrier stands between its
steps. `cooperative`: one launch of as many programs as run at once, each with a part of all lanes, and a barrier of all
of them between steps. `stepwise`: a launch for each step, over as many programs as its lanes fill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilec.backends.common.code import python_name
from tilec.backends.common.domain import gathered
from tilec.backends.triton.emit.frame import free_of
from tilec.backends.triton.emit.kernel import Axis, Kernel, Scope
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.backends.triton.plan.lines import BARRIER, WhileLoop
from tilec.backends.triton.plan.plan import Allocate, Launch, Release, Repeat, Setting, Step
from tilec.backends.triton.plan.sizes import Strides, power_of_two
from tilec.backends.triton.recurrence.skewed_loop import SkewedLoop, step_inputs
from tilec.backends.triton.recurrence.step import MOST_IN_BLOCK, Moment, StepFrame, StepWriter
from tilec.ir.index import linear
from tilec.ir.program import Access

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
    `cooperative`: the programs wait for each other after each step, so that any lanes may be a program's own."""

    lanes: int
    span: int
    warps: int
    cooperative: bool = False


def choose_blocks(loop: SkewedLoop, setting: Setting) -> Blocks:
    """By the points that a program goes through in a step; waiting for all others costs as much as some of those."""
    coupled, parallel = loop.count(loop.coupled), loop.count(loop.parallel)
    points = max([1, *(loop.count(e.bound) for e in loop.aggregates())])
    most = SUMMED_LANES if points > 1 else MOST_LANES
    span = -(-coupled * parallel // setting.device.multiprocessors)
    if points > 1 and setting.device.capability and span * points + WAITING_WORK < coupled * points:
        lanes = min(power_of_two(span), most)
        return Blocks(lanes, span, _warps(lanes * min(power_of_two(points), MOST_IN_BLOCK // lanes)), cooperative=True)
    least = LAUNCH_WORK + span * points
    if coupled > RESIDENT_LANES or points > 1 and coupled * points > least:
        lanes = min(power_of_two(coupled * parallel), 16 if points > 1 else most)
        return Blocks(lanes, 0, _warps(lanes * min(power_of_two(points), 1024)))
    sets = 1
    if coupled < most // 4:
        sets = max(1, min(most // 4 // coupled, -(-parallel // MULTIPROCESSORS)))
    lanes = min(power_of_two(sets * coupled), most)
    alone = max(1, min(16, lanes // (32 * LANES_PER_THREAD)))
    return Blocks(lanes, sets * coupled, alone if points == 1 else _warps(lanes * min(power_of_two(points), 64)))


def _warps(points: int) -> int:
    return max(1, min(16, power_of_two(points // (32 * POINTS_PER_THREAD))))


def swept(loop: SkewedLoop, strides: Strides, int64_index: bool, blocks: Blocks) -> list[Step]:
    """Steps that compute the output."""
    return _Sweep(loop, strides, int64_index, blocks).steps()


class _Sweep(StepWriter):
    def __init__(self, loop: SkewedLoop, strides: Strides, int64_index: bool, blocks: Blocks):
        kernel = Kernel(python_name(loop.own) + "_kernel", loop.space(), loop.types, strides, int64_index)
        super().__init__(kernel, loop)
        self.tiling = blocks
        kernel.constants["BM"] = blocks.lanes
        self.program = kernel.program()
        self.moving = frozenset((loop.time,))
        self.arrived = f"{loop.own}.arrived"

    def steps(self) -> list[Step]:
        loop, blocks = self.loop, self.tiling
        if not blocks.span:
            return self._stepwise()
        if blocks.span <= blocks.lanes:
            self._lanes("tl.arange(0, BM)")
            self._through()
        else:
            self.kernel.scopes.append(Scope())
            self.moment(Moment("at_step"), True)
            self.kernel.scopes.append(Scope())
            self._lanes("lanes_at + tl.arange(0, BM)")
            inner = frozenset(("row", "lane", *loop.lanes))
            self._step(self._frame(self.moving, inner))
            self.kernel.close("lanes_at", f"range(0, {self._span()}, BM)")
            self._next()
        launch = self._launch(-(-loop.count(loop.lanes) // blocks.span))
        if not blocks.cooperative:
            return [launch]
        return [Allocate(self.arrived, (1,), "int32", 0), launch, Release((self.arrived,))]

    def _stepwise(self) -> list[Step]:
        k, loop = self.kernel, self.loop
        counter = k.number("moment", "moment", 0, False)
        self.moment(Moment(counter), True)
        self._decode(f"{self.program} * BM + tl.arange(0, BM)", self._order(), [])
        self._step(self._frame())
        programs = -(-loop.count(loop.lanes) // self.tiling.lanes)
        return [Repeat(self._launch(programs), counter, loop.steps)]

    def _through(self) -> None:
        """The loop over time for lanes in one block. What a step reads of other tensors, sums aside, is loaded a few
        steps before."""
        k, loop = self.kernel, self.loop
        accesses = [a for a in step_inputs(loop, loop.roots, lambda e: False) if loop.time in free_of(a)]
        accesses = [a for a in accesses if not any(gathered(linear(i)) for i in a.index)]
        ahead = max(1, min(AHEAD, MOST_WAITING // max(len(accesses), 1), loop.steps))
        waiting = self.waiting(self._frame(), accesses, ahead)
        for u, names in enumerate(waiting):
            self.let({names[a]: text for a, text in self._loads(accesses, Moment(str(u))).items()})
        k.scopes.append(Scope())
        coming = self._loads(accesses, Moment("at_step", ahead), self.moving)
        self.moment(Moment("at_step"), True)
        frame = self._frame(self.moving)
        frame.loaded = dict(waiting[0])
        self._step(frame)
        for old, new in zip(waiting, [*waiting[1:], coming], strict=True):
            self.let({name: new[a] for a, name in old.items()})
        self._next()

    def _loads(self, accesses: Sequence[Access], moment: Moment, *inner: frozenset[str]) -> dict[Access, str]:
        """Names of what the step of that number reads, if there is one."""
        running = self.moment(moment, False)
        frame = self._frame(*inner)
        frame.running = running
        for a in accesses:
            frame.loaded[a] = frame.read(a, None)
        return frame.loaded

    def _frame(self, *inner: frozenset[str]) -> StepFrame:
        frame = self.frame(["row"], {"row": "row_in"}, inner, None)
        if self.tiling.cooperative:  # what other multiprocessors have stored is not in this one's cache
            frame.shared = ', cache_modifier=".cg"'
        return frame

    def _step(self, frame: StepFrame) -> None:
        code, compute_dtype = self.element(frame, self.tiling.lanes)
        self.kernel.assign("result", code)
        self.store(frame, "tl.broadcast_to(result, (BM,))", compute_dtype)

    def _next(self) -> None:
        """End the loop over time: what a step has stored, the next one reads."""
        self.kernel.add(BARRIER)
        if self.tiling.cooperative:
            arrived = self.kernel.pointer(self.arrived)
            self.kernel.store(arrived, "1", call="atomic_add", how=', sem="release"')
            waits = f'tl.atomic_add({arrived}, 0, sem="acquire") < (at_step + 1) * tl.num_programs(0)'
            self.kernel.add(WhileLoop(waits))
            self.kernel.add(BARRIER)
        self.kernel.close("at_step", f"range(0, {self.kernel.extent(self.loop.time)})")

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
        """Lanes from their position."""
        k = self.kernel
        k.assign("row", position)
        total = k.count([v for v in variables if k.space.largest(v) > 1])
        k.assign("row_in", f"{' & '.join([*tests, f'(row < {total})'])}")
        k.decode(Axis("row", tuple(variables), "BM"))

    def _launch(self, programs: int) -> Launch:
        fusion, cooperative = bool(self.loop.aggregates()), self.tiling.cooperative
        grid, warps = (programs, 1, 1), self.tiling.warps
        return self.kernel.launch(grid, warps, 1, self.loop.flat, fusion=fusion, cooperative=cooperative)
