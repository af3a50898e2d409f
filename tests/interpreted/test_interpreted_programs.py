"""The Triton backend's kernels, interpreted on the CPU, against the oracle: random programs, and those once found."""

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from support.conditionals import CONDITIONALS
from support.found import FOUND
from support.naming import agree
from support.narrowed import narrowed
from support.programs import PHASES, Case, Options, programs
from support.stages import REFUSALS, element_types, gradient, run_backend, setting_of

import tilec
from tilec.ir.evaluate import evaluate
from tilec.language import parse, show
from tilec.pipeline import lower

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
SCALE = int(os.environ.get("TILEC_RANDOM_SCALE", "1"))
FAMILIES = {
    "mixed": (Options(), 20),
    "contractions": (Options(kinds=("contraction",), statements=2), 20),
    "elementwise": (Options(kinds=("elementwise", "structural", "contraction"), statements=5), 15),
    "smooth": (Options(smooth=True), 15),
    "special": (Options(special=True), 15),
}


def same(program, arrays):
    """The interpreted kernels give what the oracle does; None for a program that it refuses."""
    setting = setting_of(program, arrays)
    try:
        expected = evaluate(program, arrays)
    except REFUSALS:
        return None
    lowering = lower(program, setting.types, setting.values)
    floats = element_types(lowering.stages["flat"], lowering.types)
    rough = "float32" in floats or "rand" in show(program)  # draws are float32
    run_backend(program, arrays, setting, expected, "triton", rough)
    return expected


def agree_with_gradient(program, arrays):
    results = same(program, arrays)
    first = None if results is None else gradient(program, arrays)
    if first is not None:
        random = np.random.default_rng(0)
        same(first, [*arrays, *(random.integers(-2, 3, r.shape).astype(float) for r in results)])
    return results


@pytest.mark.parametrize("budget", ["20", "100", "400"])
def test_random_programs_in_slabs(budget, monkeypatch):
    """The same where next to nothing may be whole."""
    monkeypatch.setenv("TILEC_DEVICE_BUDGET", budget)
    ran = []

    @settings(max_examples=10 * SCALE, phases=PHASES)
    @given(programs(Options(smooth=True, statements=4)))
    def run(case: Case):
        ran.append(agree_with_gradient(parse(case.source), list(case.inputs.values())) is not None)

    run()
    assert any(ran)


@pytest.mark.parametrize("indexed", [False, True], ids=["elementwise", "bodies"])
def test_naming_an_intermediate_changes_nothing(indexed):
    def run(source, arrays):
        return tilec.compile(source, backend="triton")(*map(torch.from_numpy, arrays)).numpy()

    assert agree(run, indexed, range(12 * SCALE)) > 2 * SCALE


@pytest.mark.parametrize("case", CONDITIONALS)
@pytest.mark.one_in(2)
def test_accesses_in_branches(case):
    source, arrays, _ = CONDITIONALS[case]
    agree_with_gradient(parse(source), arrays)


@pytest.mark.parametrize("family", FAMILIES)
def test_random_programs_and_their_gradients(family):
    options, count = FAMILIES[family]
    ran = []

    @settings(max_examples=count * SCALE, phases=PHASES)
    @given(programs(options))
    def run(case: Case):
        ran.append(agree_with_gradient(parse(case.source), list(case.inputs.values())) is not None)

    run()
    assert sum(ran) > count / 2


def test_statements_with_fewer_points_than_elements():
    for seed in range(16 * SCALE):
        case = narrowed(seed)
        agree_with_gradient(parse(case.source), list(case.inputs.values()))


@pytest.mark.parametrize("case", FOUND)
@pytest.mark.one_in(2)
def test_found(case):
    source, arrays = FOUND[case]
    assert agree_with_gradient(parse(source), arrays) is not None
