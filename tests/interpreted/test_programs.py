"""The Triton backend's kernels, interpreted on the CPU, against the oracle: random programs, and those once found."""

import os
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from random.test_found import FOUND
from support.programs import PHASES, Case, Options, programs
from support.stages import REFUSALS, gradient, run_backend, setting_of

from tilec.ir.evaluate import evaluate
from tilec.ir.infer import infer
from tilec.language import parse
from tilec.pipeline import lower

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
SCALE = int(os.environ.get("TILEC_RANDOM_SCALE", "1"))
FAMILIES = {
    "mixed": (Options(), 60),
    "contractions": (Options(kinds=("contraction",), statements=2), 60),
    "elementwise": (Options(kinds=("elementwise", "structural", "contraction"), statements=5), 40),
    "smooth": (Options(smooth=True), 40),
    "special": (Options(special=True), 40),
}


def agree(program, arrays):
    """The interpreted kernels give what the oracle does; programs that it refuses are left out."""
    setting = setting_of(program, arrays)
    try:
        expected = evaluate(program, arrays)
    except REFUSALS:
        return None
    rough = any(
        t.dtype == "float32"
        for t in infer(lower(program, *setting_parts(setting)).stages["flat"], setting.types).values()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_backend(program, arrays, setting, expected, "triton", rough)
    return expected


def setting_parts(setting):
    return setting.types, setting.values


@pytest.mark.parametrize("family", FAMILIES)
def test_random_programs(family):
    options, count = FAMILIES[family]

    @settings(max_examples=count * SCALE, phases=PHASES)
    @given(programs(options))
    def run(case: Case):
        agree(parse(case.source), list(case.inputs.values()))

    run()


@pytest.mark.parametrize("case", FOUND)
def test_found(case):
    source, arrays = FOUND[case]
    program = parse(source)
    results = agree(program, arrays)
    assert results is not None
    first = gradient(program, arrays)
    if first is not None:
        random = np.random.default_rng(0)
        agree(first, [*arrays, *(random.integers(-2, 3, r.shape).astype(float) for r in results)])
