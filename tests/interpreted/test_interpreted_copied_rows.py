"""Attention whose rows of 16 bits begin anywhere: what programs walk is copied to rows at whole vectors."""

import os

import pytest
import torch
from support.chains import softmax

import tilec
from tilec.backends.triton.chains import launch

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("guard", ["", "i >= j"])
@pytest.mark.parametrize("rows, columns, width, mixed", [(70, 70, 33, 54), (40, 83, 17, 17), (17, 20, 24, 31)])
def test_values_and_gradients_over_copies(guard, rows, columns, width, mixed, monkeypatch):
    monkeypatch.setattr(launch, "HOPPER", 0)
    monkeypatch.setattr(launch, "_MUCH", 0)
    monkeypatch.setattr(launch, "_READS", 0)
    source = softmax("0.2 * S[b, i, j]", guard)
    g = torch.Generator().manual_seed(rows)
    shapes = (2, rows, width), (2, columns, width), (2, columns, mixed)
    # what stands before and after parts of larger tensors counts for nothing
    given = [torch.full((n + 2, a + 2, b + 2), torch.nan, dtype=torch.bfloat16) for n, a, b in shapes]
    for t, shape in zip(given, shapes, strict=True):
        t[1:-1, 1:-1, 1:-1] = torch.randn(shape, generator=g)
    given = [t[1:-1, 1:-1, 1:-1].requires_grad_() for t in given]
    f, exact = (tilec.compile(source, backend=b) for b in ("triton", "torch"))
    wide = [t.detach().double().requires_grad_() for t in given]
    value, wanted = f(*given), exact(*wide)
    cotangent = torch.randn(wanted.shape, generator=g, dtype=torch.float64)
    found = torch.autograd.grad(value, given, cotangent.bfloat16())
    for x, y in zip((value, *found), (wanted, *torch.autograd.grad(wanted, wide, cotangent)), strict=True):
        assert (x.double() - y).norm() <= 1e-2 * y.norm()
    assert "_rows = torch.empty" in f.lower(*given).source()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", ["i, j, h", "j, i, h", "h, j, i"])
def test_biases_whose_neighbours_lie_apart(bias, dtype, monkeypatch):
    monkeypatch.setattr(launch, "_READS", 0)
    sizes = {"i": 19, "j": 23, "h": 3}
    declared = ", ".join({"i": "N", "j": "M", "h": "H"}[v] for v in bias.split(", "))
    source = f"""function (Q[B, H, N, E], K[B, H, M, E], V[B, H, M, F], P[{declared}]) -> (O) {{
        S[b, h, i, j : B, H, N, M] = sum(Q[b, h, i, e] * K[b, h, j, e]) + P[{bias}];
        L[b, h, i : B, H, N] = logsumexp(S[b, h, i, j]);
        O[b, h, i, f : B, H, N, F] = sum(exp(S[b, h, i, j] - L[b, h, i]) * V[b, h, j, f]);
    }}"""
    g = torch.Generator().manual_seed(0)
    shapes = (2, 3, 19, 16), (2, 3, 23, 16), (2, 3, 23, 16), tuple(sizes[v] for v in bias.split(", "))
    given = [torch.randn(s, generator=g).to(dtype).requires_grad_() for s in shapes]
    wide = [t.detach().double().requires_grad_() for t in given]
    f = tilec.compile(source, backend="triton")
    value, wanted = f(*given), tilec.compile(source, backend="torch")(*wide)
    found = torch.autograd.grad(value, given, value.detach())
    exact = torch.autograd.grad(wanted, wide, value.detach().double())
    for x, y in zip((value, *found), (wanted, *exact), strict=True):
        assert (x.double() - y).norm() <= (1e-5 if dtype == torch.float32 else 2e-2) * y.norm()
    assert ("_P_rows" in f.lower(*given).source()) is (bias != "h, j, i")
