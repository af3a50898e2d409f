"""What is not finite in a finished product is computed again, exactly: here all of it, whose output is NaN at first."""

from __future__ import annotations

import os

import pytest
import torch

import tilec
from tilec.backends.triton.matmul.kernel import repair_steps
from tilec.backends.triton.plan.plan import Allocate
from tilec.backends.triton.schedule import families

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
CONVOLUTION = """function (I[N, Y, X, C], K[O, J, L, C]) -> (R) {
    R[n, y, x, o : N, Y, X, O] = +(I[n, y + j - 1, x + l - 1, c] * K[o, j, l, c]);
}"""
CASES = {
    "windows": (CONVOLUTION, (2, 5, 7, 16), (16, 3, 3, 16)),
    "product": ("function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = +(A[i, k] * B[k, j]); }", (37, 40), (40, 70)),
    "batches": (
        "function (A[B, I, K], C[B, K, J]) -> (D) { D[b, i, j : B, I, J] = +(A[b, i, k] * C[b, k, j]); }",
        (3, 18, 20),
        (3, 20, 33),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_exact_sums(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def repaired(dot, space, view, flat, int64_index, setting):
        t = view.types[flat.output]
        return [
            Allocate(flat.output, t.shape, t.dtype, float("nan")),
            *repair_steps(dot, space, view, flat, int64_index),
        ]

    monkeypatch.setattr(families, "_product_steps", repaired)
    source, *shapes = CASES[name]
    generator = torch.Generator().manual_seed(0)
    given = [torch.randint(-3, 4, shape, generator=generator).float() for shape in shapes]
    given[0].view(-1)[17], given[0].view(-1)[100] = torch.inf, torch.nan
    f = tilec.compile(source + f"// {name}", backend="triton")
    exact = tilec.compile(source, backend="torch")(*(t.double() for t in given))
    found = f(*given).double()
    assert torch.equal(found.isnan(), exact.isnan())
    assert torch.equal(found.nan_to_num(7.0), exact.nan_to_num(7.0))
