"""Sums of rows that elements of tensors name, interpreted: their steps stand one after the other."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.pointwise import tiling

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

ROWS, EDGES = 11, 70
STATEMENTS = {
    "a product of two rows": "Y[m : M] = +(X[A[m], d] * Z[B[m], d]);",
    "a row with one beside": "Y[m : M] = +(X[A[m], d] * W[m, d]);",
    "greatest": "Y[m : M] = >(X[A[m], d] - Z[B[m], d]);",
    "logarithm of a sum": "Y[m : M] = logsumexp(X[A[m], d]);",
    "beside a row of the output": "Y[m] = exp(sum(abs(X[A[m], d] - Z[B[m], d])) / -9) + U[m];",
}


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize("width", [2, 3, 7, 39, 64, 101])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.covering
@pytest.mark.one_in(3)
def test_rows_at_places(
    statement: str, width: int, dtype: torch.dtype, index: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiling, "MANY_POINTS", 1)
    source = f"function (X[N, D], Z[N, D], W[M, D], U[M], A[M], B[M]) -> (Y) {{ {STATEMENTS[statement]} }}"
    g = torch.Generator().manual_seed(0)
    shapes = (ROWS, width), (ROWS, width), (EDGES, width), (EDGES,)
    values = [torch.randn(shape, generator=g).to(dtype) for shape in shapes]
    places = [torch.randint(-1, ROWS + 1, (EDGES,), generator=g).to(index) for _ in range(2)]
    f = tilec.compile(source, backend="triton")
    wanted = tilec.compile(source, backend="torch")(*(v.double() for v in values), *places)
    bound = 1e-4 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(f(*values, *places).double(), wanted, rtol=bound, atol=bound)
    text = f.lower(*values, *places).source()
    assert ("tl.static_range(0, STEPS * BR" in text) is (width == 39)
    assert width != 101 or ("BR=16" in text and "num_warps=2" in text)


@pytest.mark.parametrize("body", ["+(W[m, d] * U[T[m, d]])", ">(U[T[m, d]])", "+(U[T[m, d] - 1] - W[m, d])"])
@pytest.mark.parametrize("width", [7, 27, 32, 39])
def test_elements_at_places(body: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of short rows that begin anywhere: sparse rows of as many elements each."""
    monkeypatch.setattr(tiling, "MANY_POINTS", 1)
    source = f"function (W[M, D], U[N], T[M, D]) -> (Y) {{ Y[m : M] = {body}; }}"
    g = torch.Generator().manual_seed(width)
    w, u = torch.randn((EDGES, width), generator=g), torch.randn((ROWS,), generator=g)
    t = torch.randint(-1, ROWS + 1, (EDGES, width), generator=g)
    f = tilec.compile(source, backend="triton")
    torch.testing.assert_close(f(w, u, t), tilec.compile(source, backend="torch")(w, u, t), rtol=1e-4, atol=1e-4)
    assert ("tl.static_range(0, STEPS * BR" in f.lower(w, u, t).source()) is (width in (27, 39))
