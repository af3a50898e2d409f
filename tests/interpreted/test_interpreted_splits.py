"""Long walks of few programs in parts, against torch in float64."""

import math
import os
import re

import pytest
import torch

import tilec
from tilec.backends.common.chains import cost, splits
from tilec.backends.common.chains.recognise import chained
from tilec.backends.common.chains.splits import build_together, split_of
from tilec.backends.triton.chains import launch
from tilec.ir.infer import infer
from tilec.ir.shape_class import Recorder
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.pipeline import lower

SCORES = "S[b, r, j : B, R, M] = 0.125 * sum(Q[b, r, e] * K[b, j, e])"
MIXED = (
    "L[b, r : B, R] = logsumexp({0}S[b, r, j]); O[b, r, f : B, R, F] = sum({0}exp(S[b, r, j] - L[b, r]) * V[b, j, f])"
)
CASES = {
    "attention": ("V[B, M, F]", "L, O", MIXED.format("")),
    "lengths": ("V[B, M, F], Length[R]", "L, O", MIXED.format("j < Length[r] ? ")),
    "window": ("V[B, M, F]", "L, O", MIXED.format("j > 700 & j - 90 * r < 900 ? ")),
    "bias": (
        "V[B, M, F], P[R, M]",
        "L, O",
        "T[b, r, j : B, R, M] = S[b, r, j] + P[r, j];" + MIXED.format("").replace("S[", "T["),
    ),
    "statistics": (
        "",
        "L, X, Y",
        "L[b, r : B, R] = logsumexp(S[b, r, j]); X[b, r : B, R] = max(exp(S[b, r, j])); "
        "Y[b, r : B, R] = sum(exp(S[b, r, j]))",
    ),
    "least": (
        "",
        "X, Y",
        "X[b, r : B, R] = min(exp(S[b, r, j])); Y[b, r : B, R] = sum(j > 600 ? exp(S[b, r, j]))",
    ),
    "relative to a maximum": (
        "V[B, M, F], W[R]",
        "O",
        "X[b, r : B, R] = max(S[b, r, j]); Z[b, r : B, R] = sum(exp(S[b, r, j] - X[b, r])); "
        "O[b, r, f : B, R, F] = W[r] * sum(exp(S[b, r, j] - X[b, r]) * V[b, j, f]) / Z[b, r]",
    ),
}
SOURCE = f"function (Q[B, R, E], K[B, M, E], V[B, M, F]) -> (L, O) {{ {SCORES}; {MIXED.format('')}; }}"
interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted with TRITON_INTERPRET=1"
)


def given(name, dtype, rows, columns=2600):
    torch.manual_seed(0)
    more = CASES[name][0]
    found = [torch.randn(s, dtype=dtype) for s in ((2, rows, 48), (2, columns, 48))]
    if "V[" in more:
        found.append(torch.randn(2, columns, 40, dtype=dtype))
    if "Length" in more:
        found.append(torch.tensor([0, 3, 700, columns, *[2000] * (rows - 4)], dtype=torch.int32))
    if "P[" in more:
        bias = torch.randn(rows, columns, dtype=dtype)
        bias[1], bias[2, :1500], bias[3, 7] = -math.inf, -math.inf, math.inf
        found.append(bias)
    if "W[" in more:
        found.append(torch.randn(rows, dtype=dtype))
    return found


def programs(name):
    more, outputs, statements = CASES[name]
    inputs = ", ".join(filter(None, ["Q[B, R, E], K[B, M, E]", more]))
    text = f"function ({inputs}) -> ({outputs}) {{ {SCORES}; {statements}; }}"
    return tilec.compile(text, backend="triton"), tilec.compile(text, backend="torch")


