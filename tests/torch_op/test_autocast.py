"""torch.autocast: one rule by what a program holds, on every device and path."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tilec
from tests.support.torch_programs import EXAMPLES, compiled
from tilec.language import parse
from tilec.torch_op.autocast import autocast_kind

KINDS = {
    "convolution": "product",
    "attention": "product",
    "softmax": "float32",
    "layer norm": "float32",
    "log product": "float32",
    "recurrence": "float32",
    "dropout": "as given",
    "gather and scatter": "float32",
}
CUDA = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_kinds(name: str) -> None:
    assert autocast_kind(parse(EXAMPLES[name].source)) == KINDS[name]


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("Y = relu(X) * W;", "as given"),
        ("Y = exp(X);", "float32"),
        ("Y[i] = max(X[i, j] * W[j]);", "as given"),
        ("Y[i] = sum(X[i, j] * X[i, j]);", "float32"),
        ("Y[i] = tanh(sum(X[i, j] * W[j]) + B[i]);", "product"),
        ("Y[i, j] = sum(X[i, j] * W[k]);", "float32"),
    ],
)
def test_kinds_of_statements(source: str, kind: str) -> None:
    assert autocast_kind(parse(source)) == kind


@pytest.mark.one_in(3)
@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("name", EXAMPLES)
def test_types_and_values(name: str, device: str) -> None:
    """The output's type is the kind's; values and gradients are as exact as that type, whether the backward pass runs
    within autocast or not."""
    inputs = EXAMPLES[name].inputs(torch.float32, device)
    exact = [t.double().requires_grad_() for t in inputs]
    expected = EXAMPLES[name].torch(*exact)
    gradients = torch.autograd.grad(expected.sum(), exact)
    for within in (False, True):
        given = [t.clone().requires_grad_() for t in inputs]
        with torch.autocast(device, torch.bfloat16):
            y = compiled(name)(*given)
            found = torch.autograd.grad(y.float().sum(), given) if within else None
        if found is None:
            found = torch.autograd.grad(y.float().sum(), given)
        product = KINDS[name] == "product"
        assert y.dtype is (torch.bfloat16 if product else torch.float32)
        bound = {"rtol": 0.05, "atol": 0.05} if product else {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(y.double(), expected.detach(), **bound)
        for ours, theirs in zip(found, gradients, strict=True):
            assert ours.dtype is torch.float32
            torch.testing.assert_close(ours.double(), theirs, **bound)


def test_halves_are_taken_in_float32_where_precision_is_lost() -> None:
    x = torch.randn(3, 4, dtype=torch.bfloat16)
    softmax, relu = tilec.compile(EXAMPLES["softmax"].source), tilec.compile("Y = relu(X);")
    with torch.autocast("cpu", torch.bfloat16):
        assert softmax(x).dtype is torch.float32 and relu(x).dtype is torch.bfloat16
        assert softmax(x.double()).dtype is torch.float64
    torch.testing.assert_close(softmax(x.float()), torch.softmax(x.float(), -1))


def test_a_device_without_autocast_is_left_alone() -> None:
    """As torch's own operations leave it, whatever another device's autocast says."""
    inputs = EXAMPLES["attention"].inputs(torch.float32, "meta")
    with torch.autocast("cpu", torch.bfloat16):
        assert compiled("attention")(*inputs).dtype is torch.matmul(inputs[0], inputs[1].mT).dtype is torch.float32


def test_sizes_do_not_change_types() -> None:
    f = tilec.compile(EXAMPLES["log product"].source)
    with torch.autocast("cpu", torch.bfloat16):
        for n in (2, 100):
            a, b = torch.randn(n, n), torch.randn(n, n)
            torch.testing.assert_close(f(a, b), torch.logsumexp(a[:, :, None] + b, 1))


@pytest.mark.filterwarnings("ignore")
def test_under_compile() -> None:
    torch._dynamo.reset()
    f = compiled("convolution")
    x = EXAMPLES["convolution"].inputs(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        eager = f(*x)
        assert torch.equal(torch.compile(lambda *t: f(*t), backend="aot_eager", fullgraph=True)(*x), eager)
    assert eager.dtype is torch.bfloat16


NORM = """
function (X[R, C], W[C]) -> (Y) { S[r : R] = +(X[r, c] * X[r, c]); Y[r, c : R, C] = X[r, c] * rsqrt(S[r]) * W[c]; }
"""


class Casts(TorchDispatchMode):
    """Counts the casts that torch is asked for."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function in (torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype)
        return function(*args, **(kwargs or {}))


def halves() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (3, 4), (4,)
    return [torch.randn(s, generator=generator).to(torch.bfloat16).requires_grad_() for s in shapes]


@pytest.mark.parametrize("within", [False, True])
def test_halves_are_cast_within_the_call(within: bool) -> None:
    """No cast beside the call, forward or backward; values and gradients are those of casts before it."""
    f, found = tilec.compile(NORM), []
    for call in (f, lambda x, w: f(x.float(), w.float())):
        inputs, casts = halves(), Casts()
        with casts:
            with torch.autocast("cpu", torch.bfloat16):
                y = call(*inputs)
                gradients = torch.autograd.grad(y, inputs, torch.ones_like(y)) if within else None
            gradients = gradients or torch.autograd.grad(y, inputs, torch.ones_like(y))
        found.append((casts.count, y, *gradients))
    ours, cast = found
    assert ours[0] == 0 and cast[0] > 0
    assert ours[1].dtype is torch.float32 and ours[2].dtype is ours[3].dtype is torch.bfloat16
    assert all(map(torch.equal, ours[1:], cast[1:]))


def second(f, x, w):
    y = f(x, w)
    (d,) = torch.autograd.grad((y * y).sum(), w, create_graph=True)
    return torch.autograd.grad(d.float().sum(), x)


WAYS = {
    "gradient of a gradient": second,
    "vmap": lambda f, x, w: torch.vmap(f, (0, None))(torch.stack([x, 2 * x]), w),
    "vmap of grad": lambda f, x, w: torch.vmap(torch.func.grad(lambda a, b: f(a, b).sum()), (0, None))(x[:, None], w),
    "jvp": lambda f, x, w: torch.func.jvp(f, (x, w), (w.expand(3, 4).contiguous(), w)),
    "vjp": lambda f, x, w: torch.func.vjp(f, x, w)[1](torch.ones(3, 4)),
    "jacrev": lambda f, x, w: torch.func.jacrev(f, 1)(x, w),
    "no_grad": lambda f, x, w: torch.no_grad()(f)(x, w),
    "compiled": lambda f, x, w: torch.compile(lambda a, b: f(a, b), backend="aot_eager", fullgraph=True)(x, w),
    "exported": lambda f, x, w: torch.export.export(Called(f), (x, w)).module()(x, w),
}


class Called(torch.nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x, w):
        return self.f(x, w)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.one_in(5)
def test_halves_every_way(way: str) -> None:
    torch._dynamo.reset()
    f = tilec.compile(NORM)
    found = []
    for call in (f, lambda x, w: f(x.float(), w.float())):
        x, w = halves()
        with torch.autocast("cpu", torch.bfloat16):
            y = WAYS[way](call, x, w)
        found.append(y if isinstance(y, tuple) else (y,))
    for a, b in zip(*found, strict=True):
        assert a.dtype is b.dtype
        torch.testing.assert_close(a, b, rtol=2**-7, atol=1e-6)
