"""Hopper's products whose operands walk rows or columns as one, and the result does not: their values, and when."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from support.gluon import run
from support.hopper_cases import boxes

import tilec
from tilec.backends.triton.matmul.hopper.form import HopperConfig
from tilec.backends.triton.matmul.hopper.steps import candidates, hopper_steps
from tilec.backends.triton.plan.device_info import DEVICES
from tilec.backends.triton.plan.plan import Launch, Setting
from tilec.backends.triton.plan.sizes import contiguous
from tilec.backends.triton.schedule.problem import Problem, problem_of
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.pipeline import lower

HEADS = "function (X[B, N, C], W[C, H, E]) -> (Q) { Q[b, h, n, e : B, H, N, E] = +(X[b, n, c] * W[c, h, e]); }"
TURNED = "function (X[B, N, C], W[C, H, E]) -> (Q) { Q[h, b, e, n : H, B, E, N] = +(X[b, n, c] * W[c, h, e]); }"
CASES = {
    "heads of 24": (HEADS, ((2, 35, 40), (40, 3, 24))),
    "heads of 80": (HEADS, ((3, 50, 64), (64, 2, 80))),
    "rows alone": (HEADS, ((3, 50, 64), (64, 1, 80))),
    "heads of 9": (HEADS, ((2, 35, 40), (40, 8, 9))),
    "rows of digits in another order": (
        "function (X[N, B, C], W[H, C, E]) -> (Q) { Q[b, n, h, e : B, N, H, E] = +(X[n, b, c] * W[h, c, e]); }",
        ((16, 2, 64), (1, 64, 8)),
    ),
    "two rows of a result of eight": (
        "function (X[N, C], W[E, H, C]) -> (Q) { Q[h, e, n : H, E, N] = +(X[n, c] * W[e, h, c]); }",
        ((8, 72), (40, 2, 72)),
    ),
    "columns that become rows": (TURNED, ((2, 40, 40), (40, 3, 24))),
}


def problem(name: str) -> Problem:
    text, shapes = CASES[name]
    program = parse(text)
    lowering = lower(
        program, {t: TensorType(s, "bfloat16") for t, s in zip(program.input_names(), shapes, strict=True)}, {}
    )
    (flat,), (defracted,) = (lowering.stages[stage].statements for stage in ("flat", "defracted"))
    strides = {t: contiguous(lowering.types[t].shape) for t in lowering.types}
    setting = Setting(device=DEVICES["sm_90"], library=False, precision="high")
    p = problem_of(defracted, flat, lowering.types, strides, setting)
    assert p is not None and p.product is not None
    return p


def tiles(p: Problem, **others: int) -> HopperConfig:
    """Tiles of 64 x 64 x 32 over the variables that are there."""
    assert p.product is not None
    (config,) = [c for c in candidates(p.product, p.setting) if c.merged][:1]
    summed = {*p.product.dot.summed}
    own = {v: 32 if v in summed else 64 for v, _ in config.boxes}
    return replace(boxes(**own), merged=True, **others)


@pytest.mark.parametrize("others", [{}, {"split": 2}], ids=["whole", "split"])
@pytest.mark.parametrize("special", [False, True], ids=["finite", "special"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(5)
def test_values(name: str, special: bool, others: dict[str, int]) -> None:
    p = problem(name)
    assert p.product is not None
    steps = hopper_steps(p.product, p.setting, tiles(p, **others))
    assert steps is not None
    g = np.random.default_rng(1)
    read, output = parse(CASES[name][0]).input_names(), p.defracted.output
    arrays = {t: g.integers(-3, 4, p.types[t].shape).astype(float) for t in read}
    if special:
        for a in arrays.values():
            a.flat[g.integers(a.size, size=2)] = np.inf, np.nan
    memory = {t: a.reshape(-1).copy() for t, a in arrays.items()}
    memory[output] = np.full(math.prod(p.types[output].shape), 12345.0)
    run([s for s in steps if isinstance(s, Launch)], memory, dict.fromkeys(memory, "bfloat16"))
    want = tilec.interpret(CASES[name][0], *arrays.values())
    np.testing.assert_array_equal(memory[output], np.asarray(want).reshape(-1))


@pytest.mark.parametrize(("heads", "width", "merged"), [(12, 80, True), (16, 32, True), (8, 128, False)])
def test_heads_of_odd_widths_are_one_launch(heads: int, width: int, merged: bool) -> None:
    specs = tilec.spec((4, 500, 960), "bfloat16"), tilec.spec((960, heads, width), "bfloat16")
    source = tilec.compile(HEADS).lower(*specs, target="sm_90").source()
    assert ("gluon_map(X, 0, (2000, 960)" in source) == merged and "_lines(" not in source


def test_operands_with_gaps_stay_apart() -> None:
    """Rows that no step leads from one batch to the next."""
    p = problem("heads of 80")
    gaps = {**p.strides, "X": (64 * 51, 64, 1)}
    apart = problem_of(p.defracted, p.flat, p.types, gaps, p.setting)
    assert apart is not None and apart.product is not None
    boxed = [{v for v, _ in c.boxes} for c in candidates(apart.product, apart.setting) if c.merged]
    assert boxed and all("h.e" in names and "b.n" not in names for names in boxed)
