"""A stable sort of points by position: a radix sort by blocks, the same every time.

Each pass counts the digits of each block of points, adds the counts up by digit and then by block, and moves the points
of each block, sorted by digit on the chip, to where its digits begin. Few points are one block, sorted as they are.
Positions that are in order already, as edges of graphs often are, are found by the first pass and only copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilec.backends.common.code import python_name
from tilec.backends.triton.emit.device_text import kernel_file
from tilec.backends.triton.plan.device_info import TWO_A_MULTIPROCESSOR
from tilec.backends.triton.plan.lines import BARRIER, RELAXED, CodeLine, ForLoop, If, StoreLine, assign
from tilec.backends.triton.plan.plan import Allocate, Launch, Pointer, Release, Step
from tilec.backends.triton.plan.sizes import power_of_two
from tilec.backends.triton.plan.source import PROGRAM, KernelFunction

ONE_BLOCK = 2048  # points that a program sorts whole
SORTED_TOGETHER = 1024  # points of a block of several
MOST_BITS = 11  # of a digit: with more, a block has more digits than points
FEWEST_BITS = 8  # with fewer, passes cost as much
FEW_OF_A_WARP, MANY_OF_A_WARP = 128, 256  # points: programs that all run at once wait, those that do not compute
SEARCHED = 256  # positions whose first points a program looks for
BLOCKS_AT_ONCE, DIGITS_BESIDE = 256, 8  # counts that a program adds up at a time: 32 bytes of each block's


@dataclass(frozen=True)
class Sort:
    """`points` elements of the tensor `keys`, each from 0 to `count`, for the statement of this output. Made are
    tensors of these names: `placed`, keys in order, equal ones in their own; `order`, the points that are there;
    `starts`, where each key from 1 to `count` + 1 begins. `int64_index`: positions are 64-bit."""

    output: str
    keys: str
    placed: str
    order: str
    starts: str
    points: int
    count: int
    int64_index: bool

    @property
    def dtype(self) -> str:
        return key_type(self.count, self.int64_index)

    @property
    def digits(self) -> tuple[int, int]:
        """Passes, and bits of each."""
        bits = self.count.bit_length()
        passes = -(-bits // MOST_BITS)
        return passes, max(FEWEST_BITS, -(-bits // passes))

    def name(self, what: str) -> str:
        return f"{self.output}.{what}"


def key_type(count: int, int64_index: bool) -> str:
    return "int64" if int64_index or count >= 2**31 - 2 else "int32"


def sort_steps(sort: Sort) -> list[Step]:
    """Steps that allocate and fill `placed`, `order` and `starts`."""
    return [
        Allocate(sort.placed, (sort.points,), sort.dtype),
        Allocate(sort.order, (sort.points,), sort.dtype),
        Allocate(sort.starts, (sort.count + 1,), sort.dtype),
        *([_whole(sort)] if sort.points <= ONE_BLOCK else _passes(sort)),
        _search(sort),
    ]


def _passes(sort: Sort) -> list[Step]:
    passes, bits = sort.digits
    blocks, digits = -(-sort.points // SORTED_TOGETHER), 2**bits
    counts, before, totals, less = map(sort.name, ("counts", "before", "totals", "less"))
    between = [(sort.name(f"placed_{k}"), sort.name(f"order_{k}")) for k in range(min(2, passes - 1))]
    made = [
        Allocate(counts, (blocks, digits), sort.dtype),
        Allocate(before, (blocks, digits), "int32"),
        Allocate(less, (blocks,), "int32"),
        Allocate(totals, (passes, digits + 1), sort.dtype),
        *(Allocate(n, (sort.points,), sort.dtype) for pair in between for n in pair),
    ]
    steps: list[Step] = [*made]
    source: tuple[str, str | None] = (sort.keys, None)
    for k in range(passes):
        target = (sort.placed, sort.order) if k + 1 == passes else between[k % 2]
        steps += _Pass(sort, k, k + 1 == passes, blocks, bits, source, target).launches()
        source = target
    return [*steps, Release(tuple(a.tensor for a in made))]


@dataclass(frozen=True)
class _Pass:
    """One of a sort's passes over the keys and points of `source`, into `target`. Of the tensor `totals`, which has a
    row for each pass, the last number of the first says how many keys are less than the one before."""

    sort: Sort
    number: int
    last: bool
    blocks: int
    bits: int
    source: tuple[str, str | None]
    target: tuple[str, str]

    @property
    def first(self) -> bool:
        return self.number == 0

    @property
    def row(self) -> dict[str, int]:
        """Where the pass's row of `totals` begins."""
        return {"at": self.number * (2**self.bits + 1)}

    @property
    def constants(self) -> dict[str, int]:
        return {"BLOCK": SORTED_TOGETHER, "DIGITS": 2**self.bits}

    def tensors(self, *names: str) -> dict[str, str]:
        return {name: self.sort.name(name) for name in names}

    def launches(self) -> list[Launch]:
        sort, blocks, digits = self.sort, self.blocks, 2**self.bits
        warps = SORTED_TOGETHER // (FEW_OF_A_WARP if blocks <= TWO_A_MULTIPROCESSOR else MANY_OF_A_WARP)
        keys, totals = {"keys": self.source[0]}, self.tensors("totals")
        counts = {**keys, **self.tensors("counts", "before")}
        tensors = {**counts, **(self.tensors("less") if self.first else totals)}
        points = {"points": sort.points, "shift": self.number * self.bits}
        counted = _launch(sort, "digits", self._counted(), tensors, points, self.constants, blocks, warps)
        tensors = {**self.tensors("counts"), **totals, **(self.tensors("less") if self.first else {})}
        added = {"BLOCK": min(BLOCKS_AT_ONCE, power_of_two(blocks)), "DIGITS": digits, "BESIDE": DIGITS_BESIDE}
        numbers, programs = {"blocks": blocks, **self.row}, digits // DIGITS_BESIDE + self.first
        bases = _launch(sort, "bases", self._added(), tensors, numbers, added, programs, 4)
        tensors = {**counts, **totals, "placed": self.target[0], "points_there": self.target[1]}
        tensors |= {} if self.source[1] is None else {"order": self.source[1]}
        tensors |= {"positions": sort.keys} if self.last else {}
        moved = _launch(sort, "moved", self._moved(), tensors, {**points, **self.row}, self.constants, blocks, warps)
        return [counted, bases, moved]

    def _unless_sorted(self, lines: Sequence[CodeLine], otherwise: Sequence[CodeLine] = ()) -> list[CodeLine]:
        return [If("tl.load(totals + DIGITS) != 0", tuple(lines), tuple(otherwise))]

    def _block(self) -> list[CodeLine]:
        return [
            assign("block", f"{PROGRAM[0]}.to(tl.{self.sort.dtype})"),
            assign("lane", "tl.arange(0, BLOCK)"),
            assign("place", "block * BLOCK + lane"),
            assign("inside", "place < points"),
        ]

    def _digits(self) -> list[CodeLine]:
        return [
            *self._block(),
            assign("key", "tl.load(keys + place, mask=inside, other=0)"),
            assign("digit", "((key >> shift) & (DIGITS - 1)).to(tl.int32)"),
        ]

    def _counted(self) -> list[CodeLine]:
        """Counts of each digit in a block, added up in a row of memory of its own, and how many of lesser digits it
        has."""
        lines: list[CodeLine] = [
            *self._digits(),
            assign("one", "tl.arange(0, DIGITS)"),
            assign("own", "before + block * DIGITS"),
            StoreLine("own + one", "tl.zeros((DIGITS,), tl.int32)"),
            BARRIER,
            StoreLine("own + digit", "tl.full((BLOCK,), 1, tl.int32)", "inside", "atomic_add", RELAXED),
            BARRIER,
            assign("count", "tl.load(own + one, volatile=True)"),
            BARRIER,
            StoreLine("own + one", "tl.cumsum(count) - count"),
            StoreLine("counts + block * DIGITS + one", "count"),
        ]
        if not self.first:
            return self._unless_sorted(lines)
        return [
            *lines,
            assign("previous", "tl.load(keys + place - 1, mask=inside & (place > 0), other=0)"),
            StoreLine("less + block", "tl.sum((key < previous).to(tl.int32))"),
        ]

    def _added(self) -> list[CodeLine]:
        """In the place of a block's count of a digit: how many there are in the blocks before."""
        kind = f"tl.{self.sort.dtype}"
        loop: list[CodeLine] = [
            assign("block", "start + tl.arange(0, BLOCK)"),
            assign("place", f"block.to({kind})[:, None] * DIGITS + digit[None, :]"),
            assign("inside", "tl.broadcast_to((block < blocks)[:, None], (BLOCK, BESIDE))"),
            assign("count", "tl.load(counts + place, mask=inside, other=0)"),
            StoreLine("counts + place", "total[None, :] + tl.cumsum(count, 0) - count", "inside"),
            assign("total", "tl.sum(count, 0)", "+="),
        ]
        lines: list[CodeLine] = [
            assign("digit", f"{PROGRAM[0]} * BESIDE + tl.arange(0, BESIDE)"),
            assign("total", f"tl.zeros((BESIDE,), {kind})"),
            ForLoop("start", "range(0, blocks, BLOCK)", tuple(loop)),
            StoreLine("totals + at + digit", "total"),
        ]
        if not self.first:
            return self._unless_sorted(lines)
        block = assign("block", "start + tl.arange(0, BLOCK)")
        less = assign("found", f"tl.load(less + block, mask=block < blocks, other=0).to({kind})", "+=")
        sums = (
            assign("found", f"tl.zeros((BLOCK,), {kind})"),
            ForLoop("start", "range(0, blocks, BLOCK)", (block, less)),
            StoreLine("totals + DIGITS", "tl.sum(found)"),
        )
        return [If(f"{PROGRAM[0]} < DIGITS // BESIDE", tuple(lines), sums)]

    def _moved(self) -> list[CodeLine]:
        """A block, sorted by digit, to its places."""
        lines: list[CodeLine] = [
            *self._digits(),
            assign("packed", "tl.sort(tl.where(inside, digit, DIGITS) * BLOCK + lane)"),
            assign("digit", "tl.minimum(packed // BLOCK, DIGITS - 1)"),
            assign("source", "block * BLOCK + packed % BLOCK"),
            assign("total", "tl.load(totals + at + tl.arange(0, DIGITS))"),
            assign("base", "tl.gather(tl.cumsum(total) - total, digit, 0)"),
            assign("own", "block * DIGITS + digit"),
            assign("target", "base + tl.load(counts + own) - tl.load(before + own) + lane"),
            StoreLine("placed + target", "tl.load(keys + source, mask=inside, other=0)", "inside"),
            assign("point", "source" if self.first else "tl.load(order + source, mask=inside, other=0)"),
            StoreLine("points_there + target", "point", "inside"),
        ]
        copied = [
            *self._block(),
            StoreLine("placed + place", "tl.load(positions + place, mask=inside, other=0)", "inside"),
            StoreLine("points_there + place", "place", "inside"),
        ]
        return self._unless_sorted(lines, copied if self.last else ())


