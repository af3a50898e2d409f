"""Steps of Python lines that are done again without Python: the same operators on tensors of the same kind."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from support.fresh import run_fresh

import tilec.backends.torch.runtime as rt
from tilec.backends.triton.plan.plan import Table
from tilec.backends.triton.runtime.aten_calls import AtenStep
from tilec.backends.triton.runtime.bound import operation_of


class Counted:
    """A step's function, and how often Python ran it."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        self.function, self.count = function, 0

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.count += 1
        return (self.function(*tensors),)


def made(library, function: Counted, tensors: list[torch.Tensor]) -> tuple[AtenStep, Callable[..., tuple]]:
    """The step, which has run as often as it takes to know its calls, and a plan of it alone."""
    names = [f"t{k}" for k in range(len(tensors))]
    step = AtenStep(function, names, ("out",))
    for _ in range(2):
        step(dict(zip(names, tensors, strict=True)), 0)
    reads = [(name, place) for place, name in enumerate(names)]
    steps = [("python", step, reads, [("out", len(names))])]
    return step, library.plan(torch.empty(0), 0, len(names) + 1, steps, [len(names)])


def convolution(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return rt.convolution(x.permute(0, 3, 1, 2), k.permute(3, 2, 0, 1), (2, 1), (1, 0), (1, 1), 1).permute(0, 2, 3, 1)


def kernel_gradient(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y, x = y.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2)
    return rt.convolution_kernel(y, x, (4, 3, 3, 2), (1, 1), (1, 1), (1, 1), 1).permute(2, 3, 1, 0).contiguous()


STEPS = {
    "a product of a batch": (lambda a, b: torch.matmul(a, b.mT).contiguous(), [(2, 3, 4), (2, 5, 4)]),
    "a scaled product": (lambda a, b: rt.scaled_product(a, b, 0.3), [(3, 4), (4, 5)]),
    "scaled products of a batch": (lambda a, b: rt.scaled_product(a, b.mT, 0.3), [(2, 3, 4), (2, 5, 4)]),
    "a scaled sum over nothing": (lambda a, b: rt.scaled_product(a, b, 0.3), [(3, 0), (0, 5)]),
    "a batch and one matrix": (lambda a, b: torch.matmul(a, b).contiguous(), [(2, 3, 4), (4, 5)]),
    "axes as one": (lambda a, b: torch.mm(a.flatten(0, 1), b).reshape(2, 3, 5).contiguous(), [(2, 3, 4), (4, 5)]),
    "a transposed result": (lambda a, b: torch.mm(a, b).t().contiguous(), [(3, 4), (4, 5)]),
    "no result of its own": (lambda a: a.t().contiguous().view(-1), [(1, 4)]),
    "a vector": (lambda a, b: torch.matmul(a, b), [(3, 4), (4,)]),
    "another type in between": (lambda a, b: torch.mm(a.double(), b.double()).to(a.dtype), [(3, 4), (4, 5)]),
    "nothing": (lambda a, b: torch.matmul(a, b).contiguous(), [(0, 4), (4, 5)]),
    "a sum over nothing": (lambda a, b: torch.matmul(a, b).contiguous(), [(3, 0), (0, 5)]),
    "a convolution": (lambda x, k: convolution(x, k).contiguous(), [(2, 6, 7, 3), (3, 2, 3, 4)]),
    "the gradient of one": (kernel_gradient, [(2, 6, 7, 4), (2, 6, 6, 3)]),
}


CONVOLUTIONS = ("a convolution", "the gradient of one")


def laid_out(shape: tuple[int, ...], dtype: torch.dtype, how: str) -> torch.Tensor:
    if how == "columns":
        return torch.randn(shape[::-1]).to(dtype).permute(*reversed(range(len(shape))))
    if how == "part":
        return torch.randn([n + 1 for n in shape]).to(dtype)[tuple(slice(1, None) for _ in shape)]
    return torch.randn(shape).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("how", ["rows", "columns", "part"])
@pytest.mark.parametrize("name", STEPS)
def test_done_again(library, name: str, how: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    function, shapes = STEPS[name]
    counted = Counted(function)
    step, plan = made(library, counted, [laid_out(s, dtype, how) for s in shapes])
    if name in CONVOLUTIONS and dtype is torch.bfloat16:  # which on a CPU asks whether all is finite
        assert step.calls is None
        return
    assert step.calls is not None
    for _ in range(2):
        tensors = [laid_out(s, dtype, how) for s in shapes]
        (found,) = plan(*tensors)
        wanted = function(*tensors)
        assert found.shape == wanted.shape and found.stride() == wanted.stride() and found.dtype == dtype
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert counted.count == 2 and not plan.in_python()


def test_known_to_a_plan_once_it_has_run(library) -> None:
    """A plan calls torch itself from the run on that comes after the one that was watched, whatever made it."""
    counted = Counted(torch.mm)
    step = AtenStep(counted, ("a", "b"), ("out",))
    plan = library.plan(torch.empty(0), 0, 3, [("python", step, [("a", 0), ("b", 1)], [("out", 2)])], [2])
    other = plan.filled(0, (), [AtenStep(counted, ("a", "b"), ("out",))])
    for run, left in ((plan, 1), (plan, 0), (plan, 0), (other, 1), (other, 0)):
        a, b = torch.randn(3, 4), torch.randn(4, 5)
        assert torch.equal(run(a, b)[0], a @ b) and run.in_python() == left
    assert counted.count == 4


def test_watched_once_there_is_a_library(library, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has run many times before is done again without Python just so."""
    step, a, b = AtenStep(torch_product, ("a", "b"), ("out",)), torch.randn(3, 4), torch.randn(4, 5)
    monkeypatch.setenv("TILEC_NATIVE", "0")
    for _ in range(5):
        step({"a": a, "b": b}, 0)
    assert step.calls is None
    monkeypatch.setenv("TILEC_NATIVE", "1")
    step({"a": a, "b": b}, 0)
    assert step.calls is not None


def torch_product(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.mm(a, b),)


def test_python_where_a_result_is_otherwise(library) -> None:
    """What torch's operators give may depend on more than the sizes, strides and types."""
    counted = Counted(lambda a: a.clone())
    _, plan = made(library, counted, [torch.randn(3, 4)])
    x = torch.randn(4, 3).t()
    (found,) = plan(x)
    assert torch.equal(found, x) and counted.count == 3


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda a: torch.zeros_like(a).add_(a), id="memory is written"),
        pytest.param(lambda a: a.view(torch.int32), id="another type"),
        pytest.param(lambda a: a * a.sum().item(), id="a number is read"),
        pytest.param(lambda a: a * 3, id="a number where operators have a tensor"),
    ],
)
def test_left_to_python(library, function: Callable) -> None:
    counted = Counted(function)
    step, plan = made(library, counted, [torch.randn(3, 4)])
    assert step.calls is None
    x = torch.randn(3, 4)
    torch.testing.assert_close(plan(x)[0], function(x))
    assert counted.count == 3


