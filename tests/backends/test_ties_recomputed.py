"""An extremum and what its gradient compares with it are rounded alike, whatever is laid out how on the way."""

import pytest
import torch

import tilec

FORMS = {
    "S[n, v] = max[k](A[n, k] * B[v, k] + C[k])": lambda a, b, c: (a[:, None] * b + c).amax(2),
    "S[n, v] = min[k](C[k] > 0 ? A[n, k] * B[v, k] + C[k])": lambda a, b, c: torch.where(
        c > 0, a[:, None] * b + c, torch.inf
    ).amin(2),
    "S[n, v] = max[k](C[k] - 3 * (A[n, k] * B[v, k]))": lambda a, b, c: (c - 3 * (a[:, None] * b)).amax(2),
    "S[n] = max[v, k](A[n, k] * B[v, k] + sin(A[n, k] * B[v, k]) + C[k])": lambda a, b, c: (
        a[:, None] * b + (a[:, None] * b).sin() + c
    ).amax((1, 2)),
    "S[n, v] = min[k]((B[v, k] - C[k]) * (B[v, k] + 0.3 * (C[k] + 0.3 * A[n, k])) - sin(A[n, k]))": lambda a, b, c: (
        (b - c) * (b + 0.3 * (c + 0.3 * a[:, None])) - a[:, None].sin()
    ).amin(2),
    "T[n, v, k] = A[n, k] * B[v, k] - C[k]; S[n, v] = min(T[n, v, k])": lambda a, b, c: (a[:, None] * b - c).amin(2),
}


@pytest.mark.parametrize("shape", [(2, 257, 3), (40, 7, 4), (17, 9, 2), (5, 40, 33)], ids=str)
@pytest.mark.parametrize("text", FORMS)
def test_gradients(text: str, shape: tuple[int, int, int]) -> None:
    n, v, k = shape
    g = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        tensors = [torch.randn(s, generator=g, dtype=torch.float64) for s in ((n, k), (v, k), (k,))]
        tensors[2][0] = 0.5
        made = [t.to(dtype).requires_grad_() for t in tensors]
        exact = [t.detach().double().requires_grad_() for t in made]
        result = tilec.compile(text)(**dict(zip("ABC", made, strict=True)))
        result.square().sum().backward()
        FORMS[text](*exact).square().sum().backward()
        for ours, theirs in zip(made, exact, strict=True):
            error = (ours.grad.double() - theirs.grad).abs().max() / theirs.grad.abs().max()
            assert error < (1e-5 if dtype == torch.float32 else 1e-12)
