"""Kernels of chains by the NumPy interpreter against torch in float64: bodies, guards, sizes, types, tilings."""

import numpy as np
import pytest
import torch
from support.chains import VARIANTS, both_ways, run

import tilec
from tilec.backends.common.chains import cost, recognise
from tilec.backends.common.chains.codegen import places
from tilec.backends.common.chains.codegen.build import build_kernel
from tilec.backends.common.chains.codegen.places import Tiling, feature_blocks
from tilec.backends.triton.chains.launch import chain_steps
from tilec.backends.triton.chains.tiling import choose_chain_tiling
from tilec.backends.triton.plan.plan import Launch, Setting
from tilec.backends.triton.plan.sizes import contiguous
from tilec.ir.types import TensorType
from tilec.language.show import show_statement
from tilec.pipeline import lower
from tilec.saving import partition

SIZES = {"B": 2, "N": 50, "M": 37, "E": 20, "F": 24}


def check(mine, theirs, tolerance):
    for x, y in zip(mine, theirs, strict=True):
        assert np.linalg.norm(x - y) <= tolerance * np.linalg.norm(y) + 1e-30


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["causal", "divided", "bias", "capped", "slopes", "sigmoid"])
def test_16_bits(name):
    """As accurate as operands of products that are rounded to 16 bits let it be."""
    mine, theirs, *_ = both_ways(VARIANTS[name], "bfloat16", SIZES, Tiling(16, 32))
    check(mine, theirs, 6e-3)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "sizes", [(1, 16, 16, 2, 2), (1, 64, 32, 16, 16), (3, 17, 90, 5, 40), (2, 53, 24, 20, 1)], ids=str
)
@pytest.mark.parametrize("tiling", [Tiling(16, 16), Tiling(64, 32)], ids=lambda t: f"{t.block}x{t.step}")
@pytest.mark.covering
def test_sizes_and_blocks(sizes, tiling):
    """Whole blocks and overhanging ones, more columns than rows, rows that see nothing."""
    for name in ("causal", "window", "ahead"):
        mine, theirs, *_ = both_ways(VARIANTS[name], "float32", dict(zip("BNMEF", sizes, strict=True)), tiling)
        check(mine, theirs, 3e-6)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["full", "causal", "window", "ahead", "alibi"])
@pytest.mark.parametrize("tiles", [1, 3])
@pytest.mark.covering
def test_columns_of_one_block(name, tiles):
    """Nothing is carried, and a program has several blocks of rows: the last one fewer."""
    mine, theirs, *_ = both_ways(VARIANTS[name], "float32", SIZES, Tiling(16, 64, tiles=tiles))
    check(mine, theirs, 3e-6)


WINDOWS = [(2, 49, 49, 32, 32), (1, 16, 64, 8, 16), (3, 50, 37, 24, 20), (2, 60, 64, 40, 16)]


@pytest.mark.parametrize("sizes", WINDOWS, ids=str)
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.covering
@pytest.mark.one_in(7)
def test_gradients_within_small_windows_are_one_kernel(name, sizes):
    """All rows and all columns are one block each: what sums over either is made of the same matrices. Rows and columns
    that see nothing are there."""
    given = dict(zip("BNMEF", sizes, strict=True))
    mine, theirs, _, kernels = both_ways(VARIANTS[name], "bfloat16", given, Tiling(16, 16))
    check(mine, theirs, 2e-2)
    chosen = name not in ("documents", "ahead", "linear")
    assert any({"DQ", "DK", "DV"} <= {*k} for k in kernels) == chosen, kernels


@pytest.mark.parametrize("name", ["full", "causal"])
def test_a_batch_of_one_computes_values_of_rows_too(name):
    """The row sums of DO * O, in the kernel of the queries' gradient, as for larger batches."""
    for batch in (1, 2):
        mine, theirs, _, kernels = both_ways(VARIANTS[name], "float32", {**SIZES, "B": batch}, Tiling(16, 32))
        check(mine, theirs, 3e-6)
        assert kernels[-2:] == [("DL", "DQ"), ("DK", "DV")]


