"""Arithmetic of shapes that several families need."""

from __future__ import annotations

from collections.abc import Sequence


def power_of_two(n: int) -> int:
    """The least power of two that is at least n, and at least 1."""
    return 1 << max(0, n - 1).bit_length()


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a new tensor."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))
