"""Scatters, interpreted: runs of every length, all aggregations and types, what needs no order, the same every time."""

import os
import warnings

import pytest
import torch

import tilec
from tilec.backends.triton.scatter import scatter, sort
from tilec.backends.triton.schedule import planner

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

POINTS = 1100  # more than one program combines of a run
SORTED = ["Y_at_kernel", "sort_compared", "Y_pieces", "Y_segments"]
PASSED = ["Y_at_kernel", "sort_digits", "sort_bases", "sort_moved", "Y_pieces", "Y_segments"]
CASES = {  # source, kernels
    "rows": ("function (X[M, D], T[M]) -> (Y) { Y[T[m], d : 9, D] = +(X[m, d]); }", SORTED),
    "rows of another tensor": (
        "function (X[M, D], T[M], A[M]) -> (Y) { Y[T[m], d : 9, D] = +(X[A[m], d] * X[m, 0]); }",
        SORTED,
    ),
    "summed beside": (
        "function (X[M, D], T[M], A[M]) -> (Y) { Y[T[m] : 9] = +(X[A[m], d]); }",
        ["Y_values_kernel", *SORTED],
    ),
    "a guard of each column": (
        "function (X[M, D], T[M]) -> (Y) { Y[T[m], d : 9, D] = >(X[m, d] > 0 & T[m] != 3 ? X[m, d]); }",
        SORTED,
    ),
    "many elements, few points of each": (
        "function (X[M, D], T[M]) -> (Y) { Y[T[m], m % 250 : 9, 250] = *(X[m, 1]); }",
        ["Y_kernel"],
    ),
    "a window": ("function (X[M, D], T[M]) -> (Y) { Y[T[m] + d : 9] = +(X[m, d] * d); }", PASSED),
    "kept by default": (
        "function (X[M, D], T[M], Z[N, D]) -> (Y) { Y[T[m] + 2, d : N, D] = +(X[m, d]) default Z; }",
        PASSED,
    ),
    "logsumexp at a remainder": ("function (X[M, D]) -> (Y) { Y[m % 7, d : 7, D] = logsumexp(X[m, d]); }", SORTED),
    "columns before the places": (
        "function (X[M, D], T[M]) -> (Y) { Y[d, T[m] : D, 9] = +(X[m, d]); }",
        SORTED,
    ),
    "columns around the places": (
        "function (X[M, D], T[M], A[M]) -> (Y) { Y[k, T[m], d, A[m] : 3, 9, D, 50] = >(X[m, d] * k), k < 3; }",
        SORTED,
    ),
    "any": ("function (X[M, D], T[M]) -> (Y) { Y[T[m], d : 9, D] = >(X[m, d] > 2); }", SORTED),
    "histogram": ("function (T[M]) -> (Y) { Y[T[m] : 9] = +(1); }", ["Y_counts"]),
    "histogram of some": ("function (T[M], A[M]) -> (Y) { Y[T[m]  : 9] = +(A[m] > 4 ? 3), m < 700; }", ["Y_counts"]),
    "whole numbers": ("function (T[M], A[M]) -> (Y) { Y[A[m], T[m] : 60, 9] = +(T[m] * 2); }", ["Y_each"]),
    "greatest": ("function (T[M], A[M]) -> (Y) { Y[A[m], T[m] : 60, 9] = >(int32(m)); }", ["Y_each"]),
    "least, in columns": (
        "function (T[M], A[M]) -> (Y) { Y[A[m], T[m], k : 60, 9, 3] = <(m - 5*k), k < 3; }",
        ["Y_each"],
    ),
    "few elements": ("function (T[M], A[M]) -> (Y) { Y[T[m] : 9] = +(A[m]); }", SORTED),
}


