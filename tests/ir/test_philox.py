"""Philox and what is made of its words: published vectors, seeds and counters, statistics, torch's twin."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tilec.backends.torch.expr import philox as torch_philox
from tilec.ir.philox import normal, philox, uniform, words

# counter, key, words: the known answers that Random123 1.14 publishes for philox4x32-10
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
SEEDS = (0, 1, -1, 12345, 2**32, 2**63 - 1, -(2**63))
STARTS = (0, 1, 2, 3, -1, -6, 2**34 - 3, -(2**63), 2**63 - 1000)
FUNCTIONS = {"rand": (uniform, torch_philox.uniform), "randn": (normal, torch_philox.normal)}


def run_from(start: int, count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int64) + np.int64(start)


def in_torch(function: str, seed, counter) -> np.ndarray:
    draw = FUNCTIONS[function][1]
    drawn = draw(torch.as_tensor(np.asarray(seed, np.int64)), torch.as_tensor(np.asarray(counter, np.int64)))
    assert drawn.dtype is torch.float32
    return drawn.double().numpy()


@pytest.mark.parametrize("counter, key, expected", KNOWN)
def test_known_answers(counter, key, expected):
    assert tuple(map(int, philox(counter, key))) == expected


@pytest.mark.parametrize("counter, key, expected", KNOWN)
def test_known_answers_in_torch(counter, key, expected):
    even, odd, key = (torch.tensor(part).unsqueeze(-1) for part in (counter[::2], counter[1::2], key))
    (w0, w2), (w1, w3) = (part.squeeze(-1).tolist() for part in torch_philox.philox(even, odd, key))
    assert (w0, w1, w2, w3) == expected


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("e", (0, 1, 6, -1, -5, 2**62 + 3, 2**63 - 1, -(2**63)))
def test_seed_is_the_key_and_counter_is_block_and_lane(seed, e):
    block, lane = divmod(e, 4)
    for stream, function in enumerate(("rand", "randn")):
        drawn, its_lane = words(function, seed, e)
        counter = (block % 2**64 % 2**32, block % 2**64 >> 32, stream, 0)
        key = (seed % 2**64 % 2**32, seed % 2**64 >> 32)
        assert [int(w) for w in drawn] == [int(w) for w in philox(counter, key)]
        assert int(its_lane) == lane
        if function == "rand":
            assert uniform(seed, e) == (int(drawn[lane]) >> 8) / 2**24
        else:
            a, b = (int(w) for w in drawn[lane & 2 : (lane & 2) + 2])
            r, t = math.sqrt(-2 * math.log((a + 1) / 2**32)), 2 * math.pi * b / 2**32
            wanted = r * (math.sin(t) if lane % 2 else math.cos(t))
            assert normal(seed, e) == pytest.approx(wanted, rel=2**-23, abs=1e-12)


def test_ends_of_the_ranges(monkeypatch):
    """The extreme words give 0, the last float32 below 1, and normals that are finite."""
    for lowest in (0, 0xFFFFFFFF):
        four = (np.full((1, 4), lowest, np.uint64), np.arange(4))
        monkeypatch.setattr("tilec.ir.philox.words", lambda function, seed, counter, four=four: four)
        drawn = uniform(0, np.arange(4))
        assert (drawn == (0 if lowest == 0 else 1 - 2**-24)).all()
        assert (np.float32(drawn) < 1).all()
        drawn = normal(0, np.arange(4))
        assert np.isfinite(drawn).all() and np.abs(drawn).max() <= np.float32(math.sqrt(64 * math.log(2)))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.one_in(7)
def test_torch_draws_the_same(function, start):
    """Runs of consecutive counters, where each block is computed once, and the same counters in any order."""
    oracle = FUNCTIONS[function][0]
    for seed in SEEDS:
        for count in (0, 1, 2, 3, 7, 8, 101, 1000):
            counter = run_from(start, count)
            expected, got = oracle(seed, counter), in_torch(function, seed, counter)
            np.testing.assert_allclose(got, expected, rtol=0 if function == "rand" else 2**-23)
            order = np.random.default_rng(count).permutation(count)
            assert (in_torch(function, seed, counter[order]) == got[order]).all()
            pieces = [in_torch(function, seed, part) for part in np.split(counter, [count // 3])]
            assert (np.concatenate(pieces) == got).all()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_seeds_and_counters_broadcast(function):
    seeds, counters = np.array([3, -1, 2**40])[:, None], np.array([[5, 4, 0, -9]])
    expected = np.array([[FUNCTIONS[function][0](s, c) for c in counters[0]] for s in seeds[:, 0]])
    np.testing.assert_array_equal(FUNCTIONS[function][0](seeds, counters), expected)
    np.testing.assert_allclose(in_torch(function, seeds, counters), expected, rtol=2**-23)


def test_almost_runs_are_no_runs():
    """Counters with the ends of a run that are none, and a run whose numbers wrap."""
    counter = run_from(0, 32)
    counter[[5, 6]] = counter[[6, 5]]
    for c in (counter, run_from(2**63 - 16, 16), np.array([2**63 - 1, -(2**63)] * 4)):
        assert (in_torch("rand", 9, c) == uniform(9, c)).all()


# statistics: chosen once, with bounds that a wrong transform, a lost lane or shared streams all exceed

COUNT = 2**18


def z_score(values: np.ndarray, mean: float, variance: float) -> float:
    return abs(values.mean() - mean) / math.sqrt(variance / values.size)


@pytest.mark.parametrize("seed", (0, 1, -7))
def test_uniform_moments(seed):
    u = uniform(seed, run_from(-(COUNT // 2), COUNT))
    assert u.min() >= 0 and u.max() < 1
    for k in (1, 2, 3, 4):
        assert z_score(u**k, 1 / (k + 1), 1 / (2 * k + 1) - 1 / (k + 1) ** 2) < 4.5
    for lag in (1, 2, 3, 4, 5):
        assert z_score((u[lag:] - 0.5) * (u[:-lag] - 0.5), 0, 1 / 144) < 4.5


@pytest.mark.parametrize("seed", (0, 1, -7))
def test_normal_moments(seed):
    z = normal(seed, run_from(0, COUNT))
    for k, mean in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        assert z_score(z**k, mean, math.prod(range(1, 2 * k, 2)) - mean**2) < 4.5
    for lag in (1, 2, 3, 4, 5):
        assert z_score(z[lag:] * z[:-lag], 0, 1) < 4.5
        assert z_score(z[lag:] ** 2 * z[:-lag] ** 2, 1, 8) < 4.5
    below = [np.mean(z < x) for x in (-2, -1, 0, 0.5, 2.5)]
    wanted = [(1 + math.erf(x / math.sqrt(2))) / 2 for x in (-2, -1, 0, 0.5, 2.5)]
    for b, w in zip(below, wanted, strict=True):
        assert abs(b - w) < 4.5 * math.sqrt(w * (1 - w) / COUNT)


def chi_square(counts: np.ndarray) -> float:
    """How many standard deviations a chi-square statistic of equal cells is from its mean."""
    expected = counts.sum() / counts.size
    statistic = ((counts - expected) ** 2 / expected).sum()
    return (statistic - (counts.size - 1)) / math.sqrt(2 * (counts.size - 1))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("seed", (0, 2**50))
def test_every_byte_of_every_word_is_uniform(function, seed):
    drawn, _ = words(function, seed, 4 * run_from(0, 2**16))
    for word in range(4):
        for shift in (0, 8, 16, 24):
            counts = np.bincount(((drawn[:, word] >> np.uint64(shift)) & np.uint64(255)).astype(int), minlength=256)
            assert abs(chi_square(counts)) < 4.5


def test_neighbouring_seeds_streams_and_lanes_are_independent():
    e = run_from(0, COUNT)
    u = {seed: uniform(seed, e) for seed in (0, 1, 2, 2**32, -1)}
    series = list(u.values())
    for i, a in enumerate(series):
        for b in series[:i]:
            assert z_score((a - 0.5) * (b - 0.5), 0, 1 / 144) < 4.5
    pairs = np.histogram2d(u[0][0::4], u[0][1::4], bins=16, range=[[0, 1], [0, 1]])[0]
    assert abs(chi_square(pairs)) < 4.5
    z = normal(0, e)  # of the same blocks, were it not for the stream
    assert z_score(np.cos(2 * np.pi * u[0]) * z, 0, 0.5) < 4.5
    assert z_score((u[0] - 0.5) * z, 0, 1 / 12) < 4.5
