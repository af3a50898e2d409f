"""torch.func's transforms, forward mode and the ways in which torch looks at a call, against torch's own operations."""

from __future__ import annotations

import pytest
import torch
import torch.utils.checkpoint
from torch import func

import tilec
from tests.support.torch_programs import EXAMPLES, compiled


def loss(f):
    """A scalar of the output, no element of it like another; nonlinear, so that second derivatives show."""

    def scalar(*inputs):
        y = f(*inputs)
        weights = torch.arange(1.0, 1.0 + y.numel(), dtype=y.dtype, device=y.device).reshape(y.shape) / y.numel()
        return (weights * y * y + y).sum()

    return scalar


def tangents(inputs):
    return tuple(torch.cos(3 * t + 1) for t in inputs)


def batch(inputs):
    return tuple(torch.stack([t, 2 * t, t - 1]) for t in inputs)


def every(inputs):
    return tuple(range(len(inputs)))


def autograd_through_vmap(f, *inputs):
    inputs = [t.requires_grad_() for t in batch(inputs)]
    return torch.autograd.grad(func.vmap(loss(f))(*inputs).sum(), inputs)


def double_backward(f, *inputs):
    inputs = [t.clone().requires_grad_() for t in inputs]
    gradients = torch.autograd.grad(loss(f)(*inputs), inputs, create_graph=True)
    return torch.autograd.grad(sum((g * g).sum() for g in gradients), inputs)


def weights_of_data(f, *inputs):
    """The gradient by the last input of a gradient by the first."""
    first, *others, last = [t.clone().requires_grad_() for t in inputs] if len(inputs) > 1 else (inputs[0],) * 2
    if not others and len(inputs) == 1:
        first = last = inputs[0].clone().requires_grad_()
    given = (first,) if len(inputs) == 1 else (first, *others, last)
    (g,) = torch.autograd.grad(loss(f)(*given), first, create_graph=True)
    return torch.autograd.grad((g * g).sum(), last)


def dual_numbers(f, *inputs):
    with torch.autograd.forward_ad.dual_level():
        duals = [torch.autograd.forward_ad.make_dual(t, d) for t, d in zip(inputs, tangents(inputs), strict=True)]
        return tuple(torch.autograd.forward_ad.unpack_dual(f(*duals)))


def linearized(f, *inputs):
    value, linear = func.linearize(f, *inputs)
    return value, linear(*tangents(inputs))


def made_fx(f, *inputs):
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda *t: f(*t))(*inputs)
    return graph(*[2 * t for t in inputs])


def checkpointed(f, inputs, reentrant):
    inputs = [t.clone().requires_grad_() for t in inputs]
    y = torch.utils.checkpoint.checkpoint(lambda *x: torch.sin(f(*x)), *inputs, use_reentrant=reentrant)
    return torch.autograd.grad(y.sum(), inputs) if not reentrant else (y.sum().backward(), [t.grad for t in inputs])[1]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", EXAMPLES)
def test_checkpoints_of_calls_like_ones_before(name: str) -> None:
    """What is kept may be asked for once."""
    f, inputs = compiled(name), EXAMPLES[name].inputs()
    expected = checkpointed(EXAMPLES[name].torch, inputs, False)
    for _ in range(3):
        for ours, theirs in zip(checkpointed(f, inputs, False), expected, strict=True):
            torch.testing.assert_close(ours, theirs)


def without(mode, f, inputs):
    inputs = [t.clone().requires_grad_() for t in inputs]
    with mode():
        y = f(*inputs)
        assert not y.requires_grad
        return y + 1


def ensemble(f, *inputs):
    """A gradient for each of several models at once, their parameters stacked."""
    stacked = {str(k): t for k, t in enumerate(batch(inputs))}
    return func.vmap(func.grad(lambda p: loss(f)(*p.values())))(stacked)


TRANSFORMS = {
    "forward": lambda f, *x: f(*x),
    "backward": lambda f, *x: torch.autograd.grad(loss(f)(*(y := [t.clone().requires_grad_() for t in x])), y),
    "checkpoint": lambda f, *x: checkpointed(f, x, False),
    "reentrant checkpoint": lambda f, *x: checkpointed(f, x, True),
    "no_grad": lambda f, *x: without(torch.no_grad, f, x),
    "inference_mode": lambda f, *x: without(torch.inference_mode, f, x).clone(),
    "an ensemble": ensemble,
    "grad": lambda f, *x: func.grad(loss(f), every(x))(*x),
    "grad of grad": lambda f, *x: func.grad(lambda *y: func.grad(loss(f))(*y).square().sum(), every(x))(*x),
    "double backward": double_backward,
    "a gradient by weights of a gradient by data": weights_of_data,
    "jvp": lambda f, *x: func.jvp(f, x, tangents(x)),
    "dual numbers": dual_numbers,
    "linearize": linearized,
    "vjp": lambda f, *x: (vjp := func.vjp(f, *x))[1](torch.cos(vjp[0])),
    "vmap": lambda f, *x: func.vmap(f)(*batch(x)),
    "vmap of the last dimension of the first input": lambda f, *x: func.vmap(
        f, (-1, *[None] * (len(x) - 1)), out_dims=1
    )(torch.stack([x[0], 2 * x[0]], -1), *x[1:]),
    "vmap of vmap": lambda f, *x: func.vmap(func.vmap(f, (0, *[None] * (len(x) - 1))))(*batch(batch(x)[:1] + x[1:])),
    "grad of vmap": lambda f, *x: func.grad(lambda *y: func.vmap(loss(f))(*y).sum(), every(x))(*batch(x)),
    "vmap of grad": lambda f, *x: func.vmap(func.grad(loss(f), every(x)))(*batch(x)),
    "autograd through vmap": autograd_through_vmap,
    "reverse over forward": lambda f, *x: func.grad(
        lambda *y: func.jvp(f, y, tangents(y))[1].sin().sum(), every(x)
    )(*x),
    "forward over forward": lambda f, *x: func.jvp(lambda *y: func.jvp(f, y, tangents(y))[1], x, tangents(x)),
    "jacrev": lambda f, *x: func.jacrev(f)(*x),
    "jacfwd": lambda f, *x: func.jacfwd(f)(*x),
    "forward-mode jacobian": lambda f, *x: torch.autograd.functional.jacobian(
        f, x, strategy="forward-mode", vectorize=True
    ),
    "hessian": lambda f, *x: func.hessian(loss(f))(*x),
    "functionalize": lambda f, *x: func.functionalize(lambda *y: f(*y).add_(1))(*x),
    "gradient of functionalize": lambda f, *x: func.grad(func.functionalize(loss(f)))(*x),
    "functionalize of a gradient": lambda f, *x: func.functionalize(func.grad(loss(f)))(*x),
    "make_fx": made_fx,
}  # fmt: skip


