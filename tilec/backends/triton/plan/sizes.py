"""Arithmetic of shapes that several families need."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilec.ir.at_sizes import followed
from tilec.ir.program import Statement, reads
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import Types

Strides = Mapping[str, tuple[int, ...]]  # of tensors, by name, in elements
MOST_OVERHANG = 1.15  # elements of blocks over those that there are, where smaller blocks fill better
NARROWEST = 2**31 - 2**20  # positions up to here are 32-bit; blocks may overhang


def power_of_two(n: int) -> int:
    """The least power of two that is at least n, and at least 1."""
    return 1 << max(0, n - 1).bit_length()


def rounded_up(n: int, step: int) -> int:
    """The least multiple of `step` that is at least n."""
    return -(-n // step) * step


def filled_block(n: int, block: int, least: int) -> int:
    """The largest power of two from `least` up to `block` whose blocks hardly overhang n; `block` where there is none,
    or n is left open: threads beyond the end issue what the others do."""
    if is_symbolic(n):
        return block
    sizes = (block >> k for k in range(block.bit_length()))
    return next((b for b in sizes if b >= least and -(-n // b) * b <= MOST_OVERHANG * n), block)


isqrt = followed(math.isqrt)


@followed
def bits_below(n: int) -> int:
    """The bits of the numbers below n: 2 to that power is at least n."""
    return (n - 1).bit_length()


@followed
def multiplier(n: int) -> int:
    """What `quotient_` multiplies by to divide by n, as a signed number of 32 bits (Granlund and Montgomery, Division
    by Invariant Integers using Multiplication, 1994)."""
    by = ((1 << bits_below(n)) - n) * 2**32 // n + 1
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
    return {name: contiguous(t.shape) for name, t in types.items()}


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The furthest position, in elements, of a tensor's element from its first, or the number of its elements."""
    span = sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True) if n)
    return max(span, math.prod(shape))


def needs_int64_positions(statements: Sequence[Statement], types: Types, strides: Strides) -> bool:
    """Whether some tensor that the statements touch needs 64-bit positions."""
    touched = {n for s in statements for n in (s.output, *reads(s)) if n in types}
    return any(reach(types[n].shape, strides[n]) > NARROWEST for n in touched)