@pytest.mark.parametrize("at_once", [3, 5, 7])
def test_programs_that_run_at_once_have_a_long_walk_and_a_short_one(at_once, monkeypatch):
    """The second program of each multiprocessor has the shorter walk the longer its first one has, and each block of
    each batch is walked once."""
    monkeypatch.setattr(places, "MULTIPROCESSORS_AT_ONCE", at_once)
    sizes = {"B": 2, "N": 50, "M": 50, "E": 20, "F": 24}
    for name in ("causal", "alibi") if at_once == 5 else ():
        mine, theirs, *_ = both_ways(VARIANTS[name], "float32", sizes, Tiling(16, 16))
        check(mine, theirs, 3e-6)
    types = {n: TensorType((2, 50, 20), "float32") for n in "QKV"}
    lowered = lower(tilec.compile(VARIANTS["causal"].text).program, types, {})
    found = recognise.chained(lowered.stages["flat"], lowered.types)
    (kernel,) = found.kernels.values()
    turned = build_kernel("walk", kernel, found.types, Tiling(16, 16))
    monkeypatch.setattr(places, "MULTIPROCESSORS_AT_ONCE", 132)
    plain = build_kernel("walk", kernel, found.types, Tiling(16, 16))
    assert turned.grid == plain.grid == 8 and (len(turned.body) > len(plain.body)) == (4 <= at_once < 8)


def test_gradients_of_many_rows_or_features_have_no_room_in_one_kernel():
    for sizes in ((2, 49, 130, 32, 32), (2, 64, 64, 256, 256), (2, 100, 100, 64, 64)):
        given = dict(zip("BNMEF", sizes, strict=True))
        *_, kernels = both_ways(VARIANTS["full"], "bfloat16", given, Tiling(64, 64))
        assert not any({"DQ", "DK", "DV"} <= {*k} for k in kernels)


SQUARES = "T[i, j : N, M] = +((X[i, d] - Y[j, d]) * (X[i, d] - Y[j, d]))"
KERNELS = {
    "gaussian": ("O[i : N] = +(exp(-T[i, j]) * B[j])", lambda t, b: np.exp(-t) @ b),
    "softened": ("O[i : N] = logsumexp(-T[i, j] + B[j])", lambda t, b: np.log(np.exp(b - t).sum(1))),
}


@pytest.mark.parametrize("name", KERNELS)
def test_inner_sums_in_registers(name, monkeypatch):
    """A sum of few terms that is no product of a row and a column, reduced without being stored."""
    monkeypatch.setattr(cost, "LARGE", 0)
    statement, formula = KERNELS[name]
    text = f"function (X[N, D], Y[M, D], B[M]) -> (O) {{ {SQUARES}; {statement}; }}"
    g = np.random.default_rng(0)
    arrays = {n: g.standard_normal(s).astype(np.float32) for n, s in (("X", (50, 3)), ("Y", (37, 3)), ("B", (37,)))}
    types = {n: TensorType(x.shape, "float32") for n, x in arrays.items()}
    ran = run(tilec.compile(text).program, types, arrays, Tiling(32, 16))
    assert ran.kernels == [("O",)]
    x, y, b = (a.astype(float) for a in arrays.values())
    np.testing.assert_allclose(ran.values["O"], formula(((x[:, None] - y) ** 2).sum(2), b), rtol=1e-5, atol=1e-5)


EQUAL = f"{SQUARES}; O[j : M] = +(T[i, j] == L[i] ? G[i]);"
EXTREMUM = f"{SQUARES}; L[i : N] = <(T[i, j]); O[j : M] = +(T[i, j] == L[i] ? G[i]);"


@pytest.mark.parametrize(("text", "dtype", "width"), [
    (f"function (X[N, D], Y[M, D], L[N], G[N]) -> (O) {{ {EQUAL} }}", "float32", 3),
    (f"function (X[N, D], Y[M, D], G[N]) -> (L, O) {{ {EXTREMUM} }}", "bfloat16", 3),
    (f"function (X[N, D], Y[M, D], G[N]) -> (L, O) {{ {EXTREMUM} }}", "float32", 40),
], ids=["an input", "16 bits", "a long sum"])  # fmt: skip
def test_what_is_found_by_equality_is_stored(text, dtype, width, monkeypatch):
    """Values and what they are compared with come from one kernel where another may round otherwise, since then no
    value equals the extremum."""
    monkeypatch.setattr(cost, "LARGE", 0)
    types = {"X": TensorType((50, width), dtype), "Y": TensorType((37, width), dtype)}
    types |= {"L": TensorType((50,), dtype), "G": TensorType((50,), dtype)}
    program = tilec.compile(text).program
    lowered = lower(program, {n: types[n] for n in program.input_names()}, {})
    assert not recognise.chained(lowered.stages["flat"], lowered.types).kernels