def flat(result):
    return [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]


def sampled(rows, columns, share: int, first: int = 0):
    """All pairs, of which the default suite has so small a share, each row and column in it."""
    for k, row in enumerate(rows):
        for j, column in enumerate(columns):
            slow = () if (k + j) % share == first else (pytest.mark.slow,)
            yield pytest.param(row, column, marks=slow, id=f"{row}-{column}")


def batched_gradients(f, *inputs):
    """By several cotangents at once, of a call like those before."""
    given = [t.clone().requires_grad_() for t in inputs]
    for _ in range(3):
        y = f(*given)
        torch.autograd.grad(y.sum(), given)
    cotangents = torch.stack([torch.cos(k * f(*inputs)) for k in range(3)])
    return torch.autograd.grad(f(*given), given, cotangents, is_grads_batched=True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", EXAMPLES)
def test_batched_gradients(name: str) -> None:
    example, inputs = EXAMPLES[name], EXAMPLES[name].inputs()
    torch.testing.assert_close(batched_gradients(compiled(name), *inputs), batched_gradients(example.torch, *inputs))


def test_batched_gradients_stay_so_on_a_device_s_thread() -> None:
    """There the mode is on, as in the thread that asked, but no level is counted."""
    vmap_mode, f = torch._C._dispatch_key_parse("VmapMode"), tilec.compile("Y = 2 * X")
    with torch._C._IncludeDispatchKeyGuard(vmap_mode):
        result = f(torch._add_batch_dim(torch.ones(3, 2), 0, 1))
        assert torch._C._dispatch_tls_is_dispatch_key_included(vmap_mode)
    assert torch.equal(torch._remove_batch_dim(result, 1, 3, 0), torch.full((3, 2), 2.0))


@pytest.mark.one_in(7)
@pytest.mark.parametrize(("name", "transform"), list(sampled(EXAMPLES, TRANSFORMS, 8)))
def test_as_torch_does(name: str, transform: str) -> None:
    example, inputs = EXAMPLES[name], EXAMPLES[name].inputs()
    expected = flat(TRANSFORMS[transform](example.torch, *inputs))
    found = flat(TRANSFORMS[transform](compiled(name), *inputs))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


def stepped(t):
    return torch.cos(torch.arange(1.0, 1.0 + t.numel(), dtype=t.dtype)).reshape(t.shape)


def tangent_of_pullback_of_jacobian(f, x, y):
    def pulled(x, y):
        jacobian, pull = func.vjp(lambda x, y: func.jacrev(f, argnums=1)(x, y), x, y)
        return pull(stepped(jacobian))

    return func.jvp(pulled, (x, y), (stepped(x), stepped(y)))


def gradient_of_batch_of_tangents(f, x, y):
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    tangents = lambda a, b: func.jvp(f, (a, b), (stepped(a), stepped(b)))[1]  # noqa: E731
    found = flat(func.vmap(tangents)(torch.stack([x, 2 * x]), torch.stack([y, -y])))
    return torch.autograd.grad(sum((t * t).sum() for t in found), (x, y))


@pytest.mark.parametrize(
    ("nested", "source", "theirs"),
    [
        pytest.param(
            tangent_of_pullback_of_jacobian,
            "function (X[N], Y[N]) -> (O) { O[i : N] = i % 2 == 0 ? X[i]*Y[i]*X[i] : sin(Y[i]); }",
            lambda x, y: torch.where(torch.arange(4) % 2 == 0, x * y * x, torch.sin(y)),
            id="what is kept has a tangent and no gradient",
        ),
        pytest.param(
            gradient_of_batch_of_tangents,
            "function (A[N], B[N]) -> (A, C) { C = A * B; }",
            lambda a, b: (a, a * b),
            id="a tangent without a batch is cast to the type of a batch",
        ),
    ],
)
def test_nested_three_deep(nested, source: str, theirs) -> None:
    x, y = torch.linspace(-1, 2, 4, dtype=torch.float64), torch.linspace(2, 1, 4, dtype=torch.float64)
    for ours, expected in zip(flat(nested(tilec.compile(source), x, y)), flat(nested(theirs, x, y)), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
