"""Variances of columns in one walk: as accurate as two walks, wherever the rows lie."""

from __future__ import annotations

import os

import pytest
import torch

import tilec
from tilec.backends.triton.iteration import column_moments

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
VARIANCE = """function (X[N, P, C]) -> (M, V) {
    M[c : C] = mean(X[n, p, c]);
    V[c : C] = mean((X[n, p, c] - M[c]) * (X[n, p, c] - M[c]));
}"""
NORM = """function (X[N, P, C], G[C], B[C]) -> (Y) {
    M[c : C] = mean(X[n, p, c]);
    V[c : C] = mean((X[n, p, c] - M[c]) * (X[n, p, c] - M[c]));
    Y[n, p, c : N, P, C] = (X[n, p, c] - M[c]) * rsqrt(V[c] + 0.00001) * G[c] + B[c];
}"""


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_moments, "LEAST_READ", 1)
    monkeypatch.setattr(column_moments, "PERSISTENT", 0)


def drawn(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rows(name: str) -> torch.Tensor:
    x = drawn((7, 33, 20))
    match name:
        case "offset":
            return x + 1e4
        case "first rows are zero":
            x = x + 50
            x[0] = 0
        case "an outlier first":
            x[0, 0] = 1e3
        case "constant":
            return torch.full_like(x, 3.0)
    return x


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["plain", "offset", "first rows are zero", "an outlier first", "constant"])
def test_variance(name: str) -> None:
    x = rows(name)
    mean, variance = tilec.compile(VARIANCE, backend="triton")(x)
    exact, wide = x.double().var((0, 1), correction=0), x.double()
    torch.testing.assert_close(mean.double(), wide.mean((0, 1)), rtol=2e-6, atol=1e-6)
    # a mean in float32 is off by this much, whoever computes it
    torch.testing.assert_close(variance.double(), exact, rtol=2e-5, atol=(1e-7 * wide.abs().max().item()) ** 2 + 1e-12)


def test_what_is_not_finite_stays_so() -> None:
    x = drawn((5, 40, 3))
    x[2, 3, 0], x[4, 0, 1], x[1, 1, 2] = torch.inf, torch.nan, -torch.inf
    mean, variance = tilec.compile(VARIANCE, backend="triton")(x)
    assert mean[0] == torch.inf and mean[1].isnan() and mean[2] == -torch.inf and variance.isnan().all()


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.covering
def test_norm_and_gradient(dtype: torch.dtype, activation: str | None) -> None:
    """The gradient's first kernel sums over rows what its last one computes again."""
    source = NORM
    if activation is not None:
        source = NORM.replace("Y[n", "Z[n").replace(" + B[c];", f" + B[c]; Y = {activation}(Z);")
    given = [t.to(dtype).requires_grad_() for t in (drawn((6, 50, 24)), drawn((24,)), drawn((24,)))]
    value = tilec.compile(source, backend="triton")(*given)
    exact = [t.detach().double().requires_grad_() for t in given]
    theirs = torch.nn.functional.batch_norm(exact[0].flatten(0, 1), None, None, exact[1], exact[2], True)
    theirs = theirs.view_as(value)
    theirs = theirs if activation is None else getattr(torch.nn.functional, activation)(theirs)
    cotangent = drawn(tuple(value.shape), 1).to(dtype)
    ours = torch.autograd.grad(value, given, cotangent)
    wanted = torch.autograd.grad(theirs, exact, cotangent.double())
    for mine, other in zip((value, *ours), (theirs, *wanted), strict=True):
        assert (mine - other).norm() <= (2e-6 if dtype is torch.float32 else 2e-2) * other.norm() + 1e-4


def test_one_walk_over_the_rows() -> None:
    f = tilec.compile(VARIANCE, backend="triton")
    made = f.lower(tilec.spec((64, 100, 32)), target="sm_90")
    reading = [k for k in made.kernels if "tl.load(X " in k.source or "tl.load(X+" in k.source]
    assert len(reading) == 2 and len(made.kernels) <= 5  # a share of the rows first, then all


def test_rows_along_memory_are_left_to_their_own_kernels() -> None:
    f = tilec.compile(VARIANCE.replace("[N, P, C]", "[C, N, P]").replace("[n, p, c]", "[c, n, p]"), backend="triton")
    assert "_pivot" not in f.lower(tilec.spec((32, 64, 100)), target="sm_90").source()


def test_columns_that_a_program_holds_need_no_pivot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    source = NORM.replace("N, P, C]", "N, C, P]").replace("n, p, c", "n, c, p")
    source = source.replace("M[c : C]", "M[n, p : N, P]").replace("V[c : C]", "V[n, p : N, P]")
    source = source.replace("M[c]", "M[n, p]").replace("V[c]", "V[n, p]")
    for channels, kernels in ((96, 1), (1024, 2)):
        types = (tilec.spec((32, channels, 3136)), tilec.spec((channels,)), tilec.spec((channels,)))
        assert len(tilec.compile(source, backend="triton").lower(*types, target="sm_90").kernels) == kernels
