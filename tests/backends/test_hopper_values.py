"""What Hopper kernels compute, carried out on the CPU: every kind of product, with edges, infinities and NaN."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.gluon import run
from support.products import Case, Convolution, matmul, reference

from tilec.backends.triton import hopper
from tilec.backends.triton.hopper import Config, plan_hopper

SAME = Convolution(3, (9, 10), 24, 40, (3, 3), pad=1)
STORED_OTHERWISE = replace(SAME, kernel="ohwi")
SEED = Convolution(2, (16, 19), 16, 24, (3, 3), stride=3, dilation=2)
STRIDED = replace(SEED, stride=2, pad=1, dilation=1)


def boxes(warps: int = 4, split: int = 1, tf32: bool = False, **sizes: int) -> Config:
    return Config(tuple(sizes.items()), warps, 3, split, tf32=tf32)


CASES = {
    "matmul": (matmul(200, 136, 168), boxes(8, m=128, n=64, k=64), "bfloat16"),
    "matmul, left turned": (matmul(200, 136, 168, left="km", right="nk"), boxes(m=64, n=128, k=32), "bfloat16"),
    "matmul, output turned": (matmul(200, 136, 168, out="nm"), boxes(n=64, m=64, k=64), "bfloat16"),
    "batches, in shares": (matmul(72, 136, 104, batch=3, scale=0.5), boxes(8, 3, m=128, n=64, k=32), "float16"),
    "tf32": (matmul(100, 132, 100, right="nk"), boxes(m=64, n=64, k=32, tf32=True), "float32"),
    "forward": (SAME.forward(), boxes(8, n=4, y0=4, y1=8, o=64, i=32), "bfloat16"),
    "forward in shares": (STORED_OTHERWISE.forward(), boxes(split=2, n=4, y1=16, o=64, i=32), "bfloat16"),
    "input gradient": (SAME.input_gradient(), boxes(q0=8, q1=8, o=32, i=16), "float16"),
    "kernel gradient": (SAME.kernel_gradient(), boxes(split=3, i=64, o=32, n=4, y0=4, y1=2), "float16"),
    "strided forward": (STRIDED.forward(), boxes(n=2, y0=4, y1=8, o=32, i=16), "float16"),
    "strided, dilated forward": (SEED.forward(), boxes(n=2, y0=4, y1=8, o=32, i=16), "float16"),
    "strided input gradient": (STRIDED.input_gradient(), boxes(n=2, q0=4, q1=8, i=16, o=32), "float16"),
    "strided, dilated input gradient": (SEED.input_gradient(), boxes(n=2, q0=4, q1=8, i=16, o=32), "float16"),
    "classes stored through maps": (
        SEED.input_gradient(),
        replace(boxes(n=2, q0=4, q1=8, i=16, o=32), mapped=True),
        "float16",
    ),
    "strided kernel gradient": (STRIDED.kernel_gradient(), boxes(split=2, i=64, o=32, n=2, y0=4, y1=8), "bfloat16"),
    "one dimension": (Convolution(2, (33,), 16, 16, (5,), pad=2).forward(), boxes(n=2, y0=32, o=16, i=16), "bfloat16"),
    "three dimensions": (
        Convolution(2, (5, 6, 7), 16, 16, (3, 3, 3), pad=1).forward(),
        boxes(8, y0=4, y1=4, y2=8, o=16, i=16),
        "bfloat16",
    ),
}
POISON = 12345.0


def values(case: Case, config: Config, dtype: str, special: bool) -> None:
    """Small integers, so that every order of a sum gives the same; `special` puts infinities and a NaN among them."""
    generator = np.random.default_rng(1)
    arrays = {t: generator.integers(-3, 4, shape).astype(float) for t, shape in case.shapes.items()}
    if special:
        for t in (case.dot.left.tensor, case.dot.right.tensor):
            arrays[t].flat[generator.integers(arrays[t].size, size=3)] = np.inf, -np.inf, np.nan
    dtypes = dict.fromkeys(case.shapes, dtype)
    launches = plan_hopper(case.dot, case.shapes, case.strides, dtypes, config)
    assert launches is not None
    memory = {t: a.reshape(-1).copy() for t, a in arrays.items()}
    output = case.dot.output
    memory[output][:] = POISON
    run(launches, memory, dtypes)
    expected = reference(case, arrays, np.full(case.shapes[output], POISON))
    np.testing.assert_array_equal(memory[output].reshape(expected.shape), expected)


@pytest.mark.parametrize("special", [False, True], ids=["finite", "special"])
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, special: bool) -> None:
    case, config, dtype = CASES[name]
    values(case, config, dtype, special)


STAYING = {
    "matmul": (matmul(200, 136, 168), boxes(m=64, n=64, k=32), "bfloat16"),
    "batches, in shares": (matmul(72, 136, 104, batch=3, scale=0.5), boxes(split=3, m=64, n=64, k=32), "float16"),
    "forward": (SAME.forward(), boxes(n=2, y0=4, y1=8, o=16, i=16), "bfloat16"),
    "strided input gradient": (STRIDED.input_gradient(), boxes(n=2, q0=4, q1=8, i=16, o=16), "float16"),
    "kernel gradient": (STRIDED.kernel_gradient(), boxes(split=2, i=64, o=16, n=2, y0=2, y1=8), "bfloat16"),
}


@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize("name", STAYING)
def test_programs_that_stay(name: str, consumers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few programs for many tiles, some of which sum over more than others: buffers and barriers are used again."""
    monkeypatch.setattr(hopper, "PROCESSORS", 1)
    case, config, dtype = STAYING[name]
    values(case, replace(config, consumers=consumers), dtype, special=True)


def test_parts_of_a_tensor_are_left_alone() -> None:
    """Ranges below the tensors' sizes: nothing beyond them is read into the sum or written."""
    case = matmul(200, 136, 168)
    dot = replace(case.dot, low=({"m": 8, "n": 0, "k": 16},), extent=({"m": 150, "n": 100, "k": 99},))
    values(replace(case, dot=dot), boxes(8, m=128, n=64, k=64), "bfloat16", special=True)