def test_an_extremum_is_found_among_values_that_are_computed_again(monkeypatch):
    """A float32 sum that is added up term by term, in kernels that round products and sums one by one."""
    monkeypatch.setattr(cost, "LARGE", 0)
    g = np.random.default_rng(0)
    arrays = {n: g.standard_normal(s).astype(np.float32) for n, s in (("X", (50, 3)), ("Y", (37, 3)), ("G", (50,)))}
    types = {n: TensorType(x.shape, "float32") for n, x in arrays.items()}
    program = tilec.compile(f"function (X[N, D], Y[M, D], G[N]) -> (L, O) {{ {EXTREMUM} }}").program
    ran = run(program, types, arrays, Tiling(32, 16))
    assert ran.kernels == [("L",), ("O",)]
    squares = ((arrays["X"][:, None].astype(float) - arrays["Y"]) ** 2).sum(2)
    wanted = np.zeros(37)
    np.add.at(wanted, squares.argmin(1), arrays["G"])
    np.testing.assert_allclose(ran.values["O"], wanted, rtol=1e-5, atol=1e-6)
    lowered = lower(program, types, {})
    found = recognise.chained(lowered.stages["flat"], lowered.types)
    strides = {n: contiguous(t.shape) for n, t in found.types.items()}
    steps = [s for k in found.kernels.values() for s in chain_steps(k, found.types, strides, Setting())]
    assert len(steps) == 2 and all(isinstance(s, Launch) and not s.fusion for s in steps)


SCORES = "S[b, i, j : B, N, M] = sum(Q[b, i, e] * K[b, j, e])"
EXTREMA = {
    "a softmax and its row maximum": f"""function (Q[B, N, E], K[B, M, E], V[B, M, F]) -> (O, T) {{
        {SCORES};
        T[b, i] = max(S[b, i, j]);
        W[b, i, j] = exp(S[b, i, j] - T[b, i]);
        O[b, i, f] = sum(W[b, i, j] * V[b, j, f]) / sum(W[b, i, j]);
    }}""",
    "a maximum beside a softmax": f"""function (Q[B, N, E], K[B, M, E], V[B, M, F]) -> (O) {{
        {SCORES};
        T[b, i] = max(S[b, i, j]);
        L[b, i] = logsumexp(S[b, i, j]);
        O[b, i, f] = sum(exp(S[b, i, j] - L[b, i]) * V[b, j, f]) * T[b, i];
    }}""",
    "nearest distances": """function (Q[B, N, E], K[B, M, E]) -> (T) {
        S[b, i, j : B, N, M] = sum((Q[b, i, e] - K[b, j, e]) * (Q[b, i, e] - K[b, j, e]));
        T[b, i] = min(S[b, i, j]);
    }""",
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [8, 64])
@pytest.mark.parametrize("name", EXTREMA)
@pytest.mark.covering
def test_gradients_find_extrema_among_their_own_values(name, width, dtype, monkeypatch):
    """The forward pass may take the extremum from scores that are never stored; the backward pass takes it once more
    from those that it compares with it, and keeps no count of ties either."""
    monkeypatch.setattr(cost, "LARGE", 0)
    program = tilec.compile(EXTREMA[name]).program
    types = {n: TensorType((4, 128, width), dtype) for n in program.input_names()}
    parts = partition(program, tuple(types), types, {}, True)
    assert not {"T", "Ties"} & {*parts.backward.values}
    compared = [s for s in parts.backward.program.statements if "==" in show_statement(s)]
    assert compared and {"T", "S"} <= {s.output for s in parts.backward.program.statements}
    lowered = lower(parts.backward.program, dict(parts.backward.types), {})
    kernels = recognise.chained(lowered.stages["flat"], lowered.types).kernels.values()
    assert all(k.singly for k in kernels) and bool(kernels) == (dtype == "float32" and width == 8)


