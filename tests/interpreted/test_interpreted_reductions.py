"""Reductions split over programs: what rides on the launch that combines parts, and what they compute themselves."""

from __future__ import annotations

import os

import pytest
import torch

import tilec

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
LONG = 70001  # odd, and long enough to be split
CASES = {
    "mean": ("function (X[N]) -> (Y) { Y[] = mean(X[i]); }", ((LONG,),)),
    "scaled": (
        "function (X[N, P, D], B[D]) -> (Y) { S[j : D] = +(X[i, p, j]); Y[j : D] = exp(S[j] / 300) * B[j]; }",
        ((401, 41, 20), (20,)),
    ),
    "two axes left": (
        "function (X[N, P, D, E]) -> (Y) { S[j, e : D, E] = +(X[i, p, j, e]); Y[j, e : D, E] = tanh(S[j, e] / 300); }",
        ((201, 41, 4, 5),),
    ),
    "logarithm": ("function (X[N]) -> (Y) { M[] = logsumexp(X[i]); Y = M * 2 + 1; }", ((LONG,),)),
    "rows": ("function (X[N, M]) -> (Y) { S[i : N] = +(X[i, j]); Y[i : N] = S[i] / M; }", ((3, LONG),)),
    "Huber loss": (
        "function (X[N], T[N]) -> (Y) { E = abs(X - T); Y[] = mean(E[i] < 1 ? 0.5 * E[i] * E[i] : E[i] - 0.5); }",
        ((LONG,), (LONG,)),
    ),
    "two in a row": ("function (X[N]) -> (Y) { E = abs(X); F = exp(-E); Y[] = sum(F[i]); }", ((LONG,),)),
    "neighbours": ("function (X[N]) -> (Y) { E[i : N - 1] = abs(X[i + 1] - X[i]); Y[] = sum(E[i]); }", ((LONG,),)),
    "neighbours of rows": (
        "function (X[N, M]) -> (Y) { E[i, j : N - 1, M] = abs(X[i + 1, j] - X[i, j]); Y[] = sum(E[i, j]); }",
        ((100, 201),),
    ),
    "indices": (
        "function (X[N, M]) -> (Y) { E[i, j : N, M] = 2.0 * j; Y[j : M] = sum(E[i, j] * X[i, j]); }",
        ((3001, 31),),
    ),
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("name", CASES)
def test_reductions_in_two_launches(name: str, dtype: torch.dtype) -> None:
    source, shapes = CASES[name]
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    f = tilec.compile(source, backend="triton")
    got = f(*given)
    exact = tilec.compile(source, backend="torch")(*(t.double() for t in given))
    allowed = 1e-5 if dtype is torch.float32 else 2e-2
    assert got.dtype == dtype and got.shape == exact.shape
    assert (got.double() - exact).abs().max() <= allowed * exact.abs().max()
    specs = [tilec.spec(shape, str(dtype)[6:]) for shape in shapes]
    assert len(f.lower(*specs, target="sm_90").kernels) == 2


def test_parts_begin_where_vectors_do() -> None:
    f = tilec.compile(CASES["mean"][0], backend="triton")
    text = f.lower(tilec.spec((2**26,)), target="sm_90").source()
    assert "67108864, 65536, X" in text and "[(1, 1, 1024)]" in text


def test_what_others_read_stays_stored() -> None:
    source = "function (X[N]) -> (E, Y) { E = abs(X); Y[] = sum(E[i]); }"
    x = torch.randn(LONG, generator=torch.Generator().manual_seed(0))
    e, y = tilec.compile(source, backend="triton")(x)
    assert torch.equal(e, x.abs()) and torch.allclose(y, x.abs().sum())
