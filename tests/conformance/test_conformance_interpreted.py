"""The conformance list, run by Triton's interpreter. On a device `tests/gpu/run.py` and a sample of it do the same."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from conformance.cases import TRITON, WIDE, ConformanceCase, cases
from gpu_cases import Case
from gpu_examine import Settings, examine_case
from support.stages import agree_with_gradient

from tilec.language import parse

NORMALLY_INTERPRETED = ("found", "recurrences", "branches", "attention")  # the others take as long, and find less
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)


def interpreted(found: list[ConformanceCase]) -> list:
    """By default every second of the tables that have gone wrong most, and every 12th of the other small ones."""
    often = [case.name.split("/")[0] in NORMALLY_INTERPRETED for case in found]
    kept = [case.small and n % (2 if o else 12) == 0 for n, (case, o) in enumerate(zip(found, often, strict=True))]
    return [c if k else pytest.param(c, marks=pytest.mark.slow) for c, k in zip(found, kept, strict=True)]


@pytest.mark.parametrize("case", interpreted(cases(TRITON)), ids=lambda case: case.name)
@pytest.mark.one_in(3)
def test_as_interpreted_kernels(case: ConformanceCase) -> None:
    """Values and gradients against the oracle."""
    arrays = case.draw(np.random.default_rng(0))
    if case.dtypes == WIDE:
        agree_with_gradient(parse(case.source), arrays)
        return
    for dtype in case.dtypes:
        layouts = ("contiguous",) * len(arrays)
        given = Case(case.name, case.source, tuple(arrays), getattr(torch, dtype), layouts, case.small)
        verdict = examine_case(given, Settings(device="cpu", small=True))
        assert verdict.status == "ok", verdict.text