def inputs(source: str, dtype: torch.dtype) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    found = {
        "X": torch.randint(-4, 5, (POINTS, 5), generator=g).to(dtype),
        "T": torch.where(torch.rand(POINTS, generator=g) < 0.6, 4, torch.randint(-2, 12, (POINTS,), generator=g)),
        "A": torch.randint(0, 50, (POINTS,), generator=g),
        "Z": torch.randint(-4, 5, (14, 5), generator=g).to(dtype),
    }
    declared = source[source.index("(") + 1 : source.index(")")]
    return [found[text.strip()[0]] for text in declared.replace("M, D", "").replace("N, D", "").split(",")]


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(8)
def test_runs(name: str, dtype: torch.dtype) -> None:
    source, kernels = CASES[name]
    tensors = inputs(source, dtype)
    f = tilec.compile(source, backend="triton")
    got = f(*tensors)
    wide = [t.double() if t.is_floating_point() else t for t in tensors]
    wanted = tilec.compile(source, backend="torch")(*wide)
    torch.testing.assert_close(got.double(), wanted.double(), rtol=2e-3 if dtype is torch.float16 else 1e-5, atol=1e-4)
    assert torch.equal(got, f(*tensors))
    assert [k.name for k in f.lower(*tensors).kernels] == kernels


FEW = {
    "rows with places of their own": "function (X[M, D], T[M]) -> (Y) { Y[m, (T[m] + d) % 7 : M, 7] = +(X[m, d]); }",
    "a diagonal": "function (X[M, D], T[M]) -> (Y) { Y[m, m, T[m] : M, M, 11] = +(X[m, d]); }",
    "rows and columns": "function (X[M, D], T[M]) -> (Y) { Y[m, T[m] + 1, d : M, 11, D] = >(X[m, d]); }",
    **{name: source for name, (source, _) in CASES.items()},
    "an element of another": "function (X[M, D], T[M]) -> (Y) { Y[clamp(T[T[m]], 1, 4), d : 9, D] = +(X[m, d]); }",
    "beside": "function (X[M, D], T[M]) -> (Y) { Y[T[m + 2], d : 9, D] = >(X[m, d]); }",
    "every other": "function (X[M, D], T[M]) -> (Y) { Y[(m + d)/2, T[m] : 30, 9] = <(X[m, d]); }",
}


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("points", [1, 40])
@pytest.mark.covering
@pytest.mark.one_in(5)
def test_few_points_are_looked_at_by_each_element(name: str, points: int) -> None:
    source = FEW[name]
    for dtype in (torch.float64, torch.float16, torch.int32) if "X" in source else (torch.float32,):
        tensors = [t if len(t) < 50 else t[:points] % (points + 2) for t in inputs(source, dtype)]
        f = tilec.compile(source, backend="triton")
        wide = [t.double() if t.is_floating_point() else t for t in tensors]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tilec.TileWarning)  # of no point at all
            got, wanted = f(*tensors), tilec.compile(source, backend="torch")(*wide)
        torch.testing.assert_close(got.double(), wanted.double(), rtol=2e-3, atol=1e-4)
        if "default" not in source:
            assert len(f.lower(*tensors).kernels) <= 1


