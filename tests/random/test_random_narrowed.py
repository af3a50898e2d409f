"""Statements with rules of their own whose points are fewer than their outputs' elements: values and gradients."""

from __future__ import annotations

import numpy as np
import pytest
from support.narrowed import FORMS, narrowed
from support.scale import scaled
from support.stages import check, gradient

from tilec.language import parse

GROUPS = 8


@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.one_in(5)
def test_values_and_gradients(group):
    for seed in range(group, scaled(60), GROUPS):
        case = narrowed(seed)
        program, arrays = parse(case.source), list(case.inputs.values())
        results = check(program, arrays)
        first = gradient(program, arrays)
        if results is not None and first is not None:
            random = np.random.default_rng(seed)
            check(first, arrays + [random.integers(-2, 3, r.shape).astype(float) for r in results])


def test_every_form_is_drawn():
    assert set().union(*(narrowed(seed).features for seed in range(100))) == set(FORMS)
