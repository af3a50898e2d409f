"""Functions that generated kernels call, as those of `device.py`, written for what compiling them takes.

A call of CUDA's library is inlined for each element of a thread, which takes LLVM longer than all else where a kernel
has hundreds of them. So the exponential of float32 is the library's instructions as a text, and a sort is a loop.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def quotient_(x, by, shift):
    """x // n of 0 <= x < 2^31 for n's `multiplier` and `bits_below`: a third of what a division takes."""
    x = x.to(tl.uint32)
    return ((tl.umulhi(x, tl.cast(by, tl.uint32)) + x) >> shift).to(tl.int32)


@triton.jit
def exp_(x):
    """The library's."""
    if x.dtype == tl.float32:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 t, u;
            fma.rn.ftz.f32 t, $1, 0f3BBB989D, 0f3F000000;
            cvt.ftz.sat.f32.f32 t, t;
            fma.rm.ftz.f32 u, t, 0f437C0000, 0f4B400001;
            add.f32 t, u, 0fCB40007F;
            neg.f32 t, t;
            fma.rn.ftz.f32 t, $1, 0f3FB8AA3B, t;
            fma.rn.ftz.f32 t, $1, 0f32A57060, t;
            shl.b32 u, u, 23;
            ex2.approx.ftz.f32 t, t;
            mul.f32 $0, t, u;
            }""",
            "=f,f",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        return libdevice.exp(x)


@triton.jit
def share_exp_(x):
    """exp of x <= 0 within two units in the last place, as a share of a sum: what is below 2^-126 is 0."""
    if x.dtype == tl.float32:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 t; mul.f32 t, $1, 0f3FB8AA3B; ex2.approx.ftz.f32 $0, t; }",
            "=f,f",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        return libdevice.exp(x)


@triton.jit
def compare_exchange_(x, lane, falling, LENGTH: tl.constexpr, DISTANCE: tl.constexpr):
    """The smaller and the larger of two elements that far apart change places where they are out of order."""
    pairs = tl.reshape(x, [LENGTH // (2 * DISTANCE), 2, DISTANCE])
    both = tl.broadcast_to(tl.xor_sum(pairs, 1, keep_dims=True), pairs.shape)
    other = x ^ tl.reshape(both, [LENGTH])
    larger = (((lane // DISTANCE) ^ falling) & 1) != 0
    return tl.where((x > other) != larger, other, x)


@triton.jit
def sorted_(x, LENGTH: tl.constexpr, BITS: tl.constexpr):
    """2^BITS integers in ascending order, by a bitonic network. Its stages are a loop: those of `tl.sort`, one after
    the other, take seconds to compile."""
    lane = tl.arange(0, LENGTH)
    for stage in range(1, BITS + 1):
        falling = lane >> stage
        for k in tl.static_range(BITS):
            if stage >= BITS - k:
                x = compare_exchange_(x, lane, falling, LENGTH, LENGTH >> (k + 1))
    return x


@triton.jit
def whole_power_(a, n, BITS: tl.constexpr, LEAST: tl.constexpr):
    """Of floats, by squaring, for n of so many bits, or from -1 on."""
    result = tl.where((n & 1) != 0, a, 1).to(a.dtype)
    base = a
    for k in tl.static_range(1, BITS):
        base = base * base
        result = tl.where(((n >> k) & 1) != 0, result * base, result)
    return tl.where(n < 0, 1 / a, result) if LEAST < 0 else result
