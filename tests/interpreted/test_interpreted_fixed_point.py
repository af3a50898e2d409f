"""Sums in fixed point and extrema at places that are data, interpreted: values, errors, any order, infinities, NaN."""

import math
import os
import random
from fractions import Fraction

import pytest
import torch

import tilec
from tilec.backends.triton.scatter import exact, fixed_point, scatter

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

SUM = "function (X[M], T[M], Z[N]) -> (Y) { Y[T[m] : N] = +(X[m]); }"
POINTS = 60
INFINITY = math.inf
CASES = {
    "one axis": SUM,
    "rows": "function (X[M, D], T[M], Z[N]) -> (Y) { Y[T[m], d : N, D] = +(X[m, d]); }",
    "columns before the places": "function (X[M, D], T[M], Z[N]) -> (Y) { Y[d, T[m] : D, N] = +(X[m, d]); }",
    "two places": "function (X[M], T[M], U[M], Z[N]) -> (Y) { Y[T[m], U[m] - 2 : N, N] = +(X[m]); }",
    "neighbours that go round": """function (X[M], T[M], Z[N]) -> (Y) {
        Y[(T[m] + a) % N : N] = +(X[m] * (a + 2)), a < 3;
    }""",
    "summed first": "function (X[M, D], T[M], Z[N]) -> (Y) { Y[T[m] + 1 : N] = +(X[m, d] * X[m, 0]), m - 3 < 9; }",
    "guarded": "function (X[M, D], T[M], Z[N]) -> (Y) { Y[T[m], d : N, D] = +(X[m, d] > T[m] - 5 ? X[m, d]); }",
    "guarded and summed": """function (X[M, D], T[M], U[M], Z[N]) -> (Y) {
        Y[T[m] : N] = +(U[m] > 3 ? X[m, d] * X[T[m], d]);
    }""",
    "a difference of two": """function (X[M], T[M], U[M], Z[N]) -> (Y) {
        A[T[m] : N] = +(X[m]);
        B[U[m] : N] = +(X[m] * X[m]);
        Y = 2 * A - B;
    }""",
    "a quotient of rows": """function (X[M, D], T[M], U[M], Z[N]) -> (Y) {
        A[T[m], d : N, D] = +(X[m, d]);
        B[T[m] : N] = +(U[m] * 1.0);
        Y[n, d] = A[n, d] / (B[n] * B[n] + 1);
    }""",
    "corners": """function (X[M], T[M], Z[N]) -> (Y, E) {
        A[T[m] : N] = +(X[m]);
        B[T[m] + 1 : N] = +(X[m] * 2);
        E[T[m] - 1 : N] = +(X[m] * 3);
        Y = A + B + Z;
    }""",
}


