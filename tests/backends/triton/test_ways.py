"""The ways to carry out a product: all that a choice on disk can say, and what happens when it no longer fits."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import tilec
from tilec.backends.triton.fusion.groups import grouped
from tilec.backends.triton.plan.plan import Allocate, Setting
from tilec.backends.triton.plan.sizes import contiguous
from tilec.backends.triton.schedule.candidates import product_configs, shape_class, steps_of
from tilec.backends.triton.schedule.planner import make_plan
from tilec.backends.triton.schedule.problem import product_task
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.pipeline import lower

MATMUL = "function (A[M, K], B[K, N]) -> (O) { O[i, j : M, N] = +(A[i, k] * B[k, j]); }"


def plan_of(lowering, strides, setting):
    return make_plan(lowering, grouped(lowering.stages["flat"], lowering.types), strides, setting)


TAPS = "function (A[N, X, O], B[N, X, C]) -> (K) { K[o, i, c : O, 3, C] = +(A[n, x, o] * B[n, x + i - 1, c]); }"


def task_of(shapes, dtype="bfloat16", source=MATMUL, **setting):
    program = parse(source)
    types = {n: TensorType(s, dtype) for n, s in zip(("A", "B"), shapes, strict=True)}
    lowering = lower(program, types, {})
    strides = {n: contiguous(t.shape) for n, t in lowering.types.items()}
    (s,) = lowering.stages["flat"].statements
    (d,) = lowering.stages["defracted"].statements
    task = product_task(d, s, lowering.types, strides, Setting(**setting))
    assert task is not None
    return task, lowering


def test_every_family_is_a_way():
    task, _ = task_of(((512, 512), (512, 512)), library=True)
    found = product_configs(task)
    families = [choice["family"] for choice, _ in found]
    assert families[0] == "library" and {"hopper", "dot"} <= set(families)
    assert len({json.dumps(dict(choice), sort_keys=True) for choice, _ in found}) > 5


@pytest.mark.parametrize(("source", "shape"), [(MATMUL, (512, 512)), (TAPS, (256, 1024, 64))], ids=["matmul", "taps"])
def test_a_choice_that_went_through_json_gives_the_same_steps(source, shape):
    task, _ = task_of((shape, shape), source=source, library=True)
    found = product_configs(task)
    assert any(choice.get("unrolled") for choice, _ in found) == (source == TAPS)
    for choice, steps in found:
        assert steps_of(task, json.loads(json.dumps(dict(choice)))) == steps


def test_what_was_found_is_what_runs():
    task, lowering = task_of(((512, 512), (512, 512)))
    choice, steps = product_configs(task)[-1]
    strides = [contiguous(t.shape) for t in (lowering.types["A"], lowering.types["B"])]
    plan = plan_of(lowering, strides, replace(task.setting, known=lambda t: choice))
    assert plan.launches() == [s for s in steps if hasattr(s, "grid")]
    untuned = plan_of(lowering, strides, task.setting)
    assert untuned.launches() != plan.launches()


def test_a_choice_that_does_not_fit_is_left_aside():
    hopper = next(c for c, _ in product_configs(task_of(((512, 512), (512, 512)))[0]) if c["family"] == "hopper")
    odd, lowering = task_of(((33, 37), (37, 35)))
    assert steps_of(odd, hopper) is None, "rows of 74 bytes cannot be reached by TMA"
    strides = [contiguous(t.shape) for t in (lowering.types["A"], lowering.types["B"])]
    plan = plan_of(lowering, strides, replace(odd.setting, known=lambda t: hopper))
    assert [k.kernel for k in plan.launches()] == ["O_dot"]


@pytest.mark.parametrize("change", [{"precision": "high"}, {"library": True}])
def test_the_class_of_shapes_tells_settings_apart(change):
    task, _ = task_of(((512, 512), (512, 512)))
    assert shape_class(replace(task, setting=replace(task.setting, **change))) != shape_class(task)


def test_the_class_of_shapes_holds_like_batches_together():
    classes = [shape_class(task_of(((rows, 256), (256, 64)))[0]) for rows in (900, 1000, 1024, 1100)]
    assert classes[0] == classes[1] == classes[2] != classes[3]


def test_what_is_stored_between_products_lies_as_the_other_operand_does():
    """However the factors are written: along j, as W."""
    source = "function (D[M, J], P[M, E], W[E, H, J]) -> (O) { O[m, h : M, H] = +(D[m, j] * P[m, e] * W[e, h, j]); }"
    shapes = {"D": (4096, 1024), "P": (4096, 8), "W": (8, 1024, 1024)}
    lowering = lower(parse(source), {n: TensorType(s, "bfloat16") for n, s in shapes.items()}, {})
    plan = plan_of(lowering, [contiguous(s) for s in shapes.values()], Setting())
    assert next(s.shape for s in plan.steps if isinstance(s, Allocate) and s.tensor == "O.1") == (4096, 8, 1024)


def test_a_window_as_long_as_its_signal_is_no_convolution_of_a_librarys() -> None:
    """A Toeplitz matrix: cuDNN has no kernels for such windows."""
    source = "function (C[L], X[N, D]) -> (Y) { Y[i, d : N, D] = sum(C[i - j + N - 1] * X[j, d]); }"
    for n, called in ((1024, False), (200, False), (65, False), (9, True)):
        lowered = tilec.compile(source).lower(tilec.spec((2 * n - 1,)), tilec.spec((n, 64)), target="sm_90")
        assert ("convolution_input" in lowered.source()) is called


def test_a_filter_as_long_as_its_signal_is_no_convolution_of_a_librarys() -> None:
    """The gradient of a long window's input is one of the library's unless the window spans most of the input."""
    source = "function (P[A, U], K[L]) -> (Q) { Q[a, s : A, U] = +(P[a, u] * K[s - u + U - 1]); }"
    lowered = tilec.compile(source).lower(tilec.spec((180, 256)), tilec.spec((511,)), target="sm_90")
    assert "convolution_input" not in lowered.source()
    source = """function (G[B, T, D], K[W, C, D]) -> (X) {
        X[b, t + w, c : B, T + W - 1, C] = +(G[b, t, d] * K[w, c, d]);
    }"""
    shapes = (8, 1000, 16), (100, 16, 16)
    lowered = tilec.compile(source).lower(*map(tilec.spec, shapes), target="sm_90")
    assert "convolution_input" in lowered.source()
