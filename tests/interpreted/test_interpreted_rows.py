"""Kernels of groups, interpreted, against torch in float64: every layer, sizes at which blocks overhang, layouts."""

import os

import pytest
import torch
from support.layers import DROPOUT, LAYERS, exact, inputs

import tilec
from tilec.backends.triton.fusion import grow_groups as grouping
from tilec.backends.triton.pointwise import sharing
from tilec.backends.triton.pointwise import tiling as pointwise_tiling
from tilec.backends.triton.rows import rows
from tilec.backends.triton.rows import tiling as rows_tiling
from tilec.backends.triton.rows.walks import RowTiling

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
SIZES = ((1, 1), (2, 1), (1, 7), (5, 16), (6, 33), (40, 24), (9, 1000))


def check(layer, tensors, tolerance):
    f = tilec.compile(layer.source, backend="triton")
    value, cotangent, gradient = exact(layer, tensors)
    got = f(*tensors)
    torch.testing.assert_close(got.double(), value, rtol=tolerance, atol=tolerance)
    results = f.grad()(*tensors, cotangent)
    for mine, theirs in zip(results if isinstance(results, tuple) else (results,), gradient, strict=True):
        scale = max(1.0, theirs.abs().max().item())
        torch.testing.assert_close(mine.double(), theirs, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.covering
def test_layers(name, size):
    check(LAYERS[name], inputs(LAYERS[name], *size), 2e-5)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_in_float64(name):
    check(LAYERS[name], inputs(LAYERS[name], 6, 40, torch.float64), 1e-11)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.one_in(3)
def test_rows_too_long_for_one_block(name, monkeypatch):
    """Every form on small sizes: columns in several blocks, a walk for each level of statistics, sums in many parts."""

    def small(group, strides, types):
        t = rows_tiling.choose_row_tiling(group, strides, types)
        form = "looped" if t.form == "whole" and not group.sums else t.form
        columns = t.columns if form == "whole" else min(t.columns, 8)
        parts = min(t.parts, 3) if group.sums else 0
        return RowTiling(form, min(t.rows, 2), columns, parts, 4, t.stages)

    monkeypatch.setattr(rows, "choose_row_tiling", small)
    check(LAYERS[name], inputs(LAYERS[name], 11, 29), 2e-5)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.one_in(3)
def test_any_layout(name):
    """Transposed, strided and expanded inputs, an expanded cotangent."""
    layer = LAYERS[name]
    given = inputs(layer, 6, 20)
    given = [t.transpose(0, -1).contiguous().transpose(0, -1) for t in given]
    given[-1] = torch.stack((given[-1], given[-1]), -1)[..., 0]
    check(layer, given, 2e-5)
    f = tilec.compile(layer.source, backend="triton")
    leaves = [t.detach().requires_grad_() for t in given]
    twins = [t.detach().double().requires_grad_() for t in given]
    f(*leaves).sum().backward()
    layer.formula(*twins).sum().backward()
    for mine, theirs in zip(leaves, twins, strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=3e-5, atol=3e-5)


def test_statistics_of_integers_and_truths():
    source = """function (X[R, C]) -> (Y, A, P, N) {
        M[r] = max(X[r, c]);
        S[r] = +(X[r, c]);
        A[r] = any(X[r, c] > 3);
        P[r] = prod(X[r, c]);
        N[r] = all(X[r, c] > 0 - 5);
        Y[r, c] = A[r] ? X[r, c] * S[r] - M[r] : X[r, c];
    }"""
    x = torch.randint(-4, 5, (7, 13), dtype=torch.int32)
    y, a, p, n = tilec.compile(source, backend="triton")(x)
    s, m = x.sum(1, keepdim=True), x.amax(1, keepdim=True)
    assert torch.equal(a, (x > 3).any(1)) and torch.equal(n, (x > -5).all(1)) and torch.equal(p, x.prod(1))
    assert torch.equal(y, torch.where(a[:, None], x * s - m, x))


def test_infinities_and_nan_stay_in_their_row():
    layer = LAYERS["softmax"]
    x = torch.randn(4, 10)
    x[0, 3], x[1, 2], x[2] = float("inf"), float("nan"), float("-inf")
    got = tilec.compile(layer.source, backend="triton")(x)
    assert got[:3].isnan().any(1).all() and not got[3].isnan().any()
    torch.testing.assert_close(got, torch.softmax(x, 1), equal_nan=True)


def test_quotients_round_as_divisions_do():
    source = "function (X[R, C], D[R]) -> (Y, Z) { Y[r, c] = X[r, c] / D[r]; Z[r, c] = X[r, c] * D[r]; }"
    generator = torch.Generator().manual_seed(0)
    x, d = torch.randn(64, 300, generator=generator), torch.randn(64, generator=generator)
    d[:6] = torch.tensor([0.0, -0.0, float("inf"), float("nan"), 1e-40, 3e38])
    x[:, :4] = torch.tensor([0.0, -0.0, float("inf"), 1.0])
    y, _ = tilec.compile(source, backend="triton")(x, d)
    want = x / d[:, None]
    normal = (want.abs() > 2.0**-120) | (want == 0) | ~want.isfinite()
    same = (y == want) & (y.signbit() == want.signbit()) | (y.isnan() & want.isnan())
    assert same[normal].all() and normal.float().mean() > 0.9
    torch.testing.assert_close(y, want, rtol=2e-6, atol=1e-43, equal_nan=True)


def test_draws_by_fours_are_the_draws():
    """Widths that four divides and does not, counters that run with the element's place and that do not."""
    for rows_, width in ((3, 64), (5, 37), (1, 1), (130, 6)):
        x, z = torch.randn(rows_, width), torch.randn(rows_, width)
        for source in (
            DROPOUT,
            DROPOUT.replace("C * r + c", "C * r + c + 5"),
            DROPOUT.replace("C * r + c", "R * c + r"),
        ):
            want = tilec.compile(source, backend="torch")(x, z, 11)
            torch.testing.assert_close(tilec.compile(source, backend="triton")(x, z, 11), want, rtol=1e-6, atol=1e-6)
    both = (
        "function (X[R, C], S[]) -> (Y, Z) { Y[r, c] = X[r, c] * randn(S, c); Z[r, c] = X[r, c] + rand(S, 8 * r + c); }"
    )
    x = torch.randn(7, 24)
    for mine, theirs in zip(
        tilec.compile(both, backend="triton")(x, 3), tilec.compile(both, backend="torch")(x, 3), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def test_unused_points_count_for_nothing():
    """Guards, constraints and reads beyond the end inside a group."""
    source = """function (X[R, C], W[K], T[R]) -> (Y, M, D) {
        S[r : R] = +(X[r, c] > 0 ? X[r, c] * X[r, c]);
        M[r : R] = max(X[r, c]), c < 3;
        Y[r, c : R, C] = X[r, c] * W[c] / (S[r] + 1);
        D[c : C] = +(X[r, c] * S[r]), r < 2;
    }"""
    x, w, t = torch.randn(5, 9), torch.randn(6), torch.zeros(5)
    f, g = (tilec.compile(source, backend=b) for b in ("triton", "torch"))
    for mine, theirs in zip(f(x, w, t), g(x, w, t), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_two_runs_give_the_same_bits():
    layer = LAYERS["layer norm"]
    given = inputs(layer, 300, 20)
    f = tilec.compile(layer.source, backend="triton").grad()
    cotangent = torch.randn(300, 20)
    for a, b in zip(f(*given, cotangent), f(*given, cotangent), strict=True):
        assert torch.equal(a, b)


def test_a_group_needs_memory_traffic_to_save():
    assert grouping.LEAST_FUSION_GAIN > 1
    source = "function (X[R, C]) -> (Y, Z) { Y[r] = +(X[r, c]); Z[r] = Y[r] * 2; }"
    x = torch.randn(8, 200)
    lowered = tilec.compile(source, backend="triton").lower(x)
    assert "grouped" not in lowered.stages


@pytest.mark.parametrize("shape", [(2, 5, 3), (1, 1, 4), (3, 40, 7), (2, 6, 1)], ids=str)
@pytest.mark.one_in(3)
def test_statistics_as_sums_over_programs(monkeypatch, shape):
    monkeypatch.setattr(grouping, "LAUNCH_BYTES", 0)
    monkeypatch.setattr(grouping, "MULTIPROCESSORS", 2**20)
    source = """function (X[N, P, C], G[C], B[C]) -> (Y, V) {
        M[c] = mean(X[n, p, c]);
        V[c] = mean((X[n, p, c] - M[c]) * (X[n, p, c] - M[c]));
        Y[n, p, c] = (X[n, p, c] - M[c]) * rsqrt(V[c] + 0.01) * G[c] + B[c];
    }"""
    x, g, b = torch.randn(shape) + 3, torch.randn(shape[-1:]), torch.randn(shape[-1:])
    ours, theirs = (tilec.compile(source, backend=b) for b in ("triton", "torch"))
    d = torch.randn(shape), torch.randn(shape[-1:])
    wide = [t.double() for t in (x, g, b, *d)]
    for mine, want in zip(ours(x, g, b), theirs(*wide[:3]), strict=True):
        torch.testing.assert_close(mine.double(), want, rtol=1e-5, atol=1e-5)
    for mine, want in zip(ours.grad()(x, g, b, *d), theirs.grad()(*wide), strict=True):
        torch.testing.assert_close(mine.double(), want, rtol=1e-4, atol=1e-4)


def test_any_integer_counts_draws():
    source = "function (X[R, C], I[R, C], S[]) -> (Y) { Y[r, c] = X[r, c] + rand(S, r * c) + rand(S, I[r, c]); }"
    x, i = torch.randn(5, 8), torch.randint(0, 99, (5, 8))
    want = tilec.compile(source, backend="torch")(x, i, 3)
    torch.testing.assert_close(tilec.compile(source, backend="triton")(x, i, 3), want, rtol=1e-6, atol=1e-6)


def test_an_element_of_each_row_that_a_tensor_names():
    source = """function (X[R, V], T[R], K[R]) -> (L, G, P, M) {
        L[r] = logsumexp(X[r, v]) - X[r, T[r]];
        G[r, T[r] + 1 : R, V] = +(K[r] > 0 ? K[r]);
        P[T[r], r : V, R] = *(K[r]);
        M[r, T[r] : R, V] = >(K[r] * 2);
    }"""
    x, k = torch.randn(6, 11), torch.randn(6)
    for t in (torch.tensor([0, 10, 3, 12, -1, 5]), torch.tensor([0, 10, 3, 100, 255, 5], dtype=torch.uint8)):
        ours, theirs = (tilec.compile(source, backend=b) for b in ("triton", "torch"))
        for mine, want in zip(ours(x, t, k), theirs(x, t, k), strict=True):
            torch.testing.assert_close(mine, want, rtol=1e-5, atol=1e-5)
        given = [torch.randn_like(o) for o in ours(x, t, k)]
        for mine, want in zip(ours.grad()(x, t, k, *given), theirs.grad()(x, t, k, *given), strict=True):
            assert (mine is None) == (want is None)
            if mine is not None:
                torch.testing.assert_close(mine, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("aggregation", ["+", ">", "*", "logsumexp"])
@pytest.mark.one_in(3)
def test_columns_in_many_parts_that_are_combined_at_once(aggregation, monkeypatch):
    monkeypatch.setattr(pointwise_tiling, "MANY_POINTS", 1)
    monkeypatch.setattr(sharing, "PASSING", 1)
    x = torch.rand(3001, 70) + 0.5
    f = tilec.compile(f"Y[j] = {aggregation}(X[i, j])", backend="triton")
    source = f.lower(x).source()
    assert "evict_first" in source and "BM=128, BR=32, num_warps=4" in source
    wanted = {"+": x.double().sum(0), ">": x.amax(0), "*": x.double().prod(0), "logsumexp": x.double().logsumexp(0)}
    torch.testing.assert_close(f(x).double(), wanted[aggregation].double(), rtol=2e-4, atol=1e-6)
    assert torch.equal(f(x), f(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.one_in(2)
def test_a_recorded_call_reads_the_statistics_of_the_next_row_ahead(dtype):
    """Where they have less than four bytes: the gradient by recording is that by hand, which finds them again."""
    layer = LAYERS["layer norm"]
    given = inputs(layer, 601, 24, dtype)
    f = tilec.compile(layer.source, backend="triton")
    leaves = [t.detach().requires_grad_() for t in given]
    cotangent = torch.randn(601, 24).to(dtype)
    recorded = torch.autograd.grad(f(*leaves), leaves, cotangent)
    for mine, other in zip(recorded, f.grad()(*given, cotangent), strict=True):
        torch.testing.assert_close(mine, other, rtol=0.02, atol=0.02 * float(other.abs().max()))
    source = """function (X[R, C], M[R], D[R, C]) -> (Y, S) {
        T[r] = +(X[r, c] * M[r]);
        Y[r, c] = D[r, c] + T[r];
        S[c] = +(X[r, c] * M[r] * D[r, c]);
    }"""
    x, m, d = given[0], given[0][:, 0].contiguous(), cotangent
    g = tilec.compile(source, backend="triton")
    assert ("row = first + BM" in g.lower(x, m, d).source()) == (dtype.itemsize == 2)
    for mine, theirs in zip(g(x, m, d), tilec.compile(source, backend="torch")(x, m, d), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.02, atol=0.02 * float(theirs.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
@pytest.mark.parametrize("function", ["argmax", "argmin"])
@pytest.mark.covering
def test_first_places_of_long_rows_take_one_walk(function, dtype):
    x = torch.randint(-50, 50, (6, 16500), generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 3000:] = x[0, 16000] = 60 if function == "argmax" else -60
    x[1] = 7
    if dtype.is_floating_point:
        x[2], x[3] = float("-inf"), float("inf")
        x[4, 9000], x[4, 9500] = float("nan"), float("nan")
    f = tilec.compile(f"function (X[M, N]) -> (Y) {{ Y[m : M] = {function}(X[m, n]); }}", backend="triton")
    assert torch.equal(f(x), getattr(torch, function)(x, 1))
    source = f.lower(x).source()
    assert source.count("for first in") == 1 and "2147483647, tl.int32" in source  # numbers of places, of 32 bits


ACROSS = {
    "cosines": (
        "function (X[N, C, W], Y[N, C, W]) -> (A, B, D) { A[n, x : N, W] = +(X[n, c, x] * Y[n, c, x]);"
        " B[n, x : N, W] = +(X[n, c, x] * X[n, c, x]); D[n, x : N, W] = +(Y[n, c, x] * Y[n, c, x]); }",
        lambda x, y, at: ((x * y).sum(1), (x * x).sum(1), (y * y).sum(1)),
    ),
    "mean, greatest and a value of both": (
        "function (X[N, C, W]) -> (A, B, D) { A[n, x : N, W] = mean(X[n, c, x]); B[n, x : N, W] = >(X[n, c, x]);"
        " D = A * B; }",
        lambda x, y, at: (x.mean(1), x.amax(1), x.mean(1) * x.amax(1)),
    ),
    "computed places": (
        "function (X[N, C, W], Y[N, C, W], At[N, W]) -> (A, B) {"
        " A[n, x : N, W] = +(pad(X[n, c, At[n, x] - 2], 0) * Y[n, c, x]);"
        " B[n, x : N, W] = +(abs(pad(X[n, c, At[n, x] - 2], 0)) + Y[n, c, x]); }",
        lambda x, y, at: ((_at(x, at) * y).sum(1), (_at(x, at).abs() + y).sum(1)),
    ),
    "window": (
        "function (X[N, C, W]) -> (Y) { K[n, c, x, i : N, C, W, 5] = exp(-abs(X[n, c, x + i - 2] - X[n, c, x]));"
        " Y[n, c, x : N, C, W] = sum(K[n, c, x, i] * X[n, c, x + i - 2]) / sum(K[n, c, x, i]); }",
        lambda x, y, at: (_weighted(x),),
    ),
    "deviations in a window": (
        "function (X[N, C, W]) -> (Y) { K[n, c, x, i : N, C, W, 5] = exp(-abs(X[n, c, x + i - 2] - X[n, c, x]));"
        " M[n, c, x : N, C, W] = sum(K[n, c, x, i] * X[n, c, x + i - 2]) / sum(K[n, c, x, i]);"
        " Y[n, c, x : N, C, W] = sum(K[n, c, x, i] * abs(X[n, c, x + i - 2] - M[n, c, x])); }",
        lambda x, y, at: (_weighted(x, deviations=True),),
    ),
}


def _at(x, at):
    padded = torch.nn.functional.pad(x, (2, 2))
    return padded.gather(2, at[:, None].expand(-1, x.shape[1], -1))


def _weighted(x, deviations=False):
    if not x.shape[2]:
        return x
    taps = torch.nn.functional.pad(x, (2, 2)).unfold(2, 5, 1)
    inside = torch.nn.functional.pad(torch.ones_like(x), (2, 2)).unfold(2, 5, 1)
    k = torch.exp(-(taps - x[..., None]).abs()) * inside
    mean = (k * taps).sum(-1) / k.sum(-1)
    return (k * (taps - mean[..., None]).abs()).sum(-1) if deviations else mean


def test_rows_that_are_read_twice_are_held():
    """Columns of a tensor of as many elements, which no cache holds for a second walk."""
    source = """function (X[N, C, W]) -> (Y) { M[n, x : N, W] = mean(X[n, c, x]);
        Y[n, x : N, W] = +(abs(X[n, c, x] - M[n, x])); }"""
    lowered = tilec.compile(source, backend="triton").lower(tilec.spec((64, 17, 65536)))
    assert "BN=1," not in lowered.source() and len(lowered.kernels) == 1


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ACROSS)
@pytest.mark.parametrize("walked", [False, True])
@pytest.mark.covering
def test_statistics_across_memory(name, walked, monkeypatch):
    """Rows that lie side by side in memory, whose columns are held or walked one by one."""
    if walked:
        monkeypatch.setattr(rows_tiling, "MULTIPROCESSORS", 1)
        monkeypatch.setattr(rows_tiling, "WALKED", 8)
    source, exact = ACROSS[name]
    f = tilec.compile(source, backend="triton")
    for n, c, w in ((1, 1, 1), (2, 3, 5), (3, 17, 41), (1, 70, 33), (2, 5, 0)):
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
            x, y = (torch.randn(n, c, w).to(dtype) for _ in range(2))
            at = torch.randint(0, w + 4, (n, w)) if w else torch.zeros((n, w), dtype=torch.int64)
            given = (x, y, at)[: len(f.program.inputs)]
            got = f(*given)
            wanted = exact(x.double(), y.double(), at)
            for mine, theirs in zip(got if isinstance(got, tuple) else (got,), wanted, strict=True):
                torch.testing.assert_close(mine.double(), theirs, rtol=tolerance, atol=tolerance * (1 + c) ** 0.5)
    if walked:
        shapes = (tilec.spec((64, 17, 4096)),) * len(given[:2]), (tilec.spec((64, 4096), "int64"),) * len(given[2:])
        lowered = f.lower(*shapes[0], *shapes[1])
        assert "BN=1," in lowered.source() and len(lowered.kernels) == 1
