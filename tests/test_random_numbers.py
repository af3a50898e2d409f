"""rand and randn in programs: what is drawn where, seeds of every kind, gradients without masks, equal draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.stages import check, gradient

import tilec
from tilec.ir.philox import normal, uniform
from tilec.ir.program import Call, expressions, walk
from tilec.ir.types import TensorType
from tilec.language import parse, show
from tilec.pipeline import lower
from tilec.transforms.autodiff.grad import grad

BIG = 12345678901
DROPOUT = "function (X, S) -> (Y) { Y = rand(S) < 0.25 ? 0 : X / 0.75; }"


def wrapped(n: int) -> int:
    """As int64 arithmetic has it."""
    return (n + 2**63) % 2**64 - 2**63


def draws(program) -> list[Call]:
    found = [e for s in program.statements for root in expressions(s) for e in walk(root)]
    return [e for e in found if isinstance(e, Call) and e.function in ("rand", "randn")]


@pytest.mark.parametrize("function, oracle", [("rand", uniform), ("randn", normal)])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 5), (2, 1, 4), (2, 0, 3), (300, 70)])
def test_elementwise_draws_count_row_major_positions(function, oracle, shape):
    f = tilec.compile(f"function (X, S) -> (Y) {{ Y = X + {function}(S); }}")
    got = f(torch.zeros(shape), 11)
    expected = oracle(11, np.arange(np.prod(shape, dtype=int)).reshape(shape))
    assert got.dtype is torch.float32 and got.shape == shape
    np.testing.assert_allclose(got.double().numpy(), expected, rtol=2**-23)
    np.testing.assert_array_equal(tilec.interpret(f.source, np.zeros(shape), 11), expected)


def test_the_statement_says_what_is_counted():
    """The broadcast shape of the whole statement, wherever in it the draw stands."""
    row, column = torch.zeros(4), torch.zeros(3, 1)
    whole = uniform(5, np.arange(12).reshape(3, 4))
    for text in ("R + C + rand(5)", "C + (R + rand(5))", "(0 ? R : rand(5)) - C", "max(rand(5) + R * 0, C - 1)"):
        got = tilec.compile(f"function (R, C) -> (Y) {{ Y = {text}; }}")(row, column)
        np.testing.assert_array_equal(got.numpy(), whole)
    assert tilec.compile("function (R) -> (Y, R) { Y = rand(5); }")(row)[0].shape == ()


def test_counters_are_integer_expressions():
    n, m = 6, 5
    e = np.arange(n)[:, None] * m + np.arange(m)
    places = np.array([4, 0, 9, -3, 4])
    for text, counter in {
        "rand(S, i*M + j)": e,
        "rand(S, -i)": -np.arange(n)[:, None] + 0 * e,
        "rand(S, (i*M + j) / 3)": e // 3,
        "rand(S, (i - j) / 2)": np.trunc((np.arange(n)[:, None] - np.arange(m)) / 2).astype(int),
        "rand(S, i*j % 4)": np.arange(n)[:, None] * np.arange(m) % 4,
        "rand(S, P[j] * 2)": 0 * e + places * 2,
        "rand(S, E)": 0 * e + BIG,
        "rand(S, E * 8589934592 + i)": np.vectorize(wrapped)(
            BIG * 2**33 + np.arange(n)[:, None] * np.ones((1, m), object)
        ),
    }.items():
        source = f"function (A[N, M], P[M], S[], E[]) -> (O) {{ O[i, j : N, M] = A[i, j] + 0 * P[j] + {text}; }}"
        inputs = [np.zeros((n, m)), places, np.array(3), np.array(BIG)]
        (got,) = check(parse(source), inputs)
        np.testing.assert_array_equal(got, uniform(3, counter), err_msg=text)


def test_a_counter_from_an_input_does_not_specialise():
    f = tilec.compile("function (X[N], S[], Step[]) -> (Y) { Y[i : N] = X[i] + rand(S, Step * N + i); }")
    x = torch.zeros(5)
    results = [f(x, 1, torch.tensor(step)) for step in range(4)]
    assert torch.equal(torch.cat(results), f(torch.zeros(20), 1, torch.tensor(0)))
    assert len(f._specialiser._prepared) == 2


@pytest.mark.parametrize(
    "statement",
    [
        "C[i, j : N, M] = +(A[i, k] * (rand(3, i*K + k) < 0.5) * B[k, j]);",
        "C[i : N] = logsumexp(A[i, k] + randn(1, i*K + k) * B[k, 0]);",
        "C[x, k : N, K] = +(A[x + j - 1, k] * randn(1, 3*x + j)), j < 3;",
        "C[3*i, j : 3*N, M] = B[j, i] * rand(A[0, 0] < 99 ? 1 : 2, i*M + j);",
        "C = A[0, 0] * B * tanh(sum(rand(1, p) * A[p, 0])) * rand(1);",
        "C[i : N] = >(rand(1, i*K + k) > 0.3 ? pad(A[i + 1, k], 7)), k < K;",
        "C[i/2 : N] = *(1 + rand(-1, i*K/2) * A[i, k]);",
    ],
)
def test_draws_in_contractions(statement):
    random = np.random.default_rng(2)
    arrays = [random.integers(-4, 5, s).astype(float) for s in ((4, 3), (3, 5))]
    program = parse(f"function (A[N, K], B[K, M]) -> (C) {{ {statement} }}")
    results = check(program, arrays)
    check(gradient(program, arrays), [*arrays, *(np.ones_like(r) for r in results)])


# seeds


def test_seeds_of_every_kind_are_the_number_they_hold():
    f = tilec.compile(DROPOUT)
    x = torch.ones(200)
    for seed in (0, 5, 127, -3, -128):
        wanted = f(x, seed)
        for dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
            assert torch.equal(f(x, torch.tensor(seed, dtype=dtype)), wanted)
        assert torch.equal(f(x, np.int32(seed)), wanted) and torch.equal(f(x, np.array(seed)), wanted)
        literal = f.source.replace(", S)", ")").replace("rand(S)", f"rand({seed})")
        assert torch.equal(tilec.compile(literal)(x), wanted)
    assert torch.equal(f(x, torch.tensor(200, dtype=torch.uint8)), f(x, 200))
    assert torch.equal(f(x, np.uint64(2**64 - 3)), f(x, -3)) and torch.equal(f(x, np.uint32(7)), f(x, 7))
    assert not torch.equal(f(x, torch.tensor(200, dtype=torch.uint8)), f(x, 200 - 256))


def test_huge_seeds_are_taken_modulo_2_to_64():
    f = tilec.compile(DROPOUT)
    x = torch.ones(200)
    assert torch.equal(f(x, 2**64 - 3), f(x, -3)) and torch.equal(f(x, 2**63), f(x, -(2**63)))
    assert len({tuple(f(x, s).tolist()) for s in (0, 1, -1, 2**32, 2**63, 2**63 - 1, 2**64 - 2)}) == 7
    with pytest.raises(tilec.InputMistake, match="S: 18446744073709551616 does not fit into 64 bits"):
        f(x, 2**64)
    with pytest.raises(tilec.InputMistake, match="does not fit"):
        tilec.compile("Y = X + S;")(x, 2**63)


def test_seeds_are_integer_expressions():
    x = torch.zeros(2, 3)
    for text, seed in {
        "S + 1": 5,
        "shape(X, 1)": 3,
        "T + S": 12,
        "int64(1.5 * S)": 6,
        "max(S, 7)": 7,
        "-S": -4,
        "sum(Ix[i])": 6,
        "Ix[1] - 9": -7,
    }.items():
        f = tilec.compile(f"function (X, S, Ix[N]) -> (Y) {{ T = S * 2; Y = X + rand({text}) + 0 * T; }}")
        got = f(x, 4, torch.tensor([1, 2, 3])).numpy()
        np.testing.assert_array_equal(got, uniform(seed, np.arange(6).reshape(2, 3)), err_msg=text)


@pytest.mark.parametrize("seed", [1.0, torch.tensor(1.0), True, torch.tensor([1])])
def test_other_seeds_are_refused(seed):
    with pytest.raises(tilec.TileError, match="the seed of rand is"):
        tilec.compile(DROPOUT)(torch.ones(3), seed)


def test_a_generator_gives_its_next_seed():
    f = tilec.compile(DROPOUT)
    x = torch.ones(500)
    g = torch.Generator().manual_seed(3)
    first, second = f(x, g), f(x, g)
    assert not torch.equal(first, second)
    assert torch.equal(f(x, g.manual_seed(3)), first) and torch.equal(f(x, g), second)
    drawn = torch.empty((), dtype=torch.int64).random_(-(2**63), None, generator=g.manual_seed(3))
    assert torch.equal(f(x, drawn), first)
    before = g.get_state()
    f.lower(x, g)
    assert torch.equal(g.get_state(), before)
    with pytest.raises(tilec.InputMistake, match="X is no seed"):
        f(g, 1)


def test_a_generators_seed_is_drawn_once_for_value_and_gradient():
    f = tilec.compile("function (X, S) -> (Y) { Y = X * X * (rand(S) < 0.5); }")
    x = torch.randn(300, dtype=torch.float64, requires_grad=True)
    y = f(x, torch.Generator().manual_seed(8))
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(dx, torch.where(y != 0, 2 * x, 0))
    (ddx,) = torch.autograd.grad(dx.sum(), x)
    torch.testing.assert_close(ddx, torch.where(y != 0, 2.0, 0.0).to(torch.float64))


# types, gradients, simplification


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "bool"])
def test_draws_are_float32_and_promote_as_such(dtype):
    x = torch.ones(4).to(getattr(torch, dtype))
    wanted = (x * torch.ones(4)).dtype
    for seed in (3, torch.tensor(3)):
        assert tilec.compile("function (X, S) -> (Y) { Y = X * rand(S); }")(x, seed).dtype is wanted
        dropped = tilec.compile("function (X, S) -> (Y) { Y = rand(S) < 0.5 ? 0 : X; }")(x, seed)
        assert dropped.dtype is (x + 0).dtype


def test_gradients_draw_again_and_store_nothing():
    forward = parse("function (X[N, M], B[M], S[]) -> (Y) { Y = sin(X) * B * (rand(S) < 0.5); }")
    backward = grad(forward, ("X", "B"))
    assert all(len(e.args) == 1 for e in draws(backward)) and draws(backward)
    assert not any(isinstance(s.body, Call) and s.body.function in ("rand", "lt") for s in backward.statements)
    types = {"X": TensorType((3, 4), "float64"), "B": TensorType((4,), "float64"), "S": TensorType((), "int64")}
    seeds = {*draws(lower(forward, types, {}).stages["flat"])}
    assert {*draws(lower(backward, types | {"DY": TensorType((3, 4), "float64")}, {}).stages["flat"])} == seeds


def test_broadcast_gradients_of_draws():
    f = tilec.compile("function (X, B, S) -> (Y) { Y = (X + B * B) * randn(S); }")
    x, b = torch.randn(5, 1, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    z = torch.from_numpy(normal(4, np.arange(35).reshape(5, 7)))
    dx, db, ds = f.grad()(x, b, 4, torch.ones(5, 7, dtype=torch.float64))
    torch.testing.assert_close(dx, z.sum(1, keepdim=True))
    torch.testing.assert_close(db, (z * 2 * b).sum(0))
    assert ds is None


def test_deep_expressions_keep_their_positions():
    """An expression deep enough to be cut before it is differentiated: its parts have another shape than the whole."""
    deep = "B * rand(S)"
    for _ in range(12):
        deep = f"sin({deep}) + B * (rand(S) < 0.9) - 0.1 * randn(S + 1)"
    source = f"function (X[N, M], B[M], S[]) -> (Y) {{ Y = X * ({deep}); }}"
    assert sum("Draw" in s.output for s in grad(parse(source), ("X", "B")).statements) == 2
    arrays = [np.random.default_rng(0).normal(size=(3, 4)), np.linspace(0.1, 0.4, 4), np.array(2)]
    program = parse(source)
    (y,) = check(program, arrays)
    weights = np.random.default_rng(1).normal(size=y.shape)
    _, by_b = check(gradient(program, arrays), [*arrays, weights])
    for k in (0, 3):
        moved = [[arrays[0], arrays[1] + s * 1e-5 * np.eye(4)[k], arrays[2]] for s in (1, -1)]
        slope = np.subtract(*(np.sum(weights * check(program, m)[0]) for m in moved)) / 2e-5
        assert by_b[k] == pytest.approx(slope, rel=1e-6)


def test_equal_draws_are_one_and_others_are_not():
    program = parse("""function (X[N], S[], T[]) -> (A, B, C, D) {
        A = X + rand(S); B = X + rand(S); C = X + rand(T); D = X + randn(S);
    }""")
    types = {"X": TensorType((4,), "float32"), "S": TensorType((), "int64"), "T": TensorType((), "int64")}
    flat = lower(program, types, {}).stages["flat"]
    assert len({*draws(flat)}) == 3 and len(draws(flat)) == 3
    a, b, c, d = tilec.compile(show(program))(torch.zeros(4), 1, 2)
    assert torch.equal(a, b) and not torch.equal(a, c) and not torch.equal(a, d)


def test_draws_of_literals_are_not_folded():
    lowered = tilec.compile("function (X) -> (Y) { Y = X * rand(3) + rand(3, 7); }").lower(torch.ones(4))
    assert len(draws(lowered.stages["defracted"])) == 2


def test_large_statements_draw_block_by_block():
    f = tilec.compile("function (S[]) -> (Y) { Y[i : 300000] = rand(S, i - 5); }")
    assert "for i_from" in f.lower(1).source()
    np.testing.assert_array_equal(f(1).numpy(), uniform(1, np.arange(300000) - 5))


def test_a_function_with_its_own_counter_stands_beside_indices():
    f = tilec.compile("""
        function drop(A, S, E) -> (B) { B = rand(S, E) < 0.5 ? 0 : A; }
        function (X[N, M], S[]) -> (Y) { Y[i : N] = +(drop(X[i, j], S, i*M + j)); }
    """)
    kept = uniform(9, np.arange(20).reshape(4, 5)) >= 0.5
    np.testing.assert_allclose(f(torch.ones(4, 5), 9).numpy(), kept.sum(1))


def test_functions_of_the_source_draw_over_their_own_statements():
    f = tilec.compile("""
        function drop(X, S) -> (Y) { Y = rand(S) < 0.5 ? 0 : X; }
        function (X, S) -> (Z) { H = drop(X, S); Z = drop(H, S + 1); }
    """)
    x = torch.arange(1.0, 21)
    kept = (uniform(9, np.arange(20)) >= 0.5) & (uniform(10, np.arange(20)) >= 0.5)
    np.testing.assert_array_equal(f(x, 9).numpy(), np.where(kept, x, 0))
