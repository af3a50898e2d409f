"""Scatters, interpreted: runs of every length, all aggregations and types, what needs no order, the same every time."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.schedule import planner

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

POINTS = 1100  # more than one program combines of a run
SORTED = ["Y_at_kernel", "Y_pieces", "Y_segments"]
CASES = {  # source, kernels
    "rows": ("function (X[M, D], T[M]) -> (Y) { Y[T[m], d : 9, D] = +(X[m, d]); }", SORTED),
    "rows of another tensor": (
        "function (X[M, D], T[M], A[M]) -> (Y) { Y[T[m], d : 9, D] = +(X[A[m], d] * X[m, 0]); }",
        SORTED,
    ),
    "summed beside": (
        "function (X[M, D], T[M], A[M]) -> (Y) { Y[T[m] : 9] = +(X[A[m], d]); }",
        ["Y_values_kernel", *SORTED],
    ),
    "a guard of each column": (
        "function (X[M, D], T[M]) -> (Y) { Y[T[m], d : 9, D] = >(X[m, d] > 0 & T[m] != 3 ? X[m, d]); }",
        SORTED,
    ),
    "many elements, few points of each": (
        "function (X[M, D], T[M]) -> (Y) { Y[T[m], m % 250 : 9, 250] = *(X[m, 1]); }",
        SORTED,
    ),
    "a window": ("function (X[M, D], T[M]) -> (Y) { Y[T[m] + d : 9] = +(X[m, d] * d); }", SORTED),
    "kept by default": (
        "function (X[M, D], T[M], Z[N, D]) -> (Y) { Y[T[m] + 2, d : N, D] = +(X[m, d]) default Z; }",
        SORTED,
    ),
    "logsumexp at a remainder": ("function (X[M, D]) -> (Y) { Y[m % 7, d : 7, D] = logsumexp(X[m, d]); }", SORTED),
    "any": ("function (X[M, D], T[M]) -> (Y) { Y[T[m], d : 9, D] = >(X[m, d] > 2); }", SORTED),
    "histogram": ("function (T[M]) -> (Y) { Y[T[m] : 9] = +(1); }", ["Y_counts"]),
    "histogram of some": ("function (T[M], A[M]) -> (Y) { Y[T[m]  : 9] = +(A[m] > 4 ? 3), m < 700; }", ["Y_counts"]),
    "whole numbers": ("function (T[M], A[M]) -> (Y) { Y[A[m], T[m] : 60, 9] = +(T[m] * 2); }", ["Y_each"]),
    "greatest": ("function (T[M], A[M]) -> (Y) { Y[A[m], T[m] : 60, 9] = >(int32(m)); }", ["Y_each"]),
    "least, in columns": (
        "function (T[M], A[M]) -> (Y) { Y[A[m], T[m], k : 60, 9, 3] = <(m - 5*k), k < 3; }",
        ["Y_each"],
    ),
    "few elements": ("function (T[M], A[M]) -> (Y) { Y[T[m] : 9] = +(A[m]); }", SORTED),
}


def inputs(source: str, dtype: torch.dtype) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    found = {
        "X": torch.randint(-4, 5, (POINTS, 5), generator=g).to(dtype),
        "T": torch.where(torch.rand(POINTS, generator=g) < 0.6, 4, torch.randint(-2, 12, (POINTS,), generator=g)),
        "A": torch.randint(0, 50, (POINTS,), generator=g),
        "Z": torch.randint(-4, 5, (14, 5), generator=g).to(dtype),
    }
    declared = source[source.index("(") + 1 : source.index(")")]
    return [found[text.strip()[0]] for text in declared.replace("M, D", "").replace("N, D", "").split(",")]


@pytest.mark.parametrize("name", CASES)
def test_runs(name: str) -> None:
    source, kernels = CASES[name]
    for dtype in (torch.float32, torch.float16) if "X" in source else (torch.float32,):
        tensors = inputs(source, dtype)
        f = tilec.compile(source, backend="triton")
        got = f(*tensors)
        wide = [t.double() if t.is_floating_point() else t for t in tensors]
        wanted = tilec.compile(source, backend="torch")(*wide)
        torch.testing.assert_close(
            got.double(), wanted.double(), rtol=2e-3 if dtype is torch.float16 else 1e-5, atol=1e-4
        )
        assert torch.equal(got, f(*tensors))
    assert [k.name for k in f.lower(*tensors).kernels] == kernels


def test_a_run_of_all_points_and_none() -> None:
    x = torch.ones(POINTS, 3)
    f = tilec.compile("function (X[M, D], T[M]) -> (Y) { Y[T[m], d : 4, D] = +(X[m, d]); }", backend="triton")
    for place in (0, 3, -1, 4):
        wanted = torch.zeros(4, 3)
        if 0 <= place < 4:
            wanted[place] = POINTS
        assert torch.equal(f(x, torch.full((POINTS,), place)), wanted)


def test_programs_of_two_axes_in_line(monkeypatch):
    """As where there are more columns than a grid's second axis is long."""
    monkeypatch.setattr(planner, "MOST_DOWN", 1)
    f = tilec.compile("function (X[M, D], T[M]) -> (Y) { Y[T[m], d : 4, D] = +(X[m, d]); }", backend="triton")
    x = torch.randn(5, 700, generator=torch.Generator().manual_seed(0))
    found = f(x, torch.tensor([0, 3, 0, 7, -1]))
    torch.testing.assert_close(found, torch.stack([x[0] + x[2], 0 * x[0], 0 * x[0], x[1]]))
