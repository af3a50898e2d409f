"""Products of small matrices: sums of few terms are written out, and tiles that are mostly padding are no library's."""

import pytest

import tilec

TURNED = """function (X[B, N, 3], R[B, 3, 3], T[B, 3], Y[B, N, 3]) -> (D) {
    Z[b, n, i] = sum(R[b, i, j] * X[b, n, j]) + T[b, i];
    D[b, n] = sum((Z[b, n, i] - Y[b, n, i]) * (Z[b, n, i] - Y[b, n, i]));
}"""


def specs(*shapes: tuple[int, ...], dtype: str = "float32") -> list:
    return [tilec.spec(s, dtype) for s in shapes]


def test_points_are_turned_and_compared_in_one_kernel() -> None:
    lowered = tilec.compile(TURNED).lower(*specs((64, 65536, 3), (64, 3, 3), (64, 3), (64, 65536, 3)), target="sm_90")
    assert len(lowered.kernels) == 1 and "matmul" not in (text := lowered.source()) and "bmm" not in text


@pytest.mark.parametrize(
    "text, shapes, library",
    [
        ("G[b, i, j] = sum(D[b, n, i] * X[b, n, j])", ((64, 65536, 3), (64, 65536, 3)), False),
        ("Y[b, i, j] = sum(A[b, i, k] * X[b, k, j])", ((100000, 6, 6), (100000, 6, 6)), False),
        ("Y[b, i, j] = sum(A[b, i, k] * X[b, k, j])", ((100, 64, 64), (100, 64, 64)), True),
        ("Y[i, j] = sum(A[i, k] * X[k, j])", ((8, 4096), (4096, 4096)), True),
    ],
)
def test_which_products_are_a_library_s(text: str, shapes: tuple, library: bool) -> None:
    lowered = tilec.compile(text).lower(*specs(*shapes), target="sm_90")
    assert (not lowered.kernels) == library, lowered.source()


def test_a_product_by_part_of_a_matrix_is_no_convolution() -> None:
    """Half of the rows of a gate's weights: a convolution without a window, of as many channels as there are rows."""
    f = tilec.compile("function (X[N, D], W[E, D], S[C]) -> (Y) { Y[n, c : N, C] = +(X[n, d] * W[c, d]); }")
    text = f.lower(*specs((8192, 512), (1024, 512), (512,), dtype="bfloat16"), target="sm_90").source()
    assert "convolution" not in text


TREES = """function (C[N, M, D], V[N, M, L]) -> (Y) {
    W[n, m, l : N, M, L] = prod(((l >> d) & 1) == 1 ? C[n, m, d] : 1 - C[n, m, d]);
    Y[n] = sum(W[n, m, l] * V[n, m, l]);
}"""


def test_products_of_all_factors_but_one_are_stored_nowhere() -> None:
    """The gradient of soft decision trees: six times as many elements as there are leaves, of five factors each."""
    f = tilec.compile(TREES).grad("C")
    lowered = f.lower(*specs((64, 32, 6), (64, 32, 64), (64,)), target="sm_90")
    tensors = {s.output for s in lowered.stages["grouped"].statements}
    assert not any("prod" in name for name in tensors), tensors


@pytest.mark.parametrize(("factors", "written_out"), [(6, True), (9, False)])
def test_products_of_few_factors_are_elementwise(factors: int, written_out: bool) -> None:
    """Where they are many more than their factors."""
    text = "function (C[N, D]) -> (W) { W[n, l : N, 512] = prod(((l >> d) & 1) == 1 ? C[n, d] : 1 - C[n, d]); }"
    lowered = tilec.compile(text).lower(*specs((4096, factors)), target="sm_90")
    assert ("tl.reduce(" not in lowered.source()) == written_out
