"""Random programs with infinities and NaN where no point reads: values and gradients are as without them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from support.programs import PHASES, Case, Options, programs
from support.scale import scaled
from support.stages import REFUSALS, check, cotangents, gradient

from tilec.ir.evaluate import evaluate
from tilec.ir.program import Program
from tilec.language import parse

OPTIONS = Options(smooth=True, statements=2, kinds=("contraction",))


def with_unread(program: Program, first: Program, arrays: list[np.ndarray]) -> list[np.ndarray] | None:
    """The inputs with others in the place of elements on which no result depends; None where there are none."""
    results = evaluate(program, arrays)
    weights = [np.random.default_rng(0).uniform(1, 2, r.shape) for r in results]
    slopes = iter(evaluate(first, [*arrays, *weights]))
    unread = [next(slopes) == 0 if a.dtype.kind == "f" else None for a in arrays]
    for other in (-np.inf, np.nan, np.inf):
        given = [a if u is None else np.where(u, other, a) for a, u in zip(arrays, unread, strict=True)]
        if not all(map(np.array_equal, evaluate(program, given), results)):
            return None
    return given if any(u is not None and u.any() for u in unread) else None


def test_what_no_point_reads():
    drawn = []

    @settings(max_examples=scaled(8), phases=PHASES)
    @given(programs(OPTIONS))
    def agree(case: Case):
        program, arrays = parse(case.source), list(case.inputs.values())
        first = gradient(program, arrays)
        try:
            arrays = None if first is None else with_unread(program, first, arrays)
        except REFUSALS:
            return
        if arrays is not None:
            drawn.append(case)
            results = check(program, arrays)
            check(first, [*arrays, *cotangents(results)])

    agree()
    assert len(drawn) >= scaled(1)
