"""Values over windows that are made of few elements: sums at other places compute them again."""

import math
import os

import pytest
import torch
from support.allocated import allocated

import tilec

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
GRADIENTS = {  # text, shapes
    "bilateral": ("""function (X[N, H, W]) -> (Y) {
        K[n, y, x, j, i : N, H, W, 3, 5] = exp(-((j - 1) * (j - 1) + (i - 2) * (i - 2)) / 8.0
            - (X[n, y + j - 1, x + i - 2] - X[n, y, x]) * (X[n, y + j - 1, x + i - 2] - X[n, y, x]));
        A[n, y, x : N, H, W] = sum(K[n, y, x, j, i] * X[n, y + j - 1, x + i - 2]);
        B[n, y, x : N, H, W] = sum(K[n, y, x, j, i]);
        Y = A / B;
    }""", [(2, 6, 9)]),
    "dilated": ("""function (X[N, T]) -> (Y) {
        K[n, t, j : N, T, 9] = exp(-abs(X[n, t + 2 * j - 8] - X[n, t]));
        A[n, t : N, T] = sum(K[n, t, j] * X[n, t + 2 * j - 8]);
        B[n, t : N, T] = sum(K[n, t, j]);
        Y = A / B;
    }""", [(3, 29)]),
    "diffusion": ("""function (X[N, H, W]) -> (Y) {
        D[n, y, x, j, i : N, H, W, 3, 3] = X[n, y + j - 1, x + i - 1] - X[n, y, x];
        G[n, y, x, j, i : N, H, W, 3, 3] = D[n, y, x, j, i] * exp(-D[n, y, x, j, i] * D[n, y, x, j, i]);
        S[n, y, x : N, H, W] = sum(G[n, y, x, j, i]);
        Y = X + 0.2 * S;
    }""", [(2, 6, 9)]),
    "taps": ("""function (X[N, T], V[9]) -> (Y) {
        K[n, t, j : N, T, 9] = V[j] * sigmoid(X[n, t + j - 4] - X[n, t]);
        A[n, t : N, T] = sum(K[n, t, j] * X[n, t + j - 4]);
        B[n, t : N, T] = 1 + sum(K[n, t, j] * K[n, t, j]);
        Y = A / B;
    }""", [(3, 29), (9,)]),
}  # fmt: skip
HEAD = "function (X[N, T], W[N, T, 9]) -> (B, R) { K[n, t, j : N, T, 9] = exp(X[n, t] "
SUM = "B[n, t : N, T] = sum(K[n, t, j]);"
PLACES = {  # text, whether K is stored
    "inside": (f"{HEAD} + X[n, t + j - 4]); {SUM} R[n, t + j - 4 : N, T] = +(K[n, t, j] * X[n, t]); }}", False),
    "greatest": (f"{HEAD} + X[n, t + j - 4]); {SUM} R[n, t + j - 4 : N, T] = >(K[n, t, j] * X[n, t]); }}", False),
    "beyond": (f"{HEAD} * X[n, t + j - 4]); {SUM} R[n, t + j : N, T + 8] = +(K[n, t, j] * X[n, t]); }}", True),
    "beyond, everywhere": (f"{HEAD} * j); {SUM} R[n, t + j : N, T + 8] = +(K[n, t, j] * X[n, t]); }}", False),
    "of as many": (f"{HEAD} * W[n, t, j]); {SUM} R[n, t + j : N, T + 8] = +(K[n, t, j] * X[n, t]); }}", True),
    "found equal": (f"{HEAD} * j); {SUM} R[n, t + j : N, T + 8] = +(K[n, t, j] == B[n, t] ? 1 : X[n, t]); }}", True),
    "padded": (f"{HEAD} * j); {SUM} R[n, t : N, T] = +(pad(K[n, t - j, j], 0.5) * X[n, t]), j < 9; }}", True),
    "for several": (f"{HEAD} * j); {SUM} R[n, t : N, T] = +(max(K[n, s, j], X[n, t])); }}", True),
}


def stored(lowered, places):
    """Names of the tensors between that have several elements for each of so many places."""
    return {name for name, (shape, _) in allocated(lowered).items() if math.prod(shape) >= 9 * places}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.covering
