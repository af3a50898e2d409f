"""Counts that are divided by, and quotients by them: which become what, and that values stay."""

from __future__ import annotations

import pytest
import torch

import tilec
from tilec import spec
from tilec.ir.types import TensorType
from tilec.language.show import show_statement
from tilec.pipeline import lower

POOL = "function (I[H, W]) -> (O) { O[y, x : H/2, W/2] = >(I[2*y + j, 2*x + i]), j < 2, i < 2; }"
MAXPLUS = "function (A[I, K], B[K, J]) -> (O) { O[i, j : I, J] = >(A[i, k] + B[k, j]); }"


def flat_statements(f, *specs):
    """The statements of the flat program by output, and the types of all tensors."""
    types = {n: TensorType(t.shape, t.dtype) for n, t in zip(f.program.input_names(), specs, strict=True)}
    lowered = lower(f.program, types, {})
    return {s.output: s for s in lowered.stages["flat"].statements}, lowered.types


@pytest.mark.parametrize(
    ("source", "shapes"),
    [(POOL, [(6, 8), (3, 4)]), (MAXPLUS, [(3, 5), (5, 4), (3, 4)])],
    ids=["pool", "max-plus"],
)
def test_ties_are_summed_and_divided_once(source, shapes):
    gradient = tilec.compile(source).grad()
    for dtype, share in (("float32", "DO_share"), ("float64", "DO_share"), ("bfloat16", "Ties_share")):
        statements, types = flat_statements(gradient, *(spec(s, dtype) for s in shapes))
        assert types["Ties"].dtype == "float32" and types[share].dtype == dtype
        assert {s for s in statements if "share" in s} == {share}


