"""Recurrences on a CUDA device: bit for bit as eager loops where they only add and compare, close to float64 elsewhere,
and the same bits whenever they are run: a missing barrier would show as a difference."""

from __future__ import annotations

import pytest
import torch
from support.chunks import CHUNKED, gradients, inputs_for, kept_states

import tilec
from tilec.backends.triton.recurrence import coupled_lanes as recurrence_sweep

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SHUFFLE = """function (B[N, T, D], H0[N, D]) -> (H) {
    H[n, t, i : N, T, D] = relu(B[n, t, i] + H[n, t - 1, (i - 1) % D]) init H0[n, i];
}"""
GATED = "function (A[N, T, D], B[N, T, D]) -> (H) { H[n, t, i : N, T, D] = A[n, t, i] * H[n, t - 1, i] + B[n, t, i]; }"
MODEL = """function (P[S, S], E[T, N, S], F0[N, S]) -> (F) {
    F[t, n, j : T, N, S] = logsumexp(F[t - 1, n, i] + P[i, j]) + E[t, n, j] init F0[n, j];
}"""
PATHS = "function (P[S, S], E[T, N, S]) -> (V) { V[t, n, j : T, N, S] = max(V[t - 1, n, i] + P[i, j]) + E[t, n, j]; }"
NETWORK = """function (W[D, D], X[T, N, D], H0[N, D]) -> (H) {
    H[t, n, i : T, N, D] = tanh(sum(W[i, j] * H[t - 1, n, j]) + X[t, n, i]) init H0[n, i];
}"""
WARPING = """function (C[B, N, M]) -> (R) {
    R[b, i, j : B, N, M] = C[b, i, j]
        - logaddexp(logaddexp(-R[b, i - 1, j], -R[b, i, j - 1]), -R[b, i - 1, j - 1])
        init cond(max(i, j) < 0, 0.0, 1e9);
}"""
CASES = {  # source, shapes, scale of the first input
    "gated": (GATED, ((3, 300, 1000), (3, 300, 1000)), 0.3),
    "hidden Markov model": (MODEL, ((256, 256), (40, 5, 256), (5, 256)), 1.0),
    "few states": (MODEL, ((9, 9), (40, 500, 9), (500, 9)), 1.0),
    "paths": (PATHS, ((300, 300), (30, 4, 300)), 1.0),
    "network": (NETWORK, ((512, 512), (30, 3, 512), (3, 512)), 0.04),
    "wide network": (NETWORK, ((1100, 1100), (8, 2, 1100), (2, 1100)), 0.03),
    "warping": (WARPING, ((5, 130, 170),), 1.0),
}


def inputs(shapes, scale, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    made[0] *= scale
    return [x.to(dtype) for x in made]


def same_bits(a, b) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


@pytest.mark.parametrize("shape", [(1, 2000, 512), (3, 77, 100), (2, 1, 7), (40, 33, 130)])
def test_the_shuffle_is_the_eager_loop_bit_for_bit(shape) -> None:
    n, steps, d = shape
    b, h = (x.cuda().requires_grad_() for x in inputs((shape, (n, d)), 1.0))
    state, wanted = h, []
    for t in range(steps):
        state = torch.relu(b[:, t] + torch.roll(state, 1, -1))
        wanted.append(state)
    eager = torch.stack(wanted, 1)
    got = tilec.compile(SHUFFLE, backend="triton", exact=True)(b, h)
    assert torch.equal(got, eager)
    g = torch.randn_like(got)
    ours, theirs = (torch.autograd.grad(y, (b, h), g) for y in (got, eager))
    assert all(map(torch.equal, ours, theirs))


def test_products_and_sums_are_rounded_apart() -> None:
    a, b = (x.cuda() for x in inputs(((2, 300, 200), (2, 300, 200)), 0.5))
    state = torch.zeros(2, 200, device="cuda")
    got = tilec.compile(GATED, backend="triton", exact=True)(a, b)
    for t in range(300):
        state = a[:, t] * state + b[:, t]
        assert torch.equal(got[:, t], state), t


FORMS = {"as chosen": {}, "stepwise": {"RESIDENT_LANES": 0}, "together": {"WAITING_WORK": -(2**62)}}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_values_gradients_and_bits(name: str, form: str, monkeypatch) -> None:
    for constant, value in FORMS[form].items():
        monkeypatch.setattr(recurrence_sweep, constant, value)
    source, shapes, scale = CASES[name]
    f = tilec.compile(source, backend="triton")
    exact = [x.requires_grad_() for x in inputs(shapes, scale, torch.float64)]
    ours = [x.detach().float().cuda().requires_grad_() for x in exact]
    wanted = tilec.compile(source, backend="torch")(*exact)
    d = torch.randn(wanted.shape, dtype=torch.float64)
    gradients = torch.autograd.grad(wanted, exact, d)
    runs = []
    for _ in range(5):
        got = f(*ours)
        runs.append((got.detach(), *torch.autograd.grad(got, ours, d.float().cuda())))
    for x, y in zip(runs[0], (wanted, *gradients), strict=True):
        assert ((x.cpu().double() - y).norm() / y.norm()).item() < 1e-4, name
    for run in runs[1:]:
        assert all(map(same_bits, run, runs[0]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_every_state(dtype) -> None:
    b, h = (x.cuda() for x in inputs(((2, 50, 96), (2, 96)), 1.0, dtype))
    got = tilec.compile(SHUFFLE, backend="triton")(b, h)
    for t in range(50):
        h = torch.relu(b[:, t] + torch.roll(h, 1, -1))
        assert torch.equal(got[:, t], h)


@pytest.mark.parametrize("name", ["a shuffling network", "a tanh network", "a Markov model", "time as a number"])
def test_gradients_in_chunks_of_time(name: str, monkeypatch) -> None:
    source, shapes = CHUNKED[name]
    exact = gradients(tilec.compile(source), inputs_for(shapes(300)))
    ours = [x.detach().float().cuda().requires_grad_() for x in inputs_for(shapes(300))]
    monkeypatch.setenv("TILEC_STATE_BUDGET", "1")
    f = tilec.compile(source, backend="triton")
    assert kept_states(f, *ours)
    runs = [gradients(f, ours) for _ in range(3)]
    for x, y in zip(runs[0], exact, strict=True):
        assert (x.detach().cpu().double() - y).norm() <= 1e-4 * y.norm() + 1e-37, name  # some are too small for float32
    for run in runs[1:]:
        assert all(map(same_bits, run, runs[0]))
