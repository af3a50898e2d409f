"""What Hopper kernels compute, carried out on the CPU: every kind of product, with edges, infinities and NaN."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.gluon import run
from support.hopper_cases import CASES, STAYING, boxes
from support.products import Case, matmul, reference

from tilec.backends.triton.matmul.hopper import finish
from tilec.backends.triton.matmul.hopper import kernels as hopper
from tilec.backends.triton.matmul.hopper.form import HopperConfig
from tilec.backends.triton.matmul.hopper.kernels import plan_hopper

POISON = 12345.0


def values(case: Case, config: HopperConfig, dtype: str, special: bool) -> None:
    """Small integers, so that every order of a sum gives the same; `special` puts infinities and a NaN among them."""
    generator = np.random.default_rng(1)
    arrays = {t: generator.integers(-3, 4, shape).astype(float) for t, shape in case.shapes.items()}
    if special:
        for t in (case.dot.left.tensor, case.dot.right.tensor):
            arrays[t].flat[generator.integers(arrays[t].size, size=3)] = np.inf, -np.inf, np.nan
    launches = plan_hopper(case.dot, case.tensors(dtype), config)
    assert launches is not None
    memory = {t: a.reshape(-1).copy() for t, a in arrays.items()}
    output = case.dot.output
    memory[output][:] = POISON
    run(launches, memory, dict.fromkeys(case.shapes, dtype))
    expected = reference(case, arrays, np.full(case.shapes[output], POISON))
    np.testing.assert_array_equal(memory[output].reshape(expected.shape), expected)


@pytest.mark.parametrize("special", [False, True], ids=["finite", "special"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.covering
@pytest.mark.one_in(8)
def test_values(name: str, special: bool) -> None:
    case, config, dtype = CASES[name]
    values(case, config, dtype, special)


@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize("name", STAYING)
@pytest.mark.one_in(8)
def test_programs_that_stay(name: str, consumers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few programs for many tiles, some of which sum over more than others: buffers and barriers are used again."""
    monkeypatch.setattr(hopper, "MULTIPROCESSORS", 1)
    case, config, dtype = STAYING[name]
    values(case, replace(config, consumers=consumers), dtype, special=True)


def test_parts_of_a_tensor_are_left_alone() -> None:
    """Ranges below the tensors' sizes: nothing beyond them is read into the sum or written."""
    case = matmul(200, 136, 168)
    dot = replace(case.dot, low=({"m": 8, "n": 0, "k": 16},), extent=({"m": 150, "n": 100, "k": 99},))
    values(replace(case, dot=dot), boxes(8, m=128, n=64, k=64), "bfloat16", special=True)


@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize("name", ["matmul", "forward"])
@pytest.mark.covering
def test_more_tiles_than_a_program_may_note(name: str, consumers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs become more, so that each can note all of its tiles."""
    monkeypatch.setattr(hopper, "MULTIPROCESSORS", 1)
    for module in (hopper, finish):
        monkeypatch.setattr(module, "FLAGS", 2)
    case, config, dtype = STAYING[name]
    values(case, replace(config, consumers=consumers), dtype, special=True)