ONE_OF_A_ROW = {
    "a diagonal": "Y[n, n : N, N] = +(X[n]);",
    "wide": "Y[n, n : N, 70] = +(X[n]);",
    "high": "Y[n, n : N, 7] = >(X[n]);",
    "beside": "Y[n, n + 1 : N, N] = +(X[n] > 0 ? X[n]);",
    "in front, backwards": "Y[N - 1 - n, n : N, N] = X[n];",
    "steps": "Y[n, 2*n - 3 : N, N] = <(X[n]);",
    "between": "Y[n, k, n + k : N, 3, N] = *(X[n] + k);",
    "of a matrix": "Y[n, k, n : N, 3, N] = +(X[n] * X[k]);",
    "integers": "Y[n, n : N, N] = +(n - 4);",
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("points", [1, 9, 65])
@pytest.mark.parametrize("name", ONE_OF_A_ROW)
@pytest.mark.covering
def test_an_element_of_each_row(name: str, points: int) -> None:
    source = f"function (X[N]) -> (Y) {{ {ONE_OF_A_ROW[name]} }}"
    for dtype in (torch.float32, torch.float16):
        x = torch.randn(points).to(dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tilec.TileWarning)  # of no point at all
            f, plain = tilec.compile(source, backend="triton"), tilec.compile(source, backend="torch")
            got, wanted = f(x), plain(x.double())
            assert len(f.lower(x).kernels) <= 1
            torch.testing.assert_close(got.double(), wanted.double(), rtol=2e-3, atol=1e-4)
            if got.is_floating_point():
                g = torch.randn(got.shape).to(dtype)
                wanted = plain.grad()(x.double(), g.double())
                torch.testing.assert_close(f.grad()(x, g).double(), wanted, rtol=1e-2, atol=2e-2)


def test_the_gradient_of_a_diagonal_joins_that_of_its_rows() -> None:
    source = "function (S[N, N]) -> (Y) { L[i] = logsumexp(S[i, j]); Y[i] = L[i] - S[i, i]; }"
    s, g = torch.randn(33, 33), torch.randn(33)
    f = tilec.compile(source, backend="triton").grad()
    torch.testing.assert_close(f(s, g), tilec.compile(source, backend="torch").grad()(s, g))
    assert [k.name for k in f.lower(s, g).kernels] == ["DS_rows"]


def test_each_element_looks_at_the_points_of_its_row() -> None:
    f = tilec.compile(
        "function (X[N, K], T[N, K], Z[V]) -> (Y) { Y[n, T[n, k] : N, V] = +(X[n, k]); }", backend="triton"
    )
    x, t, z = torch.randn(3000, 6), torch.randint(-1, 9, (3000, 6)), torch.zeros(8)
    wanted = torch.zeros(3000, 10).scatter_add(1, t + 1, x)[:, 1:9]
    torch.testing.assert_close(f(x, t, z), wanted)
    assert len(f.lower(x, t, z).kernels) == 1


def test_kernels_of_the_sort_are_those_of_every_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    def launches(source: str, *tensors: torch.Tensor) -> dict[str, str]:
        kernels = tilec.compile(source, backend="triton").lower(*tensors).kernels
        return {k.name: k.source for k in kernels if k.name.startswith("sort_")}

    for few in (0, 5000):
        monkeypatch.setattr(sort, "FEW", few)
        first = launches(
            "function (X[M], T[M]) -> (Y) { Y[T[m] : 3000] = +(X[m]); }",
            torch.zeros(1100),
            torch.zeros(1100, dtype=torch.int64),
        )
        second = launches(
            "function (V[N, D], A[N]) -> (O) { O[A[n] + 1, d : 200000, D] = >(V[n, d]); }",
            torch.zeros(400, 3, dtype=torch.float16),
            torch.zeros(400, dtype=torch.int64),
        )
        assert first.items() <= second.items() and first


def test_a_single_point_added_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "FEW_AT_AN_ELEMENT", 0)
    f = tilec.compile("function (T[M], A[M]) -> (Y) { Y[A[m] : 900] = +(T[m] * 2); }", backend="triton")
    found = f(torch.tensor([4]), torch.tensor([7]))
    assert found[7] == found.sum() == 8
    assert [k.name for k in f.lower(torch.tensor([4]), torch.tensor([7])).kernels] == ["Y_each"]


