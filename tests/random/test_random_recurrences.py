"""Random recurrences: every stage and the backend against the oracle, and the gradient as a program of its own."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import PHASES
from support.random_recurrences import recurrences
from support.scale import scaled
from support.stages import check, gradient

from tilec.ir.evaluate import evaluate
from tilec.language import parse


@settings(max_examples=scaled(30), phases=PHASES)
@given(recurrences(gathers=True))
def test_values(case):
    source, arrays = case
    check(parse(source), arrays)


@settings(max_examples=scaled(12), phases=PHASES)
@given(recurrences(smooth=True), st.integers(0, 9))
def test_gradients(case, seed):
    source, arrays = case
    program = parse(source)
    derived = gradient(program, arrays)
    if derived is None:
        return
    (output,) = check(program, arrays, backend=None)
    random = np.random.default_rng(seed)
    cotangent = random.normal(size=output.shape)
    check(derived, [*arrays, cotangent])
    direction = [random.normal(size=a.shape) for a in arrays]
    step = 1e-5
    ends = [evaluate(program, [a + h * d for a, d in zip(arrays, direction, strict=True)])[0] for h in (step, -step)]
    slope = np.sum(cotangent * (ends[0] - ends[1])) / (2 * step)
    parts = [np.sum(g * d) for g, d in zip(evaluate(derived, [*arrays, cotangent]), direction, strict=True)]
    if np.isfinite(slope) and np.isfinite(sum(parts)):
        assert abs(slope - sum(parts)) <= 1e-4 * (1 + abs(slope) + sum(map(abs, parts)))
