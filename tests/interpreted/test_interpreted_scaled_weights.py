"""Products of 8-bit weights with scales, whose scale joins either operand, against torch in float64."""

import os

import pytest
import torch

import tilec

SOURCES = {
    "by rows of the weights": "Y[i, j] = +(X[i, k] * bfloat16(W[j, k]) * S[j])",
    "by what is summed": "Y[i, j] = +(S[k] * X[i, k] * bfloat16(W[k, j]))",
    "a scale of each operand": "Y[i, j] = +(X[i, k] * S[k] * bfloat16(W[j, k]) * S[j])",
    "in float32": "Y[i, j] = +(X[i, k] * float32(W[j, k]) * S[j])",
    "over scales": "Y[i, j] = +(X[i, k] * bfloat16(W[j, k]) / S[k])",
}


@pytest.mark.one_in(2)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1")
@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.covering
def test_scaled_weights(name):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(72, 80, generator=g).bfloat16()
    w = torch.randint(-20, 20, (80, 80), generator=g).to(torch.int8)
    s = (0.5 + torch.rand(80, generator=g)).bfloat16()
    f = tilec.compile(SOURCES[name], backend="triton")
    order = dict(X=x, W=w, S=s)
    exact = tilec.compile(SOURCES[name].replace("bfloat16", "float64"), backend="torch")
    wide = {n: t.double() for n, t in order.items()}
    want = exact(**wide)
    d = torch.randn(want.shape, generator=g).to(torch.float32 if "float32" in SOURCES[name] else torch.bfloat16)
    torch.testing.assert_close(f(**order).double(), want, rtol=2e-2, atol=1e-2 * want.abs().max().item())
    found = f.grad(["X", "S"])(**order, DY=d)
    wanted = exact.grad(["X", "S"])(**wide, DY=d.double())
    for mine, one in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.double(), one, rtol=2e-2, atol=1e-2 * one.abs().max().item())
