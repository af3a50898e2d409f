"""Programs whose small windows the library combines: values and gradients are torch's, in every layout."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import tilec
from tilec.backends.torch import selection

F, E = torch.nn.functional, torch.Tensor
LEAST, MOST = -math.inf, math.inf


def windows(x: E, size: int, step: int, apart: int, around: int, filled: float) -> E:
    """Windows along the rows of three dimensions, as torch reads them, in a last dimension."""
    padded = F.pad(x, (0, 0, around, around), value=filled)
    return padded.unfold(1, (size - 1) * apart + 1, step)[..., ::apart]


def program(aggregation: str, size: int, step: int, apart: int, around: int) -> str:
    row = f"{step} * t + {apart} * k - {around}"
    rows = f"(T + {2 * around} - {(size - 1) * apart} - 1)/{step} + 1"
    return f"function (X[N, T, C]) -> (Y) {{ Y[n, t, c : N, {rows}, C] = {aggregation}(X[n, {row}, c]), k < {size}; }}"


def average(x: E, *window: int) -> E:
    return windows(x, *window, 0.0).sum(3) / windows(torch.ones_like(x), *window, 0.0).sum(3)


AGGREGATIONS: dict[str, Callable[..., E]] = {
    ">": lambda x, *window: windows(x, *window, LEAST).amax(3),
    "<": lambda x, *window: windows(x, *window, MOST).amin(3),
    "+": lambda x, *window: windows(x, *window, 0.0).sum(3),
    "mean": average,
}
WINDOWS = [(3, 1, 1, 1), (2, 2, 1, 0), (3, 2, 1, 1), (2, 3, 1, 0), (3, 1, 2, 2), (5, 4, 1, 2)]
SHAPES = [(3, 40, 17), (1, 700, 3), (2, 9, 130), (40, 13, 1)]
LAYOUTS: dict[str, Callable[[E], E]] = {
    "contiguous": lambda t: t,
    "channels first": lambda t: t.mT.contiguous().mT,
    "a part": lambda t: F.pad(t, (2, 1, 1, 2))[:, 1:-2, 2:-1],
    "every other": lambda t: t.repeat_interleave(2, 2)[..., ::2],
    "expanded": lambda t: t[:1].expand(t.shape),
}


@pytest.fixture
def combined(library, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the library did what it was asked for."""
    found: list[bool] = []
    asked = selection._combined
    monkeypatch.setattr(selection, "_combined", lambda *given: found.append(asked(*given)) or found[-1])
    return found


@pytest.mark.covering
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threads", [1, 2])
def test_values_and_gradients(
    combined: list[bool], aggregation: str, window: tuple[int, ...], shape: tuple[int, ...], layout: str,
    dtype: torch.dtype, threads: int,
) -> None:  # fmt: skip
    f, in_torch = tilec.compile(program(aggregation, *window)), AGGREGATIONS[aggregation]
    draw = torch.Generator().manual_seed(1)
    x = LAYOUTS[layout](torch.randint(-2, 3, shape, generator=draw).to(dtype))  # extrema of equal elements too
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ours, exact = x.detach().requires_grad_(), x.double().requires_grad_()
        found, wanted = f(ours), in_torch(exact, *window)
        torch.testing.assert_close(found, wanted.to(dtype))
        cotangent = LAYOUTS[layout](torch.randn(found.shape, generator=draw, dtype=dtype))
        (of_ours,) = torch.autograd.grad(found, ours, cotangent)
        (of_exact,) = torch.autograd.grad(wanted, exact, cotangent.double())
        torch.testing.assert_close(of_ours, of_exact.to(dtype))
    finally:
        torch.set_num_threads(before)
    assert combined and all(combined)
