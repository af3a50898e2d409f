"""Arithmetic of shapes that several families need."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilec.ir.at_sizes import followed
from tilec.ir.program import Statement, kept_with, reads
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import ITEM_BYTES, NARROW, TensorType, Types

Strides = Mapping[str, tuple[int, ...]]  # of tensors, by name, in elements
MOST_OVERHANG = 1.15  # elements of blocks over those that there are, where smaller blocks fill better
FAR_FEWER = 1.3  # how many times as many they are where much narrower blocks pay
CACHE_LINE = 128  # bytes that caches move at once, of which boxes and vectors take parts
SECTOR = 32  # bytes of a line that are moved by themselves
VECTOR_BYTES = 16  # bytes of a thread's widest load, and what tensor maps ask strides to be multiples of
WHOLE_VECTOR = VECTOR_BYTES // 2  # elements of 16 bits
ROW_PADDING = 3  # elements of a row for each of the padding behind it, at least, where it shall end with a line
LEAST_PADDED = 64  # elements of 16 bits, from which on padding is little
NARROWEST = 2**31 - 2**20  # positions up to here are 32-bit; blocks may overhang


def power_of_two(n: int) -> int:
    """The least power of two that is at least n, and at least 1."""
    return 1 << max(0, n - 1).bit_length()


def rounded_up(n: int, step: int) -> int:
    """The least multiple of `step` that is at least n."""
    return -(-n // step) * step


def copied_row(n: int, size: int) -> int:
    """Elements of `size` bytes from a row of n of them to the next one in a copy: rows begin with lines of the caches,
    with halves or quarters of one where that would be more than a third of padding, with vectors at least. A box of
    rows that begin between lines takes up to twice as long to come."""
    wider = (rounded_up(n, part // size) for part in (CACHE_LINE, CACHE_LINE // 2, CACHE_LINE // 4))
    return next((row for row in wider if ROW_PADDING * (row - n) <= n), rounded_up(n, VECTOR_BYTES // size))


def rows_of_vectors(t: TensorType) -> tuple[int, ...]:
    """The shape of memory whose rows of 16 bits begin at whole vectors, at lines of the caches where they are long."""
    *outer, row = t.shape or (1,)
    return (*outer, copied_row(row, ITEM_BYTES[t.dtype])) if outer and t.dtype in NARROW else t.shape


def filled_block(n: int, block: int, least: int, narrowest: int | None = None) -> int:
    """The largest power of two from `least` up to `block` whose blocks hardly overhang n, or from `narrowest` on whose
    blocks take far fewer places than `block`; else this, as where n is left open: threads beyond the end issue what the
    others do."""
    if is_symbolic(n):
        return block
    sizes = [b for k in range(block.bit_length()) if (b := block >> k) >= min(block, narrowest or least)]
    best = next((b for b in sizes if b >= least and rounded_up(n, b) <= MOST_OVERHANG * n), None)
    if best is not None or narrowest is None:
        return best or block
    fewest = min(rounded_up(n, b) for b in sizes)
    narrow = next(b for b in sizes if rounded_up(n, b) <= MOST_OVERHANG * fewest)
    return narrow if FAR_FEWER * rounded_up(n, narrow) <= rounded_up(n, block) else block


isqrt = followed(math.isqrt)


def bits_below(n: int) -> int:
    """The bits of the numbers below n: 2 to that power is at least n."""
    return (n - 1).bit_length()


def multiplier(n: int) -> int:
    """What `quotient_` multiplies by to divide by n, as a signed number of 32 bits (Granlund and Montgomery, Division
    by Invariant Integers using Multiplication, 1994)."""
    by = (1 << bits_below(n)) % n * 2**32 // n + 1  # of open sizes too within 64 bits
    return (by + 2**31) % 2**32 - 2**31


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a new tensor."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def contiguous_strides(types: Types) -> dict[str, tuple[int, ...]]:
    """Strides of tensors that are contiguous."""
    return {name: kept_with(t, "_contiguous", _contiguous) for name, t in types.items()}


def _contiguous(t: TensorType) -> tuple[int, ...]:
    return contiguous(t.shape)


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The furthest position, in elements, of a tensor's element from its first, or the number of its elements."""
    span = sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True) if n)
    return max(span, math.prod(shape))


def needs_int64_positions(statements: Sequence[Statement], types: Types, strides: Strides) -> bool:
    """Whether some tensor that the statements touch needs 64-bit positions."""
    touched = {n for s in statements for n in (s.output, *reads(s)) if n in types}
    return any(reach(types[n].shape, strides[n]) > NARROWEST for n in touched)
