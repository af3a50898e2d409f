"""Rows that fill no block of columns, interpreted: their columns stand in several narrower blocks side by side."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.scatter import runs, scatter

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

POINTS, ROWS = 300, 11
STATEMENTS = {
    "sum": "Y[T[m], d : N, D] = +(X[m, d] * R[d]);",
    "greatest": "Y[T[m], d : N, D] = >(X[m, d] - R[d]);",
    "product": "Y[T[m], d : N, D] = *(1 + X[m, d] / 40);",
    "gathered": "Y[T[m], d : N, D] = +(X[U[m], d] * X[m, 0]);",
    "with an epilogue": "A[T[m], d : N, D] = +(X[m, d]); Y[n, d : N, D] = exp(A[n, d] / 9) * Q[n] + R[d];",
}


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize("width", [9, 19, 39, 63, 69, 72])  # strips twice as wide; whole vectors
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.covering
@pytest.mark.one_in(5)
def test_rows_in_strips(
    statement: str, width: int, dtype: torch.dtype, pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scatter, "FEW_AT_AN_ELEMENT", 0)
    monkeypatch.setattr(runs, "FEWEST_OF_PIECE", 4)
    monkeypatch.setattr(runs, "LEAST_IN_STRIPS", 1)
    source = f"function (X[M, D], T[M], U[M], R[D], S[P], Q[N]) -> (Y) {{ {STATEMENTS[statement]} }}"
    g = torch.Generator().manual_seed(0)
    places = torch.randint(-2, ROWS + 3, (POINTS,), generator=g)
    places = torch.where(torch.rand(POINTS, generator=g) < 0.6, 4, places) if pieces else places
    x, r, s, q = (torch.randn(shape, generator=g).to(dtype) for shape in ((POINTS, width), (width,), (2,), (ROWS,)))
    given = x, places, torch.randint(0, POINTS, (POINTS,), generator=g), r, s, q
    f = tilec.compile(source, backend="triton")
    wanted = tilec.compile(source, backend="torch")(*(t.double() if t.is_floating_point() else t for t in given))
    bound = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(
        f(*given).double(), wanted, rtol=bound, atol=bound * float(wanted.abs().clamp(max=50).max())
    )
    (kernel,) = [k for k in f.lower(*given).kernels if k.name.endswith("_segments")]
    assert "BN1: tl.constexpr" in kernel.source
