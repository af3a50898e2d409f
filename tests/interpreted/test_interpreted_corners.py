"""Sums at a few neighbours of each place, interpreted."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.scatter import scatter

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

HEAD = "function (X[M, D], T[M], U[M], Z[N, D]) -> (Y) { "
APART = {  # what shares a sort
    "two": "Y[T[m] + a, d : N, D] = +(X[m, d] * (a == 0 ? 2 : Z[a, d])), a < 2; }",
    "steps back": "Y[T[m] - 2*a + 1, d : N, D] = +(X[m, d] + a), a < 3; }",
    "a square of them": "Y[T[m] + a, U[m] + b, d : N, 5, D] = +(X[m, d] * (2*a + b)), a < 2, b < 3; }",
    "a square of even sizes": "Y[d, T[m] + a, U[m] + b : D, 12, 4] = +(X[m, d] * (2*a + b)), a < 2, b < 2; }",
    "columns first": "Y[d, T[m] + a : D, N] = +(X[m, d] * (a + 1)), a < 2; }",
    "what follows": "A[T[m] + a, d : N, D] = +(X[m, d] * (a + 1)), a < 2; Y = A > 0 ? A * Z : -A; }",
    "two that share": """A[T[m] + a, d : N, D] = +(X[m, d] * (a + 1)), a < 2; B[T[m] + a : N] = +(X[m, a]), a < 2;
        Y[n, d] = A[n, d] / (B[n] * B[n] + 1); }""",
    "some inside": "Y[T[m] + a, d : N, D] = +(X[m, d] * Z[T[m] + 2*a, d]), a < 2; }",
}
TOGETHER = {  # what does not
    "in a guard": "Y[T[m] + a, d : N, D] = +(a > U[m] ? X[m, d]), a < 2; }",
    "in a condition": "Y[T[m] + a, d : N, D] = +(X[m + a, d]), a < 2; }",
    "at two places": "Y[T[m] + a, U[m] + a, d : N, 9, D] = +(X[m, d]), a < 2; }",
    "many": "Y[T[m] + a, d : N, D] = +(X[m, d] * a), a < 9; }",
    "a place in data": "Y[T[m + a] + a, d : N, D] = +(X[m, d]), a < 2; }",
    "greatest": "Y[T[m] + a, d : N, D] = >(X[m, d]), a < 2; }",
}


@pytest.mark.one_in(11)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", [*APART, *TOGETHER])
def test_values(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "FEW_AT_AN_ELEMENT", 0)
    source = HEAD + {**APART, **TOGETHER}[name]
    g = torch.Generator().manual_seed(0)
    x, z = torch.randn(40, 3, generator=g).to(dtype), torch.randn(11, 3, generator=g).to(dtype)
    t, u = torch.randint(-3, 14, (40,), generator=g), torch.randint(-1, 6, (40,), generator=g)
    f = tilec.compile(source, backend="triton")

    got = f(x, t, u, z)
    wanted = tilec.compile(source, backend="torch")(x.double(), t, u, z.double())
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=20 * tolerance)
