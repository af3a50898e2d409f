"""Tensors that lie channels last: what kernels make of them does too, with the same elements."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.plan.plan import TorchLines
from tilec.backends.triton.runtime import open_plans
from tilec.ir.at_sizes import depends_on_sizes

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1"
)
X, Z, K, V = (2, 4, 4, 3), (2, 3, 4, 3), (4, 4, 3, 3), (4,)
PROGRAMS = {
    "normed": (
        """function (X[N, C, H, W], G[C]) -> (Y) {
            M[c : C] = mean(X[n, c, y, x]);
            V[c : C] = mean((X[n, c, y, x] - M[c]) * (X[n, c, y, x] - M[c]));
            Y[n, c, y, x : N, C, H, W] = relu((X[n, c, y, x] - M[c]) * rsqrt(V[c] + 0.1) * G[c]); }""",
        (X, V),
    ),
    "groups": (
        """function (X[N, C, H, W], G[C]) -> (Y) {
            Z = reshape(X, N, 2, C / 2, H, W);
            M[n, g : N, 2] = mean(Z[n, g, c, y, x]);
            A = reshape(G, 2, C / 2);
            O[n, g, c, y, x : N, 2, C / 2, H, W] = (Z[n, g, c, y, x] - M[n, g]) * A[g, c];
            Y = reshape(O, N, C, H, W); }""",
        (X, V),
    ),
    "convolution": (
        """function (X[N, C, H, W], K[O, C, 3, 3]) -> (Y) {
            Y[n, o, y, x : N, O, H, W] = +(X[n, c, y + j - 1, x + i - 1] * K[o, c, j, i]); }""",
        (X, K),
    ),
    "pool": (
        """function (X[N, C, H, W]) -> (Y) {
            Y[n, c, y, x : N, C, H / 2, W / 2] = >(X[n, c, 2*y + j, 2*x + i]), j < 2, i < 2; }""",
        (X,),
    ),
    "concatenation": (
        """function (X[N, C, H, W], Z[N, D, H, W]) -> (Y) {
            Y[n, c, y, x : N, C + D, H, W] = c < C ? X[n, c, y, x] : Z[n, c - C, y, x]; }""",
        (X, Z),
    ),
    "over another": (
        "function (X[N, C, H, W], Z[N, C, H, W]) -> (Y) { Y[n, c, 2*y, x : N, C, H, W] = X[n, c, y, x] default Z; }",
        (X, X),
    ),
    "dropout": ("function (X[N, C, H, W]) -> (Y) { Y = rand(7) < 0.5 ? 0 : X; }", (X,)),
    "places of maxima": (
        "function (X[N, C, H, W]) -> (Y) { A[n : N] = argmax(X[n, c, y, x]); Y[n, c, y, x] = X[n, c, y, x] * A[n]; }",
        (X,),
    ),
    "numbered inside": (
        "function (X[N, C, H, W]) -> (Y) { Y[n, c, y, x] = X[n, c, y, x] - argmax(X[n, a, y, x]); }",
        (X,),
    ),
}
ROWS = ("concatenation", "over another")  # row-major second inputs


def last(t: torch.Tensor) -> torch.Tensor:
    return t.to(memory_format=torch.channels_last) if t.dim() == 4 else t


def lies_last(t: torch.Tensor) -> bool:
    return t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous()


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.one_in(5)
def test_results_lie_as_inputs_do(name):
    source, shapes = PROGRAMS[name]
    f, exact = tilec.compile(source, backend="triton"), tilec.compile(source, backend="torch")
    torch.manual_seed(0)
    rows = [torch.randn(s) for s in shapes]
    laid = [rows[k] if k and name in ROWS else last(t) for k, t in enumerate(rows)]
    inputs = [[t.clone().requires_grad_() for t in given] for given in (laid, rows)]
    y, wanted = f(*inputs[0]), exact(*inputs[1])
    torch.testing.assert_close(y, wanted, atol=1e-5, rtol=1e-5)
    assert lies_last(y) and not y._is_view()
    c = torch.randn(y.shape)
    gradients = torch.autograd.grad(y, inputs[0], last(c))
    for x, d, w in zip(inputs[0], gradients, torch.autograd.grad(wanted, inputs[1], c), strict=True):
        torch.testing.assert_close(d, w, atol=1e-5, rtol=1e-5)
        assert lies_last(d) == (d.dim() == 4) and d.shape == x.shape
    for d, w in zip(torch.autograd.grad(f(*inputs[0]), inputs[0], c), gradients, strict=True):  # another order
        torch.testing.assert_close(d, w)


def test_parts_of_channels_and_one_channel():
    f = tilec.compile("function (X[N, C, H, W]) -> (Y) { Y = 2 * X; }", backend="triton")
    x = last(torch.randn(2, 6, 4, 5))
    assert lies_last(f(x[:, 1:4])) and torch.equal(f(x[:, 1:4]), 2 * x[:, 1:4])
    assert f(x[:, 1:2]).is_contiguous() and f(x[:, :0]).shape == (2, 0, 4, 5)
    y = f(x.requires_grad_())
    y.mul_(3)
    y.sum().backward()
    assert torch.equal(x.grad, torch.full(x.shape, 6.0))


def test_views_are_made_anew_for_other_sizes(monkeypatch: pytest.MonkeyPatch):
    plans, made = [], open_plans.OpenPlan
    monkeypatch.setattr(open_plans, "OpenPlan", lambda plan, *rest: plans.append(plan) or made(plan, *rest))
    f = tilec.compile("function (X[N, C, H, W]) -> (Y) { Y = 2 * X; }", backend="triton")
    for height, width in ((4, 6), (8, 10), (12, 6), (5, 7)):
        x = last(torch.randn(2, 6, height, width))
        y = f(x)
        assert lies_last(y) and torch.equal(y, 2 * x)
    steps = [s for plan in plans for s in plan.steps if isinstance(s, TorchLines)]
    assert steps and all(map(depends_on_sizes, steps))
