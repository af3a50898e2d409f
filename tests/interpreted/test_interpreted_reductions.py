"""Reductions split over programs: epilogues of the launch that combines parts, and what they compute themselves."""

from __future__ import annotations

import os

import pytest
import torch
from support.totals import TOTALS

import tilec
from tilec.backends.triton.fusion import grow_groups
from tilec.backends.triton.plan.plan import Launch
from tilec.backends.triton.pointwise import sharing, tiling
from tilec.backends.triton.rows import rows
from tilec.backends.triton.rows.walks import RowTiling

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
LONG = 70001  # odd, and long enough to be split
CASES = {
    "mean": ("function (X[N]) -> (Y) { Y[] = mean(X[i]); }", ((LONG,),)),
    "scaled": (
        "function (X[N, P, D], B[D]) -> (Y) { S[j : D] = +(X[i, p, j]); Y[j : D] = exp(S[j] / 300) * B[j]; }",
        ((401, 41, 20), (20,)),
    ),
    "two axes left": (
        "function (X[N, P, D, E]) -> (Y) { S[j, e : D, E] = +(X[i, p, j, e]); Y[j, e : D, E] = tanh(S[j, e] / 300); }",
        ((201, 41, 4, 5),),
    ),
    "logarithm": ("function (X[N]) -> (Y) { M[] = logsumexp(X[i]); Y = M * 2 + 1; }", ((LONG,),)),
    "rows": ("function (X[N, M]) -> (Y) { S[i : N] = +(X[i, j]); Y[i : N] = S[i] / M; }", ((3, LONG),)),
    "Huber loss": (
        "function (X[N], T[N]) -> (Y) { E = abs(X - T); Y[] = mean(E[i] < 1 ? 0.5 * E[i] * E[i] : E[i] - 0.5); }",
        ((LONG,), (LONG,)),
    ),
    "two in a row": ("function (X[N]) -> (Y) { E = abs(X); F = exp(-E); Y[] = sum(F[i]); }", ((LONG,),)),
    "neighbours": ("function (X[N]) -> (Y) { E[i : N - 1] = abs(X[i + 1] - X[i]); Y[] = sum(E[i]); }", ((LONG,),)),
    "neighbours of rows": (
        "function (X[N, M]) -> (Y) { E[i, j : N - 1, M] = abs(X[i + 1, j] - X[i, j]); Y[] = sum(E[i, j]); }",
        ((100, 201),),
    ),
    "a long walk for each of two": (
        "function (X[B, G, N], Y[B, H, N]) -> (Z) { Z[g, h : G, H] = +(X[b, g, n] * sin(Y[b, h, n])); }",
        ((2, 3, 701), (2, 5, 701)),
    ),
    "a long walk for each of two, in eights": (
        "function (X[B, G, N], Y[B, H, N]) -> (Z) { Z[g, h : G, H] = >(X[b, g, n] * Y[b, h, n]); }",
        ((2, 3, 704), (2, 5, 704)),
    ),
    "indices": (
        "function (X[N, M]) -> (Y) { E[i, j : N, M] = 2.0 * j; Y[j : M] = sum(E[i, j] * X[i, j]); }",
        ((3001, 31),),
    ),
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(6)
def test_reductions_in_two_launches(name: str, dtype: torch.dtype) -> None:
    source, shapes = CASES[name]
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    f = tilec.compile(source, backend="triton")
    got = f(*given)
    exact = tilec.compile(source, backend="torch")(*(t.double() for t in given))
    allowed = 1e-5 if dtype is torch.float32 else 2e-2
    assert got.dtype == dtype and got.shape == exact.shape
    assert (got.double() - exact).abs().max() <= allowed * exact.abs().max()
    specs = [tilec.spec(shape, str(dtype)[6:]) for shape in shapes]
    assert len(f.lower(*specs, target="sm_90").kernels) == 2


def test_parts_begin_where_vectors_do() -> None:
    f = tilec.compile(CASES["mean"][0], backend="triton")
    text = f.lower(tilec.spec((2**26,)), target="sm_90").source()
    assert "67108864, 65536, X" in text and "[(1, 1, 1024)]" in text


def test_what_others_read_stays_stored() -> None:
    source = "function (X[N]) -> (E, Y) { E = abs(X); Y[] = sum(E[i]); }"
    x = torch.randn(LONG, generator=torch.Generator().manual_seed(0))
    e, y = tilec.compile(source, backend="triton")(x)
    assert torch.equal(e, x.abs()) and torch.allclose(y, x.abs().sum())


MIXED = """function (Q[B, E], K[B, M, E], V[B, M, F]) -> (O) {
    S[b, j : B, M] = 0.125 * sum(Q[b, e] * K[b, j, e]);
    L[b : B] = logsumexp(S[b, j]);
    O[b, f : B, F] = sum(exp(S[b, j] - L[b]) * V[b, j, f]);
}"""


@pytest.mark.parametrize("columns", (32, 48, 200))
def test_weights_are_computed_once_for_all_columns(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling, "MANY_POINTS", 1)
    for module in (sharing, tiling):
        monkeypatch.setattr(module, "TWO_A_MULTIPROCESSOR", 2)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(s, generator=generator) for s in ((6, 24), (6, 77, 24), (6, 77, columns)))
    f = tilec.compile(MIXED, backend="triton")
    exact = (0.125 * torch.einsum("be,bje->bj", q.double(), k.double())).softmax(-1)
    assert (f(q, k, v) - torch.einsum("bj,bjf->bf", exact, v.double())).abs().max() < 2e-6
    text = f.lower(*(tilec.spec(t.shape) for t in (q, k, v)), target="sm_90").source()
    assert "acc = tl.full((BM, BN, BR)" in text


