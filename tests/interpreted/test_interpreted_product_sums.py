"""Products that a sum takes, one batch after the other, are added up where they are computed."""

from __future__ import annotations

import os

import pytest
import torch

import tilec
from tilec.backends.triton.schedule import product_sums

HEAD = "function (A[M, G, K], S[M, G], W[N, G, K], T[N, G]) -> (Y) { "
WHOLE = HEAD + "P[m, n, g] = sum(int32(A[m, g, k]) * int32(W[n, g, k])); "
FLOATS = HEAD + "P[m, n, g] = sum(A[m, g, k] * W[n, g, k]); Y[m, n] = sum(P[m, n, g] * S[m, g] * T[n, g]); }"
TOGETHER = {  # what a sum makes of the products: in one kernel
    "cast": WHOLE + "Y[m, n] = sum(float32(P[m, n, g]) * S[m, g] * T[n, g]); }",
    "promoted": WHOLE + "Y[m, n] = sum(P[m, n, g] * S[m, g] * T[n, g]); }",
    "squared as integers": WHOLE + "Y[m, n] = sum(P[m, n, g] * P[m, n, g] * S[m, g] * T[n, g]); }",
    "divided as integers": WHOLE + "Y[m, n] = sum((P[m, n, g] / 3) * S[m, g] * T[n, g]); }",
    "cut": WHOLE + "Y[m, n] = sum(relu(P[m, n, g] * S[m, g] - T[n, g])); }",
    "batches first": WHOLE.replace("P[m, n, g]", "P[g, n, m]") + "Y[n, m] = sum(P[g, n, m] * S[m, g] * T[n, g]); }",
}
APART = {
    "over rows": WHOLE + "Y[n, g] = sum(P[m, n, g] * S[m, g] * T[n, g]); }",
    "of some batches": WHOLE + "Y[m, n] = sum(P[m, n, g] * S[m, g] * T[n, g]), g < 2; }",
    "under a guard": WHOLE + "Y[m, n] = sum(g > 1 ? P[m, n, g] * S[m, g] * T[n, g]); }",
    "read twice": WHOLE + "Y[m, n] = sum(P[m, n, g] * S[m, g] * T[n, g] * P[m, n, 1]); }",
    "an output": WHOLE.replace("(Y)", "(Y, P)") + "Y[m, n] = sum(P[m, n, g] * S[m, g] * T[n, g]); }",
}
CASES = {**TOGETHER, **APART}
SPECS = [tilec.spec((2048, 16, 128), "int8"), tilec.spec((2048, 16))] * 2
interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1"
)


@pytest.mark.parametrize("name", CASES)
def test_one_kernel(name: str) -> None:
    source = tilec.compile(CASES[name], backend="triton").lower(*SPECS, target="sm_90").source()
    assert ("P_added[" in source) == (name in TOGETHER)


def test_few_programs() -> None:
    specs = [tilec.spec((n, 16, 128), "int8") if k else tilec.spec((n, 16)) for n in (64, 2048) for k in (1, 0)]
    assert "P_added" not in tilec.compile(CASES["cast"], backend="triton").lower(*specs, target="sm_90").source()


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_sums, "MULTIPROCESSORS", 0)
    monkeypatch.setattr(product_sums, "_pays", lambda *a: True)


def given(m: int, n: int, g: int, k: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    a, w = (torch.randint(-128, 128, (r, g, k), generator=generator).to(torch.int8) for r in (m, n))
    return [a, torch.rand((m, g), generator=generator), w, torch.rand((n, g), generator=generator)]


@pytest.mark.one_in(3)
@interpreted
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sizes", [(33, 20, 3, 32), pytest.param((16, 17, 2, 70), marks=pytest.mark.slow)])
def test_integers(name: str, sizes: tuple[int, int, int, int], always: None) -> None:
    values = given(*sizes)
    found = tilec.compile(CASES[name], backend="triton")(*values)
    wanted = tilec.compile(CASES[name], backend="torch")(*(v.double() if v.is_floating_point() else v for v in values))
    for f, w in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, wanted)), strict=True):
        assert (f.double() - w.double()).norm() <= 1e-6 * w.double().norm()


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_floats(dtype: torch.dtype, always: None) -> None:
    a, s, w, t = (v.to(dtype) / (1 if v.is_floating_point() else 100) for v in given(33, 20, 3, 40))
    found = tilec.compile(FLOATS, backend="triton")(a, s, w, t)
    wanted = torch.einsum("mgk,ngk,mg,ng->mn", *(v.double() for v in (a, w, s, t)))
    assert (found.double() - wanted).norm() <= {"float64": 1e-14}.get(str(dtype)[6:], 0.01) * wanted.norm()
    a[3, 1, 4], w[7, 0, 0], s[5, 2] = float("inf"), float("nan"), float("nan")
    found, wanted = (tilec.compile(FLOATS, backend=b)(a, s, w, t) for b in ("triton", "torch"))
    assert torch.equal(found.isfinite(), wanted.isfinite()) and torch.equal(found.isnan(), wanted.isnan())


@pytest.mark.one_in(2)
@interpreted
@pytest.mark.parametrize("name", ["cast", "cut", "batches first", "floats"])
@pytest.mark.parametrize("sizes", [(5, 20, 7, 32), (33, 20, 2, 40)])
def test_programs_share_batches(
    name: str, sizes: tuple[int, int, int, int], always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some have fewer than others, or none."""
    monkeypatch.setattr(product_sums, "_shares", lambda *a: 3)
    monkeypatch.setattr(product_sums, "worthwhile", lambda *a: True)
    values = [v.float() if name == "floats" else v for v in given(*sizes)]
    text = FLOATS if name == "floats" else CASES[name]
    ours = tilec.compile(text, backend="triton")
    found, source = ours(*values), ours.lower(*values).source()
    wanted = tilec.compile(text, backend="torch")(*(v.double() if v.is_floating_point() else v for v in values))
    assert "Y_parts" in source and "P_added" in source
    assert (found.double() - wanted).norm() <= 1e-6 * wanted.norm()


@pytest.mark.parametrize("rows", [5, 17, 33])
def test_weights_of_groups_times_few_rows(rows: int) -> None:
    text = "Y[n, j] = +(X[n, g, k] * bfloat16(W[j, g, k]) * S[j, g])"
    given = ((rows, 32, 128), "bfloat16"), ((4096, 32, 128), "int8"), ((4096, 32), "bfloat16")
    specs = [tilec.spec(shape, dtype) for shape, dtype in given]
    source = tilec.compile(text).lower(*specs, target="sm_90").source()
    assert source.count("_added[(128, 1, 8)]") == 1 and "Y_parts = " in source


def test_weights_of_bytes_times_few_rows_are_split() -> None:
    """What a program has under way of them is little: 172 blocks of columns leave memory waiting."""
    text = "Y[n, j] = +(X[n, k] * bfloat16(W[j, k]))"
    specs = [tilec.spec((33, 4096), "bfloat16"), tilec.spec((11008, 4096), "int8")]
    assert "Y_dot[(172, 1, 3)]" in tilec.compile(text).lower(*specs, target="sm_90").source()
    few = [tilec.spec((33, 512), "bfloat16"), tilec.spec((11008, 512), "int8")]
    assert "Y_dot[(172, 1, 1)]" in tilec.compile(text).lower(*few, target="sm_90").source()
