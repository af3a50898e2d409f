"""Sums of few points over small axes, interpreted: every point is written out, for all elements of a place."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.pointwise import small_sums

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
    ),
    pytest.mark.filterwarnings("ignore::tilec.errors.TileWarning"),
]

PLACES = 37
FORMS = {
    "permanent": "P[n : N] = +(i != j & j != k & i != k ? A[n, 0, i] * A[n, 1, j] * A[n, 2, k] : 0);",
    "products of matrices": "P[n, i, k : N, 3, 3] = +(A[n, i, j] * A[n, j, k]);",
    "cross product": (
        "P[n, i : N, 3] = +((k - j) % 3 == 1 & (j - i) % 3 == 1 "
        "? A[n, 0, j] * A[n, 1, k] - A[n, 1, j] * A[n, 0, k] : 0);"
    ),
    "upper triangle": "P[n : N] = +(A[n, i, j] * A[n, j, i]), j - i - 1 < 3;",
    "greatest of products": "P[n, i : N, 3] = >(A[n, i, j] * A[n, j, k]), i + k - 1 < 3;",
    "polynomial": "P[n, i : N, 3] = +(B[k] * (k == 0 ? 1 : pow(A[n, i, 0], k)));",
    "log-sum-exp": "P[n : N] = logsumexp(A[n, i, j] + A[n, j, i]), i + j - 1 < 3;",
    "none": "P[n : N] = +(i > j + 5 ? A[n, i, j] : 0);",
    "beside": "S[n, i : N, 3] = +(j != k ? A[n, i, j] * A[n, j, k] : 0); P[n, i] = exp(-S[n, i] / 9) * A[n, i, 1];",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
def test_values_and_gradients(form: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if dtype == "int32" and form in ("log-sum-exp", "beside"):
        return  # of floats alone
    monkeypatch.setattr(small_sums, "PLACES_OF_SMALL_SUMS", 1)
    source = f"function (A[N, 3, 3], B[5]) -> (P) {{ {FORMS[form]} }}"
    g = torch.Generator().manual_seed(0)
    a = (torch.randn(PLACES, 3, 3, generator=g) * 3).to(getattr(torch, dtype))
    b = torch.randn(5, generator=g).to(a.dtype)
    written, wide = tilec.compile(source, backend="triton"), torch.float64 if dtype != "int32" else torch.int32
    plain = tilec.compile(source, backend="torch")
    bounds = {"rtol": 3e-2, "atol": 0.3} if dtype == "bfloat16" else {"rtol": 1e-5, "atol": 1e-4}
    wanted = plain(a.to(wide), b.to(wide))
    torch.testing.assert_close(written(a, b).to(wide), wanted.to(wide), **bounds)
    if dtype in ("float32", "float64"):
        wanted, found = (
            torch.autograd.grad(f(*xs).sum(), xs, allow_unused=True, materialize_grads=True)
            for f, xs in (
                (plain, [a.to(wide).requires_grad_(), b.to(wide).requires_grad_()]),
                (written, [a.clone().requires_grad_(), b.clone().requires_grad_()]),
            )
        )
        for x, y in zip(found, wanted, strict=True):
            torch.testing.assert_close(x.to(wide), y, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("form", ["permanent", "products of matrices", "polynomial", "cross product"])
def test_points_are_written_out(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_sums, "PLACES_OF_SMALL_SUMS", 1)
    source = f"function (A[N, 3, 3], B[5]) -> (P) {{ {FORMS[form]} }}"
    f = tilec.compile(source, backend="triton")
    text = f.lower(tilec.spec((PLACES, 3, 3)), tilec.spec((5,)), target="sm_90").source()
    assert "for first in range" not in text and "power_(" not in text.partition("_kernel(")[2]
