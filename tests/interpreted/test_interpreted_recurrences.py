"""Recurrences as kernels, interpreted on the CPU, against the oracle."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import PHASES
from support.random_recurrences import recurrences
from support.recurrences import RECURRENCES
from test_interpreted_programs import agree, agree_with_gradient

from tilec.language import parse

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
SCALE = int(os.environ.get("TILEC_RANDOM_SCALE", "1"))


@pytest.mark.parametrize("case", RECURRENCES)
def test_each_recurrence_and_its_gradient(case):
    source, arrays = RECURRENCES[case]
    assert agree_with_gradient(parse(source), list(arrays)) is not None


@settings(max_examples=60 * SCALE, phases=PHASES)
@given(recurrences())
def test_random_recurrences(case):
    source, arrays = case
    agree(parse(source), arrays)


@settings(max_examples=25 * SCALE, phases=PHASES)
@given(recurrences(smooth=True), st.integers(0, 9))
def test_random_gradients(case, seed):
    source, arrays = case
    agree_with_gradient(parse(source), arrays)
