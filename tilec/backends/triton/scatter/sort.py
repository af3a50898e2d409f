"""A stable sort of points by position, the same every time.

Few points are compared with each other. More go by digits, a radix sort by blocks: each pass counts the digits of each
block of points, adds the counts up by digit and then by block, and moves the points of each block, sorted by digit on
the chip, to where its digits begin. Positions that are in order already, as edges of graphs often are, are found by the
first pass and only copied. The kernels know nothing of the statement, so that all scatters share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilec.backends.triton.emit.device_text import kernel_file
from tilec.backends.triton.plan.device_info import TWO_A_MULTIPROCESSOR
from tilec.backends.triton.plan.lines import BARRIER, RELAXED, CodeLine, ForLoop, If, StoreLine, assign
from tilec.backends.triton.plan.plan import Allocate, Launch, Pointer, Release, Step
from tilec.backends.triton.plan.source import PROGRAM, KernelFunction
from tilec.ir.at_sizes import fixed_value

FEW = 4096  # points of which all pairs are compared
MOST_COMPARED = 2**23  # pairs of points and keys
COMPARED_POINTS, COMPARED_BESIDE = 16, 256  # of a program at a time
MOVED_TOGETHER = 1024  # points of a block of several
FEWEST_BITS, MOST_BITS = 8, 11  # of a digit: with more, a block has more digits than points
MOST_COUNTED_ON_CHIP = 512  # digits, of a block
FEW_OF_A_WARP, MANY_OF_A_WARP = 128, 256  # points that are moved; that are counted where not all programs run at once
BLOCKS_AT_ONCE, DIGITS_BESIDE = 256, 8  # counts that a program adds up at a time: 32 bytes of each block's
SEARCHED = 256  # positions whose first points a program looks for

# a pass after the first moves nothing where the first found the keys in order
UNSORTED: tuple[CodeLine, ...] = (
    assign("unsorted", "1"),
    If("number > 0", (assign("unsorted", "(tl.load(totals) != 0).to(tl.int32)"),)),
)
DIGIT: tuple[CodeLine, ...] = (
    assign("key", "tl.load(keys + place, mask=inside, other=0)"),
    assign("digit", "((key >> shift) & (DIGITS - 1)).to(tl.int32)"),
)
PACKED = "tl.int32"  # the type of keys that are moved together with their points
KEY_SHIFT = 32  # of a key that stands before its point in 64 bits


@dataclass(frozen=True)
class Sort:
    """`points` elements of the tensor `keys`, each from 0 to `count`, for the statement of this output. `int64_index`:
    positions are 64-bit. Keys of 32 bits are moved together with their points and stand before these in `order`; others
    are made beside it as `placed`."""

    output: str
    points: int
    count: int
    int64_index: bool

    @property
    def dtype(self) -> str:
        return key_type(self.count, self.int64_index)

    @property
    def keys(self) -> str:
        return self.name("at")

    @property
    def order(self) -> str:
        """The points in order of their keys, equal ones in their own."""
        return self.name("order")

    @property
    def starts(self) -> str:
        """Where each key from 1 to `count` + 1 begins."""
        return self.name("starts")

    @property
    def packed(self) -> bool:
        return self.dtype == "int32"

    @property
    def made(self) -> tuple[str, ...]:
        return (*self.moved, self.starts)

    @property
    def moved(self) -> tuple[str, ...]:
        """What is made with an element for each point."""
        return (self.order,) if self.packed else (self.name("placed"), self.order)

    @property
    def bits(self) -> tuple[int, ...]:
        """Of the digit of each pass, lowest first: as few passes as there can be, of digits as short as these allow."""
        length = fixed_value(self.count.bit_length())
        passes = max(1, -(-length // MOST_BITS))
        return tuple(max(FEWEST_BITS, (length + k) // passes) for k in range(passes - 1, -1, -1))

    def name(self, what: str) -> str:
        return f"{self.output}.{what}"


def key_type(count: int, int64_index: bool) -> str:
    return "int64" if int64_index or count >= 2**31 - 2 else "int32"


def sort_steps(sort: Sort) -> list[Step]:
    """Steps that allocate and fill what is made."""
    return [
        *(Allocate(n, (sort.points,), "int64") for n in sort.moved),
        Allocate(sort.starts, (sort.count + 1,), sort.dtype),
        *(_by_comparing(sort) if sort.points <= FEW else _by_digits(sort)),
    ]


def _by_comparing(sort: Sort) -> list[Step]:
    """All pairs of points, and of points and keys where these are few."""
    tensors = {"keys": sort.keys, **_named(sort.moved), "starts": sort.starts}
    numbered = -(-sort.points // COMPARED_POINTS) * COMPARED_POINTS
    few = sort.points * (sort.count + 1) <= MOST_COMPARED
    numbers = {"points": sort.points, "count": sort.count, "numbered": numbered}
    constants = {"BLOCK": COMPARED_POINTS, "BESIDE": COMPARED_BESIDE}
    programs = -(-(numbered + (sort.count + 1 if few else 0)) // COMPARED_POINTS)
    compared = _launch(sort, "sort_compared", _ranks, tensors, numbers, constants, (programs, 1, 1), 4)
    return [compared] if few else [compared, _search(sort)]


def _search(sort: Sort) -> Launch:
    tensors = {"placed": sort.moved[0], "starts": sort.starts}
    numbers = {"points": sort.points, "count": sort.count, "steps": sort.points.bit_length()}
    grid = (-(-(sort.count + 1) // SEARCHED), 1, 1)
    return _launch(sort, "sort_starts", _found, tensors, numbers, {"SEARCHED": SEARCHED}, grid, 4)


def _named(moved: Sequence[str]) -> dict[str, str]:
    """What kernels call these."""
    return dict(zip(("placed", "order")[-len(moved) :], moved, strict=True))


def _by_digits(sort: Sort) -> list[Step]:
    points, passes = sort.points, len(sort.bits)
    blocks, most = -(-points // MOVED_TOGETHER), 2 ** max(sort.bits)
    counts, before, less, totals = map(sort.name, ("counts", "before", "less", "totals"))
    between = [tuple(f"{n}_{k}" for n in sort.moved) for k in range(min(2, passes - 1))]
    made = [
        Allocate(counts, (blocks, most), sort.dtype),
        Allocate(before, (blocks, most), "int32"),
        Allocate(less, (blocks,), "int32"),
        Allocate(totals, (1 + most,), sort.dtype),
        *(Allocate(n, (points,), "int64") for names in between for n in names),
    ]
    moving = MOVED_TOGETHER // FEW_OF_A_WARP
    counting = moving if blocks <= TWO_A_MULTIPROCESSOR else MOVED_TOGETHER // MANY_OF_A_WARP
    steps: list[Step] = [*made]
    given: tuple[str, ...] = (sort.keys,) * len(sort.moved)  # the first pass has no order yet, and does not read it
    for k, bits in enumerate(sort.bits):
        digits = 2**bits
        sizes = {"BLOCK": MOVED_TOGETHER, "DIGITS": digits}
        summed = {"BLOCK": BLOCKS_AT_ONCE, "DIGITS": digits, "BESIDE": DIGITS_BESIDE}
        there = sort.moved if k + 1 == passes else between[k % 2]
        tensors = {"keys": given[0], "counts": counts, "before": before}
        shift = sum(sort.bits[:k]) + (KEY_SHIFT if sort.packed and k else 0)
        numbers, number = {"points": points, "number": k, "shift": shift}, {"blocks": blocks, "number": k}
        own = {**tensors, "less": less, "totals": totals}
        steps.append(_launch(sort, "sort_digits", _counted, own, numbers, sizes, (blocks, 1, 1), counting))
        own, programs = {"counts": counts, "less": less, "totals": totals}, digits // DIGITS_BESIDE + 1
        steps.append(_launch(sort, "sort_bases", _bases, own, number, summed, (programs, 1, 1), 4))
        tensors |= {"totals": totals, "positions": sort.keys, **_named(there)}
        if not sort.packed:
            tensors["given"] = given[-1]
        tensors["starts"], numbers["passes"], numbers["count"] = sort.starts, passes, sort.count
        steps.append(_launch(sort, "sort_moved", _moved, tensors, numbers, sizes, (blocks, 1, 1), moving))
        given = there
    found = [_search(sort)] if passes > 1 else []
    return [*steps, *found, Release(tuple(a.tensor for a in made))]


def _launch(
    sort: Sort,
    name: str,
    text: Callable[[str], list[CodeLine]],
    tensors: dict[str, str],
    numbers: dict[str, int],
    constants: dict[str, int],
    grid: tuple[int, int, int],
    warps: int,
) -> Launch:
    arguments = (*((n, Pointer(t)) for n, t in tensors.items()), *numbers.items())
    names = tuple(n for n, _ in arguments)
    lines = text(f"tl.{sort.dtype}")
    function = KernelFunction(name, names, tuple(constants), tuple(lines), tuple(numbers))
    return Launch(kernel_file(function), grid, arguments, tuple(constants.items()), warps, 2, (sort.output,))


def _found(kind: str) -> list[CodeLine]:
    """The first place of each key, by halving."""
    key = "tl.load(placed + middle, mask=low < high, other=0)" + (f" >> {KEY_SHIFT}" if kind == PACKED else "")
    return [
        assign("run", f"{PROGRAM[0]}.to(tl.int64) * SEARCHED + tl.arange(0, SEARCHED)"),
        assign("low", "tl.zeros((SEARCHED,), tl.int64)"),
        assign("high", "low + points"),
        ForLoop(
            "_",
            "range(steps)",
            (
                assign("middle", "(low + high) // 2"),
                assign("less", f"(low < high) & (({key}) <= run)"),
                assign("low", "tl.where(less, middle + 1, low)"),
                assign("high", "tl.where(less, high, middle)"),
            ),
        ),
        StoreLine("starts + run", "low", "run <= count"),
    ]


def _ranks(kind: str) -> list[CodeLine]:
    """The place of each point: how many points come before it. Programs after these look for keys: how many points
    have no greater one."""
    return [
        assign("item", f"{PROGRAM[0]}.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)"),
        assign("limit", "tl.minimum(item, points)"),
        assign("run", "item - numbered"),
        assign("key", "tl.load(keys + item, mask=item < points, other=0).to(tl.int64)"),
        assign("key", "tl.where(item < numbered, key, run)"),
        assign("total", "tl.zeros((BLOCK, BESIDE), tl.int32)"),
        ForLoop(
            "first",
            "range(0, points, BESIDE)",
            (
                assign("other", "first + tl.arange(0, BESIDE)"),
                assign("theirs", "tl.load(keys + other, mask=other < points, other=0)[None, :]"),
                assign(
                    "before", "(theirs < key[:, None]) | ((theirs == key[:, None]) & (other[None, :] < limit[:, None]))"
                ),
                assign("total", "(before & (other < points)[None, :]).to(tl.int32)", "+="),
            ),
        ),
        assign("rank", "tl.sum(total, 1)"),
        *_stored("rank", "key", "item", "item < points", kind),
        StoreLine("starts + run", "rank", "(run >= 0) & (run <= count)"),
    ]


def _counted(kind: str) -> list[CodeLine]:
    """The counts of each digit in a block, and how many of lesser digits it has; in the first pass also how many keys
    are less than the one before. Many digits are added up in a row of memory of the block's own."""
    return [
        assign("block", f"{PROGRAM[0]}.to({kind})"),
        assign("lane", "tl.arange(0, BLOCK)"),
        assign("one", "tl.arange(0, DIGITS)"),
        assign("place", "block * BLOCK + lane"),
        assign("inside", "place < points"),
        *UNSORTED,
        If(
            "unsorted != 0",
            (
                *DIGIT,
                assign("own", "before + block * DIGITS"),
                If(
                    f"DIGITS <= {MOST_COUNTED_ON_CHIP}",
                    (assign("count", "tl.histogram(digit, DIGITS, mask=inside)"),),
                    (
                        StoreLine("own + one", "tl.zeros((DIGITS,), tl.int32)"),
                        BARRIER,
                        StoreLine("own + digit", "tl.full((BLOCK,), 1, tl.int32)", "inside", "atomic_add", RELAXED),
                        BARRIER,
                        assign("count", "tl.load(own + one, volatile=True)"),
                        BARRIER,
                    ),
                ),
                StoreLine("own + one", "tl.cumsum(count) - count"),
                StoreLine("counts + block * DIGITS + one", "count"),
                If(
                    "number == 0",
                    (
                        assign("previous", "tl.load(keys + place - 1, mask=inside & (place > 0), other=0)"),
                        StoreLine("less + block", "tl.sum((key < previous).to(tl.int32))"),
                    ),
                ),
            ),
        ),
    ]


