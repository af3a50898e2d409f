"""Windows of several axes, one axis after the other: values, gradients, what is left alone."""

from __future__ import annotations

import re

import pytest
import torch

import tilec
from tilec.ir.types import TensorType
from tilec.pipeline import lower
from tilec.transforms.lower import separate_windows as separate

SIZES = {"N": 3, "H": 20, "W": 23, "R": 7, "Q": 5, "M": 2}
VALID = "A[n, y, x : N, H - R + 1, W - R + 1]"
WINDOWS = {  # inputs, statement, how many statements stand for it
    "valid": ("X[N, H, W], K[R]", f"{VALID} = sum(X[n, y + j, x + i] * K[j] * K[i]);", 2),
    "same size": ("X[N, H, W], K[R]", "A[n, y, x : N, H, W] = +(X[n, y + j - 3, x + i - 3] * K[j] * K[i]);", 2),
    "strides": ("X[N, H, W], K[R], L[Q]", "A[n, y, x : N, H/2, W/2] = +(X[n, 2*y + j, 2*x + i] * K[j] * L[i]);", 2),
    "dilated": ("X[N, H, W], K[R]", "A[n, y, x : N, H - 12, W - 12] = sum(X[n, y + 2*j, x + 2*i] * K[j] * K[i]);", 2),
    "box": ("X[N, H, W]", "A[n, y, x : N, H - 6, W - 6] = +(X[n, y + j, x + i]), j < 7, i < 7;", 2),
    "mean": ("X[N, H, W]", "A[n, y, x : N, H - 6, W - 6] = mean(X[n, y + j, x + i]), j < 7, i < 7;", 3),
    "max": ("X[N, H, W]", "A[n, y, x : N, H, W] = >(X[n, y + j - 3, x + i - 3]), j < 7, i < 7;", 2),
    "min of a body": ("X[N, H, W]", "A[n, y, x : N, H - 6, W - 6] = <(abs(X[n, y + j, x + i])), j < 7, i < 7;", 2),
    "three axes": (
        "X[W, H, W], K[R]",
        "A[n, y, x : W - R + 1, H - R + 1, W - R + 1] = +(X[n + k, y + j, x + i] * K[j] * K[i] * K[k]);",
        3,
    ),
    "two images": (
        "X[N, H, W], Y[N, H, W], K[R]",
        f"{VALID} = +(X[n, y + j, x + i] * Y[n, y + j, x + i] * K[j] * K[i]);",
        2,
    ),
    "other factors": ("X[N, H, W], K[R], S[N]", f"{VALID} = +(X[n, y + j, x + i] * S[n] * K[j] / K[i]);", 2),
    "written at": (
        "X[N, H, W], K[R]",
        "A[n, y + j, x + i : N, H + R - 1, W + R - 1] = +(X[n, y, x] * K[j] * K[i]);",
        2,
    ),
    "weights of rows": ("X[N, H, W], K[N, R]", f"{VALID} = sum(X[n, y + j, x + i] * K[n, j] * K[n, i]);", 2),
    "weights of both": ("X[N, H, W], K[R, R]", f"{VALID} = sum(X[n, y + j, x + i] * K[j, i]);", 1),
    "aslant": ("X[N, H, W], K[R]", "A[n, y, x : N, H - 12, W - 12] = sum(X[n, y + j + i, x + i] * K[j] * K[i]);", 1),
    "a position as a value": ("X[N, H, W], K[R]", f"{VALID} = sum(X[n, y + j, x + i] * K[j] * K[i] * j);", 1),
    "squares in hops": ("X[N, W]", "A[n, t : N, W/2] = +(X[n, 2*t + w] * X[n, 2*t + w]), w < 6;", 2),
    "differences in hops": (
        "X[N, W], M[M]",
        "A[n, t, l : N, W/3, M] = +((X[n, 3*t + w] - X[n, 3*t + w + l]) * X[n, 3*t + w] * M[l]), w < 9;",
        2,
    ),
    "from behind, in hops": ("X[N, W]", "A[t, n : W/2, N] = +(sin(X[n, 1 + 2*t + w])), w < 6;", 2),
    "written in hops": ("X[N, W], K[Q]", "A[n, 2*t + w : N, W] = +(X[n, 2*t + w] * K[t]), w < 6;", 2),
    "written beside, in hops": (
        "X[N, W], K[N, Q]",
        "A[n, 3*t + w + j : N, W] = +(X[n, 3*t + w] / K[n, t]), w < 6, j < 2;",
        2,
    ),
    "half a hop": ("X[N, W]", "A[n, t : N, W/2] = +(X[n, 2*t + w] * X[n, 2*t + w]), w < 5;", 1),
    "weights of a hop": ("X[N, W], K[R]", "A[n, t : N, W/2] = +(X[n, 2*t + w] * K[w]), w < 6;", 1),
    "a first place as a value": ("X[N, W]", "A[n, t : N, W/2] = +(X[n, 2*t + w] * t), w < 6;", 1),
    "rows that see nothing": (
        "X[N, H, W], K[R]",
        "A[n, y, x : N, H + 40, W + 30] = +(X[n, y + j - 20, x + i - 20] * K[j] * K[i]);",
        1,
    ),
}


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(separate, "FEWEST", 0)
    monkeypatch.setattr(separate, "SPARED", 0.1)


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.one_in(8)
def test_values_and_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    declared, statement, count = WINDOWS[name]
    text = f"function ({declared}) -> (A) {{ {statement} }}"
    found = re.findall(r"(\w)\[([^\]]*)\]", declared)
    generator = torch.Generator().manual_seed(0)
    given = [torch.rand([SIZES[d] for d in dims.split(", ")], generator=generator).double() + 0.1 for _, dims in found]
    types = {n: TensorType(tuple(x.shape), "float64") for (n, _), x in zip(found, given, strict=True)}
    assert len(lower(tilec.compile(text).program, types, {}).stages["flat"].statements) == count

    def both(dtype: torch.dtype) -> list[torch.Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in given]
        value = tilec.compile(text, backend="torch")(*leaves)
        weights = torch.rand(value.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        return [value.detach(), *torch.autograd.grad(value, leaves, weights)]

    apart = {dtype: both(dtype) for dtype in (torch.float64, torch.float32, torch.bfloat16)}
    monkeypatch.setattr(separate, "FEWEST", 10**12)
    whole = both(torch.float64)
    extremum = statement.split("= ")[1][0] in "<>"  # ties of 16-bit values are others
    for dtype, tolerance in ((torch.float64, 1e-13), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        for x, y in list(zip(apart[dtype], whole, strict=True))[: 1 if extremum and dtype is torch.bfloat16 else None]:
            assert x.dtype == dtype and torch.linalg.norm(x.double() - y) <= tolerance * torch.linalg.norm(y)


def test_what_a_condition_drops_is_no_product_of_zero_and_infinity() -> None:
    """Columns without a point would be zero times infinity: such windows stay whole."""
    text = "function (X[N], K[R]) -> (A) { A[y, x : N, 30] = +(X[y + j - 3] * K[j] * X[x + i - 20] * K[i]); }"
    x, k = torch.ones(9), torch.tensor([1.0, torch.inf, 1.0])
    a = tilec.compile(text)(x, k)
    assert not a[:, :10].isnan().any() and (a[:, :10] == 0).all()
    text = "function (X[N, W], K[R]) -> (A) { A[y, x : N, 40] = +(X[y + j - 1, x + i - 20] * K[j] * K[i]); }"
    a = tilec.compile(text)(torch.ones(9, 9), k)
    assert (a[:, :10] == 0).all() and a[1:-1, 20].isinf().all()


@pytest.mark.parametrize("shape", [(0, 20, 23), (1, 7, 7), (1, 7, 9)])
def test_sizes(shape: tuple[int, int, int]) -> None:
    f = tilec.compile(f"function (X[N, H, W], K[R]) -> (A) {{ {WINDOWS['valid'][1]} }}")
    x, k = torch.rand(shape), torch.rand(7)
    wanted = torch.nn.functional.conv2d(x[:, None], (k[:, None] * k)[None, None])[:, 0]
    torch.testing.assert_close(f(x, k), wanted)
