"""Products with elementwise statements in their kernel, on a CUDA device, against float64."""

from __future__ import annotations

import itertools

import pytest
import torch

import tilec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TOLERANCE = {torch.bfloat16: 8e-3, torch.float16: 1.5e-3, torch.float32: 2e-3}
LINEAR = "S[n, m : N, M] = +(X[n, k] * W[m, k]);"
CONVOLVED = "S[n, y, x, o : N, H, V, O] = +(X[n, y + i - 1, x + j - 1, c] * K[i, j, c, o]);"
# inputs, statements, sizes of the inputs
CASES = {
    "bias and gelu": (
        "X[N, K], W[M, K], B[M]",
        LINEAR + "Y = gelu(S + B);",
        [((1031, 264), (520, 264), (520,)), ((4096, 512), (1024, 512), (1024,)), ((1, 128), (256, 128), (256,))],
    ),
    "bias and residual": (
        "X[N, K], W[M, K], B[M], R[N, M]",
        LINEAR + "Y = S + B + R;",
        [((999, 136), (264, 136), (264,), (999, 264)), ((2048, 1024), (2048, 1024), (2048,), (2048, 2048))],
    ),
    "scales of rows and columns": (
        "X[N, K], W[M, K], A[N], B[M]",
        LINEAR + "Y[n, m : N, M] = S[n, m] * A[n] * B[m];",
        [((2000, 520), (264, 520), (2000,), (264,))],
    ),
    "what is read elsewhere": (
        "X[N, K], W[M, K], R[N, M]",
        LINEAR + "Y[n, m : N, M] = S[n, m] + pad(R[n + 1, m], 2) + (n >= m ? R[n, m] : R[0, m]);",
        [((1031, 256), (520, 256), (1031, 520))],
    ),
    "draws": (
        "X[N, K], W[M, K], B[M]",
        LINEAR + "Y[n, m : N, M] = rand(7, m + M * n) < 0.75 ? S[n, m] + B[m] : 0;",
        [((1031, 264), (520, 264), (520,))],
    ),
    "batches": (
        "X[D, N, K], W[D, K, M], B[D, M]",
        "S[b, n, m : D, N, M] = +(X[b, n, k] * W[b, k, m]); Y[b, n, m : D, N, M] = relu(S[b, n, m] + B[b, m]);",
        [((5, 200, 136), (5, 136, 264), (5, 264))],
    ),
    "rows of several axes": (
        "X[D, N, K], W[M, K], B[M]",
        "S[b, n, m : D, N, M] = +(X[b, n, k] * W[m, k]); Y = silu(S + B);",
        [((7, 197, 384), (1536, 384), (1536,))],
    ),
    "convolution, scale and shift": (
        "X[N, H, V, C], K[3, 3, C, O], A[O], B[O]",
        CONVOLVED + "Y = relu(S * A + B);",
        [((5, 29, 31, 64), (3, 3, 64, 72), (72,), (72,)), ((8, 28, 28, 128), (3, 3, 128, 128), (128,), (128,))],
    ),
    "convolution and residual": (
        "X[N, H, V, C], K[3, 3, C, O], R[N, H, V, O]",
        CONVOLVED + "Y = relu(S + R);",
        [((3, 17, 28, 128), (3, 3, 128, 136), (3, 17, 28, 136))],
    ),
}


@pytest.mark.parametrize("stored", [False, True], ids=["Y", "S, Y"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, dtype: torch.dtype, stored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of finite numbers, and with infinities and NaN among what is multiplied: by the same kernels."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    inputs, statements, all_shapes = CASES[name]
    outputs = "S, Y" if stored else "Y"
    text = f"function ({inputs}) -> ({outputs}) {{ {statements} }}"
    f, exact = tilec.compile(text, backend="triton"), tilec.compile(text, backend="torch")
    for shapes, special in itertools.product(all_shapes, (False, True)):
        generator = torch.Generator().manual_seed(0)
        made = [torch.randn(s, generator=generator) for s in shapes]
        made[1] *= (made[1][0].numel() if made[1].dim() == 2 else made[1][..., 0].numel()) ** -0.5
        if special:
            for t in made[:2]:
                t.view(-1)[torch.randint(t.numel(), (2,), generator=generator)] = torch.tensor([torch.inf, torch.nan])
        made = [t.to(dtype) for t in made]
        results, wanted = f(*(t.cuda() for t in made)), exact(*(t.double() for t in made))
        for got, y in zip(results if stored else (results,), wanted if stored else (wanted,), strict=True):
            got, finite = got.cpu().double(), torch.isfinite(y)
            assert torch.equal(torch.isfinite(got), finite) and torch.equal(torch.isnan(got), torch.isnan(y))
            if finite.any():
                assert (got - y)[finite].norm() <= TOLERANCE[dtype] * y[finite].norm()
                assert (got - y)[finite].abs().max() <= 4 * TOLERANCE[dtype] * y[finite].abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients(dtype: torch.dtype) -> None:
    text = (
        "function (X[N, K], W[M, K], B[M], U[K, M]) -> (Y) { S[n, m : N, M] = +(X[n, k] * W[m, k]); H = gelu(S + B);"
        "T[n, k : N, K] = +(H[n, m] * U[k, m]); Y = T + X; }"
    )
    generator = torch.Generator().manual_seed(0)
    shapes = ((1000, 512), (1032, 512), (1032,), (512, 1032))
    made = [torch.randn(s, generator=generator) * (s[-1] ** -0.5 if k in (1, 3) else 1) for k, s in enumerate(shapes)]
    made = [t.to(dtype).requires_grad_() for t in made]
    cotangent = torch.randn(1000, 512, generator=generator).to(dtype)

    def gradients(backend: str, cast) -> tuple[torch.Tensor, ...]:
        inputs = [cast(t.detach()).requires_grad_() for t in made]
        y = tilec.compile(text, backend=backend)(*inputs)
        return (y, *torch.autograd.grad(y, inputs, cast(cotangent)))

    wanted = gradients("torch", lambda t: t.double())
    for got, y in zip(gradients("triton", lambda t: t.cuda()), wanted, strict=True):
        assert (got.cpu().double() - y).norm() <= 2 * TOLERANCE[dtype] * y.norm()
