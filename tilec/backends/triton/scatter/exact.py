"""Scatters whose result is the same in whatever order points are combined: sums of integers, or of one whole number so
often that floats hold it, greatest and least values.

Each point is added to its element by an atomic operation, which for these is as deterministic as sorting: floats are
compared as integers, zeros and NaN have one form each. Where all terms are one number and elements are few (a
histogram), programs count their share of the points on the chip first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilec.backends.common.code import literal, python_name
from tilec.backends.common.domain import Condition
from tilec.backends.common.scalars import identity
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Axis, Kernel, Scope, all_text, triton_type
from tilec.backends.triton.emit.scalar import TritonScalars
from tilec.backends.triton.plan.device_info import PLANNED_FOR
from tilec.backends.triton.plan.lines import RELAXED, CodeLine, If, StoreLine, assign
from tilec.backends.triton.plan.plan import Allocate, Launch, Step
from tilec.backends.triton.plan.sizes import power_of_two
from tilec.backends.triton.scatter.runs import Runs
from tilec.ir.index import Affine
from tilec.ir.program import Call, Float, Int, Statement
from tilec.ir.types import FLOATS, is_floating

ATOMICS = {  # the operation of each aggregation, and the types that it has
    "sum": ("atomic_add", ("int64", "float32", "float64")),
    "max": ("atomic_max", ("int32", "int64", "float32", "float64")),
    "min": ("atomic_min", ("int32", "int64", "float32", "float64")),
}
_WIDEST, _WIDEST_OF_FLOATS = 32, 8  # columns beyond which sorting moves less than an atomic operation for each element
FEWEST_ADDED = 2**14  # floats: fewer are soon sorted
FEWEST_SUMMED = 512  # elements: fewer are waited for, where each point is added by itself
MOST_BINS = 2048  # that are counted on the chip
WHOLE_NUMBERS = {"float32": 2**24, "float64": 2**53}  # that floats hold
BLOCK_POINTS = 1024  # elements of a program's block
COUNTED_POINTS = 4096
PROGRAMS = 8 * PLANNED_FOR.multiprocessors  # that count


def exact_steps(runs: Runs, place: Affine, wanted: Sequence[Condition], every: bool) -> list[Step] | None:
    """Steps that combine every point into the output at the element, or row of columns, `place`, where it is `wanted`;
    None where sorting is the way. The terms are those of the statement as written. `every`: as many points would be
    sorted."""
    s, out = runs.statement, runs.view.types[runs.statement.output]
    operation, dtypes = ATOMICS.get(s.aggregation, ("", ()))
    adds, floating = s.aggregation == "sum", is_floating(out.dtype)
    number = _number(s)
    if adds and floating and (number is None or abs(number) * runs.points > WHOLE_NUMBERS.get(out.dtype, 0)):
        return None
    widest = _WIDEST_OF_FLOATS if floating and not adds else _WIDEST
    if out.dtype not in dtypes or s.default is not None or runs.width > widest:
        return None
    if floating and (runs.points < FEWEST_ADDED or not every):
        return None
    counted = runs.width == 1 and adds and number is not None and runs.count <= MOST_BINS
    if not counted and runs.count < FEWEST_SUMMED:
        return None
    filled = Allocate(s.output, out.shape, out.dtype, identity(s.aggregation, out.dtype))
    return [filled, _counts(runs, place, wanted) if counted else _each(runs, place, wanted, operation)]


def _number(s: Statement) -> int | None:
    """The whole number that each term is."""
    match s.body.args[0] if isinstance(s.body, Call) and s.body.function in FLOATS else s.body:
        case Int(value) | Float(value) if value == value // 1:
            return int(value)
    return None


def _each(runs: Runs, place: Affine, wanted: Sequence[Condition], operation: str) -> Launch:
    """A block of points x columns a program."""
    s, k = runs.statement, point_kernel(runs, "_each")
    dtype = runs.view.types[s.output].dtype
    terms_of_points(k, runs, place, wanted, dtype)
    pointer = k.pointer(s.output)
    if is_floating(dtype) and s.aggregation != "sum":
        k.assign("value", f"one_form_(value, {operation == 'atomic_min'})")
        k.assign("known", f"tl.load({pointer} + element, mask=valid, other=0)")
        k.assign("valid", f"valid & ~(value {'<' if operation == 'atomic_max' else '>'} known)")
    else:
        nothing = literal(identity(s.aggregation, dtype))
        k.assign("value", f"tl.where(valid, value, {nothing})")
        common = assign("common", f"tl.{s.aggregation}(tl.where(here, value, {nothing}), 0)")
        own, some = f"{pointer} + pivot * {runs.width} + col", f"col_in & (common != {nothing})"
        stored = StoreLine(own, "common", some, operation, RELAXED)
        combined_at_pivot(k, runs, common, stored)
    k.store(f"{pointer} + element", "value", "valid", operation, RELAXED)
    return point_launch(k, runs)


def combined_at_pivot(k: Kernel, runs: Runs, *lines: CodeLine) -> None:
    """Lines for a block in which several points have one `place`, as atomic operations at an element wait for each
    other: `lines` for the points `here`, all of the block at one such place. Others are `valid` after that."""
    count = k.number("count", "count", runs.count, False)
    k.assign("pivot", f"common_(place, {count}, BM)")
    here, others = assign("here", "valid & (place == pivot)"), assign("valid", "valid & (place != pivot)")
    k.add(If("pivot >= 0", (here, *lines, others)))


def terms_of_points(k: Kernel, runs: Runs, place: Affine | None, wanted: Sequence[Condition], dtype: str) -> None:
    """Lines that compute what a block of points x columns adds: each `value`, whether it is `valid`, and, where there
    is a `place` to go to, the `element` of it."""
    s = runs.statement
    k.constants |= {"BM": _points_of(runs), "BN": BLOCK_POINTS // _points_of(runs)}
    k.assign("row", f"{k.program()} * BM + tl.arange(0, BM)")
    k.assign("row_in", f"row < {k.count(runs.keyed)}")
    k.decode(Axis("row", runs.keyed, "BM"))
    k.assign("col", "tl.arange(0, BN)")
    k.assign("col_in", f"col < {k.count(runs.columns)}")
    k.decode(Axis("col", runs.columns, "BN"))
    frame = Frame(k, ["row", "col"], {"row": "row_in", "col": "col_in"})
    evaluator, valid = _valid(frame, runs, wanted)
    kind = triton_type(dtype)
    value = evaluator.tensor(evaluator.value(s.body), dtype)
    at = "" if place is None else f"({frame.index(place)}).to(tl.int64)"
    k.assign("value", f"tl.broadcast_to({value}, (BM, BN)).to({kind})")
    k.assign("valid", f"tl.broadcast_to({valid}, (BM, BN))")
    if at:
        k.assign("place", f"tl.broadcast_to({at}, (BM, 1))")
        k.assign("element", f"place * {runs.width} + col[None, :]")


def _points_of(runs: Runs) -> int:
    """A program's."""
    return BLOCK_POINTS // min(power_of_two(runs.width), BLOCK_POINTS)


