"""The laws of the semirings, on the NumPy functions of the table."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tilec.backends.common.scalars import identity
from tilec.errors import TypeMistake
from tilec.ir.aggregations import AGGREGATIONS, SEMIRINGS, SPLITTABLE, Aggregation
from tilec.ir.functions import FUNCTIONS
from tilec.ir.infer import aggregate_type
from tilec.ir.oracle.accumulate import COMBINE_VALUES, empty_value
from tilec.ir.types import DTYPES, ElementType, Kind, is_floating
from tilec.transforms.autodiff.adjoint import ADJOINT_RULES
from tilec.transforms.util.kinds import ANY, aggregated

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
    assert set(ADJOINT_RULES) == set(AGGREGATIONS) == {*COMBINE_VALUES, "assign"}
    assert {"sum", "prod", "max", "min", "logsumexp", "any", "all"} <= SPLITTABLE
    assert SPLITTABLE.isdisjoint(("assign", "mean", "argmax", "argmin"))
    for s in SEMIRINGS.values():
        assert AGGREGATIONS[s.plus].times == s.times
        assert AGGREGATIONS[s.plus].identity == s.zero
    assert {(s.plus, s.times) for s in SEMIRINGS.values()} >= {("max", "add"), ("sum", "mul"), ("any", "and")}


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_aggregation_of_bits(dtype, monkeypatch):
    """One whose identity has all bits set, of integers and bool alone."""
    monkeypatch.setitem(AGGREGATIONS, "bits_of_all", Aggregation("bits_of_all", None, -1, "bits"))
    assert aggregated("bits_of_all", ANY) == {Kind.BOOL, Kind.INTEGER}
    if is_floating(dtype):
        with pytest.raises(TypeMistake, match=f"`bits_of_all` works on the bits of integers and bool, not on {dtype}"):
            aggregate_type("bits_of_all", ElementType(dtype))
        return
    assert aggregate_type("bits_of_all", ElementType(dtype)).dtype == dtype
    start = np.asarray(identity("bits_of_all", dtype), dtype)
    assert start == np.asarray(empty_value("bits_of_all", dtype)).astype(dtype)
    for value in (0, 1, 0x5A):
        element = np.asarray(value).astype(dtype)
        assert np.bitwise_and(start, element) == element
