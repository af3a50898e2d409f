"""Which statements share a kernel: how many launches layers take, and what must stay apart."""

import re

import pytest
from support.allocated import allocated, shapes
from support.chains import COSINE
from support.layers import DROPOUT, LAYERS, inputs
from support.lowering import kernels, launches, specs

import tilec
from tilec.backends.triton.fusion.fuse_producers import whole_places
from tilec.ir.program import Call, value_accesses, walk
from tilec.ir.types import TensorType
from tilec.language import parse, show
from tilec.saving import partition

WIDTHS = (1000, 1023, 1024)


def backward_kernels(source, sizes, dtype):
    """Those of the backward pass of a call that keeps what it should."""
    program = parse(source)
    names = program.input_names()
    types = {name: TensorType(size, dtype) for name, size in zip(names, sizes, strict=True)}
    backward = partition(program, names, types, {}, True).backward
    f = tilec.Function(backward.program, source, backend="triton")
    return kernels(f, *(tilec.spec(backward.types[n].shape, dtype) for n in backward.program.input_names()))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.covering
def test_launches_of_layers(name, width):
    layer = LAYERS[name]
    f = tilec.compile(layer.source, backend="triton")
    given = specs(inputs(layer, 64, width))
    (out,) = f.lower(*given, target="sm_90").outputs
    assert len(kernels(f, *given)) == layer.kernels[0]
    assert len(kernels(f.grad(), *given, tilec.spec(out.shape, "float32"))) == layer.kernels[1]


@pytest.mark.parametrize("width", WIDTHS)
def test_launches_of_dropout_and_of_a_product_with_its_epilogue(width):
    f = tilec.compile(DROPOUT, backend="triton")
    given = [tilec.spec((64, width), "float32"), tilec.spec((64, width), "float32"), tilec.spec((), "int64")]
    assert len(kernels(f, *given)) == 1
    assert len(kernels(f.grad(), *given, tilec.spec((64, width), "float32"))) == 1
    source = (
        "function (X[M, K], W[K, N], B[N]) -> (Y) { H[m, n] = +(X[m, k] * W[k, n]); Y[m, n] = gelu(H[m, n] + B[n]); }"
    )
    f = tilec.compile(source, backend="triton")
    assert len(kernels(f, tilec.spec((64, 128)), tilec.spec((128, width)), tilec.spec((width,)))) == 1


def test_a_group_moves_no_more_than_any_program_must():
    layer = LAYERS["layer norm"]
    f = tilec.compile(layer.source, backend="triton")
    given = specs(inputs(layer, 64, 1000))
    cost = f.lower(*given, target="sm_90").cost()
    assert cost.bytes_moved == cost.least_bytes == 4 * (2 * 64 * 1000 + 2 * 1000)
    alone = tilec.compile(layer.source, backend="torch").lower(*given).cost()
    assert alone.bytes_moved > 1.9 * cost.bytes_moved and alone.flops == cost.flops


def test_groups_are_a_stage_that_prints_and_parses():
    layer = LAYERS["snake"]
    f = tilec.compile(layer.source, backend="triton").grad()
    given = specs(inputs(layer, 8, 100))
    lowered = f.lower(*given, given[0], target="sm_90")
    text = show(lowered.stages["grouped"])
    assert text.count("[[kernel(0)]]") == 2 and parse(text) == lowered.stages["grouped"]
    assert "[[" not in show(lowered.stages["flat"])


def test_the_program_that_runs_is_shown():
    """A write to one element of each row is carried out as a selection, by itself too."""
    f = tilec.compile("function (D[R], T[R], Z[R, V]) -> (G) { G[r, T[r] : R, V] = +(D[r]); }", backend="triton")
    lowered = f.lower(*map(tilec.spec, ((64,), (64,), (64, 512)), ("float32", "int64", "float32")), target="sm_90")
    text = show(lowered.stages["grouped"])
    assert "int64(T[r]) == v" in text and parse(text) == lowered.stages["grouped"]


def test_what_compares_a_neighbour_stays_apart():
    source = """function (X[64, 1000]) -> (Y, Z) {
        E[i, j : 64, 1000] = exp(X[i, j]);
        Y[i, j : 64, 1000] = E[i, j] == pad(E[i, j - 1], 0) ? 1.0 : 0.0;
        Z[i, j : 64, 1000] = X[i, j] * 2;
    }"""
    found = launches(source, (64, 1000))
    assert sorted(found) == [("E", "Z"), ("Y",)]


