"""Pools of 16-bit numbers on a CPU, and their gradients: one rounding at the end."""

from __future__ import annotations

import pytest
import torch

import tilec

POOLS = {  # aggregation: size, stride and padding of windows
    "2x2": (2, 2, 0),
    "3x3, stride 2": (3, 2, 1),
    "3x3": (3, 1, 1),
    "2x2, stride 3": (2, 3, 0),
}
LAYOUTS = {
    "last": ("I[N, H, W, C]", "n, y, x, c", "n, {}, {}, c", "N, {}, {}, C"),
    "first": ("I[N, C, H, W]", "n, c, y, x", "n, c, {}, {}", "N, C, {}, {}"),
}


@pytest.fixture(params=["native", "torch"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the library in C++, and as where there is none."""
    monkeypatch.setenv("TILEC_NATIVE", "0")
    if request.param == "native":
        request.getfixturevalue("library")


def _pool(aggregation: str, layout: str, size: int, stride: int, padding: int) -> tilec.Function:
    declared, output, read, sizes = LAYOUTS[layout]
    at = [f"{stride}*{v} + {r} - {padding}" for v, r in (("y", "j"), ("x", "i"))]
    out = [f"({n} + {2 * padding} - {size})/{stride} + 1" for n in "HW"]
    return tilec.compile(
        f"function ({declared}) -> (O) {{ O[{output} : {sizes.format(*out)}] = "
        f"{aggregation}(I[{read.format(*at)}]), j < {size}, i < {size}; }}"
    )


@pytest.mark.one_in(7)  # prime to the parameters' numbers of values, so that each meets each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("aggregation", [">", "<", "+"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pool", POOLS)
def test_pools_of_narrow_numbers(dtype: torch.dtype, aggregation: str, layout: str, pool: str) -> None:
    f = _pool(aggregation, layout, *POOLS[pool])
    g = torch.Generator().manual_seed(0)
    shape = (3, 11, 14, 10) if layout == "last" else (3, 10, 11, 14)
    x = (torch.randint(-20, 20, shape, generator=g) / 7).to(dtype).requires_grad_()  # many are equal
    wide = x.detach().double().requires_grad_()
    y, want = f(x), f(wide)
    assert y.dtype == dtype and torch.equal(y, want.to(dtype))
    d = torch.randn(y.shape, generator=g).to(dtype)
    (found,), (expected,) = torch.autograd.grad(y, x, d), torch.autograd.grad(want, wide, d.double())
    by_hand = f.grad()(x.detach(), d)
    for result in (found, by_hand):
        assert result.dtype == dtype
        torch.testing.assert_close(result.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-2)


def test_what_is_not_finite_in_a_pool() -> None:
    f, nan, inf = _pool(">", "last", 2, 2, 0), float("nan"), float("inf")
    x = torch.tensor([[1.0, nan, -inf, -inf], [2.0, 3.0, -inf, -inf], [0.0, -0.0, inf, 1.0], [-1.0, -2.0, inf, inf]])
    x = x.to(torch.bfloat16).view(1, 4, 4, 1).expand(3, 4, 4, 40).contiguous().requires_grad_()
    y = f(x)
    assert torch.equal(y[0, :, :, 0].isnan(), torch.tensor([[True, False], [False, False]]))
    assert torch.equal(y[0, :, :, 0].nan_to_num(5, 7, -7).float(), torch.tensor([[5.0, -7.0], [0.0, 7.0]]))
    (g,) = torch.autograd.grad(y[:, :, 1], x, torch.ones_like(y[:, :, 1]))
    assert torch.equal(
        g[0, :, 2:, 0].float(),
        torch.tensor([[0.25, 0.25], [0.25, 0.25], [1 / 3, 0], [1 / 3, 1 / 3]]).to(torch.bfloat16).float(),
    )
