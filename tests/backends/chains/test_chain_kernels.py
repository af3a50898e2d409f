"""Kernels of chains by the NumPy interpreter against torch in float64: bodies, guards, sizes, types, tilings."""

import numpy as np
import pytest
from support.chains import VARIANTS, both_ways

from tilec.backends.common.chains import recognise
from tilec.backends.common.chains.places import Tiling

SIZES = {"B": 2, "N": 50, "M": 37, "E": 20, "F": 24}


def check(mine, theirs, tolerance):
    for x, y in zip(mine, theirs, strict=True):
        assert np.linalg.norm(x - y) <= tolerance * np.linalg.norm(y) + 1e-30


@pytest.mark.parametrize("name", VARIANTS)
def test_value_and_gradients(name, monkeypatch):
    monkeypatch.setattr(recognise, "LARGE", 0)  # small matrices may as well be stored where they have no exponential
    mine, theirs, forward, backward = both_ways(VARIANTS[name], "float32", SIZES, Tiling(32, 16))
    check(mine, theirs, 3e-6)
    assert len(forward) == 1 and len(backward) >= 2


@pytest.mark.parametrize("name", ["causal", "divided", "bias"])
def test_16_bits(name):
    """As accurate as operands of products that are rounded to 16 bits let it be."""
    mine, theirs, *_ = both_ways(VARIANTS[name], "bfloat16", SIZES, Tiling(16, 32))
    check(mine, theirs, 6e-3)


@pytest.mark.parametrize("sizes", [(1, 16, 16, 2, 2), (1, 64, 32, 16, 16), (3, 17, 90, 5, 40)], ids=str)
@pytest.mark.parametrize("tiling", [Tiling(16, 16), Tiling(64, 32)], ids=lambda t: f"{t.block}x{t.step}")
def test_sizes_and_blocks(sizes, tiling):
    """Whole blocks and overhanging ones, more columns than rows, rows that see nothing."""
    for name in ("causal", "window", "ahead"):
        mine, theirs, *_ = both_ways(VARIANTS[name], "float32", dict(zip("BNMEF", sizes, strict=True)), tiling)
        check(mine, theirs, 3e-6)
