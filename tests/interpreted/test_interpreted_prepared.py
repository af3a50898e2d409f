"""What products of exponentials read: made once, in launches that are shared, let go after the last that reads it."""

import os
from dataclasses import replace

import pytest
import torch

import tilec
from tilec.backends.triton.emit.device_text import kernel_file
from tilec.backends.triton.fusion.horizontal_fusion import fusable, fuse_launches, join_launches
from tilec.backends.triton.matmul import precompute_operands as hoist
from tilec.backends.triton.matmul import split as parts
from tilec.backends.triton.plan.lines import If, Return, StoreLine, assign
from tilec.backends.triton.plan.plan import Allocate, Launch, Pointer, Release
from tilec.backends.triton.plan.source import PROGRAM, KernelFunction
from tilec.backends.triton.schedule import exponential_products
from tilec.backends.triton.schedule.materialize import resolve_requests

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

BATCHED = "function (A[Z, M, K], B[Z, K, N]) -> (C) { C[b, i, j : Z, M, N] = logsumexp(A[b, i, k] + B[b, k, j]); }"
TURNED = "function (A[Z, K, M], B[Z, N, K]) -> (C) { C[b, i, j : Z, M, N] = logsumexp(A[b, k, i] + B[b, j, k]); }"
RANGES = {"normal": (3.0, 0.0), "wide": (60.0, 0.0), "large": (3.0, 5e4)}


@pytest.fixture
def large(monkeypatch):
    """Small products are taken for large ones."""
    monkeypatch.setattr(exponential_products, "LEAST_WORK", 0)
    for module in (hoist, parts):
        monkeypatch.setattr(module, "LEAST_REUSE", 16)


def normal(*shape, scale=3.0, offset=0.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) + offset


@pytest.mark.parametrize("range_", RANGES)
@pytest.mark.parametrize("source", [BATCHED, TURNED])
@pytest.mark.covering
@pytest.mark.one_in(3)
def test_values_and_gradients(large, source, range_):
    scale, offset = RANGES[range_]
    shapes = ((2, 24, 70), (2, 70, 33)) if source is BATCHED else ((2, 70, 24), (2, 33, 70))
    a, b = (normal(*s, scale=scale, offset=offset) for s in shapes)
    d = torch.randn(2, 24, 33, generator=torch.Generator().manual_seed(0))
    exact = tilec.compile(source, backend="torch")
    f = tilec.compile(source, backend="triton")
    want = exact(a.double(), b.double())
    assert ((f(a, b) - want).abs() <= 3e-6 + 2 * 2.0**-23 * want.abs()).all()
    gradient = tilec.compile(source).grad().tile  # with the values computed again
    found = tilec.compile(gradient, backend="triton")(a, b, d)
    for g, w in zip(found, exact.grad()(a.double(), b.double(), d.double()), strict=True):
        # cancelling sums round to a part of what is added; the exponent is rounded to float32
        assert (g - w).abs().max() <= (1e-5 + 2.0**-23 * (4 * scale + offset)) * w.abs().max()


def test_a_gradient_is_four_launches(large):
    """Both greatest terms and exponentials, the values, the weights, the products; in the recorded one no values."""
    a, b, d = normal(2, 40, 64), normal(2, 64, 48), normal(2, 40, 48)
    f = tilec.compile(BATCHED, backend="triton")
    assert len(f.lower(a, b).kernels) == 2
    lowered = tilec.compile(BATCHED, backend="triton").grad().lower(a, b, d)
    assert [len(k.statements) for k in lowered.kernels] == [10, 1, 3, 2]
    assert len(lowered.kernels) == 4
    steps = lowered._executable.plan.steps
    allocated = [s.tensor for s in steps if isinstance(s, Allocate)]
    released = [name for s in steps if isinstance(s, Release) for name in s.tensors]
    assert sorted({*allocated} - {*released}) == ["DA", "DB"] and len(set(released)) == len(released)
    for place, step in enumerate(steps):
        if isinstance(step, Release):
            assert not any(set(step.tensors) & set(s.tensors) for s in steps[place:] if isinstance(s, Launch))


def test_other_precisions_take_no_parts(large):
    def text():
        a, d = normal(2, 32, 32), normal(2, 32, 32)
        return tilec.compile(BATCHED, backend="triton").grad().lower(a, a, d).source()

    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert " * one" not in text() and 'input_precision="tf32"' in text()
    finally:
        torch.set_float32_matmul_precision(before)
    assert " * one" in text()


