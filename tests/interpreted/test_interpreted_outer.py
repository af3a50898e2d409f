"""Reductions over pairs of rows and columns other than products: sizes that overhang, all aggregations, gradients, and
what is computed once for all rows or columns."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.matmul import pack
from tilec.backends.triton.pointwise import tiling

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)


def whole(*shape, dtype=torch.float32):
    """Whole numbers, so that there are ties."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def agree(source, *inputs, rtol=1e-5):
    f = tilec.compile(source, backend="triton")
    found, wanted = f(*inputs), tilec.compile(source, backend="torch")(*inputs)
    for g, w in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, wanted)), strict=True):
        assert g.dtype == w.dtype
        torch.testing.assert_close(g, w, rtol=rtol, atol=1e-5, equal_nan=True)
    return f.lower(*inputs)


BODIES = {
    "max": ">(A[i, k] + B[k, j])",
    "min": "<(A[i, k] * B[k, j] - A[i, k])",
    "prod": "*(A[i, k] + B[k, j] / 8)",
    "any": "any(A[i, k] == B[k, j])",
    "all": "all(A[i, k] <= B[k, j] + 5)",
    "sum of what is no product": "+(abs(A[i, k] - B[k, j]))",
    "guarded": ">(A[i, k] > B[k, j] ? A[i, k] + B[k, j])",
    "banded": ">(A[i, k] + B[k, j]), i - k < 3",
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("sizes", [(37, 9, 50), (64, 8, 64), (3, 5, 40), (150, 4, 17)])
@pytest.mark.covering
def test_aggregations_over_pairs(body, sizes):
    m, k, n = sizes
    source = f"function (A[M, K], B[K, N]) -> (C) {{ C[i, j : M, N] = {BODIES[body]}; }}"
    agree(source, whole(m, k), whole(k, n))


TRANSPOSED = {
    "squares": "C[i, j : M, N] = +((A[i, k] - B[j, k]) * (A[i, k] - B[j, k]))",
    "greatest": "C[i, j : M, N] = >(abs(A[i, k] - B[j, k]))",
    "epilogue": "D[i, j : M, N] = +(abs(A[i, k] - B[j, k])); C = sqrt(1 + D)",
    "itself": "C[i, j : M, M] = <(A[i, k] + A[j, k])",
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("body", TRANSPOSED)
@pytest.mark.parametrize("sizes", [(64, 8, 64), (37, 12, 50)])
def test_operands_that_both_lie_along_the_reduction(body, sizes, monkeypatch):
    """One of them is copied so that it lies along the columns."""
    monkeypatch.setattr(pack, "LEAST_SUMMED", 1)
    monkeypatch.setattr(pack, "LEAST_REUSE", 1)
    m, k, n = sizes
    lowered = agree(f"function (A[M, K], B[N, K]) -> (C) {{ {TRANSPOSED[body]}; }}", whole(m, k), whole(n, k))
    assert "packed" in lowered.source()


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.int64, torch.float16])
def test_types(dtype):
    source = "function (A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = >(A[i, k] + B[k, j]); }"
    agree(source, whole(37, 9, dtype=dtype), whole(9, 50, dtype=dtype))


def test_windows_residues_and_batches():
    agree(
        "function (I[N, W, C], K[R, C, D]) -> (O) { O[n, x, d : N, W - R + 1, D] = >(I[n, x + r, c] + K[r, c, d]); }",
        whole(2, 20, 3),
        whole(3, 3, 17),
    )
    agree(
        "function (I[W, C], K[R, C, D]) -> (O) { O[2*x + r, d : 2*W + R, D] = >(I[x, c] + K[r, c, d]); }",
        whole(20, 3),
        whole(3, 3, 17),
    )
    agree(
        "function (A[Z, M], B[Z, K, N]) -> (C) { C[z, i, j] = >(A[z, i] - B[z, k, j]); }", whole(3, 18), whole(3, 4, 20)
    )


