"""Accesses in the branches of conditionals: values at every stage, gradients, errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.conditionals import CONDITIONALS
from support.derivatives import check_tangents
from support.stages import check, gradient, same

import tilec
from tilec.errors import UnboundIndex, Unsupported, WriteConflict
from tilec.ir.evaluate import evaluate
from tilec.ir.types import TensorType
from tilec.language import parse, show
from tilec.transforms.autodiff.grad import grad
from tilec.transforms.batching.vmap import vmap
from tilec.transforms.bind.bind import bind

SMOOTH = ("rotary embedding", "soft edit distance", "two ranges", "a sum of both", "a conditional under a function")


def seeds(results, random):
    return [random.integers(-2, 3, r.shape).astype(float) for r in results]


@pytest.mark.parametrize("case", CONDITIONALS)
@pytest.mark.one_in(8)
def test_values_and_gradients(case):
    source, arrays, expected = CONDITIONALS[case]
    program, random = parse(source), np.random.default_rng(0)
    results = check(program, arrays)
    if expected is not None:
        assert np.array_equal(results[0], expected)
    first = gradient(program, arrays)
    if first is None:
        return
    arrays = [*arrays, *seeds(results, random)]
    results = check(first, arrays)
    if case in SMOOTH:
        check(gradient(first, arrays), [*arrays, *seeds(results, random)])


@pytest.mark.parametrize("case", SMOOTH)
def test_gradients_are_derivatives(case):
    source, arrays, _ = CONDITIONALS[case]
    program, random = parse(source), np.random.default_rng(1)
    (value,) = evaluate(program, arrays)
    weight = random.normal(size=value.shape)
    direction = [random.normal(size=a.shape) for a in arrays]
    step = 1e-6
    ends = [evaluate(program, [a + x * d for a, d in zip(arrays, direction, strict=True)])[0] for x in (-step, step)]
    gradients = evaluate(grad(program), [*arrays, weight])
    wanted = ((ends[1] - ends[0]) / (2 * step) * weight).sum()
    got = sum((g * d).sum() for g, d in zip(gradients, direction, strict=True))
    assert np.isclose(got, wanted, rtol=1e-5)


def test_a_dropped_operand_keeps_its_branch():
    source = "function (A[N], B[M], C[K]) -> (O) { O[i : N] = +((k < i ? A[k] : B[k]) + C[i - k]); }"
    shown = show(grad(parse(source), ("C",)))
    assert "(k < i ? in(A[k]) : in(B[k]))" in shown


def test_a_branch_that_stays_inside_is_read_without_a_guard():
    program = parse(CONDITIONALS["a turn"][0])
    (s,) = bind(program, {"X": TensorType((6,), "float32")}, {}).statements
    assert s.guard is None
    (s,) = bind(program, {"X": TensorType((5,), "float32")}, {}).statements
    assert s.guard is not None


@pytest.mark.parametrize(
    "text",
    [
        "O[i : N] = +(i < 3 ? A[k] : 1)",
        "O[i : N] = mean(i < 3 ? A[k] : 0)",
        "O[i : N] = +(i < 3 ? A[k] : B[i])",
        "O[i : N] = +(B[i] * (i < 3 ? A[k] : 0))",
        "O[i : N] = 2 * sum(i < 3 ? A[k] : B[i]*k)",
    ],
)
def test_every_branch_bounds(text):
    with pytest.raises(UnboundIndex, match="nothing bounds `k`"):
        parse(f"function (A[N], B[N]) -> (O) {{ {text}; }}")


def test_two_writers_are_looked_for_among_the_points_that_conditions_leave():
    types = {"A": TensorType((4,), "float32"), "B": TensorType((4,), "float32")}
    apart = parse("function (A[4], B[4]) -> (O) { O[i + 4*j : 8] = =(j == 0 ? A[i] : B[i]), j < 2; }")
    bind(apart, types, {})
    meeting = parse("function (A[4], B[4]) -> (O) { O[i + 3*j : 8] = =(j == 0 ? A[i] : B[i]), j < 2; }")
    with pytest.raises(WriteConflict):
        bind(meeting, types, {})
    shorter = parse("function (A[4], B[3]) -> (O) { O[i + 3*j : 8] = =(j == 1 ? A[i] : B[i]), j < 2; }")
    bind(shorter, {**types, "B": TensorType((3,), "float32")}, {})


@pytest.mark.parametrize("rows, size", [(0, 2), (2, 0), (0, 0)])
def test_what_only_branches_bound_where_there_are_no_points(rows, size):
    """The bound text says a range for it all the same."""
    source = f"T[i : {size}] = +(A[j, 3] < 2 ? B[k - 2] : C[D[k]]);"
    arrays = [np.ones((rows, 5)), np.ones(2), np.ones(2), np.zeros(3, int)]
    (result,) = check(parse(f"function (A[J, 5], B[K], C[N], D[M]) -> (T) {{ {source} }}"), arrays)
    assert result.tolist() == [0.0] * size


@pytest.mark.parametrize("case", CONDITIONALS)
@pytest.mark.one_in(3)
def test_tangents_and_batches(case):
    source, arrays, _ = CONDITIONALS[case]
    program = parse(source)
    list(check_tangents(program, arrays))
    whole = vmap(program, [0] * len(arrays), [0] * len(program.outputs))
    others = [a[..., ::-1] if a.ndim and a.dtype.kind == "f" else a for a in arrays]
    got = check(whole, [np.stack(pair) for pair in zip(arrays, others, strict=True)])
    for k, element in enumerate((arrays, others)):
        for e, g in zip(evaluate(program, element), got, strict=True):
            assert same(e, g[k], 1e-9)


MANY = " * ".join(f"(C[i % 4] > {k} ? A[i] : B[i])" for k in range(7))
A, B, C = np.array([1.0, 2, 3, 4]), np.array([1.0, 1, 1, 1]), np.array([0, 3, 1, 2])


@pytest.mark.parametrize(
    "text, expected",
    [
        (f"O[] = +({MANY})", 28),
        (f"O[] = +(i < 4 ? {MANY} : A[i - 4])", 38),
        (f"O[] = +({MANY.replace('B[i]', 'B[i + j]').replace('A[i]', 'A[i - j]')}), j < 2", 32),
    ],
)
@pytest.mark.one_in(4)
def test_more_ways_through_conditionals_than_are_looked_at(text, expected):
    f = tilec.compile(f"function (A[N], B[N], C[L]) -> (O) {{ {text}; }}")
    a, b, c = map(torch.from_numpy, (A, B, C))
    assert f(a, b, c) == expected
    assert torch.autograd.gradcheck(
        f, (a.requires_grad_(), b.requires_grad_(), c), check_forward_ad=True, fast_mode=True
    )


def test_writers_that_many_conditionals_let_meet():
    types = {"A": TensorType((4,), "float32"), "C": TensorType((4,), "int64")}
    body = MANY.replace("B[i]", "A[i - 4]")
    with pytest.raises(WriteConflict):
        bind(parse(f"function (A[4], C[4]) -> (O) {{ O[0*i : 1] = =({body}); }}"), types, {})
    bind(parse(f"function (A[4], C[4]) -> (O) {{ O[i - i % 2 + i % 2 : 8] = =({body}); }}"), types, {})


def test_no_numbers_for_the_points_of_many_conditionals():
    types = {"A": TensorType((4,), "float32"), "B": TensorType((4,), "float32"), "C": TensorType((4,), "int64")}
    with pytest.raises(Unsupported, match="argmax numbers the points of too many conditionals"):
        bind(parse(f"function (A[4], B[4], C[4]) -> (O) {{ O[] = argmax({MANY}); }}"), types, {})


def test_a_range_that_the_text_gives_is_not_given_twice():
    source = "T[i : 4] = +(i >= 2 ? A[k, j] : B[l, j, C[0]]), i - 1 < 4, k < 2, l < 3;"
    arrays = [np.ones((4, 4)), np.ones((3, 4, 4)), np.zeros(3, int)]
    check(parse(f"function (A[N, M], B[L, M, K], C[O]) -> (T) {{ {source} }}"), arrays)
