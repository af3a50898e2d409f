"""Tensors that are not just memory: a result, or one error that names the cause."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.masked import masked_tensor

import tilec
from tilec.torch_op.text import text_of

SOURCE = "function (X[N, M], W[M]) -> (Y) { Y[i] = sum(X[i, j] * W[j]); }"
X, W = torch.arange(12.0).reshape(3, 4).sin(), torch.arange(4.0).cos()


class Plain(torch.Tensor):
    """A subclass without rules of its own."""


class Held(torch.Tensor):
    """A subclass that passes operators on to what it holds."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*torch.utils._pytree.tree_map_only(Held, lambda t: t.held, args))


class Refusing(Held):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


TAKEN = {
    "the negative bit": lambda: torch._neg_view(-X),
    "a conjugate's imaginary part": lambda: torch.complex(torch.zeros(3, 4), -X).conj().imag,
    "a subclass": lambda: X.as_subclass(Plain),
    "a subclass with operators": lambda: Held(X),
    "a stride of zero": lambda: X[:1].expand(3, 4) * 0 + X,
}
REFUSED = {
    "sparse": (lambda: X.to_sparse(), tilec.InputMistake, r"X is a sparse_coo tensor.*\n.*to_dense"),
    "compressed": (lambda: X.to_sparse_csr(), tilec.InputMistake, "X is a sparse_csr tensor"),
    "nested": (lambda: torch.nested.nested_tensor([X[0], X[1]]), tilec.InputMistake, "X is a nested tensor"),
    "jagged": (
        lambda: torch.nested.nested_tensor([X[0], X[1]], layout=torch.jagged),
        tilec.InputMistake,
        "X is a nested tensor",
    ),
    "mkldnn": (lambda: X.to_mkldnn(), tilec.InputMistake, "X is a mkldnn tensor"),
    "masked": (lambda: masked_tensor(X, X > 0), tilec.InputMistake, r"X is a masked tensor.*\n.*get_mask"),
    "a subclass that refuses": (lambda: Refusing(X), tilec.Unsupported, r"X is a Refusing.*\n.*the plain tensor"),
    "uint16": (lambda: X.to(torch.uint16), tilec.TypeMistake, "uint16"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str) -> None:
    f = tilec.compile(SOURCE)
    f(X, W)  # what is remembered of a plain call is not for these
    torch.testing.assert_close(torch.as_tensor(f(TAKEN[name](), W)).as_subclass(torch.Tensor), X @ W)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    make, error, text = REFUSED[name]
    f = tilec.compile(SOURCE)
    f(X, W)  # what is remembered of a plain call is not for these
    with pytest.raises(error, match=text):
        f(make(), W)


def test_symbolic_trace() -> None:
    f = tilec.compile(SOURCE)
    with pytest.raises(tilec.InputMistake, match=r"X: got Proxy\n.*make_fx"):
        torch.fx.symbolic_trace(lambda x: f(x, W))


def test_an_object_with_whatever_it_is_asked_for() -> None:
    class Recorder:
        def __getattr__(self, name: str) -> object:
            return name

    with pytest.raises(tilec.InputMistake, match=r"X: got Recorder\n.*pass a torch tensor"):
        tilec.compile(SOURCE)(Recorder(), W)


def test_a_sparse_cotangent() -> None:
    f, w = tilec.compile(SOURCE), W.clone().requires_grad_()
    for _ in range(2):  # the second backward pass is one like another
        with pytest.raises(tilec.InputMistake, match="DY is a sparse_coo tensor"):
            torch.autograd.grad(f(X, w), w, torch.ones(3).to_sparse())
        torch.autograd.grad(f(X, w), w, torch.ones(3))


def test_zeros_without_memory() -> None:
    f = tilec.compile(SOURCE)
    f(X, W)
    assert torch.equal(f(X, torch._efficientzerotensor(4)), torch.zeros(3))


@pytest.mark.filterwarnings("ignore")
def test_jit_trace() -> None:
    """A traced call stays a call: of other data, and with a gradient."""
    f = tilec.compile(SOURCE)
    traced = torch.jit.trace(lambda x, w: f(x, w), (2 * X, W))
    w = W.clone().requires_grad_()
    y = traced(X, w)
    torch.testing.assert_close(y.detach(), X @ W)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), w)[0], X.sum(0))


@pytest.mark.filterwarnings("ignore")
def test_jit_trace_of_a_function_with_leaves() -> None:
    """The function itself is traced, of inputs that record; what comes out serves other sizes, and can be saved."""
    traced = torch.jit.trace(tilec.compile(SOURCE), (X.clone().requires_grad_(), W.clone().requires_grad_()))
    stored = io.BytesIO()
    torch.jit.save(traced, stored)
    stored.seek(0)
    for module in (traced, torch.jit.load(stored)):
        x = torch.cat([X, X]).requires_grad_()
        y = module(x, W)
        torch.testing.assert_close(y.detach(), torch.cat([X, X]) @ W)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], W.expand(2 * len(X), *W.shape))


def test_inference_mode() -> None:
    f = tilec.compile(SOURCE)
    with torch.inference_mode():
        y = f(X + 0, W)
        assert y.is_inference()
    torch.testing.assert_close(f(X, W), y.clone())


def test_storages_can_be_resized() -> None:
    """Whoever frees memory that a call has read or written may do so, as FSDP does."""
    f = tilec.compile("function (X[T, D], A[D]) -> (H) { H[t, d : T, D] = tanh(A[d] * H[t - 1, d] + X[t, d]); }")
    inputs = [X.clone().requires_grad_(), W.clone().requires_grad_()]
    y = f(*inputs)
    for t in (y, *torch.autograd.grad(y.sum(), inputs), *inputs):
        assert t.untyped_storage().resizable()


def test_a_number_is_a_size_beside_any_tensor() -> None:
    """What was given is asked, and no tensor that it became, which a device or a tracer would have."""
    f = tilec.compile("function (X[M], N) -> (Y) { Y[n : N] = X[(n + 1) % M] * N; }")
    for number in (5, np.int32(5)):
        assert f(X[0].to("meta"), number).shape == (5,)
        with FakeTensorMode():
            assert f(torch.ones(4, device="cuda"), number).device.type == "cuda"


def test_a_call_of_the_operator_is_on_one_device() -> None:
    """A meta tensor beside others would choose what only makes shapes."""
    f = tilec.compile("Y[i, j] = X[i, j] * W[j] * S")
    call, text, number = torch.ops.tilec.call, text_of(f.specialiser), torch.tensor(2.0)
    for inputs in ([X, W.to("meta"), number], [X.to("meta"), W, number]):
        with pytest.raises(tilec.TileError, match="inputs on different devices: X on .*, W on "):
            call(text, inputs, [], [])
    (y,) = call(text, [X.to("meta"), W.to("meta"), number], [], [])
    assert y.device.type == "meta"
