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
from tilec.backends.triton.plan.lines import CodeLine
from tilec.backends.triton.plan.plan import Allocate, Launch, Pointer, Release, Step
from tilec.backends.triton.plan.source import KernelFunction
from tilec.backends.triton.scatter.sort_text import (
    KEY_SHIFT,
    MOST_COUNTED_ON_CHIP,
    counts_of_digits,
    digit_offsets,
    first_places,
    permute_points,
    ranks_of_points,
    runs_of_points,
)
from tilec.ir.at_sizes import fixed_value

FEWEST_SPARSE, SPARSE = 2**18, 4  # keys; so many for each point, where few of them occur
FEW = 4096  # points of which all pairs are compared
MOST_COMPARED = 2**23  # pairs of points and keys
COMPARED_POINTS, COMPARED_BESIDE = 16, 256  # of a program at a time
MOVED_TOGETHER, MOST_MOVED_TOGETHER = 512, 1024  # points of a block of several; where digits are longer than these
SMALL_SORT, FEW_TOGETHER = 2**16, 256  # with the shortest digits, up to so many points: those of a block
FEWEST_BITS, MOST_BITS = 8, 11  # of a digit: with more, a block has more digits than points
FEW_OF_A_WARP, MANY_OF_A_WARP = 128, 256  # points that are moved; that are counted where not all programs run at once
BLOCKS_AT_ONCE, DIGITS_BESIDE = 256, 8  # counts that a program adds up at a time: 32 bytes of each block's
SEARCHED = 128  # positions whose first points a program looks for, one a thread: steps of two follow each other


