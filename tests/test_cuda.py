"""The torch backend on CUDA tensors: the same values and gradients as on the CPU."""

from __future__ import annotations

import pytest
import torch

import tilec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CONVOLUTION = (
    "function (I[N, H, W, CI], K[KH, KW, CI, CO]) -> (O) {"
    " O[n, y, x, co : N, H/3, W/3, CO] = +(I[n, 3*y + 2*j, 3*x + 2*i, ci] * K[j, i, ci, co]); }"
)
PROGRAMS = {
    "convolution": (CONVOLUTION, ((2, 17, 13, 5), (2, 3, 5, 7))),
    "matmul": ("C[i, j] = sum(A[i, k] * B[k, j])", ((17, 129), (129, 31))),
    "log matmul": ("C[i, j] = logsumexp(A[i, k] + B[k, j])", ((17, 33), (33, 31))),
    "pooling": ("function (I[N, H]) -> (O) { O[n, y : N, H/2] = >(I[n, 2*y + j]), j < 2; }", ((5, 17),)),
    "softmax": ("Y[i, j] = exp(X[i, j] - max(X[i, k])) / sum(exp(X[i, k] - max(X[i, l])))", ((7, 33),)),
    "cumulative": ("function (X[N]) -> (S) { S[i : N] = +(X[k]), i - k < N; }", ((127,),)),
    "product": ("function (A[I, J]) -> (O) { O[i : I] = *(A[i, j]); }", ((5, 7),)),
    "scatter": ("function (X[N]) -> (Y) { Y[(3*i) % N : N] = +(X[i] * X[(i + 1) % N]); }", ((17,),)),
    "elementwise": ("Y = silu(X) * gelu(X) + tanh(X) / (2 + sin(X))", ((1023,),)),
    "dropout": ("Y = rand(7) < 0.5 ? X : randn(8) < 1 ? 2 * X : 0", ((1023,),)),
    "mean and pad": ("function (A[N]) -> (O) { O[i : N] = mean(pad(A[i + k - 1], 0.5)), k < 3; }", ((19,),)),
    "empty": ("function (A[I, J]) -> (O) { O[i : I] = +(A[i, j]); }", ((5, 0),)),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_on_the_cpu(name: str, dtype: torch.dtype) -> None:
    source, shapes = PROGRAMS[name]
    function = tilec.compile(source)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}[dtype]
    wanted = function(*(t.double() for t in inputs))
    got = function(*(t.cuda() for t in inputs))
    assert got.device.type == "cuda" and got.dtype == dtype
    torch.testing.assert_close(got.cpu().double(), wanted, rtol=tolerance, atol=tolerance)
    if dtype in (torch.float64, torch.float32):
        d = torch.randn(wanted.shape, generator=generator, dtype=torch.float64).to(dtype)
        gradients = function.grad()(*(t.double() for t in inputs), d.double())
        on_device = function.grad()(*(t.cuda() for t in inputs), d.cuda())
        pairs = (
            [(gradients, on_device)] if isinstance(gradients, torch.Tensor) else zip(gradients, on_device, strict=True)
        )
        for a, b in pairs:
            torch.testing.assert_close(b.cpu().double(), a, rtol=tolerance, atol=10 * tolerance)


def test_a_number_beside_a_cuda_tensor() -> None:
    x = torch.ones(3, device="cuda")
    assert torch.equal(tilec.compile("Y = X * S;")(x, 2.5), 2.5 * x)


def test_mixed_devices() -> None:
    with pytest.raises(tilec.InputMistake, match="different devices"):
        tilec.compile("Z = X + Y;")(torch.ones(3, device="cuda"), torch.ones(3))
