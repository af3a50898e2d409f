"""Kernels of losses: what they store, and how they walk."""

import re

import pytest
from support.allocated import allocated, shapes

import tilec
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.saving import partition

SUMS_OF_ALL = {  # a sum over rows and columns that reads what its own kernel computes at each point, and of each row
    "divergence": """function (A[N, D], C[N, D]) -> (Y) {
        P = A / 4; Q = C / 4; L[n : N] = logsumexp(P[n, d]); M[n : N] = logsumexp(Q[n, d]);
        Y[] = sum(exp(Q[n, d] - M[n]) * (Q[n, d] - M[n] - P[n, d] + L[n])) / N; }""",
    "entropy": """function (A[N, D], C[N, D]) -> (Y) {
        L[n : N] = logsumexp(A[n, d]); P[n, d : N, D] = A[n, d] - L[n];
        Y[] = sum(exp(P[n, d]) * P[n, d] * C[n, d]); }""",
    "distance": """function (A[N, D], C[N, D]) -> (Y) {
        S[n : N] = rsqrt(sum(A[n, d] * A[n, d])); B[n, d : N, D] = A[n, d] * S[n];
        Y[] = sum(abs(B[n, d] - C[n, d])); }""",
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", SUMS_OF_ALL)
def test_what_a_sum_of_all_points_reads_of_its_own_kernel_is_not_stored(name, dtype):
    f = tilec.compile(SUMS_OF_ALL[name], backend="triton")
    lowered = f.lower(tilec.spec((4096, 1000), dtype), tilec.spec((4096, 1000), dtype), target="sm_90")
    rows, _ = lowered.kernels
    assert len(rows.statements) > 2
    assert len(allocated(lowered)) == 2  # of the sums of rows, and of all


@pytest.mark.parametrize("loss", ["L[n] - X[n, T[n]]", "L[n] - 0.9 * X[n, T[n]] - 0.1 * A[n]"])
def test_a_number_that_all_rows_share_does_not_say_what_rows_are(loss):
    """The count that the mean divides by adds up over samples: the gradient walks along classes all the same."""
    source = f"""function (X[N, C], T[N]) -> (Y) {{
        L[n : N] = logsumexp(X[n, c]); A[n : N] = mean(X[n, c]); Y[] = mean({loss}); }}"""
    types = {"X": TensorType((4096, 8192), "bfloat16"), "T": TensorType((4096,), "int64")}
    backward = partition(parse(source), ("X",), types, {}, True).backward
    f = tilec.Function(backward.program, source, backend="triton")
    given = (backward.types[name] for name in backward.program.input_names())
    text = f.lower(*(tilec.spec(t.shape, t.dtype) for t in given), target="sm_90").source()
    (rows, columns), *_ = re.findall(r"DX_rows\[.*BM=(\d+), BN=(\d+)", text)
    assert re.search(r"col_in = col < n_\w+", text) and int(rows) * int(columns) <= 4096


def test_what_the_epilogue_of_a_product_can_compute_again_is_not_stored():
    """The gradient of a squared polynomial reads it beside a product's sums: from what it is made of."""
    source = """function (X[M, K], A[K, H], C[H, N]) -> (Y) {
        P[m, h : M, H] = +(X[m, k] * A[k, h]); R = P * (P + 1); U = R * R; Y[m, n : M, N] = +(U[m, h] * C[h, n]); }"""
    program = parse(source)
    types = {n: TensorType((1024, 1024), "bfloat16") for n in program.input_names()}
    backward = partition(program, program.input_names(), types, {}, True).backward
    f = tilec.Function(backward.program, source, backend="triton")
    given = (backward.types[name] for name in backward.program.input_names())
    text = f.lower(*(tilec.spec(t.shape, t.dtype) for t in given), target="sm_90").source()
    assert re.search(r"# DP\[.*P\[i0, i1\] \* \(P\[i0, i1\] \+ 1\)", text) and "R" not in allocated(text)


@pytest.mark.parametrize("scores", ["30 * tanh(X / 30)", "X / 0.07", "silu(X)"])
def test_scores_that_a_mean_counts_are_computed_where_they_are_read(scores):
    """The gradient's count of samples asks for the shape of the scores alone, and waits for no kernel of theirs."""
    source = f"""function (X[N, C], T[N]) -> (Y) {{
        Z = {scores}; L[n : N] = logsumexp(Z[n, c]); Y[] = mean(L[n] - Z[n, T[n]]); }}"""
    types = {"X": TensorType((4096, 8192), "bfloat16"), "T": TensorType((4096,), "int64")}
    backward = partition(parse(source), ("X",), types, {}, True).backward
    f = tilec.Function(backward.program, source, backend="triton")
    given = (backward.types[name] for name in backward.program.input_names())
    text = f.lower(*(tilec.spec(t.shape, t.dtype) for t in given), target="sm_90").source()
    assert "Z" not in allocated(text) and shapes(text).count((4096, 8192)) == 1


def test_what_others_wait_for_alone_stands_apart():
    """A small value that another kernel needs before the gradient's keeps nothing else out of that."""
    source = """function (S[N, N], T[N]) -> (Y) {
        Z[i, j : N, N] = i == j ? -1000.0 : S[i, j]; L[i : N] = logsumexp(Z[i, j]);
        K[i : N] = sum(T[i] == T[j] ? 1.0 : 0.0); P[i : N] = sum(T[i] == T[j] ? S[i, j] - L[i] : 0.0);
        Y[] = -mean(P[i] / K[i]); }"""
    types = {"S": TensorType((8192, 8192), "bfloat16"), "T": TensorType((8192,), "int64")}
    backward = partition(parse(source), ("S",), types, {}, True).backward
    f = tilec.Function(backward.program, source, backend="triton")
    given = (backward.types[name] for name in backward.program.input_names())
    text = f.lower(*(tilec.spec(t.shape, t.dtype) for t in given), target="sm_90").source()
    assert shapes(text).count((8192, 8192)) == 1


def test_a_mixture_stores_scores_and_their_gradient_alone():
    """What one kernel would store for the next, under a guard, that one computes from what it reads anyhow."""
    f = tilec.compile("""function (H[N, K, D], W[V, D], Pi[N, K]) -> (P) {
        S[n, k, v] = sum(H[n, k, d] * W[v, d]);
        A[n, k] = logsumexp(S[n, k, v]);
        P[n, v] = logsumexp(Pi[n, k] + S[n, k, v] - A[n, k]);
    }""")
    specs = [tilec.spec(s, "bfloat16") for s in ((512, 8, 256), (10000, 256), (512, 8), (512, 10000))]
    source = f.grad().lower(*specs, backend="triton", target="sm_90").source()
    assert shapes(source).count((512, 8, 10000)) == 2


@pytest.mark.parametrize("body", ["-P[n] * P[n]", "0.3 * P[n]", "-P[n] * P[n] / 7"])
def test_what_follows_a_sum_of_all_is_computed_by_its_launch(body):
    """The number that all terms share, and that of the terms, are statements of their own."""
    f = tilec.compile(f"function (P[N]) -> (Y) {{ Y[] = mean({body}) + 1; }}")
    for n, kernels in ((300, 1), (2**20, 2)):
        assert len(f.lower(tilec.spec((n,), "float32"), target="sm_90").kernels) == kernels
