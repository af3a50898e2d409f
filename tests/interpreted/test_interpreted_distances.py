"""Squared distances as products of matrices: accurate wherever points lie, against torch in float64."""

from __future__ import annotations

import os

import pytest
import torch

import tilec
from tilec.backends.triton.matmul import distances
from tilec.backends.triton.matmul.blocks import Config

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1"
)

SQUARES = "(X[i, d] - Y[j, d]) * (X[i, d] - Y[j, d])"
PROGRAMS = {
    "pairs": (f"(X[N, D], Y[M, D]) -> (S) {{ S[i, j : N, M] = +({SQUARES}); }}", lambda s: s),
    "turned": (f"(X[N, D], Y[M, D]) -> (S) {{ S[j, i : M, N] = +({SQUARES}); }}", lambda s: s.mT),
    "with an epilogue": (
        f"(X[N, D], Y[M, D]) -> (O) {{ S[i, j : N, M] = +({SQUARES}); O = exp(-sqrt(S + 1)); }}",
        lambda s: torch.exp(-(s + 1).sqrt()),
    ),
    "the nearest": (
        f"(X[N, D], Y[M, D]) -> (O) {{ S[i, j : N, M] = +({SQUARES}); O[i : N] = <(S[i, j]); }}",
        lambda s: s.amin(-1),
    ),
    "batched": (
        """(X[B, N, D], Y[B, M, D]) -> (S) {
            S[b, i, j : B, N, M] = +((X[b, i, d] - Y[b, j, d]) * (X[b, i, d] - Y[b, j, d]));
        }""",
        lambda s: s,
    ),
    "of functions": (
        "(X[N, D], Y[M, D]) -> (S) { S[i, j : N, M] = +((X[i, d] - 2 * Y[j, d]) * (X[i, d] - 2 * Y[j, d])); }",
        None,
    ),
}  # fmt: skip
POINTS = {
    "normal": lambda x, y: (x, y),
    "far from 0": lambda x, y: (x + 1e4, y + 1e4),
    "some the same": lambda x, y: (torch.cat([y[..., :9, :], x[..., 9:, :]], -2), y),
    "in two places": lambda x, y: (x * 1e-3 + 5 * (x[..., :1] > 0), y * 1e-3 + 5 * (y[..., :1] > 0)),
    "large": lambda x, y: (x * 1e18, y * 1e18),
    "small": lambda x, y: (x * 1e-16, y * 1e-16),
    "not finite": lambda x, y: (
        x.index_fill(-2, torch.tensor([3]), torch.inf),
        y.index_fill(-2, torch.tensor([5]), torch.nan),
    ),
    "the first infinite": lambda x, y: (x, y.index_fill(-2, torch.tensor([0]), torch.inf)),
}


@pytest.fixture(autouse=True)
def _smaller(monkeypatch):
    monkeypatch.setattr(distances, "LEAST_POINTS", 0)
    monkeypatch.setattr(distances, "DISTANCE_BLOCK", Config(32, 32, 16, 4, 2))


@pytest.mark.parametrize(
    ("program", "points"), [*((p, "normal") for p in PROGRAMS), *(("pairs", p) for p in POINTS)], ids=str
)
@pytest.mark.one_in(4)
def test_values_and_gradients(program, points):
    source, formula = PROGRAMS[program]
    generator = torch.Generator().manual_seed(0)
    lead = (2,) if program == "batched" else ()
    x, y = (torch.randn(*lead, n, 37, generator=generator) for n in (65, 70))
    x, y = POINTS[points](x, y)
    f = tilec.compile(f"function {source}", backend="triton")
    assert any("distances" in k.name for k in f.lower(x, y).kernels)

    def exact(x, y):
        s = (x[..., :, None, :] - (2 * y if formula is None else y)[..., None, :, :]).square().sum(-1)
        return s if formula is None else formula(s)

    want = exact(x.double(), y.double())
    torch.testing.assert_close(f(x, y).double(), want.float().double(), rtol=1e-5, atol=0, equal_nan=True)
    if points != "normal":
        return
    leaves = [t.double().requires_grad_() for t in (x, y)]
    cotangent = torch.randn(want.shape, generator=generator)
    wanted = torch.autograd.grad(exact(*leaves), leaves, cotangent.double())
    found = torch.autograd.grad(f(x.requires_grad_(), y.requires_grad_()), (x, y), cotangent)
    for g, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(g.double(), w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("text", [
    "S[i, j : N, M] = +(abs(X[i, d] - Y[j, d]) * abs(X[i, d] - Y[j, d]));",
    "S[i, j : N, M] = +((X[i, d] - Y[j, d]) * (Y[j, d] - X[i, d]));",
    "S[i, j : N, M] = +(j > d ? (X[i, d] - Y[j, d]) * (X[i, d] - Y[j, d]));",
    "S[i, j : N, M] = +((X[i, d] - Y[i + j, d]) * (X[i, d] - Y[i + j, d]));",
])  # fmt: skip
def test_what_is_none(text):
    f = tilec.compile(f"function (X[N, D], Y[M, D]) -> (S) {{ {text} }}", backend="triton")
    assert not any("distances" in k.name for k in f.lower(torch.ones(40, 40), torch.ones(90, 40)).kernels)


@pytest.mark.parametrize("terms", [33, 40])
def test_operands_are_filled_to_whole_vectors(terms):
    """Parts of rows that begin between vectors would be read element by element."""
    f = tilec.compile(f"function {PROGRAMS['pairs'][0]}", backend="triton")
    x, y = torch.randn(70, terms), torch.randn(90, terms)
    lowered = f.lower(x, y)
    assert ("left_filled" in lowered.source()) == (terms % 8 > 0)
    assert any("distances" in k.name for k in lowered.kernels)
    want = (x[:, None].double() - y.double()).square().sum(-1)
    torch.testing.assert_close(f(x, y).double(), want, rtol=1e-5, atol=0)
