"""What `source()` prints is what runs: pasted into a file, it gives the call's own bits, in each family."""

import os

import pytest
import torch
from support.pasted import pasted

import tilec

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

# family -> source, shapes, the inputs whose elements are places below this
PROGRAMS = {
    "map": ("function (A[N, M], B[M]) -> (C) { C[i, j] = exp(A[i, j]) * B[j]; }", ((5, 7), (7,)), {}),
    "reduction": ("function (A[N, M]) -> (C) { C[i] = *(A[i, j] + 1.5); }", ((3, 40),), {}),
    "product": (
        "function (A[N, K], B[K, M]) -> (C) { C[i, j] = relu(sum(A[i, k] * B[k, j])); }",
        ((20, 33), (33, 17)),
        {},
    ),
    "convolution": (
        "function (I[N, H, C], K[3, C, D]) -> (O) { O[n, h, d : N, H/2, D] = +(I[n, 2*h + r - 1, c] * K[r, c, d]); }",
        ((2, 12, 16), (3, 16, 16)),
        {},
    ),
    "exponentials": (
        "function (A[N, K], B[K, M]) -> (C) { C[i, j] = logsumexp(A[i, k] + B[k, j]); }",
        ((17, 20), (20, 16)),
        {},
    ),
    "rows": (
        "function (X[N, M]) -> (Y) { A[i] = mean(X[i, j]); Y[i, j] = X[i, j] / (1 + A[i] * A[i]); }",
        ((4, 37),),
        {},
    ),
    "scan": ("function (X[N, B]) -> (O) { O[i, b : N, B] = +(X[k, b]), i - k < N; }", ((40, 3),), {}),
    "scatter": ("function (X[N, D], P[N]) -> (Y) { Y[P[i], d : 6, D] = +(X[i, d]); }", ((30, 5), (30,)), {1: 6}),
    "recurrence": (
        "function (B[T, D]) -> (H) { H[t, i : T, D] = relu(B[t, i] + H[t - 1, (i - 1) % D]); }",
        ((9, 6),),
        {},
    ),
    "coupled recurrence": (
        "function (W[D, D], B[T, D]) -> (H) { H[t, i : T, D] = B[t, i] + sum(W[i, j] * H[t - 1, j]); }",
        ((5, 5), (6, 5)),
        {},
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.one_in(3)
def test_the_printed_text_is_what_runs(name, tmp_path):
    source, shapes, places = PROGRAMS[name]
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(s, generator=generator) / 2 for s in shapes]
    for k, count in places.items():
        inputs[k] = torch.randint(count, shapes[k], generator=generator)
    f = tilec.compile(source, backend="triton")
    (printed,) = pasted(f.lower(*inputs), tmp_path / "forward.py")(*inputs)
    value = f(*inputs)
    assert torch.equal(printed, value)
    g = f.grad()
    given = [*inputs, torch.randn(value.shape, generator=generator)]
    wanted = g(*given)
    printed = pasted(g.lower(*given), tmp_path / "gradient.py")(*given)
    assert all(map(torch.equal, printed, wanted if isinstance(wanted, tuple) else (wanted,)))
