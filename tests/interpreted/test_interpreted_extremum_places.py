"""Gradients of extrema of distances by the places that the forward pass finds, and with ties."""

from __future__ import annotations

import os

import pytest
import torch

import tilec
from tilec import saving
from tilec.backends.common.operands import extremum_places
from tilec.backends.triton import TritonBackend
from tilec.backends.triton.fusion.recomputed import tile_extrema
from tilec.backends.triton.matmul import distances
from tilec.backends.triton.plan import choices

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1"
)

SQUARES = "S[i, j : N, M] = +((X[i, d] - Y[j, d]) * (X[i, d] - Y[j, d]));"
PROGRAMS = {
    "rows": (f"{SQUARES} O[i : N] = <(S[i, j]);", lambda s: s.amin(1)),
    "columns, the farthest": (f"{SQUARES} O[j : M] = >(S[i, j]);", lambda s: s.amax(0)),
    "both": (
        f"{SQUARES} P[i : N] = <(S[i, j]); Q[j : M] = <(S[i, j]); A = sum(P[i]); B = sum(sqrt(Q[j] + 1)); O = A * B;",
        lambda s: s.amin(1).sum() * (s.amin(0) + 1).sqrt().sum(),
    ),
    "the greatest of the least": (f"{SQUARES} P[i : N] = <(S[i, j]); O = max(P[i]);", lambda s: s.amin(1).amax()),
    "nested": (
        "O[n] = min[j](sum[i]((X[j, i] - Y[n, i]) * (X[j, i] - Y[n, i])));",
        lambda s: s.amin(0),
    ),
    "used elsewhere": (
        f"{SQUARES} P[i : N] = <(S[i, j]); O[i : N] = P[i] * sum(exp(-0.1 * S[i, j]));",
        lambda s: s.amin(1) * (-0.1 * s).exp().sum(1),
    ),
}
POINTS = {
    "apart": lambda x, y: (x, y),
    "some twice": lambda x, y: (torch.cat([y[:5] + 0.01, x[5:]]), torch.cat([y[:9], y[:9], y[18:]])),
    "some three times": lambda x, y: (torch.cat([y[:5] + 0.01, x[5:]]), torch.cat([y[:9], y[:9], y[:9], y[27:]])),
    "on a grid": lambda x, y: ((2 * x).round(), (2 * y).round()),
    "not finite": lambda x, y: (
        x.index_fill(0, torch.tensor([3]), torch.inf).index_fill(0, torch.tensor([4]), torch.nan),
        y.index_fill(0, torch.tensor([5]), torch.inf),
    ),
}


@pytest.fixture(autouse=True)
def _smaller(monkeypatch):
    monkeypatch.setattr(distances, "LEAST_POINTS", 0)
    monkeypatch.setattr(tile_extrema, "LEAST_TILES", 1)
    monkeypatch.setattr(extremum_places, "LEAST_WORK_OF_PAIRS", 0)
    monkeypatch.setattr(choices, "LEAST_RARE_WORK", 0)
    monkeypatch.setattr(saving, "LEAST_WORK_SPARED", 0)


def gradients(text, x, y, again=False):
    f = tilec.compile(f"function (X[N, D], Y[M, D]) -> (O) {{ {text} }}", backend="triton")
    given = [t.clone().requires_grad_() for t in (x, y)]
    out = f(*given)
    places = [t for t in out.grad_fn.saved_tensors if t.dtype == torch.int32]
    weights = torch.linspace(0.5, 2, out.numel()).reshape(out.shape)
    return out.detach(), places, torch.autograd.grad(out, given, weights, create_graph=again), given


def points(kind, rows=77, columns=83, terms=32):
    generator = torch.Generator().manual_seed(2)
    return POINTS[kind](torch.randn(rows, terms, generator=generator), torch.randn(columns, terms, generator=generator))


