"""Programs that random testing, or reading, once found to go wrong at some stage."""

import numpy as np
import pytest
from support.found import FOUND
from support.stages import check, gradient

from tilec.language import parse


@pytest.mark.parametrize("case", FOUND)
def test_found(case):
    source, arrays = FOUND[case]
    program = parse(source)
    results = check(program, arrays)
    assert results is not None
    first = gradient(program, arrays)
    if first is not None:
        random = np.random.default_rng(0)
        check(first, [*arrays, *(random.integers(-2, 3, r.shape).astype(float) for r in results)])
