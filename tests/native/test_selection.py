"""Choices and tests in one pass over a CPU's memory: bit for bit torch's, with the library and without."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from tilec.backends.torch import runtime as rt
from tilec.native import built_native

FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, math.inf, -math.inf, math.nan, 3.0]
TESTS = (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
DTYPES += [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool]
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SHAPES = [((131, 97), (131, 97)), ((131, 97), (97,)), ((131, 97), ()), ((9001,), (9001,)), ((3, 4001), (3, 1))]


@pytest.fixture(params=["native", "torch"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the library in C++, and as where there is none."""
    if request.param == "torch":
        monkeypatch.setattr("tilec.backends.torch.selection.native", lambda: None)
    elif built_native() is None:
        pytest.skip("there is no C++ compiler")


def _drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.tensor(FLOATS)[torch.randint(len(FLOATS), shape, generator=g)].to(dtype)
    return torch.randint(-3, 4, shape, generator=g).to(dtype)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bits, but that one NaN is as good as another."""
    nan = torch.isnan(a) & torch.isnan(b)
    bits = BITS[a.element_size()]
    equal = a.contiguous().view(-1).view(bits) == b.contiguous().view(-1).view(bits)
    return a.shape == b.shape and a.dtype == b.dtype and bool((equal.view(a.shape) | nan).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_choices(dtype: torch.dtype, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    whole, other = shapes
    x, a = _drawn(whole, dtype, 1), _drawn(whole, dtype, 2)
    y, b = _drawn(other, dtype, 3), _drawn(other, dtype, 4)
    for test in TESTS:
        truth = test(x, y)
        assert torch.equal(rt.compared(test, x, y), truth)
        for first, second in ((a, b), (b, a)):
            want = torch.where(truth, first, second)
            assert _same(rt.choose(truth, first, second), want)
            assert _same(rt.chosen_by(test, x, y, first, second), want)
            room = torch.zeros(*whole[:-1], 2 * whole[-1], dtype=dtype)[..., ::2]
            rt.chosen_by(test, x, y, first, second, out=room)
            assert _same(room, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_and_other_types(dtype: torch.dtype) -> None:
    x, a = _drawn((131, 97), torch.int16, 1), _drawn((131, 97), dtype, 2).T.contiguous().T
    for n, test in itertools.product((0.0, -0.0, 2.5, -math.inf), TESTS):
        want = torch.where(test(x, 1), a, n)
        assert _same(rt.chosen_by(test, x, 1, a, n), want)
        room = torch.empty_like(a)
        rt.choose(test(x, 1), a, n, out=room)
        assert _same(room, want)


def test_views_laid_out_in_other_orders() -> None:
    x = _drawn((5, 40, 2, 60), torch.float32, 1)
    a, b = x.permute(0, 2, 3, 1), _drawn((5, 2, 60, 40), torch.float32, 2)
    part = a[:, :, ::2]
    assert _same(rt.chosen_by(torch.gt, part, 0.0, b[:, :, ::2], part), torch.where(part > 0, b[:, :, ::2], part))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("limits", [(-1.0, 1.0), (0.0, math.inf), (-math.inf, 0.5), (0.0, 3.0)])
def test_between_limits(dtype: torch.dtype, limits: tuple[float, float]) -> None:
    least, most = limits
    x, g = _drawn((97, 131), dtype, 1), _drawn((97, 131), dtype, 2)
    edge = (x == least) & math.isfinite(least) | (x == most) & math.isfinite(most)
    want = torch.where((x >= least) & (x <= most), g * torch.where(edge, 0.5, 1.0).to(dtype), 0.0)
    assert _same(rt.between_limits(g, x, least, most), want)
    room = torch.empty(97, 262, dtype=dtype)[:, ::2]
    rt.between_limits(g, x, least, most, out=room)
    assert _same(room, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("integer", [torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("step", [1, 2])
def test_elements_added_where_others_have_a_bit(dtype: torch.dtype, integer: torch.dtype, step: int) -> None:
    bits = torch.randint(0, 100, (37, 41, 8), generator=torch.Generator().manual_seed(0)).to(integer)
    a, rooms = _drawn((37, 41, 8), dtype, 1), _drawn((37, 41 * step, 8), dtype, 2)
    total, before = rooms[:, ::step], rooms.clone()
    for part in (slice(None), slice(1, 41), slice(0, 0)):
        want = total[:, part] + torch.where(bits[:, part] & 4 > 0, a[:, part], 0)
        rt.add_where_bit(total[:, part], bits[:, part], a[:, part], 4)
        assert _same(total[:, part], want)
    assert step == 1 or _same(rooms[:, 1::step], before[:, 1::step])


def test_sums_of_tests_in_parts() -> None:
    x, y = _drawn((60, 200), torch.float32, 1), _drawn((60, 200), torch.float32, 2)
    inner = (slice(1, 60), slice(None))
    for dtype in (torch.uint8, torch.int16):
        found = rt.weighed_tests(dtype, (torch.eq, x, y, 5, ()), (torch.eq, x[:-1], y[1:], 32, inner))
        want = (x == y).to(dtype) * 5
        want[1:] += (x[:-1] == y[1:]).to(dtype) * 32
        assert torch.equal(found, want)


def test_zeros_that_have_no_memory() -> None:
    """Tangents of what does not vary, in torch's forward mode."""
    zeros, x = torch._efficientzerotensor(9001), _drawn((9001,), torch.float32, 1)
    assert _same(rt.choose(x > 0, zeros, x), torch.where(x > 0, 0, x))
    assert _same(rt.chosen_by(torch.ge, x, 1.0, x, zeros), torch.where(x >= 1, x, 0))