def point_programs(runs: Runs) -> int:
    return -(-runs.points // _points_of(runs))


def point_launch(k: Kernel, runs: Runs) -> Launch:
    return _launch(k, runs, point_programs(runs))


def _counts(runs: Runs, place: Affine, wanted: Sequence[Condition]) -> Launch:
    """A share of the points a program, counted on the chip and added at the end."""
    s, k = runs.statement, point_kernel(runs, "_counts")
    programs = min(PROGRAMS, -(-runs.points // COUNTED_POINTS))
    share = -(-runs.points // (programs * COUNTED_POINTS)) * COUNTED_POINTS
    k.constants = {"BM": COUNTED_POINTS, "BINS": power_of_two(runs.count)}
    part = k.number("share", "share", share)
    origin = k.line("origin", f"{k.program()} * {part}")
    limit = k.line("limit", f"tl.minimum({origin} + {part}, {k.count(runs.keyed)})")
    k.assign("total", "tl.zeros((BINS,), tl.int32)")
    k.scopes.append(Scope())
    k.assign("row", "first + tl.arange(0, BM)")
    k.assign("row_in", f"row < {limit}")
    k.decode(Axis("row", runs.keyed, "BM"))
    frame = Frame(k, ["row"], {"row": "row_in"}, frozenset((*runs.keyed, "row")))
    _, valid = _valid(frame, runs, wanted)
    k.assign("valid", valid)
    k.assign("place", f"tl.where(valid, {frame.index(place)}, 0).to(tl.int32)")
    k.assign("total", "tl.histogram(place, BINS, mask=valid)", "+=")
    k.close("first", f"range({origin}, {limit}, BM)")
    k.assign("col", "tl.arange(0, BINS)")
    count = k.number("count", "count", runs.count, False)
    added = f"total.to({triton_type(runs.view.types[s.output].dtype)}) * {_number(s)}"
    k.store(f"{k.pointer(s.output)} + col", added, f"col < {count}", "atomic_add", RELAXED)
    return _launch(k, runs, programs)


def _valid(frame: Frame, runs: Runs, wanted: Sequence[Condition]) -> tuple[TritonScalars, str]:
    """What evaluates the terms, and the text of the test that a point counts."""
    s = runs.statement
    evaluator = TritonScalars(frame, *s.roots)
    tests = [*(frame.spread(t, a) for a, t in frame.tails.items()), *frame.tests(wanted)]
    return evaluator, all_text([*tests, *map(evaluator.test, s.guards)])


def point_kernel(runs: Runs, suffix: str) -> Kernel:
    k = Kernel("", runs.space, runs.view.types, runs.view.strides, runs.int64_index, powers=True)
    k.name = k.names.fresh(python_name(runs.statement.output) + suffix)
    return k


def _launch(k: Kernel, runs: Runs, programs: int) -> Launch:
    s = runs.statement
    assert math.prod(runs.view.types[s.output].shape)
    return k.launch((programs, 1, 1), 4, 2, s)
