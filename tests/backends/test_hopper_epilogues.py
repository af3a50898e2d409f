"""Elementwise statements in Hopper's kernels: what they compute, carried out on the CPU, and when they are there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.gluon import run
from support.hopper_cases import boxes

import tilec
from tilec.backends.triton.matmul.hopper import epilogue as hopper_epilogue
from tilec.backends.triton.matmul.hopper import kernels as hopper
from tilec.backends.triton.matmul.hopper.epilogue import Epilogue
from tilec.backends.triton.matmul.hopper.form import HopperConfig
from tilec.backends.triton.matmul.hopper.steps import hopper_steps
from tilec.backends.triton.plan.device_info import DEVICES
from tilec.backends.triton.plan.plan import Launch, Setting
from tilec.backends.triton.plan.sizes import contiguous
from tilec.backends.triton.schedule.problem import problem_of
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.pipeline import lower

LINEAR = "S[n, m : N, M] = +(X[n, k] * W[m, k]);"
CONVOLVED = "S[n, y, x, o : N, H, V, O] = +(X[n, y + i - 1, x + j - 1, c] * K[i, j, c, o]);"
SIZES = {"N": 200, "M": 136, "K": 104}
SMALL = {"N": 100, "M": 37, "K": 40}
IMAGES = {"N": 3, "H": 9, "V": 10, "C": 24, "O": 40}
# inputs, statements, sizes, type
CASES = {
    "bias and relu": ("X[N, K], W[M, K], B[M]", LINEAR + "Y = relu(S + B);", SIZES, "bfloat16"),
    "scales of rows and columns": (
        "X[N, K], W[M, K], A[N], B[M]",
        LINEAR + "Y[n, m : N, M] = S[n, m] * A[n] - B[m];",
        SIZES,
        "float16",
    ),
    "a residual, in two statements": (
        "X[N, K], W[M, K], B[M], R[N, M]",
        LINEAR + "T = S + B; Y = max(T, R);",
        SIZES,
        "bfloat16",
    ),
    "what is read elsewhere": (
        "X[N, K], W[M, K], R[N, M]",
        LINEAR + "Y[n, m : N, M] = S[n, m] + (n >= m ? R[n, m] : R[0, m]) + pad(R[n + 1, m], 2);",
        SIZES,
        "bfloat16",
    ),
    "positions": (
        "X[N, K], W[M, K]",
        LINEAR + "Y[n, m : N, M] = n < 2 * m ? S[n, m] : 0.0 * S[n, m] + 3 * m - n;",
        SIZES,
        "float32",
    ),
    "batches": (
        "X[D, N, K], W[D, K, M], B[D, M]",
        "S[b, n, m : D, N, M] = +(X[b, n, k] * W[b, k, m]); Y[b, n, m : D, N, M] = relu(S[b, n, m] + B[b, m]);",
        {"D": 3, "N": 72, "K": 40, "M": 136},
        "float16",
    ),
    "images": (
        "X[N, H, V, C], K[3, 3, C, O], A[O], B[O]",
        CONVOLVED + "Y = relu(S * A + B);",
        IMAGES,
        "bfloat16",
    ),
    "images and what passes them": (
        "X[N, H, V, C], K[3, 3, C, O], R[N, H, V, O]",
        CONVOLVED + "Y = relu(S + R);",
        IMAGES,
        "bfloat16",
    ),
    "rows without a map": ("X[N, K], W[M, K], B[M]", LINEAR + "Y = S + B;", SMALL, "bfloat16"),
    "rows of fours": ("X[N, K], W[M, K], B[M]", LINEAR + "Y = S + B;", {"N": 100, "M": 76, "K": 40}, "bfloat16"),
}
TILES = {
    "batches": boxes(n=64, m=64, k=16),
    "images": boxes(8, n=4, y=4, x=8, o=64, c=16),
    "images and what passes them": boxes(n=2, y=4, x=8, o=32, c=16),
    "positions": boxes(n=64, m=64, k=32, tf32=True),
}


def written(name: str) -> tuple[str, dict[str, tuple[int, ...]]]:
    """A case's function, and the shapes of its inputs."""
    inputs, statements, sizes, _ = CASES[name]
    pairs = (part.rstrip("]").split("[") for part in inputs.replace("], ", "];").split(";"))
    shapes = {t: tuple(sizes[n] if n in sizes else int(n) for n in axes.split(", ")) for t, axes in pairs}
    return f"function ({inputs}) -> (Y) {{ {statements} }}", shapes


