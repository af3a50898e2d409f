"""Element types on the torch backend: promotion, wrapping, accumulation, rounding, literals."""

import numpy as np
import pytest
import torch
from support.agreement import SMALL, agree, run, tensors

import tilec
from tilec.backends.base import Options
from tilec.ir.functions import FUNCTIONS, ScalarFunction

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5, torch.float64: 1e-12}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("left", [*FLOATS[2:], *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize("right", [*FLOATS[2:], *INTEGERS, torch.bool], ids=str)
def test_promotion(left, right):
    (a,), (b,), (c,) = tensors((4,), dtype=left), tensors((4,), dtype=right, seed=1), tensors((), dtype=right, seed=2)
    for source, other in (("O = A * B;", b), ("O = A * C;", c), ("O = A > B;", b), ("O = A == C;", c)):
        agree(f"function (A, {source[-2]}) -> (O) {{ {source} }}", a, other, tolerance=1e-6)


def test_types_match_torch_for_rank_zero_tensors():
    half, double = torch.ones(3, dtype=torch.float16), torch.tensor(2.0, dtype=torch.float64)
    (got,), _ = run("function (A[N], C[]) -> (O) { O[i : N] = A[i] * C[]; }", [half, double])
    assert got.dtype == (half * double).dtype


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_extremes_of_integers_where_nothing_is_written(dtype):
    (a,) = tensors((3,), dtype=dtype)
    (high,), _ = run("function (A[N]) -> (O) { O[i : 5] = >(A[i - 1]); }", [a])
    (low,), _ = run("function (A[N]) -> (O) { O[i : 5] = <(A[i - 1]); }", [a])
    assert high.dtype == low.dtype == dtype
    assert high[0] == torch.iinfo(dtype).min and low[4] == torch.iinfo(dtype).max


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bits_accumulate_in_float32(dtype):
    """Sums of many small numbers that 16 bits alone would lose; twice torch's own error at most."""
    a, b = tensors((8, 4000), (4000, 8), dtype=dtype)
    exact = a.double() @ b.double()
    own = ((a @ b).double() - exact).abs().max()
    (got,), _ = run("function (A[N, K], B[K, M]) -> (O) { O[i, j : N, M] = +(A[i, k] * B[k, j]); }", [a, b])
    assert got.dtype == dtype and (got.double() - exact).abs().max() <= 2 * own
    ones = torch.ones(1, 4000, dtype=dtype)
    (total,), _ = run("function (A[N, K]) -> (O) { O[i : N] = +(A[i, k]); }", [ones], SMALL)
    assert total.item() == 4000


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_what_is_compared_is_rounded_first(dtype):
    """The maximum's own element equals it, though the body is computed wider."""
    a, b = tensors((6, 7), (6, 7), dtype=dtype)
    source = """function (A[N, M], B[N, M]) -> (C) {
        O[i : N] = >(A[i, j] * B[i, j] + B[i, j]);
        C[i : N] = +(A[i, j] * B[i, j] + B[i, j] == O[i] ? int64(1) : 0);
    }"""
    (count,), _ = run(source, [a, b])
    assert (count >= 1).all()


def test_nan_passes_through_maxima_and_minima():
    a = torch.tensor([[1.0, float("nan")], [2.0, 3.0]])
    for aggregation in "><":
        (got,), _ = run(f"function (A[N, M]) -> (O) {{ O[i : N] = {aggregation}(A[i, j]); }}", [a])
        assert got[0].isnan() and not got[1].isnan()


def test_log_product_in_float32_is_as_accurate_as_float32():
    generator = torch.Generator().manual_seed(0)
    a, b = (3 * torch.randn(n, 300, generator=generator) for n in (40, 50))
    (got,), text = run("function (A[N, K], B[M, K]) -> (O) { O[i, j : N, M] = logsumexp(A[i, k] + B[j, k]); }", [a, b])
    assert "rt.log_product" in text
    exact = torch.logsumexp(a.double()[:, None] + b.double()[None], -1)
    assert ((got - exact).abs() <= 3e-6 + 2 * torch.from_numpy(np.spacing(exact.abs().float().numpy()))).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [300.0, 2000.0])
def test_log_product_where_exponentials_underflow(dtype, scale):
    a, b = (scale * torch.rand(n, 33, generator=torch.Generator().manual_seed(n), dtype=dtype) for n in (20, 30))
    a[3], b[:, 4], a[5, 5] = float("-inf"), float("-inf"), float("inf")
    (got,), _ = run("function (A[N, K], B[M, K]) -> (O) { O[i, j : N, M] = logsumexp(A[i, k] + B[j, k]); }", [-a, -b])
    exact = torch.logsumexp(-a.double()[:, None] - b.double()[None], -1)
    tolerance = 1e-6 if dtype is torch.float32 else 1e-13
    torch.testing.assert_close(got.double(), exact, rtol=tolerance, atol=3 * tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_sum_in_blocks_that_another_factor_follows(dtype):
    """Blocks are summed in float32; what they are multiplied with next, and the result, have the narrow type."""
    source = "DI[k + x - 1, c : 9, 3] = +(DO[x, o] * K[k, c, o] * cos(I[k + x - 1, c]));"
    (got,) = agree(source, *tensors((9, 4), (3, 3, 4), (9, 3), dtype=dtype), tolerance=4e-2, options=Options(block=40))
    assert got.dtype is dtype


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_division_of_the_extremes_of_integers(dtype):
    """torch's own division of the least int32 or int64 by -1 ends the process."""
    least, greatest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    a = torch.tensor([least, least, greatest, 7, 0, 5, least, least], dtype=dtype)
    b = torch.tensor([-1 if least else 255, 1, -1 if least else 255, 2, 0, 0, 0, 3], dtype=dtype)
    source = "function (A[N], B[N]) -> (O, P, Q) { O = A / B; P = A % B; Q = 100 / B; }"
    quotients, *_ = agree(source, a, b)
    assert quotients[[0, 1, 6]].tolist() == [least, least, 0]
    assert quotients[7] == -(-least // 3)


@pytest.mark.parametrize(
    ("source", "other"),
    [
        ("O = hypot(A, 2.0);", torch.tensor(2.0)),
        ("O = hypot(2, A);", torch.tensor(2.0)),
        ("O[i : N] = hypot(A[i], N);", torch.tensor(5.0)),
        ("O[i : N] = hypot(A[i], i);", torch.arange(5.0)),
    ],
)
def test_a_function_of_torch_is_given_tensors(source, other, monkeypatch):
    """One that is new in the table: torch.hypot takes no Python number."""
    row = ScalarFunction("hypot", (2, 2), "float", np.hypot, "torch.hypot({0}, {1})")
    monkeypatch.setitem(FUNCTIONS, "hypot", row)
    a = torch.linspace(-2, 2, 5, dtype=torch.float64)
    got = tilec.compile(f"function (A[N]) -> (O) {{ {source} }}", backend="torch")(a)
    torch.testing.assert_close(got, torch.hypot(a, other.double()))
