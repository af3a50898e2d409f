"""How rows are spread over programs."""

import re

import pytest

import tilec

SOFTMAX = """function (X[N, C]) -> (Y) {
    M[n : N] = max(X[n, c]); E[n, c : N, C] = exp(X[n, c] - M[n]); S[n : N] = sum(E[n, c]);
    Y[n, c : N, C] = E[n, c] / S[n]; }"""
SOFTMAX_GRADIENT = """function (Y[N, C], G[N, C]) -> (X) {
    D[n : N] = sum(Y[n, c] * G[n, c]); X[n, c : N, C] = Y[n, c] * (G[n, c] - D[n]); }"""

TRANSPOSED = """function (X[N, C]) -> (Y, Z) {
    Y[c, n : C, N] = X[n, c]; Z[c, n : C, N] = X[n, c] - X[0, c]; }"""


def blocks(source, *given):
    text = tilec.compile(source, backend="triton").lower(*given, target="sm_90").source()
    return [tuple(map(int, found)) for found in re.findall(r"BM=(\d+), BN=(\d+), num_warps=(\d+)", text)]


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "alone"),
    [
        (2**18, 91, "bfloat16", True),
        (2**18, 91, "float32", True),
        (2**16, 251, "bfloat16", True),
        (2**18, 96, "bfloat16", False),  # vectors: a warp has rows of its own as it is
        (2**16, 512, "bfloat16", False),
        (2**18, 31, "float32", False),  # no wider than a warp
        (2**15, 1023, "bfloat16", False),
        (512, 91, "bfloat16", False),  # few programs
    ],
)
def test_short_rows_that_begin_anywhere_have_a_warp(rows, columns, dtype, alone):
    ((down, wide, warps),) = blocks(SOFTMAX, tilec.spec((rows, columns), dtype))
    assert (warps == 1) == alone and (not alone or down * wide == 1024)


@pytest.mark.parametrize(("columns", "alone"), [(91, True), (251, False)])
def test_rows_of_two_tensors_that_a_warp_takes_are_shorter(columns, alone):
    given = [tilec.spec((2**16, columns), "bfloat16")] * 2
    ((_, _, warps),) = blocks(SOFTMAX_GRADIENT, *given)
    assert (warps == 1) == alone


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "wide"),
    [
        (8192, 16, "float32", 32),
        (8192, 16, "bfloat16", 32),
        (8192, 24, "float32", 32),
        (100, 16, "float32", 32),  # no shorter than memory's lines
        (2**18, 16, "float32", 256),  # enough programs, of wider blocks
        (2**21, 16, "float32", 2048),
    ],
)
def test_few_programs_share_the_columns_where_memory_runs_along_the_rows(rows, columns, dtype, wide):
    ((_, found, _),) = blocks(TRANSPOSED, tilec.spec((rows, columns), dtype))
    assert found == wide


SCALED = "function (X[N, C], G[C]) -> (Y) { Y[n, c : N, C] = X[n, c] * G[c] + X[n, c]; }"
ADDED = "function (X[N, C], R[N, C], G[C]) -> (Y) { Y[n, c : N, C] = X[n, c] + G[c] * R[n, c]; }"
SCALED_SAMPLES = "function (X[B, N, C], S[B, C], G[C]) -> (Y) { Y[b, n, c : B, N, C] = X[b, n, c] * S[b, c] + G[c]; }"
SCALED_ROWS = "function (X[N, C], G[N]) -> (Y) { Y[n, c : N, C] = X[n, c] * G[n] + X[n, c]; }"


@pytest.mark.parametrize(
    ("source", "shapes", "dtype", "rows", "warps"),
    [
        (SCALED, [(2**17, 384), (384,)], "bfloat16", 4, 2),
        (SCALED, [(2**17, 512), (512,)], "float16", 4, 2),
        (ADDED, [(2**17, 384), (2**17, 384), (384,)], "bfloat16", 2, 2),
        (SCALED_SAMPLES, [(32, 2**12, 384), (32, 384), (384,)], "bfloat16", 4, 2),
        (SCALED, [(2**10, 384), (384,)], "bfloat16", 2, 4),  # few elements a program
        (SCALED, [(2**17, 256), (256,)], "bfloat16", 16, 4),  # a warp alone
        (SCALED, [(2**17, 128), (128,)], "float32", 8, 4),
        (SCALED, [(2**17, 1024), (1024,)], "bfloat16", 4, 4),  # eight elements a thread, as of the block
        (SCALED, [(2**17, 384), (384,)], "float32", 2, 4),  # four, as of the block
        (SCALED, [(2**17, 385), (385,)], "bfloat16", 2, 1),  # rows begin anywhere: single elements of both
        (SCALED_ROWS, [(2**17, 512), (2**17,)], "bfloat16", 8, 4),  # nothing has the columns alone
    ],
)
def test_threads_read_as_much_of_a_weight_as_of_what_it_weighs(source, shapes, dtype, rows, warps):
    ((found, _, of_warps),) = blocks(source, *(tilec.spec(shape, dtype) for shape in shapes))
    assert (found, of_warps) == (rows, warps)


