"""Repeated calls, in Python and in C++: what torch may ask of them once they go straight to what they run."""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable

import pytest
import torch
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import tilec
from tilec import native as package
from tilec.calls import call_cache
from tilec.torch_op.text import text_of

SOURCE = "function (X[N], W[N]) -> (Y) { Y = exp(X * W); }"
NODES = {"python": "FastTileCallBackward", "native": "TileCallBackward"}


class Case:
    """exp(X * W), called before forward and backward, and its gradient by W for comparison."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.f = tilec.compile(SOURCE)
        self.x, self.w = torch.randn(5, device=device), torch.randn(5, device=device, requires_grad=True)
        for _ in range(2):
            self.f(self.x, self.w).sum().backward()
        self.w.grad = None
        (self.gradient,) = torch.autograd.grad(torch.exp(self.x * self.w).sum(), self.w)

    def __call__(self) -> torch.Tensor:
        return self.f(self.x, self.w)


@pytest.fixture
def case(way: str, device: str) -> Case:
    made = Case(device)
    assert made().grad_fn.name() == NODES[way]
    return made


def same(a: torch.Tensor | None, b: torch.Tensor) -> None:
    assert a is not None
    torch.testing.assert_close(a, b)


def test_backward(case: Case) -> None:
    y = case()
    same(y.detach(), torch.exp(case.x * case.w).detach())
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    same(case.w.grad, 2 * case.gradient)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()


def test_double_backward(case: Case) -> None:
    def second(y: torch.Tensor) -> torch.Tensor:
        (first,) = torch.autograd.grad(y.sum(), case.w, create_graph=True)
        return torch.autograd.grad(first.sum(), case.w)[0]

    same(second(case()), second(torch.exp(case.x * case.w)))


def test_what_is_kept_must_not_change(case: Case) -> None:
    y = case()
    y.relu_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_outputs_may_change_where_they_are_not_kept(way: str, device: str) -> None:
    f = tilec.compile("Y = X * W")
    x, w = torch.randn(4, device=device), torch.randn(4, device=device, requires_grad=True)
    for _ in range(3):
        (gradient,) = torch.autograd.grad(f(x, w).mul_(3).sum(), w)
        same(gradient, 3 * x)


def test_anomaly_mode(case: Case, way: str) -> None:
    case.x.mul_(float("nan"))
    with pytest.warns(UserWarning, match=f"Error detected in {NODES[way]}.*\n(.*\n)*.*test_native_calls.py"):
        with torch.autograd.set_detect_anomaly(True), pytest.raises(RuntimeError, match="returned nan values"):
            case().sum().backward()


@pytest.mark.parametrize("backend", [None, "torch"])
def test_calls_change_over_once_the_library_is_built(
    library, device: str, backend: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that began in Python, recorded ones and others, and a node from before whose backward pass comes after."""
    being_built = package._Loaded()
    being_built.awaited = math.inf  # when to look for it again
    monkeypatch.setattr(package, "_loaded", being_built)
    f = tilec.compile("function (A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = +(A[i, k] * B[k, j]); }", backend=backend)
    a, b = torch.randn(64, 32, device=device), torch.randn(32, 48, device=device, requires_grad=True)

    def gradient(c: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(c.sum(), b)[0]

    wanted = gradient(a @ b)
    for _ in range(4):
        before = f(a, b)
        same(gradient(before), wanted)
        same(f(a, b.detach()), a @ b)
        before = f(a, b)
    assert before.grad_fn.name() == NODES["python"]
    being_built.module = library
    for k in range(4):
        after = f(a, b)
        assert k == 0 or after.grad_fn.name() == NODES["native"]
        same(gradient(after), wanted)
        same(f(a, b.detach()), a @ b)
    same(gradient(before), wanted)


def test_hooks(case: Case) -> None:
    seen: list[str] = []
    with saved_tensors_hooks(lambda t: (seen.append("kept"), t)[1], lambda t: (seen.append("read"), 2 * t)[1]):
        y = case()
    assert seen == ["kept", "kept"]
    y.grad_fn.register_hook(lambda gradients, _: tuple(None if g is None else -g for g in gradients))
    y.sum().backward()
    same(case.w.grad, -4 * case.gradient)  # both the output and X are read twice as large
    assert seen == ["kept", "kept", "read", "read"]


@pytest.mark.parametrize("change", [lambda t: t[:1], lambda t: t.expand(2, 5)])
def test_hooks_that_give_back_other_sizes(case: Case, change: Callable) -> None:
    with saved_tensors_hooks(change, lambda t: t):
        y = case()
    with pytest.raises(tilec.TileError, match="5"):
        y.sum().backward()


def test_hooks_that_give_back_another_type(case: Case) -> None:
    with saved_tensors_hooks(lambda t: t.double(), lambda t: t):
        y = case()
    y.sum().backward()
    same(case.w.grad, case.gradient)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(case: Case, reentrant: bool) -> None:
    checkpoint(lambda x, w: 2 * case.f(x, w), case.x, case.w, use_reentrant=reentrant).sum().backward()
    same(case.w.grad, 2 * case.gradient)


def test_threads(case: Case) -> None:
    wrong: list[object] = []

    def work() -> None:
        for _ in range(100):
            w = case.w.detach().clone().requires_grad_()
            case.f(case.x, w).sum().backward()
            if not torch.equal(w.grad, own):
                wrong.append(w.grad)

    case().sum().backward()
    own = case.w.grad.clone()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_transforms(case: Case) -> None:
    w = case.w.detach()
    same(torch.func.grad(lambda w: case.f(case.x, w).sum())(w), case.gradient)
    same(torch.func.vmap(case.f)(case.x[:, None], w[:, None])[:, 0], torch.exp(case.x * w))
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(case.f(case.x, forward_ad.make_dual(w, torch.ones_like(w)))).tangent
    same(tangent, case.gradient)
    (rows,) = torch.autograd.grad(case(), case.w, torch.eye(5).to(case.w), is_grads_batched=True)
    same(rows, torch.diag(case.gradient))


def test_modes(case: Case) -> None:
    with torch.no_grad():
        assert not case().requires_grad
    with torch.inference_mode():
        assert case().is_inference()
        with torch.enable_grad():  # which changes nothing there
            assert case().is_inference() and not case().requires_grad
    with torch.autocast(case.x.device.type, dtype=torch.bfloat16):
        half = case.f(case.x.bfloat16(), case.w.bfloat16())
    assert half.dtype == torch.float32  # 16-bit inputs of exp are taken in float32
    assert torch.compile(case.f, backend="eager", fullgraph=True)(case.x, case.w).grad_fn is not None
    same(case().detach(), torch.exp(case.x * case.w).detach())


def test_compiled_autograd(case: Case) -> None:
    from torch._dynamo import compiled_autograd

    for _ in range(2):
        y = case().sum()
        with compiled_autograd._enable(torch.compile(backend="eager")):
            y.backward()
    same(case.w.grad, 2 * case.gradient)


def test_memory_of_many_calls(case: Case) -> None:
    def tensors() -> int:
        gc.collect()
        return sum(type(o) is torch.Tensor for o in gc.get_objects())

    before = tensors()
    for _ in range(300):
        case().sum().backward()
    case.w.grad = None
    assert tensors() <= before


def test_a_function_is_forgotten(way: str, device: str) -> None:
    from weakref import ref

    case = Case(device)
    gone = ref(case.f)
    y = case()
    del case
    gc.collect()
    assert gone() is None
    y.sum().backward()


def test_within_autocast(case: Case, way: str, device: str) -> None:
    """A call is cast and then like any other; what it is given may differ from call to call."""
    wanted = torch.exp(case.x * case.w)
    halves = case.x.bfloat16(), case.w.detach().bfloat16().requires_grad_()
    scaled = tilec.compile("Y = exp(X * S)")
    for _ in range(3):
        with torch.autocast(device, torch.bfloat16):
            y = case()
            z = case.f(*halves)
            same(scaled(2.0, case.x), torch.exp(2 * case.x))
            same(scaled(halves[0], 2), torch.exp(2 * halves[0].float()))
            same(torch.autograd.grad(case().sum(), case.w)[0], case.gradient)
        assert y.grad_fn is not None and y.grad_fn.name() == NODES[way]
        same(y, wanted)
        same(torch.autograd.grad(y.sum(), case.w)[0], case.gradient)
        assert z.dtype is torch.float32
        same(z, torch.exp(halves[0].float() * halves[1].float()))
        assert torch.autograd.grad(z.sum(), halves[1])[0].dtype is torch.bfloat16
    assert z.grad_fn is not None and z.grad_fn.name() == NODES[way]


def test_the_operator(way: str, device: str) -> None:
    """A call in a compiled graph, of other tensors, numbers, shapes and types than the one before."""
    f = tilec.compile("function (X[N], W[N], S) -> (Y, Z) { Y = exp(X * W) * S; Z = X; }")
    text = text_of(f.specialiser)
    for n, dtype, number in ((5, torch.float32, 2.0), (5, torch.float32, 3.0), (7, torch.float32, 3.0)) * 2:
        x, w = torch.randn(n, device=device, dtype=dtype), torch.randn(n, device=device, requires_grad=True)
        s = torch.tensor(number, dtype=torch.float64, device=device)
        with torch.no_grad():
            y, z = torch.ops.tilec.call(text, [x, w, s], [2], [])
            same(y, torch.exp(x * w) * number)
            same(z, x)
            assert z.data_ptr() != x.data_ptr(), "outputs are tensors of their own"
        y, _ = torch.ops.tilec.call(text, [x, w, s], [2], [])
        same(torch.autograd.grad(y.sum(), w)[0], x * y.detach())


def test_numbers(way: str, device: str) -> None:
    f, x = tilec.compile("Y = X / S"), torch.ones(3, device=device)
    for number in (2.0, 2.0, 4.0, 2.0, 0.0, -0.0, -0.0, 0.0, 5e-324, float("inf"), 2, 3, True):
        wanted = x / torch.tensor(float(number))
        same(f(x, number), wanted)
        same(f(x, number), wanted)
    w = torch.ones(3, device=device, requires_grad=True)
    for number in (2.0, 3.0, 3.0):
        same(torch.autograd.grad(f(w, number).sum(), w)[0], 1 / torch.full((3,), number, device=device))


def test_numbers_that_do_not_fit(way: str, device: str) -> None:
    f = tilec.compile("Y = X + S")
    x = torch.arange(3, device=device)
    for number in (1, 2, 2**40):
        assert torch.equal(f(x, number), x + number)
    with pytest.raises(tilec.InputMistake):
        f(x, 2**70)


def test_a_number_while_another_is_filled_in(way: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another thread may call while Python has this one wait."""
    f, x = tilec.compile("Y = X * S"), torch.ones(3, device=device)
    made = call_cache.number_on

    def interrupted(where: torch.device, number: float) -> torch.Tensor:
        monkeypatch.setattr(call_cache, "number_on", made)
        same(f(x, 3.0), 3 * x)
        return made(where, number)

    same(f(x, 5.0), 5 * x)
    same(f(x, 2.0), 2 * x)
    monkeypatch.setattr(call_cache, "number_on", interrupted)
    for number in (2.0, 3.0, 2.0, 7.0):
        same(f(x, number), number * x)
    assert call_cache.number_on is made, "nothing came between"


@pytest.mark.parametrize(
    "source", ["A = X; B = floor(int64(X) / 2); C = sum(X[i]);", "B = floor(int64(X) / 2); A = X * W;"]
)
def test_several_outputs(way: str, device: str, source: str) -> None:
    f = tilec.compile(source)
    inputs = [torch.randn(4, device=device, requires_grad=True) for _ in f.inputs]
    for _ in range(3):
        results = f(*inputs)
        assert isinstance(results, tuple) and not results[f.outputs.index("B")].requires_grad
        named = dict(zip(f.outputs, results, strict=True))
        (gradient,) = torch.autograd.grad(named["A"].sum(), inputs[0], retain_graph=True)
        same(gradient, torch.ones_like(gradient) if len(inputs) == 1 else inputs[1].detach())
        if "C" in named:
            same(torch.autograd.grad(named["C"] + named["A"].sum(), inputs[0])[0], torch.full_like(gradient, 2.0))


def test_some_inputs_need_gradients(way: str, device: str) -> None:
    f = tilec.compile("function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = +(A[i, k] * B[k, j]); }")
    a, b, d = (torch.randn(shape, device=device) for shape in ((2, 3), (3, 4), (2, 4)))
    for asked in ((True, True), (True, False), (False, True), (True, True)):
        inputs = [t.clone().requires_grad_(r) for t, r in zip((a, b), asked, strict=True)]
        for _ in range(2):
            wanted = [t for t in inputs if t.requires_grad]
            for t, g in zip(wanted, torch.autograd.grad(f(*inputs), wanted, d), strict=True):
                same(g, d @ b.T if t is inputs[0] else a.T @ d)
    inputs = [t.clone().requires_grad_() for t in (a, b)]
    for t, wanted in ((inputs[0], d @ b.T), (inputs[1], a.T @ d)):  # one of two, in turn
        same(torch.autograd.grad(f(*inputs), t, d)[0], wanted)
    same(torch.autograd.grad(f(*inputs), inputs[0], d[:, :1].expand(2, 4))[0], d[:, :1].expand(2, 4) @ b.T)


def test_inputs_of_all_kinds(way: str, device: str) -> None:
    f, x = tilec.compile("function (X[N, M]) -> (Y) { Y = X + 1; }"), torch.arange(6.0, device=device).view(2, 3)
    for t in (x, x.T, x[:, ::2], torch.nn.Parameter(x), x.double(), x.int(), x[:0], x.expand(2, 2, 3)[0], x):
        for _ in range(2):
            assert torch.equal(f(t), t + 1) and f(t).dtype == (t + 1).dtype
            assert torch.equal(f(X=t), t + 1)
    with pytest.raises(tilec.TileError):
        f(torch.nested.nested_tensor([x, x]))
    with pytest.raises(tilec.TileError):
        f(x.to_sparse())


def test_default_device_and_dtype(way: str, device: str) -> None:
    f, x = tilec.compile("function (X[N]) -> (Y) { Y = X * 2 + 1; }"), torch.ones(3, device=device)
    f(x)
    torch.set_default_device("meta")
    try:
        assert torch.equal(f(x), torch.full((3,), 3.0, device=device))
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize(
    "source", ["Y[j, i] = X[i, j]", "Y = X", "function (X[N, 1, M]) -> (Y) { Y[m : M] = +(X[n, 0, m]); }"]
)
def test_gradients_that_are_views(way: str, device: str, source: str) -> None:
    f = tilec.compile(source)
    x = torch.randn((3, 1, 4) if "N" in source else (3, 4), device=device, requires_grad=True)
    one = torch.randn((), device=device)
    for d in (torch.randn_like(f(x)), torch.randn_like(f(x)), one.expand(f(x).shape)):
        (found,) = torch.autograd.grad(f(x), x, d)
        wanted = d.expand(3, 1, 4) if "N" in source else d.T if "j, i" in source else d
        assert torch.equal(found, wanted) and found.data_ptr() == d.data_ptr()