def test_gradients_do_not_store_values_over_windows(name, dtype):
    source, shapes = GRADIENTS[name]
    given = [tilec.spec(s, dtype) for s in (*shapes, shapes[0])]
    lowered = tilec.compile(source).grad().lower(*given, backend="triton", target="sm_90")
    assert not stored(lowered, math.prod(shapes[0]))


@pytest.mark.parametrize("name", PLACES)
def test_what_is_computed_again(name):
    source, stays = PLACES[name]
    lowered = tilec.compile(source).lower(tilec.spec((3, 29)), tilec.spec((3, 29, 9)), backend="triton", target="sm_90")
    assert stored(lowered, 3 * 29) == ({"K"} if stays else set())


def check(f, source, inputs, tolerance):
    wanted = source(*(x.double() for x in inputs))
    found = f(*inputs)
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    for a, b in pairs:
        scale = b.abs().max().item()
        torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.one_in(2)
@interpreted
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.covering
def test_gradients(name, dtype):
    source, shapes = GRADIENTS[name]
    torch.manual_seed(0)
    inputs = [torch.randn(s).to(dtype) for s in (*shapes, shapes[0])]
    f, g = (tilec.compile(source, backend=b).grad() for b in ("triton", "torch"))
    check(f, g, inputs, {torch.bfloat16: 2e-2, torch.float32: 1e-5}.get(dtype, 1e-12))


@pytest.mark.one_in(2)
@interpreted
@pytest.mark.parametrize("shape", [(3, 29), (1, 1), (2, 0)])
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.covering
def test_values(name, shape):
    source, _ = PLACES[name]
    torch.manual_seed(0)
    inputs = [torch.randn(shape), torch.randn(*shape, 9)]
    f, g = (tilec.compile(source, backend=b) for b in ("triton", "torch"))
    if 0 not in shape:
        check(f, g, inputs, 1e-5)
    else:
        assert [r.shape for r in f(*inputs)] == [r.shape for r in g(*inputs)]


@interpreted
def test_what_is_asked_of_a_computed_value():
    """`in` asks of T, whose value is no element of another tensor: nothing else can be asked in its place."""
    source = """function (X[A, B], I[B], J[A, D]) -> (V, W) {
        T[a, b, z : A, B, 2] = X[a, b] + 0*z;
        U[a, b, d : A, B, 2] = I[b] - in(T[a, b, d]) * T[a, b, d];
        V[b : B] = logsumexp(U[a, b, d] * J[a, d]);
        W[a, b, d : A, B, 2] = T[a, b, d] * U[a, b, d];
    }"""
    inputs = [torch.randn(1, 1), torch.randn(1), torch.randn(1, 2)]
    check(*(tilec.compile(source, backend=b) for b in ("triton", "torch")), inputs, 1e-5)


SCORES = "S[i, j : N, N] = sum(U[i, d] * V[j, d]) / 0.07; L[i : N] = logsumexp(S[i, j]);"
OF_SCORES = {
    "a mean": (f"{SCORES} Y[] = mean(L[i] - S[i, i]);", False),
    "rows": (f"{SCORES} Y[i : N] = L[i] - S[i, i];", False),
    "elements": (f"{SCORES} Y[i, j : N, N] = S[i, j] - L[i];", False),
    "another product": (f"{SCORES} Y[i, d : N, D] = sum(S[i, j] * V[j, d]) + L[i];", True),
    "both ways": (f"{SCORES} Y[i, j : N, N] = S[i, j] - L[i] + S[j, i];", True),
}


@pytest.mark.one_in(2)
@interpreted
@pytest.mark.parametrize("name", OF_SCORES)
def test_a_scaled_product_is_read_as_it_is(name):
    """No kernel stores the scores of float32 again for the sake of a number."""
    text, stored = OF_SCORES[name]
    f, exact = (
        tilec.compile(f"function (U[N, D], V[N, D]) -> (Y) {{ {text} }}", backend=b) for b in ("triton", "torch")
    )
    u, v = (torch.randn(37, 19, generator=torch.Generator().manual_seed(k)) for k in (0, 1))
    stages = f.lower(u, v).stages
    grouped = stages.get("grouped", stages["flat"])
    assert ("S" in [s.output for s in grouped.statements]) == stored, grouped
    torch.testing.assert_close(f(u, v).double(), exact(u.double(), v.double()), rtol=1e-4, atol=1e-4)
