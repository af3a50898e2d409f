"""Recurrences whose states a gradient computes again, and whether it does so in chunks of time."""

from __future__ import annotations

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tilec.torch_op import state

SHUFFLING = """
function (B[T, N, D], H0[N, D]) -> (L) {
    H[t, n, i : T, N, D] = relu(B[t, n, i] + H[t-1, n, (i-1) % D]) init H0[n, i];
    L[n] = sum(H[t, n, i] * H[t, n, i]);
}
"""
TANH = """
function (X[T, N, D], W[D, D], U[D, D], H0[N, D]) -> (Y) {
    H[t, n, i : T, N, D] = tanh(sum(X[t, n, j] * U[i, j]) + sum(W[i, j] * H[t-1, n, j])) init H0[n, i];
    Y[n, i] = H[T-1, n, i];
}
"""
FORWARD = """
function (P[S, S], E[T, S], F0[S]) -> (Z) {
    F[t, j : T, S] = logsumexp(F[t-1, i] + P[i, j]) + E[t, j] init F0[j];
    Z = logsumexp(F[T-1, j]);
}
"""
AVERAGE = """
function (X[T, N], A[N]) -> (L) {
    H[t, n : T, N] = A[n] * H[t-1, n] + (1 - A[n]) * X[t, n];
    L = sum(H[t, n] * H[t, n] * X[t, n]);
}
"""

