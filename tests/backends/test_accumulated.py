"""Sums filled in place, outputs with digits for indices, triangles, products of all others, derivatives in one pass."""

import math

import pytest
import torch
from support.agreement import agree, run, tensors

import tilec

KRON = "function (A[I,J], B[K,L]) -> (Y) { Y[K*i + k, L*j + l : I*K, J*L] = A[i,j] * B[k,l]; }"
REPEATED = "function (X[N,C]) -> (Y) { Y[3*n + k, c : 3*N, C] = X[n,c], k < 3; }"
OTHERS = "function (X[N,M]) -> (Y) { Y[i,j : N,M] = *(k != j ? X[i,k]); }"
SUM = """function (X[N,M], Z[N,M], T[N]) -> (Y) {
    A[i, T[i] : N,M] = +(Z[i,i]); B[i,j : N,M] = X[i,j] > 0 ? exp(X[i,j]) : 0.5; C[i,j : N,M] = Z[i,j-1];
    D[i,j] = A[i,j] + B[i,j]; Y[i,j] = D[i,j] + 2 * X[i,j] + C[i,j]; }"""
CORNERS = (
    """function (X[N,M]) -> (Y) { A[i,j : N,M] = X[2*i,j]; B[2*i+1,j : N,M] = +(X[i,j]); Y[i,j] = B[i,j] + A[i,j]; }"""
)
TRIANGLES = ["i >= j", "j < i - 1", "j - i > 2", "2 + i <= j"]
GELU, SILU = torch.nn.functional.gelu, torch.nn.functional.silu
PRODUCTS = {
    "Y = gelu(X) * U": lambda x, u: GELU(x) * u,
    "Y = gelu(X + U) * X": lambda x, u: GELU(x + u) * x,
    "Y[i] = sum(silu(X[i,j]) * U[0,j])": lambda x, u: (SILU(x) * u[0]).sum(1),
    "Y = silu(X * U)": lambda x, u: SILU(x * u),
}
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int32, torch.int64]


def tolerance(dtype: torch.dtype) -> float:
    return {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 2e-2)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("sizes", [((6, 12), (12, 12)), ((1, 3), (4, 1)), ((0, 2), (2, 2))])
def test_numbers_with_digits(sizes, dtype: torch.dtype) -> None:
    scatters = not all(n for s in sizes for n in s)
    (y,) = agree(KRON, *tensors(*sizes, dtype=dtype), tolerance=tolerance(dtype))
    text = run(KRON, tensors(*sizes, dtype=dtype))[1]
    assert scatters or "scatter_" not in text and y.is_contiguous()
    agree(REPEATED, *tensors((5, 9), dtype=dtype), tolerance=tolerance(dtype), contains="Y_apart[n, k, c : 5, 3, 9]")


