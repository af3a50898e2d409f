"""The sort of points by their places, interpreted: stable in any number of passes, and what it adds up."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.plan.plan import Plan
from tilec.backends.triton.runtime.executable import PlannedCall
from tilec.backends.triton.scatter import sort, sort_text

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

CPU = torch.device("cpu")


ORDERS = {
    "at random": lambda m, n, g: torch.randint(-3, n + 3, (m,), generator=g),
    "in order": lambda m, n, g: torch.randint(0, n, (m,), generator=g).sort()[0],
    "the other way round": lambda m, n, g: torch.arange(m).flip(0) % n,
    "most at one": lambda m, n, g: torch.where(
        torch.rand(m, generator=g) < 0.9, n - 1, torch.randint(0, n, (m,), generator=g)
    ),
    "all outside": lambda m, n, g: torch.full((m,), n),
    "in order but for the last": lambda m, n, g: torch.cat([torch.arange(m - 1), torch.zeros(1, dtype=torch.int64)]),
}


@pytest.mark.covering
@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize(
    ("points", "count", "dtype", "few"),
    [
        (2501, 2500, torch.int64, 0),
        (2049, 3, torch.int32, 0),
        (2049, 3, torch.int32, 5000),
        (301, 200000, torch.int64, 5000),
    ],
)
@pytest.mark.one_in(7)
def test_sorted(
    name: str, points: int, count: int, dtype: torch.dtype, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sort, "FEW", few)
    place = ORDERS[name](points, count, torch.Generator().manual_seed(0)).to(dtype)
    f = tilec.compile("function (X[M], T[M], N[V]) -> (Y) { Y[T[m] : V] = +(X[m]); }", backend="triton")
    x, n = torch.arange(points, dtype=torch.float32), torch.empty(count)
    inside = (place >= 0) & (place < count)
    wanted = torch.zeros(count).index_add_(0, place[inside].long(), x[inside])
    assert torch.equal(f(x, place, n), wanted)
    names = [k.name for k in f.lower(x, place, n).kernels]
    assert ("sort_moved" in names) is (few == 0) and ("sort_starts" in names) is (count > 1000)


@pytest.mark.parametrize("few", [0, 1000])
@pytest.mark.parametrize(("count", "wide"), [(2, False), (300, False), (900, True), (3000, False), (14, True)])
@pytest.mark.one_in(8)
def test_the_sort_is_stable_in_any_number_of_passes(
    count: int, wide: bool, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sort_text, "MOST_COUNTED_ON_CHIP", 16)
    for name, value in {
        "FEW": few,
        "FEWEST_BITS": 4,
        "MOST_BITS": 5,
        "MOVED_TOGETHER": 32,
        "MOST_MOVED_TOGETHER": 32,
        "BLOCKS_AT_ONCE": 4,
        "MOST_COMPARED": 10000,
    }.items():
        monkeypatch.setattr(sort, name, value)
    for points in (6 * 32 - 5, 7):
        asked = sort.Sort("Y", points, count, wide)
        call = PlannedCall(Plan(tuple(sort.sort_steps(asked)), asked.made), (asked.keys,), CPU)
        keys = torch.randint(0, count + 1, (points,)).to(getattr(torch, asked.dtype))
        for given in (keys, keys // 5, keys.sort()[0]):
            *placed, order, starts = call((given,))
            if asked.packed:
                placed, order = [order >> 32], order & (2**32 - 1)
            wanted, places = torch.sort(given, stable=True)
            assert torch.equal(placed[0], wanted.to(placed[0].dtype))
            assert torch.equal(order, places.to(order.dtype))
            assert torch.equal(starts, torch.searchsorted(wanted, torch.arange(1, count + 2)).to(starts.dtype))
