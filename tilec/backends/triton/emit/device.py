"""Functions that generated kernels call: their text is copied into each kernel's file, so that it stands alone.

Arguments of one call have one dtype. Floating ones are float32 or float64. What torch does at the edges (NaN, signed
zeros, division by zero, shifts too far) is done here too.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from tilec.backends.triton.emit.device_instructions import exp_, share_exp_


@triton.jit
def divide_(a, b):
    """Correctly rounded for floats; integers truncate toward zero, and by zero give zero."""
    if b.dtype.is_floating():
        if b.dtype == tl.float32:
            return tl.div_rn(a, b)
        else:
            return a / b
    else:
        return tl.where(b == 0, b, a // tl.where(b == 0, 1, b).to(b.dtype))


@triton.jit
def scale_(b):
    """The power of two, mostly 1, that brings a divisor to where neither it nor its inverse is subnormal, with the
    divisor's sign."""
    small = tl.abs(b) < 1.0842021724855044e-19
    large = tl.abs(b) > 9.223372036854776e18
    scale = tl.where(small, 1.8446744073709552e19, tl.where(large, 5.421010862427522e-20, 1.0))
    return tl.where(b < 0, -scale, scale)


@triton.jit
def times_inverse_(a, scaled, inverse, scale):
    """a / b for a divisor that many values share: `scaled` is b * scale, not negative, and `inverse` 1 / scaled. A step
    of Newton's method rounds as a division does, subnormal quotients and numerators below 2^-100 aside (the last digit
    there); zeros keep their signs."""
    q = a * inverse
    rest = tl.fma(q, scaled, -a)
    return tl.where(tl.abs(rest) < float("inf"), tl.fma(rest, -inverse, q), q) * scale


@triton.jit
def remainder_(a, b):
    """Floor modulo: the sign is b's. Integers modulo zero are zero."""
    if b.dtype.is_floating():
        r = libdevice.fmod(a, b)
        return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
    else:
        d = tl.where(b == 0, 1, b).to(b.dtype)
        r = a % d
        return tl.where(b == 0, 0, tl.where((r != 0) & ((r < 0) != (d < 0)), r + d, r)).to(b.dtype)


@triton.jit
def power_(a, b):
    """For integers by squaring, which wraps; a negative power is truncated, and 0 of 0."""
    if a.dtype.is_floating():
        return libdevice.pow(a, b)
    else:
        if a.dtype.is_int_signed():
            inverse = tl.where(a == 1, 1, tl.where(a == -1, 1 - 2 * (b & 1), 0))
            result = tl.where(b >= 0, 1, inverse).to(a.dtype)
        else:
            result = ((a | b) >= 0).to(a.dtype)
        base = a
        rest = tl.where(b >= 0, b, 0).to(a.dtype)
        for _ in range(64):
            result = tl.where((rest & 1) != 0, result * base, result).to(a.dtype)
            base = (base * base).to(a.dtype)
            rest = rest >> 1
        return result


@triton.jit
def shift_left_(a, b):
    """Zero where b is negative or at least the width."""
    fits = (b >= 0) & (b < a.dtype.primitive_bitwidth)
    return tl.where(fits, a << tl.where(fits, b, 0).to(a.dtype), 0).to(a.dtype)


@triton.jit
def shift_right_(a, b):
    """The sign, 0 or -1, where b is negative or at least the width."""
    fits = (b >= 0) & (b < a.dtype.primitive_bitwidth)
    return tl.where(fits, a >> tl.where(fits, b, 0).to(a.dtype), tl.where(a < 0, -1, 0)).to(a.dtype)


@triton.jit
def maximum_(a, b):
    """NaN if either is, which is one instruction for float32 and has none for float64."""
    if a.dtype == tl.float64:
        return tl.where((a > b) | (a != a), a, b)
    else:
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum_(a, b):
    """NaN if either is."""
    if a.dtype == tl.float64:
        return tl.where((a < b) | (a != a), a, b)
    else:
        return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def add_(a, b):
    return a + b


@triton.jit
def multiply_(a, b):
    return a * b


@triton.jit
def add_before_(a, before, b, between):
    """Totals of two neighbouring parts of a row, and what is before the last element of each."""
    return add_(a, b), add_(a, between)


@triton.jit
def multiply_before_(a, before, b, between):
    """See `add_before_`."""
    return multiply_(a, b), multiply_(a, between)


@triton.jit
def maximum_before_(a, before, b, between):
    """See `add_before_`."""
    return maximum_(a, b), maximum_(a, between)


@triton.jit
def minimum_before_(a, before, b, between):
    """See `add_before_`."""
    return minimum_(a, b), minimum_(a, between)


@triton.jit
def add_two_(a, b, c, d):
    """Two sums at once."""
    return a + c, b + d


@triton.jit
def add_four_(a, b, c, d, e, f, g, h):
    """Four sums at once."""
    return a + e, b + f, c + g, d + h


