"""Kernels of scans without a GPU: they compile for both targets, their blocks follow from shapes alone, one text serves
all sizes of a class, and which statements become scans."""

from __future__ import annotations

import os

import pytest

import tilec
from tilec.backends.common.affine import affine_steps
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import build_space
from tilec.backends.triton.plan.sizes import contiguous
from tilec.backends.triton.scan import scan as scans
from tilec.backends.triton.scan.form import recognise_scan, recognise_steps
from tilec.backends.triton.scan.kernel import ScanTiling
from tilec.backends.triton.scan.scan import choose_scan_tiling
from tilec.ir.program import Access, walk
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.pipeline import lower

ALONG = "function (X[B, N]) -> (O) { O[b, i : B, N] = %s(X[b, k]), i - k < N; }"
ACROSS = "function (X[N, B]) -> (O) { O[i, b : N, B] = %s(X[k, b]), k - i < N; }"
LINEAR = "function (A[T, D], B[T, D]) -> (H) { H[t, i : T, D] = A[t, i] * H[t - 1, i] + B[t, i]; }"
SHUFFLE = "function (B[T, D]) -> (H) { H[t, i : T, D] = relu(B[t, i] + H[t - 1, (i - 1) % D]); }"
INTEGER = "function (A[T]) -> (H) { H[t : T] = 3 * H[t - 1] + A[t]; }"


@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="nothing is compiled while kernels are interpreted"
)
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    "source, shape, dtype",
    [
        (ALONG % "+", (1, 2**20), "float32"),
        (ALONG % "+", (4096, 4096), "bfloat16"),
        (ALONG % ">", (3, 40000), "bool"),
        (ACROSS % "*", (4096, 64), "int8"),
        (ACROSS % "logsumexp", (4096, 64), "float32"),
        (ALONG % "any", (5, 300), "float64"),
        (LINEAR, (2000, 512), "float32"),
        (SHUFFLE, (2000, 512), "float32"),
        (INTEGER, (65536,), "int32"),
    ],
)
@pytest.mark.covering
@pytest.mark.one_in(4)
def test_compiled_for_each_target(source, shape, dtype, target):
    f = tilec.compile(source, backend="triton")
    inputs = [tilec.spec(shape, dtype)] * len(f.inputs)
    lowered = f.lower(*inputs, target=target)
    assert lowered.kernels[-1].name.endswith("_scan")
    assert f".target {target}" in lowered.asm("ptx")


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels are not compiled")
@pytest.mark.parametrize(
    "tiling",
    [ScanTiling(8, 32, False, 2, apart=True), pytest.param(ScanTiling(64, 32, False, 4), marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("source", [LINEAR.replace("t - 1", "t + 1"), ACROSS % "logsumexp"])
@pytest.mark.one_in(3)
def test_other_blocks_compile(source, tiling, monkeypatch):
    monkeypatch.setattr(scans, "choose_scan_tiling", lambda scan, view: tiling)
    f = tilec.compile(source, backend="triton")
    inputs = [tilec.spec((40_000, 64))] * len(f.inputs)
    assert ".target sm_90" in f.lower(*inputs, target="sm_90").asm("ptx")


def scan_of(source, *shapes):
    program = parse(source)
    types = {name: TensorType(s, "float32") for name, s in zip(program.input_names(), shapes, strict=True)}
    lowering = lower(program, types, {})
    strides = {name: contiguous(t.shape) for name, t in lowering.types.items()}
    (s,) = lowering.stages["defracted"].statements
    view = StridedView(s, lowering.types, strides)
    found = recognise_steps(s, lowering.types) if "H[" in source else recognise_scan(build_space(s, view.types), view)
    return found, view


@pytest.mark.parametrize("rows, steps", [(1, 2**26), (16384, 4096), (3, 5), (40, 70000), (1000, 100)])
def test_blocks(rows, steps):
    for source, shape in ((ALONG, (rows, steps)), (ACROSS, (steps, rows))):
        scan, view = scan_of(source % "+", shape)
        t = choose_scan_tiling(scan, view)
        assert (scan.rows, scan.steps) == (rows, steps)
        assert t.along == (source is ALONG or rows == 1)
        assert t.apart == (not t.along and rows >= 32)
        wide = t.apart and rows * 4 >= 4 * 96 * 132  # a step of all lanes keeps memory busy with 64 of them under way
        assert (t.steps, t.lanes, t.tiles) == (64, 128, None) if wide else t.steps * t.lanes <= 2048
        assert t.steps & (t.steps - 1) == 0 == t.lanes & (t.lanes - 1)
        if t.tiles is not None:
            chunks = -(-steps // (t.steps * t.tiles))
            assert 1 < chunks <= 4096 and chunks * chunks * rows <= (3 * 2**19 if t.apart else 2**24)
        enough = wide or rows >= 2112 * 32 if t.apart else -(-rows // t.lanes) >= 264
        assert (t.tiles is None) == (enough or steps <= 2 * t.steps or rows * 4 > 3 * 2**19)


def test_one_text_for_all_sizes():
    f = tilec.compile(ALONG % "+", backend="triton")
    texts = {tuple(k.source for k in f.lower(tilec.spec((3, n))).kernels) for n in (50_000, 60_001, 3_000_000)}
    assert len(texts) == 1 and len(next(iter(texts))) == 2


def test_what_is_a_scan():
    for text, found in {
        "O[b, i : B, N] = +(X[b, k]), i - k < N": True,
        "O[b, i : B, N] = +(X[b, k] * b), k - i - 3 < 2 * N": True,
        "O[b, i : B, N] = +(X[b, k]), i - k < N - 1": False,  # a window, though a long one
        "O[b, i : B, N] = +(X[b, k]), i - k < N, i < N - 1": False,
        "O[b, i : B, N] = +(exp(X[b, k] * X[b, i])), i - k < N": False,
        "O[b, i : B, N] = +(X[c, k]), i - k < N, b - c < B": False,
    }.items():
        assert (scan_of(f"function (X[B, N]) -> (O) {{ {text}; }}", (7, 9))[0] is not None) == found, text


def test_factors_take_the_states_type_one_by_one():
    """8-bit factors that meet a wider state in turn must not wrap among themselves."""
    program = parse("function (A[T], B[T], X[T]) -> (H) { H[t : T] = (H[t - 1] * A[t]) * B[t] + X[t]; }")
    types = {"A": TensorType((9,), "int8"), "B": TensorType((9,), "int8"), "X": TensorType((9,), "float32")}
    (s,) = lower(program, types, {}).stages["flat"].statements
    (state,) = {e for e in walk(s.body) if isinstance(e, Access) and e.tensor == "H"}
    found = {semiring.name: (scale, offset) for semiring, scale, offset in affine_steps(s.body, state, "float32")}
    scale, offset = found["real"]
    assert str(scale).count("'float32'") == 2 and "float32" in str(offset)
