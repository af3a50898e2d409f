"""Random programs: tangents have one answer at every stage and on the backend, and are the gradient's transpose."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from support.programs import PHASES, Case, Options, programs
from support.random_recurrences import recurrences
from support.stages import check, gradient, tangent

from tilec.ir.evaluate import evaluate
from tilec.language import parse

SCALE = int(os.environ.get("TILEC_RANDOM_SCALE", "1"))

FAMILIES = {
    "mixed": (Options(), 60),
    "contractions": (Options(kinds=("contraction",), statements=2), 60),
    "smooth": (Options(smooth=True), 40),
    "special": (Options(special=True, statements=3), 40),
}


def drawn(arrays, random):
    """A number for each element of those arrays that are floating, small and integral; zeros of the others' types."""
    return [
        random.integers(-2, 3, a.shape).astype(np.float64) if a.dtype.kind == "f" else np.zeros(a.shape, a.dtype)
        for a in arrays
    ]


def floating(arrays):
    return [a for a in arrays if a.dtype.kind == "f"]


def paired(left, right):
    """The inner product, and the scale of its terms."""
    with np.errstate(invalid="ignore"):
        terms = [np.ravel(a * b) for a, b in zip(left, right, strict=True)]
        flat = np.concatenate([*terms, np.zeros(1)])
        return float(flat.sum()), float(np.abs(flat).sum())


def check_tangents(program, arrays):
    """Whether there was something to compare, if so far the program has an answer."""
    first = gradient(program, arrays)
    if first is None:
        return
    try:
        results = evaluate(program, arrays)
    except Exception:
        return  # refused for its sizes or writers: the other tests look at those
    random = np.random.default_rng(0)
    tangents, cotangents = drawn(floating(arrays), random), drawn(results, random)
    forward = check(tangent(program, arrays), arrays + tangents)
    assert forward is not None
    for a, b in zip(results, forward, strict=False):
        np.testing.assert_array_equal(a, b)
    weighed, first_scale = paired(cotangents, forward[len(results) :])
    pulled, second_scale = paired(tangents, evaluate(first, arrays + cotangents))
    if np.isfinite(weighed) and np.isfinite(pulled):
        assert abs(weighed - pulled) <= 1e-9 * (1 + first_scale + second_scale), f"{weighed}, not {pulled}"
        yield pulled != 0


@pytest.mark.parametrize("family", FAMILIES)
def test_tangents_agree_at_every_stage_and_with_gradients(family):
    options, count = FAMILIES[family]
    compared = []

    @settings(max_examples=count * SCALE, phases=PHASES)
    @given(programs(options))
    def agree(case: Case):
        compared.extend(check_tangents(parse(case.source), list(case.inputs.values())))

    agree()
    assert sum(compared) >= count // 4, "hardly any program has a derivative to compare"


def test_tangents_of_recurrences():
    compared = []

    @settings(max_examples=30 * SCALE, phases=PHASES)
    @given(recurrences())
    def agree(case):
        source, arrays = case
        compared.extend(check_tangents(parse(source), arrays))

    agree()
    assert sum(compared) >= 10, "hardly any recurrence has a derivative to compare"