def test_columns_are_what_is_needed_again():
    source = """function (X[R, C]) -> (Y, Z) {
        Z[r, c] = X[r, c] * X[r, c];
        S[c] = +(X[r, c]);
        Y[r, c] = X[r, c] - S[c];
    }"""
    assert launches(source, (640, 1000)) == [("Z", "S", "Y")]


def test_statistics_of_rows_and_of_columns_are_walked_along_memory():
    """What reads a statistic along another axis needs it at no point of the group again."""
    source = """function (X[R, R], A[]) -> (Y) {
        S[r, c] = A[] * X[r, c];
        L[r] = logsumexp(S[r, c]);
        M[c] = logsumexp(S[r, c]);
        Y[] = sum(L[r] + M[r] - S[r, r]);
    }"""
    low = tilec.compile(source).lower(tilec.spec((3000, 3000)), tilec.spec(()), backend="triton", target="sm_90")
    (first, *_) = low.kernels
    assert {"L", "M"} <= set(first.statements)
    assert "col < (n_c" in low.source()


NORM_OF_COLUMNS = """function (X[N, C], G[C], DY[N, C]) -> (DX, DG) {
    P[n, c] = ACTIVATION;
    M[c] = +(P[n, c] * X[n, c]);
    DG[c] = +(P[n, c]);
    Q[n, c] = P[n, c] * G[c];
    DX[n, c] = Q[n, c] + M[c] * X[n, c];
}"""
COMPUTED_AGAIN = {  # by what is summed and read after the sums: types in which it is stored between the kernels
    "DY[n, c] * rsqrt(G[c])": (),
    "X[n, c] > 0 ? DY[n, c] : 0": (),
    "sigmoid(X[n, c]) * DY[n, c]": ("bfloat16",),  # which takes longer than reading two bytes
    "gelu(X[n, c]) * tanh(DY[n, c])": ("bfloat16",),
    "DY[n, c] == X[n, c] ? 1.0 : 0": ("bfloat16", "float32"),  # what was equal must be so again
    "rand(7, 256 * n + c) < 0.5 ? DY[n, c] : 0": ("bfloat16", "float32"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("body", COMPUTED_AGAIN)
def test_what_follows_sums_computes_again_what_others_read_for_them(body, dtype):
    f = tilec.compile(NORM_OF_COLUMNS.replace("ACTIVATION", body), backend="triton")
    made = f.lower(*(tilec.spec(shape, dtype) for shape in ((4096, 256), (256,), (4096, 256))), target="sm_90")
    assert (shapes(made).count((4096, 256)) == 1) == (dtype not in COMPUTED_AGAIN[body])


def test_what_would_read_as_much_again_is_stored():
    source = """function (X[N, C], Z[N, C], U[N, C]) -> (M, Y) {
        P[n, c] = X[n, c] + Z[n, c];
        M[c] = +(P[n, c] * U[n, c]);
        Y[n, c] = P[n, c] - M[c];
    }"""
    made = tilec.compile(source, backend="triton").lower(*[tilec.spec((4096, 256))] * 3, target="sm_90")
    assert shapes(made).count((4096, 256)) == 2
    # an output is there anyhow
    source = source.replace("(M, Y)", "(M, Y, P)").replace("X[n, c] + Z[n, c]", "relu(X[n, c])")
    made = tilec.compile(source, backend="triton").lower(*[tilec.spec((4096, 256))] * 3, target="sm_90")
    assert "P" in allocated(made) and "load(P" in made.source()


def test_what_needs_sums_over_rows_beside_those_of_rows_stays_apart():
    source = """function (X[N, N]) -> (Y) {
        A[i] = max(X[i, j]);
        B[j] = max(X[i, j]);
        Y[i, j] = X[i, j] - A[i] - B[j];
    }"""
    assert launches(source, (512, 512)) == [("A", "B"), ("B",), ("Y",)]


PAIRS = """function (A[N, D], B[N, D]) -> (Y) {
    S[i, j : N, N] = sum(A[i, d] * B[j, d]) / 8;
    L[i : N] = logsumexp(S[i, j]);
    Y[i : N] = L[i] - S[i, i];
}"""


def test_products_in_16_bits_are_scaled_by_what_reads_them():
    f = tilec.compile(PAIRS, backend="triton")
    made = f.lower(*[tilec.spec((1024, 512), "bfloat16")] * 2, target="sm_90").kernels
    assert [k.statements[-1] for k in made] == ["S_sum", "Y"]
    assert "times_inverse_(" not in made[-1].source.split("def Y_rows")[1]  # 8 is a power of two
    # what was rounded is rounded all the same, and what is stored for others stays
    assert ".to(tl.bfloat16).to(tl.float32)" in made[-1].source
    kept = tilec.compile(PAIRS.replace("(Y) {", "(Y, S) {"), backend="triton")
    names = [k.statements[-1] for k in kept.lower(*[tilec.spec((1024, 512), "bfloat16")] * 2, target="sm_90").kernels]
    assert "S" in names


def test_of_a_term_and_a_sum_one_exponential_is_taken():
    f = tilec.compile("function (X[N, M]) -> (L) { L[i : N] = logsumexp(X[i, j]); }", backend="triton")
    (kernel,) = f.lower(tilec.spec((512, 40000), "bfloat16"), target="sm_90").kernels
    walk = kernel.source.split("for first in")[1].split("highest =")[0]
    assert walk.count("term_(") == 1


def test_memory_runs_along_columns_that_a_view_divides():
    """Rows of 192 seen as 3 x 64: a block holds a few of them, not the 64 that it would read against memory's order."""
    source = """function (X[N, P, C], G[C], B[C]) -> (Y) {
        Z = reshape(X, N, P, 3, C / 3);
        A = reshape(G, 3, C / 3);
        D = reshape(B, 3, C / 3);
        M[n, g : N, 3] = mean(Z[n, p, g, c]);
        O[n, p, g, c : N, P, 3, C / 3] = (Z[n, p, g, c] - M[n, g]) * A[g, c] + D[g, c];
        Y = reshape(O, N, P, C);
    }"""
    shapes = [tilec.spec(s, "bfloat16") for s in ((32, 3136, 192), (192,), (192,), (32, 3136, 192))]
    text = tilec.compile(source, backend="triton").grad().lower(*shapes, target="sm_90").source()
    assert "DA_rows" in text and "BM=8, BN=256" in text and "BM=64" not in text


def test_steps_between_the_last_variables_places_stand_beside_it():
    """`I[4*x + i]`: a program reads whole lines, all values of i, although y stands between them in the output."""
    source = "function (I[H, W]) -> (O) { O[j, i, y, x : 4, 4, H / 4, W / 4] = I[4*y + j, 4*x + i]; }"
    text = tilec.compile(source, backend="triton").lower(tilec.spec((512, 256), "bfloat16"), target="sm_90").source()
    assert "i = row % (n_i * 4)" in text


def test_whole_places_are_asked_for_once_each():
    (reader,) = parse("function (T[8, 8]) -> (Y) { Y[i, j : 15, 15] = T[i/2, j/2]; }").statements
    types = {"T": TensorType((8, 8), "float32"), "Y": TensorType((15, 15), "float32")}
    (access,) = value_accesses(reader)
    condition = whole_places(access, reader, types)
    assert sum(isinstance(e, Call) and e.function == "eq" for e in walk(condition)) == 2


def test_rows_before_a_chain_and_rows_after_it_are_two_kernels():
    """What lies between is a chain, of which no statement reads what its kernel reads."""
    f = tilec.compile(COSINE, backend="triton").grad()
    given = [tilec.spec((64, 1024, 64), "bfloat16")] * 4
    found = kernels(f, *given)
    rows = [[line.split("[")[0] for line in lines] for lines in found if any("_sum" in line for line in lines)]
    assert len(found) == 7 and all(any(name in lines for lines in rows) for name in ("A", "C", "DQ", "DK")), rows


NORMED = """function (X[M, K], U[K, N], C[N], R[M, N]) -> (Y) {
    S[i, j : M, N] = sum(X[i, k] * U[k, j]) + C[j] + R[i, j];
    V[i : M] = mean(S[i, j] * S[i, j]);
    Y[i, j : M, N] = S[i, j] * rsqrt(V[i]);
}"""


def test_what_stands_between_a_product_and_statistics_is_in_the_kernel_of_these():
    f = tilec.compile(NORMED, backend="triton")
    given = [tilec.spec(s, "bfloat16") for s in ((4096, 1024), (1024, 4096), (4096,), (4096, 4096))]
    assert len(kernels(f, *given)) == 2


MOVING = """function (A[N, D], B[N, D]) -> (C) {
    M[d : D] = mean(A[n, d]);
    P[d : D] = mean(B[n, d]);
    X[n, d : N, D] = (A[n, d] - M[d]) * rsqrt(mean((A[n', d] - M[d]) * (A[n', d] - M[d])));
    Y[n, d : N, D] = (B[n, d] - P[d]) * rsqrt(mean((B[n', d] - P[d]) * (B[n', d] - P[d])));
    C[d, e : D, D] = sum(X[n, d] * Y[n, e]);
}"""
RELATED = """function (Q[B, N, E], K[B, N, E], V[B, N, E], G[E]) -> (O) {
    A[b, i, e : B, N, E] = Q[b, i, e] * rsqrt(mean(Q[b, i, d] * Q[b, i, d])) * G[e];
    S[b, i, j : B, N, N] = sum(A[b, i, e] * K[b, j, e]);
    L[b, i : B, N] = logsumexp(S[b, i, j]);
    O[b, i, e : B, N, E] = sum(exp(S[b, i, j] - L[b, i]) * V[b, j, e]);
}"""


@pytest.mark.parametrize("source, sizes, dtype, members", [
    (MOVING, 2 * [(2000, 2048)], "float32", {"DA": "DX_mean", "DB": "DY_mean"}),
    (RELATED, [*3 * [(32, 2048, 128)], (128,)], "bfloat16", {"DQ": "DA_mean"}),
])  # fmt: skip
def test_a_normalisation_s_gradient_is_one_kernel_whatever_else_reads_what_it_computes_again(
    source, sizes, dtype, members
):
    """The normalised tensor is computed again for a product that the cotangent comes from: it stays outside."""
    found = backward_kernels(source, sizes, dtype)
    for name, statistic in members.items():
        (own,) = [lines for lines in found if name in lines]
        assert any(line.startswith(statistic) for line in own), own


def test_a_sum_of_two_terms_of_which_one_is_elementwise_is_one_kernel():
    source = """function (P[B, N, E], Z[B, E], W[B, N], U[B, N, F], V[B, E, F]) -> (Y) {
        T[b, i, e : B, N, E] = W[b, i] * Z[b, e];
        S[b, i, e : B, N, E] = sum(U[b, i, f] * V[b, e, f]);
        X = T + S;
        Y = X * P;
    }"""
    f = tilec.compile(source)
    given = [tilec.spec(s, "bfloat16") for s in ((8, 512, 64), (8, 64), (8, 512), (8, 512, 64), (8, 64, 64))]
    text = f.lower(*given, backend="triton", target="sm_90").source()
    assert (8, 512, 64) in shapes(text) and "T" not in allocated(text)


def test_one_element_that_one_other_reads_has_a_kernel():
    source = "function (A[], X[N]) -> (U, Y) { T[] = exp(A[]); U[] = pad(T[], 0.5) + A[]; Y[] = +(X[i]); }"
    made = tilec.compile(source, backend="triton").lower(tilec.spec(()), tilec.spec((4,)), target="sm_90")
    assert {s for k in made.kernels for s in k.statements} >= {"U", "Y"}


RESPONSE = """function (X[N, P, C], G[C], B[C]) -> (Y) {
    S[n, c : N, C] = sqrt(sum(X[n, p, c] * X[n, p, c]) + 0.000001);
    M[n : N] = mean(S[n, c]);
    Y[n, p, c : N, P, C] = G[c] * X[n, p, c] * S[n, c] + B[c] + X[n, p, c] * X[n, p, c] / (M[n] + 0.000001);
}"""


@pytest.mark.parametrize("rows, together", [(32, False), (2048, True)])
def test_few_long_rows_are_walked_along_memory(rows, together):
    """A kernel of 32 programs has a quarter of the device, however many small statements it spares a launch."""
    found = backward_kernels(RESPONSE, [(rows, 784, 768), (768,), (768,)], "bfloat16")
    (own,) = [lines for lines in found if "DX" in lines]
    assert any(line.startswith("DM_total") for line in own) == together, found


def test_maps_take_blocks_of_both_fast_axes():
    """Memory runs along the first axis of one tensor and the last of another."""
    f = tilec.compile("function (X[A, B, C]) -> (Y) { Y[i, j, k : C, B, A] = X[k, j, i] + 1; }")
    text = f.lower(tilec.spec((300, 400, 500)), backend="triton", target="sm_90").source()
    assert "BM=32, BN=32" in text
    assert "    i = row % n_i\n" in text.replace("(n_i * 4)", "n_i")  # neighbours in a block's rows


@pytest.mark.parametrize(("index", "block"), [("D[m], c", 1024), ("D[m, c], c", 256)])
def test_rows_at_computed_places_are_read_as_other_rows(index: str, block: int) -> None:
    source = f"function (D[M, C], A[V, C], B[V, C]) -> (Y) {{ Y[m, c] = A[{index}] * B[{index}]; }}"
    source = source.replace("D[M, C]", "D[M]") if "D[m]" in index else source
    places = tilec.spec((4096,) if "D[m]" in index else (4096, 64), "int64")
    specs = places, tilec.spec((900, 64)), tilec.spec((900, 64))
    text = tilec.compile(source).lower(*specs, backend="triton", target="sm_90").source()
    rows, columns = map(int, re.search(r"BM=(\d+), BN=(\d+)", text).groups())
    assert rows * columns == block


def test_products_know_of_sizes_that_8_divides():
    """Of 1000 terms Triton knows no factor, and would read them one by one."""
    source = "function (A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = sum(exp(A[i, k]) * B[k, j]); }"
    f = tilec.compile(source)
    texts = [
        f.lower(tilec.spec((m, k)), tilec.spec((k, k)), backend="triton", target="sm_90").kernels[-1].source
        for m, k in ((1000, 1000), (1001, 1000), (1000, 1016), (1000, 1012))
    ]
    assert "(n_k * 8)" in texts[0] and texts[0] == texts[1] == texts[2] != texts[3]  # rows are no vectors


STATISTICS = {  # several over channels, which are not what memory runs along
    "cosines": (
        "X[N, C, W], Y[N, C, W]",
        ("+(X[n, c, x] * Y[n, c, x])", "+(X[n, c, x] * X[n, c, x])", "+(Y[n, c, x] * Y[n, c, x])"),
    ),
    "mean and greatest": ("X[N, C, W]", ("mean(X[n, c, x])", ">(X[n, c, x])")),
    "computed places": (
        "X[N, C, W], Y[N, C, W], I[N, W]",
        ("+(X[n, c, I[n, x]] * Y[n, c, x])", "+(abs(X[n, c, I[n, x]]) + Y[n, c, x])"),
    ),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_across_memory_share_a_walk(name):
    inputs, bodies = STATISTICS[name]
    outputs = [f"S{k}[n, x : N, W] = {body};" for k, body in enumerate(bodies)]
    names = ", ".join(f"S{k}" for k in range(len(bodies)))
    f = tilec.compile(f"function ({inputs}) -> ({names}) {{ {' '.join(outputs)} }}")
    for channels, form in ((48, "BN=1,"), (48 * 48, "BN=")):
        shape = tilec.spec((64, channels, 4096))
        lowered = f.lower(*(tilec.spec((64, 4096), "int64") if i == 2 else shape for i in range(len(f.program.inputs))),
                          backend="triton", target="sm_90")  # fmt: skip
        (kernel,) = lowered.kernels
        assert form in lowered.source(), kernel.name


def test_memory_runs_along_what_is_not_data():
    """Beside an element at a place that a tensor names is anything; a window's places overlap through `abs` too."""
    f = tilec.compile("function (X[N, T, V], Y[N, T]) -> (P) { P[n : N] = +(X[n, t, Y[n, t]]); }")
    picked = f.lower(tilec.spec((8, 1000, 320)), tilec.spec((8, 1000), "int64"), backend="triton", target="sm_90")
    assert "BM=1, BR=1024" in picked.source(), "as Y lies"
    f = tilec.compile("function (X[N, W], K[5]) -> (O) { O[n, x : N, W] = +(X[n, abs(x + i - 2)] * K[i]); }")
    reflected = f.lower(tilec.spec((512, 4000)), tilec.spec((5,)), backend="triton", target="sm_90")
    assert "UNROLL=5" in reflected.source(), "point by point"


def test_no_rows_of_what_stays_apart():
    """The one row of S meets the 50 of the gradient, which has a kernel of its own: S is not computed 50 times."""
    source = """function (X[2, 1, 1], Y[2, 50, 1], G[50]) -> (O) {
        S[h, i, j : 2, 1, 50] = sum((Y[h, j, d] - X[h, i, d]) * (Y[h, j, d] - X[h, i, d])) + 0.3;
        O[h, i, d : 2, 1, 1] = +(i >= j ? G[i] * Y[h, j, d] * log(S[h, i, j]));
    }"""
    given = [tilec.spec(s, "float32") for s in ((2, 1, 1), (2, 50, 1), (50,), (2, 1, 1))]
    first, _ = tilec.compile(source, backend="triton").grad(("G",)).lower(*given, target="sm_90").kernels
    assert first.name == "S_rows" and "n_i" not in first.source
