"""Gradients of a few states of a recurrence: what is written at numbers is written into the reversed recurrence."""

import os
import re

import pytest
import torch

import tilec

STEP = "H[t, n, i : T, N, I] = tanh(B[t, n, i] + sum[j](H[t - 1, n, j] * W[j, i]));"
LINEAR = "function (X[T, N], A[N]) -> (Y) { H[t, n : T, N] = A[n] * H[t - 1, n] + X[t, n]; Y"
CASES = {
    "last state": (
        f"function (B[T, N, I], W[I, I]) -> (Y) {{ {STEP} Y[n, i : N, I] = H[T - 1, n, i]; }}",
        (5, 3, 4),
        (4, 4),
    ),
    "a product of it": (
        f"function (B[T, N, I], W[I, I], V[I, M]) -> (Y) {{ {STEP} Y[n, m : N, M] = +(H[T - 1, n, i] * V[i, m]); }}",
        *((5, 3, 4), (4, 4), (4, 2)),
    ),
    "two states": (f"{LINEAR}[n : N] = H[3, n] * H[T - 1, n]; }}", (6, 4), (4,)),
    "a lane": (f"{LINEAR}[t : T] = H[t, 2]; }}", (6, 4), (4,)),
    "a number": (
        """function (D[N, M]) -> (Y) { E[i, j : N, M] = D[i, j] + min(E[i - 1, j], min(E[i, j - 1], E[i - 1, j - 1]));
        Y[] = E[N - 1, M - 1]; }""",
        (4, 5),
    ),
    "no step": (f"{LINEAR}[n : N] = H[T / 2, n]; }}", (7, 4), (4,)),  # 7/2 is none
    "all states too": (f"{LINEAR}[n : N] = H[T - 1, n] + sum[t](H[t, n] * H[t, n]); }}", (6, 4), (4,)),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", sorted(CASES.keys() - {"a number", "no step"}))  # which have no zeros beside
def test_no_zeros_are_stored(name):
    source, *shapes = CASES[name]
    output = tilec.interpret(source, *map(torch.ones, shapes))
    specs = [*map(tilec.spec, shapes), tilec.spec(tuple(output.shape))]
    text = tilec.compile(source).grad().lower(*specs, backend="triton", target="sm_90").source()
    assert not re.search(r"torch\.(?:full|zeros)\(", text)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where it is set")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::tilec.TileWarning")
@pytest.mark.one_in(5)
def test_gradients(name):
    source, *shapes = CASES[name]
    torch.manual_seed(0)
    given = [torch.rand(s, dtype=torch.float64) for s in shapes]
    found = []
    for backend in ("torch", "triton"):
        x = [t.clone().requires_grad_() for t in given]
        y = tilec.compile(source, backend=backend)(*x)
        found.append((y, *torch.autograd.grad(y, x, torch.ones_like(y) / 3)))
    torch.testing.assert_close(*found)