def test_nan_is_kept():
    source = "function (A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = >(A[i, k] + B[k, j]); }"
    a = whole(20, 7)
    a[3, 2], a[5] = float("nan"), -float("inf")
    agree(source, a, whole(7, 20))


def test_elementwise_statements_ride():
    source = """function (A[M, K], B[K, N]) -> (C) { T[i, j : M, N] = >(A[i, k] + B[k, j]); C = relu(T) * 2.0; }"""
    assert len(agree(source, whole(20, 7), whole(7, 33)).kernels) == 1


def test_gradients_share_ties_and_divide_once():
    """One tensor of shares for both gradients, which compare and add; the kernel that counts ties divides."""
    source = "function (A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = >(A[i, k] + B[k, j]); }"
    inputs = whole(35, 64), whole(64, 66), whole(35, 66)
    lowered = agree(tilec.compile(source).grad().tile, *inputs)
    dividing = [k.statements for k in lowered.kernels if "divide_" in k.source]
    assert dividing == [("Ties", "DC_share")]


def test_what_one_side_knows_is_computed_once():
    source = "function (A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = >(sin(A[i, k]) + B[k, j] * exp(A[i, k])); }"
    lowered = agree(source, whole(17, 7), whole(7, 64))
    assert [k.name for k in lowered.kernels] == ["C_shared0_kernel", "C_shared1_kernel", "C_kernel"]
    assert len(agree(source, whole(17, 7), whole(7, 63)).kernels) == 1
    both = "function (A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = >(sin(A[i, k] * B[k, j])); }"
    assert len(agree(both, whole(17, 7), whole(7, 64)).kernels) == 1


def test_windows_that_do_not_fit():
    """Outputs without elements, of which the kernel's gradient is a sum of nothing."""
    source = (
        "function (I[N, W, C], K[R, C, D]) -> (O) { O[n, x, o : N, W - R + 1, D] = >(I[n, x + j, c] + K[j, c, o]); }"
    )
    image, kernel = whole(3, 1, 16).requires_grad_(), whole(2, 16, 17).requires_grad_()
    function = tilec.compile(source, backend="triton")
    value = function(image, kernel)
    assert value.shape == (3, 0, 17)
    for g in torch.autograd.grad(value.sum(), (image, kernel)):
        assert not g.any()


def normal(*shape, dtype=torch.float32, scale=1.0):
    return (scale * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32])
@pytest.mark.parametrize("aggregation", "><*+")
@pytest.mark.parametrize("sizes", [(37, 32, 50), (64, 8, 64), (70, 12, 33)])
@pytest.mark.covering
def test_points_side_by_side(dtype, aggregation, sizes):
    """Where memory runs along the reduction in one operand and along the columns in the other."""
    m, k, n = sizes
    source = f"function (A[M, K], B[K, N]) -> (C) {{ C[i, j : M, N] = {aggregation}(A[i, k] + B[k, j]); }}"
    lowered = agree(
        source, whole(m, k, dtype=dtype), whole(k, n, dtype=dtype), rtol=1e-2 if dtype.itemsize == 2 else 1e-5
    )
    assert "BR: tl.constexpr" in lowered.source()


@pytest.mark.parametrize("operator", "+-")
def test_the_greatest_of_16_bit_sums_is_found_in_16_bits(operator):
    """Bit for bit what float32 sums would give: rounding is monotone."""
    source = f"function (A[M, K], B[K, N]) -> (C) {{ C[i, j : M, N] = >(A[i, k] {operator} B[k, j]); }}"
    a, b = normal(40, 64, dtype=torch.float16, scale=300), normal(64, 48, dtype=torch.float16, scale=300)
    a[3] *= 2.0**-20  # beside subnormal ones
    b[:, 5] *= 2.0**-23
    a[7, 5], a[9, 2], b[3, 11] = float("nan"), -float("inf"), float("inf")
    a[11], b[:, 12] = 6e4, 6e4 if operator == "+" else -6e4  # beyond the largest
    f = tilec.compile(source, backend="triton")
    assert "tl.float16)" in f.lower(a, b).source() and ".to(tl.float32)" not in f.lower(a, b).source()
    sums = a.float()[:, :, None] + b.float() if operator == "+" else a.float()[:, :, None] - b.float()
    torch.testing.assert_close(f(a, b), sums.amax(1).half(), rtol=0, atol=0, equal_nan=True)
    product = f"function (A[M, K], B[K, N]) -> (C) {{ C[i, j : M, N] = >(2 * A[i, k] {operator} B[k, j]); }}"
    assert ".to(tl.float32)" in tilec.compile(product, backend="triton").lower(a, b).source()


