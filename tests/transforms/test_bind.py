"""Binding: sizes, structural functions, broadcasting, literals; the meaning kept, judged by the oracle."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from meaning import bound, same_meaning, statements

import tilec
from tilec.ir.evaluate import evaluate
from tilec.ir.index import linear
from tilec.ir.infer import infer
from tilec.ir.program import Access, Index, index_variables
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.transforms.bind.bind import bind, size_inputs


def array(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(sum(shape) + 1).integers(-4, 5, shape).astype(dtype)


def test_the_convolution() -> None:
    source = """function (I[N, H, W, CI], K[KH, KW, CI, CO]) -> (O) {
        O[n, y, x, co : N, H/3, W/3, CO] = +(I[n, 3*y + 2*j, 3*x + 2*i, ci] * K[j, i, ci, co]);
    }"""
    text = statements(bound(source, array(2, 7, 8, 1), array(3, 3, 1, 2)))
    assert text == ["O[n, y, x, co : 2, 2, 2, 2] = +(I[n, 2*j + 3*y, 2*i + 3*x, ci] * K[j, i, ci, co]);"]
    same_meaning(source, array(2, 7, 8, 1), array(3, 3, 1, 2))


SIZES = {
    "N/2*2": 6,
    "(N + 1)/2": 4,
    "(0 - N)/2 + N": 4,  # truncates toward zero
    "(0 - N) % 4": 1,  # floor
    "max(M, N) - min(M, N)": 4,
    "N > M ? N : M": 7,
    "(N < M ? 5 : 6) + (N == 7 ? 1 : 2)": 7,
    "shape(X, 1) + shape(Y, 0)": 3 + 7,
    "same(N, 7)": 7,
    "abs(M - N)": 4,
    "P": 3,
    "Q + 1": 4,
    "S*2": 8,
    "T": 9,
}


@pytest.mark.parametrize("size", SIZES)
def test_size_arithmetic(size: str) -> None:
    source = f"""function (X[N, M], Y, S[], R) -> (O) {{
        P = (max(0, (M - 1)*2 + 3 - N) + M)/1; Q = N/2; T = S + R;
        O[i : {size}] = X[i, 0];
    }}"""
    program = parse(source.replace("same(N, 7)", "7"))
    assert size_inputs(program) == (("S",) if size == "S*2" else ("S", "R") if size == "T" else ())
    arguments = array(7, 3), array(7), np.int64(4), np.int64(5)
    values = {"S": 4, "R": 5}
    types = {"X": TensorType((7, 3), "float32"), "Y": TensorType((7,), "float32")}
    types |= {"S": TensorType((), "int64"), "R": TensorType((), "int64")}
    assert infer(bind(program, types, values), types)["O"].shape == (SIZES[size],)
    if "same" not in size:
        same_meaning(source, *arguments)


def test_a_shared_size_of_an_inlined_function() -> None:
    source = "function f(A[N], B[N]) -> (C) { C[i : N] = A[i] + B[i]; } function (X, Y) -> (Z) { Z = f(X, Y); }"
    assert statements(bound(source, array(3), array(3)))[-1] == "Z[i : 3] = X[i] + Y[i];"


def test_literals_are_folded_into_their_readers() -> None:
    source = """function (X[N, M]) -> (Y, P) {
        P = (N - 1)/2; V = -3.5; F = N > 2; R = sqrt(N*1.0);
        Y[i : P + 1] = X[i + P, 0]*P + V*R + F;
    }"""
    assert statements(bound(source, array(5, 1))) == [
        "P[] = 2;",
        "Y[i : 3] = X[i + 2, 0] * 2 + -3.5 * sqrt(5 * 1.0) + (5 > 2);",
    ]
    same_meaning(source, array(5, 1))


def test_an_integer_input_is_a_size_and_a_value() -> None:
    source = "function (X[N], K) -> (Y, Z) { P = K + 1; Y[i : P] = X[i + K] * P; Z = X[0] * P; }"
    same_meaning(source, array(5), np.int8(2))
    assert "P[] = K[] + 1;" in statements(bound(source, array(5), np.int8(2)))
    same_meaning(source, array(5), 2)


def test_size_statements_that_are_read_as_sizes_alone_leave_nothing() -> None:
    source = "function (X[N], K) -> (Y) { P = K + 1; Y[i : P] = X[i + K]; }"
    assert statements(bound(source, array(5), np.int64(2))) == ["Y[i : 3] = X[i + 2];"]


def test_division_by_zero_matters_in_sizes_alone() -> None:
    source = "function (X[N]) -> (Y) { S = 6/N; Y[i : 2] = X[i] + S; }"
    same_meaning(source, array(0))


def test_sizes_left_out() -> None:
    source = "function (A[N, K], B[K, M]) -> (C) { C[i, j] = +(A[i, k] * B[k, j]); }"
    assert statements(bound(source, array(3, 4), array(4, 5)))[0].startswith("C[i, j : 3, 5] = ")
    same_meaning(source, array(3, 4), array(4, 5))
    same_meaning("function (A[N, K], B[N]) -> (C) { C[i] = tanh(sum(A[i, k])) + pad(B[i], 0); }", array(3, 4), array(3))


BROADCAST = [
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((3, 1), (1, 4)),
    ((), (2, 3)),
    ((1,), (0,)),
    ((2, 1, 3), (4, 1)),
    ((1, 1), (1,)),
]


@pytest.mark.parametrize("shapes", BROADCAST)
def test_broadcasting(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, y = (array(*shape) for shape in shapes)
    (result,) = same_meaning("function (X, Y) -> (Z) { Z = X * Y + X - 2; }", x, y)
    assert result.shape == np.broadcast_shapes(*shapes)


ELEMENTWISE = [
    "index(X, 1) + 10*index(X, 0)",
    "X * shape(X, 0) + shape(Y, 0)",
    "shape(X) + 1",
    "X + shape(X, 1)/2",
    "index(Y, 0) * X",
    "X[0, 1] * Y",
    "Y + sum(X[i, j])",
    "Y + sum(X[i0, i1])",
    "X > 0 ? Y : -Y",
    "as_type(X, I) * 3",
    "as_type(X > 0, Y)",
    "reshape(X, 8) * 2",
    "reshape(X * 2 + 1, 2, 4) - gather(X, I)",
    "simple_reduce(gather(X, I), Y) * Y",
]


@pytest.mark.parametrize("expression", ELEMENTWISE)
def test_elementwise_statements(expression: str) -> None:
    same_meaning(
        f"function (X[2, 4], Y[4], I[2]) -> (Z) {{ Z = {expression}; }}", array(2, 4), array(4), np.array([1, 0])
    )


RESHAPES = [
    ((2, 3, 4), (6, 4)),
    ((2, 3, 4), (2, 12)),
    ((6, 4), (2, 3, 4)),
    ((2, 3, 4), (4, 3, 2)),
    ((4, 6), (3, 8)),
    ((24,), (2, 1, 12, 1)),
    ((1, 24, 1), (24,)),
    ((3, 4), (3, 4)),
    ((1,), (1, 1)),
    ((), (1, 1)),
    ((0, 3), (3, 0)),
    ((2, 0), (0,)),
    ((5, 1, 2), (1, 10)),
    ((2, 3, 4, 5), (2, 12, 5)),
    ((2, 2, 3, 2, 5), (4, 6, 5)),
    ((4, 6, 5), (2, 2, 3, 10)),
    ((6, 4, 3), (4, 6, 3)),
]


def test_a_reshape_wraps_only_the_variables_that_are_divided() -> None:
    (s,) = bound("function (X) -> (Y) { Y = reshape(X, 2, 12, 5, 7); }", array(2, 3, 4, 5, 7)).statements
    assert isinstance(s.body, Access)
    divided, rest = s.body.index[1:3], (s.body.index[0], *s.body.index[3:])
    assert [index_variables(e) for e in divided] == [("i1",), ("i1",)]
    assert rest == (Index("i0"), Index("i2"), Index("i3"))


@pytest.mark.parametrize(("source", "target"), RESHAPES)
def test_reshape_is_row_major_and_its_indices_telescope(source: tuple[int, ...], target: tuple[int, ...]) -> None:
    x = np.arange(math.prod(source), dtype=np.float32).reshape(source)
    sizes = ", ".join(map(str, target))
    text = f"function (X) -> (Y) {{ Y = reshape(X, {sizes}); }}"
    (result,) = same_meaning(text, x)
    assert np.array_equal(result, x.reshape(target))
    (s,) = bound(text, x).statements
    assert isinstance(s.body, Access)
    if 0 in source:
        return
    strides = [math.prod(source[d + 1 :]) for d in range(len(source))]
    position = sum((linear(e) * n for e, n in zip(s.body.index, strides, strict=True)), start=linear(Index("i0")) * 0)
    wanted = {f"i{d}": math.prod(target[d + 1 :]) for d, n in enumerate(target) if n > 1}
    assert position.is_affine and {v: position.coefficient(v) for v in position.variables()} == wanted


def test_reshape_to_a_shape() -> None:
    same_meaning("function (X, Y) -> (Z) { Z = reshape(X, shape(Y)); }", array(2, 6), array(3, 4))
    same_meaning("function (X, Y) -> (Z) { Z = reshape(X, shape(Y)); }", array(1, 1), array())


@pytest.mark.parametrize(("x", "i"), list(product([(3,), (3, 2), (3, 2, 2), (0, 2)], [(), (2,), (2, 3), (0,)])))
def test_gather_and_scatter(x: tuple[int, ...], i: tuple[int, ...]) -> None:
    positions = np.random.default_rng(3).integers(-1, 4, i)
    source = "function (X, I, U) -> (G, S) { G = gather(X, I); S = scatter(U, I, X); }"
    gathered, scattered = same_meaning(source, array(*x), positions, array(*i, *x[1:]))
    assert gathered.shape == (*i, *x[1:]) and scattered.shape == x


REDUCED = [((2, 3), ()), ((2, 3, 4), (1, 4)), ((2, 3, 4), (3, 1)), ((0, 3), (3,)), ((0,), (1,)), ((2, 3), (2, 3))]


@pytest.mark.parametrize("shapes", [*BROADCAST, *REDUCED])
def test_simple_reduce(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    g, x = (array(*shape) for shape in shapes)
    program = bound("function (G, X) -> (R) { R = simple_reduce(G, X); }", g, x)
    (result,) = evaluate(program, (g, x))
    whole = np.broadcast_to(g, np.broadcast_shapes(*shapes)).astype(float)
    extra = whole.ndim - x.ndim
    axes = tuple(d for d in range(whole.ndim) if d < extra or x.shape[d - extra] == 1 and whole.shape[d] != 1)
    assert np.array_equal(result, whole.sum(axes, keepdims=True).reshape(x.shape))


@pytest.mark.parametrize("literal", ["0.0", "V", "N - 1"])
def test_simple_reduce_of_a_literal(literal: str) -> None:
    source = f"function (X[N, M]) -> (R) {{ V = 2.5; R = simple_reduce({literal}, X); }}"
    (result,) = evaluate(bound(source, array(2, 3)), (array(2, 3),))
    assert np.array_equal(result, np.full((2, 3), {"0.0": 0, "V": 2.5, "N - 1": 1}[literal]))


@pytest.mark.parametrize("shape", [(), (1,), (5, 1), (4,), (1, 4), (5, 4)])
def test_a_default_is_broadcast_to_the_output(shape: tuple[int, ...]) -> None:
    source = "function (X[N, M], D) -> (O) { O[i, j : 5, 4] = X[i, j] default D; }"
    x, d = array(2, 3), array(*shape)
    program = bound(source, x, d)
    assert len(program.statements) == 1 + (shape != (5, 4))
    (result,) = evaluate(program, (x, d))
    wanted = np.broadcast_to(d, (5, 4)).copy()
    wanted[:2, :3] = x
    assert np.array_equal(result, wanted)


def test_indices_are_exact_and_canonical() -> None:
    source = "function (A[N], K[L]) -> (O) { O[a : N] = +(A[a + b - L/2] * K[b]); }"
    assert statements(bound(source, array(5), array(3))) == ["O[a : 5] = +(A[a + b - 3/2] * K[b]);"]
    same_meaning(source, array(5), array(3))
    source = (
        "function (A[N]) -> (O) { O[i : N] = A[(i + N - 1) % N] + A[clamp(i + 1, 0, N - 1)] + A[max(N, 2) - 1 - i]; }"
    )
    same_meaning(source, array(4))


def test_modulo_zero_reads_nothing() -> None:
    assert same_meaning("function (A[N], B[M]) -> (O) { O[i : M] = B[i] + pad(A[(i) % N], 7); }", array(0), array(2))
    assert statements(bound("function (A[N]) -> (O) { O[i : 2] = A[(i) % N]; }", array(0))) == ["O[i : 2] = A[1/2];"]


LOST = [
    "O[i : N] = +(A[i + 0*j + 0*k]), 0*j + k < 3, k - j < 2, j < 2;",
    "O[i : N] = +(A[i + 0*j]), j < 3;",
    "O[i : N] = 1 + sum(A[0*j + 1]), j < 3;",
    "O[i : N] = A[i] + sum(A[j]), 0*j + 9 < 3;",
    "O[i : N] = A[i] + sum(A[j]), i/2 + 0*j < 3;",
    "O[i : N] = A[i] + sum(A[j - j + k + 0*i]), k + j < 4, j < 2;",
    "O[] = argmax(A[k + j] * A[j]);",
    "O[i : N] = A[i] + argmax(A[k + j] * A[j]);",
    "O[i : N] = mean(A[i] + pad(A[j], 1)), j < 3;",
]


@pytest.mark.parametrize("statement", LOST)
def test_variables_that_canonical_indices_lose(statement: str) -> None:
    same_meaning(f"function (A[N]) -> (O) {{ {statement} }}", array(4))


def test_copies_take_the_name_of_the_output() -> None:
    source = """function (X[N]) -> (Y, Z, W) {
        A[i : N] = X[i] * 2; B = ident(A); C = reshape(A, N); Y = C; Z = C; W = X; D = C + 1;
    }"""
    same_meaning(source, array(3))
    assert statements(bound(source, array(3))) == [
        "Y[i : 3] = X[i] * 2;",
        "B[i0 : 3] = ident(Y[i0]);",
        "Z[i0 : 3] = Y[i0];",
        "W[i0 : 3] = X[i0];",
        "D[i0 : 3] = Y[i0] + 1;",
    ]


def test_the_bound_program_binds_to_itself() -> None:
    source = "function (X[N, M]) -> (Y) { P = N/2; Y[i : P] = sum(X[2*i, j]) * P; }"
    program = bound(source, array(5, 2))
    assert bind(program, {"X": TensorType((5, 2), "float32")}, {}) == program


BITS = ("K[n] & (c == 0) ? A[n, c]", "(c == 0) & K[n] ? A[n, c] : 0", "K[n] & (c <= n) ? A[n, c]", "c & K[n] ? A[n, c]")


@pytest.mark.parametrize("body", BITS)
def test_bits_of_an_integer_are_no_conjunction(body: str) -> None:
    """`2 & true` is 0: of an integer and a comparison, neither may be asked alone."""
    k, a = np.array([0, 1, 2, 3]), np.arange(1.0, 13.0).reshape(4, 3)
    source = f"function (K[N], A[N, C]) -> (Y) {{ Y[n : N] = sum[c]({body}); }}"
    exact = tilec.interpret(source, k, a)
    found = tilec.compile(source)(torch.tensor(k), torch.tensor(a))
    np.testing.assert_array_equal(found.numpy(), exact)
    assert (exact[2] == 0) == ("c & K" not in body)