def _bases(kind: str) -> list[CodeLine]:
    """In the place of a block's count of a digit: how many there are in the blocks before. A program more than
    there are digits for adds up how many keys are less than the one before."""
    return [
        assign("digit", f"{PROGRAM[0]} * BESIDE + tl.arange(0, BESIDE)"),
        If(
            f"{PROGRAM[0]} * BESIDE >= DIGITS",
            (
                If(
                    "number == 0",
                    (
                        assign("found", f"tl.zeros((BLOCK,), {kind})"),
                        ForLoop(
                            "start",
                            "range(0, blocks, BLOCK)",
                            (
                                assign("block", "start + tl.arange(0, BLOCK)"),
                                assign("found", "tl.load(less + block, mask=block < blocks, other=0)", "+="),
                            ),
                        ),
                        StoreLine("totals", "tl.sum(found)"),
                    ),
                ),
            ),
            (
                *UNSORTED,
                If(
                    "unsorted != 0",
                    (
                        assign("total", f"tl.zeros((BESIDE,), {kind})"),
                        ForLoop(
                            "start",
                            "range(0, blocks, BLOCK)",
                            (
                                assign("block", "start + tl.arange(0, BLOCK)"),
                                assign("place", f"block.to({kind})[:, None] * DIGITS + digit[None, :]"),
                                assign("inside", "tl.broadcast_to((block < blocks)[:, None], (BLOCK, BESIDE))"),
                                assign("count", f"tl.load(counts + place, mask=inside, other=0).to({kind})"),
                                StoreLine("counts + place", "total[None, :] + tl.cumsum(count, 0) - count", "inside"),
                                assign("total", "tl.sum(count, 0)", "+="),
                            ),
                        ),
                        StoreLine("totals + 1 + digit", "total"),
                    ),
                ),
            ),
        ),
    ]


