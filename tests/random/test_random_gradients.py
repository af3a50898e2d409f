"""Random programs: gradients have one answer at every stage and on the backend, and are the derivative."""

import numpy as np
import pytest
from hypothesis import given, settings
from support.programs import PHASES, Case, Options, programs
from support.scale import scaled
from support.stages import check, gradient

from tilec.ir.evaluate import evaluate
from tilec.language import parse

FAMILIES = {
    "mixed": (Options(), 12),
    "contractions": (Options(kinds=("contraction",), statements=2), 12),
    "smooth": (Options(smooth=True), 8),
    "special": (Options(special=True, statements=3), 8),
}


def cotangents(results, random):
    """A d_output for each output: small integers where it is floating."""
    return [
        random.integers(-2, 3, r.shape).astype(np.float64) if r.dtype.kind == "f" else np.zeros(r.shape, r.dtype)
        for r in results
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_agree_at_every_stage(family):
    options, examples = FAMILIES[family]

    @settings(max_examples=scaled(examples), phases=PHASES)
    @given(programs(options))
    def agree(case: Case):
        program, arrays = parse(case.source), list(case.inputs.values())
        results = check(program, arrays, backend=None)
        first = gradient(program, arrays)
        if results is not None and first is not None:
            check(first, arrays + cotangents(results, np.random.default_rng(0)))

    agree()


def test_second_gradients_agree_at_every_stage():
    options = Options(kinds=("contraction", "contraction", "elementwise"), statements=2, smooth=True)

    @settings(max_examples=scaled(5), phases=PHASES)
    @given(programs(options))
    def agree(case: Case):
        program, arrays = parse(case.source), list(case.inputs.values())
        results = check(program, arrays, backend=None)
        first = gradient(program, arrays)
        if results is None or first is None:
            return
        random = np.random.default_rng(0)
        arrays = arrays + cotangents(results, random)
        results = check(first, arrays, backend=None)
        check(gradient(first, arrays), arrays + cotangents(results, random))

    agree()


STEP = 1e-5


def test_gradients_are_derivatives():
    """Along a random direction of the inputs the outputs change as the gradient says."""
    compared = []

    @settings(max_examples=scaled(150), phases=PHASES)
    @given(programs(Options(smooth=True)))
    def derivative(case: Case):
        program, arrays = parse(case.source), list(case.inputs.values())
        try:
            results = evaluate(program, arrays)
        except Exception:
            return  # refused for its sizes or writers: the other tests look at those
        random = np.random.default_rng(0)
        finite = [np.isfinite(r) if r.dtype.kind == "f" else np.zeros(r.shape, bool) for r in results]
        weights = [np.where(f, random.normal(size=f.shape), 0) for f in finite]
        floating = [a.dtype.kind == "f" for a in arrays]
        direction = [random.normal(size=a.shape) if f else 0 for a, f in zip(arrays, floating, strict=True)]
        first = gradient(program, arrays)
        if first is None:
            return
        gradients = evaluate(first, arrays + weights)

        def along(step):
            moved = [a + step * d if f else a for a, d, f in zip(arrays, direction, floating, strict=True)]
            return [np.where(f, r, 0) for f, r in zip(finite, evaluate(program, moved), strict=True)]

        # fourth order: 8 (f(h) - f(-h)) - (f(2h) - f(-2h)) over 12 h
        slopes = sum(
            np.sum(w * (8 * (a - b) - (c - d))) / (12 * STEP)
            for w, a, b, c, d in zip(weights, along(STEP), along(-STEP), along(2 * STEP), along(-2 * STEP), strict=True)
        )
        pulled = [
            np.sum(g * d)
            for g, d in zip(gradients, [d for d, f in zip(direction, floating, strict=True) if f], strict=True)
        ]
        told = sum(pulled)
        if np.isfinite(slopes) and np.isfinite(told):
            compared.append(abs(slopes) > 1e-3)
            scale = sum(np.sum(np.abs(w[f] * r[f])) for w, r, f in zip(weights, results, finite, strict=True))
            scale += sum(map(abs, pulled))
            assert abs(slopes - told) <= 1e-6 * (1 + scale), f"the outputs change by {slopes}, the gradient says {told}"

    derivative()
    assert sum(compared) > 30, "hardly any program has a derivative to compare"
