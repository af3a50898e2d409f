"""Gradients by value: finite differences of the oracle, to second order, and the points where those cannot help."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conformance.programs import BROADCAST, DIFFERENTIATED, GATHERS, INDICES
from support.gradcheck import check_gradient

import tilec
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.evaluate import evaluate
from tilec.ir.functions import FUNCTIONS, ScalarFunction
from tilec.ir.program import Float
from tilec.ir.types import DTYPES
from tilec.language import parse
from tilec.transforms.autodiff.adjoint import ADJOINT_RULES
from tilec.transforms.autodiff.grad import grad


def normal(*shapes: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.normal(size=shape) for shape in shapes]


SMOOTH = sorted(f.name for f in FUNCTIONS.values() if f.pullback and f.name not in ("reverse_grad", "as_type", *DTYPES))
POSITIVE = ("log", "sqrt", "rsqrt", "pow", "log1p")


@pytest.mark.parametrize("name", SMOOTH)
def test_scalar_functions(name):
    f = FUNCTIONS[name]
    names = "XYZ"[: f.arity[0]]
    text = f"{name}({', '.join(names)})" if f.arity[0] != 3 else "X > 0 ? Y : Z"
    if f.symbol and f.arity[0] < 3:
        text = f"X {f.symbol} Y" if f.arity[0] == 2 else f"{f.symbol}X"
    arrays = normal(*[(4,)] * len(names), seed=3)
    if name in POSITIVE:
        arrays = [abs(a) + 0.2 for a in arrays]
    if name in ("asin", "acos"):
        arrays = [0.8 * np.tanh(a) for a in arrays]
    check_gradient(f"function ({', '.join(names)}) -> (O) {{ O = ({text}) * X; }}", *arrays)


BODIES = ["A[i, k]", "A[i, k] * B[k]", "sin(A[i, k]) / (2 + B[k]) + i", "A[2*i - k, k] * B[k] * B[k]"]


def test_every_aggregation_has_a_rule():
    assert set(ADJOINT_RULES) == set(AGGREGATIONS)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("aggregation", [name for name, rule in ADJOINT_RULES.items() if rule and name != "assign"])
@pytest.mark.one_in(8)
def test_aggregations(aggregation, body, nested):
    body = body.replace("2*i - k", "i") if aggregation in ("max", "min", "logsumexp") else body  # else rows of -inf
    call = f"{aggregation}({body})"
    a, b = normal((3, 4), (4,), seed=5)
    text = f"tanh({call}) * A[i, 0]" if nested else call
    check_gradient(f"function (A[I, K], B[K]) -> (O) {{ O[i : I] = {text}; }}", a, b)


@pytest.mark.parametrize("outer", ["sum", "mean", "prod", "max", "logsumexp"])
@pytest.mark.parametrize("inner", ["sum", "mean", "prod", "min", "logsumexp"])
@pytest.mark.one_in(8)
def test_aggregations_within_aggregations(outer, inner):
    check_gradient(
        f"function (A[I, J, K]) -> (O) {{ O[i : I] = {outer}(exp(A[i, j, 0]) * {inner}(A[i, j, k])); }}",
        *normal((2, 3, 3)),
    )
    check_gradient(
        f"function (A[I, J]) -> (O) {{ O[i : I] = {outer}({inner}[k](A[i, j] * A[j, k])) + A[i, 1]; }}", *normal((3, 3))
    )


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_contractions(name):
    inputs, statement, shapes = DIFFERENTIATED[name]
    check_gradient(f"function ({inputs}) -> (O) {{ {statement}; }}", *normal(*shapes, seed=1))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", GATHERS)
def test_gathers_and_scatters(name):
    inputs, statement, shapes = GATHERS[name]
    length = 6 if name == "whole scatter" else 5
    check_gradient(
        f"function ({inputs}) -> (O) {{ {statement}; }}", *normal(*shapes), np.resize(INDICES, length), tolerance=1e-6
    )


@pytest.mark.parametrize("name", BROADCAST)
def test_elementwise(name):
    inputs, statements, shapes = BROADCAST[name]
    check_gradient(f"function ({inputs}) -> (O) {{ {statements}; }}", *normal(*shapes, seed=2))


def deep(leaf: str, *others: str) -> str:
    """An expression of a dozen levels that stays in proportion."""
    for k in range(6):
        leaf = f"sin({leaf} + {others[k % len(others)]})"
    return leaf


def test_deep_expressions():
    check_gradient(f"function (X, Z) -> (O) {{ O = Z * {deep('X', 'Z', 'X * X')}; }}", *normal((3,), (2, 1)))
    body = deep("A[2*i]", "B[i]", "pad(A[i + 1], B[0])", "A[i - 1]")
    for statement in (f"O[i : N] = =(A[1] * {body}), i - 1 < 2 default B",):
        check_gradient(f"function (A[N], B[N]) -> (O) {{ {statement}; }}", *normal((4,), (4,), seed=4))
    check_gradient(f"function (A[N], B[N]) -> (O) {{ O[i : N] = +({body}); }}", *normal((4,), (4,), seed=4), order=1)


def test_third_order():
    check_gradient("function (A[N]) -> (O) { O[] = *(A[i]); }", *normal((4,)), order=3)
    check_gradient("function (A[N]) -> (O) { O[] = logsumexp(A[i] * A[i]); }", *normal((3,)), order=3, tolerance=1e-5)


def test_outputs_may_repeat_be_inputs_and_be_integers():
    source = "function (X, W) -> (X, Y, Y, I) { Y = X * X; I = X > 0; }"
    check_gradient(source, *normal((5,), (2,)))


def gradient(source: str, *arrays, cotangent=None) -> list[np.ndarray]:
    program = parse(source)
    (output,) = evaluate(program, arrays)
    return list(evaluate(grad(program), [*arrays, np.ones(output.shape) if cotangent is None else cotangent]))


INF = np.inf


@pytest.mark.parametrize("row", [[1, 3, 3, 2], [3, 3, 3, 3], [-INF, -INF, -INF, -INF], [INF, 1, INF, 2]])
@pytest.mark.parametrize("symbol, reduction", [(">", torch.amax), ("<", torch.amin)])
def test_ties_share_as_in_torch(symbol, reduction, row):
    a = torch.tensor([row], dtype=torch.float64, requires_grad=True)
    reduction(a, 1).sum().backward()
    (found,) = gradient(f"function (A[N, K]) -> (O) {{ O[n : N] = {symbol}(A[n, k]); }}", a.detach().numpy())
    np.testing.assert_array_equal(found, a.grad.numpy())


def test_nan_maxima_have_no_gradient():
    (found,) = gradient("function (A[N]) -> (O) { O[] = >(A[i]); }", np.array([1.0, np.nan, 3.0]))
    np.testing.assert_array_equal(found, [0, 0, 0])


def test_products_with_zeros():
    a = torch.tensor([[0.0, 2, 3], [0, 0, 5], [1, 2, 3], [0, 0, 0]], dtype=torch.float64, requires_grad=True)
    source = "function (A[N, K]) -> (O) { O[n : N] = *(A[n, k]); }"
    (expected,) = torch.autograd.grad(torch.prod(a, 1).sum(), a, create_graph=True)
    (found,) = gradient(source, a.detach().numpy())
    np.testing.assert_array_equal(found, expected.detach().numpy())
    weights = torch.arange(12.0, dtype=torch.float64).reshape(4, 3)
    (expected,) = torch.autograd.grad((expected * weights).sum(), a)
    twice = grad(grad(parse(source)), ["A"])
    (found,) = evaluate(twice, [a.detach().numpy(), np.ones(4), weights.numpy()])
    np.testing.assert_array_equal(found, expected.numpy())


def test_logsumexp_of_nothing_but_minus_infinity_has_no_gradient():
    a = np.array([[-INF, -INF], [-INF, 0.0], [1.0, -INF]])
    (found,) = gradient("function (A[N, K]) -> (O) { O[n : N + 1] = logsumexp(A[n, k]); }", a)
    np.testing.assert_array_equal(found, [[0, 0], [0, 1], [1, 0]])
    (found,) = gradient("function (A[N, K]) -> (O) { O[n : N] = 2 * logsumexp(A[n, k]); }", a)
    np.testing.assert_array_equal(found, [[0, 0], [0, 2], [2, 0]])
    (found, again) = gradient("function (A, B) -> (O) { O = logaddexp(A, B); }", a[:, 0].copy(), a[:, 1].copy())
    np.testing.assert_array_equal(found, [0, 0, 1])
    np.testing.assert_array_equal(again, [0, 1, 0])


def test_what_an_operand_of_minus_infinity_is_made_of_has_no_gradient():
    """However infinite its derivative is, as at the border of a soft time warping; torch gives NaN."""
    a, g = np.array([INF, INF, 1.0]), np.array([0.5, 0.25, 0.5])
    (found, again) = gradient("function (A, G) -> (O) { O = logaddexp(-A / G, G); }", a, g)
    np.testing.assert_array_equal(found[:2], [0, 0])
    np.testing.assert_array_equal(again[:2], [1, 1])
    assert found[2] < 0 and np.isfinite(again[2])


@pytest.mark.parametrize("compared", ["max(A[i], B[i])", "-min(-A[i], -B[i])", "relu(A[i] - B[i]) + B[i]"])
def test_a_comparison_in_a_branch_leaves_the_points_of_the_other(compared):
    a, b = np.array([1.0, -1, -1, 2]), np.array([-2.0, -1, 1, 3, 5])
    source = f"function (A[N], B[M]) -> (T) {{ T[k : 3] = +(2 > k ? B[i] : {compared}), k < 3; }}"
    received, again = gradient(source, a, b)
    np.testing.assert_array_equal(received[[0, 2, 3]], [1, 0, 0])
    np.testing.assert_array_equal(again[2:], [3, 3, 2])


def test_the_branch_not_taken_hides_what_is_infinite():
    x = np.array([0.0, 4.0])
    inner = "sqrt(X)" + " + 0" * 12
    for source in (
        "O = X > 0 ? sqrt(X) * X : X",
        f"O = X > 0 ? ({inner}) * X : X",
        "O[i : N] = +(X[i] > 0 ? sqrt(X[i]) * X[i] : X[i])",
        "O[i : N] = =(X[i] > 0 ? sqrt(X[i]) * X[i])",
    ):
        (found,) = gradient(f"function (X[N]) -> (O) {{ {source}; }}", x)
        np.testing.assert_array_equal(found, ["=(" not in source, 3])


def test_points_past_the_output_or_another_operand_contribute_nothing():
    a, b = np.arange(4.0), np.array([INF, 1.0])
    found, _ = gradient("function (A[N], B[M]) -> (O) { O[i + 1 : 3] = +(A[i] + B[i]); }", a, b)
    np.testing.assert_array_equal(found, [1, 1, 0, 0])


def test_reverse_grad_scales_by_its_negative():
    (found,) = gradient("function (X) -> (O) { O = reverse_grad(X * X, 0.5); }", np.array([1.0, 3.0]))
    np.testing.assert_array_equal(found, [-1, -3])


def test_float_casts_pass_the_cotangent_and_integer_casts_do_not():
    source = "function (A, B) -> (O) { O = float32(A) * B + float64(int32(A * 100)) + as_type(A, B); }"
    found, _ = gradient(source, np.array([0.5, 2.0]), np.array([3.0, 4.0]))
    np.testing.assert_array_equal(found, [4, 5])


def test_a_factor_that_leaves_a_sum_leaves_no_quotient_of_integers():
    """With DO / 3 * 2 in each term and DO taken out, 2 / 3 is left, which must not become a division of integers."""
    source = """function (X[N, D], Z[N, D]) -> (O) {
        M[i] = mean(X[i, j]); T[i : N] = mean(Z[i, j]);
        O[i : N] = mean(Z[i, j] * (X[i, j] - M[i]) * 2 + -(T[i] * (X[i, j] - M[i])) * 2);
    }"""
    x, z = torch.arange(6.0, dtype=torch.float64).reshape(2, 3).sin(), torch.eye(2, 3, dtype=torch.float64)
    d = torch.tensor([1.0, 2.0], dtype=torch.float64)
    found = tilec.compile(source).grad("X")(x, z, d)
    torch.testing.assert_close(found, 2 * d[:, None] * (z - z.mean(1, keepdim=True)) / 3)


def test_a_pullback_with_a_negative_literal_is_found(monkeypatch):
    row = ScalarFunction("halved", (1, 1), "float", lambda x: -x / 2, pullback=lambda g, a, f: (g * Float(-0.5),))
    monkeypatch.setitem(FUNCTIONS, "halved", row)
    with pytest.raises(tilec.InternalMistake, match=r"the literal -0\.5 is negative"):
        check_gradient("function (X) -> (O) { O = halved(X); }", np.ones(4))


@pytest.mark.parametrize(
    "body",
    ["A[i] * B[i] * C[i]", "A[i] * A[i] * C[i] * C[i]", "exp(A[i] * B[i] * C[i] / 100)", "(3 - A[i]) * B[i] * C[i]"],
)
@pytest.mark.parametrize("form", ["Y[i : N] = {}", "Y[] = +({})"])
def test_integers_that_wrap_in_a_product_wrap_in_its_gradient(body, form):
    a, b = np.array([20, 30, 3], np.int8), np.array([20, 20, 20], np.int8)
    source = f"function (A[N], B[N], C[N]) -> (Y) {{ {form.format(body)}; }}"
    check_gradient(source, a, b, *normal((3,)), order=1)
    y = tilec.compile(source).jvp(wrt="C")(a, b, np.ones(3), np.ones(3))[1]
    assert np.allclose(y.sum(), tilec.compile(source).grad("C")(a, b, np.ones(3), np.ones(y.shape)).sum())