@pytest.mark.parametrize("overlap", [False, True])
def test_inputs_that_share_memory_are_told_apart(library, overlap: bool) -> None:
    """Parts of one tensor, or one twice: later inputs of these kinds have memory of their own each."""
    whole = torch.randn(3, 3, 4)
    given = [whole[0], whole[0]] if overlap else [*whole.unbind()[:2]]
    counted = Counted(lambda a, b: torch.mm(a, b.t()))
    step, plan = made(library, counted, given)
    assert step.calls is not None and counted.count == 3  # once more to be watched, of others
    for _ in range(2):
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        assert torch.equal(plan(x, y)[0], x @ y.t()) and torch.equal(plan(*given)[0], given[0] @ given[1].t())
    assert counted.count == 3


def test_inputs_that_share_memory_where_kernels_take_no_view(library) -> None:
    whole = torch.randn(13)
    given = [whole[1:13].view(3, 4), whole[:12].view(4, 3)]  # the first begins within 16 bytes
    step, plan = made(library, Counted(torch.mm), given)
    assert step.calls is None
    torch.testing.assert_close(plan(*given)[0], given[0] @ given[1])


@pytest.fixture
def probe(request: pytest.FixtureRequest) -> Callable[[torch.Tensor], torch.Tensor]:
    """An operator that tells how cuDNN computes while it runs, in two threads at a time where these are `together`."""
    scope = torch.library.Library("tilec_probe", "FRAGMENT")
    together = threading.Barrier(2)

    def seen(x: torch.Tensor) -> torch.Tensor:
        if x.numel() == 2:
            together.wait(20)
        return torch.full((4,), float(torch.backends.cudnn.allow_tf32))

    if not hasattr(torch.ops.tilec_probe, "seen"):
        scope.define("seen(Tensor x) -> Tensor")
    scope.impl("seen", seen, "CPU")
    request.addfinalizer(scope._destroy)
    return lambda x: torch.ops.tilec_probe.seen(x)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_precision(library, probe, precision: str, before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN computes as matrix products do, and is as it was afterwards, whichever thread ends last."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", before)
    torch.set_float32_matmul_precision(precision)
    try:

        def lines(x: torch.Tensor) -> tuple[torch.Tensor]:
            with rt.own_precision():
                return (probe(x),)

        for x in (torch.zeros(1), torch.zeros(2)):
            step = AtenStep(lines, ("x",), ("out",), own_precision=True)
            with ThreadPoolExecutor(2) as threads:
                for _ in range(2):
                    list(threads.map(lambda x, step=step: step({"x": x}, 0), [x] * len(x)))
                assert step.calls is not None
                plan = library.plan(torch.empty(0), 0, 2, [("python", step, [("x", 0)], [("out", 1)])], [1])
                for (found,) in threads.map(plan, [x] * len(x)):
                    assert found.tolist() == [precision != "highest"] * 4
            assert torch.backends.cudnn.allow_tf32 == before
    finally:
        torch.set_float32_matmul_precision("highest")