@pytest.mark.usefixtures("launches_apart")
def test_points_are_sorted_once_for_all_that_write_at_the_same_places() -> None:
    source = """function (X[M, D], T[M], Z[N, D]) -> (Y, C) {
        A[T[m], d : N, D] = >(X[m, d]);
        S[T[k], d : N, D] = +(exp(X[k, d] - A[T[k], d]));
        B[T[k] + 1, d : N, D] = +(X[k, d]);
        C[T[k], d : N, D] = +(T[k] > 3 ? X[k, d]);
        Y = A + log(S) + B;
    }"""
    f = tilec.compile(source, backend="triton")
    given = torch.randn(700, 3), torch.randint(-2, 42, (700,)), torch.zeros(40, 3)
    for found, wanted in zip(f(*given), tilec.compile(source, backend="torch")(*given), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    names = [k.name for k in f.lower(*given).kernels]
    assert [name for name in names if name.endswith("_at_kernel")] == ["A_at_kernel", "C_at_kernel"]
    assert names.count("sort_compared") == 2


@pytest.mark.usefixtures("launches_apart")
def test_places_of_what_is_read_do_not_say_how_points_are_sorted() -> None:
    """Points whose sources are outside add nothing to their runs; gradients by several tensors share a sort too."""
    source = """function (X[N, D], W[M], T[M], U[M], V[M]) -> (Y, Z, O) {
        Y[T[m], d : N, D] = +(X[U[m], d] * W[m]);
        Z[T[m], d : N, D] = +(pad(X[V[m], d], 2) * W[m]);
        O[T[m], d : N, D] = >(X[V[m], d]);
    }"""
    f = tilec.compile(source, backend="triton")
    given = torch.randn(40, 3), torch.randn(700), *(torch.randint(-9, 49, (700,)) for _ in range(3))
    exact = tilec.compile(source, backend="torch")
    for found, wanted in zip(f(*given), exact(*given), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert [k.name for k in f.lower(*given).kernels if k.name.endswith("_at_kernel")] == ["Y_at_kernel"]
    cotangents = [torch.randn(40, 3) for _ in range(3)]
    gradient = f.grad(["X", "W"])
    for found, wanted in zip(gradient(*given, *cotangents), exact.grad(["X", "W"])(*given, *cotangents), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    places = [k for k in gradient.lower(*given, *cotangents).kernels if k.name.endswith("_at_kernel")]
    assert len(places) == 3  # by T for the maxima, by U and by V


def test_bounds_of_other_places_leave_the_sort_to_all() -> None:
    """What a gradient asks of a gather from a computed tensor is asked where points are combined."""
    source = """function (X[M], S[M], D[M], W[V]) -> (Y, Z) {
        G[v : V] = exp(W[v]);
        Y[D[m] : V] = +(X[m] * in(G[S[m]]));
        Z[D[m] : V] = >(X[m]);
    }"""
    at = tilec.spec((5000,), "int32")
    f = tilec.compile(source, backend="triton")
    names = [k.name for k in f.lower(tilec.spec((5000,)), at, at, tilec.spec((900,))).kernels]
    assert sum(name.endswith("_at_kernel") for name in names) == 1


def test_few_long_runs_are_read_many_points_at_a_time() -> None:
    f = tilec.compile("function (X[M, D], T[M], Z[N, D]) -> (Y) { Y[T[m], d : N, D] = +(X[m, d]); }", backend="triton")
    for runs, block in ((100_000, "BM=2, BR=4"), (1000, "BM=1, BR=64"), (64, "BM=1, BR=64")):
        specs = tilec.spec((500_000, 40)), tilec.spec((500_000,), "int64"), tilec.spec((runs, 40))
        assert f"{block}, BN=64" in f.lower(*specs).source()


def test_a_run_of_all_points_and_none() -> None:
    x = torch.ones(POINTS, 3)
    f = tilec.compile("function (X[M, D], T[M]) -> (Y) { Y[T[m], d : 4, D] = +(X[m, d]); }", backend="triton")
    for place in (0, 3, -1, 4):
        wanted = torch.zeros(4, 3)
        if 0 <= place < 4:
            wanted[place] = POINTS
        assert torch.equal(f(x, torch.full((POINTS,), place)), wanted)


@pytest.mark.parametrize("columns", [200, 70000])
def test_runs_are_cut_unless_columns_keep_a_device_busy(columns: int) -> None:
    f = tilec.compile("function (X[M, D], T[M]) -> (Y) { Y[T[m], d : 8, D] = +(X[m, d]); }", backend="triton")
    kernels = f.lower(tilec.spec((1024, columns), "float16"), tilec.spec((1024,), "int64")).kernels
    assert ("Y_pieces" in [k.name for k in kernels]) is (columns == 200)


def test_programs_of_two_axes_in_line(monkeypatch):
    """As where there are more columns than a grid's second axis is long."""
    monkeypatch.setattr(planner, "MOST_DOWN", 1)
    monkeypatch.setattr(scatter, "FEW_AT_AN_ELEMENT", 0)
    f = tilec.compile("function (X[M, D], T[M]) -> (Y) { Y[T[m], d : 4, D] = +(X[m, d]); }", backend="triton")
    x = torch.randn(5, 700, generator=torch.Generator().manual_seed(0))
    found = f(x, torch.tensor([0, 3, 0, 7, -1]))
    torch.testing.assert_close(found, torch.stack([x[0] + x[2], 0 * x[0], 0 * x[0], x[1]]))


EPILOGUES = {  # source, shapes of what has elements of its own
    "added": (
        "function (U[M, D], T[M], Z[N, D]) -> (Y) { A[T[m], d : N, D] = +(U[m, d]); Y = A * 2 + Z; }",
        ((POINTS, 5), None, (40, 5)),
    ),
    "of maxima, transposed and by place": (
        """function (U[M, D], T[M], Z[D, N]) -> (Y) {
            A[T[m], d : N, D] = >(U[m, d]);
            Y[n, d : N, D] = exp(A[n, d]) * Z[d, n] + n + 2*d;
        }""",
        ((POINTS, 5), None, (5, 40)),
    ),
    "of single elements": (
        """function (U[M], T[M], Z[N]) -> (Y) {
            A[T[m] : N] = +(U[m]);
            Y[n : N] = A[n] > 0 ? A[n] - Z[n] : 0;
        }""",
        ((POINTS,), None, (40,)),
    ),
    "of columns before the places": (
        """function (U[M, B, D], T[M], Z[B, N, D]) -> (Y) {
            A[b, T[m], d : B, N, D] = +(U[m, b, d]);
            Y[b, n, d : B, N, D] = A[b, n, d] * Z[b, n, d] + 10*n + b;
        }""",
        ((POINTS, 2, 3), None, (2, 40, 3)),
    ),
    "of several columns": (
        """function (U[M, B, D], T[M], Z[N, B, D]) -> (Y) {
            A[T[m], b, d : N, B, D] = +(U[m, b, d]) default Z;
            Y[n, b, d : N, B, D] = A[n, b, d] * Z[n, b, d];
        }""",
        ((POINTS, 2, 3), None, (40, 2, 3)),
    ),
}


@pytest.mark.one_in(4)
@pytest.mark.covering
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("name", EPILOGUES)
def test_an_epilogue_of_runs(name: str, dtype: torch.dtype, tolerance: float) -> None:
    source, shapes = EPILOGUES[name]
    g = torch.Generator().manual_seed(0)
    f = tilec.compile(source, backend="triton")
    place = torch.randint(-2, 42, (POINTS,), generator=g)
    tensors = [place if s is None else torch.randn(s, generator=g).to(dtype) for s in shapes]
    wide = [t.double() if t.is_floating_point() else t for t in tensors]
    wanted = tilec.compile(source, backend="torch")(*wide)
    torch.testing.assert_close(f(*tensors).double(), wanted, rtol=tolerance, atol=tolerance * 20)
    names = [k.name for k in f.lower(*tensors).kernels]
    assert names[-1] == "A_segments" and not any(name.startswith("Y") for name in names)
