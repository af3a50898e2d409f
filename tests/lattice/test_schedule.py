"""Schedules of recurrences: against all small vectors, and unimodular completions by their definition."""

from __future__ import annotations

import itertools

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from tilec.ir.index import Affine
from tilec.ir.shape_class import Recorder
from tilec.lattice.schedule import Conflict, Dependence, completed, find_schedule
from tilec.lattice.sets import InRange

SIZE = 5


def uniform(*offset):
    """Every element of a box depends on the one that lies back by the offset."""
    names = tuple("abc"[: len(offset)])
    writes = tuple(map(Affine.variable, names))
    reads = tuple(w - d for w, d in zip(writes, offset, strict=True))
    return Dependence(names, tuple(InRange(f, SIZE) for f in (*writes, *reads)), writes, reads)


def suits(tau, offsets):
    return all(sum(a * b for a, b in zip(tau, d, strict=True)) >= 1 for d in offsets)


OFFSETS = st.integers(1, 3).flatmap(
    lambda rank: st.lists(st.tuples(*[st.integers(-2, 2)] * rank), min_size=1, max_size=4)
)


@settings(max_examples=60)
@given(OFFSETS)
def test_the_least_vector_or_a_conflict_that_needs_all_of_its_members(offsets):
    rank = len(offsets[0])
    found = find_schedule([uniform(*d) for d in offsets], rank)
    small = [t for t in itertools.product(range(-6, 7), repeat=rank) if suits(t, offsets)]
    if isinstance(found, Conflict):
        assert not small
        for k in found.among:
            rest = [offsets[j] for j in found.among if j != k]
            assert any(suits(t, rest) for t in itertools.product(range(-9, 10), repeat=rank))
        return
    assert suits(found, offsets)
    units = [t for t in small if sum(map(abs, t)) == 1]
    assert found in units if units else sum(map(abs, found)) <= min(sum(map(abs, t)) for t in small or [found])


def test_sizes_may_be_open_where_a_unit_vector_suits():
    size = Recorder().symbol("n", 50)
    b, t = map(Affine.variable, "bt")
    box = (InRange(b, size), InRange(t, size))
    back = Dependence(("b", "t"), (*box, InRange(t - 1, size)), (b, t), (b, t - 1))
    ahead = Dependence(("b", "t"), (*box, InRange(b + 1, size)), (b, t), (b + 1, t))
    assert find_schedule([back], 2) == (0, 1)
    assert find_schedule([ahead], 2) == (-1, 0)


def test_wraps_and_free_ranges():
    t, i, k = map(Affine.variable, "tik")
    box = (InRange(t, 7), InRange(i, 9), InRange(k, 9))
    mixed = Dependence(("t", "i", "k"), (*box, InRange(t - 1, 7)), (t, i), (t - 1, k))
    assert find_schedule([mixed], 2) == (1, 0)
    assert find_schedule([mixed, uniform(-1, 0)], 2) == Conflict((0, 1))
    steep = Dependence(("t", "i"), (*box[:2], InRange(t - 1, 7), InRange(i + 5, 9)), (t, i), (t - 1, i + 5))
    assert find_schedule([steep, uniform(0, 1)], 2) == (6, 1)


def test_reads_that_never_lie_inside_ask_for_nothing():
    far = uniform(SIZE, 0)
    assert find_schedule([far, uniform(0, -1)], 2) == (0, -1)
    assert find_schedule([], 2) == (1, 0)


@settings(max_examples=40)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=4).filter(lambda v: sympy.gcd(v) == 1))
def test_completions_are_unimodular(tau):
    matrix = completed(tuple(tau), [3, 4, 5, 6][: len(tau)])
    assert matrix[0] == tau
    assert abs(sympy.Matrix(matrix).det()) == 1


def test_a_single_element_that_reads_itself_has_no_order():
    assert find_schedule([Dependence((), (), (), ())], 0) == Conflict((0,))
