"""Elements that all points of a run read, interpreted: read at the run's place, before its points."""

import os
import re

import pytest
import torch

import tilec
from tilec.backends.triton.scatter import runs, scatter

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

POINTS, ROWS = 300, 11
# a statement; whether its kernel reads R at the place of the run
CASES = {
    "the element itself": ("Y[T[m] : N] = +(X[m, 0] * R[T[m], 0]);", True),
    "a row": ("Y[T[m], d : N, D] = +(X[m, d] == R[T[m], d] ? 1 : 0.5);", True),
    "another column": ("Y[T[m], d : N, D] = >(X[m, d] * R[T[m], D - 1 - d]);", True),
    "one place before": ("Y[T[m] + 1, d : N, D] = <(X[m, d] - R[T[m] + 1, d]);", True),
    "in a larger tensor": ("Y[T[m], d : N - 2, D] = +(X[m, d] + R[T[m] + 2, d]);", True),
    "in a smaller tensor": ("Y[T[m], d : N + 3, D] = +(X[m, d] * R[T[m], d]);", False),
    "padded, in a smaller tensor": ("Y[T[m], d : N + 3, D] = +(X[m, d] * pad(R[T[m], d], 2));", False),
    "padded": ("Y[T[m], d : N, D] = +(X[m, d] * pad(R[T[m], d], 2));", True),
    "of places in a tensor": ("Y[T[m], d : N, D] = +(X[m, d] * R[clamp(U[T[m]], 0, N - 1), d]);", True),
    "of places beside": ("Y[T[m], d : N, D] = +(X[m, d] * R[T[m], (m + d) % D]);", False),
    "two places": ("Y[d, T[m], U[m] : D, N, M] = +(X[m, d] * R[T[m], d] + U[m]);", True),
    "both of two places": ("Y[T[m], U[m] : N, N] = +(X[m, 0] * Q[T[m], U[m]] * R[U[m], 1]);", True),
    "a place and a variable": ("Y[m / 100, T[m] : 3, N] = +(X[m, 1] * R[T[m], 1]), m < 300;", True),
    "products": ("Y[T[m], d : N, D] = *(1 + X[m, d] / 40 / (1 + R[T[m], d] * R[T[m], d]));", True),
    "kept by default": ("Y[T[m], d : N, D] = +(X[m, d] * R[T[m], d]) default R;", True),
    "summed first": ("Y[T[m] : N] = +(X[m, d] * R[T[m], d]);", False),
}


@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.covering
@pytest.mark.one_in(5)
def test_what_is_at_the_place_of_a_run(name: str, pieces: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "FEW_AT_AN_ELEMENT", 0)
    monkeypatch.setattr(runs, "FEWEST_OF_PIECE", 4)
    body, at_run = CASES[name]
    source = f"function (X[M, D], T[M], U[M], R[N, D], Q[N, N]) -> (Y) {{ {body} }}"
    g = torch.Generator().manual_seed(0)
    places = torch.randint(-2, ROWS + 3, (POINTS,), generator=g)
    places = torch.where(torch.rand(POINTS, generator=g) < 0.6, 4, places) if pieces else places
    shapes = (POINTS, 3), (ROWS, 3), (ROWS, ROWS)
    x, r, q = (torch.randn(shape, generator=g) for shape in shapes)
    given = x, places, torch.randint(-2, ROWS + 3, (POINTS,), generator=g), r, q
    f = tilec.compile(source, backend="triton")
    wanted = tilec.compile(source, backend="torch")(*(t.double() if t.is_floating_point() else t for t in given))
    torch.testing.assert_close(f(*given).double(), wanted, rtol=1e-4, atol=1e-4)
    (kernel,) = [k for k in f.lower(*given).kernels if k.name == "Y_segments"]
    before = kernel.source[: kernel.source.index("for first")]
    assert bool(re.search(r"tl\.load\(R \+", before)) is at_run


def test_attention_over_edges_reads_the_sums_of_nodes_once() -> None:
    source = """function (P[M], S[M], D[M], H[V, C]) -> (Y) {
        T[D[m] : V] = +(P[m]); Y[D[m], c : V, C] = +(H[S[m], c] * P[m] / T[D[m]]);
    }"""
    edges, at = tilec.spec((5000,)), tilec.spec((5000,), "int64")
    f = tilec.compile(source, backend="triton")
    kernels = {k.name: k.source for k in f.lower(edges, at, at, tilec.spec((900, 64))).kernels}
    before, points = kernels["Y_segments"].split("for first", 1)
    assert "tl.load(T +" in before and "tl.load(D" not in points