def _moved(kind: str) -> list[CodeLine]:
    """A block, sorted by digit, to its places, and where keys begin."""
    return [
        assign("block", f"{PROGRAM[0]}.to({kind})"),
        assign("lane", "tl.arange(0, BLOCK)"),
        assign("place", "block * BLOCK + lane"),
        assign("inside", "place < points"),
        If(
            "tl.load(totals) != 0",
            (
                *DIGIT,
                assign("packed", "tl.sort(tl.where(inside, digit, DIGITS) * BLOCK + lane)"),
                assign("digit", "tl.minimum(packed // BLOCK, DIGITS - 1)"),
                assign("source", "block * BLOCK + packed % BLOCK"),
                assign("total", "tl.load(totals + 1 + tl.arange(0, DIGITS))"),
                assign("base", "tl.gather(tl.cumsum(total) - total, digit, 0)"),
                assign("own", "block * DIGITS + digit"),
                assign("target", "base + tl.load(counts + own) - tl.load(before + own) + lane"),
                *_moved_on(kind),
            ),
            (If("number + 1 == passes", (*_stored("place", _POSITION, "place", "inside", kind),)),),
        ),
        If(f"{PROGRAM[0]} == 0", (If("passes == 1", _STARTS),)),
    ]


_STARTS: tuple[CodeLine, ...] = (  # of keys that are one digit
    assign("one", "tl.arange(0, DIGITS)"),
    StoreLine("starts + one", "tl.cumsum(tl.load(totals + 1 + one))", "one <= count"),
)
_POSITION = "tl.load(positions + place, mask=inside, other=0)"


def _moved_on(kind: str) -> tuple[CodeLine, ...]:
    """A point and its key, to the next place."""
    key = assign("key", "tl.load(keys + source, mask=inside, other=0)")
    if kind == PACKED:
        first = f"(key.to(tl.int64) << {KEY_SHIFT}) | source"
        return key, StoreLine("order + target", f"tl.where(number > 0, key.to(tl.int64), {first})", "inside")
    point = assign("point", "tl.load(given + source, mask=inside & (number > 0), other=0)")
    return key, point, *_stored("target", "key", "tl.where(number > 0, point, source)", "inside", kind)


def _stored(place: str, key: str, point: str, mask: str, kind: str) -> tuple[CodeLine, ...]:
    """Lines that store a key and its point at a place."""
    if kind == PACKED:
        return (StoreLine(f"order + {place}", f"(({key}).to(tl.int64) << {KEY_SHIFT}) | {point}", mask),)
    return StoreLine(f"placed + {place}", key, mask), StoreLine(f"order + {place}", point, mask)
