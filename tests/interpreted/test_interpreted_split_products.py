"""Float32 products by three bfloat16 parts of their operands, against torch in float64."""

from __future__ import annotations

import os

import pytest
import torch

import tilec
from tilec.backends.triton.matmul import split
from tilec.backends.triton.matmul.blocks import Config

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1"
)

PRODUCTS = {
    "ik,kj->ij": ("C[i, j] = +(A[i, k] * B[k, j])", (72, 264), (264, 64)),
    "ki,kj->ij": ("C[i, j] = +(A[k, i] * B[k, j])", (64, 136), (64, 128)),
    "ik,jk->ij": ("C[i, j] = +(A[i, k] * B[j, k])", (128, 104), (120, 104)),
    "bik,bkj->bij": ("C[b, i, j] = +(A[b, i, k] * B[b, k, j])", (2, 72, 40), (2, 40, 64)),
}
NUMBERS = {
    "plain": lambda a, b: (a, b),
    "of all sizes": lambda a, b: (a * torch.logspace(-18, 18, a.shape[-1]), b),
    "not finite": lambda a, b: (
        a.index_fill(-1, torch.tensor([3]), torch.inf),
        b.index_fill(-2, torch.tensor([5]), 3.4e38),
    ),
}


@pytest.mark.parametrize(
    ("product", "numbers"), [*((p, "plain") for p in PRODUCTS), *(("ik,kj->ij", n) for n in NUMBERS)]
)
@pytest.mark.parametrize("block", [Config(32, 32, 16, 4, 2), Config(128, 64, 16, 4, 2)], ids=["whole", "in parts"])
@pytest.mark.parametrize("both", [False, True], ids=["one", "both"])
@pytest.mark.covering
@pytest.mark.one_in(5)
def test_values(monkeypatch, product, numbers, block, both):
    monkeypatch.setattr(split, "BOTH_COLUMNS", 0 if both else 2**20)
    monkeypatch.setattr(split, "FEWEST_SPLIT_POINTS", 0)
    monkeypatch.setattr(split, "FEWEST_SMALL_POINTS", 0)
    monkeypatch.setattr(split, "FEWEST_SPLIT_TERMS", 0)
    monkeypatch.setattr(split, "ONE_SPLIT_BLOCK", split.SplitBlock(block, 2, 1, 1))
    monkeypatch.setattr(split, "SPLIT_BLOCKS", (split.ONE_SPLIT_BLOCK,))
    monkeypatch.setattr(split, "MULTIPROCESSORS", 2)
    text, left, right = PRODUCTS[product]
    generator = torch.Generator().manual_seed(0)
    a, b = NUMBERS[numbers](torch.randn(left, generator=generator), torch.randn(right, generator=generator))
    f = tilec.compile(text, backend="triton")
    assert any("split_dot" in k.name for k in f.lower(a, b).kernels)
    want = torch.einsum(product, a.double(), b.double())
    size = torch.einsum(product, a.abs().double(), b.abs().double())
    error = (f(a, b).double() - want).abs()
    whole = want.abs() < 3e38
    assert (error[whole] <= 2e-6 * size[whole]).all()
    assert torch.equal(f(a, b)[~whole], want[~whole].float()) or numbers == "not finite"


