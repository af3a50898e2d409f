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
