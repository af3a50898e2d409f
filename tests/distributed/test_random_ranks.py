"""Random programs on simulated ranks: the values and gradients of one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import PHASES, Options, programs
from support.random_recurrences import recurrences
from support.scale import scaled
from support.sharded import check_ranks, layouts
from support.stages import REFUSALS, gradient

import tilec
from tilec.ir.evaluate import evaluate
from tilec.language import parse
from tilec.transforms.bind.bind import size_inputs

FAMILIES = {
    "mixed": (Options(statements=3), 9),
    "contractions": (Options(kinds=("contraction",), statements=2), 9),
    "smooth": (Options(smooth=True, statements=2), 6),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_agree_with_one(family):
    options, count = FAMILIES[family]

    @settings(max_examples=scaled(count), phases=PHASES)
    @given(programs(options), st.data())
    def agree(case, data):
        program, arrays = parse(case.source), list(case.inputs.values())
        try:
            expected = evaluate(program, arrays)
        except REFUSALS:
            return
        ranks, placements = data.draw(layouts(arrays))
        sizes = [program.input_names().index(n) for n in size_inputs(program)]
        derived = gradient(program, arrays)
        gradients = None
        if derived is not None:
            random = np.random.default_rng(0)
            cotangents = [random.integers(-2, 3, r.shape).astype(np.float64) for r in expected]
            given = [
                c if r.dtype.kind == "f" else np.zeros(r.shape, r.dtype)
                for c, r in zip(cotangents, expected, strict=True)
            ]
            gradients = cotangents, evaluate(derived, [*arrays, *given])
        check_ranks(tilec.compile(case.source), sizes, arrays, ranks, placements, expected, 3e-5, gradients)

    agree()


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=scaled(5), phases=PHASES)
@given(recurrences(smooth=True), st.data())
def test_recurrences_agree_with_one_rank(case, data):
    source, arrays = case
    program = parse(source)
    expected = evaluate(program, arrays)
    ranks, placements = data.draw(layouts(arrays))
    derived, gradients = gradient(program, arrays), None
    if derived is not None:
        cotangents = [np.random.default_rng(1).normal(size=r.shape) for r in expected]
        gradients = cotangents, evaluate(derived, [*arrays, *cotangents])
    check_ranks(tilec.compile(source), (), arrays, ranks, placements, expected, 3e-5, gradients)
