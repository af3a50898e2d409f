"""Hopper kernels on a GPU against float64: values, edges, infinities and NaN, poisoned outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.hopper_cases import CASES, STAYING
from support.products import reference

from tilec.backends.triton.matmul.hopper.configs import configs
from tilec.backends.triton.matmul.hopper.kernels import plan_hopper

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="needs a Hopper GPU"
    ),
]
TOLERANCE = {"bfloat16": 4e-3, "float16": 6e-4, "float32": 1.2e-3}  # tf32 operands are cut off, not rounded
POISON = 12345.0


@pytest.mark.parametrize("consumers", [0, 1, 2])
@pytest.mark.parametrize("name", {**CASES, **STAYING})
def test_values(name: str, consumers: int, tmp_path: Path) -> None:
    case, config, dtype = {**CASES, **STAYING}[name]
    if consumers * config.warps > 8:
        pytest.skip("more warps than a program has")
    check(case, replace(config, consumers=consumers), dtype, tmp_path)


# six axes and residue classes: the two hundred likeliest tiles all need boxes of more than TMA's five dimensions
NONE_FITS = {"four dimensions, strided input gradient"}


@pytest.mark.parametrize("name", CASES)
def test_candidates(name: str, tmp_path: Path) -> None:
    case, config, dtype = CASES[name]
    tensors = case.tensors(dtype)
    candidates = [c for c in configs((case.dot, tensors)) if plan_hopper(case.dot, tensors, c) is not None]
    assert bool(candidates) == (name not in NONE_FITS), "some candidate fits, though not all need to"
    for candidate in candidates[:: max(1, len(candidates) // 2)]:
        check(case, candidate, dtype, tmp_path, specials=(False,))


def check(case, config, dtype: str, directory: Path, specials: tuple[bool, ...] = (False, True)) -> None:
    """One kernel for finite numbers and for some that are not."""
    from support.launching import bind

    launches = plan_hopper(case.dot, case.tensors(dtype), config)
    assert launches is not None
    tensors = {n: torch.empty(s, dtype=getattr(torch, dtype), device="cuda") for n, s in case.shapes.items()}
    launch = bind(launches, tensors, directory)
    for special in specials:
        generator = np.random.default_rng(0)
        arrays = {}
        for name, shape in case.shapes.items():
            array = generator.standard_normal(shape)
            if special and name != case.dot.output:
                array.flat[generator.integers(array.size, size=3)] = np.inf, -np.inf, np.nan
            arrays[name] = tensors[name].copy_(torch.tensor(array)).double().cpu().numpy()
        output = tensors[case.dot.output].fill_(POISON)
        launch()
        result = output.double().cpu().numpy()
        expected = reference(case, arrays, np.full(result.shape, np.nan))
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(result[~finite], expected[~finite])
        error = np.linalg.norm(result[finite] - expected[finite]) / np.linalg.norm(expected[finite])
        assert error < TOLERANCE[dtype], "special" if special else "finite"
