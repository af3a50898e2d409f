"""What is not finite in a finished product is computed again, exactly: here all of it, whose output is NaN at first."""

from __future__ import annotations

import os

import pytest
import torch

import tilec
from tilec.backends.triton import TritonBackend
from tilec.backends.triton.matmul import precompute_operands, steps
from tilec.backends.triton.matmul.steps import repair_steps
from tilec.backends.triton.plan.plan import Allocate
from tilec.backends.triton.schedule import families

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
CONVOLUTION = """function (I[N, Y, X, C], K[O, J, L, C]) -> (R) {
    R[n, y, x, o : N, Y, X, O] = +(I[n, y + j - 1, x + l - 1, c] * K[o, j, l, c]);
}"""
CASES = {
    "windows": (CONVOLUTION, (1, 4, 5, 16), (16, 3, 3, 16)),
    "product": ("function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = +(A[i, k] * B[k, j]); }", (37, 40), (40, 70)),
    "batches": (
        "function (A[B, I, K], C[B, K, J]) -> (D) { D[b, i, j : B, I, J] = +(A[b, i, k] * C[b, k, j]); }",
        (3, 18, 20),
        (3, 20, 33),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_exact_sums(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def repaired(p, product):
        t = product.view.types[p.flat.output]
        return [
            Allocate(p.flat.output, t.shape, t.dtype, float("nan")),
            *repair_steps(product, p.flat),
        ]

    monkeypatch.setattr(families, "_product_steps", repaired)
    source, *shapes = CASES[name]
    generator = torch.Generator().manual_seed(0)
    given = [torch.randint(-3, 4, shape, generator=generator).float() for shape in shapes]
    given[0].view(-1)[17], given[0].view(-1)[100] = torch.inf, torch.nan
    f = tilec.compile(source + f"// {name}", backend="triton")
    exact = tilec.compile(source, backend="torch")(*(t.double() for t in given))
    found = f(*given).double()
    assert torch.equal(found.isnan(), exact.isnan())
    assert torch.equal(found.nan_to_num(7.0), exact.nan_to_num(7.0))


@pytest.mark.parametrize("place", [None, 17, -3])
@pytest.mark.one_in(2)
def test_a_small_factor_is_looked_at_first(place: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it cannot have made wrong is left as it is. Programs look at it in several goes, and each at several blocks
    of the result if there is anything in it."""

    def repaired(p, product):
        t = product.view.types[p.flat.output]
        return [
            Allocate(p.flat.output, t.shape, t.dtype, float("nan")),
            *repair_steps(product, p.flat, ("K", "K")),
        ]

    monkeypatch.setattr(families, "_product_steps", repaired)
    for name, value in (("CAUSE_RATE", 1e15), ("CAUSE_BLOCK", 1024), ("MULTIPROCESSORS", 2)):
        monkeypatch.setattr(steps, name, value)
    generator = torch.Generator().manual_seed(0)
    x, k = (torch.randint(-3, 4, s, generator=generator).float() for s in ((1, 9, 5, 16), (33, 3, 3, 16)))
    if place is not None:
        k.view(-1)[place] = torch.inf
    f = tilec.compile(f"{CONVOLUTION}// {place}", backend="triton")
    assert "R_repair[(2, 1, 1)]" in f.lower(x, k).source()
    found = f(x, k).double()
    if place is None:
        assert found.isnan().all()
        return
    exact = tilec.compile(CONVOLUTION, backend="torch")(x.double(), k.double())
    assert torch.equal(found.nan_to_num(7.0), exact.nan_to_num(7.0))


LINE = """function (I[N, X, C], K[O, L, C]) -> (R) {
    R[n, x, o : N, (X - 1)/S + 1, O] = +(I[n, S*x + D*l - D, c] * K[o, l, c]);
}"""


@pytest.mark.parametrize("step", ["S1 D1", "S1 D3", "S2 D1"])
def test_borders_alone_are_looked_at(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of which all points lie inside are left as they are."""

    def repaired(p, product):
        t = product.view.types[p.flat.output]
        return [
            Allocate(p.flat.output, t.shape, t.dtype, float("nan")),
            *repair_steps(product, p.flat, borders=True),
        ]

    monkeypatch.setattr(families, "_product_steps", repaired)
    generator = torch.Generator().manual_seed(0)
    x, k = (torch.randint(-3, 4, s, generator=generator).float() for s in ((2, 900, 16), (16, 3, 16)))
    k[3, 1, 2] = torch.inf
    source = LINE.replace("S", step[1]).replace("D", step[-1])
    found = tilec.compile(source + f"// {step}", backend="triton")(x, k).double()
    exact = tilec.compile(source, backend="torch")(x.double(), k.double())
    left = found.isnan() & ~exact.isnan()
    last = left[:, -1:0] if step == "S2 D1" else left[:, -int(step[-1]) :]  # 2 * 449 + 1 is inside of 900
    assert left.any() and not left[:, 0].any() and not last.any()
    assert torch.equal(found.nan_to_num(7.0)[~left], exact.nan_to_num(7.0)[~left])


# of float32, all blocks of which are looked at, are the other tests here
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
def test_a_librarys_borders_are_computed_again(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 16 bits no others are looked at."""
    made = TritonBackend.__init__
    monkeypatch.setattr(TritonBackend, "__init__", lambda self, target=None, library=False: made(self, target, True))
    generator = torch.Generator().manual_seed(0)
    given = [
        torch.randint(-3, 4, s, generator=generator).to(getattr(torch, dtype)) for s in ((1, 11, 7, 16), (24, 3, 3, 16))
    ]
    f = tilec.compile(CONVOLUTION + f"// {dtype}", backend="triton")
    text = f.lower(*given).source()
    assert "rt.convolution(" in text and (") ^ True), other=0)" in text) == (dtype == "bfloat16")
    for place, value in ((0, torch.inf), (700, -torch.inf), (3000, torch.nan)):
        given[1].view(-1)[place] = value
        exact = tilec.compile(CONVOLUTION, backend="torch")(*(t.double() for t in given))
        found = f(*given).double()
        assert torch.equal(found.isnan(), exact.isnan())
        torch.testing.assert_close(found.nan_to_num(7.0), exact.nan_to_num(7.0), rtol=1e-2, atol=1)


EDGES = """function (X[N, C], I[N, K], W[C, O]) -> (Y) {
    Y[n, k, o : N, K, O] = +((X[I[n, k], c] - X[n, c]) * W[c, o]);
}"""


def test_gathered_operands_are_stored_for_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points whose sources are outside add nothing, infinities of the other operand or not."""
    made = TritonBackend.__init__
    monkeypatch.setattr(TritonBackend, "__init__", lambda self, target=None, library=False: made(self, target, True))
    n, k, c, o = 3000, 20, 64, 128
    specs = tilec.spec((n, c)), tilec.spec((n, k), "int64"), tilec.spec((c, o))
    planned = tilec.compile(EDGES, backend="triton")
    assert [kernel.name for kernel in planned.lower(*specs).kernels] == ["Y_left_kernel", "Y_repair"]
    narrow = (tilec.spec(s.shape, "bfloat16" if s.dtype == "float32" else s.dtype) for s in specs)
    assert "Y_left_kernel" not in [kernel.name for kernel in planned.lower(*narrow).kernels]
    batch = "function (X[N, C], I[N], W[N, C, O]) -> (Y) { Y[n, o : N, O] = +(X[I[n], c] * W[n, c, o]); }"
    given = tilec.spec((64, 640)), tilec.spec((64,), "int64"), tilec.spec((64, 640, 640))
    assert "Y_left_kernel" not in [p.name for p in tilec.compile(batch, backend="triton").lower(*given).kernels]

    monkeypatch.setitem(precompute_operands.GATHERED, "float32", (1e6, 15e12))
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randint(-3, 4, shape, generator=generator).float() for shape in ((37, 24), (24, 33)))
    places = torch.randint(-4, 41, (37, 3), generator=generator)
    f = tilec.compile(EDGES + "// small", backend="triton")
    exact = tilec.compile(EDGES, backend="torch")
    assert [kernel.name for kernel in f.lower(x, places, w).kernels] == ["Y_left_kernel", "Y_repair"]
    for value in (1.0, torch.inf, torch.nan):
        w[5, 7], x[3, 5] = value, -value
        found, wanted = f(x, places, w).double(), exact(x.double(), places, w.double())
        assert torch.equal(found.isnan(), wanted.isnan())
        assert torch.equal(found.nan_to_num(7.0), wanted.nan_to_num(7.0))
