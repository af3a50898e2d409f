"""Each interpreted kernel of these tests is looked at for what it touches outside of its tensors, and for elements that
two programs write, or one reads that another writes (`support/races.py`). Here, that such kernels are found."""

from __future__ import annotations

import ast
import os

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from support import quick_interpreter
from triton.runtime import interpreter

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)


@triton.jit
def shifted(X, distance, BLOCK: tl.constexpr):
    """Each program reads its block, `distance` elements further on, and writes it at its own place."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(X + at, tl.load(X + at + distance))


@triton.jit
def overlapping(X, step, BLOCK: tl.constexpr):
    at = tl.program_id(0) * step + tl.arange(0, BLOCK)
    tl.store(X + at, at)


@triton.jit
def counted(X, Count, BLOCK: tl.constexpr):
    """Programs that count up to wait for each other may read what others write."""
    tl.atomic_add(Count, 1)
    at = tl.arange(0, BLOCK)
    tl.store(X + at, tl.load(X + at) + 1)


@triton.jit
def copied(X, Y, distance, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(Y + at, tl.load(X + at + distance))


@pytest.mark.parametrize("distance, found", [(0, False), (8, True), (1, True), (32, False)])
def test_elements_that_another_program_writes(distance: int, found: bool) -> None:
    x = torch.zeros(128)[:64]
    if not found:
        shifted[(4,)](x, distance, BLOCK=8)
        return
    with pytest.raises(AssertionError, match="shifted: an element is read that another program writes"):
        shifted[(4,)](x, distance, BLOCK=8)


@pytest.mark.parametrize("step", [8, 7, 0])
def test_elements_that_two_programs_write(step: int) -> None:
    x = torch.zeros(32, dtype=torch.int32)
    if step == 8:
        overlapping[(4,)](x, step, BLOCK=8)
        return
    with pytest.raises(AssertionError, match="overlapping: an element is written by two programs"):
        overlapping[(4,)](x, step, BLOCK=8)


def test_programs_that_wait_are_not_looked_at() -> None:
    counted[(4,)](torch.zeros(8), torch.zeros(1, dtype=torch.int32), BLOCK=8)


@pytest.mark.parametrize("distance, found", [(0, False), (3, False), (4, True), (-1, True), (1000, True)])
def test_what_is_no_tensor_s(distance: int, found: bool) -> None:
    """Of 13 elements of four bytes the next three lie in 16 bytes with the last one.

    They lie amid an array's, so that the allocator has put no other tensor where any of them is read."""
    around = np.zeros(2048, np.float32)
    start = 16 + -(around.ctypes.data // 4 + 16) % 4
    memory = torch.from_numpy(around[start : start + 13])
    assert memory.data_ptr() % 16 == 0
    if not found:
        copied[(1,)](memory, torch.zeros(8), 5 + distance, BLOCK=8)
        return
    with pytest.raises(AssertionError, match="copied: what is no tensor's is read"):
        copied[(1,)](memory, torch.zeros(8), distance if distance < 0 else 5 + distance, BLOCK=8)


def test_nothing_is_written_behind_a_tensor() -> None:
    with pytest.raises(AssertionError, match="copied: what is no tensor's is written"):
        copied[(1,)](torch.zeros(8), torch.zeros(7), 0, BLOCK=8)


CHAINED = """def kernel(X, n, m, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK) if 0 <= n < m else n
    for k in range(0, n):
        if k < n <= m or (k > n) == (m > n):
            at = tl.load(X + at, mask=(at < n) & (0 <= at < m), other=0)
            total: tl.constexpr = n
        total += 0 < k < m
    return n < m < total
"""


def test_kernels_are_rewritten_as_the_interpreter_does() -> None:
    own = quick_interpreter.REWRITER.visit(ast.parse(CHAINED))
    assert ast.dump(quick_interpreter.rewrite(CHAINED)) == ast.dump(own)


@pytest.mark.parametrize(
    "shapes",
    [((4, 8), (4, 8)), ((4, 1), (4, 8)), ((1, 8), (4, 1)), ((8,), (4, 8)), ((), (4, 8)), ((2, 1), ())],
    ids=str,
)
@pytest.mark.parametrize("dtype", [tl.int32, tl.float16, tl.int1], ids=str)
def test_blocks_are_broadcast_as_the_interpreter_does(shapes, dtype):
    """At first, and where what becomes of these types is known."""
    semantic, kind = interpreter.interpreter_semantic, interpreter._get_np_dtype(dtype)
    given = []
    for shape in shapes:
        data = np.arange(np.prod(shape, dtype=int)).reshape(shape or 1).astype(kind)
        given.append(
            tl.tensor(interpreter.TensorHandle(data, dtype), tl.block_type(dtype, [*shape]) if shape else dtype)
        )
    wanted = quick_interpreter.OWN_BROADCAST(semantic, *given)
    for _ in range(2):
        for made, own in zip(semantic.broadcast_impl_value(*given), wanted, strict=True):
            assert made.type == own.type and made.handle.dtype == own.handle.dtype
            assert made.handle.data.dtype == own.handle.data.dtype and np.array_equal(made.handle.data, own.handle.data)


def test_a_block_takes_no_wider_elements():
    for _ in range(2):
        with pytest.raises(ValueError, match="exceeds"):
            interpreter.TensorHandle(np.zeros(4, np.float64), tl.float32)
