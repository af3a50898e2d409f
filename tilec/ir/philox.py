"""Random numbers from counters: what `rand` and `randn` mean, bit by bit, in NumPy.

Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns a counter of
four 32-bit words and a key of two into four words. Every draw is a function of the seed and its own number e alone:

    key      the 64 bits of the seed: k0 the low half, k1 the high half (of the two's complement)
    counter  c0, c1: the low and high half of the block e div 4 (rounded down, two's complement);
             c2: the stream, 0 for rand and 1 for randn, which are therefore independent of each other; c3: 0
    lane     e mod 4: which of the block's words w0 .. w3 the draw is made of: four draws in a row cost one block

    rand     (w[lane] >> 8) * 2^-24: a multiple of 2^-24 in [0, 1 - 2^-24], exact in float32, never 1
    randn    Box and Muller's transform. Lanes 0 and 1 share w0 and w1, lanes 2 and 3 share w2 and w3: with (a, b) the
             pair, u = (a + 1) * 2^-32 in (0, 1], r = sqrt(-2 log u) and t = 2 pi b * 2^-32, the even lane is r cos t
             and the odd one r sin t. |randn| <= sqrt(64 log 2) = 6.66.

The results are float32. Here randn is computed in float64 and rounded once, and so it is on the torch backend. Where a
backend computes in float32, log u near u = 1 needs log1p of the exact (2^32 - 1 - a) * -2^-32 (take it for a >= 2^31),
or r loses its leading digits there.
"""

from __future__ import annotations

import numpy as np

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key after each round
ROUNDS = 10
STREAMS = {"rand": 0, "randn": 1}
MASK = 0xFFFFFFFF


def philox(counter, key) -> tuple[np.ndarray, ...]:
    """The four words of a block: `counter` is four arrays of 32-bit words, `key` two; words are held in uint64."""
    c0, c1, c2, c3 = (np.asarray(c, np.uint64) for c in counter)
    k0, k1 = (np.asarray(k, np.uint64) for k in key)
    m0, m1 = map(np.uint64, MULTIPLIERS)
    w0, w1 = map(np.uint64, WEYL)
    mask, half = np.uint64(MASK), np.uint64(32)
    for _ in range(ROUNDS):
        p0, p1 = c0 * m0, c2 * m1
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & mask, (p0 >> half) ^ c3 ^ k1, p0 & mask
        k0, k1 = (k0 + w0) & mask, (k1 + w1) & mask
    return c0, c1, c2, c3


def words(function: str, seed, counter) -> tuple[np.ndarray, np.ndarray]:
    """The four words of each draw's block, along a last axis, and its lane. Seeds and counters are int64 arrays."""
    seed, counter = np.asarray(seed, np.int64), np.asarray(counter, np.int64)
    block = (counter >> 2).astype(np.uint64)
    key = seed.astype(np.uint64)
    mask, half = np.uint64(MASK), np.uint64(32)
    drawn = philox((block & mask, block >> half, STREAMS[function], 0), (key & mask, key >> half))
    lane = np.broadcast_to(counter & 3, np.broadcast_shapes(seed.shape, counter.shape))
    return np.stack(np.broadcast_arrays(*drawn, lane)[:4], -1), lane


def uniform(seed, counter) -> np.ndarray:
    """`rand(seed, counter)`, as float64."""
    drawn, lane = words("rand", seed, counter)
    word = np.take_along_axis(drawn, lane[..., None], -1)[..., 0]
    return (word >> np.uint64(8)) * 2.0**-24


def normal(seed, counter) -> np.ndarray:
    """`randn(seed, counter)`, rounded to float32 and held as float64."""
    drawn, lane = words("randn", seed, counter)
    a, b = (np.take_along_axis(drawn, (lane & ~1)[..., None] + k, -1)[..., 0].astype(np.float64) for k in (0, 1))
    r, t = np.sqrt(-2 * np.log((a + 1) * 2.0**-32)), 2 * np.pi * (b * 2.0**-32)
    return (r * np.where(lane & 1, np.sin(t), np.cos(t))).astype(np.float32).astype(np.float64)
