"""Gradients of recurrences: finite differences of the oracle's values, torch's gradcheck, and the text."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.gradcheck import check_gradient
from support.recurrences import RECURRENCES
from support.tiers import slow_but

import tilec
from tilec.language import parse, show
from tilec.transforms.autodiff.grad import grad

RNG = np.random.default_rng(1)


def normal(*shape):
    return RNG.normal(size=shape)


def positive(*shape):
    return RNG.uniform(0.5, 1.5, size=shape)


CASES = {
    "linear": ("function (A[T], B[T]) -> (H) { H[t : T] = A[t] * H[t - 1] + B[t]; }", normal(5), normal(5)),
    "a constant factor": ("function (B[T]) -> (H) { H[t : T] = 0.5 * H[t - 1] + B[t]; }", normal(5)),
    "gated": (
        """function (A[T, D], B[T, D], H0[D]) -> (H) {
            H[t, i : T, D] = sigmoid(A[t, i]) * H[t - 1, i] + (1 - sigmoid(A[t, i])) * B[t, i] init H0[i];
        }""",
        normal(4, 2),
        normal(4, 2),
        normal(2),
    ),
    "shuffle": (
        """function (B[T, N, D], H0[N, D]) -> (H) {
            H[t, n, i : T, N, D] = relu(B[t, n, i] + H[t - 1, n, (i - 1) % D]) init H0[n, i];
        }""",
        normal(3, 2, 3),
        normal(2, 3),
    ),
    "tanh of a matrix product": (
        """function (W[D, D], X[T, D], H0[D]) -> (H) {
            H[t, i : T, D] = tanh(sum(W[i, j] * H[t - 1, j]) + X[t, i]) init H0[i];
        }""",
        normal(2, 2),
        normal(3, 2),
        normal(2),
    ),
    "a chart of two kinds of spans, whose terms read one of two tensors": (
        """function (S[N, N]) -> (Z) {
            D[w, q, i : N, 2, N] = q == 0
                ? sum(k < w ? D[k, 1, i] * D[w - 1 - k, 1, i + k + 1] : 0) + (i < 2 ? S[i, i + w] : S[i + w, i])
                : sum(m <= w ? D[m, 0, i] : 0), k < N, m < N;
            Z[i : N] = D[N - 1 - i, 1, i];
        }""",
        normal(3, 3),
    ),
    "hidden Markov model": (
        """function (P[S, S], E[T, S], F0[S]) -> (F) {
            F[t, j : T, S] = logsumexp(F[t - 1, i] + P[i, j]) + E[t, j] init F0[j];
        }""",
        normal(2, 2),
        normal(3, 2),
        normal(2),
    ),
    "Viterbi": (
        """function (P[S, S], E[T, S], F0[S]) -> (F) {
            F[t, j : T, S] = max(F[t - 1, i] + P[i, j]) + E[t, j] init F0[j];
        }""",
        normal(2, 2),
        normal(3, 2),
        normal(2),
    ),
    "edit distance": (
        """function (C[N, M]) -> (D) {
            D[i, j : N, M] = min(min(D[i - 1, j] + 1, D[i, j - 1] + 1), D[i - 1, j - 1] + C[i, j]) init max(i, j) + 1;
        }""",
        positive(3, 3),
    ),
    "soft-DTW": (
        """function (C[N, M], G[]) -> (D) {
            D[i, j : N, M] = C[i, j]
                - G[] * logaddexp(logaddexp(-D[i - 1, j] / G[], -D[i, j - 1] / G[]), -D[i - 1, j - 1] / G[])
                init i + j < -1 ? 0.0 : 20.0;
        }""",
        positive(2, 3),
        np.array(0.7),
    ),
    "backward in time": ("function (A[T], B[T]) -> (H) { H[t : T] = A[t] * H[t + 1] + B[t]; }", normal(4), normal(4)),
    "two reads": (
        """function (A[T], B[T], H0[K]) -> (H) {
            H[t : T] = A[t] * H[t - 1] + B[t] * sin(H[t - 2]) init H0[t + 2];
        }""",
        normal(4),
        normal(4),
        normal(2),
    ),
    "written one later": (
        "function (A[T], B[T]) -> (H) { H[t + 1 : T + 1] = A[t] * H[t] + B[t]; }",
        normal(4),
        normal(4),
    ),
    "fewer points": ("function (A[T], B[T]) -> (H) { H[t : T] = A[t - 1] * H[t - 1] + B[t]; }", normal(4), normal(4)),
    "a window of the past": (
        "function (B[T], W[K], C[]) -> (H) { H[t : T] = B[t] + sum(W[k] * H[t - 1 - k]) init t * C[]; }",
        normal(4),
        normal(2),
        normal(),
    ),
    "aggregated": (
        "function (W[K], C[]) -> (H) { H[t : 4] = logsumexp(W[k] * H[t - 1 - k]) init C[]; }",
        normal(2),
        normal(),
    ),
    "guarded": (
        "function (A[T], X[T]) -> (H) { H[t : T] = A[t] > 0 ? H[t - 1] * A[t] + 1 default X; }",
        normal(5),
        normal(5),
    ),
    "pointers": (
        "function (A[T, D], I[T, D]) -> (H) { H[t, i : T, D] = A[t, i] * H[t - 1, I[t, i]] + A[t, i] init t + i; }",
        normal(3, 2),
        RNG.integers(-1, 3, (3, 2)),
    ),
    "a tree": ("function (A[N], C[]) -> (H) { H[i : N] = A[i] * H[i/2 - 1] init 3 * C[] + i; }", normal(7), normal()),
    "padded by hand": ("function (A[T]) -> (H) { H[t : T] = A[t] * pad(H[t - 1], A[t] * A[t] + 1); }", normal(4)),
    "a product": ("function (A[T]) -> (H) { H[t : T] = A[t] * (1 + prod(A[k] * H[t - 1 - k])), k < 2; }", normal(4)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.one_in(8)
def test_first_and_second_order(case):
    source, *inputs = CASES[case]
    check_gradient(source, *inputs, order=2)


@pytest.mark.parametrize(
    "text",
    [
        "0.5 * sum(W[n, m] * H[t - 1, m]) + W[t, n] init sum(I[n, m])",
        "sin(sum(W[n, m] * H[t - 1, m])) init sum(W[n, m]) + I[n, 0]",
        "W[t, n] * H[t - 1, n] init sum(I[m, n] * t)",
    ],
)
def test_what_init_binds_may_be_called_as_what_it_is_read_at(text):
    source = f"function (W[D, D], I[D, D]) -> (H) {{ H[t, n : D, D] = {text}; }}"
    w, i = normal(2, 2), normal(2, 2)
    check_gradient(source, w, i, order=1)
    f, directions, step = tilec.compile(source), (normal(2, 2), normal(2, 2)), 1e-5
    ends = [f(w + h * directions[0], i + h * directions[1]) for h in (step, -step)]
    np.testing.assert_allclose(f.jvp()(w, i, *directions)[1], (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-6)


def on_the_backend(case):
    source, *inputs = CASES[case]
    tensors = [torch.tensor(a) for a in inputs]
    return tilec.compile(source), [t.requires_grad_() if t.is_floating_point() else t for t in tensors]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.one_in(3)
def test_on_the_backend(case):
    assert torch.autograd.gradcheck(*on_the_backend(case), fast_mode=True)


SECOND = ("linear", "gated", "shuffle", "tanh of a matrix product", "Viterbi", "pointers", "a tree")


@pytest.mark.parametrize("case", slow_but(CASES, SECOND))  # the oracle checks all of them above
@pytest.mark.one_in(5)
def test_second_order_on_the_backend(case):
    assert torch.autograd.gradgradcheck(*on_the_backend(case), fast_mode=True)


def lines(source):
    return [line.strip() for line in show(grad(parse(source))).splitlines()[1:-1]]


def test_the_reversed_recurrence_reads_one_weight_a_step():
    assert lines("function (A[T], B[T]) -> (H) { H[t : T] = A[t] * H[t - 1] + B[t]; }") == [
        "H[t : T] = A[t] * H[t - 1] + B[t];",
        "Weight[t : T] = A[t + 1] * in(B[t + 1]) * in(DH[t + 1]);",
        "GH[t : T] = DH[t] + GH[t + 1] * Weight[t];",
        "GA[t : T] = +(GH[t] * pad(H[t - 1], 0));",
        "DA = as_type(GA, A);",
        "GB[t : T] = +(GH[t]);",
        "DB = as_type(GB, B);",
    ]


def test_linear_recurrences_do_not_compute_the_states_again():
    source = "function (A[T], B[T]) -> (H) { H[t : T] = A[t] * H[t - 1] + B[t]; }"
    assert lines(source)[0].startswith("H[t : T] =")
    assert "H[t : T] =" not in [line[:10] for line in show(grad(parse(source), ["B"])).split("    ")]


def test_the_gate_of_relu_is_a_condition():
    text = lines("function (B[T, D]) -> (H) { H[t, i : T, D] = relu(B[t, i] + H[t - 1, (i + 2) % D]); }")
    assert "GH[t, i : T, D] = DH[t, i] + (Gate[t, i] ? GH[t + 1, (i - 2) % D] : 0);" in text


def test_an_infinite_cotangent_does_not_pass_a_closed_gate():
    function = tilec.compile("function (B[T]) -> (H) { H[t : T] = relu(B[t] + H[t - 1]); }")
    (d,) = (function.grad()(torch.tensor([1.0, -9.0, 2.0]), torch.tensor([1.0, torch.inf, 1.0])),)
    assert d.tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("case", ["an automaton", "elements as places, padded and in branches"])
def test_elements_that_are_places_have_no_gradient(case):
    """They are integers, and a gradient that went through them could not be read back as a text."""
    gradient = tilec.compile(RECURRENCES[case][0]).grad()
    assert tilec.compile(gradient.tile).tile == gradient.tile


def test_the_size_of_a_declared_input_is_a_size():
    text = (
        "function (X[B, M], Y[B, N]) -> (Z) { K = same(shape(X, 1), shape(Y, 1)); Z[b, i : B, K] = X[b, i] + Y[b, i]; }"
    )
    assert tilec.compile(text)(torch.ones(2, 3), torch.ones(2, 3)).shape == (2, 3)
