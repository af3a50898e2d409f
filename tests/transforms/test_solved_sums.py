"""Sums over a variable that an equation gives have no such variable."""

import numpy as np
import pytest
import torch

import tilec
from tilec.ir.program import Aggregate, Program, variables_of, walk

NAMED = "function (K[E], X[E], W[V, D]) -> (Y) { Y[e, d : E, D] = sum(K[e] == v ? X[e] * W[v, d]); }"
PLACES = np.array([0, 2, -1, 3, 1])


def flat_of(text: str, *arrays: np.ndarray) -> Program:
    return tilec.compile(text).lower(*arrays).stages["flat"]


def sums_of(program: Program) -> list[Aggregate]:
    return [e for s in program.statements for e in walk(*s.roots) if isinstance(e, Aggregate)]


def agreeing(text: str, wrt: str, arrays: list[np.ndarray], cotangent: np.ndarray) -> Program:
    """The flat gradient, whose values are the interpreter's."""
    grad = tilec.compile(text).grad(wrt=wrt.split())
    inputs = list(map(torch.tensor, (*arrays, cotangent)))
    got, wanted = grad(*inputs), tilec.interpret(grad.tile, *arrays, cotangent)
    for x, y in zip(*((v if isinstance(v, tuple) else (v,)) for v in (got, wanted)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)
    return grad.lower(*inputs).stages["flat"]


@pytest.mark.parametrize("aggregation", ["sum", "max", "min", "prod", "logsumexp"])
def test_what_data_name(aggregation: str) -> None:
    text = NAMED.replace("sum(", f"{aggregation}(")
    random = np.random.default_rng(0)
    arrays = [PLACES, random.standard_normal(5), random.standard_normal((3, 2))]
    (s,) = (s for s in flat_of(text, *arrays).statements if s.aggregation != "assign")
    assert set(variables_of(s)) == {"e", "d"}  # two of five places lie outside
    got = tilec.compile(text)(*map(torch.tensor, arrays))
    np.testing.assert_allclose(got, tilec.interpret(text, *arrays), rtol=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        NAMED.replace("X[e] * W", "X[e] * v * W"),  # a value of the variable's type
        NAMED.replace("K[e] == v", "X[e] == v"),  # not of integers
        NAMED.replace("K[e] == v", "2 * v == K[e]"),  # not of whole numbers
        NAMED.replace("sum(K[e] == v ? X[e] * W[v, d])", "argmax[v](K[e] == v ? W[v, d])"),  # the place itself
    ],
)
def test_what_is_none(text: str) -> None:
    arrays = [PLACES, np.array([0.0, 1.0, 1.5, 2.0, 0.5]), np.arange(6.0).reshape(3, 2)]
    assert any("v" in variables_of(s) for s in flat_of(text, *arrays).statements)
    got = tilec.compile(text)(*map(torch.tensor, arrays))
    np.testing.assert_allclose(got, tilec.interpret(text, *arrays), rtol=1e-12)


def test_the_gradient_of_ranks_along_edges() -> None:
    """A step of the gradient goes over the edges once, not for each node."""
    text = """function (S[E], D[E], W[E], R0[N]) -> (R) {
        R[t, v : 3, N] = t == 0 ? R0[v] : sum(D[e] == v ? R[t - 1, S[e]] * W[e]);
    }"""
    random = np.random.default_rng(1)
    arrays = [
        np.array([0, 1, 2, 2, 5]),
        np.array([1, 0, 0, -1, 2]),
        random.standard_normal(5),
        random.standard_normal(3),
    ]
    grad = agreeing(text, "W R0", arrays, random.standard_normal((3, 3)))
    assert [len(e.bound) for e in sums_of(grad)] and all(len(e.bound) == 1 for e in sums_of(grad))


STEPS = {
    "edges repeated": "0.3 * U[t - 1, clamp(i - 1, 0, N - 1)] + 0.2 * U[t - 1, clamp(i + 2, 0, N - 1)]",
    "edges reflected": "0.3 * U[t - 1, abs(i - 2)] + 0.2 * U[t - 1, N - 1 - abs(N - 2 - i)]",
    "taps": "sum[k](K[k] * U[t - 1, clamp(i + k - 1, 0, N - 1)])",
    "nonlinear": "tanh(U[t - 1, clamp(i - 1, 0, N - 1)] * U[t - 1, i] + X[clamp(i + 1, 0, N - 1)])",
    "every other": "U[t - 1, clamp(2*i - 1, 0, N - 1)]",
    "an end of its own": "0.5 * U[t - 1, clamp(i - 1, 1, N - 1)] + U[t - 1, clamp(i, 0, N - 2)]",
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("n", [3, 6])
@pytest.mark.parametrize("step", STEPS)
def test_gradients_of_steps_with_edges(step: str, n: int) -> None:
    text = f"function (X[N], K[3]) -> (U) {{ U[t, i : 4, N] = t == 0 ? X[i] : {STEPS[step]}; }}"
    random = np.random.default_rng(2)
    arrays = [random.standard_normal(n), random.standard_normal(3)]
    grad = agreeing(text, "X K" if "K[k]" in text else "X", arrays, np.round(random.standard_normal((4, n)) * 4))
    own = (s for s in grad.statements if s.output == "GU")
    variables = {v for s in own for e in walk(*s.roots) if isinstance(e, Aggregate) for v in e.bound}
    left = {"taps": {"k", "i"}, "every other": {"i"}, "edges repeated": {"i"}, "an end of its own": {"i"}}.get(
        step, set()
    )
    assert {v.rstrip("'0123456789") for v in variables} <= left
