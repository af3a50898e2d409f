"""Plans as straight functions: every launch gets the addresses and numbers of its plan, no two tensors that live at the
same time share memory, and other steps run as they are."""

from __future__ import annotations

import math
import threading
import time
from functools import partial
from typing import Any

import pytest
import torch

import tilec
from tilec.backends.common.code import python_name
from tilec.backends.common.python_text import parsing
from tilec.backends.triton.plan.plan import Allocate, Launch, Plan, Pointer, Release, Repeat, TorchLines
from tilec.backends.triton.recurrence import coupled_lanes as recurrence_sweep
from tilec.backends.triton.runtime import launcher
from tilec.backends.triton.runtime.launcher import Launched
from tilec.backends.triton.runtime.operations import operation_of
from tilec.backends.triton.runtime.step_lines import torch_lines_of
from tilec.backends.triton.runtime.straight import SHARED_BYTES, places, straight

NORM = """function (X[N, D], W[D]) -> (Y) {
    M[i] = mean(X[i, j]);
    R[i] = rsqrt(mean((X[i, j] - M[i]) * (X[i, j] - M[i])) + 0.00001);
    Y[i, j : N, D] = (X[i, j] - M[i]) * R[i] * W[j];
}"""
LOG = "function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = logsumexp(A[i, k] + B[k, j]); }"
CHAIN = "function (A[N, K], B[K, L], C[L, M]) -> (O) { O[i, j : N, M] = sin(sum(A[i, k] * B[k, l] * C[l, j])); }"
SCATTER = "function (X[N], T[N]) -> (O) { O[T[i] : 40] = +(X[i]); }"
STEPS = "function (W[D, D], X[T, D]) -> (H) { H[t, i : T, D] = tanh(sum(W[i, j] * H[t - 1, j]) + X[t, i]); }"
CASES = {
    "rows": (NORM, (64, 96), (96,)),
    "two stages": (tilec.compile(NORM).grad().tile, (64, 96), (96,), (64, 96)),
    "log products": (LOG, (64, 70), (70, 64)),
    "their gradients": (tilec.compile(LOG).grad().tile, (64, 70), (70, 64), (64, 64)),
    "a chain": (CHAIN, (240, 250), (250, 260), (260, 230)),
    "torch's sort": (SCATTER, (70,), (70,)),
    "constants": ("function (X[N]) -> (Y) { Y[i : 3*N] = +(X[k]), i - 3*k < 1; }", (20,)),
}


def planned(source: str, *shapes: tuple[int, ...]) -> tuple[Plan, list[str], list[torch.Tensor]]:
    dtypes = ["int64" if source == SCATTER and n else "float32" for n in range(len(shapes))]
    function = tilec.compile(source, backend="triton")
    plan = function.lower(*map(tilec.spec, shapes, dtypes), target="sm_90")._executable.plan
    return (
        plan,
        list(function.inputs),
        [torch.zeros(s, dtype=getattr(torch, d)) for s, d in zip(shapes, dtypes, strict=True)],
    )


@pytest.mark.parametrize("name", CASES)
def test_every_launch_gets_what_its_plan_says(name: str) -> None:
    plan, names, inputs = planned(*CASES[name])
    launches: list[tuple[Any, ...]] = []
    device = torch.device("cpu")
    operations = [operation_of(step, device) for step in plan.steps]
    for operation in operations:
        if isinstance(operation, Launched):
            operation._run = lambda *given: launches.append(given)
            operation._middle = "middle", None
    made = straight(plan, names, operations, device)
    assert made is not None
    text, run = made
    outputs = run(inputs, 5)
    wanted = [s for s in plan.steps if isinstance(s, Launch)]
    assert len(launches) == len(wanted) > 0 and "[" not in text.split("return")[1]
    known = {n: t.data_ptr() for n, t in zip((*names, *plan.outputs), (*inputs, *outputs), strict=True) if t.numel()}
    for launch, given in zip(wanted, launches, strict=True):
        assert given[:6] == (*launch.grid, 5, "middle", None)
        values = [value for _, value in (*launch.arguments, *launch.constants)]
        for value, argument in zip(values, given[6:], strict=True):
            if isinstance(value, Pointer):
                assert argument == known.setdefault(value.tensor, argument) and argument % 16 == 0
            else:
                assert argument == value and type(argument) is type(value)


