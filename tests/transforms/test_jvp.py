"""What tangents look like: their text, their interface, what they refuse, and that they nest."""

from __future__ import annotations

import numpy as np
import pytest
from support.gradcheck import check_gradient

from tilec.errors import InputMistake, NameMistake
from tilec.ir.evaluate import evaluate
from tilec.ir.infer import infer
from tilec.ir.types import TensorType
from tilec.language import parse, show
from tilec.transforms.autodiff.grad import grad
from tilec.transforms.autodiff.jvp import jvp
from tilec.transforms.bind.bind import bind


def lines(source: str, wrt=None) -> list[str]:
    """The statements of values and tangents, which must survive their text."""
    program = jvp(parse(source), wrt)
    text = show(program)
    assert parse(text) == program
    return [line.strip() for line in text.splitlines()[1:-1]]


def test_products_that_are_summed_stay_products():
    source = """function (I[N, H, W, CI], K[KH, KW, CI, CO]) -> (O) {
        O[n, y, x, co : N, H/3, W/3, CO] = +(I[n, 3*y + 2*j, 3*x + 2*i, ci] * K[j, i, ci, co]);
    }"""
    assert lines(source) == [
        "O[n, y, x, co : N, H/3, W/3, CO] = +(I[n, 3*y + 2*j, 3*x + 2*i, ci] * K[j, i, ci, co]);",
        "TO_1[n, y, x, co : N, H/3, W/3, CO] = +(TI[n, 3*y + 2*j, 3*x + 2*i, ci] * K[j, i, ci, co]);",
        "TO_2[n, y, x, co : N, H/3, W/3, CO] = +(TK[j, i, ci, co] * I[n, 3*y + 2*j, 3*x + 2*i, ci]);",
        "TO_3 = TO_1 + TO_2;",
        "TO = as_type(TO_3, O);",
    ]


@pytest.mark.parametrize(
    "statement, expected",
    [
        ("O[i : N] = =(A[i] * A[i])", "TO_1[i : N] = TA[i] * A[i] * 2;"),
        ("O[i : M] = +(A[2*i] + B[k])", "TO_1[i : M] = +(TA[2*i] * in(B[k]));"),
        ("O[i : N] = mean(A[k] * B[i])", "TO_1[i : N] = mean(TA[k] * B[i]);"),
        ("O[i : M] = *(A[k] * B[i])", "TO_1[i : M] = +(TA[k] * prod(k' != k ? A[k'] * B[i]) * B[i]);"),
        ("O[i : M] = >(A[k] * B[i])", "TO_1[i : M] = +(A[k] * B[i] == O[i] ? TA[k] / Ties[i] * B[i]);"),
        (
            "O[i : M] = logsumexp(A[k] * B[i])",
            "TO_1[i : M] = +(O[i] != -inf ? TA[k] * exp(A[k] * B[i] - O[i]) * B[i]);",
        ),
        ("O[i : N] = +(A[i]) default A", "TO_1[i : N] = +(TA[i]) default TA;"),
        ("O[i : N] = pad(A[i - 1], A[i])", "TO_1[i : N] = pad(TA[i - 1], TA[i]);"),
        ("O[i : N] = argmax(A[k] * A[i])", "TO = as_type(0 ? O : 0.0, O);"),
        ("O = A * reverse_grad(A, 2)", "TO_1 = TA * reverse_grad(A, 2) - TA * A * 2;"),
    ],
)
def test_each_aggregation(statement, expected):
    assert expected in lines(f"function (A[N], B[M]) -> (O) {{ {statement}; }}", ["A"])


