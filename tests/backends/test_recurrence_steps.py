"""Recurrences on the torch backend against the oracle and eager loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.agreement import agree, run, tensors

import tilec
from tilec.backends.torch.recurrence import aggregates

SHUFFLE = """function (B[N, T, D], H0[N, D]) -> (H) {
    H[n, t, i : N, T, D] = relu(B[n, t, i] + H[n, t - 1, (i - 1) % D]) init H0[n, i];
}"""


def test_the_shuffle_equals_the_eager_loop_bit_for_bit():
    b, h = tensors((3, 40, 16), (3, 16), dtype=torch.float32)
    wanted = []
    state = h
    for t in range(b.shape[1]):
        state = torch.relu(b[:, t] + torch.roll(state, 1, -1))
        wanted.append(state)
    assert torch.equal(tilec.compile(SHUFFLE)(b, h), torch.stack(wanted, 1))


def test_half_precision_rounds_every_state():
    b, h = tensors((2, 10, 8), (2, 8), dtype=torch.bfloat16)
    state = h
    for t in range(10):
        state = torch.relu(b[:, t] + torch.roll(state, 1, -1))
    assert torch.equal(tilec.compile(SHUFFLE)(b, h)[:, -1], state)


def test_a_large_matrix_is_a_matrix_product_in_each_step():
    source = """function (W[D, D], X[T, N, D], H0[N, D]) -> (H) {
        H[t, n, i : T, N, D] = tanh(sum(W[i, j] * H[t - 1, n, j]) + X[t, n, i]) init H0[n, i];
    }"""
    w, x, h = tensors((40, 40), (5, 3, 40), (3, 40))
    (got,), text = run(source, [w / 6, x, h])
    for t in range(5):
        h = torch.tanh(h @ (w / 6).mT + x[t])
        torch.testing.assert_close(got[t], h)
    assert "torch.matmul" in text


def test_a_large_log_step_is_a_log_product():
    source = """function (P[S, S], E[T, N, S], F0[N, S]) -> (F) {
        F[t, n, j : T, N, S] = logsumexp(F[t - 1, n, i] + P[i, j]) + E[t, n, j] init F0[n, j];
    }"""
    p, e, f = tensors((50, 50), (4, 2, 50), (2, 50))
    p[p < -1] = -torch.inf
    (got,), text = run(source, [p, e, f])
    for t in range(4):
        f = torch.logsumexp(f[:, :, None] + p, 1) + e[t]
        torch.testing.assert_close(got[t], f)
    assert "rt.log_step" in text


def test_elementwise_steps_run_in_numpy_on_the_cpu():
    _, text = run(SHUFFLE, tensors((1, 4, 8), (1, 8), dtype=torch.float32))
    assert "np.maximum" in text and "torch.add" in text.split("else:")[1]


def test_what_a_guard_drops_is_zero_only_while_all_states_are_finite():
    source = """function (A[T, D], W[D, D], H0[D]) -> (H) {
        H[t, i : T, D] = A[t, i] + sum(W[i, j] > 0 ? W[i, j] * H[t - 1, j]) init H0[i];
    }"""
    a, w, h = tensors((4, 70), (70, 70), (70,))
    agree(source, a, w / 20, h, contains="torch.matmul")
    h[3] = torch.inf
    w[:, 3] = -1.0
    agree(source, a, w / 20, h, contains="rt.finite(H)")


HIDDEN = """function (P[S, S], E[T, N, S], F0[N, S]) -> (F) {
    F[t, n, j : T, N, S] = logsumexp(F[t - 1, n, i] + P[i, j]) + E[t, n, j] init F0[n, j];
}"""


@pytest.mark.parametrize("change", ["none", "banded", "an impossible step", "infinite", "wide"])
@pytest.mark.one_in(3)
def test_the_gradient_of_a_log_step_is_a_matrix_product_of_exponentials(change, monkeypatch):
    monkeypatch.setattr(aggregates, "FEWEST_MATMUL_PRODUCTS", 0)
    p, e, f, d = tensors((14, 14), (5, 3, 14), (3, 14), (5, 3, 14))
    if change == "banded":
        p[(torch.arange(14)[:, None] - torch.arange(14)).abs() > 2] = -torch.inf
    elif change == "an impossible step":
        e[2, 1] = -torch.inf
    elif change == "infinite":
        e[2, 1, 3] = torch.inf
    elif change == "wide":
        p = 1000 * p
    function = tilec.compile(HIDDEN).grad()
    assert "rt.exponential_step" in function.lower(p, e, f, d).source()
    with np.errstate(all="ignore"):
        wanted = tilec.interpret(function.tile, *(x.numpy() for x in (p, e, f, d)))
    for g, w in zip(function(p, e, f, d), wanted, strict=True):
        np.testing.assert_allclose(g.numpy(), w, rtol=1e-9, atol=1e-9)


def test_the_gradient_of_an_extremum_over_what_is_read_back():
    """Its sum inside reads the same tensor at places of its own variables."""
    (p,) = tensors((35, 2, 2))
    function = tilec.compile("function (P[T, S, S]) -> (F) { F[t, j : 35, S] = >(F[t - 16, i] + P[t, i, j]); }")
    p.requires_grad_()
    states = []
    for t in range(35):
        before = states[t - 16] if t >= 16 else torch.zeros(2, dtype=p.dtype)
        states.append(torch.amax(before[:, None] + p[t], 0))
    (wanted,) = torch.autograd.grad(torch.stack(states).sum(), p)
    (got,) = torch.autograd.grad(function(p).sum(), p)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize(("edges", "nodes"), [(1, 1), (1, 3), (2, 1), (3, 4), (0, 2)])
def test_states_at_places_that_elements_name(edges, nodes):
    """One edge has no dimension of its own to be looked up along, and its place is an element all the same."""
    source = """function (From[E], To[E], W[E], N, T) -> (R) {
        R[t, v : T, N] = t == 0 ? 1.0 : 0.5 + sum(To[e] == v ? R[t - 1, From[e]] * W[e] : 0.0);
    }"""
    draw = np.random.default_rng(edges + 7 * nodes)
    places = [torch.from_numpy(draw.integers(0, nodes, edges)) for _ in range(2)]
    agree(source, *places, torch.from_numpy(draw.normal(size=edges)), torch.tensor(nodes), torch.tensor(4))