def planned(name: str, tiles: HopperConfig, stored: bool = False) -> list[Launch]:
    """The launches of a case's product with all that follows as its epilogue; `stored`: the product is stored too."""
    text, shapes = written(name)
    lowering = lower(parse(text), {t: TensorType(s, CASES[name][3]) for t, s in shapes.items()}, {})
    flat, types = lowering.stages["flat"].statements, lowering.types
    defracted = {s.output: s for s in lowering.stages["defracted"].statements}
    strides = {t: contiguous(types[t].shape) for t in types}
    setting = Setting(device=DEVICES["sm_90"], library=False, precision="high")
    p = problem_of(defracted[flat[0].output], flat[0], types, strides, setting, flat[1:])
    assert p is not None and p.product is not None
    epilogue = Epilogue(p.space, flat[1:], p.view, stored=stored)
    steps = hopper_steps(p.product, setting, tiles, epilogue=epilogue)
    assert steps is not None
    return [s for s in steps if isinstance(s, Launch)]


def carried_out(
    name: str, tiles: HopperConfig, special: bool, stored: bool
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What kernels store and what they should, by name: of small integers, so that every order of a sum gives the same;
    `special` puts infinities and a NaN among them."""
    (text, shapes), dtype = written(name), CASES[name][3]
    generator = np.random.default_rng(1)
    arrays = {t: generator.integers(-3, 4, shape).astype(float) for t, shape in shapes.items()}
    if special:
        for array in arrays.values():
            array.flat[generator.integers(array.size, size=2)] = np.inf, np.nan
    outputs = ("S", "Y") if stored else ("Y",)
    f = tilec.compile(text.replace("-> (Y)", "-> (S, Y)"))
    wanted = dict(zip(("S", "Y"), (y.numpy() for y in f(*map(torch.tensor, arrays.values()))), strict=True))
    memory = {t: a.reshape(-1).copy() for t, a in arrays.items()}
    memory |= {t: np.full(wanted[t].size, 12345.0) for t in outputs}
    run(planned(name, tiles, stored), memory, dict.fromkeys(memory, dtype))
    return {t: memory[t].reshape(wanted[t].shape) for t in outputs}, {t: wanted[t] for t in outputs}


@pytest.mark.parametrize("special", [False, True], ids=["finite", "special"])
@pytest.mark.parametrize("consumers", [0, 1, 2])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.covering
@pytest.mark.one_in(3)
def test_values(name: str, consumers: int, special: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper, "MULTIPROCESSORS", 2)
    tiles = TILES.get(name, boxes(n=64, m=64, k=32))
    tiles = replace(tiles, consumers=consumers) if consumers * tiles.warps <= 8 else tiles
    found, wanted = carried_out(name, tiles, special, stored=False)
    np.testing.assert_array_equal(found["Y"], wanted["Y"])


@pytest.mark.parametrize("name, wide", [("rows without a map", "1"), ("rows of fours", "4 if")])
def test_elements_are_stored_as_wide_as_rows_allow(name: str, wide: str) -> None:
    """A warp that stores one by one what lies in vectors writes parts of eight times as many sectors."""
    (launch,) = planned(name, boxes(n=64, m=64, k=32))
    assert f"WIDE: gl.constexpr = {wide}" in launch.file.text
    found, wanted = carried_out(name, boxes(n=64, m=64, k=32), False, stored=False)
    np.testing.assert_array_equal(found["Y"], wanted["Y"])


@pytest.mark.parametrize("consumers", [0, 1, 2])
@pytest.mark.parametrize("name", ["bias and relu", "batches"])
@pytest.mark.covering
@pytest.mark.one_in(3)
def test_products_that_are_stored_too(name: str, consumers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper, "MULTIPROCESSORS", 2)
    tiles = replace(TILES.get(name, boxes(n=64, m=64, k=32)), consumers=consumers)
    found, wanted = carried_out(name, tiles, special=True, stored=True)
    for t in ("S", "Y"):
        np.testing.assert_array_equal(found[t], wanted[t])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("consumers", [0, 1, 2])
@pytest.mark.parametrize("name", ["bias and relu", "what is read elsewhere", "positions", "batches"])
@pytest.mark.parametrize("stored", [False, True], ids=["alone", "stored"])
@pytest.mark.covering
def test_pieces_of_a_tile(name: str, consumers: int, stored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long epilogues are loops over pieces of a tile in shared memory."""
    monkeypatch.setattr(hopper, "MULTIPROCESSORS", 2)
    monkeypatch.setattr(hopper_epilogue, "LONG_TEXT", 0)
    own = {**TILES, "batches": boxes(n=64, m=128, k=16)}
    tiles = replace(own.get(name, boxes(n=128, m=64, k=32)), consumers=consumers)
    texts = [launch.file.text for launch in planned(name, tiles, stored)]
    assert all("pieces.index(piece)" in text for text in texts)
    found, wanted = carried_out(name, tiles, special=True, stored=stored)
    for t in found:
        np.testing.assert_array_equal(found[t], wanted[t])


@pytest.mark.parametrize("name", ["batches", "what is read elsewhere"])
@pytest.mark.one_in(3)
def test_sums_that_are_split(name: str) -> None:
    """The kernel that adds up the parts has the epilogue."""
    tiles = replace(TILES.get(name, boxes(n=64, m=64, k=32)), split=2)
    found, wanted = carried_out(name, tiles, special=True, stored=False)
    np.testing.assert_array_equal(found["Y"], wanted["Y"])


@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize("stored", [False, True], ids=["alone", "stored"])
@pytest.mark.parametrize("name", ["bias and relu", "rows without a map"])
@pytest.mark.covering
def test_boxes_side_by_side(name: str, consumers: int, stored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a program's boxes of columns has the epilogue, those behind the last column none."""
    monkeypatch.setattr(hopper, "MULTIPROCESSORS", 2)
    stored = stored and name != "rows without a map"  # both are stored through maps
    tiles = replace(boxes(n=64, m=16, k=32), unrolled=("m", 3), consumers=consumers)
    found, wanted = carried_out(name, tiles, special=True, stored=stored)
    for t in found:
        np.testing.assert_array_equal(found[t], wanted[t])


WIDE = ((16384, 1024), (4096, 1024), (4096,))
PLANS = {  # text, shapes, whether one launch of ours has all
    "costly": ("Y = gelu(S + B);", WIDE, True),
    "costly, long sums": ("Y = gelu(S + B);", ((8192, 4096), (4096, 4096), (4096,)), False),
    "costly, small": ("Y = gelu(S + B);", ((2048, 1024), (1024, 1024), (1024,)), True),
    "less costly": ("Y = silu(S + B);", WIDE, True),
    "in several statements": ("T = S + B; U = relu(T); Y = U * U;", WIDE, True),
    "dearer": ("Y = tanh(S + B);", WIDE, False),
    "draws": ("Y[n, m : N, M] = rand(7, m + M * n) < 0.9 ? S[n, m] + B[m] : 0;", WIDE, False),
    "sums that are split": ("Y = relu(S + B);", ((128, 16384), (128, 16384), (128,)), True),
    "a bias": ("Y = S + B;", WIDE, False),
    "another shape": ("Y[m, n : M, N] = S[n, m] + B[m];", WIDE, False),
}


@pytest.mark.parametrize("name", PLANS)
def test_when_one_launch_has_all(name: str) -> None:
    after, shapes, fused = PLANS[name]
    f = tilec.compile(f"function (X[N, K], W[M, K], B[M]) -> (Y) {{ {LINEAR} {after} }}")
    source = f.lower(*(tilec.spec(s, "bfloat16") for s in shapes), target="sm_90").source()
    alone = "def finished(" in source and "rt.multiply" not in source and source.count("@gluon.jit\ndef product") <= 1
    assert alone == fused


def test_a_product_that_is_returned_is_stored_on_the_way() -> None:
    text = f"function (X[N, K], W[M, K], B[M]) -> (S, Y) {{ {LINEAR} Y = silu(S + B); }}"
    source = tilec.compile(text).lower(*(tilec.spec(s, "bfloat16") for s in WIDE), target="sm_90").source()
    assert "copy_out(sum_map_0" in source and "rt.multiply" not in source


def test_rows_of_several_axes_are_one() -> None:
    product = "S[b, n, m : D, N, M] = +(X[b, n, k] * W[m, k]);"
    text = f"function (X[D, N, K], W[M, K], B[M]) -> (Y) {{ {product} Y = relu(S + B); }}"
    shapes = ((64, 197, 768), (3072, 768), (3072,))
    source = tilec.compile(text).lower(*(tilec.spec(s, "bfloat16") for s in shapes), target="sm_90").source()
    assert "def finished(sums, row_in, col_in, r0, c0, B" in source


def test_products_of_parts_have_epilogues() -> None:
    """Float32 at full precision: parts of bfloat16 take half the time of three tf32 products."""
    f = tilec.compile(f"function (X[N, K], W[M, K], B[M]) -> (Y) {{ {LINEAR} Y = gelu(S + B); }}")
    source = f.lower(
        *(tilec.spec(s, "float32") for s in ((8192, 1024), (4096, 1024), (4096,))), target="sm_90"
    ).source()
    assert "S_split_dot" in source and "Y_kernel" not in source