@pytest.fixture(autouse=True)
def _of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also few points at few elements."""
    monkeypatch.setattr(fixed_point, "FEWEST_ADDED", 0)
    monkeypatch.setattr(fixed_point, "FEWEST_TOTALS", 0)
    monkeypatch.setattr(fixed_point, "SORTED", 100)
    monkeypatch.setattr(scatter, "FEW_AT_AN_ELEMENT", 0)


def inputs(source: str, points: int, elements: int, dtype: torch.dtype) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(points)
    place = torch.where(
        torch.rand(points, generator=g) < 0.3, 1, torch.randint(-3, elements + 4, (points,), generator=g)
    )
    found = {
        "X": torch.randn((points, 3) if "X[M, D]" in source else (points,), generator=g).to(dtype),
        "T": place,
        "U": torch.randint(-1, 12, (points,), generator=g),
        "Z": torch.randn(elements, generator=g).to(dtype),
    }
    declared = source[source.index("(") + 1 : source.index(")")]
    return [found[text.strip()[0]] for text in declared.replace("M, D", "").split(",")]


@pytest.mark.one_in(10)
@pytest.mark.filterwarnings("ignore::tilec.TileWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, dtype: torch.dtype) -> None:
    f = tilec.compile(CASES[name], backend="triton")
    for points, elements in ((POINTS, 11), (1, 1), (0, 4)):
        tensors = inputs(CASES[name], points, elements, dtype)
        wide = [t.double() if t.is_floating_point() else t for t in tensors]
        wanted, got = tilec.compile(CASES[name], backend="torch")(*wide), f(*tensors)
        tolerance = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
        for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (got, wanted)), strict=True):
            torch.testing.assert_close(a.double(), b.double(), rtol=tolerance, atol=tolerance * 8)
        if points > 1:
            assert any("_rounded" in k.name for k in f.lower(*tensors).kernels)


ADDED = {  # what takes two sums, and how many allocations these need
    "sum": ("A + B", 1),
    "sum with others": ("Z + A + (B + 2)", 1),
    "multiple": ("A + 2 * B", 2),
    "twice": ("A + B + A", 2),
    "read again": ("A + B + exp(-A * A)", 2),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ADDED)
def test_sums_of_sums_have_one_accumulator(name: str, dtype: torch.dtype) -> None:
    body, allocations = ADDED[name]
    source = f"""function (X[M], T[M], U[M], Z[N]) -> (Y) {{
        A[T[m] : N] = +(X[m]);
        B[U[m] : N] = +(X[m] * X[m]);
        Y = {body};
    }}"""
    tensors = inputs(source, 80, 6, dtype)
    f = tilec.compile(source, backend="triton")
    wide = [t.double() if t.is_floating_point() else t for t in tensors]
    wanted = tilec.compile(source, backend="torch")(*wide)
    tolerance = 1e-5 if dtype is torch.float32 else 3e-2
    torch.testing.assert_close(f(*tensors).double(), wanted, rtol=tolerance, atol=10 * tolerance)
    assert f.lower(*tensors).source().count("torch.full(") == (allocations if dtype is torch.float32 else 2)


def test_gradient_of_gathers() -> None:
    """Of rows that go round, and of two gathers of one tensor."""
    source = """function (X[N, D], T[M], U[M]) -> (Y) {
        Y[m] = sum(X[(T[m] + a) % N, d] * X[U[m], d]), a < 2;
    }"""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(9, 2, generator=g, requires_grad=True)
    t, u = torch.randint(-20, 20, (60,), generator=g), torch.randint(-1, 10, (60,), generator=g)
    back = torch.randn(60, generator=g)
    got = torch.autograd.grad(tilec.compile(source, backend="triton")(x, t, u), x, back)[0]
    y = x.detach().double().requires_grad_()
    wanted = torch.autograd.grad(tilec.compile(source, backend="torch")(y, t, u), y, back.double())[0]
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


def test_columns_are_added_to_the_first_plane_side_by_side() -> None:
    """Where the plane is data, nothing tells that columns are neighbours."""
    specs = [tilec.spec((4096, 3)), tilec.spec((4096,), "int64"), tilec.spec((2048,))]
    source = tilec.compile(CASES["rows"], backend="triton").lower(*specs, target="sm_90").source()
    assert "tl.atomic_add(Y_total + element, units, mask=valid & (below == 0)" in source


def drawn(dtype: torch.dtype, seed: int, near: bool) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Terms of all magnitudes, and their places. `near`: those of one element are of one magnitude."""
    r = random.Random(seed)
    elements = r.randint(1, 6)
    info = torch.finfo(dtype)
    low, high = math.frexp(info.smallest_normal * info.eps)[1], math.frexp(info.max)[1] - 8
    levels = [r.randint(low, high) for _ in range(elements)]
    places, terms = [], []
    for _ in range(r.randint(1, 60)):
        place = r.randrange(elements)
        level = levels[place] + r.randint(-3, 3) if near else r.randint(low, high)
        places.append(place)
        terms.append(math.ldexp(r.uniform(-1, 1), min(max(level, low), high)))
        if r.random() < 0.3:  # what cancels
            places.append(place)
            terms.append(-terms[-1])
    return torch.tensor(terms, dtype=torch.float64).to(dtype), torch.tensor(places), elements


