"""The backward pass of a first recorded call is made ready beside the forward pass."""

import contextlib
import threading

import pytest
import torch

import tilec
from tilec.backends.triton.plan.device_info import DEVICES
from tilec.calls import beside, call_cache
from tilec.late import let_others_begin
from tilec.torch_op.recorded import record

PRODUCT = "function (A[I, K], B[K, J]) -> (C, L) { C[i, j : I, J] = +(A[i, k] * B[k, j]); L[i : I] = >(A[i, k]); }"


@pytest.fixture
def begins(monkeypatch):
    monkeypatch.setattr(beside, "may_begin", lambda devices: True)


def recorded_of(f, *tensors):
    return record(f.specialiser, tensors, (False,) * len(tensors), ())


def operands():
    g = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=g).requires_grad_() for s in ((6, 5), (5, 7))]


def test_the_backward_pass_finds_what_was_made(begins):
    a, b = operands()
    f = tilec.compile(PRODUCT)
    c, top = f(a, b)
    recorded = recorded_of(f, a, b)
    (thread,) = recorded.beside
    thread.join()
    ((function, _),) = recorded._gradients.values()
    assert len(function._prepared) == 1
    found = torch.autograd.grad((c, top), (a, b), (c.detach(), top.detach()))
    assert len(recorded._gradients) == 1 and len(function._prepared) == 1
    x, y = (t.detach().requires_grad_() for t in (a, b))
    want = torch.autograd.grad((x @ y, x.amax(1)), (x, y), (c.detach(), top.detach()))
    assert all(torch.allclose(g, w, atol=1e-5) for g, w in zip(found, want, strict=True))


def test_only_the_first_recorded_call_begins(begins):
    a, b = operands()
    f = tilec.compile(PRODUCT)
    with torch.no_grad():
        f(a, b)
    assert not f.specialiser.recorded
    f(a, b), f(a[:4], b)
    assert [len(r.beside) for r in f.specialiser.recorded.values()] == [1, 0]


def test_a_backward_pass_waits_and_says_itself_what_is_wrong(begins, monkeypatch):
    held = threading.Event()

    def make(*given):
        assert held.wait(10)
        raise RuntimeError("in the thread")

    monkeypatch.setattr(beside, "make", make)
    a, b = operands()
    c, _ = tilec.compile(PRODUCT)(a, b)
    threading.Timer(0.05, held.set).start()
    torch.autograd.grad(c.sum(), (a, b))
    assert held.is_set()


def test_integers_and_gradients_that_are_views(begins):
    """No cotangent of an integer output; nothing to run where a gradient is a view of its cotangent."""
    x = torch.randn(4, 5).requires_grad_()
    f = tilec.compile("function (X[M, N], I[M]) -> (Y, J) { Y[n, m : N, M] = X[m, n]; J[m : M] = I[m] + 1; }")
    y, j = f(x, torch.arange(4))
    assert torch.equal(torch.autograd.grad(y, x, y.detach())[0], x) and not j.requires_grad
    recorded = recorded_of(f, x, torch.arange(4))
    assert len(recorded.beside) == 1 and len(recorded._passes) == 1


def test_nothing_begins_where_lowering_takes_long(begins, monkeypatch):
    monkeypatch.setattr(beside, "LONGEST_LOWERING", 0.0)
    a, b = operands()
    f = tilec.compile(PRODUCT)
    f(a, b)
    assert not recorded_of(f, a, b).beside


def test_on_a_cpu_nothing_begins():
    a, b = operands()
    f = tilec.compile(PRODUCT)
    f(a, b)
    assert not recorded_of(f, a, b).beside


def test_all_kernels_of_the_backward_pass_are_asked_for(monkeypatch):
    """As for a device that is not here: without a word to it."""
    executable = pytest.importorskip("tilec.backends.triton.runtime.executable")
    asked = []
    monkeypatch.setattr(executable, "device_info", lambda device: DEVICES["sm_90"])
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(executable.Launched, "_assembled", lambda self, given: asked.append(self._launch.kernel))
    f = tilec.compile(PRODUCT, backend="triton")
    tensors = [torch.empty(s, device="meta").requires_grad_() for s in ((512, 256), (256, 512))]
    recorded = recorded_of(f, *tensors)
    types = f.specialiser.types(tensors, (False, False))
    beside.make(recorded, types, {"A": (256, 1), "B": (512, 1)}, torch.device("cuda", 0))
    backward = recorded.backward((True, True), (True, True))
    program = backward.run.function.prepared(list(backward_inputs(recorded)), backward.run.weak, ()).executable
    (call,) = program._calls.values()
    assert sorted(asked) == sorted({launch.kernel for launch in call.plan.launches()}) and len(asked) > 1


def backward_inputs(recorded):
    for t in recorded.partition.backward.types.values():
        yield beside.Awaited(t.shape, getattr(torch, t.dtype), torch.device("cuda", 0))


@pytest.mark.parametrize("early", [False, True])
def test_it_begins_when_the_forward_pass_needs_python_no_more(early, begins, monkeypatch):
    order, begun, call = [], threading.Event(), call_cache.recorded_call

    def forward(*given):
        if early:
            let_others_begin()  # as a plan does whose kernels are past Triton's front end
            assert begun.wait(10)
        order.append("forward")
        return call(*given)

    def make(*given):
        order.append("backward")
        begun.set()

    monkeypatch.setattr(beside, "make", make)
    monkeypatch.setattr(call_cache, "recorded_call", forward)
    tilec.compile(PRODUCT)(*operands())
    assert begun.wait(10) and order == (["backward", "forward"] if early else ["forward", "backward"])


def test_a_mistake_in_the_forward_pass_lets_it_go(begins, monkeypatch):
    begun = threading.Event()

    def forward(*given):
        raise RuntimeError("in the forward pass")

    monkeypatch.setattr(beside, "make", lambda *given: begun.set())
    monkeypatch.setattr(call_cache, "recorded_call", forward)
    with pytest.raises(RuntimeError, match="forward"):
        tilec.compile(PRODUCT)(*operands())
    assert begun.wait(10)
