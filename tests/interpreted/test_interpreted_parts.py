"""Gradients by tensors that are read at numbers and a step apart: parts that are sums."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.fusion import numbered_parts

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

LINES = """function (X[B, 2, N, D], F[N]) -> (O) {
    A[b, c, n, d] = X[b, c, n, d] * X[b, c, n, d];
    U[b, n, d] = A[b, 0, n, d] - F[n] * A[b, 1, n, d];
    O[b, n, d] = U[b, n, d] * rsqrt(mean(U[b, n, e] * U[b, n, e]) + 0.01); }"""
PARTS = {  # text, shapes
    "overlap of intervals": (
        """function (A[N, 2], B[M, 2]) -> (O) {
            O[n, m : N, M] = max(min(A[n, 1], B[m, 1]) - max(A[n, 0], B[m, 0]), 0); }""",
        ((33, 2), (20, 2)),
    ),
    "quadratic forms": (
        """function (A[B, N, 2], Q[B, N, 3], X[B, M, 2]) -> (O) {
            O[b, n, m : B, N, M] = exp(-(Q[b, n, 0] * (X[b, m, 0] - A[b, n, 0]) * (X[b, m, 0] - A[b, n, 0])
                + Q[b, n, 1] * (X[b, m, 1] - A[b, n, 1]) * (X[b, m, 1] - A[b, n, 1]) + Q[b, n, 2] * X[b, m, 0])); }""",
        ((2, 9, 2), (2, 9, 3), (2, 17, 2)),
    ),
    "one number of a row, one of a column": (
        "function (A[2, N], B[M, 3]) -> (O) { O[n, m : N, M] = A[1, n] * B[m, 2] - A[1, n] * A[0, n] * B[m, 0]; }",
        ((2, 12), (9, 3)),
    ),
    "coefficients by number": (
        """function (X[N, D], C[3], B[2, 2]) -> (O) { O[n, d : N, D] = C[0] * X[n, d] + C[2] * X[n, d] * X[n, d]
            + B[1, 0] * sin(X[n, d]) + B[0, 1] * pad(X[n, d - 1], 0); }""",
        ((9, 40), (3,), (2, 2)),
    ),
    "weighted covariances of few channels": (
        """function (X[B, C, F, T], W[B, T, F]) -> (S) {
            S[b, f, c, d : B, F, C, C] = sum(W[b, t, f] * X[b, c, f, t] * X[b, d, f, t]); }""",
        ((2, 5, 3, 20), (2, 20, 3)),
    ),
    "differences of two maps, normalised": (LINES, ((2, 2, 3, 40), (3,))),
    "wavelet": (
        """function (X[C, H, W]) -> (A, D) {
            A[c, y, x : C, H/2, W] = X[c, 2*y, x] + X[c, 2*y + 1, x];
            D[c, k, y, x : C, 2, H/2, W] = k == 0 ? X[c, 2*y, x] * X[c, 2*y + 1, x] : X[c, 2*y, x]; }""",
        ((3, 8, 40),),
    ),
}  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", PARTS)
def test_gradients(name: str) -> None:
    source, shapes = PARTS[name]
    found = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        g = torch.Generator().manual_seed(0)
        leaves = [torch.rand(s, generator=g).to(dtype).requires_grad_() for s in shapes]
        values = tilec.compile(source, backend=backend)(*leaves)
        values = values if isinstance(values, tuple) else (values,)
        found.append(torch.autograd.grad(values, leaves, [torch.rand(v.shape, generator=g).to(dtype) for v in values]))
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


def test_whole_lines_join_the_group_that_they_come_from() -> None:
    f = tilec.compile(LINES, backend="triton")
    specs = tilec.spec((8, 2, 512, 256)), tilec.spec((512,)), tilec.spec((8, 512, 256))
    made = f.grad().lower(*specs, target="sm_90")
    assert "fill" not in made.source() and "zeros" not in made.source()
    assert len(made.kernels) == 4 and not any(k.name.startswith("DA") for k in made.kernels)


FLUX = """function (A[H, W], K[H, W]) -> (Y) {
    F[y, x : H, W - 1] = (K[y, x] + K[y, x + 1]) / 2 * (A[y, x + 1] - A[y, x]);
    G[y, x : H - 1, W] = (K[y, x] + K[y + 1, x]) / 2 * (A[y + 1, x] - A[y, x]);
    Y[y, x : H, W] = A[y, x] + pad(F[y, x], 0) - pad(F[y, x - 1], 0) + pad(G[y, x], 2) - pad(G[y - 1, x], 2);
}"""


def test_fluxes_are_computed_where_they_are_read() -> None:
    """Also beyond their ends, where what is padded is not 0, and where what they are made of is infinite."""
    f = tilec.compile(FLUX, backend="triton")
    g = torch.Generator().manual_seed(0)
    a, k = torch.rand(9, 70, generator=g), torch.rand(9, 70, generator=g)
    k[3, 69] = torch.inf
    assert len(f.lower(tilec.spec((4096, 4096)), tilec.spec((4096, 4096)), target="sm_90").kernels) == 1
    wanted = tilec.compile(FLUX, backend="torch")(a.double(), k.double())
    torch.testing.assert_close(f(a, k).double(), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


COLUMNS = {  # text; whether columns are sums of their own
    "colours": (
        """L[t, p, g : T, P, G] = +(log(1 - A[t, p, k])), g - k - 1 < G;
            Y[t, p, c] = +(exp(L[t, p, g]) * A[t, p, g] * C[t, g, c]);""",
        True,
    ),
    "with what follows": ("Y[t, p, c] = sum(tanh(A[t, p, g]) * C[t, g, c]) + c;", True),
    "a product": ("Y[t, p, c] = sum(A[t, p, g] * C[t, g, c]);", False),
    "memory across": ("Y[t, g, c] = sum(exp(A[t, p, g]) * C[t, p, c]);", False),
}


@pytest.mark.parametrize("shape", [(2, 5, 9, 3), (1, 3, 1, 2), (2, 3, 0, 4)])
@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.one_in(4)
def test_few_columns_of_a_sum(name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbered_parts, "LEAST_APART", 1)
    body, apart = COLUMNS[name]
    summed = "P" if name == "memory across" else "G"
    source, (t, p, g, c) = f"function (A[T, P, G], C[T, {summed}, F]) -> (Y) {{ {body} }}", shape
    generator = torch.Generator().manual_seed(0)
    given = torch.rand(t, p, g, generator=generator), torch.rand(t, p if name == "memory across" else g, c)
    found = tilec.compile(source, backend="triton")(*given)
    wanted = tilec.compile(source, backend="torch")(*(x.double() for x in given))
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    names = [k.name for k in tilec.compile(source, backend="triton").lower(*given).kernels]
    assert any("_column" in n for n in names) == apart or g < 2


SLICES = {  # text, shapes; whether the function and its gradient have sums of slices
    "three thirds of a matrix": (
        """function (X[N, D], W[D, H]) -> (O) {
            Q[n, h : N, H/3] = sum(X[n, d] * W[d, h]);
            K[n, h : N, H/3] = sum(X[n, d] * W[d, h + H/3]);
            V[n, h : N, H/3] = sum(X[n, d] * W[d, h + 2*H/3]);
            O = Q * tanh(K) + V; }""",
        ((19, 6), (6, 15)),
        (False, True),
    ),
    "two inputs": (
        """function (X[N, D], Y[N, D], W[H, E]) -> (O) {
            O[n, h : N, H] = sum(X[n, d] * W[h, d]) + sum(Y[n, d] * W[h, d + D]); }""",
        ((19, 6), (19, 6), (5, 12)),
        (False, True),
    ),
    "rows of a result": (
        "function (X[N, D], Y[N, H]) -> (O) { O[d + 9, h + 6 : 20, 13] = sum(X[n, d] * Y[n, h]); }",
        ((19, 6), (19, 5)),
        (True, False),
    ),
    "more than half": (
        "function (X[N, D], Y[N, H]) -> (O) { O[d + 9, h : 20, H] = sum(X[n, d] * Y[n, h]); }",
        ((19, 11), (19, 5)),
        (False, False),
    ),
    "what is elsewhere": (
        "function (X[N, D], Y[N, H], B[M, H]) -> (O) { O[d + 9, h : M, H] = +(X[n, d] * Y[n, h]) default B; }",
        ((19, 6), (19, 5), (20, 5)),
        (False, False),
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", SLICES)
def test_products_in_slices_are_products_of_the_slices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbered_parts, "SLICE_TERMS", 2)
    monkeypatch.setattr(numbered_parts, "SLICE_PRODUCTS", 1)
    source, shapes, apart = SLICES[name]
    g = torch.Generator().manual_seed(0)
    given = [torch.randn(s, generator=g).requires_grad_() for s in shapes]
    wide = [x.detach().double().requires_grad_() for x in given]
    f = tilec.compile(source, backend="triton")
    found, wanted = f(*given), tilec.compile(source, backend="torch")(*wide)
    d = torch.randn(found.shape, generator=g)
    gradients = torch.autograd.grad(found, given, d), torch.autograd.grad(wanted, wide, d.double())
    for got, exact in zip((found, *gradients[0]), (wanted, *gradients[1]), strict=True):
        torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-5)
    lowered = f.lower(*given), f.grad().lower(*given, d)
    assert tuple("_part[" in str(made.stages) for made in lowered) == apart
