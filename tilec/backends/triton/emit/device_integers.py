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
def multiple_(x, exponent):
    """The finite x as a float64 multiple of a unit of 2^-32 times the power of two above all of that exponent."""
    if x.dtype == tl.float32:
        x = tl.where((x.to(tl.int32, bitcast=True) & 0x7F800000) == 0x7F800000, 0.0, x)
        return x.to(tl.float64) * power_of_two_(158 - tl.maximum(exponent >> 23, 1))
    else:
        x = tl.where((x.to(tl.int64, bitcast=True) & 0x7FF0000000000000) == 0x7FF0000000000000, 0.0, x)
        n = 1054 - tl.maximum(exponent >> 20, 1)
        half = n >> 1
        return x * power_of_two_(half) * power_of_two_(n - half)


@triton.jit
def units_(x, exponent):
    """The multiple as an integer, rounded to the nearest of float32 and down of float64. Where the greatest term is no
    number, 1 for infinity and 2^32 for that below zero."""
    if x.dtype == tl.float32:
        units = libdevice.floor(multiple_(x, exponent) + 0.5).to(tl.int64)
        infinite = exponent >= 0x7F800000
    else:
        units = libdevice.floor(multiple_(x, exponent)).to(tl.int64)
        infinite = exponent >= 0x7FF00000
    low = tl.where(x == -float("inf"), 1, 0).to(tl.int64) << 32
    return tl.where(infinite, tl.where(x == float("inf"), 1, low), units)


@triton.jit
def rest_(x, exponent):
    """What `units_` leaves of a float64, in 2^-32 of the unit."""
    multiple = multiple_(x, exponent)
    rest = libdevice.floor((multiple - libdevice.floor(multiple)) * 4294967296.0 + 0.5)
    return tl.where(exponent >= 0x7FF00000, 0.0, rest).to(tl.int64)


@triton.jit
def infinite_(total, exponent, infinity: tl.constexpr):
    """The sum of what `units_` counts where the greatest term is no number."""
    above, below = (total & 0xFFFFFFFF) != 0, (total >> 32) != 0
    value = tl.where(above, float("inf"), -float("inf"))
    return tl.where((exponent > infinity) | (above & below), float("nan"), value)


@triton.jit
def rounded_(total, exponent):
    """The float32 that units come to."""
    value = total.to(tl.float64) * power_of_two_(tl.maximum(exponent >> 23, 1) - 158)
    infinity: tl.constexpr = 0x7F800000
    return tl.where(exponent >= infinity, infinite_(total, exponent, infinity), value.to(tl.float32))


@triton.jit
def rounded_two_(total, rest, exponent):
    """The float64 that units and their rest come to."""
    whole = total + (rest >> 32)
    value = whole.to(tl.float64) + (rest & 0xFFFFFFFF).to(tl.float64) * 2.3283064365386963e-10
    n = tl.maximum(exponent >> 20, 1) - 1054
    half = n >> 1
    value = value * power_of_two_(half) * power_of_two_(n - half)
    infinity: tl.constexpr = 0x7FF00000
    return tl.where(exponent >= infinity, infinite_(total, exponent, infinity), value)