GROUP_NORM = """function (X[N, C, P], G[C], B[C]) -> (Y) {
    Z = reshape(X, N, 4, C / 4, P);
    M[n, g : N, 4] = mean(Z[n, g, c, p]);
    V[n, g : N, 4] = mean((Z[n, g, c, p] - M[n, g]) * (Z[n, g, c, p] - M[n, g]));
    A = reshape(G, 4, C / 4);
    D = reshape(B, 4, C / 4);
    O[n, g, c, p : N, 4, C / 4, P] = (Z[n, g, c, p] - M[n, g]) * rsqrt(V[n, g] + 0.00001) * A[g, c] + D[g, c];
    Y = reshape(O, N, C, P);
}"""


@pytest.mark.parametrize("pixels", (64, 128, 96, 120, 240))
@pytest.mark.one_in(4)
def test_walks_over_channels(pixels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 64 columns lie in one channel, or (96) in two, or (120, 240) the last one goes beyond it."""
    chosen = rows.choose_row_tiling

    def looped(*given) -> RowTiling:
        found = chosen(*given)
        return found if given[0].sums else RowTiling("looped", 1, 64, 0, 4)

    monkeypatch.setattr(rows, "choose_row_tiling", looped)
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(s, generator=generator, requires_grad=True) for s in ((3, 16, pixels), (16,), (16,))]
    value = tilec.compile(GROUP_NORM + f"// {pixels}", backend="triton")(*given)
    exact = [t.detach().double().requires_grad_() for t in given]
    theirs = torch.nn.functional.group_norm(exact[0], 4, exact[1], exact[2])
    cotangent = torch.randn(value.shape, generator=generator)
    ours = torch.autograd.grad(value, given, cotangent)
    wanted = torch.autograd.grad(theirs, exact, cotangent.double())
    for mine, other in zip((value, *ours), (theirs, *wanted), strict=True):
        assert (mine - other).abs().max() < 1e-5 * max(1.0, other.abs().max().item())


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("name", TOTALS)
@pytest.mark.one_in(10)
def test_totals_share_one_walk(name: str, dtype: torch.dtype) -> None:
    source, shape = TOTALS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    f = tilec.compile(source, backend="triton")
    _close(f(x), tilec.compile(source, backend="torch")(x.double()), 1e-5 if dtype is torch.float32 else 2e-2)
    assert len(f.lower(tilec.spec(shape, str(dtype)[6:]), target="sm_90").kernels) == 2


@pytest.mark.parametrize("name", TOTALS)
@pytest.mark.one_in(4)
def test_totals_of_few_points(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grow_groups, "LONG_ROW", 0)
    source, shape = TOTALS[name]
    for number, size in enumerate((3, 4, 5, 16)):
        narrow = tuple(size if k == len(shape) - 1 else size + 1 for k in range(len(shape)))
        x = torch.randn(narrow, generator=torch.Generator().manual_seed(number))
        _close(tilec.compile(source, backend="triton")(x), tilec.compile(source, backend="torch")(x.double()), 1e-5)


@pytest.mark.parametrize("shape", ((11, 797, 785), (3, 850, 851), (29, 203, 353), (2, 70000, 3)))
@pytest.mark.parametrize("name", ("of each image", "moments of rows"))
def test_no_part_of_totals_begins_past_the_end(
    name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unrolled loop whose end is before its start has iterations on a device."""
    chosen, found = rows.choose_row_tiling, []

    def seen(group, *given) -> RowTiling:
        found.append((group, chosen(group, *given)))
        return found[-1][1]

    monkeypatch.setattr(rows, "choose_row_tiling", seen)
    text = tilec.compile(TOTALS[name][0]).lower(tilec.spec(shape), target="sm_90").source()
    ((group, tiling),) = [(g, t) for g, t in found if g.totals]
    blocks = -(-group.count([v for v in group.rows if v not in group.kept]) // tiling.rows)
    assert (tiling.parts - 1) * -(-blocks // tiling.parts) < blocks
    assert "end = tl.maximum(start, end)" in text.split("loop_unroll_factor=4")[0]


def test_totals_have_the_same_bits_twice() -> None:
    source, shape = TOTALS["total variation"]
    f, x = tilec.compile(source, backend="triton"), torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(f(x), f(x.clone()))


@pytest.mark.parametrize(("function", "again"), [("argmax", False), ("argmin", False), ("softmax", True)])
def test_what_one_walk_finds_is_not_read_again(function: str, again: bool) -> None:
    """Programs that walk long rows twice are few, so that a cache holds these; places are found with their extrema."""
    body = {"softmax": "Y[i, j : N, D] = exp(X[i, j] - M[i]) / S[i];"}.get(function, "")
    text = (
        f"Y[i : N] = {function}(X[i, j]);"
        if not body
        else f"M[i] = max(X[i, j]); S[i] = sum(exp(X[i, j] - M[i])); {body}"
    )
    low = tilec.compile(f"function (X[N, D]) -> (Y) {{ {text} }}").lower(tilec.spec((3040, 26304)), target="sm_90")
    (launch,) = (step for step in low._executable.plan.steps if isinstance(step, Launch))
    assert (launch.warps == 32) == again
    assert low.source().count("for first in") == 1 + again


def _close(got: object, exact: object, allowed: float) -> None:
    results = zip(*(r if isinstance(r, tuple) else (r,) for r in (got, exact)), strict=True)
    for mine, other in results:
        assert mine.shape == other.shape
        assert (mine.double() - other).abs().max() <= allowed * max(other.abs().max().item(), 1e-3)


WEIGHTED = {
    "means of rows": "DY[n, t, d] * (X[n, t, d] - M[n, t]) * rsqrt(V[n, t])",
    "weights of rows": "X[n, t, d] * M[n, t]",
    "selected rows": "M[n, t] < 1 ? DY[n, t, d] : X[n, t, d]",
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("shape", [(3, 70, 96), (2, 130, 31), (2, 70, 40)])
@pytest.mark.parametrize("body", WEIGHTED)
@pytest.mark.covering
def test_what_columns_share_is_read_once_a_block(body, shape, dtype, monkeypatch):
    monkeypatch.setattr(tiling, "MANY_POINTS", 1)
    monkeypatch.setattr(tiling, "SHORTEST_PART", 64)
    head = "function (X[N, T, D], DY[N, T, D], M[N, T], V[N, T]) -> (S) { S[n, d : N, D] = +("
    source = head + WEIGHTED[body] + "); }"
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(s, generator=generator).to(dtype) for s in (shape, shape, shape[:2], shape[:2])]
    given[3] = given[3].abs() + 1
    f = tilec.compile(source, backend="triton")
    exact = tilec.compile(source, backend="torch")(*(t.double() for t in given))
    allowed = 1e-5 if dtype is torch.float32 else 2e-2
    assert (f(*given).double() - exact).abs().max() <= allowed * exact.abs().max()
    assert ("BN" in f.lower(*given).source()) == (shape[2] != 40)  # of which a block of 64 is too empty


def test_weighted_columns_fill_the_device():
    source = "function (X[N, T, D], M[N, T]) -> (S) { S[n, d : N, D] = +(X[n, t, d] * M[n, t]); }"
    for n, block in ((32, 64), (128, 128), (8, 128)):
        specs = (tilec.spec((n, 500, 1152), "bfloat16"), tilec.spec((n, 500), "bfloat16"))
        text = tilec.compile(source, backend="triton").lower(*specs, target="sm_90").source()
        assert f"BM=1, BN={block}" in text and ("S_parts" in text) == (n == 8)


def test_overhanging_blocks_divide_by_no_zeros():
    """Zeros take a division's slow branch; where rows are no power of two, a quarter of a block is beyond them."""
    source = "function (X[N, D], Z[N, D]) -> (Y) { Q = X / Z; Y[n, d : N, D] = Q[n, d] - mean(Q[n, e]); }"
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn((9, 75), generator=generator) + 3 for _ in range(2)]
    f = tilec.compile(source, backend="triton")
    exact = tilec.compile(source, backend="torch")(*(t.double() for t in given))
    torch.testing.assert_close(f(*given).double(), exact, rtol=1e-5, atol=1e-5)
    text = f.lower(*given).source()
    assert text.count("other=1)") == 2 and "other=0)" not in text
    plain = tilec.compile(source.replace("X / Z", "X * Z"), backend="triton").lower(*given).source()
    assert "other=1)" not in plain