@pytest.mark.parametrize("name", CASES)
def test_tensors_that_live_together_stand_apart(name: str) -> None:
    plan, _, _ = planned(*CASES[name])
    found, size = places(plan)
    alive: dict[str, range] = {}
    for step in plan.steps:
        if isinstance(step, Allocate) and step.tensor in found:
            taken = math.prod(step.shape) * getattr(torch, step.dtype).itemsize
            own = range(found[step.tensor], found[step.tensor] + taken)
            assert own.start % 512 == 0 and own.stop <= size
            assert all(own.stop <= other.start or other.stop <= own.start for other in alive.values())
            alive[step.tensor] = own
        if isinstance(step, Release):
            for tensor in step.tensors:
                alive.pop(tensor, None)
    assert not set(found) & set(plan.outputs)


TWO_SITES = """function (L[X, W, X], A[W, D, D, W], B[W, D, D, W], R[X, W, X], T[X, D, D, X]) -> (Y) {
    P[a, w, j, l, d] = sum(L[a, w, b] * T[b, j, l, d]);
    Q[a, v, i, l, d] = sum(A[w, i, j, v] * P[a, w, j, l, d]);
    S[a, x, i, k, d] = sum(B[v, k, l, x] * Q[a, v, i, l, d]);
    Y[a, i, k, c] = sum(S[a, x, i, k, d] * R[c, x, d]);
}"""


def test_what_torch_makes_is_allocated_by_nobody_else() -> None:
    """A kernel that was put together with later ones came between an allocation and the lines that make it again: what
    read it had the address of the allocation."""
    shapes = (192, 6, 192), (6, 4, 4, 6), (6, 4, 4, 6), (192, 6, 192), (192, 4, 4, 192)
    plan = tilec.compile(TWO_SITES).lower(*map(tilec.spec, shapes), target="sm_90")._executable.plan
    written = {n for s in plan.steps if isinstance(s, TorchLines) for n in s.writes}
    assert written and not written & {s.tensor for s in plan.steps if isinstance(s, Allocate)}


def test_what_is_made_twice_has_no_place() -> None:
    lines = TorchLines(("A = torch.mm(X, X)",), ("X",), ("A",), ("A",), ("float32",))
    plan = Plan((Allocate("A", (10,), "float32"), lines, Allocate("B", (10,), "float32")), ())
    assert places(plan)[0] == {"B": 0}


def test_places_are_used_again_and_what_is_large_stands_alone() -> None:
    def plan(*steps: object) -> Plan:
        return Plan(steps, ())  # type: ignore[arg-type]

    def allocated(name: str, bytes_: int) -> Allocate:
        return Allocate(name, (bytes_,), "int8")

    a, b, c = allocated("A", 1000), allocated("B", 600), allocated("C", 1000)
    assert places(plan(a, b, Release(("A",)), c)) == ({"A": 0, "B": 1024, "C": 0}, 2048)
    assert places(plan(a, b, Release(("B",)), c)) == ({"A": 0, "B": 1024, "C": 1024}, 2048)
    assert places(plan(a, allocated("L", SHARED_BYTES), c)) == ({"A": 0, "C": 1024}, 2048)
    assert places(plan(Allocate("F", (4,), "int8", 0), Allocate("E", (0,), "float32"))) == ({"E": 0}, 512)


