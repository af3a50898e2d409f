"""Integer sets against enumeration, and the questions that a compiler asks of them on statements it meets."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import brute_force
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_statements import scatters, statements
from support.effort import counted
from support.scale import scaled

from tilec.errors import UnboundIndex
from tilec.ir.at_sizes import value_at, with_numbers
from tilec.ir.index import linear
from tilec.ir.program import Access, Index, Int, Pad
from tilec.ir.shape_class import Recorder
from tilec.ir.symbolic import is_symbolic
from tilec.language import parse
from tilec.lattice import questions, sets
from tilec.lattice.sets import IntegerSet, bounds, bounds_of, covers, domain, is_box, writes_conflict


def statement(text):
    """The last statement of a program with literal sizes, and its shapes."""
    program = parse(text)
    return program.statements[-1], sets.shapes_of(program)


def points(s, shapes):
    try:
        return brute_force.valid_points(s, shapes)
    except brute_force.TooManyPoints:
        assume(False)


CASES = st.one_of(statements(), scatters())


@settings(max_examples=scaled(50))
@given(CASES, st.data())
def test_bounds_with_a_variable_fixed(case, data):
    s, shapes = case
    variables = domain(s, shapes).variables
    assume(variables)
    v, value = data.draw(st.sampled_from(variables)), data.draw(st.integers(-2, 5))
    env, _ = points(s, shapes)
    keep = env[v] == value
    expected = {u: (int(x[keep].min()), int(x[keep].max())) for u, x in env.items()} if keep.any() else None
    assert bounds(s, shapes, {v: value}) == expected


@settings(max_examples=scaled(50))
@given(CASES, st.data())
def test_is_box(case, data):
    s, shapes = case
    env, count = points(s, shapes)
    assume(count)
    d, box = domain(s, shapes), bounds(s, shapes)
    volume = 1
    for low, high in box.values():
        volume *= high - low + 1
    assert is_box(d, box) == (volume == count)
    point = {v: int(x[data.draw(st.integers(0, count - 1))]) for v, x in env.items()}
    valid = any(all(env[v][i] == point[v] for v in point) for i in range(count))
    assert is_box(d, {v: (x, x) for v, x in point.items()}) == valid


@settings(max_examples=scaled(50))
@given(CASES)
def test_writes_that_meet(case):
    s, shapes = case
    points(s, shapes)
    written = Counter(row[: len(s.index)] for row in brute_force.contributions(s, shapes))
    assert writes_conflict(s, shapes) == (max(written.values(), default=0) > 1)


@settings(max_examples=scaled(50))
@given(CASES)
def test_outputs_that_are_filled(case):
    s, shapes = case
    points(s, shapes)
    full = brute_force.elements(s, shapes) == brute_force.all_elements(s)
    assert covers(s, shapes) == full
    assert covers(replace(s, guard=Int(1)), shapes) == (full and 0 in [n.value for n in s.sizes])


@pytest.mark.parametrize(
    ("text", "conflict"),
    [
        ("O[i : 3] = =(A[i, j]);", True),
        ("O[i, j : 3, 4] = A[i, j];", False),
        ("O[2*i + j : 9] = =(A[i, j]), j < 2;", False),
        ("O[2*i + j : 9] = =(A[i, j]), j < 3;", True),
        ("O[(i + 2) % 3 : 3] = =(B[i]);", False),
        ("O[i % 2 : 3] = =(B[i]);", True),
        ("O[clamp(i, 0, 1) : 3] = =(B[i]);", True),
        ("O[i : 3] = =(A[i, 2*j]), j < 1;", False),
        ("O[2*i - 3 : 1] = =(B[i]);", False),
        ("O[0*i + 7 : 3] = =(B[i]);", False),
        ("O[3*i + 2*j : 4] = =(A[i, j]);", False),
    ],
)
def test_two_writers(text, conflict):
    s, shapes = statement(f"function (A[3, 4], B[3]) -> (O) {{ {text} }}")
    assert writes_conflict(s, shapes) == conflict


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("O[i : 3] = +(A[i, j]);", True),
        ("O[i + 1 : 3] = +(A[i, j]);", False),
        ("O[i - 1 : 2] = +(A[i, j]);", True),
        ("O[i + j : 6] = +(A[i, j]);", True),
        ("O[i + j : 7] = +(A[i, j]);", False),
        ("O[2*i + j : 6] = +(A[i, j]), j < 2;", True),
        ("O[2*i : 5] = +(B[i]);", False),
        ("O[2*i : 1] = +(B[i]);", True),
        ("O[i, i : 3, 3] = +(B[i]);", False),
        ("O[i, i : 1, 1] = +(B[i]);", True),
        ("O[i, 0 : 3, 1] = +(B[i]);", True),
        ("O[i, 0 : 3, 2] = +(B[i]);", False),
        ("O[i : 0] = +(B[i]);", True),
        ("O[i : 3] = +(B[i + 9]);", False),
        ("O[i : 3] = +(pad(B[i + 9], 0));", True),
        ("O[(i + 1) % 3 : 3] = +(B[i]);", True),
        ("O[i : 3] = +(B[J[i]]);", False),
        ("O[i : 3] = +(B[i] > 0 ? B[i]);", False),
        ("O[] = +(B[i]);", True),
    ],
)
def test_what_is_surely_written(text, filled):
    s, shapes = statement(f"function (A[3, 4], B[3], J[3]) -> (O) {{ {text} }}")
    assert covers(s, shapes) == filled


def test_tensor_elements_are_left_out_but_what_they_are_read_at_is_not():
    s, shapes = statement("function (A[9], J[5]) -> (O) { O[i : 7] = +(A[J[i - 1] + 1]); }")
    d = domain(s, shapes)
    assert len(d.dependent) == 1
    assert bounds(s, shapes) == {"i": (1, 5)}
    assert writes_conflict(replace(s, index=(Access("J", (Index("i"),)),)), shapes)


def test_pad_and_nested_aggregations_do_not_constrain():
    s, shapes = statement("function (A[9], J[5]) -> (O) { O[i : 12] = +(pad(A[J[i]], 1) + pad(A[i], J[i])); }")
    assert bounds(s, shapes) == {"i": (0, 4)}
    s, shapes = statement("function (A[9], J[5]) -> (O) { O[i : 12] = A[i] + sum(J[i + j] * J[j]); }")
    assert bounds(s, shapes) == {"i": (0, 8)}
    (nested,) = (a for a in s.body.args if not isinstance(a, Access))
    inner = sets.domain_of([nested.body], shapes, nested.constraints)
    assert bounds_of(inner) == {"i": (-4, 4), "j": (0, 4)}


def test_infinite_sets_are_an_error():
    d = IntegerSet(("i", "j"), (sets.InRange(linear(Index("i") + Index("j")), 3),))
    with pytest.raises(UnboundIndex, match="i, j"):
        bounds_of(d)
    with pytest.raises(UnboundIndex, match="i"):
        bounds_of(IntegerSet(("i",), ()))


def test_no_variables():
    holds, fails = (IntegerSet((), (sets.InRange(linear(Int(n)), 3),)) for n in (2, 3))
    assert bounds_of(holds) == {} and bounds_of(fails) is None
    assert is_box(holds, {}) and not is_box(fails, {})
    assert bounds_of(IntegerSet((), (sets.InRange(linear(Int(1) / Int(2)), 3),))) is None


def test_negative_and_zero_moduli():
    s, shapes = statement("function (A[9]) -> (O) { O[i : 12] = +(A[i % 5] * A[i]); }")
    negative = sets.domain_of([Access("A", (linear(Index("i")).to_expr(),))], shapes, s.constraints)
    assert bounds_of(negative) == {"i": (0, 8)}
    by = Access("A", (linear(parse_index("4 - (i % -3)")).to_expr(),))
    assert bounds_of(sets.domain_of([by, Access("A", (Index("i"),))], {"A": (9,)})) == {"i": (0, 8)}
    by = Access("A", (linear(parse_index("i % 0")).to_expr(),))
    assert bounds_of(sets.domain_of([by, Access("A", (Index("i"),))], {"A": (9,)})) is None


def parse_index(text):
    program = parse(f"function (A[9]) -> (O) {{ O[i : 9] = +(pad(A[{text}], 0) * A[i]); }}")
    pad = program.statements[0].body.args[0]
    assert isinstance(pad, Pad)
    return pad.access.index[0]


def test_a_seven_dimensional_convolution_is_no_effort():
    ys, js = [f"y{i}" for i in range(7)], [f"j{i}" for i in range(7)]
    index = ", ".join(f"2*{j} + 3*{y}" for y, j in zip(ys, js, strict=True))
    s, shapes = statement(
        f"function (D[4, {', '.join('5' * 7)}, 6], K[{', '.join('3' * 7)}, 7, 6]) -> (O) {{"
        f"O[n, {index}, ci : 4, {', '.join(['15'] * 7)}, 7] ="
        f" +(D[n, {', '.join(ys)}, co] * K[{', '.join(js)}, ci, co]); }}"
    )
    questions._ranges.cache_clear()
    box, calls = counted(lambda: bounds(s, shapes))
    assert calls < 20_000  # some 5 ms
    assert box["y3"] == (0, 4) and box["j6"] == (0, 2) and box["ci"] == (0, 6)


def test_questions_are_asked_again_at_other_sizes():
    recorder = Recorder()
    n, i = recorder.symbol("n", 12), linear(Index("i"))
    writer = questions.IslText({"i": "x0"}, (0, 11))
    text = writer.text([sets.InRange(i, n)], [i])
    assert questions.fills(1, 1, questions.box_facts("o", 1), text, *writer.numbers)
    (asked,) = recorder.guards
    assert value_at(asked, {"n": 12}) and value_at(asked, {"n": 13}) and not value_at(asked, {"n": 11})
    writer = questions.IslText({"i": "x0"})
    end = questions.end_of(0, 1, 1, writer.text([sets.InRange(i * 2 + 1, n)]), *writer.numbers)
    assert is_symbolic(end) and end.value == 5 and with_numbers(end, {"n": 21}) == 9
