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


POOLS = [(2, 2, 1, 0), (3, 2, 1, 1), (3, 1, 1, 1), (2, 3, 1, 0), (3, 2, 2, 1)]  # size, stride, dilation, padding
IMAGES = [(2, 12, 14, 5), (1, 9, 11, 64), (3, 5, 40, 1), (2, 7, 7, 3)]


def pool(aggregation: str, dims: int, first: bool, window: tuple[int, ...]) -> str:
    size, step, apart, around = window
    names, places, inside = "DHW"[3 - dims :], "zyx"[3 - dims :], "kji"[3 - dims :]
    read = [f"{step} * {v} + {apart} * {w} - {around}" for v, w in zip(places, inside, strict=True)]
    sizes = [f"({n} + {2 * around} - {apart * (size - 1)} - 1)/{step} + 1" for n in names]

    def listed(middle: list[str], n: str, c: str) -> str:
        return ", ".join([n, c, *middle] if first else [n, *middle, c])

    left = f"O[{listed([*places], 'n', 'c')} : {listed(sizes, 'N', 'C')}]"
    limits = ", ".join(f"{w} < {size}" for w in inside)
    head = f"function (I[{listed([*names], 'N', 'C')}]) -> (O)"
    return f"{head} {{ {left} = {aggregation}(I[{listed(read, 'n', 'c')}]), {limits}; }}"


def pooled(x: E, largest: bool, dims: int, window: tuple[int, ...]) -> tuple[E, E]:
    """The extrema of images whose channels come first, and what has their gradient: equal elements share, and what is
    NaN has none."""
    size, step, apart, around = window
    x = F.pad(x, (around, around) * dims, value=LEAST if largest else MOST)
    for d in range(2, 2 + dims):
        x = x.unfold(d, (size - 1) * apart + 1, step)[..., ::apart]
    x = x.flatten(-dims)
    value = x.detach().amax(-1) if largest else x.detach().amin(-1)
    equal = x.detach() == value[..., None]
    return value, (torch.where(equal, x, 0) / equal.sum(-1, keepdim=True).clamp(min=1)).sum(-1)


@pytest.mark.covering
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("window", POOLS, ids=str)
@pytest.mark.parametrize("shape", IMAGES, ids=str)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("values", ["ties", "infinite", "nan"])
def test_pools(
    combined: list[bool], largest: bool, dims: int, window: tuple[int, ...], shape: tuple[int, ...], first: bool,
    dtype: torch.dtype, values: str,
) -> None:  # fmt: skip
    n, height, width, channels = shape
    draw = torch.Generator().manual_seed(1)
    sizes = (n, channels, *(5,) * (dims - 2), height, width)
    x = torch.randint(-2, 3, sizes, generator=draw).to(dtype)
    if values != "ties":
        x[torch.rand(sizes, generator=draw) < 0.3] = math.nan if values == "nan" else LEAST if largest else MOST
    f = tilec.compile(pool(">" if largest else "<", dims, first, window))
    exact = x.double().requires_grad_()
    wanted, differentiated = pooled(exact, largest, dims, window)
    ours = (x if first else x.movedim(1, -1).contiguous()).requires_grad_()
    found = f(ours)
    cotangent = torch.randn(wanted.shape, generator=draw, dtype=dtype)
    (of_exact,) = torch.autograd.grad(differentiated, exact, cotangent.double())
    (of_ours,) = torch.autograd.grad(found, ours, cotangent if first else cotangent.movedim(1, -1))
    back = (lambda t: t) if first else (lambda t: t.movedim(-1, 1))
    torch.testing.assert_close(back(found), wanted.to(dtype), equal_nan=True)
    torch.testing.assert_close(back(of_ours), of_exact.to(dtype))
    small = found.numel() < 64 * window[0] ** dims  # too few elements for parts to pay
    assert (combined or small) and combined.count(False) <= (dtype == torch.float64)  # whose ties are float32
