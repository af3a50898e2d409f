"""What is measured of recurrences on a CPU, each against the loop that a user would write."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tilec.bench.cpu import executable, randn
from tilec.bench.measure import Case
from tilec.ir.program import Program
from tilec.language import parse
from tilec.transforms.autodiff.grad import grad

Tensor = torch.Tensor


def alone(source: str | Program, *inputs: Tensor) -> dict[str, Callable[[], object]]:
    program = parse(source) if isinstance(source, str) else source
    run = executable(program, list(inputs))
    return {"tilec": lambda: run(inputs)}


SHUFFLE = """function (B[N, T, D], H0[N, D]) -> (H) {
    H[n, t, i : N, T, D] = relu(B[n, t, i] + H[n, t - 1, (i - 1) % D]) init H0[n, i];
}"""
AVERAGE = "function (X[B, T], A[]) -> (Y) { Y[b, t : B, T] = A[] * Y[b, t - 1] + (1 - A[]) * X[b, t]; }"
HIDDEN = """function (P[S, S], E[T, N, S], F0[N, S]) -> (F) {
    F[t, n, j : T, N, S] = logsumexp(F[t - 1, n, i] + P[i, j]) + E[t, n, j] init F0[n, j];
}"""
LOG_PRODUCT = "function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = logsumexp(A[i, k] + B[k, j]); }"
RUNNING = "function (X[N]) -> (O) { O[i : N] = logsumexp(X[k]), i - k < N; }"


def torch_shuffle_loop(b: Tensor, h: Tensor) -> Tensor:
    states = []
    for t in range(b.shape[1]):
        h = torch.relu(b[:, t] + torch.roll(h, 1, -1))
        states.append(h)
    return torch.stack(states, 1)


def average_loop(x: Tensor, a: Tensor) -> Tensor:
    y, states = torch.zeros(len(x)), []
    for t in range(x.shape[1]):
        y = a * y + (1 - a) * x[:, t]
        states.append(y)
    return torch.stack(states, 1)


def hidden_loop(p: Tensor, e: Tensor, f: Tensor) -> Tensor:
    states = []
    for t in range(len(e)):
        f = torch.logsumexp(f[:, :, None] + p, 1) + e[t]
        states.append(f)
    return torch.stack(states)


def torch_broadcast(a: Tensor, b: Tensor) -> Tensor:
    return torch.logsumexp(a[:, :, None] + b, 1)


def torch_forward(source: str, peer: Callable[..., Tensor], *inputs: Tensor):
    return lambda: (lambda: peer(*inputs), alone(source, *inputs))


def backward(source: str, peer: Callable[..., Tensor], *inputs: Tensor):
    def build():
        leaves = [t.clone().requires_grad_() for t in inputs]
        result = peer(*leaves)
        d = randn(*result.shape)
        return lambda: torch.autograd.grad(result, leaves, d, retain_graph=True), alone(grad(parse(source)), *inputs, d)

    return build


def _cases() -> list[Case]:
    cases = []
    for n, t, d in ((1, 2000, 512), (8, 500, 128), (32, 200, 512)):
        inputs = randn(n, t, d) / 10, randn(n, d)
        for way, build in (("forward", torch_forward), ("backward", backward)):
            name = f"shuffling RNN, {n} x {t} steps x {d}, {way}"
            cases.append(Case(name, "eager loop", build(SHUFFLE, torch_shuffle_loop, *inputs), {"tilec": 2.0}))
    average = randn(1, 20000), torch.tensor(0.99)
    hidden = randn(64, 64), randn(60, 8, 64), randn(8, 64)
    return [
        *cases,
        Case("moving average of 20000", "eager loop", torch_forward(AVERAGE, average_loop, *average)),
        Case(
            "hidden Markov model, 8 x 60 steps x 64, forward", "eager loop", torch_forward(HIDDEN, hidden_loop, *hidden)
        ),
        Case("hidden Markov model, 8 x 60 steps x 64, backward", "eager loop", backward(HIDDEN, hidden_loop, *hidden)),
        Case(
            "running logsumexp of 20000, backward",
            "torch.logcumsumexp",
            backward(RUNNING, lambda x: torch.logcumsumexp(x, 0), randn(20000)),
            tolerance=1e-3,
        ),
        Case(
            "log product 256^3, backward",
            "broadcast logsumexp",
            backward(LOG_PRODUCT, torch_broadcast, 3 * randn(256, 256), 3 * randn(256, 256)),
        ),
    ]


RECURRENCE_CASES = _cases()
