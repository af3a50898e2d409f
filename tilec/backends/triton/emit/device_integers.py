"""Functions of kernels that combine floats as integers, see `scatter/exact.py` and `scatter/fixed_point.py`."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def one_form_(x, negative: tl.constexpr):
    """The float with one form of zero and one of NaN, `negative` or not: atomic operations compare integers."""
    if x.dtype == tl.float32:
        bits = tl.where(x == 0, 0, x.to(tl.int32, bitcast=True))
        return tl.where(x != x, -0x400000 if negative else 0x7FC00000, bits).to(tl.float32, bitcast=True)
    else:
        bits = tl.where(x == 0, 0, x.to(tl.int64, bitcast=True))
        return tl.where(x != x, -0x8000000000000 if negative else 0x7FF8000000000000, bits).to(tl.float64, bitcast=True)


@triton.jit
def exponent_(x):
    """Where it stands in a float: the exponent of a term, one more than that of an infinity for NaN. Of float64 the
    upper half."""
    if x.dtype == tl.float32:
        bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        return tl.where(x != x, 0x7F800001, bits & 0x7F800000)
    else:
        bits = (x.to(tl.int64, bitcast=True) >> 32).to(tl.int32) & 0x7FFFFFFF
        return tl.where(x != x, 0x7FF00001, bits & 0x7FF00000)


@triton.jit
def power_of_two_(n):
    """2^n as a float64, for n from -1022 to 1023."""
    return ((n.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def cleared_(pointer, begin, end, program, programs, BLOCK: tl.constexpr):
    """Zeros from `begin` on, a share of them for each program."""
    for first in range(begin + program * BLOCK, end, programs * BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(pointer + at, tl.zeros((BLOCK,), pointer.dtype.element_ty), mask=at < end)


@triton.jit
def planes_(span, kind: tl.constexpr, PLANES: tl.constexpr, WIDTH: tl.constexpr):
    """How many planes of `WIDTH` exponents hold all terms exactly, by the greatest exponent and the least one of those
    that are not 0. None (0) where these are more than there are, or where a term is no number."""
    SHIFT: tl.constexpr = 23 if kind == tl.float32 else 20
    INFINITY: tl.constexpr = 0x7F800000 if kind == tl.float32 else 0x7FF00000
    top, least = tl.load(span), 0x7FFFFFFF - tl.load(span + 1)
    apart = tl.maximum(top >> SHIFT, 1) - tl.maximum(least >> SHIFT, 1)
    planes = tl.maximum(apart, 0) // WIDTH + 1
    return tl.where((top >= INFINITY) | (planes > PLANES), 0, planes)


@triton.jit
def plane_(x, top, WIDTH: tl.constexpr):
    """The plane of a term, counted from that of the greatest one, and the greatest exponent there."""
    SHIFT: tl.constexpr = 23 if x.dtype == tl.float32 else 20
    first = tl.maximum(top >> SHIFT, 1)
    plane = (first - tl.maximum(exponent_(x) >> SHIFT, 1)) // WIDTH
    return plane, (first - plane * WIDTH) << SHIFT


@triton.jit
def common_(place, count, BLOCK: tl.constexpr):
    """A place below `count` that two of four points which stand together have, or -1: a place of many points is one."""
    if BLOCK < 4:
        pivot = -1
    else:
        place = tl.where((place >= 0) & (place < count), place, -1)
        a, b = tl.split(tl.reshape(place, (BLOCK // 4, 2, 2)))
        c, d = tl.split(a)
        e, f = tl.split(b)
        found = tl.where((c == d) | (c == e) | (c == f), c, tl.where((d == e) | (d == f), d, tl.where(e == f, e, -1)))
        pivot = tl.max(found)
    return pivot


@triton.jit
def multiple_(x, exponent, BITS: tl.constexpr):
    """The finite x as a float64 multiple of a unit of 2^-BITS times the power of two above all of that exponent."""
    if x.dtype == tl.float32:
        x = tl.where((x.to(tl.int32, bitcast=True) & 0x7F800000) == 0x7F800000, 0.0, x)
        return x.to(tl.float64) * power_of_two_(126 + BITS - tl.maximum(exponent >> 23, 1))
    else:
        x = tl.where((x.to(tl.int64, bitcast=True) & 0x7FF0000000000000) == 0x7FF0000000000000, 0.0, x)
        n = 1022 + BITS - tl.maximum(exponent >> 20, 1)
        half = n >> 1
        return x * power_of_two_(half) * power_of_two_(n - half)


@triton.jit
def units_(x, exponent, BITS: tl.constexpr):
    """The multiple as an integer, rounded to the nearest of float32 and down of float64. Where the greatest term is no
    number, 1 for infinity and 2^32 for that below zero."""
    if x.dtype == tl.float32:
        units = libdevice.floor(multiple_(x, exponent, BITS) + 0.5).to(tl.int64)
        infinite = exponent >= 0x7F800000
    else:
        units = libdevice.floor(multiple_(x, exponent, BITS)).to(tl.int64)
        infinite = exponent >= 0x7FF00000
    low = tl.where(x == -float("inf"), 1, 0).to(tl.int64) << 32
    return tl.where(infinite, tl.where(x == float("inf"), 1, low), units)


@triton.jit
def rest_(x, exponent, BITS: tl.constexpr):
    """What `units_` leaves of a float64, in 2^-BITS of the unit."""
    multiple = multiple_(x, exponent, BITS)
    rest = libdevice.floor((multiple - libdevice.floor(multiple)) * 2.0**BITS + 0.5)
    return tl.where(exponent >= 0x7FF00000, 0.0, rest).to(tl.int64)


@triton.jit
def infinite_(total, exponent, infinity: tl.constexpr):
    """The sum of what `units_` counts where the greatest term is no number."""
    above, below = (total & 0xFFFFFFFF) != 0, (total >> 32) != 0
    value = tl.where(above, float("inf"), -float("inf"))
    return tl.where((exponent > infinity) | (above & below), float("nan"), value)


@triton.jit
def sum_of_two_(a, b, error):
    """The sum, and the error so far with what rounding it leaves."""
    total = a + b
    own = total - a
    return total, error + ((a - (total - own)) + (b - own))


@triton.jit
def rounded_(
    totals, at, inside, elements, top, planes, exponent, PLANES: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr
):
    """The float32 that units come to: of all planes, or of one by the exponent of the element's greatest term."""
    first = tl.load(totals + at, mask=inside, other=0)
    value = first.to(tl.float64)
    for plane in tl.static_range(1, PLANES):
        units = tl.load(totals + plane * elements + at, mask=inside & (plane < planes), other=0)
        value += units.to(tl.float64) * 2.0 ** (-WIDTH * plane)
    exponent = tl.where(planes > 0, top, exponent)
    value = value * power_of_two_(tl.maximum(exponent >> 23, 1) - 126 - BITS)
    INFINITY: tl.constexpr = 0x7F800000
    return tl.where(exponent >= INFINITY, infinite_(first, exponent, INFINITY), value.to(tl.float32))