@interpreted
@pytest.mark.covering
@pytest.mark.parametrize("dtype, rows", ((torch.bfloat16, 5), (torch.bfloat16, 17), (torch.float32, 20)))
@pytest.mark.parametrize("case", [*CASES, "lengths, listed"])
@pytest.mark.one_in(7)
def test_parts(monkeypatch, case, dtype, rows):
    name = case.removesuffix(", listed")
    if name != case:
        monkeypatch.setattr(launch, "_MANY", 0)
    ours, theirs = programs(name)
    inputs = given(name, dtype, rows)
    made = ours.lower(*inputs)
    assert any(k.name.endswith("_together") for k in made.kernels)
    got, want = ours(*inputs), theirs(*(x.double() if x.is_floating_point() else x for x in inputs))
    close = {"rtol": 2e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    for x, w in zip(*(v if isinstance(v, tuple) else (v,) for v in (got, want)), strict=True):
        torch.testing.assert_close(x.double(), w, equal_nan=True, **close)


@interpreted
@pytest.mark.parametrize("columns", (1100, 2600))
@pytest.mark.parametrize("name", ("attention", "window", "statistics"))
@pytest.mark.covering
def test_one_row(name, columns):
    """One query of a head at a time, in a chain of its own."""
    ours, theirs = programs(name)
    inputs = given(name, torch.bfloat16, 1, columns)
    assert any("chain" in k.name for k in ours.lower(*inputs).kernels)
    got, want = ours(*inputs), theirs(*(x.double() for x in inputs))
    for x, w in zip(got, want, strict=True):
        torch.testing.assert_close(x.double(), w, rtol=2e-2, atol=1e-2)


def test_one_row_of_scores_that_several_kernels_need_is_stored():
    text = f"""function (Q[B, R, E], K[B, M, E], V[B, M, F]) -> (O, Y) {{ {SCORES}; {MIXED.format("")};
        Y[b, r : B, R] = sum(exp(tanh(S[b, r, j] - L[b, r]))); }}"""
    for rows, chains in ((1, False), (4, True)):
        made = tilec.compile(text, backend="triton").lower(*given("attention", torch.bfloat16, rows), target="sm_90")
        assert any("chain" in k.name for k in made.kernels) == chains


@interpreted
@pytest.mark.slow
def test_gradients():
    ours, theirs = programs("window")
    inputs = given("window", torch.float32, 20)
    cotangents = torch.randn(2, 20), torch.randn(2, 20, 40)
    got = ours.grad(("Q", "K", "V"))(*inputs, *cotangents)
    want = theirs.grad(("Q", "K", "V"))(*(x.double() for x in (*inputs, *cotangents)))
    for x, w in zip(got, want, strict=True):
        torch.testing.assert_close(x.double(), w, rtol=1e-4, atol=1e-5)


DEALT = "S[b, h, i, j : B, H, N, M] = 0.25 * sum(Q[b, h, i, e] * K[b, j, e])"
POOLED = """L[b, j : B, M] = logsumexp({0}S[b, h, i, j]);
    O[b, j, e : B, M, E] = sum({0}exp(S[b, h, i, j] - L[b, j]) * Q[b, h, i, e])"""
ATTENDED = """L[b, h, i : B, H, N] = logsumexp({0}S[b, h, i, j]);
    O[b, h, i, e : B, H, N, E] = sum({0}exp(S[b, h, i, j] - L[b, h, i]) * V[b, j, e])"""


@interpreted
@pytest.mark.parametrize("guard", ["", "i >= j ? ", "i + 16 * h >= 50 & j < 30 ? "])
@pytest.mark.parametrize("heads", [4, 5])
@pytest.mark.covering
@pytest.mark.one_in(4)
def test_heads_that_share_columns_are_dealt_out(monkeypatch, heads, guard):
    """What programs walk around their columns has parts too: of a statistic over both, and of the gradient of keys
    that heads share. Columns that see nothing are there."""
    monkeypatch.setattr(splits, "FEWEST_COLUMNS", 16)
    torch.manual_seed(0)
    inputs = [torch.randn(s) for s in ((1, heads, 37, 24), (1, 41, 24), (1, 41, 24))]
    text = f"function (Q[B, H, N, E], K[B, M, E]) -> (L, O) {{ {DEALT}; {POOLED.format(guard)}; }}"
    ours, theirs = (tilec.compile(text, backend=b) for b in ("triton", "torch"))
    names = [k.name for k in ours.lower(*inputs[:2]).kernels]
    assert {"O_parts_chain", "O_chain_together"} <= {*names}
    for x, w in zip(ours(*inputs[:2]), theirs(*(x.double() for x in inputs[:2])), strict=True):
        torch.testing.assert_close(x.double(), w, rtol=1e-4, atol=1e-5)
    text = f"function (Q[B, H, N, E], K[B, M, E], V[B, M, E]) -> (L, O) {{ {DEALT}; {ATTENDED.format(guard)}; }}"
    gradients = [tilec.compile(text, backend=b).grad(("Q", "K", "V")) for b in ("triton", "torch")]
    inputs += [torch.zeros(1, heads, 37), torch.randn(1, heads, 37, 24)]
    assert any(k.name.endswith("_together") for k in gradients[0].lower(*inputs).kernels)
    got, want = gradients[0](*inputs), gradients[1](*(x.double() for x in inputs))
    for x, w in zip(got, want, strict=True):
        torch.testing.assert_close(x.double(), w, rtol=1e-4, atol=1e-5)


@interpreted
@pytest.mark.parametrize("guard", ["n + 8 * h >= 20 & n + m < 60 ? "])
def test_all_that_a_program_walks_is_shared_out(monkeypatch, guard):
    """Heads and batches, and then columns: the gradient of features that all of them share has few rows."""
    monkeypatch.setattr(splits, "FEWEST_COLUMNS", 16)
    torch.manual_seed(0)
    given = torch.randn(2, 5, 40, 16), torch.randn(24, 16) / 4, torch.randn(2, 5, 40, 16), torch.randn(2, 5, 24, 16)
    text = f"""function (Q[B, H, N, D], W[M, D], V[B, H, N, E], G[B, H, M, E]) -> (O) {{
        S[b, h, n, m : B, H, N, M] = sum(Q[b, h, n, d] * W[m, d]);
        P[b, h, n, m : B, H, N, M] = sum(V[b, h, n, e] * G[b, h, m, e]);
        O[m, d] = sum({guard}exp(S[b, h, n, m]) * P[b, h, n, m] * Q[b, h, n, d]);
    }}"""
    ours, theirs = (tilec.compile(text, backend=b) for b in ("triton", "torch"))
    types = {n: TensorType(tuple(x.shape), "float32") for n, x in zip("QWVG", given, strict=True)}
    made = lower(ours.program, types, {})
    (kernel,) = chained(made.stages["flat"], made.types).kernels.values()
    split = split_of(kernel, made.types)
    assert split is not None and split.count == 4 * 2 * 3 and len(split.kernel.batch) == 3
    wide = [x.double() for x in given]
    torch.testing.assert_close(ours(*given).double(), theirs(*wide), rtol=1e-4, atol=1e-4)


@interpreted
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.one_in(3)
def test_windows_that_share_a_bias_are_dealt_out(dtype):
    """The bias's gradient has few programs, each of which walks a part of the windows."""
    torch.manual_seed(0)
    text = """function (Q[W, H, N, E], K[W, H, N, E], V[W, H, N, E], P[H, N, N]) -> (O) {
        S[w, h, i, j : W, H, N, N] = 0.25 * sum(Q[w, h, i, e] * K[w, h, j, e]) + P[h, i, j];
        L[w, h, i : W, H, N] = logsumexp(S[w, h, i, j]);
        O[w, h, i, f : W, H, N, E] = sum(exp(S[w, h, i, j] - L[w, h, i]) * V[w, h, j, f]);
    }"""
    given = [torch.randn(s, dtype=dtype) for s in ((19, 2, 18, 16),) * 3 + ((2, 18, 18),)]
    cotangent = torch.randn(given[0].shape, dtype=dtype)
    ours, theirs = (tilec.compile(text, backend=b).grad() for b in ("triton", "torch"))
    assert "DP_parts_chain" in [k.name for k in ours.lower(*given, cotangent).kernels]
    close = {"rtol": 4e-2, "atol": 4e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    for x, w in zip(ours(*given, cotangent), theirs(*(x.double() for x in (*given, cotangent))), strict=True):
        torch.testing.assert_close(x.double(), w, **close)


def test_few_rows_need_many_columns():
    ours, _ = programs("attention")
    few, many = (ours.lower(*given("attention", torch.bfloat16, 4, columns=n), target="sm_90") for n in (600, 2600))
    assert not any("chain" in k.name for k in few.kernels)
    assert [k.name for k in many.kernels] == ["O_parts_chain", "O_chain_together", "L_kernel"]


@interpreted
def test_lengths_after_one_another():
    ours, theirs = programs("attention")
    for columns in (2600, 3300, 2048, 900):
        inputs = given("attention", torch.float32, 20, columns)
        for x, w in zip(ours(*inputs), theirs(*(x.double() for x in inputs)), strict=True):
            torch.testing.assert_close(x.double(), w, rtol=1e-5, atol=1e-5)


def opened(columns):
    """The kernel that walks this many columns, their number open."""
    recorder = Recorder()
    size = recorder.symbol("M", columns)
    known = {n: TensorType((8, e, 64), "bfloat16") for n, e in (("Q", 8), ("K", size), ("V", size))}
    made = lower(parse(SOURCE), known, {}).stages["flat"]
    types = infer(made, known)
    (kernel,) = chained(made, types).kernels.values()
    return recorder, kernel, types


def served(recorder, columns):
    return all(eval(g, {"M": columns, "__builtins__": {}}) for g in recorder.guards)


def test_the_number_of_columns_may_be_open():
    """As it grows with each query that is decoded: parts are as long for many lengths."""
    recorder, kernel, types = opened(32768)
    split = split_of(kernel, types)
    assert split is not None and split.count == 32 and not recorder.pinned
    assert served(recorder, 32700) and served(recorder, 32768)


def test_one_kernel_puts_any_few_parts_together():
    recorder, kernel, types = opened(1024)
    split = split_of(kernel, types)
    assert split is not None  # nothing is asked of its count here, which would be a guard
    build_together("together", split, kernel, types)
    assert not recorder.pinned
    assert all(served(recorder, n) for n in (1024, 1025, 1280, 2048, 4096))


@pytest.mark.parametrize("width, counts", [(256, [4, 8]), (64, [None, None])])
def test_wide_kernels_fill_the_device(width, counts):
    """Programs of wide operands have 128 rows and a multiprocessor each: 64 programs of columns in 4 parts are two
    rounds, 79 with 8 heads dealt out are 4.8."""
    text = """function (H[N, K, D], W[V, D]) -> (L, O) {
        S[n, k, v : N, K, V] = sum(H[n, k, d] * W[v, d]);
        L[n, k : N, K] = logsumexp(S[n, k, v]);
        O[v, d : V, D] = sum(exp(S[n, k, v]) * H[n, k, d]);
    }"""
    known = {n: TensorType(s, "bfloat16") for n, s in (("H", (1024, 8, width)), ("W", (10000, width)))}
    made = lower(parse(text), known, {})
    found = chained(made.stages["flat"], made.types)
    parts = [split_of(found.kernels[n], found.types) for n in ("L_wide", "O")]
    assert [s and s.count for s in parts] == counts


@interpreted
@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("guard", ["", "j < Length[i] ? "])
def test_more_rows_than_operands_have(monkeypatch, guard, parts):
    """Elements of a result beyond them are sums of nothing, and nothing is read there."""
    for name in ("LARGE", "FAR", "_FEWEST", "_LEAST_GAIN"):
        monkeypatch.setattr(cost, name, 0)
    monkeypatch.setattr(splits, "FEWEST_COLUMNS", 16 if parts else 512)
    text = f"""function (Q[N, E], K[M, E], V[M], F[N], Length[N]) -> (O) {{
        S[i, j : N, M] = sum(Q[i, e] * K[j, e]); O[i : M] = sum({guard}F[i] * exp(S[i, j]) * V[j]);
    }}"""
    torch.manual_seed(0)
    given = [torch.randn(s) for s in ((19, 16), (64, 16), (64,), (19,))]
    length = torch.arange(19) * 3
    ours, theirs = (tilec.compile(text, backend=b) for b in ("triton", "torch"))
    assert any("chain" in k.name for k in ours.lower(*given, length).kernels)
    torch.testing.assert_close(
        ours(*given, length).double(), theirs(*(x.double() for x in given), length), rtol=1e-4, atol=1e-4
    )


POINTS = {
    "sum": "E[i : N] = sum(i == j ? 0.0 : exp(-S[i, j]));",
    "masked": "E[i : N] = W[i] * sum(j < i ? exp(-S[i, j]) * W[j]);",
    "logsumexp": "E[i : N] = logsumexp(W[j] - S[i, j]);",
    "max": "E[i : N] = max(W[j] - S[i, j]);",
}


@pytest.mark.one_in(2)
@interpreted
@pytest.mark.parametrize("form", POINTS)
def test_walks_of_points_are_divided(monkeypatch, form):
    """Kernels without products, whose programs are few."""
    monkeypatch.setattr(splits, "FEWEST_COLUMNS", 16)
    for name in ("LARGE", "FAR", "_FEWEST", "_LEAST_GAIN"):
        monkeypatch.setattr(cost, name, 0)
    text = f"""function (X[N, 3], W[N]) -> (E) {{
        S[i, j : N, N] = sum((X[i, d] - X[j, d]) * (X[i, d] - X[j, d])); {POINTS[form]} }}"""
    torch.manual_seed(0)
    given = torch.randn(70, 3), torch.randn(70)
    ours, theirs = (tilec.compile(text, backend=b) for b in ("triton", "torch"))
    assert any("parts" in k.name for k in ours.lower(*given).kernels)
    torch.testing.assert_close(ours(*given).double(), theirs(*(x.double() for x in given)), rtol=1e-5, atol=1e-5)


def test_few_rows_of_queries_have_two_programs_a_multiprocessor():
    f = tilec.compile(SOURCE)
    for heads, divided in ((128, True), (140, False)):
        shapes = [(heads, n, 64) for n in (8, 4096, 4096)]
        kernels = f.lower(*(tilec.spec(s, "bfloat16") for s in shapes), target="sm_90").kernels
        assert any("parts" in k.name for k in kernels) == divided


def test_long_walks_of_one_query_end_together():
    """400 programs are three a multiprocessor and four more: in four parts each, what runs at the end is short. More
    programs, and few columns, stay whole."""
    f = tilec.compile(SOURCE)
    for heads, columns, programs in ((400, 6680, 1600), (140, 8192, 1540), (140, 7168, None), (560, 6680, None)):
        shapes = [(heads, n, 64) for n in (1, columns, columns)]
        text = f.lower(*(tilec.spec(s, "bfloat16") for s in shapes), target="sm_90").source()
        found = re.findall(r"_parts_chain\[\((\d+),", text)
        assert found == ([] if programs is None else [f"{programs}"])
