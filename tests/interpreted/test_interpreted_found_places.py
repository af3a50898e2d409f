"""Elements at places that the same kernel computes: interpolations, warps, tables."""

import os

import pytest
import torch

import tilec

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

CASES = {  # text, sizes of its inputs of floats from -2 to 8
    "traces that are stacked": (
        """function (D[S, T], X[R, S]) -> (M) {
            I = as_int(floor(X), 64); A = X - I;
            M[r : R] = sum((1 - A[r, s]) * D[s, I[r, s]] + A[r, s] * D[s, I[r, s] + 1]); }""",
        ((5, 7), (9, 5)),
    ),
    "a warp": (
        """function (Im[C, H, W], P[2, H, W]) -> (O) {
            Y[y, x : H, W] = as_int(floor(P[0, y, x]), 32); X[y, x : H, W] = as_int(floor(P[1, y, x]), 32);
            A[y, x : H, W] = P[0, y, x] - Y[y, x]; B[y, x : H, W] = P[1, y, x] - X[y, x];
            O[c, y, x : C, H, W] = (1 - A[y, x]) * (1 - B[y, x]) * pad(Im[c, Y[y, x], X[y, x]], 0)
                + A[y, x] * B[y, x] * pad(Im[c, Y[y, x] + 1, X[y, x] + 1], 2); }""",
        ((2, 6, 7), (2, 6, 7)),
    ),
    "a table, then a softmax": (
        """function (X[N, D], T[K, D]) -> (P) {
            I = min(max(as_int(floor(X), 64), 0), K - 1);
            L[n, d : N, D] = X[n, d] * T[I[n, d], d] + T[clamp(I[n, d] + 1, 0, K - 1), d];
            P = builtin_softmax(L, N, D); }""",
        ((9, 5), (4, 5)),
    ),
    "places that are returned": (
        """function (X[N], T[K]) -> (I, Y) {
            I = as_int(round(X), 8);
            Y[n : N] = cond(I[n] % 2 == 0, X[n], pad(T[I[n]], -1)); }""",
        ((40,), (5,)),
    ),
    "places of places": (
        """function (X[N, D], T[K], U[K]) -> (Y) {
            I = min(max(as_int(floor(X), 64), 0), K - 1);
            J[n, d : N, D] = as_int(abs(T[I[n, d]]) * 2, 64);
            Y[n : N] = max(X[n, d] * pad(U[J[n, d]], 3)); }""",
        ((6, 50), (5,), (5,)),
    ),
    "an axis of one element": (
        """function (X[N, D], T[K]) -> (Y) {
            I[a, d : 1, D] = min(max(as_int(floor(X[a, d]), 64), 0), K - 1);
            Y[a, d : 1, D] = T[I[a, d]] + pad(T[I[a, d] + 2], 0.5); }""",
        ((1, 50), (5,)),
    ),
}  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    source, shapes = CASES[name]
    found = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        g = torch.Generator().manual_seed(0)
        leaves = [(torch.rand(s, generator=g) * 10 - 2).to(dtype).requires_grad_() for s in shapes]
        with torch.set_grad_enabled(name == "traces that are stacked"):
            values = tilec.compile(source, backend=backend)(*leaves)
        values = [v for v in (values if isinstance(values, tuple) else (values,)) if v.is_floating_point()]
        cotangents = [torch.rand(v.shape, generator=g).to(dtype) for v in values]
        found.append([*values, *(torch.autograd.grad(values, leaves, cotangents) if values[0].requires_grad else ())])
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


def test_one_kernel() -> None:
    """Places are not stored."""
    for name, shapes in (
        ("traces that are stacked", ((128, 2048), (65536, 128))),
        ("a warp", ((8, 512, 512), (2, 512, 512))),
    ):
        lowered = tilec.compile(CASES[name][0]).lower(*map(tilec.spec, shapes), target="sm_90")
        assert len(lowered.kernels) == 1, name