def test_nearest_distances_are_not_stored(monkeypatch):
    monkeypatch.setattr(cost, "LARGE", 0)
    text = f"function (X[N, D], Y[M, D]) -> (O) {{ {SQUARES}; O[i : N] = <(T[i, j]); }}"
    g = np.random.default_rng(0)
    arrays = {n: g.standard_normal(s).astype(np.float32) for n, s in (("X", (50, 3)), ("Y", (37, 3)))}
    types = {n: TensorType(x.shape, "float32") for n, x in arrays.items()}
    ran = run(tilec.compile(text).program, types, arrays, Tiling(32, 16))
    assert ran.kernels == [("O",)]
    squares = ((arrays["X"][:, None].astype(float) - arrays["Y"]) ** 2).sum(2)
    np.testing.assert_allclose(ran.values["O"], squares.min(1), rtol=1e-5)


@pytest.mark.parametrize(
    "rows, width, dtype, chains",
    [(3000, 256, "float32", 0), (3000, 256, "bfloat16", 1), (3000, 128, "float32", 1), (500, 256, "float32", 1),
     (9000, 256, "float32", 1)],
)  # fmt: skip
@pytest.mark.parametrize("mixture", [False, True])
def test_wide_float32_products_are_sooner_stored(rows, width, dtype, chains, mixture):
    """Where there is enough of them, and what is stored is not too large."""
    mixed = """function (X[N, D], Y[M, D]) -> (F) {
        S[i, j : N, M] = sum(X[i, d] * Y[j, d]);
        L[i : N] = logsumexp(S[i, j]);
        F[i, d : N, D] = sum(exp(S[i, j] - L[i]) * Y[j, d]);
    }"""
    alone = """function (X[N, D], Y[M, D]) -> (F) {
        S[i, j : N, M] = sum(X[i, d] * Y[j, d]);
        F[i : N] = sum(exp(S[i, j]));
    }"""
    types = {n: TensorType((rows, width), dtype) for n in "XY"}
    lowered = lower(tilec.compile(mixed if mixture else alone).program, types, {})
    assert len(recognise.chained(lowered.stages["flat"], lowered.types).kernels) == chains


@pytest.mark.parametrize(
    "width, beside, chains", [(256, "G[n, v] * ", 0), (256, "", 1), (128, "G[n, v] * ", 1), (256, "G[n, d] * ", 1)]
)
def test_wide_products_beside_stored_matrices_are_sooner_stored(width, beside, chains):
    text = f"""function (H[N, D], W[V, D], P[N], G[N, V]) -> (O) {{
        S[n, v : N, V] = sum(H[n, d] * W[v, d]);
        O[n, d : N, D] = sum({beside}exp(S[n, v] - P[n]) * W[v, d]);
    }}"""
    shapes = {"H": (8192, width), "W": (10000, width), "P": (8192,), "G": (8192, 10000)}
    lowered = lower(tilec.compile(text).program, {n: TensorType(s, "bfloat16") for n, s in shapes.items()}, {})
    assert len(recognise.chained(lowered.stages["flat"], lowered.types).kernels) == chains


@pytest.mark.parametrize("at_points", [False, True])
def test_a_condition_on_a_statistic_of_the_kernel_waits_for_it(at_points):
    """Whether a row has a sum is asked after the walk; which points count depends on what the walk is yet to find: a
    kernel of its own."""
    limit = "S[b, i, j] + 3.75" if at_points else "3.75"
    text = f"""function (Q[B, N, E], K[B, M, E], V[B, M, F]) -> (L, O) {{
        {SCORES};
        L[b, i] = logsumexp(S[b, i, j]);
        O[b, i, f] = sum(L[b, i] > {limit} ? exp(S[b, i, j]) * V[b, j, f]);
    }}"""
    g = np.random.default_rng(0)
    shapes = {"Q": (2, 40, 8), "K": (2, 33, 8), "V": (2, 33, 8)}
    arrays = {n: (g.standard_normal(s) / 2).astype(np.float32) for n, s in shapes.items()}
    types = {n: TensorType(x.shape, "float32") for n, x in arrays.items()}
    ran = run(tilec.compile(text).program, types, arrays, Tiling(16, 16))
    assert ran.kernels == ([("L",), ("O",)] if at_points else [("L", "O")])
    scores = np.einsum("bie,bje->bij", arrays["Q"], arrays["K"]).astype(float)
    seen = np.log(np.exp(scores).sum(-1, keepdims=True)) > (scores + 3.75 if at_points else 3.75)
    assert seen.any() and not seen.all()
    y = (np.exp(scores) * seen) @ arrays["V"]
    assert np.linalg.norm(ran.values["O"] - y) <= 1e-5 * np.linalg.norm(y)


