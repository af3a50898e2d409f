"""Random programs: tangents have one answer at every stage and on the backend, and are the gradient's transpose."""

import os

import pytest
from hypothesis import given, settings
from support.derivatives import check_tangents
from support.programs import PHASES, Case, Options, programs
from support.random_recurrences import recurrences

from tilec.language import parse

SCALE = int(os.environ.get("TILEC_RANDOM_SCALE", "1"))

FAMILIES = {
    "mixed": (Options(), 30),
    "contractions": (Options(kinds=("contraction",), statements=2), 25),
    "smooth": (Options(smooth=True), 20),
    "special": (Options(special=True, statements=3), 20),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_tangents_agree_at_every_stage_and_with_gradients(family):
    options, count = FAMILIES[family]
    compared = []

    @settings(max_examples=count * SCALE, phases=PHASES)
    @given(programs(options))
    def agree(case: Case):
        compared.extend(check_tangents(parse(case.source), list(case.inputs.values())))

    agree()
    assert sum(compared) >= count // 5, "hardly any program has a derivative to compare"


def test_tangents_of_recurrences():
    compared = []

    @settings(max_examples=15 * SCALE, phases=PHASES)
    @given(recurrences())
    def agree(case):
        source, arrays = case
        compared.extend(check_tangents(parse(source), arrays))

    agree()
    assert sum(compared) > 4, "hardly any recurrence has a derivative to compare"