@triton.jit
def or_(a, b):
    return a | b


@triton.jit
def and_(a, b):
    return a & b


@triton.jit
def sign_(x):
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def near_sine_(x, turn, m):
    """The sine of x - turn * pi for a difference of at most pi / 2, negated where m, a float, is odd: within 1.8 units
    in the last place. Products of pi's parts (24, 24 and 24 bits, all positive, so that -0 stays) are exact."""
    r = tl.fma(turn, -1.5099578831723193e-07, tl.fma(turn, -3.141592502593994, x))
    r = tl.fma(turn, -1.0780605906948477e-14, r)
    t = r * r
    p = tl.fma(tl.fma(t, 2.6056311526190257e-06, -0.0001980953966267407), t, 0.008333065547049046)
    s = tl.fma(tl.fma(p, t, -0.16666659712791443), tl.fma(t, r, 0.0), r)
    return (s.to(tl.int32, bitcast=True) ^ (m.to(tl.int32, bitcast=True) << 31)).to(tl.float32, bitcast=True)


@triton.jit
def sine_or_nan_(x):
    """Of float32; NaN beyond 105615."""
    m = tl.fma(x, 0.31830987334251404, 12582912.0)
    return tl.where(tl.abs(x) > 105615.0, float("nan"), near_sine_(x, m - 12582912.0, m))


@triton.jit
def cosine_or_nan_(x):
    """As `sine_or_nan_`, of x + pi / 2."""
    m = tl.fma(x, 0.31830987334251404, -0.5) + 12582913.0
    return tl.where(tl.abs(x) > 105615.0, float("nan"), near_sine_(x, (m - 12582913.0) + 0.5, m))


@triton.jit
def sine_(x):
    """Of a block of float32: the device library's own reduction is taken where some element is beyond 105615."""
    m = tl.fma(x, 0.31830987334251404, 12582912.0)
    s = near_sine_(x, m - 12582912.0, m)
    far = tl.abs(x)
    if x.type.is_block():
        far = tl.max(far)
    if (far > 105615.0) | (far != far):
        s = tl.where(tl.abs(x) > 105615.0, libdevice.sin(x), s)
    return s


@triton.jit
def cosine_(x):
    """As `sine_`, of x + pi / 2."""
    m = tl.fma(x, 0.31830987334251404, -0.5) + 12582913.0
    s = near_sine_(x, (m - 12582913.0) + 0.5, m)
    far = tl.abs(x)
    if x.type.is_block():
        far = tl.max(far)
    if (far > 105615.0) | (far != far):
        s = tl.where(tl.abs(x) > 105615.0, libdevice.cos(x), s)
    return s


@triton.jit
def share_(a, b):
    """a / b for a from 0 to b and b from 1 to 2. Of float32 a step of Newton's method, which rounds as a division does
    (the last digit of what is below 2^-100 aside) and has none of its branches."""
    if b.dtype == tl.float32:
        inverse = libdevice.fast_dividef(tl.full((), 1.0, tl.float32), b)
        q = a * inverse
        return tl.fma(tl.fma(-q, b, a), inverse, q)
    else:
        return a / b


@triton.jit
def sigmoid_(x):
    """Without overflow on either side."""
    e = exp_(-tl.abs(x))
    return share_(tl.where(x >= 0, 1.0, e).to(x.dtype), 1 + e)


@triton.jit
def silu_(x):
    return x * sigmoid_(x)


@triton.jit
def gelu_(x):
    return 0.5 * x * (1 + libdevice.erf(x * 0.7071067811865476))


@triton.jit
def log_one_plus_(t):
    """log(1 + t) for t in [0, 1], such as exp of what is not positive: within 1.5 units in the last place. Of float32
    a minimax polynomial, which has neither the branches nor the exponents of the device library's."""
    if t.dtype == tl.float32:
        p = tl.fma(t, 0.005364822689443827, -0.030065786093473434)
        p = tl.fma(tl.fma(p, t, 0.07920452207326889), t, -0.13753801584243774)
        p = tl.fma(tl.fma(p, t, 0.191536545753479), t, -0.24857163429260254)
        p = tl.fma(tl.fma(p, t, 0.3332132399082184), t, -0.49999648332595825)
        return tl.fma(t * t, p, t)
    else:
        return libdevice.log1p(t)


@triton.jit
def softplus_(x):
    return maximum_(x, tl.full((), 0.0, x.dtype)) + log_one_plus_(exp_(-tl.abs(x)))


@triton.jit
def logaddexp_(a, b):
    """Infinities of one sign are themselves: their difference is none."""
    gap = tl.where(a == b, 0.0, -tl.abs(a - b)).to(a.dtype)
    return maximum_(a, b) + log_one_plus_(exp_(gap))


@triton.jit
def shifted_exp_(x, top):
    """exp(x - top), with 0 for x = -inf whatever top is."""
    return tl.where(x == float("-inf"), 0.0, exp_(x - tl.where(top == float("-inf"), 0.0, top))).to(x.dtype)


