"""Sums at few places that are data: the gradients of resizes by any factor, and scatters of few points."""

import os

import pytest
import torch
import torch.nn.functional as F

import tilec

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

PLACES = """
    Fy[y : {p}] = max((y + 0.5) * H / {p} - 0.5, 0.0); Fx[x : {q}] = max((x + 0.5) * W / {q} - 0.5, 0.0);
    Y0[y] = as_int(floor(Fy[y]), 32); X0[x] = as_int(floor(Fx[x]), 32);
    Y1[y] = min(Y0[y] + 1, as_int(H - 1, 32)); X1[x] = min(X0[x] + 1, as_int(W - 1, 32));
    A[y] = Fy[y] - Y0[y]; B[x] = Fx[x] - X0[x];
"""
IN_TWO_STEPS = (
    """function (I[N, C, H, W]) -> (O) {{"""
    + PLACES
    + """
    V[n, c, y, x : N, C, {p}, W] = (1 - A[y]) * I[n, c, Y0[y], x] + A[y] * I[n, c, min(Y0[y] + 1, H - 1), x];
    O[n, c, y, x : N, C, {p}, {q}] = (1 - B[x]) * V[n, c, y, X0[x]] + B[x] * V[n, c, y, min(X0[x] + 1, W - 1)];
}}"""
)
FOUR_CORNERS = (
    """function (I[N, C, H, W]) -> (O) {{"""
    + PLACES
    + """
    O[n, c, y, x : N, C, {p}, {q}] = (1 - A[y]) * ((1 - B[x]) * I[n, c, Y0[y], X0[x]] + B[x] * I[n, c, Y0[y], X1[x]])
        + A[y] * ((1 - B[x]) * I[n, c, Y1[y], X0[x]] + B[x] * I[n, c, Y1[y], X1[x]]);
}}"""
)
NEAREST = """function (I[N, C, H, W]) -> (O) {{
    A[y : {p}] = as_int(floor(as_float(y, 32) * H / {p}), 32);
    B[x : {q}] = as_int(floor(as_float(x, 32) * W / {q}), 32);
    O[n, c, y, x : N, C, {p}, {q}] = I[n, c, A[y], B[x]];
}}"""
BICUBIC = """function (I[N, C, H, W]) -> (O) {{
    Fy[y : {p}] = (y + 0.5) * H / {p} - 0.5; Y0[y] = as_int(floor(Fy[y]), 32);
    D[y, j : {p}, 4] = abs(Fy[y] - Y0[y] - j + 1);
    U[y, j] = D[y, j] < 1 ? (1.25 * D[y, j] - 2.25) * D[y, j] * D[y, j] + 1
        : ((-0.75 * D[y, j] + 3.75) * D[y, j] - 6) * D[y, j] + 3;
    Fx[x : {q}] = (x + 0.5) * W / {q} - 0.5; X0[x] = as_int(floor(Fx[x]), 32);
    E[x, i : {q}, 4] = abs(Fx[x] - X0[x] - i + 1);
    T[x, i] = E[x, i] < 1 ? (1.25 * E[x, i] - 2.25) * E[x, i] * E[x, i] + 1
        : ((-0.75 * E[x, i] + 3.75) * E[x, i] - 6) * E[x, i] + 3;
    V[n, c, y, x : N, C, {p}, W] = +(U[y, j] * I[n, c, clamp(Y0[y] + j - 1, 0, H - 1), x]);
    O[n, c, y, x : N, C, {p}, {q}] = +(T[x, i] * V[n, c, y, clamp(X0[x] + i - 1, 0, W - 1)]);
}}"""
RESIZES = {  # text, how torch calls it
    "in two steps": (IN_TWO_STEPS, "bilinear"),
    "four corners": (FOUR_CORNERS, "bilinear"),
    "nearest": (NEAREST, "nearest"),
    "bicubic": (BICUBIC, "bicubic"),
}
SHAPES = {"greater": ((2, 3, 17, 19), (40, 45)), "less": ((1, 5, 37, 40), (16, 23)), "one": ((1, 17, 1, 16), (21, 33))}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("name", RESIZES)
@pytest.mark.covering
def test_gradients_of_resizes(name: str, dtype: torch.dtype, shape: str) -> None:
    text, mode = RESIZES[name]
    sizes, (p, q) = SHAPES[shape]
    f = tilec.compile(text.format(p=p, q=q), backend="triton")
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(sizes, generator=generator).to(dtype).requires_grad_()
    d = torch.randn((*sizes[:2], p, q), generator=generator).to(dtype)
    (found,) = torch.autograd.grad(f(image), image, d)
    wide = image.detach().double().requires_grad_()
    (exact,) = torch.autograd.grad(F.interpolate(wide, size=(p, q), mode=mode), wide, d.double())
    tolerance = 2e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance * exact.abs().max().item())


ROWS = """function (X[N, M], P[M], Q[M], U[M], Z[V]) -> (Y) {
    A[n, P[m] : N, V] = +(X[n, m] * U[m]); B[n, max(Q[m] - 2, 0) : N, V] = +(X[n, m] * U[m] * 2);
    Y = A + B;
}"""


@pytest.mark.parametrize("given", ("plain", "infinite", "outside"))
def test_places_in_data(given: str) -> None:
    """An infinity goes to its own places alone; a point beyond the ends goes nowhere."""
    generator = torch.Generator().manual_seed(1)
    x, u = torch.randn(20, 45, generator=generator), torch.rand(45, generator=generator) + 0.5
    p, q = torch.randint(0, 33, (45,), generator=generator), torch.randint(0, 33, (45,), generator=generator)
    if given == "infinite":
        x[3, 7], x[4, 8] = torch.inf, torch.nan
    if given == "outside":
        p[:5], q[5:9] = torch.tensor([-1, 33, 2**40, -(2**62), 100]), torch.tensor([-7, 60, 2**62, 35])
    f = tilec.compile(ROWS, backend="triton")
    found = f(x, p, q, u, torch.zeros(33))
    wide, r = x.double() * u.double(), (q - 2).clamp(min=0)
    exact = torch.zeros(20, 33, dtype=torch.float64)
    for places, value in ((p, wide), (r, 2 * wide)):
        inside = (places >= 0) & (places < 33)
        for m in inside.nonzero().flatten().tolist():
            exact[:, places[m]] += value[:, m]
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5, equal_nan=True)


KNOWN_BY_ROWS = {  # what is added, and what that is of x and u
    "a test": ("X[n, m] > 0 ? X[n, m] * U[m]", lambda x, u: torch.where(x > 0, x * u, 0)),
    "a weight": ("X[n, m] * (U[m] + X[n, m])", lambda x, u: x * (u + x)),
}


@pytest.mark.parametrize("name", KNOWN_BY_ROWS)
def test_terms_that_know_rows(name: str) -> None:
    term, value = KNOWN_BY_ROWS[name]
    f = tilec.compile(
        f"function (X[N, M], P[M], U[M], Z[V]) -> (Y) {{ Y[n, P[m] : N, V] = +({term}); }}", backend="triton"
    )
    generator = torch.Generator().manual_seed(2)
    x, u = torch.randn(18, 20, generator=generator), torch.rand(20, generator=generator)
    p = torch.randint(0, 17, (20,), generator=generator)
    exact = torch.zeros(18, 17, dtype=torch.float64).index_add_(1, p, value(x.double(), u.double()))
    torch.testing.assert_close(f(x, p, u, torch.zeros(17)).double(), exact, rtol=1e-5, atol=1e-5)