@dataclass(frozen=True)
class Sort:
    """`points` elements of the tensor `keys`, each from 0 to `count`, for the statement of this output. `int64_index`:
    positions are 64-bit. Keys of 32 bits are moved together with their points and stand before these in `order`; others
    are made beside it as `placed`. `sparse`: places of keys are looked for at the points, not for each key."""

    output: str
    points: int
    count: int
    int64_index: bool
    sparse: bool = False

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
        """Where each key from 1 to `count` + 1 begins; if `sparse`, for each sorted point where those of its key begin,
        and after all of these where they end."""
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
    def together(self) -> int:
        """Points of a block of several: few points are sorted on the chip in less time than waits for that of many."""
        few = self.points <= SMALL_SORT and max(self.bits) <= FEWEST_BITS
        most = MOVED_TOGETHER if 2 ** max(self.bits) <= MOVED_TOGETHER else MOST_MOVED_TOGETHER
        return min(FEW_TOGETHER, most) if few else most

    @property
    def moved_together(self) -> dict[str, int]:
        """What kernels that sort a block are told of `together`."""
        return {"BLOCK": self.together, "BITS": self.together.bit_length() - 1}

    @property
    def moving(self) -> int:
        """Warps that move the points of a block."""
        return max(1, self.together // (FEW_OF_A_WARP // 2 if self.together == FEW_TOGETHER else FEW_OF_A_WARP))

    @property
    def bits(self) -> tuple[int, ...]:
        """Of the digit of each pass, lowest first: as few passes as there can be, of digits as short as these allow;
        alike where all are counted on the chip in any case, so that their kernels are compiled once."""
        length = fixed_value(self.count.bit_length())
        passes = max(1, -(-length // MOST_BITS))
        found = tuple(max(FEWEST_BITS, (length + k) // passes) for k in range(passes - 1, -1, -1))
        return found[:1] * passes if 2 ** found[0] <= MOST_COUNTED_ON_CHIP else found

    def name(self, what: str) -> str:
        return f"{self.output}.{what}"


def is_sparse(points: int, count: int) -> bool:
    """Whether so few of the keys occur that they are walked point by point."""
    return count >= FEWEST_SPARSE and count >= SPARSE * points


def key_type(count: int, int64_index: bool) -> str:
    return "int64" if int64_index or count >= 2**31 - 2 else "int32"


def sort_steps(sort: Sort) -> list[Step]:
    """Steps that allocate and fill what is made."""
    return [
        *(Allocate(n, (sort.points,), "int64") for n in sort.moved),
        Allocate(sort.starts, (2 * sort.points if sort.sparse else sort.count + 1,), sort.dtype),
        *(_by_comparing(sort) if sort.points <= FEW else _by_digits(sort)),
    ]


def _by_comparing(sort: Sort) -> list[Step]:
    """All pairs of points, and of points and keys where these are few."""
    tensors = {"keys": sort.keys, **_named(sort.moved), "starts": sort.starts}
    numbered = -(-sort.points // COMPARED_POINTS) * COMPARED_POINTS
    few = not sort.sparse and sort.points * (sort.count + 1) <= MOST_COMPARED
    numbers = {"points": sort.points, "count": sort.count, "numbered": numbered}
    constants = {"BLOCK": COMPARED_POINTS, "BESIDE": COMPARED_BESIDE}
    programs = -(-(numbered + (sort.count + 1 if few else 0)) // COMPARED_POINTS)
    compared = _launch(sort, "sort_compared", ranks_of_points, tensors, numbers, constants, (programs, 1, 1), 4)
    return [compared] if few else [compared, _search(sort)]


def _search(sort: Sort) -> Launch:
    tensors = {"placed": sort.moved[0], "starts": sort.starts}
    if sort.sparse:
        numbers, grid = (
            {"points": sort.points, "steps": sort.points.bit_length()},
            (-(-2 * sort.points // SEARCHED), 1, 1),
        )
        return _launch(sort, "sort_runs", runs_of_points, tensors, numbers, {"SEARCHED": SEARCHED}, grid, 4)
    numbers = {"points": sort.points, "count": sort.count, "steps": sort.points.bit_length()}
    grid = (-(-(sort.count + 1) // SEARCHED), 1, 1)
    return _launch(sort, "sort_starts", first_places, tensors, numbers, {"SEARCHED": SEARCHED}, grid, 4)


def _named(moved: Sequence[str]) -> dict[str, str]:
    """What kernels call these."""
    return dict(zip(("placed", "order")[-len(moved) :], moved, strict=True))


def _by_digits(sort: Sort) -> list[Step]:
    points, passes = sort.points, len(sort.bits)
    blocks, most = -(-points // sort.together), 2 ** max(sort.bits)
    counts, before, less, totals = map(sort.name, ("counts", "before", "less", "totals"))
    between = [tuple(f"{n}_{k}" for n in sort.moved) for k in range(min(2, passes - 1))]
    made = [
        Allocate(counts, (blocks, most), sort.dtype),
        Allocate(before, (blocks, most), "int32"),
        Allocate(less, (blocks,), "int32"),
        Allocate(totals, (1 + most,), sort.dtype),
        *(Allocate(n, (points,), "int64") for names in between for n in names),
    ]
    counting = sort.moving if blocks <= TWO_A_MULTIPROCESSOR else max(1, sort.together // MANY_OF_A_WARP)
    steps: list[Step] = [*made]
    given = sort.moved  # the first pass is given nothing that was moved, and does not read it
    for k, bits in enumerate(sort.bits):
        digits = 2**bits
        sizes = {"BLOCK": sort.together, "DIGITS": digits}
        summed = {"BLOCK": BLOCKS_AT_ONCE, "DIGITS": digits, "BESIDE": DIGITS_BESIDE}
        there = sort.moved if k + 1 == passes else between[k % 2]
        tensors = {"keys": sort.keys, "earlier": given[0], "counts": counts, "before": before}
        shift = sum(sort.bits[:k]) + (KEY_SHIFT if sort.packed and k else 0)
        numbers, number = {"points": points, "number": k, "shift": shift}, {"blocks": blocks, "number": k}
        own = {**tensors, "less": less, "totals": totals}
        steps.append(_launch(sort, "sort_digits", counts_of_digits, own, numbers, sizes, (blocks, 1, 1), counting))
        own, programs = {"counts": counts, "less": less, "totals": totals}, digits // DIGITS_BESIDE + 1
        steps.append(_launch(sort, "sort_bases", digit_offsets, own, number, summed, (programs, 1, 1), 4))
        tensors |= {"totals": totals, **_named(there)}
        if not sort.packed:
            tensors["given"] = given[-1]
        tensors["starts"], numbers["passes"], numbers["count"] = sort.starts, passes, sort.count
        sizes = {**sort.moved_together, "DIGITS": digits}
        steps.append(_launch(sort, "sort_moved", permute_points, tensors, numbers, sizes, (blocks, 1, 1), sort.moving))
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