def test_interface():
    program = jvp(parse("function (X[N], I[K], Y[]) -> (Z, X) { Z[k : K] = X[I[k]] * Y[]; }"), ["Y", "X"])
    assert program.input_names() == ("X", "I", "Y", "TY", "TX")
    assert program.outputs == ("Z", "X", "TZ", "TX_1")
    results = evaluate(program, [np.arange(3.0), np.array([2, 5]), 3.0, 1.0, np.array([0.0, 0.0, 1.0])])
    assert [r.tolist() for r in results] == [[6, 0], [0, 1, 2], [5, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    "wrt, error",
    [(["Q"], NameMistake), ([], InputMistake), (["X", "X"], InputMistake)],
    ids=["unknown", "none", "twice"],
)
def test_refused(wrt, error):
    with pytest.raises(error):
        jvp(parse("Y = X * X;"), wrt)


def test_tangents_have_their_outputs_types():
    program = jvp(parse("function (X, Y) -> (P, Q, R) { P = X * Y; Q = float16(Y); R = X > Y; }"), ["X"])
    types = {"X": TensorType((2,), "float32"), "Y": TensorType((3, 2), "float64"), "TX": TensorType((2,), "float32")}
    found = infer(bind(program, types, {}), types)
    assert [(found[o].dtype, found[o].shape) for o in program.outputs[3:]] == [
        ("float64", (3, 2)),
        ("float16", (3, 2)),
        ("bool", (3, 2)),
    ]


def test_a_tie_of_one_element_or_of_none():
    """A logsumexp of -inf alone has no tangent that is not a number, an extremum of two equals has half of each."""
    program = jvp(parse("function (X[N]) -> (L, M) { L[] = logsumexp(X[i]); M[] = >(X[i]); }"))
    nothing = np.full(2, -np.inf)
    assert [r.tolist() for r in evaluate(program, [nothing, np.ones(2)])[2:]] == [0, 1]
    assert evaluate(program, [np.array([5.0, 5.0]), np.array([2.0, 4.0])])[3] == 3


NESTED = [
    "Y[i] = logsumexp(X[i, j] * W[j]);",
    "Y[i] = *(X[i, j] + W[j]);",
    "Y[i] = mean(tanh(X[i, j]) * W[j]);",
    "Y[i, j] = exp(X[i, j] - max(X[i, k])) / sum(exp(X[i, k] - max(X[i, l]))) * W[j];",
    "Y[i, t : 2, 3] = sum(tanh(Y[i, t - 1]) * X[i, t] * W[k]) + W[t] init W[i];",
    "Y[i, t : 2, 3] = logsumexp(X[i, j] * W[j]), t - j < 3;",
]


@pytest.mark.parametrize("source", NESTED)
@pytest.mark.one_in(3)
def test_nested_in_any_order(source):
    """The gradient of a tangent, and the tangent of a gradient, against finite differences."""
    random = np.random.default_rng(0)
    program = parse(f"function (X[2, 3], W[3]) -> (Y) {{ {source} }}")
    x, w = random.normal(size=(2, 3)) + 2, random.normal(size=3)
    forward = jvp(program)
    check_gradient(forward, x, w, random.normal(size=(2, 3)), random.normal(size=3), order=1)
    check_gradient(jvp(grad(program, ["X"]), ["W"]), x, w, evaluate(program, [x, w])[0], np.ones(3), order=1)
    again = jvp(forward, ["X", "TX"])
    assert parse(show(again)) == again


def test_a_tensor_that_is_called_like_a_tangent():
    """The tangent of E_1 wants the name that a term of E's tangent has; reading that is no recurrence."""
    source = (
        "function (X[N], W[N]) -> (Y) { E[i : N] = X[i] * W[i]; E_1[i : N] = 2 * E[i]; Y[i : N] = E_1[i] * E_1[i]; }"
    )
    x, w, t = np.array([1.0, 2.0]), np.array([3.0, 5.0]), np.array([1.0, -1.0])
    _, tangent = evaluate(jvp(parse(source)), [x, w, t, t])
    assert tangent.tolist() == (8 * x * w * t * (x + w)).tolist()


@pytest.mark.parametrize("moving", ["A", "B"])
@pytest.mark.parametrize("aggregation", ["mean", "logsumexp", "prod"])
def test_a_branch_without_a_tangent_bounds_its_points(aggregation, moving):
    """What the derivative no longer reads is asked beside it, under the same condition."""
    source = f"function (A[N], B[M], C[L]) -> (T) {{ T[] = {aggregation}(C[k] > 0 ? A[2*i + k] : B[i] * A[i - 1]); }}"
    a, b, c, t = np.array([1.0, 2.0, 4.0]), np.array([3.0, 5.0, 6.0, 7.0]), np.array([1, 0, 2]), 1e-6
    tangent = jvp(parse(source), [moving])
    assert parse(show(tangent)) == tangent
    given = {"A": a, "B": b}
    direction = np.sin(np.arange(1.0, 1 + len(given[moving])))
    found = evaluate(tangent, [a, b, c, direction])[1]
    ends = [
        evaluate(parse(source), [*{**given, moving: given[moving] + s * direction}.values(), c])[0] for s in (t, -t)
    ]
    assert found == pytest.approx((ends[0] - ends[1]) / (2 * t), rel=1e-6)
    pulled = evaluate(grad(parse(source), [moving]), [a, b, c, np.ones(())])[0]
    assert found == pytest.approx((pulled * direction).sum(), rel=1e-12)
    assert found != 0


@pytest.mark.parametrize("derivative", [grad, jvp])
def test_the_shape_of_a_cast_is_its_operands(derivative):
    """Not that of the tensor whose type it takes: a batch of a gradient casts what has no batch."""
    program = parse(
        "function (X[B, N], T[N]) -> (Y, S) { S = as_type(T, X); Y[b, i : B, shape(S, 0)] = S[i] * X[b, i]; }"
    )
    made = derivative(program)
    assert parse(show(made)) == made
    x, t = np.arange(6.0).reshape(2, 3), np.array([1.0, 2.0, 4.0])
    given = [np.ones((2, 3)), np.zeros(3)] if derivative is grad else [np.ones((2, 3)), t]
    *_, found = evaluate(made, [x, t, *given])
    assert found.tolist() == (x.sum(0) if derivative is grad else t).tolist()