# name -> source, shapes of the inputs for T steps
CHUNKED = {
    "a shuffling network": (SHUFFLING, lambda T: [(T, 2, 3), (2, 3)]),
    "a tanh network": (TANH, lambda T: [(T, 2, 3), (3, 3), (3, 3), (2, 3)]),
    "a Markov model": (FORWARD, lambda T: [(3, 3), (T, 3), (3,)]),
    "a moving average": (AVERAGE, lambda T: [(T, 2), (2,)]),
    "time second": (
        "function (X[N, T, D], W[D, D]) -> (L) { H[n, t, i : N, T, D] = tanh(X[n, t, i] + sum(W[i, j]*H[n, t-1, j])); L = logsumexp(H[n, t, i]); }",  # noqa: E501
        lambda T: [(2, T, 3), (3, 3)],
    ),
    "three steps back, shifted": (
        "function (X[T, N], A[N], H0[3, N]) -> (L) { H[t, n : T, N] = A[n]*H[t-1, n]*H[t-3, n] + sin(X[t, n]) init H0[t+3, n]; L = sum(H[t, n]*X[t+1, n]); }",  # noqa: E501
        lambda T: [(T, 2), (2,), (3, 2)],
    ),
    "down in time": (
        "function (X[T, N], A[N], H0[N]) -> (L) { H[t, n : T, N] = tanh(A[n]*H[t+1, n] + X[t-2, n]) init H0[n]; L = sum(H[t, n]*X[t, n]); }",  # noqa: E501
        lambda T: [(T, 2), (2,), (2,)],
    ),
    "two layers": (
        "function (X[T, N], A[N], H0[N]) -> (L) { H[t, n : T, N] = tanh(A[n]*H[t-1, n] + X[t+1, n]) init H0[n]; G[t, n : T, N] = tanh(H[t, n]*G[t-1, n] + H[t+2, n]*X[t, n]) init H0[n]; L = sum(G[t, n]*H[t-1, n]); }",  # noqa: E501
        lambda T: [(T, 2), (2,), (2,)],
    ),
    "one layer is an output": (
        "function (X[T, N], A[N]) -> (H, L) { H[t, n : T, N] = tanh(A[n]*H[t-1, n] + X[t, n]); G[t, n, m : T, N, N] = tanh(G[t-1, n, m]*A[m] + H[t+1, n]); L = sum(G[t, n, m]*H[t, n]); }",  # noqa: E501
        lambda T: [(T, 2), (2,)],
    ),
    "time as a number": (
        "function (X[T, N], A[N]) -> (L) { H[t, n : T, N] = tanh(A[n]*H[t-1, n] + X[t, n]*sin(t/3.0)); L[n] = sum(H[t, n]*t); }",  # noqa: E501
        lambda T: [(T, 2), (2,)],
    ),
    "dropout": (
        "function (X[T, N], A[N]) -> (L) { H[t, n : T, N] = tanh(A[n]*H[t-1, n] + (rand(7, t*N+n) < 0.7 ? X[t, n] : 0)); L = sum(H[t, n]*H[t, n]); }",  # noqa: E501
        lambda T: [(T, 2), (2,)],
    ),
    "lengths": (
        "function (X[T, N], A[N], W[N]) -> (L) { H[t, n : T, N] = t < 9*n+7 ? tanh(A[n]*H[t-1, n] + X[t, n]) : H[t-1, n]; L = sum(W[n]*H[T-1, n]); }",  # noqa: E501
        lambda T: [(T, 3), (3,), (3,)],
    ),
    "states beside others": (
        "function (X[T, N]) -> (L) { H[t, n : T, N] = tanh(X[t, n] + H[t-1, n-1]) init sin(X[t+1, n+1]); L = sum(H[t, n]*H[t, n]); }",  # noqa: E501
        lambda T: [(T, 4)],
    ),
    "some times alone": (
        "function (X[T, N], A[N], W[N]) -> (L) { H[t, n : T, N] = tanh(A[n]*H[t-1, n] + X[t, n]), t - 9 < 17; L = max(W[n]*H[t, n]); }",  # noqa: E501
        lambda T: [(T, 3), (3,), (3,)],
    ),
    "a variance over time": (
        "function (X[T, N], A[N]) -> (L) { H[t, n : T, N] = tanh(A[n]*H[t-1, n] + X[t, n]); M[n] = mean(H[t, n]); L = sum((H[t, n]-M[n])*(H[t, n]-M[n])*H[t, n]); }",  # noqa: E501
        lambda T: [(T, 2), (2,)],
    ),
    "several readers": (
        "function (X[T, N, D], W[D, D], V[D]) -> (Y, L) { H[t, n, i : T, N, D] = tanh(X[t, n, i] + sum(W[i, j]*H[t-1, n, j])); Y[t, n] = +(V[i]*H[t, n, i]); L = sum(H[T-1, n, i]*H[0, n, i]*H[5, n, i]*Y[t, n]); }",  # noqa: E501
        lambda T: [(T, 2, 3), (3, 3), (3,)],
    ),
    "a random field": (
        "function (X[T, K], W[K, S], P[S, S], Y[T], P0[S]) -> (Z) { E[t, j] = +(X[t, k]*W[k, j]); F[t, j : T, S] = logsumexp(F[t-1, i] + P[i, j]) + E[t, j] init P0[j]; A = logsumexp(F[T-1, j]); B = sum(E[t, Y[t]]); C = sum(P[Y[t-1], Y[t]]); Z = A - B - C; }",  # noqa: E501
        lambda T: [(T, 4), (4, 3), (3, 3), ("int64", T), (3,)],
    ),
    "an embedding": (
        "function (E[V, D], W[D, D], Y[T]) -> (L) { H[t, i : T, D] = tanh(E[Y[t], i] + sum(W[i, j]*H[t-1, j])); L[i] = sum(H[t, i]*E[Y[t+1], i]); }",  # noqa: E501
        lambda T: [(5, 3), (3, 3), ("int64", T)],
    ),
    "an output of fewer times": (
        "function (X[T, N], A[N]) -> (Y, L) { H[t, n : T, N] = tanh(A[n]*H[t-1, n] + X[t, n]); Y[t, n : 8, N] = H[t+1, n] * A[n]; L = sum(Y[t, n]*H[t+9, n]); }",  # noqa: E501
        lambda T: [(T, 2), (2,)],
    ),
    "an output of more times": (
        "function (X[T, N], A[N]) -> (Y, L) { H[t, n : T, N] = tanh(A[n]*H[t-1, n] + X[t, n]); Y[t : T+3] = H[t-2, 1] * A[0]; L = sum(Y[t+2]*H[t, n]); }",  # noqa: E501
        lambda T: [(T, 2), (2,)],
    ),
    "both ways": (
        "function (X[T, N], A[N]) -> (L) { H[t, n : T, N] = tanh(A[n]*H[t-1, n] + X[t, n]); G[t, n : T, N] = tanh(A[n]*G[t+1, n] + X[t, n]); L = sum(H[t, n]*G[t, n]); }",  # noqa: E501
        lambda T: [(T, 2), (2,)],
    ),
    "after a mean over time": (
        "function (X[T, N], A[N]) -> (L) { H[t, n : T, N] = tanh(A[n]*H[t-1, n] + X[t, n]); M[n] = mean(H[t, n]); G[t, n : T, N] = tanh(G[t-1, n]*A[n] + H[t, n] - M[n]); L = sum(G[t, n]*H[t, n]); }",  # noqa: E501
        lambda T: [(T, 2), (2,)],
    ),
    "two kinds of states": (
        "function (X[T, D], U[2, D], W[2, D, D]) -> (L) { S[t, c, i : T, 2, D] = c == 0 ? sigmoid(U[0, i]*X[t, i] + sum(W[0, i, j]*S[t-1, 1, j]))*S[t-1, 0, i] + X[t, i] : tanh(S[t-1, 0, i]*U[1, i] + sum(W[1, i, j]*S[t-1, 1, j])); L[i] = sum(S[t, 1, i]*S[t, 0, i]); }",  # noqa: E501
        lambda T: [(T, 2), (2, 2), (2, 2, 2)],
    ),
}  # fmt: skip