def _whole(sort: Sort) -> Launch:
    block = max(32, power_of_two(sort.points))
    packed = "tl.int32" if (sort.count + 2) * block < 2**31 else "tl.int64"
    lines: list[CodeLine] = [
        assign("lane", "tl.arange(0, BLOCK)"),
        assign("inside", "lane < points"),
        assign("key", f"tl.load(keys + lane, mask=inside, other=count + 1).to({packed})"),
        assign("packed", f"tl.sort(key * BLOCK + lane.to({packed}))"),
        StoreLine("placed + lane", "packed // BLOCK", "inside"),
        StoreLine("order + lane", "packed % BLOCK", "inside"),
    ]
    tensors = {"keys": sort.keys, "placed": sort.placed, "order": sort.order}
    numbers = {"points": sort.points, "count": sort.count}
    return _launch(sort, "sorted", lines, tensors, numbers, {"BLOCK": block}, 1, max(1, block // FEW_OF_A_WARP))


def _search(sort: Sort) -> Launch:
    """The first place of each key, by halving."""
    loop: list[CodeLine] = [
        assign("middle", "(low + high) // 2"),
        assign("less", "(low < high) & (tl.load(placed + middle, mask=low < high, other=0) <= run)"),
        assign("low", "tl.where(less, middle + 1, low)"),
        assign("high", "tl.where(less, high, middle)"),
    ]
    lines: list[CodeLine] = [
        assign("run", f"{PROGRAM[0]}.to(tl.{sort.dtype}) * BLOCK + tl.arange(0, BLOCK)"),
        assign("low", f"tl.zeros((BLOCK,), tl.{sort.dtype})"),
        assign("high", "low + points"),
        ForLoop("_", "range(steps)", tuple(loop)),
        StoreLine("starts + run", "low", "run <= count"),
    ]
    tensors = {"placed": sort.placed, "starts": sort.starts}
    numbers = {"points": sort.points, "count": sort.count, "steps": sort.points.bit_length()}
    programs = -(-(sort.count + 1) // SEARCHED)
    return _launch(sort, "searched", lines, tensors, numbers, {"BLOCK": SEARCHED}, programs, 4)


def _launch(
    sort: Sort,
    name: str,
    lines: Sequence[CodeLine],
    tensors: dict[str, str],
    numbers: dict[str, int],
    constants: dict[str, int],
    programs: int,
    warps: int,
) -> Launch:
    arguments = (*((n, Pointer(t)) for n, t in tensors.items()), *numbers.items())
    names = tuple(n for n, _ in arguments)
    function = KernelFunction(
        f"{python_name(sort.output)}_{name}", names, tuple(constants), tuple(lines), tuple(numbers)
    )
    grid = (programs, 1, 1)
    return Launch(kernel_file(function), grid, arguments, tuple(constants.items()), warps, 2, (sort.output,))
