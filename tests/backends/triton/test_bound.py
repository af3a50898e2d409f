"""The call of a plan: what is printed is what runs, every launch gets the addresses and numbers of its plan, no two
tensors that live at the same time share memory, and the library in C++ is given the same steps."""

from __future__ import annotations

import inspect
import math
import threading
import time
import traceback
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tilec
from tilec.backends.common.python_text import parsing
from tilec.backends.triton import TritonBackend
from tilec.backends.triton.plan.device_info import DEVICES
from tilec.backends.triton.plan.plan import (
    Allocate,
    Launch,
    Plan,
    Pointer,
    Release,
    Repeat,
    Setting,
    TorchLines,
    made_by,
)
from tilec.backends.triton.plan.sizes import contiguous
from tilec.backends.triton.recurrence import coupled_lanes as recurrence_sweep
from tilec.backends.triton.recurrence import recurrence
from tilec.backends.triton.runtime import launcher
from tilec.backends.triton.runtime.bound import BoundPlan, operation_of
from tilec.backends.triton.runtime.launcher import CompiledKernel, Launched
from tilec.backends.triton.runtime.native_plan import PlanMaker
from tilec.backends.triton.runtime.workspace import SHARED_BYTES, places
from tilec.backends.triton.runtime.wrapper import wrapper
from tilec.ir.types import TensorType
from tilec.pipeline import lower

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


