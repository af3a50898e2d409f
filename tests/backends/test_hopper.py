"""Hopper kernels: plans that fit TMA and wgmma, and cubins of them. Values are compared on the GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import math
from dataclasses import replace
from pathlib import Path

from support.cubins import compile_launch
from support.products import Case, Convolution, einsum, matmul, worked_example

from tilec.backends.triton.matmul.hopper.configs import configs, default_plan
from tilec.backends.triton.matmul.hopper.form import HopperConfig
from tilec.backends.triton.matmul.hopper.kernels import plan_hopper
from tilec.backends.triton.plan.plan import Descriptor, Launch, Pointer

SAME = Convolution(8, (28, 28), 64, 128, (3, 3), pad=1)
HEADS = {"b": 8, "h": 32, "n": 2048, "e": 64, "d": 2048}
SEED = Convolution(32, (57, 57), 128, 128, (3, 3), stride=3, dilation=2)


def plan(case: Case, config: HopperConfig, dtype: str = "bfloat16") -> list[Launch] | None:
    return plan_hopper(case.dot, case.tensors(dtype), config)


def config(boxes: dict[str, int], warps: int = 8, stages: int = 3, **more: object) -> HopperConfig:
    return HopperConfig(tuple(boxes.items()), warps, stages, **more)


CASES = {
    "matmul with both operands turned": (
        matmul(512, 256, 512, left="km", right="kn"),
        config({"m": 128, "n": 128, "k": 64}),
        "bfloat16",
    ),
    "copies by their own warp": (
        matmul(512, 256, 512, batch=3, scale=0.5),
        config({"m": 128, "n": 128, "k": 64}, consumers=1),
        "float16",
    ),
    "tf32": (matmul(512, 256, 512, right="nk"), config({"m": 128, "n": 64, "k": 32}, tf32=True), "float32"),
    "forward": (SAME.forward(), config({"n": 2, "y0": 8, "y1": 8, "o": 128, "i": 64}), "bfloat16"),
    "strided forward": (
        replace(SAME, stride=2).forward(),
        config({"n": 2, "y0": 4, "y1": 8, "o": 64, "i": 64}, warps=4),
        "bfloat16",
    ),
    "input gradient by residues": (SEED.input_gradient(), config({"n": 32, "q1": 4, "i": 128, "o": 64}), "float16"),
    "two consumers, classes through maps": (
        SEED.input_gradient(),
        config({"n": 32, "q0": 2, "i": 128, "o": 128}, warps=4, stages=2, consumers=2, mapped=True),
        "float16",
    ),
    "the worked example": (
        worked_example(32, 57, 128, 128),
        config({"n": 32, "q0": 4, "i": 128, "o": 64}, warps=4),
        "float16",
    ),
    "rows in slabs": (
        einsum("bhne", "bnd", "hed", HEADS),
        config({"h": 2, "e": 64, "d": 256, "b": 8, "n": 8}),
        "bfloat16",
    ),
    "kernel gradient in shares": (
        SAME.kernel_gradient(),
        config({"i": 64, "o": 128, "y0": 8, "y1": 8}, warps=4, split=4),
        "bfloat16",
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(4)
def test_cubins(name: str, tmp_path: Path) -> None:
    case, chosen, dtype = CASES[name]
    launches = plan(case, chosen, dtype)
    assert launches is not None and len(launches) == (2 if chosen.split > 1 else 1)
    compiled = [compile_launch(launch, {t: dtype for t in case.shapes}, tmp_path) for launch in launches]
    assert "wgmma.mma_async" in compiled[0].asm["ptx"] and "cp.async.bulk.tensor" in compiled[0].asm["ptx"]
    assert all(len(c.asm["cubin"]) > 1000 for c in compiled)


@pytest.mark.parametrize("operands", [("bhne", "bnd", "hed"), ("bnd", "hed", "bhne")])
def test_several_heads_of_64_share_a_tile(operands: tuple[str, str, str]) -> None:
    case = einsum(*operands, HEADS)
    found = default_plan(case.dot, case.tensors("bfloat16"))
    chosen = found and found[1]
    assert chosen is not None and dict(chosen.boxes)["e"] == 64 and dict(chosen.boxes)["h"] > 1


def test_slabs_are_whole_rows_of_shared_memory() -> None:
    case = einsum("bhne", "bnd", "hed", {**HEADS, "e": 32})
    assert plan(case, config({"h": 2, "e": 64, "d": 128, "n": 64})) is not None
    assert plan(case, config({"h": 4, "e": 32, "d": 128, "n": 64})) is None


def test_sizes_do_not_stand_in_the_text() -> None:
    boxes = config({"n": 2, "y0": 8, "y1": 8, "o": 128, "i": 64})
    other = replace(SAME, n=16, space=(56, 44), ci=128, co=256)
    assert plan(SAME.forward(), boxes)[0].text == plan(other.forward(), boxes)[0].text
    assert plan(SAME.forward(), boxes)[0].text == plan(SAME.forward(), replace(boxes, stages=4))[0].text


def test_padding_asks_for_exactness_and_its_absence_does_not() -> None:
    boxes = config({"n": 2, "y0": 8, "y1": 8, "o": 128, "i": 64})
    assert "suspect" in plan(SAME.forward(), boxes)[0].text
    assert "suspect" not in plan(replace(SAME, pad=0).forward(), boxes)[0].text
    # places past the last row are zero in the gradient alone
    sums = config({"i": 64, "o": 128, "y0": 8, "y1": 8}, warps=4)
    assert "suspect" in plan(replace(SAME, pad=0).kernel_gradient(), sums)[0].text
    assert "suspect" not in plan(replace(SAME, pad=0, space=(34, 34)).kernel_gradient(), sums)[0].text


def test_classes_are_stored_through_maps_where_asked() -> None:
    """The places of class (z0, z1) are a view of every third row and column of the input."""
    chosen = config({"n": 32, "q0": 2, "q1": 2, "i": 128, "o": 64})
    (plain,) = plan(SEED.input_gradient(), chosen, "float16")
    (mapped,) = plan(SEED.input_gradient(), replace(chosen, mapped=True), "float16")
    assert not any(isinstance(v, Descriptor) and v.tensor == "I" for _, v in plain.arguments)
    maps = [v for _, v in mapped.arguments if isinstance(v, Descriptor) and v.tensor == "I"]
    assert [m.offset for m in maps] == [(57 * z0 + z1) * 128 for z0 in range(3) for z1 in range(3)]
    assert {m.shape for m in maps} == {(32, 19, 19, 128)}


def test_strided_places_are_views_of_one_residue_each() -> None:
    (launch,) = plan(replace(SAME, stride=2).forward(), config({"n": 2, "y0": 8, "y1": 8, "o": 128, "i": 64}))
    maps = [v for _, v in launch.arguments if isinstance(v, Descriptor) and v.tensor == "I"]
    assert [m.offset for m in maps] == [0, 64, 28 * 64, 29 * 64]
    assert {m.shape for m in maps} == {(8, 14, 14, 64)} and {m.strides for m in maps} == {
        (28 * 28 * 64, 2 * 28 * 64, 2 * 64, 1)
    }


def test_boxes_end_where_the_sum_ends() -> None:
    """A sum over a part of an axis: the map ends with it."""
    case = matmul(128, 128, 200)
    dot = replace(case.dot, extent=({**case.dot.extent[0], "k": 100},))
    (launch,) = plan_hopper(dot, case.tensors("float16"), config({"m": 128, "n": 128, "k": 64}))
    assert {v.tensor: v.shape for _, v in launch.arguments if isinstance(v, Descriptor)} == {
        "A": (128, 100),
        "B": (100, 128),
        "C": (128, 128),
    }


def test_output_maps_end_where_the_elements_end() -> None:
    case = matmul(200, 128, 128)
    dot = replace(case.dot, extent=({**case.dot.extent[0], "m": 150},))
    (launch,) = plan_hopper(dot, case.tensors("float16"), config({"m": 128, "n": 128, "k": 64}))
    assert dict(launch.arguments)["out_map_0"].shape == (150, 128)


def test_the_workspace_of_shares() -> None:
    first, second = plan(SAME.kernel_gradient(), config({"i": 64, "o": 128, "y0": 8, "y1": 8}, warps=4, split=4))
    assert dict(first.arguments)["out"] == dict(second.arguments)["parts"] == Pointer("K.parts")
    assert dict(first.constants)["SPLIT"] == dict(second.constants)["SPLIT"] == 4
    assert dict(second.arguments)["total"] == math.prod(SAME.shapes["K"])


MATMUL = {"m": 128, "n": 128, "k": 64}
REFUSED = {
    "strides that are no multiples of 16 bytes": (matmul(128, 128, 100), MATMUL, "float16", {}),
    "float32 without tf32": (matmul(128, 128, 128, right="nk"), MATMUL | {"k": 32}, "float32", {}),
    "tf32 with a turned operand": (matmul(128, 128, 128, right="kn"), MATMUL | {"k": 32}, "float32", {"tf32": True}),
    "rows that are no whole wgmma": (matmul(128, 128, 128), MATMUL | {"m": 32}, "float16", {}),
    "more accumulators than registers": (matmul(512, 512, 512), MATMUL | {"m": 256, "n": 256}, "float16", {}),
    "more buffers than shared memory": (matmul(512, 512, 512), MATMUL, "float16", {"stages": 8}),
    "a window boxed beside the rows": (
        SAME.forward(),
        {"n": 2, "y0": 8, "y1": 8, "j1": 2, "o": 64, "i": 32},
        "float16",
        {},
    ),
    "an unknown dtype": (matmul(128, 128, 128), MATMUL, "float64", {}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refused(reason: str) -> None:
    case, boxes, dtype, more = REFUSED[reason]
    assert plan(case, replace(config(boxes), **more), dtype) is None


CHOSEN = {
    "forward": (SAME.forward(), "bfloat16"),
    "seven by seven": (Convolution(64, (7, 7), 512, 512, (3, 3), pad=1).forward(), "bfloat16"),
    "seed gradient": (SEED.input_gradient(), "float16"),
    "seed gradient in tf32": (SEED.input_gradient(), "float32"),
    "the worked example": (worked_example(32, 57, 128, 128), "float16"),
    "strided": (replace(SAME, stride=2).forward(), "float16"),
    "kernel gradient": (SAME.kernel_gradient(), "float16"),
    "matmul": (matmul(8192, 8192, 8192), "bfloat16"),
    "heads": (einsum("bnd", "hed", "bhne", HEADS), "bfloat16"),
    "gradient of heads": (einsum("bhne", "bnd", "hed", HEADS), "bfloat16"),
    "turned output": (matmul(512, 512, 512, out="nm"), "bfloat16"),
    "four dimensions": (Convolution(16, (8, 8, 8, 8), 16, 32, (3, 3, 3, 3)).forward(), "float16"),
    "three dimensions": (Convolution(2, (8, 8, 8), 16, 32, (3, 3, 3), pad=1).forward(), "float16"),
}


@pytest.mark.parametrize(("columns", "several"), [(128, None), (152, 3), (192, 3), (256, None), (320, None)])
def test_columns_that_fill_no_tile_are_several_boxes(columns: int, several: int | None) -> None:
    case = Convolution(32, (56, 56), 64, columns, (3, 3), pad=1).forward()
    found = default_plan(case.dot, case.tensors("bfloat16"))
    assert found is not None and found[1].unrolled == (None if several is None else ("o", several))


@pytest.mark.parametrize(("terms", "several"), [(13056, 3), (512, None)])
def test_tiles_of_several_boxes_share_the_columns_of_long_sums(terms: int, several: int | None) -> None:
    """2232 columns are twelve tiles of three boxes, and those of 128 columns take a third turn of all programs."""
    case = matmul(2768, 2232, terms, right="nk")
    found = default_plan(case.dot, case.tensors("bfloat16"))
    assert found is not None and found[1].unrolled == (None if several is None else ("n", several))


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.one_in(7)
def test_first_guesses_and_candidates_fit(name: str) -> None:
    case, dtype = CHOSEN[name]
    candidates = configs((case.dot, case.tensors(dtype)))
    assert len(candidates) > 5 and len({*candidates}) == len(candidates)
    fitting = [c for c in candidates if plan_hopper(case.dot, case.tensors(dtype), c)]
    found = default_plan(case.dot, case.tensors(dtype))
    assert found is not None and found[1] == fitting[0]
    # of six axes only those choices fit that leave two of them without a box
    assert len(fitting) > (0.1 if name == "four dimensions" else 0.7) * len(candidates)