# programs that do not fall into chunks
PLAIN = {
    "a wavefront": (
        "function (A[T, M]) -> (L) { D[i, j : T, M] = A[i, j] + min(D[i-1, j], min(D[i, j-1], D[i-1, j-1])); L = D[T-1, M-1]; }",  # noqa: E501
        lambda T: [(T, 4)],
    ),
    "gradients of a mean that are larger than all results": (
        "function (X[T], A[N]) -> (L) { H[t, n : T, N] = tanh(A[n]*H[t-1, n] + X[t]); M[n] = mean(H[t, n]); G[t, n : T, N] = tanh(G[t-1, n]*A[n] + H[t, n]*H[t, n] - M[n]); L = sum(G[t, n]*H[t, n]); }",  # noqa: E501
        lambda T: [(T,), (2,)],
    ),
    "every other time": (
        "function (X[T2, N], A[N]) -> (L) { H[t, n : T2/2, N] = tanh(A[n]*H[t-1, n] + X[2*t, n]); L = sum(H[t, n]*A[n]); }",  # noqa: E501
        lambda T: [(2 * T, 2), (2,)],
    ),
}  # fmt: skip


def inputs_for(shapes, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Tensors of these shapes, of numbers below 3 where `int64` stands before the shape."""
    random = torch.Generator().manual_seed(0)

    def made(shape) -> torch.Tensor:
        if shape[:1] == ("int64",):
            return torch.randint(0, 3, shape[1:], generator=random)
        return (torch.rand(shape, dtype=torch.float64, generator=random) - 0.3).to(dtype).requires_grad_()

    return list(map(made, shapes))


def gradients(function, inputs) -> list[torch.Tensor]:
    """Values, gradients of a recorded call, and those of the gradient called by hand."""
    values = function(*inputs)
    values = values if isinstance(values, tuple) else (values,)
    d = [torch.linspace(0.5, 1.5, v.numel(), dtype=torch.float64).reshape(v.shape).to(v) for v in values]
    recorded = torch.autograd.grad(values, [x for x in inputs if x.requires_grad], d)
    with torch.no_grad():
        called = function.grad()(*inputs, *d)
    called = called if isinstance(called, tuple) else (called,)
    return [*values, *recorded, *(g for g in called if g is not None)]


def kept_states(function, *args) -> list[str]:
    """What a call keeps of states between chunks."""
    return [s.name for s in function.saved(*args) if s.name.endswith("_kept")]


class Peak(TorchDispatchMode):
    """The most bytes of tensors that torch made and that lived at once; those of `known` tensors do not count. A call
    of a function is done then, although there is a mode: as one operator it would hide what it allocates."""

    def __init__(self, known):
        super().__init__()
        self.now = self.most = 0
        self.seen = {t.untyped_storage().data_ptr(): 0 for t in known}

    def __enter__(self):
        self.watched, state.watched = state.watched, lambda: False
        return super().__enter__()

    def __exit__(self, *error):
        state.watched = self.watched
        return super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for t in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(t, torch.Tensor):
                self._count(t.untyped_storage())
        return result

    def _count(self, storage) -> None:
        place, size = storage.data_ptr(), storage.nbytes()
        if place and place not in self.seen:
            self.seen[place] = size
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._gone, place)

    def _gone(self, place: int) -> None:
        self.now -= self.seen.pop(place, 0)