CPU = torch.device("cpu")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch says of a device that is not there."""
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 5 if index == 0 else None, raising=False)


def bound_over(plan: Plan, names: list[str], told: list[tuple[Any, ...]]) -> BoundPlan:
    """The call of a plan whose launches are told instead: (launch, what the driver's launcher is given)."""
    bound = BoundPlan(plan, wrapper("program", names, plan, {}), CPU)
    for launched in bound.launched.values():
        launch = launched._launch
        run = lambda *given, launch=launch: told.append((launch, given))  # noqa: E731
        launched.by_grid[launch.grid] = launched._direct(run, ("middle", None))
    return bound


@pytest.mark.parametrize("name", CASES)
def test_every_launch_gets_what_its_plan_says(name: str, driver: None) -> None:
    plan, names, inputs = planned(*CASES[name])
    told: list[tuple[Any, ...]] = []
    outputs = bound_over(plan, names, told).run(*inputs)
    wanted = [s for s in plan.steps if isinstance(s, Launch)]
    assert [launch for launch, _ in told] == wanted and wanted
    known = {n: t.data_ptr() for n, t in zip((*names, *plan.outputs), (*inputs, *outputs), strict=True) if t.numel()}
    for launch, given in told:
        assert given[:6] == (*launch.grid, 5, "middle", None)
        values = [value for _, value in (*launch.arguments, *launch.constants)]
        for value, argument in zip(values, given[6:], strict=True):
            if isinstance(value, Pointer):
                assert argument == known.setdefault(value.tensor, argument) and argument % 16 == 0
            else:
                assert argument == value and type(argument) is type(value)


@pytest.mark.parametrize("name", CASES)
def test_what_is_printed_is_what_runs(name: str) -> None:
    source, *shapes = CASES[name]
    plan, names, _ = planned(source, *shapes)
    function = tilec.compile(source, backend="triton")
    dtypes = ["int64" if source == SCATTER and n else "float32" for n in range(len(shapes))]
    executable = function.lower(*map(tilec.spec, shapes, dtypes), target="sm_90")._executable
    bound = BoundPlan(plan, executable._write(plan), CPU)
    assert executable.source().endswith(f"\n\n\n{bound.written.text}\n")
    assert inspect.getsource(bound.run).rstrip() in executable.source()
    with pytest.raises(AttributeError) as failed:
        bound.run(*[None for _ in names])
    (line,) = [f.line for f in traceback.extract_tb(failed.tb) if f.filename.startswith("<tilec program")]
    assert line == f"device = {names[0]}.device" and bound.code.co_filename.startswith("<tilec program")


class Library:
    """Stands for the one in C++, and keeps what it is given."""

    def plan(self, like: torch.Tensor, workspace: int, slots: int, steps: list[tuple], outputs: list[int]) -> object:
        return SimpleNamespace(workspace=workspace, steps=steps, outputs=outputs)


@pytest.mark.parametrize("name", CASES)
def test_the_library_does_the_same_steps(name: str, driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, names, inputs = planned(*CASES[name])
    told: list[tuple[Any, ...]] = []
    bound = bound_over(plan, names, told)
    launches = list(bound.launched.values())
    for number, launched in enumerate(launches):
        kernel = SimpleNamespace(metadata=SimpleNamespace(num_warps=4, shared=0, launch_cooperative_grid=False))
        taken = dict.fromkeys((n for n, _ in launched._launch.arguments), "kind")
        launched._compiled_kernel = CompiledKernel(kernel, taken, (), number)
    given = PlanMaker(plan, names, CPU, places(plan)).made(Library(), bound.operations)
    for title in bound.written.lines:
        step = bound._scope[title]
        bound._scope[title] = lambda *x, step=step: told.append(("lines", results := step(*x))) or results
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *x, **how: told.append(("empty", made := empty(*x, **how))) or made)
    outputs = bound.run(*inputs)
    monkeypatch.undo()
    slots: dict[int, int | str] = {t.data_ptr(): slot for slot, t in enumerate(inputs)}
    if given.workspace:
        workspace = told.pop(0)[1]
        assert workspace.nbytes == given.workspace
        slots |= {workspace.data_ptr() + place: f"at {place}" for place in range(0, given.workspace, 512)}
    for kind, *step in (s for s in given.steps if s[0] != "free"):
        if kind == "empty":
            (slot, shape, _), (_, made) = step, told.pop(0)
            assert list(made.shape) == shape
            slots[made.data_ptr()] = slot
        elif kind == "launch":
            kernel, grid, *_, arguments = step
            launch, handed = told.pop(0)
            assert launch is launches[kernel]._launch and list(handed[:3]) == grid
            values = [slots.get(v, v) for v in handed[6:]]
            wanted = [f"at {v}" if kind == "workspace" else v for kind, v in arguments[:-2]]
            assert values[: len(wanted)] == wanted
        elif told and told[0][0] == "lines":
            slots |= {t.data_ptr(): slot for t, (_, slot) in zip(told.pop(0)[1], step[2], strict=True)}
        else:  # constants and fills
            assert isinstance(step[0], type(lambda: 0))
    assert not told and all(
        slots.get(t.data_ptr(), slot) == slot for t, slot in zip(outputs, given.outputs, strict=True)
    )


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


def test_places_are_used_again_and_what_is_large_stands_alone() -> None:
    def plan(*steps: object) -> Plan:
        return Plan(steps, ())  # type: ignore[arg-type]

    def allocated(name: str, bytes_: int) -> Allocate:
        return Allocate(name, (bytes_,), "int8")

    a, b, c = allocated("A", 1000), allocated("B", 600), allocated("C", 1000)
    assert places(plan(a, b, Release(("A",)), c)) == ({"A": 0, "B": 1024, "C": 0}, 2048)
    assert places(plan(a, b, Release(("B",)), c)) == ({"A": 0, "B": 1024, "C": 1024}, 2048)
    assert places(plan(a, allocated("L", SHARED_BYTES), c)) == ({"A": 0, "C": 1024}, 2048)
    assert places(plan(a, Allocate("E", (0,), "float32"))) == ({"A": 0, "E": 1024}, 1536)
    assert places(plan(Allocate("F", (4,), "int8", 0), a)) == ({}, 0)  # a tensor alone shares nothing


@pytest.mark.parametrize("fill", [0, True, 2.5, float("inf"), float("nan"), "S"])
def test_a_fill_runs_as_it_is_printed(fill: float | str) -> None:
    step, source = Allocate("O", (2, 3), "float32", fill), torch.arange(3.0, dtype=torch.float64)
    plan, tensors = Plan((step,), ("O",)), {"S": source}
    operation_of(step, CPU)(tensors, 0)
    (made,) = BoundPlan(plan, wrapper("program", ["S"], plan, {}), CPU).run(source)
    wanted = source.expand(2, 3) if isinstance(fill, str) else torch.full((2, 3), fill)
    for found in (tensors["O"], made):
        torch.testing.assert_close(found, wanted.float(), equal_nan=True)
        assert found.is_contiguous()


def test_one_kernel_that_is_launched_again_and_again(monkeypatch: pytest.MonkeyPatch, driver: None) -> None:
    monkeypatch.setattr(recurrence_sweep, "RESIDENT_LANES", 0)
    monkeypatch.setattr(recurrence, "recognise_tile", lambda loop: None)
    plan, names, inputs = planned(STEPS, (20, 20), (6, 20))
    (repeat,) = [s for s in plan.steps if isinstance(s, Repeat)]
    told: list[tuple[Any, ...]] = []
    (h,) = bound_over(plan, names, told).run(*inputs)
    (launched,), (counter,) = repeat.launches, repeat.counters
    place = [name for name, _ in launched.arguments].index(counter)
    given = [given for launch, given in told if launch is launched]
    assert [g[6 + place] for g in given] == list(range(repeat.count))
    assert all(h.data_ptr() in g for g in given) and h.shape == (6, 20)


def test_any_names_will_do() -> None:
    """Those of tensors are what the text calls otherwise, and differ in what Python does not tell apart."""
    f = tilec.compile("function (Y_kernel[N], A'[N], A_[N]) -> (Y) { Y[i] = Y_kernel[i] * A'[i] + A_[i]; }")
    text = f.lower(*[tilec.spec((9,))] * 3, backend="triton", target="sm_90").source()
    assert "def program(Y_kernel1, A_, A_1):" in text and "    Y_kernel[(" in text and "return (Y,)" in text


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
    operation_of(step, CPU)(tensors, 0)
    torch.testing.assert_close(tensors["O"][..., 0], a @ b)
    assert not tensors["O"][..., 1].any()


NETWORK = """function (L[X, W, X], A[W, D, D, W], R[X, W, X], T[X, D, D, X]) -> (Y) {
    P[a, w, j, l, d] = sum(L[a, w, b] * T[b, j, l, d]);
    Q[a, v, i, l, d] = sum(A[w, i, j, v] * P[a, w, j, l, d]);
    Y[a, i, l, c] = sum(Q[a, x, i, l, d] * R[c, x, d]);
}"""


def test_what_torch_makes_has_no_memory_before() -> None:
    """A launch for a later product stands before torch's own one, whose result had a place in the shared allocation."""
    shapes = [(192, 6, 192), (6, 4, 4, 6), (192, 6, 192), (192, 4, 4, 192)]
    function = tilec.compile(NETWORK)
    types = {name: TensorType(shape, "float32") for name, shape in zip(function.inputs, shapes, strict=True)}
    program = TritonBackend("sm_90", library=True).build(lower(function.program, types, {}))
    plan = program._make_plan([contiguous(s) for s in shapes], Setting(device=DEVICES["sm_90"]), None)
    made = [name for step in plan.steps for name in made_by(step)]
    assert any(isinstance(step, TorchLines) and "P" in step.writes for step in plan.steps)
    assert len(made) == len(set(made)) and "P" not in places(plan)[0]


def test_what_torch_makes_has_no_place_in_the_shared_allocation() -> None:
    lines = TorchLines(("P = X + 1",), ("X",), ("P",), ("P",), ("float32",))
    allocated = [Allocate(name, (8,), "float32") for name in "PQR"]
    assert [*places(Plan((*allocated, lines, Release(("P", "Q", "R"))), ()))[0]] == ["Q", "R"]


@pytest.mark.parametrize("names", ["XX", ("A'", "A_"), ("None", "A")], ids=str)
@pytest.mark.parametrize("bias", ["", " + B[j]"])
def test_lines_of_torch_are_python(names: tuple[str, str], bias: str) -> None:
    """Of a tensor that is read twice, of tensors whose names are one in Python, and of one named as a keyword."""
    left, right = names
    head = ", ".join(f"{name}[N, N]" for name in dict.fromkeys(names))
    source = f"function ({head}, B[N]) -> (Y) {{ Y[i, j : N, N] = sum({left}[i, k] * {right}[j, k]){bias}; }}"
    specs = [tilec.spec((256, 256)) for _ in dict.fromkeys(names)]
    executable = tilec.compile(source).lower(*specs, tilec.spec((256,)), target="sm_90")._executable
    compile(executable.source(), "file", "exec")
    assert isinstance(executable.plan.steps[0], TorchLines) == (right != "A_")
