"""Squared distances as products of matrices: accurate wherever points lie, against torch in float64."""

from __future__ import annotations

import os

import pytest
import torch

import tilec
from tilec.backends.triton.fusion.recomputed import tile_extrema
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
    for module in (distances, tile_extrema):
        monkeypatch.setattr(module, "DISTANCE_BLOCK", Config(32, 32, 16, 4, 2))
    monkeypatch.setattr(tile_extrema, "EXTREMA_BLOCK", Config(64, 64, 16, 4, 2))
    monkeypatch.setattr(tile_extrema, "LEAST_TILES", 1)
    monkeypatch.setattr(tile_extrema, "MOST_TERMS_AGAIN", 128)


@pytest.mark.parametrize(
    ("program", "points"), [*((p, "normal") for p in PROGRAMS), *(("pairs", p) for p in POINTS)], ids=str
)
@pytest.mark.one_in(8)
def test_values_and_gradients(program, points):
    source, formula = PROGRAMS[program]
    generator = torch.Generator().manual_seed(0)
    lead = (2,) if program == "batched" else ()
    x, y = (torch.randn(*lead, n, 37, generator=generator) for n in (65, 70))
    x, y = POINTS[points](x, y)
    f = tilec.compile(f"function {source}", backend="triton")
    assert any(k.name.startswith(("S_distances", "S_extrema")) for k in f.lower(x, y).kernels)

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


OF_ROWS = "O[i : N] = {}(S[i, j]);"
EXTREMA = {
    "min": (OF_ROWS.format("min"), lambda s: (s.amin(-1),)),
    "max": (OF_ROWS.format("max"), lambda s: (s.amax(-1),)),
    "argmin": (OF_ROWS.format("argmin"), lambda s: (s.argmin(-1),)),
    "argmax": (OF_ROWS.format("argmax"), lambda s: (s.argmax(-1),)),
    "argmin of columns": ("O[j : M] = argmin(S[i, j]);", lambda s: (s.argmin(-2),)),
    "both sides": ("O[i : N] = min(S[i, j]); P[j : M] = min(S[i, j]);", lambda s: (s.amin(-1), s.amin(-2))),
    "values and places": ("O[i : N] = min(S[i, j]); P[j : M] = argmax(S[i, j]); Q[i : N] = argmin(S[i, j]);",
                          lambda s: (s.amin(-1), s.argmax(-2), s.argmin(-1))),
}  # fmt: skip


@pytest.mark.parametrize("statements", EXTREMA)
@pytest.mark.parametrize("points", POINTS)
@pytest.mark.parametrize("many", (False, True))
@pytest.mark.one_in(18)
def test_extrema_of_tiles(statements, points, many, monkeypatch):
    """Distances of which extrema alone are asked for are not stored; of points that are the same the first counts."""
    monkeypatch.setattr(tile_extrema, "WAVES", 0 if many else 16)
    text, formula = EXTREMA[statements]
    outputs = ", ".join(s.split("[")[0].strip() for s in text.split(";") if s.strip())
    source = f"function (X[N, D], Y[M, D]) -> ({outputs}) {{ S[i, j : N, M] = +({SQUARES}); {text} }}"
    generator = torch.Generator().manual_seed(1)
    x, y = POINTS[points](*(torch.randn(n, 37, generator=generator).round(decimals=1) for n in (70, 98)))
    y[40] = y[7]
    y[70] = y[7]
    f = tilec.compile(source, backend="triton")
    lowered = f.lower(x, y)
    assert "S_extrema" in [k.name for k in lowered.kernels] and lowered.temporary_bytes < 10 * 4 * (
        x.numel() + y.numel()
    )
    (launch,) = (line for line in lowered.source().splitlines() if "S_extrema[" in line)
    assert ("BM=64" in launch) == (many and "arg" not in text), launch
    found = f(x, y)
    found = found if isinstance(found, tuple) else (found,)
    s = (x.double()[:, None] - y.double()).square().sum(-1).float()
    for got, want in zip(found, formula(s), strict=True):
        if got.dtype.is_floating_point:
            torch.testing.assert_close(got, want, rtol=1e-5, atol=0, equal_nan=True)
            continue
        along = -1 if len(got) == len(x) else -2
        there, best = (s.gather(along, p.unsqueeze(along)) for p in (got, want))
        torch.testing.assert_close(there, best, rtol=1e-5, atol=0, equal_nan=True)


@pytest.mark.parametrize("text", [
    "O[i : N] = min(S[i, j]); P[i, j : N, M] = S[i, j] * S[i, j - 1];",
    "O[i : N] = min(S[i, j]); P[i : N] = +(S[i, j] * S[i, j - 1]);",
    "O[i : N] = min(S[i, j]), j < 9; P[i : N] = max(S[i, j]);",
    "O[i : N] = min(S[i, j]); P[i : N] = +(S[i, j] == O[i] ? 1.0);",
])  # fmt: skip
def test_distances_that_others_read_are_stored(text):
    source = f"function (X[N, D], Y[M, D]) -> (O, P) {{ S[i, j : N, M] = +({SQUARES}); {text} }}"
    x, y = torch.randn(70, 37), torch.randn(75, 37)
    f = tilec.compile(source, backend="triton")
    assert "S_extrema" not in [k.name for k in f.lower(x, y).kernels]
    s = (x[:, None] - y).square().sum(-1)
    torch.testing.assert_close(f(x, y)[0], (s[:, :9] if "j < 9" in text else s).amin(-1))