@triton.jit
def rounded_two_(
    totals, at, inside, elements, top, planes, exponent, PLANES: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr
):
    """The float64 that units and their rest come to."""
    first = tl.load(totals + 2 * at, mask=inside, other=0)
    value = first.to(tl.float64) * 0.0
    error = value
    for plane in tl.static_range(PLANES):
        here = inside & (plane < tl.maximum(planes, 1))
        units = tl.load(totals + 2 * (plane * elements + at), mask=here, other=0)
        rest = tl.load(totals + 2 * (plane * elements + at) + 1, mask=here, other=0)
        whole = units + (rest >> BITS)
        near = whole.to(tl.float64)
        more = (whole - near.to(tl.int64)).to(tl.float64)
        part = (rest & ((1 << BITS) - 1)).to(tl.float64) * 2.0 ** (-BITS)
        value, error = sum_of_two_(value, near * 2.0 ** (-WIDTH * plane), error)
        value, error = sum_of_two_(value, more * 2.0 ** (-WIDTH * plane), error)
        value, error = sum_of_two_(value, part * 2.0 ** (-WIDTH * plane), error)
    exponent = tl.where(planes > 0, top, exponent)
    n = tl.maximum(exponent >> 20, 1) - 1022 - BITS
    half = n >> 1
    value = (value + error) * power_of_two_(half) * power_of_two_(n - half)
    INFINITY: tl.constexpr = 0x7FF00000
    return tl.where(exponent >= INFINITY, infinite_(first, exponent, INFINITY), value)