def test_parts_that_are_the_same_along_a_side_stay_whole(large):
    """An operand that does not know its own rows or the reduction is no block of parts."""
    source = "function (A[M, K], V[K], B[K, N]) -> (C) { C[i, j : M, N] = logsumexp(A[i, k] + V[k] + B[k, j]); }"
    inputs = normal(40, 32), normal(32), normal(32, 48), normal(40, 48)
    want = tilec.compile(source, backend="torch").grad()(*(x.double() for x in inputs))
    for g, w in zip(tilec.compile(source, backend="triton").grad()(*inputs), want, strict=True):
        assert (g - w).norm() <= 1e-5 * w.norm()


def launch(name, output, source, grid=(2, 1, 1), warps=4, leaves_early=False):
    body = (
        assign("at", f"({PROGRAM[0]} + {PROGRAM[1]} * 2) * BM + tl.arange(0, BM)"),
        *([If("n == 0", (Return(),))] if leaves_early else []),
        StoreLine("Y + at", "maximum_(tl.load(X + at, mask=at < n, other=0), 1.0)", "at < n"),
    )
    kernel = KernelFunction(name, ("n", "X", "Y"), ("BM",), body)
    arguments = (("n", 100), ("X", Pointer(source)), ("Y", Pointer(output)))
    return Launch(kernel_file(kernel), grid, arguments, (("BM", 32),), warps, 2, (output,), horizontal=True)


def test_launches_of_any_grid_become_one():
    from tilec.backends.triton.runtime.launcher import Launched

    first, second = launch("one", "P", "A", (4, 1, 1)), launch("two", "Q", "B", (2, 2, 1))
    third = launch("three", "R", "A", (4, 1, 1))
    a, b = normal(100), normal(100)
    tensors = {"A": a, "B": b, **{n: torch.zeros(100) for n in "PQR"}}
    joined = fuse_launches([first, second, third], "all")
    assert joined.grid == (12, 1, 1) and joined.statements == ("P", "Q", "R")
    Launched(joined)(tensors, 0)
    for name, source in (("P", a), ("Q", b), ("R", a)):
        assert torch.equal(tensors[name], source.clamp(min=1))


def test_only_alike_launches_that_need_nothing_of_each_other_share_one():
    plain = launch("one", "P", "A")
    assert fusable([plain, launch("two", "Q", "B")])
    assert not fusable([plain, launch("two", "Q", "B", warps=8)])
    assert not fusable([plain, launch("two", "Q", "B", leaves_early=True)])


def test_steps_without_anything_prepared_are_as_they_were():
    steps = [Allocate("P", (100,), "float32"), launch("one", "P", "A"), Release(("P",))]
    assert resolve_requests(steps) == steps


def test_small_launches_that_need_nothing_of_each_other_are_one():
    def alone(*given, **more):
        return replace(launch(*given, **more), horizontal=False)

    def told(steps, processors=132):
        return [s.statements for s in join_launches(steps, processors) if isinstance(s, Launch)]

    made = [Allocate(n, (100,), "float32") for n in "PQRS"]
    first, then, other = alone("one", "P", "A"), alone("two", "Q", "P"), alone("three", "R", "B")
    chain = [made[0], first, made[1], then, Release(("P",)), made[2], other]
    assert told(chain) == [("P", "R"), ("Q",)]
    assert [type(s).__name__ for s in join_launches(chain, 132)][:3] == ["Allocate", "Allocate", "Launch"]
    assert told([*chain, made[3], alone("four", "S", "R")]) == [("P", "R"), ("Q", "S")]
    assert told(chain, processors=0) == [("P",), ("Q",), ("R",)]
    filled = [made[0], first, Allocate("R", (100,), "float32", 0), other]
    assert told(filled) == [("P",), ("R",)]
    again = [made[0], first, alone("two", "P", "B")]
    assert told(again) == [("P",), ("P",)]


def test_sums_over_the_same_points_are_one_launch_and_one_that_ends_them():
    """The loss of overlaps: each sum is split over programs, and the parts added."""
    source = """function (X[B, N], T[B, N]) -> (Y) {
        A[b] = sum(X[b, n] * T[b, n]); C[b] = sum(X[b, n]); D[b] = sum(T[b, n]);
        Y[b : B] = A[b] / (C[b] + D[b]);
    }"""
    f = tilec.compile(source, backend="triton")
    found = f.lower(tilec.spec((3, 70_000)), tilec.spec((3, 70_000)), target="sm_90").kernels
    assert [set(k.statements) & set("ACD") for k in found] == [set("ACD"), set("ACD")]
    x, t = normal(3, 70_000).abs(), normal(3, 70_000).abs()
    want = (x * t).sum(1) / (x.sum(1) + t.sum(1))
    assert (f(x, t) - want).abs().max() < 1e-5
