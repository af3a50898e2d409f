"""The oracle against values worked out by hand, NumPy and torch: scalar functions, types, nesting, whole tensors."""

import math

import numpy as np
import pytest
import torch

import tilec
from tilec.errors import RankMistake, SizeMistake, TypeMistake, WriteConflict
from tilec.ir.evaluate import evaluate
from tilec.language import parse

A4 = np.array([1.0, 2.0, 3.0, 4.0])
M = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
X = np.array([-2.5, -1.0, -0.5, 0.0, 0.5, 1.5, 2.5])
POSITIVE = np.abs(X) + 0.25
UNIT = X / 3


def run(source, *arrays):
    results = evaluate(parse(source), arrays)
    return results[0] if len(results) == 1 else results


def function(inputs, body, outputs="O"):
    return f"function ({inputs}) -> ({outputs}) {{ {body} }}"


UNARY = {
    "abs": (X, torch.abs), "exp": (X, torch.exp), "log": (POSITIVE, torch.log), "sqrt": (POSITIVE, torch.sqrt),
    "rsqrt": (POSITIVE, torch.rsqrt), "sin": (X, torch.sin), "cos": (X, torch.cos), "tan": (X, torch.tan),
    "asin": (UNIT, torch.asin), "acos": (UNIT, torch.acos), "atan": (X, torch.atan), "sinh": (X, torch.sinh),
    "cosh": (X, torch.cosh), "tanh": (X, torch.tanh), "sigmoid": (X, torch.sigmoid), "relu": (X, torch.relu),
    "floor": (X, torch.floor), "ceil": (X, torch.ceil), "round": (X, torch.round), "erf": (X, torch.erf),
    "gelu": (X, torch.nn.functional.gelu), "silu": (X, torch.nn.functional.silu),
    "softplus": (X, torch.nn.functional.softplus), "log1p": (POSITIVE, torch.log1p), "expm1": (X, torch.expm1),
    "sign": (X, torch.sign), "ident": (X, torch.clone), "recip": (POSITIVE, torch.reciprocal),
}  # fmt: skip
BINARY = {
    "pow": (POSITIVE, X, torch.pow), "atan2": (X, POSITIVE, torch.atan2), "max": (X, X[::-1].copy(), torch.maximum),
    "min": (X, X[::-1].copy(), torch.minimum), "logaddexp": (X, UNIT, torch.logaddexp),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary_functions_against_torch(name):
    x, reference = UNARY[name]
    want = reference(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(run(function("X", f"O = {name}(X);"), x), want, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(run(function("X[N]", f"O[i : N] = {name}(X[i]);"), x), want, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", BINARY)
def test_binary_functions_against_torch(name):
    x, y, reference = BINARY[name]
    want = reference(torch.from_numpy(x), torch.from_numpy(y)).numpy()
    np.testing.assert_allclose(run(function("X, Y", f"O = {name}(X, Y);"), x, y), want, rtol=1e-13)


INTEGERS = np.array([-7, -2, 0, 1, 5, 6])
OTHERS = np.array([3, -2, 1, 2, -3, 4])


@pytest.mark.parametrize("operator", ["+", "-", "*", "%", "==", "!=", "<", ">", "<=", ">=", "&", "|", "^"])
def test_integer_operators_against_torch(operator):
    x, y = torch.from_numpy(INTEGERS), torch.from_numpy(OTHERS)
    want = torch.remainder(x, y) if operator == "%" else eval(f"x {operator} y")  # noqa: S307
    got = run(function("X, Y", f"O = X {operator} Y;"), INTEGERS, OTHERS)
    np.testing.assert_array_equal(got, want.numpy())
    assert got.dtype == want.numpy().dtype


def test_integer_powers_are_as_torch_has_them():
    x, y = np.array([2, 1, -1, -1, 0, 3, -2]), np.array([-1, -3, -3, -2, -1, 4, 3])
    got = run(function("X, Y", "O = pow(X, Y);"), x, y)
    np.testing.assert_array_equal(got, torch.pow(torch.from_numpy(x), torch.from_numpy(y)).numpy())
    np.testing.assert_array_equal(run(function("X", "O = pow(X, -1);"), x), [0, 1, -1, -1, 0, 0, 0])


def test_shifts_inversion_and_negation():
    got = run(function("X", "O = X << 2; P = X >> 1; Q = ~X; R = -X;", "O, P, Q, R"), INTEGERS)
    for g, want in zip(got, (INTEGERS << 2, INTEGERS >> 1, ~INTEGERS, -INTEGERS), strict=True):
        np.testing.assert_array_equal(g, want)
    assert run(function("X", "O = ~X;"), np.array([True, False])).tolist() == [False, True]


def test_float_modulo_is_floored():
    np.testing.assert_allclose(run(function("X", "O = X % 2; "), X), np.mod(X, 2))


def test_conditionals():
    np.testing.assert_array_equal(run(function("X", "O = X > 0 ? X : -X;"), X), np.abs(X))
    np.testing.assert_array_equal(run(function("X", "O = cond(X, 1, 2);"), X), np.where(X != 0, 1, 2))
    got = run(function("X", "O = X > 1 ? 1 : X > 0 ? 2 : 3;"), X)  # right-associative
    np.testing.assert_array_equal(got, np.where(X > 1, 1, np.where(X > 0, 2, 3)))


def test_classic_conditional_body():
    a, b, c = np.array([1.0, 2, 3]), np.array([3.0, 2.0, 2.0]), np.array([5.0, 7.0, 11.0])
    got = run(function("A[N], B[M], C[M]", "O[i : N] = +(A[i] == B[j] ? C[j]);"), a, b, c)
    np.testing.assert_array_equal(got, [0, 18, 5])
    got = run(function("A[N], B[M], C[M]", "O[i : N] = >(A[i] == B[j] ? C[j]);"), a, b, c)
    np.testing.assert_array_equal(got, [-np.inf, 11, 5])  # a false condition contributes nothing


def test_guard_keeps_accesses_of_both_branches():
    got = run(function("A[N], B[M]", "O[i : N] = +(i < 1 ? A[i] : B[i]);"), A4, A4[:3] * 10)
    np.testing.assert_array_equal(got, [1, 20, 30, 0])  # B[3] is outside: the point is left out though i picks B anyway


def test_bodies_of_any_shape():
    source = function("A[M, K], B[K, N], S[M]", "O[i, j : M, N] = +(exp(A[i, k] - S[i]) * B[k, j] / S[i]);")
    got = run(source, M, M.T, A4[:2])
    want = np.einsum("ik,kj->ij", np.exp(M - A4[:2, None]) / A4[:2, None], M.T)
    np.testing.assert_allclose(got, want)


def test_plain_assignment():
    np.testing.assert_array_equal(run(function("A[M, N]", "O[j, i : N, M] = A[i, j] + 1;"), M), M.T + 1)


def test_index_variables_and_dimensions_as_values():
    np.testing.assert_array_equal(run(function("A[N]", "O[i : N] = A[i] * i + N;"), A4), A4 * np.arange(4) + 4)
    np.testing.assert_array_equal(run(function("A[N]", "O = A / N;"), A4), A4 / 4)
    got = run(function("A[N]", "O[i : N] = +(i / 2 + 0*A[i]);"), A4.astype(int))
    np.testing.assert_array_equal(got, [0, 0, 1, 1])


def test_broadcasting():
    got = run(function("A, B", "O = A * B;"), M, np.array([[2.0], [3.0]]))
    np.testing.assert_array_equal(got, M * [[2], [3]])
    got = run(function("A, B", "O = A + B;"), M, np.array(1.0))
    np.testing.assert_array_equal(got, M + 1)
    assert run(function("A, B", "O = A + B;"), np.zeros((0, 1)), np.zeros(3)).shape == (0, 3)
    with pytest.raises(SizeMistake):
        run(function("A, B", "O = A + B;"), M, A4)
    with pytest.raises(RankMistake):
        run(function("A, B", "O[i : 2] = A[i] + B;"), A4, M)


# types


@pytest.mark.parametrize(
    "pair",
    ["int8 int32", "uint8 int8", "int32 float32", "bool uint8", "bool float64", "int16 uint8"],
)
def test_promotion_is_as_torch(pair):
    x, y = pair.split()
    a, b = np.array([1, 0]).astype(x), np.array([3, 5]).astype(y)
    want = (torch.from_numpy(a) * torch.from_numpy(b)).numpy()
    got = run(function("A, B", "O = A * B;"), a, b)
    np.testing.assert_array_equal(got, want)
    assert got.dtype == ("float64" if want.dtype.kind == "f" else want.dtype)


def test_integers_wrap_to_their_type():
    assert run(function("A", "O = A + A;"), np.array([100], np.int8)).tolist() == [-56]
    assert run(function("A", "O = A - 1;"), np.array([0], np.uint8)).tolist() == [255]
    assert run(function("A", "O = A * 2;"), np.array([2**31 - 1], np.int32)).tolist() == [-2]
    assert run(function("A[N]", "O[] = +(A[i]);"), np.full(3, 100, np.int8)).tolist() == 300
    assert run(function("A[N]", "O[] = *(A[i] * A[i]);"), np.array([20, 1], np.int8)).tolist() == -112


def test_sums_of_bool_and_integers_are_int64():
    for a in (np.array([True, True, False]), np.array([1, 1, 0], np.uint8)):
        got = run(function("A[N]", "O[] = +(A[i]);"), a)
        assert got == 2 and got.dtype == np.int64


def test_floats_are_never_rounded():
    a = np.array([0.1], np.float64)
    assert run(function("A", "O = float16(A) * 1;"), a)[0] == 0.1
    assert run(function("A", "O = A * A;"), np.array([1 / 3], np.float32))[0] == float(np.float32(1 / 3)) ** 2


def test_casts():
    x = np.array([-1.7, 0.0, 300.6])
    assert run(function("X", "O = int32(X);"), x).tolist() == [-1, 0, 300]
    assert run(function("X", "O = int8(X);"), np.array([-1, 300])).tolist() == [-1, 44]
    assert run(function("X", "O = as_uint(X, 16);"), np.array([-1, 65537])).tolist() == [65535, 1]
    assert run(function("X", "O = as_uint(X, 32);"), np.array([-1])).tolist() == [2**32 - 1]
    got = run(function("X", "O = as_bool(X);"), x)
    assert got.dtype == bool and got.tolist() == [True, False, True]
    got = run(function("X", "O = as_float(X, 32);"), np.array([1, 2]))
    assert got.dtype == np.float64 and got.tolist() == [1, 2]


def test_weak_values_alone_are_int64_and_float64():
    assert run(function("", "O = 7 / 2;")).dtype == np.int64
    assert run(function("", "O = 7 / 2;")) == 3
    assert run(function("", "O = 7.0 / 2;")) == 3.5
    got = run(function("A", "V = 300; O = A + V;"), np.array([1], np.uint8))
    assert got.dtype == np.uint8 and got.tolist() == [45]  # V stays weak


def test_comparisons_take_one_type_first_as_in_torch():
    a = np.array([3, 255], np.uint8)
    minus = np.array(-1)
    source = function("A[N], B[]", "O = A > B; P = min(A, B); Q = A == B;", "O, P, Q")
    t, m = torch.from_numpy(a), torch.from_numpy(minus)
    for got, want in zip(run(source, a, minus), (t > m, torch.minimum(t, m), t == m), strict=True):
        np.testing.assert_array_equal(got, want.numpy())


def test_type_mistakes():
    with pytest.raises(TypeMistake):
        run(function("A, B", "O = A & B;"), A4, A4)
    with pytest.raises(TypeMistake):
        run(function("A, Ix[N]", "O[i : N] = +(A[Ix[i]]);"), A4, A4)


# nested aggregations


def test_nested_aggregation():
    w, h, b = np.arange(6.0).reshape(2, 3) / 4, np.array([1.0, -1.0, 2.0]), np.array([0.5, 0.25])
    got = run(function("W[M, N], H[N], B[M]", "O[i : M] = tanh(sum(W[i, j] * H[j]) + B[i]);"), w, h, b)
    np.testing.assert_allclose(got, np.tanh(w @ h + b))


def test_nested_aggregation_has_its_own_points():
    got = run(function("W[M, K], B[N]", "O[i : N] = sum(W[i, j]) + B[i];"), M, A4)
    np.testing.assert_array_equal(got, [6 + 1, 15 + 2, 3, 4])


def test_two_nested_aggregations_bind_one_name_apart():
    got = run(function("A[M, N]", "O[i : M] = sum(A[i, j]) / max(A[i, j]);"), M)
    np.testing.assert_array_equal(got, M.sum(1) / M.max(1))
    got = run(function("A[M, N], B[K]", "O[i : M] = sum(A[i, j]) + sum(B[j]);"), M, A4)
    np.testing.assert_array_equal(got, M.sum(1) + 10)


def test_constraint_goes_to_the_aggregation_that_binds_its_variable():
    got = run(function("A[M, N]", "O[i : M] = sum(A[i, j]) + A[i, 0], j < 2;"), M)
    np.testing.assert_array_equal(got, [1 + 2 + 1, 4 + 5 + 4])
    got = run(function("A[M, N]", "O[i : M] = sum(A[i, j]) + sum(A[i, k]), j < 2, i < 1;"), M)
    np.testing.assert_array_equal(got, [3 + 6, 0])


def test_nested_in_nested_and_in_an_aggregation():
    got = run(function("A[M, N], B[M]", "O[] = +(max(A[i, j]) * B[i]);"), M, A4[:2])
    assert got == 3 * 1 + 6 * 2  # i stands outside max, which binds j alone
    got = run(function("A[M, N], B[K]", "O[] = max[j](sum[i](A[i, j] * sum(B[j + k]))), k < 9;"), M, A4)
    inner = np.array([10.0, 9.0, 7.0])
    assert got == (M * inner).sum(0).max()


def test_nested_aggregation_in_an_elementwise_statement():
    np.testing.assert_array_equal(run(function("A[N]", "O = A / sum(A[i]);"), A4), A4 / 10)
    np.testing.assert_array_equal(run(function("A[N], B", "O = B + argmax(A[i]);"), A4, M), M + 3)


def test_nested_guard_belongs_to_the_innermost():
    got = run(function("A[N]", "O[i : N] = A[i] + sum(A[j] > 2 ? A[j]);"), A4)
    np.testing.assert_array_equal(got, A4 + 7)


def test_nested_argmax_numbers_its_own_box():
    got = run(function("A[M, N]", "O[i : M] = 10 * argmax(A[i, j]) + i;"), np.array([[1.0, 5, 2], [7, 0, 0]]))
    assert got.tolist() == [10, 1]
    # over i = 0, 1 the inner variable ranges over -1 .. 2: the numbers start there for every i
    got = run(function("A[N]", "O[i : 2] = argmax(A[i + j]) + 0*i;"), A4)
    assert got.tolist() == [4, 3]


def test_nested_assign():
    np.testing.assert_array_equal(run(function("A[N]", "O[i : N] = 2 * assign(A[j]), i - j < 1;"), A4), 2 * A4)
    with pytest.raises(WriteConflict):
        run(function("A[N]", "O[i : N] = 2 * assign(A[j]), i - j < 2;"), A4)


# boundary words, gather and scatter in an index


def test_modulo_wraps():
    np.testing.assert_array_equal(run(function("A[N]", "O[i : N] = A[(i - 1) % N];"), A4), np.roll(A4, 1))
    np.testing.assert_array_equal(run(function("A[N]", "O[i : 6] = A[(2*i + 3) % N];"), A4), [4, 2, 4, 2, 4, 2])


def test_clamp():
    got = run(function("A[N]", "O[i : 6] = A[clamp(i - 1, 0, N - 1)];"), A4)
    np.testing.assert_array_equal(got, [1, 1, 2, 3, 4, 4])


def test_pad_reads_another_value_outside():
    np.testing.assert_array_equal(run(function("A[N]", "O[i : 6] = pad(A[i - 1], 7);"), A4), [7, 1, 2, 3, 4, 7])
    got = run(function("A[N]", "O[i : 5] = pad(A[i/2], 0 - i);"), A4)
    np.testing.assert_array_equal(got, [1, -1, 2, -3, 3])
    got = run(function("A[N]", "O[i : 5] = pad(in(A[i - 2]), 0);"), A4)
    np.testing.assert_array_equal(got, [0, 0, 1, 1, 1])


def test_pad_covers_gathers_inside():
    ix = np.array([2, 9, -1])
    got = run(function("A[N], Ix[K]", "O[i : 5] = pad(A[Ix[i]], 100);"), A4, ix)
    np.testing.assert_array_equal(got, [3, 100, 100, 100, 100])


def test_gather_in_an_index():
    ix = np.array([3, 0, 5, -1, 1])
    got = run(function("A[N], Ix[K]", "O[i : K] = A[Ix[i]];"), A4, ix)
    np.testing.assert_array_equal(got, [4, 1, 0, 0, 2])
    got = run(function("A[N], Ix[K]", "O[i : K] = A[Ix[i] + 1];"), A4, ix)
    np.testing.assert_array_equal(got, [0, 2, 0, 1, 3])
    got = run(function("A[N], Ix[K]", "O[] = mean(A[Ix[i]]);"), A4, ix)
    np.testing.assert_allclose(got, 7 / 3)  # points out of range do not count


def test_scatter_in_an_output_index():
    ix = np.array([2, 0, 2, 7])
    got = run(function("U[K, N], Ix[K]", "O[Ix[k], j : 4, N] = +(U[k, j]);"), np.ones((4, 2)) * A4[:, None], ix)
    np.testing.assert_array_equal(got, np.array([[2, 2], [0, 0], [4, 4], [0, 0]]))
    got = run(function("U[K], Ix[K]", "O[Ix[k] - 1 : 2] = >(U[k]);"), A4, ix)
    np.testing.assert_array_equal(got, [-np.inf, 3])


def test_data_dependent_bounds_as_a_guard():
    lengths = np.array([0, 2, 9])
    x = np.arange(12.0).reshape(3, 4) + 1
    got = run(function("X[B, T], L[B]", "O[b : B] = +(t < L[b] ? X[b, t]);"), x, lengths)
    np.testing.assert_array_equal(got, [0, 5 + 6, 9 + 10 + 11 + 12])


# functions of whole tensors


def test_reshape():
    np.testing.assert_array_equal(run(function("A[M, N]", "O = reshape(A, N, M);"), M), M.reshape(3, 2))
    got = run(function("A[M, N], B", "O = reshape(A, shape(B));"), M, np.zeros((6, 1)))
    np.testing.assert_array_equal(got, M.reshape(6, 1))
    with pytest.raises(SizeMistake):
        run(function("A[M, N]", "O = reshape(A, N, N);"), M)


def test_shape_and_index():
    got = run(function("A", "O = shape(A);"), M)
    assert got.tolist() == [2, 3] and got.dtype == np.int64
    assert run(function("A", "O = shape(A, 1) * 2;"), M) == 6
    np.testing.assert_array_equal(run(function("A", "O = index(A, 1);"), M), [[0, 1, 2], [0, 1, 2]])
    np.testing.assert_array_equal(run(function("A", "O[i : shape(A, 0)] = +(A[i, j]);"), M), M.sum(1))


def test_gather_and_scatter_of_slices():
    ix = np.array([[1, 0], [5, -1]])
    got = run(function("A, I", "O = gather(A, I);"), M, ix)
    np.testing.assert_array_equal(got, [[M[1], M[0]], [[0] * 3, [0] * 3]])
    got = run(function("A, I, Y", "O = scatter(A, I, Y);"), M, np.array([2, 2]), np.zeros((4, 3)))
    np.testing.assert_array_equal(got, [[0] * 3, [0] * 3, M[0] + M[1], [0] * 3])
    with pytest.raises(SizeMistake):
        run(function("A, I, Y", "O = scatter(A, I, Y);"), M, np.array([2]), np.zeros((4, 3)))


def test_simple_reduce():
    g = np.arange(24.0).reshape(2, 3, 4)
    for shape in [(2, 3, 4), (3, 4), (3, 1), (1, 4), (4,), (), (2, 1, 1)]:
        got = run(function("G, X", "O = simple_reduce(G, X);"), g, np.zeros(shape))
        want = torch.from_numpy(g).sum_to_size(shape).numpy()
        np.testing.assert_array_equal(got, want)
    with pytest.raises(SizeMistake):
        run(function("G, X", "O = simple_reduce(G, X);"), g, np.zeros((5, 4)))


def test_builtins_against_torch():
    t = torch.from_numpy(M)
    got = run(function("A[M, N]", "O = builtin_softmax(A, M, N);"), M)
    np.testing.assert_allclose(got, torch.softmax(t, 1).numpy())
    got = run(function("A[M, N]", "O = builtin_logsoftmax(A, M, N);"), M)
    np.testing.assert_allclose(got, torch.log_softmax(t, 1).numpy())


def test_reverse_grad_and_tuples():
    np.testing.assert_array_equal(run(function("A", "O = reverse_grad(A, 3);"), M), M)
    np.testing.assert_array_equal(run(function("A, B", "T = tuple(A, B); O = element(T, 1);"), M, A4), A4)


def test_functions_call_each_other():
    source = """
    function square(X) -> (Y) { Y = X * X; }
    function rows(A[M, N]) -> (S) { S[i : M] = +(A[i, j]); }
    function (A[M, N]) -> (O) { O = rows(square(A)) + 1; }
    """
    np.testing.assert_array_equal(run(source, M), (M * M).sum(1) + 1)


def test_special_values_pass_through_masked_points():
    inf = np.array([np.inf, np.nan])
    zero = np.zeros(4)
    got = run(function("A[N], B[K]", "O[i : N] = +(A[i] * B[i - 3]);"), zero, inf)
    np.testing.assert_array_equal(got, [0, 0, 0, np.nan])  # 0 * inf only where both are read


def test_rank_zero():
    a = np.array(3.0)
    np.testing.assert_array_equal(run(function("A[], B[N]", "O[i : N] = A[] * B[i];"), a, A4), 3 * A4)
    assert run(function("A[]", "O = A + 1;"), a) == 4
    assert math.isclose(run(function("A[]", "O[] = +(A[]);"), a), 3)


@pytest.mark.parametrize("modulus", ["-3", "S", "N - 6", "3/2"])
def test_a_modulus_of_an_index_is_a_positive_integer(modulus):
    """As it is where a program is compiled."""
    text = f"function (X[N], S[]) -> (Y) {{ Y[i : N] = X[i % ({modulus})]; }}"
    for run_it in (tilec.interpret, lambda text, *inputs: tilec.compile(text)(*inputs)):
        with pytest.raises(tilec.SizeMistake, match="positive integer"):
            run_it(text, np.ones(3), -3)


def test_a_modulus_of_zero_leaves_no_point():
    for place in ("i % S", "3 % S", "(i + 1) % (S - S)"):
        text = f"function (X[N], S[]) -> (Y) {{ Y[i : N] = pad(X[{place}], 7); }}"
        assert (tilec.interpret(text, np.ones(3), 0) == 7).all()
        assert (tilec.compile(text, warnings="default")(np.ones(3), 0) == 7).all()
