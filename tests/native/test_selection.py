"""Choices and tests in one pass over a CPU's memory: bit for bit torch's, with the library and without."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch

from tilec.backends.torch import runtime as rt

FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, math.inf, -math.inf, math.nan, 3.0]
TESTS = (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
DTYPES += [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool]
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SHAPES = [((131, 97), (131, 97)), ((131, 97), (97,)), ((131, 97), ()), ((9001,), (9001,)), ((3, 4001), (3, 1))]


@pytest.fixture(params=["native", "torch"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the library in C++, and as where there is none."""
    monkeypatch.setenv("TILEC_NATIVE", "0")
    if request.param == "native":
        request.getfixturevalue("library")


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
        rt.add_where_bits(False, (total[:, part], ((), 4, bits[:, part], a[:, part])))
        assert _same(total[:, part], want)
    assert step == 1 or _same(rooms[:, 1::step], before[:, 1::step])


LAYOUTS = [(0, 1, 2), (2, 0, 1), (1, 2, 0)]  # which dimensions lie how far apart, from the farthest
WINDOWS = [(9, 17, 40, 1), (3, 70, 5, 2), (2, 33, 96, 3), (1, 3, 2, 2), (5, 4, 1, 1), (3, 700, 19, 2)]


def _laid(t: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """The same values, with dimensions in this order in memory."""
    back = [order.index(d) for d in range(len(order))]
    return t.permute(order).contiguous().permute(back)


def _window(shape: tuple[int, int, int, int]) -> list[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """For each element of windows of 3 along the second dimension, centred: the outputs that have it, and where it is
    read. The first has all."""
    n, rows, count, step = shape
    found = []
    for k in (0, -1, 1):
        first, last = max(0, -(k // step)), min(rows, (rows * step - 1 - k) // step + 1)
        part = () if (first, last) == (0, rows) else (slice(None), slice(first, last), slice(None))
        read = slice(first * step + k, (last - 1) * step + k + 1, step)
        found.append((part, (slice(None), read, slice(None))))
    return found


def _sums_of(dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    """Types that values of a type are added in."""
    return (dtype, torch.float32) if dtype == torch.bfloat16 else (dtype,)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("shape", WINDOWS, ids=str)
@pytest.mark.parametrize("order", LAYOUTS, ids=str)
def test_windows_in_parts(dtype: torch.dtype, shape: tuple[int, int, int, int], order: tuple[int, ...]) -> None:
    n, rows, count, step = shape
    x = _laid(_drawn((n, rows * step, count), dtype, 1), order)
    parts = _window(shape)
    for combine, least in ((torch.maximum, -math.inf), (torch.minimum, math.inf), (torch.add, 0)):
        least = least if dtype.is_floating_point else max(-100, min(100, least))
        for fresh, sums in itertools.product((True, False), _sums_of(dtype) if combine is torch.add else (dtype,)):
            want = torch.full((n, rows, count), least).to(sums)
            for part, read in parts:
                want[part] = combine(want[part], x[read])
            total = _laid(torch.full((n, rows, count), 7.0 if fresh else least).to(sums), order)
            sliced = [(part, 0, (x, read)) for part, read in parts]
            sliced[-1] = (parts[-1][0], 0, x[parts[-1][1]])
            rt.combine_slices(combine, fresh, (total, *sliced))
            assert torch.equal(total.nan_to_num(5), want.nan_to_num(5))


def test_wide_sums_of_narrow_values() -> None:
    x, y = torch.randn(2, 40, 300, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    total = torch.empty(40, 300)
    rt.combine_slices(torch.add, True, (total, ((), 0, x), ((), 0, y)))
    assert torch.equal(total, x.float() + y.float())


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("integer", [torch.uint8, torch.int16])
@pytest.mark.parametrize("shape", WINDOWS, ids=str)
@pytest.mark.parametrize("order", LAYOUTS, ids=str)
def test_places_of_windows_and_what_they_receive(
    dtype: torch.dtype, integer: torch.dtype, shape: tuple[int, int, int, int], order: tuple[int, ...]
) -> None:
    n, rows, count, step = shape
    x = _laid(_drawn((n, rows * step, count), dtype, 1), order)
    y = _laid(_drawn((n, rows, count), dtype, 2), order)
    parts = list(zip(_window(shape), (1 + 8, 2 + 8, 4 + 8), strict=True))
    want = torch.zeros(n, rows, count, dtype=integer)
    for (part, read), number in parts:
        want[part] += (x[read] == y[part]).to(integer) * number
    found = rt.weighed_tests(integer, *((p, torch.eq, number, (x, r), (y, p)) for (p, r), number in parts))
    assert torch.equal(found, want) and found.dtype == integer
    share = _laid(torch.randn(n, rows, count, generator=torch.Generator().manual_seed(3)).to(dtype), order)
    for fresh, sums in itertools.product((True, False), _sums_of(dtype)):
        before = torch.ones(n, rows, count, dtype=sums)
        expected = torch.zeros_like(before) if fresh else before.clone()
        for (part, _), number in parts:
            expected[part] += torch.where((found[part] & number & 7) > 0, share[part], 0)
        total = _laid(before, order)
        classes = (total, *((p, number & 7, (found, p), (share, p)) for (p, _), number in parts))
        rt.add_where_bits(fresh, classes)
        assert torch.equal(total, expected)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("integer", [torch.uint8, torch.int16])
@pytest.mark.parametrize("shape", WINDOWS, ids=str)
@pytest.mark.parametrize("order", LAYOUTS, ids=str)
@pytest.mark.parametrize("largest", [True, False])
def test_extrema_and_their_places(
    dtype: torch.dtype, integer: torch.dtype, shape: tuple[int, ...], order: tuple[int, ...], largest: bool
) -> None:
    n, rows, count, step = shape
    x = _laid(_drawn((n, rows * step, count), dtype, 1), order)
    total, places = (_laid(torch.empty(n, rows, count, dtype=t), order) for t in (dtype, integer))
    parts = list(zip(_window((n, rows, count, step)), (1 + 8, 2 + 8, 4 + 8), strict=True))
    combine = torch.maximum if largest else torch.minimum
    want = torch.full((n, rows, count), -math.inf if largest else math.inf, dtype=dtype)
    for (part, read), _ in parts:
        want[part] = combine(want[part], x[read])
    where = torch.zeros(n, rows, count, dtype=integer)
    for (part, read), number in parts:
        where[part] += (x[read] == want[part]).to(integer) * number
    rt.extremum_and_places(combine, total, places, *((part, number, (x, read)) for (part, read), number in parts))
    assert torch.equal(total.nan_to_num(5), want.nan_to_num(5))
    assert torch.equal(places, where)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("shape", [(4, 29, 57), (4, 29, 58), (70, 3, 1), (1, 5, 2), (2, 2, 4001), (300, 2, 9)], ids=str)
@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("fresh", [True, False])
def test_classes_that_lie_between_one_another(
    dtype: torch.dtype, shape: tuple[int, ...], step: int, axis: int, fresh: bool
) -> None:
    total, x, y = (_drawn(shape, dtype, seed) for seed in (1, 2, 3))
    want, classes = total.clone(), []
    for k in range(min(step, shape[axis])):
        place = (slice(None),) * axis + (slice(k, None, step),)
        first = want[place] * 0 if fresh else want[place]
        want[place] = torch.nan_to_num(x[place] + y[place] if fresh else first + x[place] + y[place], 7)
        classes.append((total[place], ((), 0, x[place]), ((), 0, (y[place], (slice(None),) * 3))))
    rt.combine_slices(torch.add, fresh, *classes)
    assert torch.equal(torch.nan_to_num(total, 7) if dtype.is_floating_point else total, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("integer", [torch.uint8, torch.int16, torch.int32])
def test_values_divided_by_what_stands_in_bits(dtype: torch.dtype, integer: torch.dtype) -> None:
    x = _drawn((131, 97), dtype, 1)
    bits = torch.randint(0, 256, (97, 131), generator=torch.Generator().manual_seed(0)).to(integer).T
    want = x / (bits >> 3).to(dtype)
    assert _same(rt.divided_by_bits(x, bits, 3), want)
    room = torch.zeros(131, 194, dtype=dtype)[:, ::2]
    rt.divided_by_bits(x, bits, 3, out=room)
    assert _same(room, want)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.float16])
@pytest.mark.parametrize("shape", [(19, 7, 5), (8, 1, 1), (1, 33, 2), (3, 0, 2), (0, 3, 1)], ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("falling", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_sums_that_tests_begin_anew(
    dtype: torch.dtype, shape: tuple[int, ...], axis: int, falling: bool, scaled: bool
) -> None:
    x = _drawn(shape, dtype, 1)
    kept = torch.rand(shape, generator=torch.Generator().manual_seed(2)) < 0.7
    scale = _drawn(shape, dtype, 3) if scaled else None
    want, before = torch.empty_like(x), torch.zeros_like(x.narrow(axis, 0, min(1, shape[axis])).sum(axis))
    for k in range(shape[axis])[:: -1 if falling else 1]:
        term = before if scale is None else before * scale.select(axis, k)
        before = x.select(axis, k) + torch.where(kept.select(axis, k), term, 0)
        want.select(axis, k).copy_(before)
    assert _same(rt.running(x, kept, scale, axis, falling), want)
    assert _same(
        rt.running(x, kept[:1].expand(shape), None, axis, False),
        rt.running(x.mT.contiguous().mT, kept[:1].expand(shape).contiguous(), None, axis, False),
    )


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", WINDOWS, ids=str)
@pytest.mark.parametrize("order", LAYOUTS, ids=str)
@pytest.mark.parametrize("fresh", [True, False])
def test_elements_added_and_counted_where_others_are_equal(
    dtype: torch.dtype, shape: tuple[int, ...], order: tuple[int, ...], fresh: bool
) -> None:
    n, rows, count, step = shape
    x, y = (_laid(_drawn((n, k, count), dtype, k), order) for k in (rows * step, rows))
    share = _laid(torch.randn(n, rows, count, generator=torch.Generator().manual_seed(3)).to(dtype), order)
    parts = _window((n, rows, count, step))
    for sums in _sums_of(dtype):
        added, counted = torch.ones(2, n, rows, count, dtype=sums) * (not fresh)
        for part, read in parts:
            added[part] += torch.where(x[read] == y[part], share[part], 0)
            counted[part] += (x[read] == y[part]).to(dtype)
        totals = [_laid(torch.ones(n, rows, count, dtype=sums), order) for _ in range(2)]
        rt.add_where_equal(fresh, (totals[0], *((p, 0, (x, r), (y, p), (share, p)) for p, r in parts)))
        rt.count_equal(fresh, (totals[1], *((p, 1, (x, r), (y, p)) for p, r in parts)))
        assert torch.equal(totals[0], added) and torch.equal(totals[1], counted)


def test_sums_of_tests_in_parts() -> None:
    x, y = _drawn((60, 200), torch.float32, 1), _drawn((60, 200), torch.float32, 2)
    inner = (slice(1, 60), slice(None))
    for dtype in (torch.uint8, torch.int16):
        found = rt.weighed_tests(dtype, ((), torch.eq, 5, x, y), (inner, torch.eq, 32, x[:-1], (y, inner)))
        want = (x == y).to(dtype) * 5
        want[1:] += (x[:-1] == y[1:]).to(dtype) * 32
        assert torch.equal(found, want)


@pytest.mark.parametrize("test", TESTS)
def test_results_are_laid_out_as_the_first_operand(test: Callable[..., torch.Tensor]) -> None:
    x, y = _drawn((4, 8, 40, 20), torch.float32, 1), _drawn((4, 8, 40, 20), torch.float32, 2)
    x = x.contiguous(memory_format=torch.channels_last)
    assert rt.compared(test, x, y).stride() == test(x, y).stride() == x.stride()


def test_zeros_that_have_no_memory() -> None:
    """Tangents of what does not vary, in torch's forward mode."""
    zeros, x = torch._efficientzerotensor(9001), _drawn((9001,), torch.float32, 1)
    assert _same(rt.choose(x > 0, zeros, x), torch.where(x > 0, 0, x))
    assert _same(rt.chosen_by(torch.ge, x, 1.0, x, zeros), torch.where(x >= 1, x, 0))


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("integer", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(300, 33), (300, 4, 5), (1, 7), (0, 3), (50,), (40, 0)], ids=str)
@pytest.mark.parametrize("step", [1, 2])
def test_rows_added_where_integers_say(
    dtype: torch.dtype, integer: torch.dtype, shape: tuple[int, ...], step: int
) -> None:
    rows, tail = 7, shape[1:]
    at = torch.randint(0, rows, shape[:1], generator=torch.Generator().manual_seed(0)).to(integer)
    values = _drawn((shape[0] * step, *tail), dtype, 1)[::step]
    wide = _drawn((rows, *(n * step for n in tail)), dtype, 2)
    total = wide[(slice(None), *(slice(0, n) for n in tail))]
    want, around = total.clone(), wide.clone()
    for k in range(shape[0]):
        want[at[k]] += values[k]
    rt.add_rows(total, at, values)
    assert _same(total, want)
    around[(slice(None), *(slice(0, n) for n in tail))] = want
    assert _same(wide, around)
    if shape[0] and values.numel():
        with pytest.raises((IndexError, RuntimeError)):
            rt.add_rows(total, at - rows, values)


@pytest.mark.parametrize("integer", [torch.int16, torch.int32, torch.int64])
def test_whether_integers_are_within(integer: torch.dtype) -> None:
    t = torch.arange(-5, 95, dtype=integer).view(10, 10)
    for part in (t, t.T, t[::2], t[:, 3:4], t[:1, :1].expand(3, 4)):
        low, high = int(part.min()), int(part.max())
        assert rt.all_within((part, low, high), (t, -5, 94))
        assert not rt.all_within((part, low + 1, high)) and not rt.all_within((part, low, high - 1))
    assert not rt.all_within((t[:0], -100, 100))