@triton.jit
def term_(x, top):
    """exp(x - top), top being at least x, as a share of a sum."""
    return share_exp_((x - tl.where(top == float("-inf"), 0.0, top)).to(x.dtype))


@triton.jit
def beside_(total, base, most: tl.constexpr):
    """Whether log(total), of a float32, is no larger than `most` and the absolute value of it added to base."""
    size = ((total.to(tl.int32, bitcast=True) >> 23) - 127).to(tl.float32) * 0.6931472
    return tl.abs(size) <= most + tl.abs(base + size)


@triton.jit
def log_above_(total, left, right, base):
    """log(total) + base. Where base is left + right, rounded, what that lost is added to the logarithm: with `left` the
    state of a recurrence and `right` a constant, it would be the same at each step, and add up."""
    back = base - left
    lost = (left - (base - back)) + (right - back)
    exact = (base == left + right) & (tl.abs(base) < float("inf"))
    return (libdevice.log(total) + tl.where(exact, lost, 0.0)) + base


@triton.jit
def join_logs_(top_a, sum_a, top_b, sum_b):
    """Two partial sums of exponentials as one: a maximum and the sum relative to it."""
    same = top_a == top_b
    less = exp_(tl.where(same, 0.0, -tl.abs(top_a - top_b)).to(sum_a.dtype))
    total = tl.where(top_a > top_b, sum_a + sum_b * less, sum_a * less + sum_b)
    return maximum_(top_a, top_b), total.to(sum_a.dtype)


@triton.jit
def log_of_sum_(top, total):
    """The logarithm that a maximum and a sum relative to it stand for; an infinite maximum is itself."""
    return tl.where(tl.abs(top) == float("inf"), top, top + libdevice.log(total))


@triton.jit
def then_real_(a, b, c, d):
    """a*h + b and then c*h + d, as one such step."""
    return a * c, b * c + d


@triton.jit
def then_log_(a, top_a, sum_a, b, top_b, sum_b):
    """The offsets as a maximum and a sum of exponentials relative to it."""
    top, total = join_logs_(top_a + b, sum_a, top_b, sum_b)
    return a + b, top, total


@triton.jit
def apply_log_(a, top, total, h):
    """What a composition makes of a state."""
    highest, joined = join_logs_(a + h, tl.full((), 1, top.dtype), top, total)
    return log_of_sum_(highest, joined)


@triton.jit
def then_max_plus_(a, b, c, d):
    return a + c, maximum_(b + c, d)


@triton.jit
def then_min_plus_(a, b, c, d):
    return a + c, minimum_(b + c, d)


@triton.jit
def philox_words_(seed, counter, stream: tl.constexpr):
    """The four words of the counter's block, as `ir/philox` defines them."""
    block = counter >> 2
    low = (block & 0xFFFFFFFF).to(tl.uint32)
    high = ((block >> 32) & 0xFFFFFFFF).to(tl.uint32)
    zero = low ^ low
    return tl.philox(seed, low, high, zero + stream, zero, 10)


@triton.jit
def rand_(seed, counter):
    a, b, c, d = philox_words_(seed, counter, 0)
    lane = counter & 3
    word = tl.where(lane < 2, tl.where(lane == 0, a, b), tl.where(lane == 2, c, d))
    return (word >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def randn_(seed, counter):
    """In float64, rounded once."""
    a, b, c, d = philox_words_(seed, counter, 1)
    lane = counter & 3
    first = tl.where(lane < 2, a, c).to(tl.int64).to(tl.float64)
    second = tl.where(lane < 2, b, d).to(tl.int64).to(tl.float64)
    r = libdevice.sqrt(-2.0 * libdevice.log((first + 1.0) * 2.3283064365386963e-10))
    angle = second * 2.3283064365386963e-10 * 6.283185307179586
    return (r * tl.where((lane & 1) != 0, libdevice.sin(angle), libdevice.cos(angle))).to(tl.float32)


@triton.jit
def rand_four_(seed, counter):
    """The draws of the four counters of each block, along two new dimensions of two."""
    a, b, c, d = philox_words_(seed, counter, 0)
    word = tl.join(tl.join(a, c), tl.join(b, d))
    return (word >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def randn_four_(seed, counter):
    """As `rand_four_`; each pair of words gives two."""
    a, b, c, d = philox_words_(seed, counter, 1)
    first = tl.join(a, c).to(tl.int64).to(tl.float64)
    second = tl.join(b, d).to(tl.int64).to(tl.float64)
    r = libdevice.sqrt(-2.0 * libdevice.log((first + 1.0) * 2.3283064365386963e-10))
    angle = second * 2.3283064365386963e-10 * 6.283185307179586
    return tl.join(r * libdevice.cos(angle), r * libdevice.sin(angle)).to(tl.float32)