@pytest.mark.covering
@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_element_has_a_bound_of_its_own(dtype: torch.dtype, near: bool) -> None:
    """Half a unit in the last place, and 2^-32 (float64: 2^-64) of its greatest term for each: whatever the terms of
    other elements are, and in whatever order. The bound of a sum one by one is 256 times that and more."""
    f = tilec.compile(SUM, backend="triton")
    unit = Fraction(1, 2 ** (32 if dtype is torch.float32 else 64))
    for seed in range(5):
        x, t, elements = drawn(dtype, seed, near)
        y = f(x, t, torch.zeros(elements, dtype=dtype))
        for n in range(elements):
            terms = [Fraction(v) for v in x[t == n].tolist()]
            exact = sum(terms, Fraction(0))
            last = max(
                Fraction(torch.finfo(dtype).eps) * abs(exact),
                Fraction(math.ldexp(1, -149 if dtype is torch.float32 else -1074)),
            )
            bound = last / 2 + len(terms) * unit * max(map(abs, terms), default=0)
            bound += 2 * last * unit + (last / 2 if dtype is torch.float64 else 0)  # roundings before the last
            assert abs(Fraction(y[n].item()) - exact) <= bound
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        assert torch.equal(f(x[order], t[order], torch.zeros(elements, dtype=dtype)), y)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("apart", [8, 60, 400])
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_terms_of_one_range_are_added_exactly(dtype: torch.dtype, columns: int, apart: int) -> None:
    """However the large ones cancel, and where one element has most of the points, or none; terms that are written
    nowhere count neither. Beyond the range that integers hold, elements have units of their own."""
    r, points, elements = random.Random(apart), 150, 9
    apart = min(apart, 240 if dtype is torch.float32 else apart)
    terms = [
        [math.ldexp(r.uniform(-1, 1), r.randint(-apart // 2, apart // 2)) for _ in range(columns)]
        for _ in range(points)
    ]
    x = torch.tensor(terms, dtype=torch.float64).to(dtype)
    t = torch.tensor([r.choice([0, 4, 4, 4, 4, 7, 8, -1, 9]) for _ in range(points)])
    x, t = torch.cat([x, -x.masked_fill(x.abs() < 1, 0), x[:1] * 0]), torch.cat([t, t, t[:1]])
    y = tilec.compile(CASES["rows"], backend="triton")(x, t, torch.zeros(elements, dtype=dtype))
    for n in range(elements):
        for d in range(columns):
            own = [Fraction(v) for v in x[t == n, d].tolist()]
            exact = sum(own, Fraction(0))
            bound = abs(exact) * Fraction(torch.finfo(dtype).eps) * Fraction(51, 100)
            if apart > 100:
                bound += len(own) * Fraction(1, 2**32) * max(map(abs, own), default=0)
            assert abs(Fraction(y[n, d].item()) - exact) <= bound
    f = tilec.compile(CASES["rows"], backend="triton")
    for order in (torch.randperm(len(x), generator=torch.Generator().manual_seed(0)), t.argsort(stable=True)):
        assert torch.equal(f(x[order], t[order], torch.zeros(elements, dtype=dtype)), y)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_is_no_number_stays_at_its_element(dtype: torch.dtype) -> None:
    nan, most = math.nan, torch.finfo(dtype).max
    runs = [
        [1.0, INFINITY, -2.0],
        [-INFINITY, 3.0, -INFINITY],
        [INFINITY, -INFINITY],
        [nan, 1.0],
        [INFINITY, nan, -INFINITY],
        [most, most],
        [-most, -most, -most],
        [most, most, -most],
        [0.0, -0.0],
        [],
        [0.5, 0.25],
    ]
    wanted = [INFINITY, -INFINITY, nan, nan, nan, INFINITY, -INFINITY, most, 0.0, 0.0, 0.75]
    t = torch.tensor([n for n, run in enumerate(runs) for _ in run])
    x = torch.tensor([v for run in runs for v in run], dtype=dtype)
    y = tilec.compile(SUM, backend="triton")(x, t, torch.zeros(len(runs), dtype=dtype))
    torch.testing.assert_close(y, torch.tensor(wanted, dtype=dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("aggregation, sign", [(">", 1), ("<", -1)])
def test_extrema_have_the_same_bits_in_any_order(
    aggregation: str, sign: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "FEWEST_ADDED", 0)
    monkeypatch.setattr(exact, "FEWEST_SUMMED", 0)
    source = f"function (X[M, D], T[M], Z[N]) -> (Y) {{ Y[T[m], d : N, D] = {aggregation}(X[m, d]); }}"
    f, g = tilec.compile(source, backend="triton"), torch.Generator().manual_seed(0)
    tiny = torch.finfo(dtype).smallest_normal / 8
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, 3e38, tiny, -tiny, -2.0, INFINITY, -INFINITY, math.nan, -math.nan])
    x = values.to(dtype)[torch.randint(0, len(values), (60, 2), generator=g)]
    t = torch.randint(-2, 33, (60,), generator=g)
    y = f(x, t, torch.zeros(30, dtype=dtype))
    wanted = torch.full((30, 2), -INFINITY * sign, dtype=dtype)
    inside = (t >= 0) & (t < 30)
    how = "amax" if sign > 0 else "amin"
    wanted = wanted.scatter_reduce(0, t[inside, None].expand(-1, 2), x[inside], how)
    torch.testing.assert_close(y, wanted, rtol=0, atol=0, equal_nan=True)
    order = torch.randperm(60, generator=g)
    kind = torch.int32 if dtype is torch.float32 else torch.int64
    assert torch.equal(f(x[order], t[order], torch.zeros(30, dtype=dtype)).view(kind), y.view(kind))
    assert [k.name for k in f.lower(x, t, torch.zeros(30, dtype=dtype)).kernels] == ["Y_each"]


@pytest.mark.parametrize("aggregation", ["+", ">", "<"])
def test_integers_that_many_points_have_one_place_of(aggregation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "FEWEST_SUMMED", 0)
    g = torch.Generator().manual_seed(0)
    x = torch.randint(-50, 50, (300, 3), generator=g, dtype=torch.int32)
    t = torch.randint(-2, 10, (300,), generator=g) * torch.randint(0, 2, (300,), generator=g)
    source = CASES["rows"].replace("= +", f"= {aggregation}")
    f, wanted = tilec.compile(source, backend="triton"), tilec.compile(source, backend="torch")(x, t, torch.zeros(8))
    for order in (torch.arange(300), t.argsort(stable=True)):
        assert torch.equal(f(x[order], t[order], torch.zeros(8)), wanted)
