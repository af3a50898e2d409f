"""The kernels of a sort: what they do with `points` keys, of type `kind`.

The first pass reads `keys`, a later one what the pass before it has moved, `earlier`, of 64 bits: one kernel does both,
so that it is compiled once."""

from __future__ import annotations

from tilec.backends.triton.plan.lines import BARRIER, RELAXED, CodeLine, ForLoop, If, StoreLine, assign
from tilec.backends.triton.plan.source import PROGRAM

MOST_COUNTED_ON_CHIP = 512  # digits, of a block

# a pass after the first moves nothing where the first found the keys in order
UNSORTED: tuple[CodeLine, ...] = (
    assign("unsorted", "1"),
    If("number > 0", (assign("unsorted", "(tl.load(totals) != 0).to(tl.int32)"),)),
)
_FIRST_DIGIT: tuple[CodeLine, ...] = (
    assign("key", "tl.load(keys + place, mask=inside, other=0)"),
    assign("digit", "((key >> shift) & (DIGITS - 1)).to(tl.int32)"),
)
_LATER_DIGIT: tuple[CodeLine, ...] = (
    assign("moved", "tl.load(earlier + place, mask=inside, other=0)"),
    assign("digit", "((moved >> shift) & (DIGITS - 1)).to(tl.int32)"),
)
PACKED = "tl.int32"  # the type of keys that are moved together with their points
KEY_SHIFT = 32  # of a key that stands before its point in 64 bits


def first_places(kind: str) -> list[CodeLine]:
    """The first place of each key."""
    return [assign("run", _LOOKED_FOR), *_places(kind), StoreLine("starts + run", "low", "run <= count")]


def runs_of_points(kind: str) -> list[CodeLine]:
    """For each sorted point the first place of its key, then for each the first place after that key's."""
    return [
        assign("item", _LOOKED_FOR),
        assign("own", f"tl.load(placed + item % points, mask=item < 2 * points, other=0){_shifted(kind)}"),
        assign("run", "tl.where(item < points, own - 1, own)"),
        *_places(kind),
        StoreLine("starts + item", "low", "item < 2 * points"),
    ]


_LOOKED_FOR = f"{PROGRAM[0]}.to(tl.int64) * SEARCHED + tl.arange(0, SEARCHED)"


def _shifted(kind: str) -> str:
    return f" >> {KEY_SHIFT}" if kind == PACKED else ""


def _places(kind: str) -> list[CodeLine]:
    """How many points have no key beyond `run`, by halving."""
    key = f"tl.load(placed + middle, mask=low < high, other=0){_shifted(kind)}"
    return [
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
    ]


def ranks_of_points(kind: str) -> list[CodeLine]:
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


def counts_of_digits(kind: str) -> list[CodeLine]:
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
                If(
                    "number == 0",
                    (
                        *_FIRST_DIGIT,
                        assign("previous", "tl.load(keys + place - 1, mask=inside & (place > 0), other=0)"),
                        StoreLine("less + block", "tl.sum((key < previous).to(tl.int32))"),
                    ),
                    _LATER_DIGIT,
                ),
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
            ),
        ),
    ]


def digit_offsets(kind: str) -> list[CodeLine]:
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


def permute_points(kind: str) -> list[CodeLine]:
    """A block, sorted by digit, to its places, and where keys begin."""
    return [
        *_block(kind),
        If(
            "tl.load(totals) != 0",
            (
                If("number == 0", _FIRST_DIGIT, _LATER_DIGIT),
                *_SORTED,
                assign("total", "tl.load(totals + 1 + tl.arange(0, DIGITS))"),
                assign("base", "tl.gather(tl.cumsum(total) - total, digit, 0)"),
                assign("own", "block * DIGITS + digit"),
                assign("target", "base + tl.load(counts + own) - tl.load(before + own) + lane"),
                If("number == 0", _first_point(kind), _later_point(kind)),
                *_store_point(kind),
            ),
            (If("number + 1 == passes", (*_stored("place", _POSITION, "place", "inside", kind),)),),
        ),
        If(f"{PROGRAM[0]} == 0", (If("passes == 1", _STARTS),)),
    ]


def _block(kind: str) -> tuple[CodeLine, ...]:
    return (
        assign("block", f"{PROGRAM[0]}.to({kind})"),
        assign("lane", "tl.arange(0, BLOCK)"),
        assign("place", "block * BLOCK + lane"),
        assign("inside", "place < points"),
    )


_SORTED: tuple[CodeLine, ...] = (  # by digit
    assign("packed", "sorted_(tl.where(inside, digit, DIGITS) * BLOCK + lane, BLOCK, BITS)"),
    assign("digit", "tl.minimum(packed // BLOCK, DIGITS - 1)"),
    assign("source", "block * BLOCK + packed % BLOCK"),
)
_STARTS: tuple[CodeLine, ...] = (  # of keys that are one digit
    assign("one", "tl.arange(0, DIGITS)"),
    StoreLine("starts + one", "tl.cumsum(tl.load(totals + 1 + one))", "one <= count"),
)
_POSITION = "tl.load(keys + place, mask=inside, other=0)"


def _first_point(kind: str) -> tuple[CodeLine, ...]:
    """A point beside its key."""
    key = assign("key", "tl.load(keys + source, mask=inside, other=0)")
    return key, assign("point", _packed("key", "source") if kind == PACKED else "source")


def _later_point(kind: str) -> tuple[CodeLine, ...]:
    moved = "tl.load(earlier + source, mask=inside, other=0)"
    if kind == PACKED:
        return (assign("point", moved),)
    return assign("key", moved), assign("point", "tl.load(given + source, mask=inside, other=0)")


def _store_point(kind: str) -> tuple[CodeLine, ...]:
    """A point and its key, to the next place."""
    key = () if kind == PACKED else (StoreLine("placed + target", "key", "inside"),)
    return *key, StoreLine("order + target", "point", "inside")


def _stored(place: str, key: str, point: str, mask: str, kind: str) -> tuple[CodeLine, ...]:
    """Lines that store a key and its point at a place."""
    if kind == PACKED:
        return (StoreLine(f"order + {place}", _packed(key, point), mask),)
    return StoreLine(f"placed + {place}", key, mask), StoreLine(f"order + {place}", point, mask)


def _packed(key: str, point: str) -> str:
    return f"(({key}).to(tl.int64) << {KEY_SHIFT}) | {point}"
