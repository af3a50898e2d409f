"""Intermediates whose rows have room behind them, up to whole vectors: kernels read and write these as such."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.schedule import planner

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

SCORES = "S[i, j : N, M] = +(A[i, d] * B[j, d]);"
BOTH = "O[i, d : N, D] = +({0}[i, j] * B[j, d]); Q[j, d : M, D] = +({0}[i, j] * A[i, d]);"
PROGRAMS = {  # and what lies in such rows
    "row by row": (SCORES + "P[i, j : N, M] = exp(S[i, j] / 8 - max(S[i, k]) / 8);" + BOTH.format("P"), "SP"),
    "statistics": (
        SCORES + "O[i : N] = logsumexp(S[i, j]) - min(S[i, j]); Q[j, d : M, D] = +(S[i, j] * A[i, d]);",
        "S",
    ),
    "maps": (SCORES + "T = relu(S + C); O = T * S;" + BOTH.format("T").replace("O[", "R["), "ST"),
    "sums over rows": (
        SCORES + "P[i, j : N, M] = silu(S[i, j]) * max(S[i, k]); G[j : M] = +(P[i, j]); H = G * C;" + BOTH.format("P"),
        "SP",
    ),
}


@pytest.fixture
def padded(monkeypatch):
    """Makes intermediates of these names lie so, and fills what is allocated with NaN."""

    def begin(names: str) -> None:
        found = frozenset(names)
        monkeypatch.setattr(planner._Planner, "copied_rows", lambda self, units: found & self.types.keys())
        empty = torch.empty
        monkeypatch.setattr(torch, "empty", lambda *size, **how: _filled(empty(*size, **how)))

    return begin


def _filled(t: torch.Tensor) -> torch.Tensor:
    return t.fill_(torch.nan) if t.is_floating_point() else t


SIZES = [(1, 65), (9, 83), (5, 150), (3, 1030), (2, 2251)]
LONG = pytest.param(2, 9001, marks=pytest.mark.slow)  # a block as 2251 columns have, of four times the length


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows, columns", [*SIZES, LONG])
@pytest.mark.parametrize("name", PROGRAMS)
def test_whole_vectors_are_read_and_written(name, rows, columns, dtype, padded):
    text, names = PROGRAMS[name]
    results = [v for v in "OQRH" if f"{v}[" in text or f"{v} =" in text]
    source = f"function (A[N, D], B[M, D], C[M]) -> ({', '.join(results)}) {{ {text} }}"
    g = torch.Generator().manual_seed(columns)
    tensors = [(torch.randn(shape, generator=g) / 2).to(dtype) for shape in ((rows, 16), (columns, 16), (columns,))]
    wanted = tilec.compile(source, backend="torch")(*(t.double() for t in tensors))
    padded(names)
    f = tilec.compile(source, backend="triton")
    for value, exact in zip(f(*tensors), wanted, strict=True):
        assert (value.double() - exact).norm() <= 1e-2 * exact.norm()
    assert rows == 1 or "near_in" in f.lower(*tensors).source()


def test_rows_of_whole_vectors_need_no_other_test(padded):
    padded("S")
    f = tilec.compile(f"function (A[N, D], B[M, D]) -> (O, Q) {{ {PROGRAMS['statistics'][0]} }}", backend="triton")
    source = f.lower(tilec.spec((9, 16), "bfloat16"), tilec.spec((80, 16), "bfloat16")).source()
    assert "S[i, j]" in source and "near_in" not in source


def test_rows_without_room_are_tested_element_by_element(padded):
    """Memory of float32 has none behind its rows, whoever copies them."""
    padded("SP")
    f = tilec.compile(f"function (A[N, D], B[M, D]) -> (O, Q) {{ {PROGRAMS['row by row'][0]} }}", backend="triton")
    source = f.lower(tilec.spec((9, 16), "float32"), tilec.spec((83, 16), "float32")).source()
    assert "S[i, j]" in source and "near_in" not in source