def test_what_an_element_has_one_value_of_is_divided_once():
    gradient = tilec.compile("function (A[B, C, N]) -> (S) { S[b] = mean[c](max[n](A[b, c, n])); }").grad()
    statements, types = flat_statements(gradient, spec((3, 4, 50), "bfloat16"), spec((3,), "bfloat16"))
    (share,) = (s for name, s in statements.items() if "share" in name)
    assert len(types[share.output].shape) == 2
    given = torch.randn(3, 4, 50).round().bfloat16(), torch.randn(3).bfloat16()
    wide = [x.double() for x in given]
    torch.testing.assert_close(gradient(*given).double(), gradient(*wide), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(("points", "divided"), [(31, True), (30, False)])
def test_ties_at_computed_places_are_divided_once_where_points_are_more(points, divided):
    gradient = tilec.compile("function (X[V, D], A[M], B[M]) -> (O) { O[B[m], d : V, D] = >(X[A[m], d]); }").grad()
    edges = spec((points,), "int64")
    statements, _ = flat_statements(gradient, spec((30, 4)), edges, edges, spec((30, 4)))
    assert ("DO_share" in statements) is divided


MEAN = "function (I[H, W]) -> (O) { O[y, x : %s] = mean(I[2*y + j%s, 2*x + i]), j < 2, i < 2; }"


@pytest.mark.parametrize(("sizes", "shift", "counted"), [("H/2, W/2", "", False), ("H/2, W/2", " - 1", True)])
def test_counts_that_are_the_same_everywhere_are_numbers(sizes, shift, counted):
    gradient = tilec.compile(MEAN % (sizes, shift)).grad()
    for dtype in ("float32", "bfloat16", "float64"):
        statements, _ = flat_statements(gradient, spec((6, 8), dtype), spec((3, 4), dtype))
        assert "Count" not in statements
        assert any("int64" in show_statement(s) for s in statements.values()) == counted


@pytest.mark.parametrize("text", [
    "C[i : N] = +(X[i, j] > 0); Y[i, j : N, M] = X[i, j] / C[i]; Z = C;",  # an output
    "C[i : N] = +(X[i, j] > 0); Y[i, j : N, M] = X[i, j] / C[i]; Z[i : N] = C[i] / 2;",  # divided itself
    "C[i : N] = +(X[i, j] > 0); Y[i, j : N, M] = X[i, j] / C[i]; Z[i : N] = X[C[i] % N, 0];",  # an index
    "C[] = +(X[i, j] > 0); Y[i, j : N, M] = X[i, j] / C[]; Z = Y;",  # of rank 0
])  # fmt: skip
def test_other_counts_are_integers(text):
    f = tilec.compile(f"function (X[N, M]) -> (Y, Z) {{ {text} }}")
    _, types = flat_statements(f, spec((4, 5)))
    counts = [t.dtype for name, t in types.items() if name in ("C", "Z") and t.dtype == "int64"]
    assert counts


def test_many_points_are_counted_exactly():
    f = tilec.compile("function (X[N, M], D[N]) -> (Y) { C[i : N] = +(X[i, j] > 0); Y[i : N] = D[i] / C[i]; }")
    for m, kind in ((2**24 - 1, "float32"), (2**24, "int64")):
        assert flat_statements(f, spec((2, m)), spec((2,)))[1]["C"].dtype == kind


def test_values_stay():
    f = tilec.compile("""function (X[N, M], D[N]) -> (Y) {
        C[i : N] = +(X[i, j] > 0);
        Y[i, j : N, M] = D[i] / C[i] * X[i, j];
    }""")
    x, d = torch.randn(4, 5).abs() * torch.tensor([[1.0], [-1.0], [1.0], [1.0]]), torch.randn(4)
    want = (d / (x > 0).sum(1))[:, None] * x
    torch.testing.assert_close(f(x, d), want, equal_nan=True)
    assert "D_share" in flat_statements(f, spec((4, 5)), spec((4,)))[0]


COUNTED = {  # an input, the statement that counts its points, and what becomes of it
    "cut by a border": (
        (9,),
        "C[i : 9] = +(in(X[i + k - 2])), k < 5;",
        "C[i : 9] = int64(min(-i + 10, 4) - max(-i + 2, 0) + 1);",
    ),
    "strided, of two axes": (
        (9, 6),
        "C[i, j : 5, 6] = +(in(X[2*i + k - 1, j + l])), k < 3, l < 2;",
        "C[i, j : 5, 6] = int64((min(-2 * i + 9, 2) - max(-2 * i + 1, 0) + 1) * (min(-j + 5, 1) + 1));",
    ),
    "backward": ((9,), "C[i : 9] = +(in(X[i - k])), k < 3;", "C[i : 9] = int64(min(i, 2) + 1);"),
    "elements without points": (
        (3,),
        "C[i : 9] = +(in(X[i + k - 2])), k < 3;",
        "C[i : 9] = int64(max(min(-i + 4, 2) - max(-i + 2, 0) + 1, 0));",
    ),
    "steps of two": ((9,), "C[i : 9] = +(in(X[i + 2*k - 2])), k < 3;", None),
    "two variables in one index": ((9,), "C[i : 9] = +(in(X[i + k + l - 2])), k < 3, l < 2;", None),
    "not all elements": (
        (9,),
        "C[i : 12] = +(in(X[i]) * in(X[i + k - 1])), k < 3;",
        "C[i : 12] = i < 9 ? int64(max(min(-i + 9, 2) - max(-i + 1, 0) + 1, 0)) : int64(0);",
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_counts_between_moving_ends_are_lengths(name):
    shape, text, wanted = COUNTED[name]
    source = f"function (X[{', '.join('ABC'[: len(shape)])}]) -> (C) {{ {text} }}"
    f, x = tilec.compile(source), torch.randn(shape)
    statements, types = flat_statements(f, spec(shape))
    assert types["C"].dtype == "int64"
    assert (statements["C"].aggregation == "assign") == (wanted is not None)
    assert wanted is None or show_statement(statements["C"]) == wanted
    read = tilec.compile(source.replace("in(X[", "(X["))  # the same points, of a tensor of ones
    torch.testing.assert_close(f(x), read(torch.ones(shape)).long())


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (12, 9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_means_of_windows_that_a_border_cuts(shape, dtype):
    f = tilec.compile("function (X[H, W]) -> (O) { O[y, x : H, W] = mean(X[y + j - 3, x + i - 3]), j < 7, i < 7; }")
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    wanted = torch.nn.functional.avg_pool2d(x[None].float(), 7, 1, 3, count_include_pad=False)[0].to(dtype)
    torch.testing.assert_close(f(x), wanted)
    d = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    torch.testing.assert_close(torch.autograd.grad(f(x), x, d), torch.autograd.grad(wanted, x, d))
    statements, _ = flat_statements(f, spec(shape, str(dtype).removeprefix("torch.")))
    assert not any(name.endswith("_count") for name in statements)


def test_what_points_ask_is_not_asked_of_a_count():
    """Where a pair has points at all, it has as many as there are channels: those of the gradient ask that."""
    f = tilec.compile("function (L[C, W], R[C, W]) -> (V) { V[d, x : 4, W] = mean(L[c, x] * R[c, x - d]); }")
    statements, _ = flat_statements(f.grad(), spec((6, 9)), spec((6, 9)), spec((4, 9)))
    assert sorted(statements) == ["DL", "DR"]
    assert all("/ 6 *" in show_statement(s) for s in statements.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_mean_of_products_is_scaled_as_it_is_stored(dtype):
    """A product of matrices takes a number along; sums of few terms are divided when they are complete."""
    f = tilec.compile("function (A[S, I, C], B[S, J]) -> (P) { P[i, c, j] = mean(A[s, i, c] * B[s, j]); }")
    for s, count in ((24, 1), (3, 2)):
        shapes = (s, 17, 2), (s, 19)
        statements, types = flat_statements(f, *(spec(shape, dtype) for shape in shapes))
        assert len(statements) == count and types["P"].dtype == dtype
        inputs = [torch.randn(shape).to(getattr(torch, dtype)).requires_grad_() for shape in shapes]
        exact = [t.detach().double().requires_grad_() for t in inputs]
        value, wanted = f(*inputs), torch.einsum("sic,sj->icj", *exact) / s
        d = torch.randn(wanted.shape, dtype=torch.float64).to(value.dtype)
        found = value, *torch.autograd.grad(value, inputs, d)
        for x, y in zip(found, (wanted, *torch.autograd.grad(wanted, exact, d.double())), strict=True):
            torch.testing.assert_close(x.double(), y, rtol=1e-2, atol=1e-2 if dtype == "bfloat16" else 1e-6)


def test_what_a_recurrence_divides_is_divided_there():
    """Its elements are not there before it: the gradient of a best path."""
    function = tilec.compile("function (P[T, S, S]) -> (F) { F[t, j : T, S] = >(F[t - 1, i] + P[t, i, j]); }")
    p = torch.randn(4, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    state, states = torch.zeros(2, dtype=p.dtype), []
    for step in p:
        state = torch.amax(state[:, None] + step, 0)
        states.append(state)
    (wanted,) = torch.autograd.grad(torch.stack(states).sum(), p)
    (got,) = torch.autograd.grad(function(p).sum(), p)
    torch.testing.assert_close(got, wanted)


def test_a_count_leaves_other_factors_in_their_type():
    """An integer and a number make float32, in which a scalar of float64 would be rounded."""
    source = "function (M[2], L[5], J[3], D[]) -> (G) { G[i : 5] = +(-(D[] * M[L[i]]) * in(J[k])); }"
    m, d = torch.tensor([0.1, 0.7], dtype=torch.float64), torch.tensor(1.2345678901, dtype=torch.float64)
    at = torch.tensor([0, 1, 1, 0, 1])
    torch.testing.assert_close(tilec.compile(source)(m, at, torch.zeros(3), d), -3 * d * m[at], rtol=1e-15, atol=0)


@pytest.mark.parametrize(("size", "axes"), [("D", 1), ("D - 1", 1), ("D + 2", 2)])
def test_counts_at_data_lack_the_axes_along_which_they_are_the_same(size, axes):
    """The rows of a table that lie inside: of elements that no row has, there are none."""
    f = tilec.compile(f"function (W[V, D], T[B, L]) -> (Y) {{ Y[b, d : B, {size}] = mean(W[T[b, l], d]); }}")
    width = 4 + {"D": 0, "D - 1": -1, "D + 2": 2}[size]
    gradient = f.grad("W")
    given = spec((7, 4)), spec((3, 5), "int64"), spec((3, width))
    statements, types = flat_statements(gradient, *given)
    assert len(types["Count"].shape) == axes
    g = torch.Generator().manual_seed(0)
    w, d = torch.randn(7, 4, generator=g), torch.randn(3, width, generator=g)
    t = torch.randint(-3, 10, (3, 5), generator=g)
    inside = (t >= 0) & (t < 7)
    n, wanted = inside.sum(1).clamp(min=1), torch.zeros(7, 4)
    for b, k in inside.nonzero().tolist():
        wanted[t[b, k], : min(width, 4)] += d[b, :4] / n[b]
    torch.testing.assert_close(gradient(w, t, d), wanted)
    rows = (torch.where(inside[b, :, None], w[t[b].clamp(0, 6)], 0).sum(0) / n[b] for b in range(3))
    torch.testing.assert_close(f(w, t)[:, :4], torch.stack(list(rows))[:, :width])


def test_a_count_that_stands_beside_its_sum_keeps_its_axes():
    f = tilec.compile("function (W[V, D], T[B, L]) -> (Y) { Y[b, d : B, D] = mean(W[T[b, l], d]); }")
    _, types = flat_statements(f, spec((7, 4)), spec((3, 5), "int64"))
    assert types["Y_count"].shape == (3, 4)
