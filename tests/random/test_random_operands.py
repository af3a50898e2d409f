"""Random attention through tables, and with scores that branches hide: value and gradients, by the interpreter of block
programs, against torch in float64."""

import random

import numpy as np
import pytest
from support import random_branches, random_gathers
from support.chains import run
from support.random_attention import reference
from support.scale import scaled

import tilec
from tilec.backends.common.chains import cost
from tilec.backends.common.chains.codegen.places import Tiling
from tilec.ir.types import TensorType
from tilec.saving import partition

TILINGS = (Tiling(16, 16), Tiling(32, 16), Tiling(16, 32), Tiling(32, 32))


def near(x, y):
    """Where one place is all that counts, gradients are what is left of ones that cancel. What is not finite is so in
    both."""
    finite = np.isfinite(y)
    assert np.array_equal(x[~finite], y[~finite], equal_nan=True)
    return np.linalg.norm(x[finite] - y[finite]) <= 1e-4 * np.linalg.norm(y[finite]) + 1e-5


FAMILIES = {"tables": random_gathers.draw, "branches": random_branches.draw}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(scaled(24)))
@pytest.mark.one_in(18)
def test_interpreted(seed, family, monkeypatch):
    monkeypatch.setattr(cost, "LARGE", 0)
    rng = random.Random(seed)
    drawn, tiling = FAMILIES[family](rng), rng.choice(TILINGS)
    narrow = {n: x.astype(np.float32) if x.dtype == np.float64 else x for n, x in drawn.arrays.items()}
    types = {n: TensorType(x.shape, x.dtype.name) for n, x in narrow.items()}
    parts = partition(tilec.compile(drawn.text).program, drawn.wrt, types, {}, True)
    forward = run(parts.forward, types, narrow, tiling)
    (value,) = reference(drawn)
    assert near(forward.values["O"], value), drawn.text
    cotangent = np.random.default_rng(seed).standard_normal(value.shape).astype(np.float32)
    given = {n: forward.values[n] for n in parts.backward.values}
    given |= {n: narrow[n] for n in parts.backward.shapes} | {"DO": cotangent}
    backward = run(parts.backward.program, dict(parts.backward.types), given, tiling)
    for name, exact in zip(parts.backward.program.outputs, reference(drawn, cotangent), strict=True):
        assert near(backward.values[name], exact), (name, drawn.text)
