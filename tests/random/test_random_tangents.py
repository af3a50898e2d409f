"""Random programs: tangents have one answer at every stage and on the backend, and are the gradient's transpose."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.derivatives import check_tangents
from support.programs import PHASES, Case, Options, programs
from support.random_recurrences import recurrences
from support.scale import scaled

from tilec.language import parse

FAMILIES = {
    "mixed": (Options(), 10),
    "contractions": (Options(kinds=("contraction",), statements=2), 8),
    "smooth": (Options(smooth=True), 8),
    "special": (Options(special=True, statements=3), 8),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_tangents_agree_at_every_stage_and_with_gradients(family):
    options, count = FAMILIES[family]
    compared = []

    @settings(max_examples=scaled(count), phases=PHASES)
    @given(programs(options))
    def agree(case: Case):
        compared.extend(check_tangents(parse(case.source), list(case.inputs.values())))

    agree()
    assert sum(compared) >= scaled(count) // 5, "hardly any program has a derivative to compare"


def test_tangents_of_recurrences():
    compared = []

    @settings(max_examples=scaled(15), phases=PHASES)
    @given(recurrences())
    def agree(case):
        source, arrays = case
        compared.extend(check_tangents(parse(source), arrays))

    agree()
    assert sum(compared) >= scaled(2), "hardly any recurrence has a derivative to compare"


ELEMENTS = (
    "A[i]",
    "B[i]",
    "A[i + 1]",
    "B[2*i]",
    "A[2*i + k]",
    "B[i] * A[i - 1]",
    "sin(A[i] + B[i])",
    "max(A[i], B[i])",
    "A[i] * B[i + k]",
)
CONDITIONS = ("C[k] > 0", "C[i] > k", "k < 2", "max[p](C[p]) > k")
AGGREGATIONS = ("sum", "mean", "prod", "max", "min", "logsumexp")


@st.composite
def branches(draw):
    """(source, arrays): conditionals in the branches of which inputs stand that are not all differentiated."""
    pick = lambda options: draw(st.sampled_from(options))  # noqa: E731
    pair = lambda c: f"({c} ? {pick(ELEMENTS)} : {pick(ELEMENTS)})"  # noqa: E731
    first = pick(CONDITIONS)
    body = pair(first)
    if draw(st.booleans()):
        body = f"{body} {pick('*+')} {pair(pick((first, *CONDITIONS)))}"
    random = np.random.default_rng(draw(st.integers(0, 99)))
    types = pick([("int32", "float64"), ("float64", "int64"), ("float64", "float64")])
    arrays = [random.integers(-2, 3, n).astype(t) for n, t in zip((4, 5, 3), (*types, "int64"), strict=True)]
    left = pick(("[]", "[k : 3]"))
    return f"function (A[N], B[M], C[L]) -> (T) {{ T{left} = {pick(AGGREGATIONS)}({body}), k < 3; }}", arrays


def test_tangents_of_branches():
    compared = []

    @settings(max_examples=scaled(12), phases=PHASES)
    @given(branches())
    def agree(case):
        source, arrays = case
        compared.extend(check_tangents(parse(source), arrays))

    agree()
    assert sum(compared) >= scaled(2), "hardly any conditional has a derivative to compare"
