"""The laws of the semirings, on the NumPy functions of the table."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tilec.ir.aggregations import AGGREGATIONS, SEMIRINGS, semirings
from tilec.ir.functions import FUNCTIONS

ELEMENTS = {0: [False, True], 1: [-3, 0, 1, 7], 2: [-1.5, 0.0, 0.25, 3.0]}


def close(a, b):
    return np.allclose(np.asarray(a, float), np.asarray(b, float), rtol=1e-12)


@pytest.mark.parametrize("name", SEMIRINGS)
def test_laws(name):
    s = SEMIRINGS[name]
    add, times = FUNCTIONS[s.add].numpy, FUNCTIONS[s.times].numpy
    assert add is not None and times is not None
    elements = ELEMENTS[s.kind]
    with np.errstate(all="ignore"):
        for a, b, c in itertools.product(elements, repeat=3):
            assert close(times(a, add(b, c)), add(times(a, b), times(a, c)))
            assert close(times(a, times(b, c)), times(times(a, b), c))
            assert close(add(a, add(b, c)), add(add(a, b), c))
        for a in elements:
            assert close(add(a, s.zero), a) and close(times(a, s.one), a) and close(times(a, s.zero), s.zero)


def test_the_tables_agree():
    for s in SEMIRINGS.values():
        assert AGGREGATIONS[s.plus].times == s.times
        assert AGGREGATIONS[s.plus].identity == s.zero
    assert all(semirings(plus, times) for plus, times in (("max", "add"), ("sum", "mul"), ("any", "and")))
    assert not semirings("max", "mul") and not semirings("sum", "add")
    assert [s.name for s in semirings(add="logaddexp", times="add")] == ["log"]
