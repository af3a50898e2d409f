"""Scatters whose places differ by constants, interpreted: one sort serves all of them, wherever their points are."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.scatter import runs, scatter

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)

POINTS = 200
CASES = {  # source, how many sorts
    "two elements beside each other": (
        """function (X[M, D], T[M], Z[N, D]) -> (Y) {
            A[T[m], d : N, D] = +(X[m, d]);
            B[T[m] + 1, d : N, D] = +(X[m, d] * 2);
            Y = A + B + Z;
        }""",
        1,
    ),
    "of other aggregations, on either side": (
        """function (X[M, D], T[M], Z[N, D]) -> (A, B, C) {
            A[T[m] - 2, d : N, D] = >(X[m, d]);
            B[T[m] + 3, d : N, D] = <(X[m, d]);
            C[T[m], d : N, D] = +(X[m, d]);
        }""",
        1,
    ),
    "corners": (
        """function (X[M, D], T[M], U[M], Z[N, K]) -> (Y, E) {
            A[T[m], d, U[m] : N, D, K] = +(X[m, d]);
            B[T[m], d, U[m] + 1 : N, D, K] = +(X[m, d] * 2);
            C[T[m] + 1, d, U[m] : N, D, K] = +(X[m, d] * 3);
            E[T[m] + 1, d, U[m] + 1 : N, D, K] = +(X[m, d] * 4);
            Y = A + B + C;
        }""",
        1,
    ),
    "kept by default": (
        """function (X[M, D], T[M], Z[N, D]) -> (A, B) {
            A[T[m], d : N, D] = +(X[m, d]) default Z;
            B[T[m] + 1, d : N, D] = +(X[m, d] * 2) default Z;
        }""",
        1,
    ),
    "steps of a window": (
        """function (X[M, D], T[M], Z[N, D]) -> (A, B) {
            A[T[m] + d : N] = +(X[m, d]);
            B[T[m] + d - 3 : N] = +(X[m, d] * 2);
        }""",
        1,
    ),
    "by other tensors": (
        """function (X[M, D], T[M], U[M], Z[N, D]) -> (A, B) {
            A[T[m], d : N, D] = +(X[m, d]);
            B[U[m] + 1, d : N, D] = +(X[m, d] * 2);
        }""",
        2,
    ),
    "of other reads": (
        """function (X[M, D], T[M], Z[N, D]) -> (A, B) {
            A[T[m], d : N, D] = +(X[m, d] * X[m, 0]);
            B[T[m] + 1, d : N, D] = +(X[m, d] * X[M - 1 - m, 2]);
        }""",
        1,
    ),
    "under other conditions": (
        """function (X[M, D], T[M], Z[N, D]) -> (A, B) {
            A[T[m], d : N, D] = +(X[m, d]);
            B[T[m] + 1, d : N, D] = +(T[m] % 2 == 0 ? X[m, d]);
        }""",
        2,
    ),
    "of other sizes": (
        """function (X[M, D], T[M], Z[N, D]) -> (A, B) {
            A[T[m], d : N, D] = +(X[m, d]);
            B[T[m] + 1, d : N + 5, D] = +(X[m, d]);
        }""",
        2,
    ),
    "far from each other": (
        """function (X[M, D], T[M], Z[N, D]) -> (A, B) {
            A[T[m], d : N, D] = +(X[m, d]);
            B[T[m] + 90, d : N, D] = +(X[m, d]);
        }""",
        2,
    ),
}
PLACES = {
    "at random": lambda g: torch.randint(-4, 45, (POINTS,), generator=g),
    "most at one": lambda g: torch.where(torch.rand(POINTS, generator=g) < 0.8, 39, torch.randint(-4, 45, (POINTS,))),
    "all at the first": lambda g: torch.zeros(POINTS, dtype=torch.int64),
    "all one before the first": lambda g: torch.full((POINTS,), -1, dtype=torch.int32),
    "all outside": lambda g: torch.full((POINTS,), 2**40),
}


@pytest.mark.covering
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("launches_apart")
@pytest.mark.one_in(5)
def test_places_that_differ_by_constants(name: str, places: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "FEW_AT_AN_ELEMENT", 0)
    monkeypatch.setattr(runs, "MOST_OF_PIECE", 32)  # so that runs are cut
    source, sorts = CASES[name]
    g = torch.Generator().manual_seed(0)
    at = PLACES[places](g)
    found = {
        "X": torch.randn(POINTS, 3, generator=g),
        "T": at,
        "U": at.flip(0) % 9,
        "Z": torch.randn(40, 3, generator=g),
    }
    tensors = [found[n] for n in "XTUZ" if f"{n}[" in source.split(")")[0]]
    if "corners" in name:
        tensors[-1] = torch.zeros(40, 8)
    f, exact = (tilec.compile(source, backend=b) for b in ("triton", "torch"))
    wide = [t.double() if t.is_floating_point() else t for t in tensors]
    got, wanted = f(*tensors), exact(*wide)
    for a, b in zip(*((v,) if torch.is_tensor(v) else v for v in (got, wanted)), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)
    again = f(*tensors)
    assert all(map(torch.equal, *((v,) if torch.is_tensor(v) else v for v in (got, again))))
    kernels = [k.name for k in f.lower(*tensors).kernels]
    assert kernels.count("sort_compared") == sorts


@pytest.mark.parametrize("outside", ["pad", ""])
@pytest.mark.one_in(3)
def test_the_gradient_of_an_interpolation_sorts_once(outside: str) -> None:
    read = "pad({}, 1)" if outside else "{}"
    low, high = read.format("X[P[m], c]"), read.format("X[P[m] + 1, c]")
    source = f"""function (X[N, C], F[M]) -> (Y) {{
        P = int64(floor(F));
        A = F - floor(F);
        Y[m, c : M, C] = {low} * (1 - A[m]) + {high} * A[m];
    }}"""
    f, exact = (tilec.compile(source, backend=b).grad() for b in ("triton", "torch"))
    g = torch.Generator().manual_seed(0)
    given = torch.randn(40, 3, generator=g), torch.rand(5000, generator=g) * 44 - 2, torch.randn(5000, 3, generator=g)
    for found, wanted in zip(f(*given), exact(*(t.double() for t in given)), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-4)
    names = [k.name for k in f.lower(*given).kernels]
    assert names.count("sort_digits") == 1 and [n for n in names if n.endswith("_segments")] == ["GX_1_segments"]


SUMS = {  # source, kernels that combine runs
    "of one place": (
        """A[T[m], d : N, D] = +(X[m, d]);
        B[T[m], d : N, D] = >(X[m, d]);
        Y[n, d : N, D] = exp(-A[n, d]) + max(B[n, d], 0) * Z[n, d] + n;""",
        ["B_pieces", "B_segments"],
    ),
    "by two lists": (
        """A[T[m], d : N, D] = +(X[m, d]);
        B[U[m], d : N, D] = +(X[m, d]);
        Y = A - B;""",
        ["A_pieces", "A_pieces", "B_segments"],  # one kernel, launched for either
    ),
    "of one that others read": (
        """A[T[m], d : N, D] = +(X[m, d]);
        B[T[m] + 1, d : N, D] = +(X[m, d] * A[T[m], d]);
        Y = A - B;""",
        ["A_pieces", "A_segments", "B_pieces", "B_segments"],
    ),
    "of one that is turned": (
        """A[T[m], n : N, N] = +(X[m, 0] * Z[n, 0]);
        B[T[m] + 1, n : N, N] = +(X[m, 0] * Z[n, 1]);
        C[T[m] + 2, n : N, N] = +(X[m, 0] * Z[n, 2]);
        Y[n, k : N, N] = A[k, n] + B[n, k] + C[n, k];""",
        ["A_pieces", "A_segments", "C_pieces", "C_segments"],
    ),
    "with variables called alike": (
        """A[T[m], k : N, D] = +(X[m, k]);
        B[T[k] + 1, m : N, D] = +(X[k, m] * 2);
        Y = A - B;""",
        ["A_pieces", "A_segments", "B_pieces", "B_segments"],
    ),
    "of points that are summed first": (
        """A[T[m], d : N, D] = +(X[m, d] * X[m, k]);
        B[T[m] + 1, d : N, D] = +(X[m, d]);
        Y = A + B;""",
        ["B_pieces", "B_segments"],
    ),
    "of nine": (
        "".join(f"A{k}[T[m] + {k}, d : N, D] = +(X[m, d] * {k + 1});\n" for k in range(9))
        + "Y = " + " + ".join(f"A{k}" for k in range(9)) + ";",
        ["A0_pieces", "A0_segments", "A8_pieces", "A8_segments"],
    ),
    "of one or the other, and more after it": (
        """A[T[m], d : N, D] = +(X[m, d]);
        B[T[m] + 1, d : N, D] = <(X[m, d]);
        C[n, d : N, D] = A[n, d] > Z[n, d] ? A[n, d] : B[n, d];
        Y = relu(C);""",
        ["B_pieces", "B_segments"],
    ),
}  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SUMS)
@pytest.mark.one_in(5)
def test_one_kernel_combines_all_that_is_added(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "FEW_AT_AN_ELEMENT", 0)
    monkeypatch.setattr(runs, "MOST_OF_PIECE", 32)
    source, kernels = SUMS[name]
    source = f"function (X[M, D], T[M], U[M], Z[N, D]) -> (Y) {{ {source} }}"
    g = torch.Generator().manual_seed(0)
    t, u = torch.randint(-4, 45, (POINTS,), generator=g), torch.randint(-4, 45, (POINTS,), generator=g)
    t[:100] = 7
    x, z = (torch.randint(-4, 5, (n, 3), generator=g).to(dtype) for n in (POINTS, 40))
    f = tilec.compile(source, backend="triton")
    wanted = tilec.compile(source, backend="torch")(x.double(), t, u, z.double())
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(f(x, t, u, z).double(), wanted, rtol=tolerance, atol=tolerance * 50)
    names = [k.name for k in f.lower(x, t, u, z).kernels]
    assert [n for n in names if n.endswith(("_pieces", "_segments"))] == kernels


def test_a_sum_has_the_bits_of_its_terms_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MOST_OF_PIECE", 32)
    terms = "A[T[m], d : N, D] = +(X[m, d]); B[T[m] + 1, d : N, D] = +(X[m, d] * W[m]);"
    source = f"function (X[M, D], T[M], W[M], Z[N, D]) -> ({{}}) {{{{ {terms} Y = A + B; }}}}"
    g = torch.Generator().manual_seed(0)
    given = torch.randn(900, 3, generator=g), torch.randint(0, 9, (900,), generator=g), torch.randn(900, generator=g)
    given = (*given, torch.zeros(10, 3))
    sums, apart = (tilec.compile(source.format(outputs), backend="triton") for outputs in ("Y", "A, B, Y"))
    assert len(sums.lower(*given).kernels) < len(apart.lower(*given).kernels)
    assert torch.equal(sums(*given), apart(*given)[2])