@pytest.mark.covering
@pytest.mark.parametrize("budget", [None, 12_000])
@pytest.mark.parametrize("kind", POINTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients(name, kind, budget, monkeypatch):
    if budget is not None:
        monkeypatch.setenv("TILEC_DEVICE_BUDGET", str(budget))
    text, formula = PROGRAMS[name]
    x, y = points(kind)
    value, places, found, _ = gradients(text, x, y)
    assert bool(places) == (name != "used elsewhere")  # where distances are needed anyway
    monkeypatch.setattr(TritonBackend, "chooses", False)
    before, none, compared, _ = gradients(text, x, y)
    assert not none
    torch.testing.assert_close(value, before, equal_nan=True)
    for a, b in zip(found, compared, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)
    if kind != "not finite":
        given = [t.double().requires_grad_() for t in (x, y)]
        wanted = formula(((given[0][:, None] - given[1]) ** 2).sum(-1))
        torch.testing.assert_close(value.double(), wanted.detach(), rtol=1e-5, atol=1e-5)
        weights = torch.linspace(0.5, 2, wanted.numel(), dtype=torch.float64).reshape(wanted.shape)
        for a, b in zip(found, torch.autograd.grad(wanted, given, weights, retain_graph=True), strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-4 * float(b.abs().max()))


@pytest.mark.parametrize("kind", ["apart", "some twice"])
def test_second_derivatives(kind):
    x, y = points(kind, 50, 50)
    text, formula = PROGRAMS["both"]
    _, _, found, given = gradients(text, x, y, again=True)
    exact = [t.double().requires_grad_() for t in (x, y)]
    value = formula(((exact[0][:, None] - exact[1]) ** 2).sum(-1))
    wanted = torch.autograd.grad(value, exact, torch.tensor(0.5, dtype=torch.float64), create_graph=True)
    directions = [torch.cos(torch.arange(t.numel(), dtype=torch.float64)).reshape(t.shape) for t in (x, y)]
    second = torch.autograd.grad(found, given, [d.float() for d in directions])
    for a, b in zip(second, torch.autograd.grad(wanted, exact, directions), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4 * float(b.abs().max()))


@pytest.mark.parametrize(("rows", "columns"), [(0, 40), (40, 0), (1, 40), (40, 1)])
def test_empty_and_single(rows, columns):
    _, _, found, given = gradients(PROGRAMS["rows"][0], torch.randn(rows, 32), torch.randn(columns, 32))
    assert [g.shape for g in found] == [t.shape for t in given]
    if rows and columns == 1:
        x, y = (t.detach() for t in given)
        weights = torch.linspace(0.5, 2, rows)[:, None]
        torch.testing.assert_close(found[0].detach(), 2 * weights * (x - y), rtol=1e-5, atol=1e-5)


def test_a_kernel_looks_whether_its_results_are_read():
    """A choice by data: kernels of what is rarely read are given the condition, and leave at once."""
    f = tilec.compile(
        """
        function (X[N, D], Y[D, M], T[N]) -> (O) {
            Rare[] = any(T[i] < 0);
            A[i, j] = +(X[i, d] * Y[d, j]);
            O[i, j : N, M] = Rare[] ? A[i, j] * A[i, j] : T[i];
        }
        """,
        backend="triton",
    )
    x, y = torch.randn(20, 17), torch.randn(17, 33)
    assert "Needed" in f.lower(x, y, torch.ones(20)).source()
    for t in (torch.ones(20), torch.ones(20).index_fill(0, torch.tensor([7]), -1)):
        wanted = (x @ y).square() if (t < 0).any() else t[:, None].expand(20, 33)
        torch.testing.assert_close(f(x, y, t), wanted, rtol=1e-4, atol=1e-4)


def test_a_choice_that_another_one_is_made_of():
    """What reads a choice is made after it, though nothing reads that either unless the condition holds."""
    text = """
        function (X[N], T[N]) -> (O, L) {
            Rare[] = any(T[i] < 0);
            A[i] = exp(X[i]) + X[0];
            L[i] = Rare[] ? A[i] : T[i];
            B[i] = sum[j](L[j]) * X[i];
            O[i] = Rare[] ? B[i] : 1;
        }
    """
    f = tilec.compile(text, backend="triton")
    x, t = torch.linspace(-1, 1, 37), torch.linspace(0.1, 2, 37)
    assert "Needed" in f.lower(x, t).source()
    for given in (t, -t):
        for found, wanted in zip(f(x, given), tilec.compile(text, backend="torch")(x, given), strict=True):
            torch.testing.assert_close(found, wanted)
