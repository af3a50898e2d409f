"""The conformance list, run at every stage, by the torch backend, and as block programs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conformance.cases import BLOCKS, STAGES, TORCH, ConformanceCase, cases, tables
from support.agreement import SMALL, agree
from support.chains import VARIANTS, both_ways
from support.stages import check, cotangents, gradient

from tilec.backends.common.chains import cost
from tilec.backends.common.chains.codegen.places import Tiling
from tilec.language import parse

TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-12}


def over(found: list[ConformanceCase]):
    return pytest.mark.parametrize("case", found, ids=lambda case: case.name)


def drawn(case: ConformanceCase, dtype: str) -> list[torch.Tensor]:
    arrays = case.draw(np.random.default_rng(0))
    kind = getattr(torch, dtype)
    return [torch.tensor(a).to(kind) if a.dtype.kind == "f" else torch.tensor(a) for a in arrays]


def test_every_case_has_a_name_of_its_own_and_a_runner() -> None:
    names = [case.name for table in tables().values() for case in table]
    assert len({*names}) == len(names) and all(case.runners for table in tables().values() for case in table)


@over(cases(STAGES))
def test_at_every_stage(case: ConformanceCase) -> None:
    """Values and gradients, by the oracle after every pass and by the torch backend."""
    program, arrays = parse(case.source), case.draw(np.random.default_rng(0))
    results = check(program, arrays)
    assert results is not None
    first = gradient(program, arrays)
    if first is not None:
        check(first, [*arrays, *cotangents(results)])


@pytest.mark.parametrize("options", [None, SMALL], ids=["whole", "blocks"])
@pytest.mark.parametrize(
    "case, dtype", [pytest.param(c, d, id=f"{c.name} {d}") for c in cases(TORCH) for d in c.dtypes]
)
@pytest.mark.one_in(3)
def test_on_torch(case: ConformanceCase, dtype: str, options) -> None:
    inputs = drawn(case, dtype)
    whole = not any(t.is_floating_point() for t in inputs)  # what floating values are made of integers is float32
    agree(case.source, *inputs, options=options, tolerance=1e-5 if whole else TOLERANCE[dtype])


@over(cases(BLOCKS))
@pytest.mark.one_in(2)
def test_as_block_programs(case: ConformanceCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients by NumPy's interpreter of blocks, against torch in float64."""
    monkeypatch.setattr(cost, "LARGE", 0)  # small matrices may as well be stored where they have no exponential
    sizes = {"B": 2, "N": 50, "M": 37, "E": 20, "F": 24}
    mine, theirs, forward, backward = both_ways(VARIANTS[case.name.split("/")[1]], "float32", sizes, Tiling(32, 16))
    for x, y in zip(mine, theirs, strict=True):
        assert np.linalg.norm(x - y) <= 3e-6 * np.linalg.norm(y) + 1e-30
    assert len(forward) == 1 and len(backward) >= 2
