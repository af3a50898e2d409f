"""What is written to one element of each row that data name: aggregated over the row first, then selected."""

import os

import pytest
import torch

import tilec

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
HEAD = "function (X[N, C], T[N]) -> (Y) {"
WRITES = {
    "sum": f"{HEAD} Y[n, T[n] : N, C] = +(X[n, c] > X[n, T[n]] ? X[n, c]); }}",
    "greatest": f"{HEAD} Y[n, T[n] : N, C] = >(X[n, c] * X[n, T[n]]); }}",
    "least": f"{HEAD} Y[n, T[n] + 1 : N, C + 2] = <(X[n, c]); }}",
    "of a part": f"{HEAD} Y[n, T[n] : N, C] = +(X[n, c] * X[n + 1, c]); }}",
    "first": "function (X[N, C], T[N]) -> (Y) { Y[T[n], n : C, N] = +(X[n, c] * c); }",
}
MARGIN = f"{HEAD} Y[] = mean(relu(1 + X[n, c] - X[n, T[n]])); }}"


@pytest.mark.parametrize("name", WRITES)
def test_one_element_of_each_row_takes_no_sorting(name):
    text = tilec.compile(WRITES[name], backend="triton").lower(
        tilec.spec((64, 50)), tilec.spec((64,), "int64"), target="sm_90"
    )
    assert "sort" not in text.source()


def test_the_gradient_of_a_margin_takes_no_sorting():
    f = tilec.compile(MARGIN, backend="triton").grad()
    given = tilec.spec((4096, 1000), "bfloat16"), tilec.spec((4096,), "int64"), tilec.spec((), "bfloat16")
    assert "sort" not in f.lower(*given, target="sm_90").source()


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(6, 7), (1, 1), (3, 1), (0, 4)])
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.covering
def test_values(name, shape, dtype):
    torch.manual_seed(0)
    x, t = torch.randn(shape).to(dtype), torch.randint(-1, shape[1] + 1, shape[:1])
    found, wanted = (tilec.compile(WRITES[name], backend=b)(x, t) for b in ("triton", "torch"))
    torch.testing.assert_close(found, wanted, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)


@interpreted
@pytest.mark.parametrize("shape", [(6, 7), (3, 1), (1, 300)])
def test_gradient_of_a_margin(shape):
    torch.manual_seed(0)
    x, t, d = torch.randn(shape), torch.randint(-1, shape[1], shape[:1]), torch.randn(())
    f, g = (tilec.compile(MARGIN, backend=b).grad() for b in ("triton", "torch"))
    torch.testing.assert_close(f(x, t, d)[0], g(x.double(), t, d.double())[0].float())


# a diagonal and elements that data name, of a matrix that is read again and of one that ends outside
READERS = {
    "diagonal": "D[i, i : N, N] = +(-W[i]); Y[i, j : N, N] = D[i, j] + exp(X[i, j]);",
    "beside it": "D[i, i + 1 : N, N] = +(W[i] * 3); Y[i, j : N, N] = (D[i, j] - X[i, j]) * D[i, j];",
    "named": "D[i, T[i] : N, N] = +(W[i]); Y[j, i : N, N] = D[j, i] * 2 + X[i, j];",
    "turned": "D[i, i + 1 : N, N] = +(W[i]); Y[i, j : N, N] = D[j, i] + X[i, j];",
    "at both places": "D[i, i : N, N] = +(W[i]); Y[i, j : N, N] = D[i, j] + D[j, i] * X[i, j];",
    "fewer": "D[i, i : N, N] = +(W[i + 1]); Y[i, j : N, N] = D[i, j] + exp(X[i, j]);",
    "summed": "D[i, i : N, N] = +(W[i]); Y[i : N] = +(D[i, j] * X[i, j]);",
}


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("n", [5, 1, 0, 64])
@pytest.mark.parametrize("name", READERS)
@pytest.mark.covering
def test_selections_within_their_reader(name, n, dtype):
    text = f"function (X[N, N], W[N], T[N]) -> (Y) {{ {READERS[name]} }}"
    torch.manual_seed(0)
    x, w, t = torch.randn(n, n).to(dtype), torch.randn(n).to(dtype), torch.randint(-1, n + 1, (n,))
    found, wanted = (tilec.compile(text, backend=b)(x, w, t) for b in ("triton", "torch"))
    torch.testing.assert_close(found, wanted, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)


def test_a_diagonal_is_computed_on_the_sums_of_a_product():
    """The gradient of a contrastive loss by its scores."""
    source = """function (A[N, D], B[N, D], L[N], W[N]) -> (G) {
        S[i, j : N, N] = +(A[i, d] * B[j, d]);
        V[i, i : N, N] = +(-W[i]);
        E[i, j : N, N] = +(L[i] != -inf ? W[i] * exp(S[i, j] - L[i]));
        G = V + E;
    }"""
    given = [tilec.spec(shape, "bfloat16") for shape in ((4096, 256), (4096, 256), (4096,), (4096,))]
    text = tilec.compile(source, backend="triton").lower(*given, target="sm_90").source()
    assert text.count("torch.empty") == 1 and "gluon_map(G" in text
