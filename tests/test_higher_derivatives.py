"""Tangents, second gradients and Hessian-vector products on the torch backend: right beside torch's in float64, in the
memory of the forward pass."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tilec
from tilec.ir.program import Program
from tilec.language import parse, show
from tilec.transforms.autodiff.grad import grad
from tilec.transforms.autodiff.jvp import jvp

ATTENTION = """function (Q[B, N, E], K[B, M, E], V[B, M, F]) -> (O) {
    S[b, i, j : B, N, M] = sum(Q[b, i, e] * K[b, j, e]);
    L[b, i] = logsumexp(i - j >= 0 ? S[b, i, j]);
    O[b, i, f] = sum(i - j >= 0 ? exp(S[b, i, j] - L[b, i]) * V[b, j, f]);
}"""
LAYER_NORM = """function (X[N, D], W[D], B[D]) -> (Y) {
    M[i] = mean(X[i, j]);
    R[i] = rsqrt(mean((X[i, j] - M[i]) * (X[i, j] - M[i])) + 0.00001);
    Y[i, j] = (X[i, j] - M[i]) * R[i] * W[j] + B[j];
}"""
LOG_PRODUCT = "function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = logsumexp(A[i, k] + B[k, j]); }"
RECURRENCE = """function (X[T, D], W[D, D], H0[D]) -> (H) {
    H[t, i : T, D] = tanh(sum(W[i, j] * H[t - 1, j]) + X[t, i]) init H0[i];
}"""


def attention(q, k, v):
    scores = q @ k.mT
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return torch.softmax(torch.where(allowed, scores, -torch.inf), -1) @ v


def layer_norm(x, w, b):
    return torch.nn.functional.layer_norm(x, w.shape, w, b)


def log_product(a, b):
    return torch.logsumexp(a[:, :, None] + b, 1)


def recurrence(x, w, h):
    states = []
    for row in x:
        h = torch.tanh(w @ h + row)
        states.append(h)
    return torch.stack(states)


CASES = {
    "attention": (ATTENTION, attention, [(2, 5, 3)] * 3, [(1, 128, 8)] * 3),
    "layer norm": (LAYER_NORM, layer_norm, [(3, 7), (7,), (7,)], [(128, 64), (64,), (64,)]),
    "log product": (LOG_PRODUCT, log_product, [(3, 4), (4, 5)], [(32, 32), (32, 32)]),
    "recurrence": (RECURRENCE, recurrence, [(4, 3), (3, 3), (3,)], [(256, 8), (8, 8), (8,)]),
}


def tensors(shapes, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return tuple([0.7 * torch.randn(s, dtype=dtype, generator=generator) for s in shapes])


def derived(source: str) -> dict[str, Program]:
    program = parse(source)
    first = grad(program)
    return {"jvp": jvp(program), "hvp": jvp(first, program.input_names()), "second": grad(first)}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(4)
def test_derivatives_beside_torch(name: str) -> None:
    source, reference, shapes, _ = CASES[name]
    inputs, along = tensors(shapes, torch.float64, 0), tensors(shapes, torch.float64, 1)
    value, tangent = torch.func.jvp(reference, inputs, along)
    (d,) = tensors([value.shape], torch.float64, 2)

    def gradient(*values):
        return torch.func.vjp(reference, *values[:-1])[1](values[-1])

    programs = {k: tilec.compile(show(p)) for k, p in derived(source).items()}
    mine = programs["jvp"](*inputs, *along)
    torch.testing.assert_close(mine, (value, tangent))
    first, moved = torch.func.jvp(lambda *x: gradient(*x, d), inputs, along)
    torch.testing.assert_close(programs["hvp"](*inputs, d, *along), (*first, *moved))
    second = torch.func.vjp(gradient, *inputs, d)[1](along)
    torch.testing.assert_close(programs["second"](*inputs, d, *along), second)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(3)
def test_derivatives_in_the_memory_of_the_forward_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor is larger than the budget, or than the largest of those that go in and out where it is below these."""
    source, _, _, shapes = CASES[name]
    budget = 32 * 2**10
    monkeypatch.setenv("TILEC_MEMORY_BUDGET", str(budget))
    inputs = tensors(shapes, torch.float32, 0)
    value = tilec.compile(source)(*inputs)
    d = torch.randn(value.shape)
    limit = max(budget, *(t.nbytes for t in (*inputs, value)))
    for kind, program in derived(source).items():
        given = (*inputs, *inputs) if kind == "jvp" else (*inputs, d, *inputs)
        function = tilec.compile(show(program))
        with Watching() as watch:
            function(*given)
        assert watch.largest <= limit, f"{kind}: {watch.largest} bytes"


class Watching(TorchDispatchMode):
    """Notes the largest allocation behind a tensor."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for t in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(t, torch.Tensor):
                self.largest = max(self.largest, t.untyped_storage().nbytes())
        return result