TWO_SCALED_ROWS = """function (X[N, C], G[N]) -> (Y, Z) {
    Y[n, c : N, C] = X[n, c] * G[n]; Z[n, c : N, C] = X[n, c] / G[n]; }"""


@pytest.mark.parametrize(
    ("columns", "wide"),
    [(384, 128), (768, 256), (1152, 256), (512, 512), (500, 512), (640, 128), (320, 512), (96, 128)],
)
@pytest.mark.parametrize(("source", "elements"), [(SCALED_ROWS, 1024), (TWO_SCALED_ROWS, 2048)])
def test_blocks_fill_the_columns(source, elements, columns, wide):
    """Of a map, and of two in one kernel; as wide as a row where no block of 128 columns or more fills it."""
    ((down, found, _),) = blocks(source, tilec.spec((2**15, columns)), tilec.spec((2**15,)))
    assert found == wide and down * found == elements


BIASED = "function (X[N, C], B[C]) -> (Y) { Y = gelu(X + B); }"


@pytest.mark.parametrize(
    ("columns", "down", "wide"),
    [
        (4927, 4, 1024),
        (5120, 4, 1024),
        (6144, 2, 2048),
        (2560, 1, 4096),
        (1280, 2, 2048),
        (4096, 1, 4096),
        (384, 2, 512),
    ],
)
def test_blocks_fill_the_columns_beside_a_bias(columns, down, wide):
    """No narrower than 1024 columns: threads read as many elements of the bias at once as of a row."""
    (found,) = blocks(BIASED, tilec.spec((8192, columns), "bfloat16"), tilec.spec((columns,), "bfloat16"))
    assert found[:2] == (down, wide)


@pytest.mark.parametrize(("taps", "elements"), [(3, 2048), (4, 1024), (7, 512)])
def test_a_thread_has_fewer_elements_the_more_of_them_load(taps, elements):
    """Registers of sixteen elements with many neighbours would be spilled."""
    terms = "+".join(f"exp(X[i, (j + {k}) % M])" for k in range(taps))
    source = f"function (X[N, M]) -> (Y, Z) {{ Y[i, j : N, M] = {terms}; Z = Y * Y; }}"
    ((down, across, _),) = blocks(source, tilec.spec((4096, 4096)))
    assert down * across == elements


@pytest.mark.parametrize(("rows", "programs"), [(65536, 256), (2**20, 1024)])
def test_few_gathered_elements_are_spread(rows, programs):
    f = tilec.compile("function (X[N, D], T[N]) -> (Y) { Y[i : N] = X[i, T[i]]; }", backend="triton")
    text = f.lower(tilec.spec((rows, 64)), tilec.spec((rows,), "int64"), target="sm_90").source()
    assert f"Y_kernel[({programs}, 1, 1)]" in text


def test_many_sums_over_rows_along_which_memory_runs_stay_in_registers():
    sums = [f"S{k}[c : C] = +(D[c, n] * max(X[n, c], {k}.0));" for k in range(4)]
    f = tilec.compile(f"function (D[C, N], X[N, C]) -> (S0, S1, S2, S3) {{ {' '.join(sums)} }}", backend="triton")
    text = f.lower(*(tilec.spec(shape, "float16") for shape in ((96, 16245), (16245, 96))), target="sm_90").source()
    found = re.findall(r"S3_rows.*BM=(\d+), BN=(\d+), num_warps=(\d+)", text)
    assert all(4 * int(down) * int(wide) <= 96 * 32 * int(warps) for down, wide, warps in found) and found, text


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "elements"),
    [
        (10**5, 17, "bfloat16", 1024),
        (10**6, 3, "bfloat16", 1024),
        (10**5, 16, "bfloat16", 2048),
        (300, 17, "float32", 1024),
    ],
)
def test_blocks_of_rows_no_wider_than_a_warp(rows, columns, dtype, elements):
    """Rows that begin anywhere are read element by element: of smaller blocks more are under way."""
    ((down, wide, _),) = blocks(SOFTMAX, tilec.spec((rows, columns), dtype))
    assert down * wide == elements


def test_walks_that_end_between_vectors_read_what_comes_before_in_vectors():
    f = tilec.compile("function (X[N], T[N]) -> (Y) { Y[] = sum(abs(X[i] - T[i])); }", backend="triton")
    for size, peeled in ((2**20 + 3, True), (2**20, False)):
        x = tilec.spec((size,))
        assert ("red_stop" in f.lower(x, x, target="sm_90").source()) == peeled


def test_what_is_read_at_places_counts_as_often_as_it_is_read():
    """Lanes run along the columns of what is gathered, though the table of places is larger."""
    f = tilec.compile(
        "function (W[R, K], C[R, K], X[V, D]) -> (Y) { Y[r, d : R, D] = +(W[r, k] * X[C[r, k], d]); }", backend="triton"
    )
    given = tilec.spec((73553, 23)), tilec.spec((73553, 23), "int64"), tilec.spec((35307, 45))
    assert "tl.static_range(UNROLL)" in f.lower(*given, target="sm_90").source()


