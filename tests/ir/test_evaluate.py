"""The oracle against values worked out by hand, NumPy and torch: contractions, sizes, division, constraints."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from tilec.errors import (
    InputMistake,
    NameMistake,
    NoSchedule,
    RankMistake,
    SizeMistake,
    TypeMistake,
    Unsupported,
    WriteConflict,
)
from tilec.ir.evaluate import evaluate
from tilec.ir.oracle import points
from tilec.language import parse

A4 = np.array([1.0, 2.0, 3.0, 4.0])
M = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def run(source, *arrays):
    results = evaluate(parse(source), arrays)
    return results[0] if len(results) == 1 else results


def function(inputs, body, outputs="O"):
    return f"function ({inputs}) -> ({outputs}) {{ {body} }}"


def test_matrix_product():
    b = np.arange(12.0).reshape(3, 4)
    got = run(function("A[M, L], B[L, N]", "O[i, j : M, N] = +(A[i, k] * B[k, j]);"), M, b)
    np.testing.assert_array_equal(got, M @ b)


def test_convolution_with_stride_and_dilation_equals_torch():
    rng = np.random.default_rng(0)
    i, k = rng.standard_normal((2, 3, 11, 13)), rng.standard_normal((4, 3, 2, 3))
    size = "(H - 3) / 3 + 1, (W - 5) / 3 + 1"
    source = function(
        "I[N, C, H, W], K[D, C, KH, KW]",
        f"O[n, d, y, x : N, D, {size}] = +(I[n, c, 3*y + 2*j, 3*x + 2*i] * K[d, c, j, i]);",
    )
    want = torch.nn.functional.conv2d(torch.from_numpy(i), torch.from_numpy(k), stride=3, dilation=2).numpy()
    np.testing.assert_allclose(run(source, i, k), want, rtol=1e-12, atol=1e-12)


def test_padding_is_points_left_out():
    got = run(function("A[N]", "O[x : N] = +(A[x + k - 1]), k < 3;"), A4)
    np.testing.assert_array_equal(got, [3, 6, 9, 7])


def test_output_larger_and_smaller_than_what_is_written():
    np.testing.assert_array_equal(run(function("A[N]", "O[i : 6] = +(A[i]);"), A4), [1, 2, 3, 4, 0, 0])
    np.testing.assert_array_equal(run(function("A[N]", "O[i : 2] = +(A[i]);"), A4), [1, 2])
    np.testing.assert_array_equal(run(function("A[N]", "O[i - 1 : 2] = +(A[i]);"), A4), [2, 3])


@pytest.mark.parametrize("stride, offset, coefficient", [*itertools.product((1, 2, -1, 3), (-1, 0, 2), (1, -2))])
def test_affine_indices_against_loops(stride, offset, coefficient):
    b = np.array([3.0, -1.0])
    index = f"{stride}*i + {coefficient}*j + {offset}".replace("+ -", "- ")
    got = run(function("A[N], B[M]", f"O[i : 5] = +(A[{index}] * B[j]);"), A4, b)
    want = np.zeros(5)
    for i, j in itertools.product(range(5), range(2)):
        at = stride * i + coefficient * j + offset
        if 0 <= at < 4:
            want[i] += A4[at] * b[j]
    np.testing.assert_array_equal(got, want)


def test_division_in_an_index_is_exact():
    got = run(function("A[N]", "O[i : 8] = +(A[(i - 1)/2]);"), A4)
    np.testing.assert_array_equal(got, [0, 1, 0, 2, 0, 3, 0, 4])
    got = run(function("A[N]", "O[i : 4] = +(A[i/2 + j/2]), j < 2;"), A4)
    np.testing.assert_array_equal(got, [1, 2, 2, 3])


def test_division_of_dimensions_in_an_index_is_exact():
    source = function("A[N], B[K]", "O[a : N] = +(A[a + b - K/2]), b < K;")
    np.testing.assert_array_equal(run(source, A4, np.zeros(3)), [0, 0, 0, 0])
    np.testing.assert_array_equal(run(source, A4, np.zeros(2)), [1, 3, 5, 7])


def test_division_in_sizes_truncates_operation_by_operation():
    got = run(function("A[N]", "O[i : N/3*2] = +(A[i]);"), np.arange(5.0))
    assert got.shape == (2,)
    got = run(function("A[N]", "P = (N - 9)/2 + 3; O[i : P] = +(A[i]);"), np.arange(4.0))
    assert got.shape == (1,)  # -5/2 is -2


def test_division_right_of_a_constraint_truncates():
    got = run(function("A[N]", "O[] = +(A[i]), i < 5/2;"), A4)
    assert got == 3


def test_constraints_need_integers():
    got = run(function("A[N]", "O[] = +(A[i]), i/2 < 2;"), A4)
    assert got == 4  # i = 0, 2
    got = run(function("A[N]", "O[] = +(A[i]), i - 1 < 2;"), A4)
    assert got == 5
    got = run(function("A[N]", "O[i : N] = +(A[j]), i - j < 2;"), A4)
    np.testing.assert_array_equal(got, [1, 3, 5, 7])


def test_division_between_integers_truncates_like_c():
    x, y = np.array([7, -7, 7, -7, 1]), np.array([2, 2, -2, -2, 3])
    np.testing.assert_array_equal(run(function("X[N], Y[N]", "O = X / Y;"), x, y), [3, -3, -3, 3, 0])
    np.testing.assert_array_equal(run(function("X[N], Y[N]", "O = X / Y;"), x.astype(float), y), x / y)
    np.testing.assert_array_equal(run(function("X[N]", "O = X % 3;"), x), [1, 2, 1, 2, 1])
    np.testing.assert_array_equal(run(function("X[N]", "O[i : N] = +(X[i] * (i / 2));"), x), [0, 0, 7, -7, 2])


def test_cumulative_sum_and_reversal():
    got = run(function("I[N]", "O[n : N] = +(I[i]), n - i < N;"), A4)
    np.testing.assert_array_equal(got, np.cumsum(A4))
    np.testing.assert_array_equal(run(function("I[N]", "O[n : N] = +(I[N - 1 - n]);"), A4), A4[::-1])


def test_scattered_outputs():
    got = run(function("A[N], B[M]", "O[i + j : N + M - 1] = +(A[i] * B[j]);"), A4, A4[:2])
    np.testing.assert_array_equal(got, np.convolve(A4, A4[:2]))
    got = run(function("A[N]", "O[2*i + 1 : 9] = +(A[i]);"), A4)
    np.testing.assert_array_equal(got, [0, 1, 0, 2, 0, 3, 0, 4, 0])
    got = run(function("A[N]", "O[i/2 : 3] = +(A[i]);"), A4)
    np.testing.assert_array_equal(got, [1, 3, 0])
    got = run(function("A[N]", "O[i, i : 3, 3] = +(A[i]);"), A4)
    np.testing.assert_array_equal(got, np.diag([1.0, 2, 3]))


def test_indices_that_bound_each_other_only_together():
    b = np.array([1.0, 10.0, 100.0])
    got = run(function("A[N], B[M]", "O[] = +(A[i + j] * B[i - j]);"), A4, b)
    assert got == sum(A4[p] * b[q] for p in range(4) for q in range(3) if (p + q) % 2 == 0)


def test_zero_coefficient_and_constant_indices():
    np.testing.assert_array_equal(run(function("A[N]", "O[i : 3] = +(A[0*i + 2]);"), A4), [3, 3, 3])
    np.testing.assert_array_equal(run(function("A[N]", "O[i : 3] = +(A[4]);"), A4), [0, 0, 0])


def test_empty_dimensions_and_wholly_outside_reads():
    empty = np.zeros((0, 3))
    np.testing.assert_array_equal(run(function("A[M, N]", "O[j : N] = +(A[i, j]);"), empty), [0, 0, 0])
    np.testing.assert_array_equal(run(function("A[M, N]", "O[j : N] = >(A[i, j]);"), empty), [-np.inf] * 3)
    assert run(function("A[M, N]", "O[i : M] = +(A[i, j]);"), empty).shape == (0,)
    np.testing.assert_array_equal(run(function("A[N]", "O[i : N] = *(A[i + 10]);"), A4), [1, 1, 1, 1])


IDENTITIES = {
    "sum": 0, "prod": 1, "max": -np.inf, "min": np.inf, "assign": 0, "mean": 0, "logsumexp": -np.inf,
    "any": False, "all": True, "argmax": -1, "argmin": -1,
}  # fmt: skip


@pytest.mark.parametrize("name", IDENTITIES)
def test_identity_where_no_point_comes(name):
    got = run(function("A[N]", f"O[i : 6] = {name}(A[i - 2]);"), A4)
    assert got[0] == got[1] == IDENTITIES[name]
    values = {"any": [True] * 4, "all": [True] * 4, "argmax": [0] * 4, "argmin": [0] * 4}.get(name, A4)
    np.testing.assert_array_equal(got[2:], values)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8"])
def test_integer_extremes_stand_for_infinities(dtype):
    a = np.array([3, 5], dtype)
    info = np.iinfo(dtype)
    got = run(function("A[N]", "O[i : 3] = >(A[i]); P[i : 3] = <(A[i]);", "O, P"), a)
    assert got[0].dtype == got[1].dtype == dtype
    assert got[0].tolist() == [3, 5, info.min] and got[1].tolist() == [3, 5, info.max]


def test_bool_extremes():
    got = run(function("A[N]", "O[i : 2] = >(A[i]); P[i : 2] = <(A[i]);", "O, P"), np.array([True]))
    assert got[0].tolist() == [True, False] and got[1].tolist() == [True, True]


@pytest.mark.parametrize(
    "name, reference",
    [
        ("sum", np.sum), ("prod", np.prod), ("max", np.max), ("min", np.min), ("mean", np.mean),
        ("argmax", np.argmax), ("argmin", np.argmin), ("any", np.any), ("all", np.all),
        ("logsumexp", lambda x: np.log(np.sum(np.exp(x)))),
    ],
)  # fmt: skip
def test_aggregations_against_numpy(name, reference):
    a = np.array([[3.0, -1.0, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0], [-1.0, -4.0, -2.0, 7.0]])
    got = run(function("A[M, N]", f"O[i : M] = {name}(A[i, j]);"), a)
    np.testing.assert_allclose(got, [reference(row) for row in a], rtol=1e-14)
    assert got.dtype == {"argmax": np.int64, "argmin": np.int64, "any": bool, "all": bool}.get(name, np.float64)


def test_classic_symbols():
    for symbol, want in (("+", 10), ("*", 24), (">", 4), ("<", 1)):
        assert run(function("A[N]", f"O[] = {symbol}(A[i]);"), A4) == want
    np.testing.assert_array_equal(run(function("A[N]", "O[N - 1 - i : N] = =(A[i]);"), A4), A4[::-1])


def test_logsumexp_of_infinities_and_large_values():
    inf = np.inf
    a = np.array([[-inf, -inf], [inf, 0], [1000, 1000], [-2000, -2000], [np.nan, 0], [inf, -inf]])
    got = run(function("A[M, N]", "O[i : M] = logsumexp(A[i, j]);"), a)
    log2 = np.log(2)
    np.testing.assert_allclose(got, [-inf, inf, 1000 + log2, -2000 + log2, np.nan, inf])


def test_nan_in_extremes():
    a = np.array([[1.0, np.nan, 2.0, np.nan], [1.0, 5.0, 5.0, -1.0]])
    t = torch.from_numpy(a)
    source = "O[i : M] = {}(A[i, j]);"
    np.testing.assert_array_equal(run(function("A[M, N]", source.format("max")), a), t.amax(1).numpy())
    np.testing.assert_array_equal(run(function("A[M, N]", source.format("min")), a), t.amin(1).numpy())
    np.testing.assert_array_equal(run(function("A[M, N]", source.format("argmax")), a), t.argmax(1).numpy())
    np.testing.assert_array_equal(run(function("A[M, N]", source.format("argmin")), a), t.argmin(1).numpy())


def test_argmax_numbers_the_box_of_valid_points():
    a = np.array([[5.0, 1.0, 9.0], [9.0, 0.0, 2.0]])
    assert run(function("A[M, N]", "O[] = argmax(A[i, j]);"), a) == 2
    assert run(function("A[M, N]", "O[] = argmax(A[i, j] + 0*j + 0*i);"), a) == 2
    assert run(function("A[M, N]", "O[] = argmax(j + 10*A[i, j]);"), a) == 4  # j comes first: number is j * M + i
    assert run(function("A[M, N]", "O[] = argmax(A[i, j]), i - 1 < 1;"), a) == 0  # the box is row 1 alone
    assert run(function("A[M, N]", "O[] = argmax(i > 0 ? A[i, j]);"), a) == 3  # a guard does not move the box
    got = run(function("A[M, N]", "O[i : M] = argmax(A[i, j + 1]);"), a)
    assert got.tolist() == [2, 0]  # j = -1, 0, 1
    got = run(function("A[M, N]", "O[i : M] = argmax(A[i, j]), j - i < 2;"), a)
    assert got.tolist() == [0, 2]  # j = 0..2 over the statement; row 1 has 0 and 2


def test_argmax_of_all_minus_infinity_is_its_first_point():
    assert run(function("A[N]", "O[] = argmax(A[i]);"), np.full(3, -np.inf)) == 0


def test_mean_counts_valid_points():
    got = run(function("A[N]", "O[x : N] = mean(A[x + k - 1]), k < 3;"), A4)
    np.testing.assert_allclose(got, [1.5, 2, 3, 3.5])
    got = run(function("A[N]", "O[] = mean(i != 2 ? A[i]);"), A4)
    np.testing.assert_allclose(got, 7 / 3)


def test_assign_with_two_writers_is_an_error():
    with pytest.raises(WriteConflict, match=r"O\[0\]"):
        run(function("A[N]", "O[i/2 - j/2 : 4] = =(A[i]), j < 2;"), A4)
    with pytest.raises(WriteConflict):  # a guard does not weaken the check
        run(function("A[M, N]", "O[i : M] = =(j == 0 ? A[i, j]);"), M)
    one = run(function("A[M, N]", "O[i : M] = =(A[i, j]);"), M[:, :1])  # one column: no two points meet
    np.testing.assert_array_equal(one, [1, 4])


def test_default_fills_what_no_point_reaches():
    x = np.array([-1.0, -2.0, -3.0, -4.0, -5.0])
    source = function("A[N], X[M]", "O[2*i : M] = +(A[i]) default X;")
    np.testing.assert_array_equal(run(source, A4[:3] * 0, x), [0, -2, 0, -4, 0])
    source = function("A[N], X[M]", "O[i : M] = +(A[i] > 1 ? A[i]) default X;")
    np.testing.assert_array_equal(run(source, A4, x), [-1, 2, 3, 4, -5])
    with pytest.raises(SizeMistake):
        run(function("A[N], X[M]", "O[i : N] = +(A[i]) default X;"), A4, x)
    one = np.array([7.0])
    got = run(function("A[N], X", "O[i : 6] = +(A[i]) default X;"), A4, one)
    np.testing.assert_array_equal(got, [1, 2, 3, 4, 7, 7])


def test_in_constrains_without_reading():
    nan = np.array([np.nan, np.nan])
    got = run(function("A[N], B[M]", "O[i : N] = +(A[i] * in(B[i - 1]));"), A4, nan)
    np.testing.assert_array_equal(got, [0, 2, 3, 0])


def test_sizes_left_out():
    np.testing.assert_array_equal(run("O[i, j] = +(A[i, k] * B[k, j]);", M, M.T), M @ M.T)
    np.testing.assert_array_equal(run(function("A[M, N]", "O[j] = +(A[i, j]);"), M), M.sum(0))
    with pytest.raises(SizeMistake):
        run("O[i] = +(A[i] * B[i]);", A4, A4[:2])


def test_integer_inputs_as_sizes():
    source = function("A[N], S[]", "O[i : S] = +(A[i + S - 2]), i < S - 1;")
    np.testing.assert_array_equal(run(source, A4, np.int64(3)), [2, 3, 0])
    np.testing.assert_array_equal(run(source, A4, 3), [2, 3, 0])
    with pytest.raises(SizeMistake):
        run(source, A4, -1)
    with pytest.raises(SizeMistake):
        run(source, A4, 1.5)


def test_size_statements():
    source = function("A[N]", "P = (max(0, (N - 1) * 2 + 3 - 4)) / 2; O[i : N] = +(A[i + k - P]), k < P + 1;")
    np.testing.assert_array_equal(run(source, A4), [1, 3, 6, 9])


def test_statements_chain_and_outputs_repeat():
    got = run(function("A[N]", "B[i : N] = +(A[j]), i - j < N; C = B * 2;", "C, A, B, C"), A4)
    np.testing.assert_array_equal(got[0], 2 * np.cumsum(A4))
    np.testing.assert_array_equal(got[1], A4)
    np.testing.assert_array_equal(got[2], np.cumsum(A4))
    np.testing.assert_array_equal(got[3], got[0])
    got[0][0] = 99  # results are the caller's own
    assert got[3][0] == 2 and A4[0] == 1


def test_no_inputs():
    np.testing.assert_array_equal(run(function("", "O[i : 4] = +(i * i);")), [0, 1, 4, 9])
    assert run(function("", "O = 3.5;")) == 3.5


def test_many_points_go_in_blocks():
    n = 800
    a = np.arange(float(n))
    got = run(function("A[N]", "O[] = +(A[i] * A[j]);"), a)  # 640 000 points
    assert got == a.sum() ** 2
    got = run(function("A[N]", "O[] = argmax(A[i] - A[j]);"), a)
    assert got == (n - 1) * n
    got = run(function("A[N]", "O[] = logsumexp(A[i] - A[j] + 0*i);"), a)
    np.testing.assert_allclose(got, torch.logsumexp(torch.from_numpy(a[:, None] - a).ravel(), 0).item(), rtol=1e-12)


def test_too_many_points_are_refused(monkeypatch):
    monkeypatch.setattr(points, "MOST_POINTS", 10**6)
    with pytest.raises(Unsupported, match="more than 1000000 points"):
        run(function("A[N]", "O[] = +(A[i] * A[j] * A[k]);"), np.zeros(101))
    run(function("A[N]", "O[] = +(A[i] * A[j] * A[k]);"), np.zeros(99))


def test_input_mistakes():
    source = function("A[M, N], B[N]", "O[i : M] = +(A[i, j] * B[j]);")
    with pytest.raises(InputMistake):
        run(source, M)
    with pytest.raises(RankMistake):
        run(source, A4, A4)
    with pytest.raises(SizeMistake):
        run(source, M, A4)
    with pytest.raises(SizeMistake):
        run(function("A[5]", "O[i : 5] = +(A[i]);"), A4)
    with pytest.raises(TypeMistake):
        run(function("A[N]", "O[i : N] = +(A[i]);"), A4.astype(complex))
    with pytest.raises(RankMistake):
        run(function("A", "O[i : 2] = +(A[i]);"), M)


def test_recurrences():
    assert run(function("B[T]", "H[t : T] = H[t - 1] + B[t];", "H"), A4).tolist() == np.cumsum(A4).tolist()
    assert run(function("B[T]", "H[t : T] = H[t - 1] + B[t - 1];", "H"), A4).tolist() == [0, *np.cumsum(A4[:-1])]
    fibonacci = function("N[]", "F[n : N] = F[n - 1] + F[n - 2] init n + 2;", "F")
    assert run(fibonacci, 6).tolist() == [1, 2, 3, 5, 8, 13]
    wrapped = function("B[T, D]", "H[t, i : T, D] = B[t, i] + H[t - 1, (i - 1) % D] init 10 * i - t;", "H")
    b = np.arange(6.0).reshape(2, 3)
    first = b[0] + np.array([21, 1, 11])
    assert run(wrapped, b).tolist() == [first.tolist(), (b[1] + np.roll(first, 1)).tolist()]
    table = function("C[N], R[8]", "Y[t, i : 2, N] = R[2 * Y[t - 1, i]] init C[i];", "Y")
    assert run(table, np.array([2, 1, 0, 4]), np.arange(8)).tolist() == [[4, 2, 0, 0], [0, 4, 0, 0]]
    for circle in ("H[t]", "H[(t - 1) % T]", "H[t - 1] + H[t + 1]"):
        with pytest.raises(NoSchedule):
            run(function("B[T]", f"H[t : T] = 2 * {circle} + B[t];", "H"), A4)


def test_unknown_names_end_in_tile_errors():
    program = parse(function("A[N]", "O[i : N] = +(A[i]);"))
    with pytest.raises(NameMistake):
        evaluate(replace(program, inputs=()), [])
