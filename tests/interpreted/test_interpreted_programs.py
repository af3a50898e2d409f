"""The Triton backend's kernels, interpreted on the CPU, against the oracle: random programs, and those once found."""

import os

import pytest
import torch
from hypothesis import given, settings
from support.naming import agree
from support.narrowed import narrowed
from support.programs import FAMILIES, PHASES, Case, Options, programs
from support.scale import scaled
from support.stages import agree_with_gradient

import tilec
from tilec.backends.triton.grouped_matmul import products
from tilec.language import parse
from tilec.transforms.lower import keyed_sums

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
COUNTS = {"mixed": 10, "contractions": 10, "elementwise": 7, "smooth": 7, "special": 7, "keyed": 7}


@pytest.mark.parametrize("budget", ["20", "100", "400"])
@pytest.mark.one_in(3)
def test_random_programs_in_slabs(budget, monkeypatch):
    """The same where next to nothing may be whole."""
    monkeypatch.setenv("TILEC_DEVICE_BUDGET", budget)
    ran = []

    @settings(max_examples=scaled(6), phases=PHASES)
    @given(programs(Options(smooth=True, statements=4)))
    def run(case: Case):
        ran.append(agree_with_gradient(parse(case.source), list(case.inputs.values())) is not None)

    run()
    assert any(ran)


@pytest.mark.parametrize("indexed", [False, True], ids=["elementwise", "bodies"])
def test_naming_an_intermediate_changes_nothing(indexed):
    def run(source, arrays):
        return tilec.compile(source, backend="triton")(*map(torch.from_numpy, arrays)).numpy()

    assert agree(run, indexed, range(scaled(12))) > scaled(1)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", COUNTS)
def test_random_programs_and_their_gradients(family, monkeypatch):
    for where, limit, value in ((products, "GAIN", 0.0), (products, "LEAST", 1), (keyed_sums, "LEAST_SIDE", 1)):
        monkeypatch.setattr(where, limit, value)
    options, count = FAMILIES[family], COUNTS[family]
    ran = []

    @settings(max_examples=scaled(count), phases=PHASES)
    @given(programs(options))
    def run(case: Case):
        ran.append(agree_with_gradient(parse(case.source), list(case.inputs.values())) is not None)

    run()
    assert sum(ran) > scaled(count) / 2


def test_statements_with_fewer_points_than_elements():
    for seed in range(scaled(8)):
        case = narrowed(seed)
        agree_with_gradient(parse(case.source), list(case.inputs.values()))