SUMS = {
    "of rows": ("O[i : N] = sum(exp(-S[i, j] / 40));", 1, lambda s, v: ((-s / 40).exp().sum(-1),)),
    "weighted columns": ("O[j : M] = sum(exp(-S[i, j] / 40) * X[i, 0]);", 1,
                         lambda s, v: (((-s / 40).exp() * v[:, None]).sum(0),)),
    "of all": ("O[] = mean(1 / (1 + S[i, j]));", 1, lambda s, v: ((1 / (1 + s)).mean(),)),
    "beside extrema": ("O[i : N] = min(S[i, j]); P[] = mean(sqrt(S[i, j] + 1));", 1,
                       lambda s, v: (s.amin(-1), (s + 1).sqrt().mean())),
    "of rows and each": ("O[i : N] = min(S[i, j]); P = exp(-S);", 1, lambda s, v: (s.amin(-1), (-s).exp())),
    "by their mean": ("H[] = mean(S[i, j]); P[i : N] = min(S[i, j]); O[i : N] = sum(exp(-S[i, j] / H[]) * P[i]);", 2,
                      lambda s, v: ((-s / s.mean()).exp().sum(-1) * s.amin(-1),)),
}  # fmt: skip


@pytest.mark.parametrize("statements", SUMS)
@pytest.mark.parametrize("points", ("normal", "some the same"))
@pytest.mark.parametrize("many", (False, True))
@pytest.mark.one_in(5)
def test_sums_by_tiles(statements, points, many, monkeypatch):
    """Distances that are summed up alone are not stored, and computed again for what needs another of their sums."""
    monkeypatch.setattr(tile_extrema, "WAVES", 0 if many else 16)
    text, kernels, formula = SUMS[statements]
    outputs = "O, P" if "O[i : N] = min" in text else "O"
    source = f"function (X[N, D], Y[M, D]) -> ({outputs}) {{ S[i, j : N, M] = +({SQUARES}); {text} }}"
    generator = torch.Generator().manual_seed(1)
    x, y = POINTS[points](*(torch.randn(n, 37, generator=generator) for n in (70, 98)))
    f = tilec.compile(source, backend="triton")
    lowered = f.lower(x, y)
    assert sum("_extrema" in k.name for k in lowered.kernels) == kernels
    assert lowered.temporary_bytes < 12 * 4 * (x.numel() + y.numel())
    found = f(x, y)
    found = found if isinstance(found, tuple) else (found,)
    s = (x.double()[:, None] - y.double()).square().sum(-1)
    for got, want in zip(found, formula(s, x[:, 0].double()), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=1e-6)


GRADIENTS = {
    "of rows": ("sum(exp(-S[i, j]))", lambda x, y, s: (-s).exp().sum(-1)),
    "weighted": ("sum(exp(-S[i, j] / 9) * Y[j, 0])", lambda x, y, s: (-s / 9).exp() @ y[:, 0]),
    "a mixture": ("sum(exp(-S[i, j]) * Y[j, 1]) / sum(exp(-S[i, j]))",
                  lambda x, y, s: (-s).exp() @ y[:, 1] / (-s).exp().sum(-1)),
    "by their mean": ("sum(exp(-S[i, j] / mean[k, l](S[k, l])))", lambda x, y, s: (-s / s.mean()).exp().sum(-1)),
}  # fmt: skip


@pytest.mark.parametrize("text", GRADIENTS)
@pytest.mark.parametrize("points", ("normal", "some the same"))
@pytest.mark.covering
def test_gradients_of_sums_by_tiles(text, points):
    """What the products of a gradient take is stored beside sums of it, and the distances are not."""
    body, formula = GRADIENTS[text]
    source = f"function (X[N, D], Y[M, D]) -> (O) {{ S[i, j : N, M] = +({SQUARES}); O[i : N] = {body}; }}"
    generator = torch.Generator().manual_seed(1)
    x, y = POINTS[points](*(torch.randn(n, 37, generator=generator) / 6 for n in (70, 98)))
    f = tilec.compile(source, backend="triton")
    gradient = f.grad().lower(x, y, x[:, 0])
    names = [k.name for k in gradient.kernels]
    assert "S_distances" not in names and any("_extrema" in name for name in names), names
    x, y = x.requires_grad_(), y.requires_grad_()
    weights = torch.randn(70, generator=generator)
    made = torch.autograd.grad(f(x, y), (x, y), weights)
    wide = x.detach().double().requires_grad_(), y.detach().double().requires_grad_()
    want = formula(*wide, (wide[0][:, None] - wide[1]).square().sum(-1))
    for got, exact in zip(made, torch.autograd.grad(want, wide, weights.double()), strict=True):
        torch.testing.assert_close(got.double(), exact, rtol=2e-5, atol=2e-5 * exact.abs().max().item())