def test_nothing_is_recorded(library) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    with torch.no_grad():
        _, plan = made(library, Counted(lambda a, b: torch.mm(a, b)), [x, x.detach().clone().t()])
        (found,) = plan(x, torch.randn(4, 3))
    assert not found.requires_grad


ALONE = """
import sys
import torch
import tilec
from tilec.backends.triton.plan.plan import Table
from tilec.backends.triton.runtime.aten_calls import AtenStep
from tilec.backends.triton.runtime.bound import operation_of

step = AtenStep(lambda a, b: (torch.mm(a, b),), ("a", "b"), ("out",))
for _ in range(2):
    step({"a": torch.ones(2, 3), "b": torch.ones(3, 2)}, 0)
assert step.calls is not None
print(*(name for name in ("torch._dynamo", "sympy") if name in sys.modules))
"""


def test_a_first_call_imports_no_compiler(library) -> None:
    """Of torch's, which takes seconds."""
    done = run_fresh(ALONE)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


ENDING = """
import atexit, torch
from tilec.native import native
assert native() is not None

torch.set_num_threads(1)

@torch.jit.script
def total(x: torch.Tensor):
    return torch.mm(x, x).sum()

@torch.jit.script
def start(x: torch.Tensor):
    return torch.jit.fork(total, x)

atexit.register(lambda: [start(torch.ones(9, 9)) for _ in range(20)] and None)
"""


@pytest.mark.slow  # most of such processes end in an abort where nobody waits, not all
def test_threads_of_torch_give_tensors_up_while_python_ends(library, tmp_path: Path) -> None:
    """The last reference to a tensor that Python knows, in a thread that asks for Python's lock for that."""
    (tmp_path / "ending.py").write_text(ENDING)  # torch reads functions from files
    for _ in range(4):
        command = [sys.executable, "-W", "ignore", str(tmp_path / "ending.py")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_a_constant_is_made_once(library) -> None:
    """A step that makes the same tensor each time is left to Python once."""
    step = Table("classes", ((1, 2), (3, 4)))
    plan = library.plan(
        torch.empty(0), 0, 1, [("python", operation_of(step, torch.device("cpu")), [], [("classes", 0)])], [0]
    )
    first = plan()
    assert first[0].tolist() == [[1, 2], [3, 4]] and not plan.in_python()
    assert plan()[0].data_ptr() == first[0].data_ptr()