@pytest.mark.parametrize("condition", [*TRIANGLES, "i + j > 4", "i > 2 * j"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.one_in(5)
def test_triangles(condition: str, dtype: torch.dtype) -> None:
    """Of values that are not finite on the other side; with the test in a branch, its other branch, and a guard."""
    x = tensors((3, 7, 9), dtype=dtype)[0]
    if dtype.is_floating_point:
        x[:, 0, -1], x[:, -1, 0] = math.inf, math.nan
    for body in (f"Y[b,i,j] = {condition} ? X[b,i,j] : 0", f"Y[b,i,j] = {condition} ? 0.0 : X[b,i,j] + 1.0"):
        agree(body, x, tolerance=tolerance(dtype), contains="torch.tri" if condition in TRIANGLES else None)
    agree(f"Y[b,i,j] = +({condition} ? X[b,i,j])", x, tolerance=tolerance(dtype))
    large = tensors((300, 500), dtype=dtype)[0]  # in blocks
    agree(f"Y[i,j] = {condition} ? X[i,j] : 0", large, tolerance=tolerance(dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
def test_products_of_all_others(dtype: torch.dtype) -> None:
    x = tensors((6, 5), dtype=dtype)[0]
    for values in ((), (0,), (0, 0), (math.inf,), (0, math.inf), (math.nan,)):
        if dtype.is_floating_point or not any(map(math.isnan, values)) and math.inf not in values:
            given = x.clone()
            for k, v in enumerate(values):
                given[k, k + 1] = given[2, k + 1] = v
            agree(OTHERS, given, tolerance=tolerance(dtype), contains="rt.product_of_others")
    agree(OTHERS, x[:, :1], tolerance=tolerance(dtype))
    if dtype.is_floating_point:
        agree(OTHERS, (1e-150 if dtype is torch.float64 else 1e-15) * x[:, :4].abs(), tolerance=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_sums_are_filled_in_place(dtype: torch.dtype) -> None:
    x, z = tensors((90, 100), (90, 100), dtype=dtype)
    for places in (torch.arange(90) % 100, torch.randint(-3, 105, (90,), generator=torch.Generator().manual_seed(1))):
        x[3, 5], z[4, 4] = math.inf, math.nan
        agree(SUM, x, z, places, tolerance=tolerance(dtype), contains="+=" if dtype != torch.bfloat16 else None)
    agree(CORNERS, x, tolerance=tolerance(dtype))
    assert torch.equal(x[0], tensors((90, 100), (90, 100), dtype=dtype)[0][0])  # no input is written to


@pytest.mark.one_in(3)
@pytest.mark.parametrize("source", PRODUCTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_derivatives_in_one_pass(source: str, dtype: torch.dtype) -> None:
    given = [t.requires_grad_() for t in tensors((5, 40), (5, 40), dtype=dtype)]
    wide = [t.detach().double().requires_grad_() for t in given]
    y = tilec.compile(source)(*given)
    weights = torch.linspace(-1, 1, y.numel(), dtype=dtype).view(y.shape)
    found = torch.autograd.grad(y, given, weights, create_graph=dtype == torch.float64)
    expected = torch.autograd.grad(PRODUCTS[source](*wide), wide, weights.double(), create_graph=True)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=tolerance(dtype), atol=3 * tolerance(dtype))
    if dtype == torch.float64:
        again, wanted = (
            torch.autograd.grad(d[0].square().sum(), t[0])[0] for d, t in ((found, given), (expected, wide))
        )
        torch.testing.assert_close(again, wanted)


def test_what_is_stored_is_read() -> None:
    """A sum of what another statement stores reads that, under a condition too."""
    source = """function (X[N,M], B[M]) -> (Y, S, G, R) {
        Y[i,j : N,M] = tanh(X[i,j] + B[j]) * X[i,j]; S[m : M] = +(tanh(X[k,m] + B[m]) * X[k,m]);
        G[i,j : N,M] = +(X[i,j] + B[j] > 0 ? exp(X[i,j])); R[j] = +(X[i,j] + B[j] > 0 ? exp(X[i,j])); }"""
    x, b = tensors((7, 9), (9,))
    text = run(source, [x, b])[1]
    assert text.count("tanh") == text.count("exp(") == 2  # once, and in a comment
    agree(source, x, b)


@pytest.mark.parametrize("body", ["B[i,j] * B[i,j] + B[i,j]", "exp(B[i,j]) * X[i,j] + B[i,j]", "B[j,i] + B[i,j]"])
def test_terms_that_the_sum_reads_elsewhere_are_stored(body: str) -> None:
    text = "function (X[N,M]) -> (Y) { B[i,j : N,M] = +(X[i,j+1]); Y[i,j : N,M] = %s; }"
    agree(text % body, *tensors((100, 100)), tolerance=1e-5)


def test_a_value_without_axes_is_not_written_over() -> None:
    agree("function (A, W) -> (Y) { Y[i,j : 3,3] = (A[] + exp(A[]) + (W[0] - W[1])) * W[j]; }", *tensors((), (3,)))
    agree("function (A, W) -> (Y) { Y[i : 3] = >(i < 2 ? A[] + A[] + (W[0] - W[1])); }", *tensors((), (3,)))


def test_a_part_of_one_row_is_added() -> None:
    agree(
        "function (A[N,M]) -> (Y) { B[i,j : N,M] = +(A[i+99,j+98]); Y = A * 2 + B; }",
        *tensors((100, 100)),
        tolerance=1e-5,
    )


BRANCHES = {  # sums over few values of a variable that choices test; whether the branches are written out
    "each value": ("O[n : N] = +(i == 0 ? A[n, i] : i == 1 ? B[n] * A[n, i] : 2 * A[n, 0]), i < 4;", True),
    "halves": ("O[n : N] = +(i < 2 ? A[n, i] : -A[n, i - 2] * B[n]), i < 4;", True),
    "remainders": ("O[n : N] = +(i % 2 == 0 ? A[n, i] : B[n]), i < 4;", True),
    "two variables": ("O[n : N] = +((i < j ? A[n, i] : 0) * A[n, j]), i < 4, j < 2;", True),
    "no branch but zero": ("O[n : N] = +(i > 7 ? A[n, i] : 0), i < 4;", True),
    "places at which nothing is": ("O[n : N] = +(i == 0 ? A[n + 1, i] : B[n]), i < 4;", False),
    "many values": ("O[n : N] = +(i == 0 ? A[n, 0] : i == 1 ? B[n] : A[n, i % 4]), i < 12;", False),
    "the greatest": ("O[n : N] = >(i == 0 ? A[n, i] : B[n]), i < 4;", False),
    "tests of values": ("O[n : N] = +(A[n, i] > 0 ? A[n, i] : B[n]), i < 4;", False),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", BRANCHES)
def test_branches_of_sums_over_few_values(name):
    text, written = BRANCHES[name]
    text = f"function (A[N, 4], B[N]) -> (O) {{ {text} }}"
    function = tilec.compile(text, backend="torch")
    g = torch.Generator().manual_seed(0)
    for n in (1, 1500):
        a, b = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((n, 4), (n,)))
        if n > 1:
            a[3, 1], b[5], a[7, 0] = math.inf, math.nan, -math.inf
        torch.testing.assert_close(function(a, b), torch.as_tensor(tilec.interpret(text, a, b)), equal_nan=True)
        source = function.lower(a, b).source()
        assert ("torch.sum(" not in source and "amax" not in source) == written or n == 1, source


EDGES = [
    """function (X[N, M], D[K, M]) -> (Y) {
        A[0, j : N, M] = +(0.25 * D[0, j]); B[i + 1, j : N, M] = +(D[i, j]); C[i, j : N, M] = X[i, j];
        E[N - 1, j : N, M] = +(D[0, j] * X[0, j]); Y[i, j] = A[i, j] + B[i, j] + C[i, j] + E[i, j]; }""",
    """function (X[N, M], D[K, M]) -> (Y) {
        A[i, j : N, M] = +(i == 0 ? D[i, j] * 0.5); B[i, j : N, M] = +(D[i - 1, j] * 2); C[i, 0 : N, M] = +(X[i, j]);
        Y[i, j] = A[i, j] + B[i, j] + C[i, j]; }""",
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("text", EDGES)
@pytest.mark.parametrize("shape", [(130, 80), (1, 9000), (9000, 1), (2, 5000), (3, 3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_terms_of_one_place_are_added_in_place(text, shape, dtype):
    n, m = shape
    g = torch.Generator().manual_seed(0)
    x, d = (torch.randn(s, generator=g, dtype=dtype) for s in (shape, (max(n - 1, 1), m)))
    before = x.clone(), d.clone()
    function = tilec.compile(text, backend="torch")
    exact = torch.as_tensor(tilec.interpret(text, x.double(), d.double()))
    torch.testing.assert_close(function(x, d).double(), exact, rtol=1e-5, atol=1e-5)
    assert torch.equal(x, before[0]) and torch.equal(d, before[1])
    if n == 130 and text == EDGES[1]:
        assert ".add_(" in function.lower(x, d).source()


@pytest.mark.parametrize("sizes", [(1, 130, 80, 1), (2, 1, 9000, 1), (1, 9000, 1, 1), (1, 130, 80, 2)])
def test_terms_summed_over_one_value_are_added_in_place(sizes):
    """Beside axes of one point: what is added has no axis for what is summed over."""
    text = """function (X[B, N, M], U[B, N, E], V[B, M, E], C[N], D[M]) -> (Y) {
        S[b, i, j : B, N, M] = +(C[i] == D[j] ? U[b, i, e] * X[b, i, j] * V[b, j, e]);
        T[b, i, j : B, N, M] = +(C[i] == D[j] ? exp(X[b, i, j]));
        Y[b, i, j] = S[b, i, j] + T[b, i, j]; }"""
    b, n, m, e = sizes
    x, u, v = tensors((b, n, m), (b, n, e), (b, m, e))
    agree(text, x, u, v, torch.arange(n) % 3, torch.arange(m) % 2, tolerance=1e-5)


def test_a_sum_read_three_times_by_a_term_keeps_its_tensor() -> None:
    source = """function (X[N,M], Z[N,M]) -> (Y) {
        A[i,j : N,M] = +(X[i + 1,j]); B[i,j : N,M] = +(Z[i,j + 1]); S[i,j] = A[i,j] + B[i,j];
        T[i,j] = S[i,j] + S[i,j] + S[i,j]; C[i,j : N,M] = +(Z[i,k]), j - k < M; Y[i,j] = C[i,j] + X[i,j] + T[i,j]; }"""
    agree(source, *tensors((100, 100), (100, 100)), tolerance=1e-9)