@pytest.mark.parametrize("numbers", ["plain", "not finite"])
def test_what_follows(monkeypatch, numbers):
    """An epilogue in the same kernel, of blocks that are computed again too."""
    for name in ("FEWEST_SPLIT_POINTS", "FEWEST_SMALL_POINTS", "FEWEST_SPLIT_TERMS"):
        monkeypatch.setattr(split, name, 0)
    monkeypatch.setattr(split, "ONE_SPLIT_BLOCK", split.SplitBlock(Config(32, 32, 16, 4, 2), 2, 1, 1))
    monkeypatch.setattr(split, "SPLIT_BLOCKS", (split.ONE_SPLIT_BLOCK,))
    monkeypatch.setattr(split, "MULTIPROCESSORS", 1)
    text = """function (A[I, K], B[K, J], V[J], R[I, J]) -> (Y) {
        S[i, j : I, J] = +(A[i, k] * B[k, j]); T = max(S + V, R); Y = T * V; }"""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(72, 40, generator=generator), torch.randn(40, 64, generator=generator)
    if numbers == "not finite":
        a[5, 3], b[7, 9] = torch.inf, torch.nan
    given = (a, b, torch.randn(64, generator=generator), torch.randn(72, 64, generator=generator))
    f = tilec.compile(text, backend="triton")
    assert ["split_dot" in k.name for k in f.lower(*given).kernels][-1]
    ours, theirs = f(*given), tilec.compile(text, backend="torch")(*(x.double() for x in given))
    finite = theirs.abs() < 3e38
    assert torch.equal(ours.isnan(), theirs.isnan()) and (ours[finite] - theirs[finite]).abs().max() < 1e-4
    assert torch.equal(ours[~finite & ~theirs.isnan()].double().sign(), theirs[~finite & ~theirs.isnan()].sign())


WINDOWS = {
    "channels last": (
        "R[n, y, x, o : N, H, W, O] = +(I[n, y + j - 1, x + i - 1, c] * K[j, i, c, o])",
        "I[N, H, W, C], K[3, 3, C, O]", (2, 6, 7, 64), (3, 3, 64, 64),
    ),
    "channels first": (
        "R[n, o, y, x : N, O, H, W] = +(I[n, c, y + j - 1, x + i - 1] * K[o, c, j, i])",
        "I[N, C, H, W], K[O, C, 3, 3]", (2, 64, 5, 7), (64, 64, 3, 3),
    ),
    "strided": (
        "R[n, y, x, o : N, H/2, W/2, O] = +(I[n, 2*y + j - 1, 2*x + i - 1, c] * K[j, i, c, o])",
        "I[N, H, W, C], K[3, 3, C, O]", (3, 10, 12, 64), (3, 3, 64, 64),
    ),
    "below a diagonal": ("R[i, j : N, O] = +(I[i, k] * K[k, j]), i - k < N", "I[N, C], K[C, O]", (72, 72), (72, 64)),
}  # fmt: skip


@pytest.mark.parametrize("both", [False, True], ids=["one", "both"])
@pytest.mark.parametrize("form", WINDOWS)
@pytest.mark.one_in(7)
def test_windows(monkeypatch, form, both):
    """Values and both gradients; then beside an infinity, which padding touches."""
    for name in ("FEWEST_WINDOW_POINTS", "FEWEST_WINDOW_TERMS", "FEWEST_USES"):
        monkeypatch.setattr(split, name, 0)
    monkeypatch.setattr(split, "BOTH_WINDOW_COLUMNS", 0 if both else 2**20)
    monkeypatch.setattr(split, "SPLIT_BLOCKS", (split.SplitBlock(Config(128, 64, 16, 4, 2), 2, 1, 1),))
    monkeypatch.setattr(split, "MULTIPROCESSORS", 1)
    text, inputs, left, right = WINDOWS[form]
    f = tilec.compile(f"function ({inputs}) -> (R) {{ {text}; }}", backend="triton")
    generator = torch.Generator().manual_seed(0)
    i, k = torch.randn(left, generator=generator), torch.randn(right, generator=generator)
    assert any("split_dot" in kernel.name for kernel in f.lower(i, k).kernels)
    exact = tilec.compile(f"function ({inputs}) -> (R) {{ {text}; }}", backend="torch")
    given = i.requires_grad_(), k.requires_grad_()
    wide = tuple(x.detach().double().requires_grad_() for x in given)
    value, want = f(*given), exact(*wide)
    cotangent = torch.randn(value.shape, generator=generator)
    found = value, *torch.autograd.grad(value, given, cotangent)
    for ours, theirs in zip(found, (want, *torch.autograd.grad(want, wide, cotangent.double())), strict=True):
        assert (ours - theirs).abs().max() <= 1e-6 * theirs.abs().max()
    with torch.no_grad():
        i.flatten()[0] = torch.inf
        ours, theirs = f(i, k), exact(i, k)
    assert torch.equal(ours.isfinite(), theirs.isfinite()) and torch.equal(ours.isnan(), theirs.isnan())