def test_warps_share_a_row_of_points_that_are_combined():
    f = tilec.compile("function (X[M, D], T[M], Z[V]) -> (Y) { Y[T[m], d : V, D] = +(X[m, d]); }", backend="triton")
    for width, warps in ((292, 2), (656, 1)):
        given = tilec.spec((32488, width), "bfloat16"), tilec.spec((32488,), "int64"), tilec.spec((31137,))
        source = f.lower(*given, target="sm_90").source()
        launch = next(line for line in source.splitlines() if "Y_segments[(" in line)
        assert f"num_warps={warps}" in launch


@pytest.mark.parametrize(
    ("columns", "dtype", "block", "hints"),
    [
        (50304, "float32", (1, 8192, 32), True),  # a cache holds a row of each multiprocessor
        (20001, "float32", (1, 4096, 8), True),  # rows begin anywhere: more programs, all of whose rows it holds
        (50257, "float32", (1, 4096, 8), False),  # and here does not
        (50257, "bfloat16", (1, 4096, 16), True),
    ],
)
def test_long_rows_that_are_walked_twice(columns, dtype, block, hints):
    text = tilec.compile(SOFTMAX, backend="triton").lower(tilec.spec((4096, columns), dtype), target="sm_90").source()
    assert blocks(SOFTMAX, tilec.spec((4096, columns), dtype)) == [block] and ("evict_last" in text) == hints


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_long_rows_of_two_tensors_have_more_warps(dtype):
    assert blocks(SOFTMAX_GRADIENT, *[tilec.spec((4096, 50257), dtype)] * 2) == [(1, 4096, 16)]


@pytest.mark.parametrize(("body", "warps"), [("sin(X[n, c] * A[n]) * G[n, c]", 2), ("X[n, c] * A[n] * G[n, c]", 4)])
def test_threads_have_more_sines_under_way(body, warps):
    text = f"""function (X[N, C], G[N, C], A[N]) -> (S, T) {{
        S[n : N] = sum({body}); T[n : N] = sum(G[n, c] * G[n, c]); }}"""
    given = tilec.spec((8192, 8192)), tilec.spec((8192, 8192)), tilec.spec((8192,))
    assert blocks(text, *given) == [(1, 1024, warps)]


@pytest.mark.parametrize(
    ("body", "rows", "together"),
    [
        ("k == 0 ? M[i] / V[i] : (k == 1 ? M[i] : V[i])", 3, True),  # the states of an optimiser, one beside the other
        ("k == 0 ? M[i] / V[i] : (k == 1 ? M[i] : V[i])", 9, False),
        ("M[i] * C[k, i] + V[i] * D[k, i] * C[k, i + 1] / D[k, i + 1]", 3, False),  # most has rows
    ],
)
def test_few_rows_that_read_the_same_columns_share_a_block(body, rows, together):
    source = f"""function (A[N], B[N], C[K, N], D[K, N]) -> (Y) {{
        S[] = sum(A[i] * A[i]); M[i : N] = A[i] * S[] + 0.9 * B[i]; V[i : N] = M[i] * M[i] + B[i];
        Y[k, i : K, N] = {body}; }}"""
    n = 10**7 + 1
    *_, (down, wide, _) = blocks(source, *map(tilec.spec, ((n,), (n,), (rows, n), (rows, n))))
    assert (down >= rows) == together and down * wide <= 2048


PATCHES = """function (I[N, H, W, C]) -> (O) {
    O[n, y, x, j, i, c : N, H - 2, W - 2, 3, 3, C] = I[n, y + j, x + i, c]; }"""
GATHERED = "function (X[N, D], T[M]) -> (Y) { Y[m, d : M, D] = X[T[m], d]; }"


@pytest.mark.parametrize(
    ("source", "shapes", "dtypes", "found"),
    [
        (PATCHES, [(32, 114, 80, 39)], ["bfloat16"], (8, 128, 1)),
        (PATCHES, [(32, 114, 80, 39)], ["float32"], (8, 128, 1)),
        (PATCHES, [(32, 114, 80, 40)], ["bfloat16"], (32, 128, 4)),  # whole vectors
        (GATHERED, [(157264, 257), (232724,)], ["bfloat16", "int64"], (8, 128, 1)),
        (GATHERED, [(157264, 256), (232724,)], ["bfloat16", "int64"], (16, 256, 4)),
        (GATHERED, [(100, 257), (100,)], ["bfloat16", "int64"], (2, 512, 4)),  # few elements
    ],
)
def test_one_warp_stores_short_rows_that_begin_anywhere(source, shapes, dtypes, found):
    ((down, across, warps),) = blocks(source, *map(tilec.spec, shapes, dtypes))
    assert (down, across, warps) == found
