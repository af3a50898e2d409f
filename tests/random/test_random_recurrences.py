"""Random recurrences: every stage and the backend against the oracle, and the gradient as a program of its own."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import PHASES
from support.random_recurrences import recurrences
from support.stages import check, gradient

from tilec.language import parse

SCALE = int(os.environ.get("TILEC_RANDOM_SCALE", "1"))


@settings(max_examples=30 * SCALE, phases=PHASES)
@given(recurrences())
def test_values(case):
    source, arrays = case
    check(parse(source), arrays)


@settings(max_examples=12 * SCALE, phases=PHASES)
@given(recurrences(smooth=True), st.integers(0, 9))
def test_gradients(case, seed):
    source, arrays = case
    program = parse(source)
    derived = gradient(program, arrays)
    if derived is None:
        return
    (output,) = check(program, arrays, backend=None)
    check(derived, [*arrays, np.random.default_rng(seed).normal(size=output.shape)])