def test_points_stay_apart_where_memory_runs_otherwise():
    source = "function (A[K, M], B[K, N]) -> (C) { C[i, j : M, N] = >(A[k, i] + B[k, j]); }"
    assert "BR: tl.constexpr" not in agree(source, whole(32, 40), whole(32, 40)).source()
    source = "function (A[M, K], B[N, K]) -> (C) { C[i, j : M, N] = >(A[i, k] + B[j, k]); }"
    assert "BR: tl.constexpr" not in agree(source, whole(40, 32), whole(40, 32)).source()


LONG = {
    "one loop": "C[i, j : M, N] = +(abs(A[i, 0, k] - B[0, k, j]))",
    "side by side": "C[i, j : M, N] = >(A[i, 0, k] + B[0, k, j])",
    "windows": "C[i, j : M, N] = +(abs(A[i, r, k] - B[r, k, j]))",
    "logsumexp": "C[i, j : M, N] = logsumexp(min(A[i, r, k], B[r, k, j]))",
    "banded": "C[i, j : M, N] = <(A[i, r, k] * B[r, k, j]), i + k < 250",
    "residues": "C[2*i + j % 2, j : 2*M, N] = +(abs(A[i, r, k] - B[r, k, j]))",
    "epilogue": "D[i, j : M, N] = +(abs(A[i, r, k] - B[r, k, j])); C = sqrt(1 + D)",
    "some elements": "C[2*i, j : 2*M + 1, N] = +(abs(A[i, r, k] - B[r, k, j]))",
}


@pytest.mark.parametrize("body", LONG)
@pytest.mark.parametrize("m", [0, 1, 3, 20])
@pytest.mark.covering
@pytest.mark.one_in(3)
def test_few_programs_divide_a_long_walk(body, m):
    source = f"function (A[M, R, K], B[R, K, N]) -> (C) {{ {LONG[body]}; }}"
    lowered = agree(source, whole(m, 3, 300), whole(3, 300, 33), rtol=1e-4)
    assert not m or "C_parts" in lowered.source() or "D_parts" in lowered.source()


def test_a_short_walk_and_one_of_many_programs_stay_whole():
    source = "function (A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = +(abs(A[i, k] - B[k, j])); }"
    f = tilec.compile(source)
    for m, k, split in ((20, 255, False), (20, 256, True), (600, 256, True), (800, 256, False)):
        specs = tilec.spec((m, k)), tilec.spec((k, 66))
        assert ("C_parts" in f.lower(*specs, backend="triton", target="sm_90").source()) == split


@pytest.mark.parametrize(
    "body", ["+(abs(A[i, k, l] - B[j, k, l]))", "+(A[i, k, l] * exp(B[j, k, l]))", ">(A[i, k, l] + B[j, k, l])"]
)
def test_few_elements_of_long_sums(body, monkeypatch):
    """Lanes of a block take points of the sum too, where rows and columns are fewer than its threads."""
    monkeypatch.setattr(tiling, "MANY_POINTS", 128)
    source = f"function (A[M, K, L], B[N, K, L]) -> (C) {{ C[i, j : M, N] = {body}; }}"
    (kernel, *_) = agree(source, whole(3, 5, 300), whole(5, 5, 300)).kernels
    assert "BR: tl.constexpr" in kernel.source