@pytest.mark.parametrize("guard", ["", "i >= j ? ", "i >= j & D[i] == D[j] ? ", "i >= j - 5 * r ? "])
@pytest.mark.one_in(3)
def test_heads_that_share_keys(guard):
    """Gradients of keys and values walk over several heads, each by its own blocks or by those of a list."""
    declared = ", D[N]" if "D" in guard else ""
    text = f"""function (Q[B, R, N, E], K[B, M, E], V[B, M, F]{declared}) -> (O) {{
        S[b, r, i, j : B, R, N, M] = 0.25 * sum(Q[b, r, i, e] * K[b, j, e]);
        L[b, r, i] = logsumexp({guard}S[b, r, i, j]);
        O[b, r, i, f] = sum({guard}exp(S[b, r, i, j] - L[b, r, i]) * V[b, j, f]);
    }}"""
    g = np.random.default_rng(0)
    shapes = {"Q": (2, 3, 40, 16), "K": (2, 40, 16), "V": (2, 40, 8)}
    arrays = {n: g.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    if declared:
        arrays["D"] = np.repeat([0, 1, 2], [7, 18, 15]).astype(np.int32)
    types = {n: TensorType(x.shape, x.dtype.name) for n, x in arrays.items()}
    program = tilec.compile(text).program
    parts = partition(program, ("Q", "K", "V"), types, {}, True)
    forward = run(parts.forward or program, types, arrays, Tiling(16, 16))
    cotangent = g.standard_normal((2, 3, 40, 8)).astype(np.float32)
    given = {n: forward.values[n] for n in parts.backward.values}
    given |= {n: arrays[n] for n in parts.backward.shapes} | {"DO": cotangent}
    backward = run(parts.backward.program, dict(parts.backward.types), given, Tiling(16, 16))
    assert {"DK", "DV"} <= {n for k in backward.kernels for n in k}
    t = [torch.tensor(arrays[n]).double().requires_grad_() for n in "QKV"]
    value = tilec.compile(text, backend="torch")(*t, *[torch.tensor(x) for n, x in arrays.items() if n == "D"])
    exact = torch.autograd.grad(value, t, torch.tensor(cotangent).double())
    mine = [forward.values["O"], *(backward.values[o] for o in parts.backward.program.outputs)]
    check(mine, [x.detach().numpy() for x in (value, *exact)], 3e-6)


@pytest.mark.parametrize("widths", [(24, 216), (80, 72), (200, 144), (255, 129), (136, 40)], ids=str)
@pytest.mark.one_in(4)
def test_wide_heads_lie_in_blocks_side_by_side(widths, monkeypatch):
    """A width that would leave much of a block of a power of two empty has two blocks or three: no product multiplies
    much more than there is."""
    sizes = {**SIZES, "E": widths[0], "F": widths[1]}
    monkeypatch.setattr(cost, "LARGE", 0)
    for name in ("causal", "divided", "bias"):
        check(*both_ways(VARIANTS[name], "float32", sizes, Tiling(32, 16))[:2], 3e-6)


@pytest.mark.parametrize("extent, blocks", [
    (3, (16,)), (40, (32, 16)), (56, (64,)), (64, (64,)), (65, (128,)), (72, (64, 16)),
    (88, (128,)), (96, (128,)), (104, (128,)),
    (129, (256,)), (136, (128, 16)), (150, (256,)), (160, (128, 32)),
    (192, (128, 64)), (193, (256,)), (200, (128, 64, 16)), (216, (128, 64, 32)), (240, (256,)), (256, (256,)),
])  # fmt: skip
def test_blocks_of_features(extent, blocks):
    assert feature_blocks(extent) == blocks


def test_queries_of_96_columns_lie_in_two_blocks(monkeypatch):
    """Of 16 bits: programs of several products into one sum are smaller then, and three a multiprocessor."""
    assert [feature_blocks(n, 3, 1 / 4) for n in (88, 96, 104)] == [(64, 32), (64, 32), (128,)]
    monkeypatch.setattr(cost, "LARGE", 0)
    for dtype, bound in (("bfloat16", 1e-2), ("float32", 3e-6)):
        check(*both_ways(VARIANTS["causal"], dtype, {**SIZES, "E": 96, "F": 88}, Tiling(32, 16))[:2], bound)


@pytest.mark.parametrize("dtype, widths, apart", [
    ("bfloat16", (192, 128), False), ("float32", (192, 128), True), ("bfloat16", (256, 256), True),
])  # fmt: skip
def test_wide_mixtures(dtype, widths, apart):
    """Sums of two products of 192 and 128 columns fit into registers beside scores of 16-bit operands."""
    types = {n: TensorType((16, 2048, widths[n == "V"]), dtype) for n in "QKV"}
    program = tilec.compile(VARIANTS["causal"].text).program
    parts = partition(program, ("Q", "K", "V"), types, {}, True)
    lowered = lower(parts.backward.program, dict(parts.backward.types), {})
    found = recognise.chained(lowered.stages["flat"], lowered.types).kernels.values()
    outputs = [tuple(s.output for s in k.statements if s.output in ("DQ", "DK", "DV")) for k in found]
    assert sorted(outputs) == ([("DK",), ("DQ",), ("DV",)] if apart else [("DK", "DV"), ("DQ",)])


def test_blocks_of_kernels_that_read_statistics_where_they_walk():
    """Gradients of queries and of keys are two products into one sum each; the latter walk the statistics too."""
    types = {n: TensorType((16, 2048, 192), "bfloat16") for n in "QKV"}
    parts = partition(tilec.compile(VARIANTS["causal"].text).program, ("Q", "K", "V"), types, {}, True)
    lowered = lower(parts.backward.program, dict(parts.backward.types), {})
    found = recognise.chained(lowered.stages["flat"], lowered.types)
    chosen = {k.outputs[-1]: choose_chain_tiling(k, found.types, Setting()) for k in found.kernels.values()}
    assert (chosen["DQ"].step, chosen["DK"].step) == (32, 64)


@pytest.mark.parametrize("width, chains", [(3, 0), (8, 1)])
def test_rows_of_few_narrow_elements_are_no_chain(width, chains):
    types = {n: TensorType((2, 64, width), "bfloat16") for n in "QKV"}
    lowered = lower(tilec.compile(VARIANTS["causal"].text).program, types, {})
    assert len(recognise.chained(lowered.stages["flat"], lowered.types).kernels) == chains


@pytest.mark.parametrize("width, factor", [(72, 8), (40, 8), (36, 4), (64, None), (33, None)])
def test_heads_whose_width_16_does_not_divide_are_read_in_vectors(width, factor):
    source = """function (Q[B, N, D], K[B, M, D], V[B, M, D]) -> (O) {
        S[b, i, j : B, N, M] = sum(Q[b, i, d] * K[b, j, d]);
        L[b, i : B, N] = logsumexp(S[b, i, k]);
        O[b, i, d : B, N, D] = sum(exp(S[b, i, j] - L[b, i]) * V[b, j, d]);
    }"""
    specs = [tilec.spec((32, 1024, width), "bfloat16")] * 3
    text = tilec.compile(source).lower(*specs, backend="triton", target="sm_90").source()
    assert (f"K_s1 * {factor})" in text) if factor else ("(K_s1" not in text)


@pytest.mark.parametrize("width, step", [(256, 32), (64, 128)])
def test_steps_are_shorter_where_matrices_crowd_the_registers(width, step):
    """Sums of 256 columns take 128 registers of a thread, scores and two matrices of 64 columns the others."""
    text = """function (H[N, D], W[V, D], P[N, V], G[N, V]) -> (O) {
        S[n, v : N, V] = sum(H[n, d] * W[v, d]);
        O[n, d : N, D] = sum(G[n, v] * exp(S[n, v] - P[n, v]) * W[v, d]);
    }"""
    shapes = {"H": (32768, width), "W": (8192, width), "P": (32768, 8192), "G": (32768, 8192)}
    types = {n: TensorType(s, "bfloat16") for n, s in shapes.items()}
    lowered = lower(tilec.compile(text).program, types, {})
    found = recognise.chained(lowered.stages["flat"], lowered.types)
    (kernel,) = found.kernels.values()
    assert choose_chain_tiling(kernel, found.types, Setting()).step == step
