"""Steps that mix lanes: earlier states are read back from the output tensor itself.

`resident`: one launch. A program owns whole sets of lanes that depend on each other, and a barrier stands between its
steps. `stepwise`: a launch for each step, over as many programs as its lanes fill.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilec.backends.triton.device_text import module_text
from tilec.backends.triton.kernel import Axis, Kernel, Scope
from tilec.backends.triton.plan import Launch, Repeat, Step, python_name
from tilec.backends.triton.recurrence_course import Course
from tilec.backends.triton.recurrence_step import StepFrame, StepWriter
from tilec.backends.triton.sizes import power_of_two

MOST_LANES = 1024  # lanes of a block, where nothing is summed over
SUMMED_LANES = 256  # where something is
RESIDENT_LANES = 2**14  # mixed lanes that one program may own
RESIDENT_WORK = 2**18  # points of a step that one program may go through
PROGRAMS = 132  # enough to fill a device
POINTS_PER_THREAD = 16  # of a block, about


@dataclass(frozen=True)
class Blocks:
    """`lanes` of a block, `span` lanes that a program owns (0: it owns its block, and time is an argument), warps."""

    lanes: int
    span: int
    warps: int


def choose_blocks(course: Course) -> Blocks:
    mixed, apart = course.count(course.mixed), course.count(course.apart)
    points = max([1, *(course.count(e.bound) for e in course.aggregates())])
    most = SUMMED_LANES if points > 1 else MOST_LANES
    if mixed > RESIDENT_LANES or mixed * points > RESIDENT_WORK:
        lanes = min(power_of_two(mixed * apart), 16 if points > 1 else most)
        return Blocks(lanes, 0, _warps(lanes * min(power_of_two(points), 1024)))
    sets = 1
    if mixed < most // 4:
        sets = max(1, min(most // 4 // mixed, -(-apart // PROGRAMS)))
    lanes = min(power_of_two(sets * mixed), most)
    return Blocks(lanes, sets * mixed, _warps(lanes * min(power_of_two(points), 64)))


def _warps(points: int) -> int:
    return max(1, min(16, power_of_two(points // (32 * POINTS_PER_THREAD))))


def swept(course: Course, strides: Mapping[str, tuple[int, ...]], wide: bool, blocks: Blocks) -> list[Step]:
    """Steps that compute the output."""
    k = Kernel(python_name(course.own) + "_kernel", course.space(), course.types, strides, wide)
    writer = StepWriter(k, course)
    k.constants["BM"] = blocks.lanes
    integer = "tl.int64" if wide else "tl.int32"
    program = "tl.program_id(0)" + (".to(tl.int64)" if wide else "")
    tails = {"row": "row_in"}
    lanes = frozenset(("row", *course.lanes))
    if not blocks.span:
        counter = k.number("moment", "moment", 0, False)
        _bind_time(k, course, counter, integer)
        _rows(k, course, f"{program} * BM + tl.arange(0, BM)", [])
        _step(writer, writer.frame(["row"], tails, ()), blocks)
        programs = -(-course.count(course.lanes) // blocks.lanes)
        return [Repeat(_launch(k, course, programs, blocks), counter, course.steps)]
    span = k.number("span", "span", blocks.span)
    k.emit(f"lanes_from = {program} * {span}")
    single = blocks.span <= blocks.lanes
    if single:
        k.emit("lane = tl.arange(0, BM)")
        _rows(k, course, "lanes_from + lane", [f"(lane < {span})"])
    moving = frozenset((course.time,))
    k.scopes.append(Scope())
    _bind_time(k, course, "at_step", integer)
    if single:
        _step(writer, writer.frame(["row"], tails, (moving,)), blocks)
    else:
        k.scopes.append(Scope())
        k.emit("lane = lanes_at + tl.arange(0, BM)")
        _rows(k, course, "lanes_from + lane", [f"(lane < {span})"])
        _step(writer, writer.frame(["row"], tails, (moving, lanes)), blocks)
        _close(k, f"for lanes_at in range(0, {span}, BM):")
    k.emit("tl.debug_barrier()")
    _close(k, f"for at_step in range(0, {k.extent(course.time)}):")
    return [_launch(k, course, -(-course.count(course.lanes) // blocks.span), blocks)]


def _bind_time(k: Kernel, course: Course, counter: str, integer: str) -> None:
    low, n = k.low(course.time), k.extent(course.time)
    place = f"({n} - 1 - {counter})" if course.falling else counter
    text = place if low == "0" else f"{low} + {place}"
    k.emit(f"now = tl.full((), 0, {integer}) + {text}")
    k.value_of[course.time] = "now"


def _rows(k: Kernel, course: Course, position: str, tests: list[str]) -> None:
    """The block of lanes at this position, decoded."""
    k.emit(f"row = {position}")
    total = k.count([v for v in course.lanes if k.space.largest(v) > 1])
    k.emit(f"row_in = {' & '.join([*tests, f'(row < {total})'])}")
    k.decode(Axis("row", course.lanes, "BM"))


def _step(writer: StepWriter, frame: StepFrame, blocks: Blocks) -> None:
    code, held = writer.element(frame, blocks.lanes)
    writer.kernel.emit(f"result = {code}")
    writer.store(frame, "tl.broadcast_to(result, (BM,))", held)


def _close(k: Kernel, header: str) -> None:
    """End the innermost scope, a loop."""
    lines = k.scopes.pop().lines
    for line in (header, *(f"    {x}" for x in lines)):
        k.emit(line)


def _launch(k: Kernel, course: Course, programs: int, blocks: Blocks) -> Launch:
    k.constants = {**{"BM": k.constants["BM"]}, **k.constants}
    return Launch(
        k.name,
        module_text(k.text(course.flat)),
        (programs, 1, 1),
        tuple(k.parameters.items()),
        tuple(k.constants.items()),
        blocks.warps,
        1,
        (course.own,),
        fusion=bool(course.aggregates()),
    )
