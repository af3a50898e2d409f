"""Expressions that one of torch's routines computes: values and gradients of the oracle, at NaN and zeros too."""

from __future__ import annotations

import math

import pytest
import torch

import tilec
from tilec.backends.torch.expr.pointwise import routine_of
from tilec.language import parse

BODIES = {
    "leaky": ("X > 0 ? X : 0.01 * X", "leaky_relu"),
    "leaky, falling": ("X <= 0 ? X * -2 : X", "leaky_relu"),
    "leaky, zero above": ("X >= 0 ? X : X * 0.25", "leaky_relu"),
    "leaky, negative slope": ("X >= 0 ? X : X * -0.25", ""),
    "leaky, below": ("X < 0 ? 0.25 * X : X", "leaky_relu"),
    "hard swish": ("X * min(max(X + 3, 0), 6) / 6", "hardswish"),
    "hard sigmoid": ("min(relu(X + 3), 6) / 6", "hardsigmoid"),
    "clamp": ("min(max(X, -0.5), 0.5)", "torch.clamp"),
    "clamp, other order": ("max(min(X, 0.5), -0.5)", "torch.clamp"),
    "clamp, limits exchanged": ("max(min(X, -0.5), 0.5)", ""),
    "clamp above zero": ("min(max(X, 0.25), 6)", "torch.clamp"),
    "one limit": ("max(X, 0.5)", ""),
    "the other": ("min(0.5, X)", ""),
    "two pieces": ("X > 0.5 ? X * X : 2 * X", ""),
    "three pieces": ("X > 0.5 ? X - 0.5 : X < -0.5 ? X + 0.5 : 0", ""),
    "outside": ("X > 0.5 | X < -0.5 ? X : 0", ""),
    "halves of a number": ("X * (X == 0.5 ? 0.5 : 1)", ""),
}
SPECIAL = [0.0, -0.0, 0.5, -0.5, 6.0, 3.0, -3.0, 1.0, math.inf, -math.inf, math.nan, 1e-40]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("size", [41, 9001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_and_gradients(name: str, size: int, dtype: torch.dtype) -> None:
    f = tilec.compile(f"Y = {BODIES[name][0]}")
    g = torch.Generator().manual_seed(size)
    x = torch.cat([torch.tensor(SPECIAL), torch.randn(size - len(SPECIAL), generator=g)]).to(dtype)
    small = torch.cat([x[: len(SPECIAL)], x[-2:]])
    dy = torch.randn(size, generator=g).to(dtype)
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-6
    want = _oracle(f, small)
    got = torch.cat([f(x)[: len(SPECIAL)], f(x)[-2:]])
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance, equal_nan=True)
    zero = (want == 0) & (got == 0)
    assert torch.equal(torch.signbit(got[zero]), torch.signbit(want[zero]))
    taken = torch.cat([dy[: len(SPECIAL)], dy[-2:]])
    slope = f.grad()(x, dy)
    (slope,) = slope if isinstance(slope, tuple) else (slope,)
    exact = _oracle(f.grad(), small, taken)
    torch.testing.assert_close(
        torch.cat([slope[: len(SPECIAL)], slope[-2:]]).double(), exact, rtol=tolerance, atol=tolerance, equal_nan=True
    )


def _oracle(f: tilec.Function, *inputs: torch.Tensor) -> torch.Tensor:
    found = tilec.interpret(f.tile, *(t.double().numpy() for t in inputs))
    return torch.as_tensor(found[0] if isinstance(found, tuple) else found, dtype=torch.float64)


@pytest.mark.parametrize("name", BODIES)
def test_the_routine(name: str) -> None:
    text, call = BODIES[name]
    f = tilec.compile(f"Y = {text}")
    assert call in f.lower(torch.randn(9001)).source()


def test_an_edge_that_gives_half() -> None:
    e = parse("function (X[N], G[N]) -> (Y) { Y[i : N] = X[i] >= 0 ? G[i] * (X[i] == 0 ? 0.5 : 1) : 0; }")
    found = routine_of(e.statements[0].body)
    assert found is not None and "rt.between_limits" in found.routine.call
    assert found.numbers == {"L": 0.0} and list(found.tensors) == ["X", "G"]