@pytest.mark.parametrize("fill", [0, True, 2.5, float("inf"), float("nan"), "S"])
def test_a_fill_runs_as_it_is_printed(fill: float | str) -> None:
    step, source = Allocate("O", (2, 3), "float32", fill), torch.arange(3.0, dtype=torch.float64)
    tensors = {"S": source}
    operation_of(step, torch.device("cpu"))(tensors, 0)
    printed: dict[str, Any] = {"torch": torch, "device": torch.device("cpu"), "S": source}
    exec("\n".join(torch_lines_of(step, python_name)), printed)
    made = straight(Plan((step,), ("O",)), ["S"], [operation_of(step, torch.device("cpu"))], torch.device("cpu"))
    assert made is not None
    wanted = source.expand(2, 3) if isinstance(fill, str) else torch.full((2, 3), fill)
    for found in (tensors["O"], printed["O"], made[1]([source], 0)[0]):
        torch.testing.assert_close(found, wanted.float(), equal_nan=True)
        assert found.is_contiguous()


def test_steps_of_their_own_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrence_sweep, "RESIDENT_LANES", 0)
    plan, names, inputs = planned(STEPS, (20, 20), (6, 20))
    assert any(isinstance(s, Repeat) for s in plan.steps)
    told: list[dict[str, torch.Tensor]] = []
    operations = [
        (lambda tensors, stream: told.append(dict(tensors)))
        if isinstance(s, Repeat)
        else operation_of(s, torch.device("cpu"))
        for s in plan.steps
    ]
    for operation in operations:
        if isinstance(operation, Launched):
            operation._run, operation._middle = (lambda *given: None), ()
    made = straight(plan, names, operations, torch.device("cpu"))
    assert made is not None
    (h,) = made[1](inputs, 0)
    assert told and all(t["H"].data_ptr() == h.data_ptr() for t in told) and h.shape == (6, 20)


def test_launchers_are_loaded_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.6 loads each as the same module, and would take for its own what another thread has put there."""
    module: dict[str, object] = {}

    class Kernel:
        function = packed_metadata = None

        @property
        def run(self) -> object:
            module["launch"] = own = partial(print, self)
            time.sleep(0.01)
            assert module["launch"] is own
            return own

    class Function:
        def warmup(self, *args: object, **options: object) -> Kernel:
            return Kernel()

    monkeypatch.setattr(launcher, "kernel_function", lambda launch: Function())
    monkeypatch.setattr(launcher, "interpreting", lambda: False)
    monkeypatch.setattr(launcher, "_kernels", {})
    monkeypatch.setattr(launcher, "_parameters", lambda kernel, launch: None)
    monkeypatch.setattr(Launched, "_key", lambda self, arguments: (threading.get_ident(),))  # none has been compiled
    plan, names, inputs = planned(*CASES["rows"])
    (launch,) = [s for s in plan.steps if isinstance(s, Launch)]
    tensors = dict.fromkeys(launch.tensors, inputs[0])
    threads = [threading.Thread(target=Launched(launch).compile, args=(tensors,)) for _ in range(4)]
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_trees_that_python_counts_wrongly_are_built_again() -> None:
    attempts = iter([SystemError("AST constructor recursion depth mismatch (before=102, after=37)")] * 3)

    def action() -> str:
        for error in attempts:
            raise error
        return "parsed"

    assert parsing(action) == "parsed"
    with pytest.raises(SystemError, match="another"):
        parsing(lambda: (_ for _ in ()).throw(SystemError("another")))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lines_of_torch_make_tensors(dtype: str) -> None:
    """A library's product that is a part of a larger tensor: the lines make that one, on the plan's device."""
    source = "function (A[I, K], B[K, J]) -> (O) { O[i, j, 0 : I, J, 2] = +(A[i, k] * B[k, j]); }"
    plan = tilec.compile(source).lower(*[tilec.spec((64, 64), dtype)] * 2, target="sm_90")._executable.plan
    (step,) = plan.steps
    assert isinstance(step, TorchLines) and any("device=device" in line for line in step.lines)
    a, b = (torch.randn(64, 64).to(getattr(torch, dtype)) for _ in "ab")
    tensors = {"A": a, "B": b}
    operation_of(step, torch.device("cpu"))(tensors, 0)
    torch.testing.assert_close(tensors["O"][..., 0], a @ b)
    assert not tensors["O"][..., 1].any()
