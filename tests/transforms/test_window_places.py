"""Where extrema of windows stand, kept as bits: what is kept, and gradients of any order."""

from __future__ import annotations

import math

import pytest
import torch

import tilec
from tests.support.saved import kept_bytes

POOL = (
    "function (X[N, H, W, C]) -> (O) { O[n, y, x, c : N, H/2, W/2, C] = >(X[n, 2*y + j, 2*x + i, c]), j < 2, i < 2; }"
)
PLACED = {  # shapes of what they are given; whether the places alone are kept
    "pool": (POOL, (2, 6, 4, 3)),
    "channels first": (
        "function (X[N, C, H, W]) -> (O) { O[n, c, y, x : N, C, H/2, W/3] = <(X[n, c, 2*y + j, 3*x + i]), j<2, i<3; }",
        (2, 3, 4, 6),
    ),
    "maxout": ("function (X[N, 5, C]) -> (O) { O[n, c] = >(X[n, j, c]); }", (3, 5, 4)),
    "gaps and rests": ("function (X[N]) -> (O) { O[i : 3] = >(X[4*i + j + 1]), j < 3; }", (13,)),
    "overlapping": ("function (X[N]) -> (O) { O[i : N - 1] = >(X[i + j]), j < 2; }", (6,)),
    "beyond the tensor": ("function (X[N]) -> (O) { O[i : (N + 1)/2] = >(X[2*i + j - 1]), j < 2; }", (7,)),
    "3x3 of stride 2": (
        "function (X[N, H, W, C]) -> (O) { O[n, y, x, c : N, (H + 1)/2, (W + 1)/2, C] "
        "= >(X[n, 2*y + j - 1, 2*x + i - 1, c]), j < 3, i < 3; }",
        (2, 9, 9, 2),
    ),
    "turned": ("function (X[H, N]) -> (O) { O[n, y : N, H/4] = >(X[4*y + j, n]), j < 4; }", (8, 3)),
}
KEPT_AS_BEFORE = {
    "of a relu, which asks for X anyway": (
        "function (X[N, H]) -> (O) { R = relu(X); O[n, y : N, H/2] = >(R[n, 2*y + j]), j < 2; }",
        (3, 6),
    ),
    "of many elements": ("function (X[N, 10, C]) -> (O) { O[n, c] = >(X[n, j, c]); }", (3, 10, 2)),
    "read many times": ("function (X[N]) -> (O) { O[i : N - 3] = >(X[i + j]), j < 4; }", (30,)),
    "reversed": ("function (X[N]) -> (O) { O[i : N/2] = >(X[2*i + 1 - j]), j < 2; }", (6,)),
    "guarded": ("function (X[N]) -> (O) { O[i : N/2] = >(X[2*i + j] > 0 ? X[2*i + j]), j < 2; }", (6,)),
}


def tied(*shape: int) -> torch.Tensor:
    """Values of which many are equal."""
    x = torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(1)).double()
    return x.requires_grad_()


def by_hand(function: tilec.Function, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """The gradient that has nothing kept for it."""
    return function.grad()(x.detach(), g)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", [*PLACED, *KEPT_AS_BEFORE])
def test_gradients_are_those_of_the_text(name: str) -> None:
    source, shape = (PLACED | KEPT_AS_BEFORE)[name]
    function, x = tilec.compile(source), tied(*shape)
    y = function(x)
    g = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    (got,) = torch.autograd.grad(y, x, g)
    assert torch.equal(got, by_hand(function, x, g))
    kept = [s.name for s in function.saved(x)]
    assert (name in PLACED) == any(n.endswith("_where") for n in kept), kept
    if name in PLACED:
        assert kept_bytes(lambda: function(x)) <= x.numel() * 8 / 4


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["pool", "maxout"])
def test_higher_derivatives(name: str) -> None:
    source, shape = PLACED[name]
    function = tilec.compile(source)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: function(t).square(), x)
    assert torch.autograd.gradgradcheck(lambda t: function(t).square(), x)


def test_nan_stands_nowhere() -> None:
    x = torch.tensor([math.nan, 1.0, 2.0, 3.0], requires_grad=True)
    function = tilec.compile("function (X[N]) -> (O) { O[i : N/2] = >(X[2*i + j]), j < 2; }")
    (got,) = torch.autograd.grad(function(x), x, torch.ones(2))
    assert got.tolist() == [0, 0, 0, 1]


def test_beside_other_kept_values() -> None:
    """The derivative of the gradient asks the same bits."""
    source = "function (X[N, D]) -> (Y) { M[i] = mean(X[i, k]); O[i, y : N, D/2] = >(X[i, 2*y + j]), j < 2; Y[i, y] = O[i, y] * M[i]; }"  # noqa: E501
    function = tilec.compile(source)
    x = torch.randn(3, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradgradcheck(function, x)


EDGES = "O[n, y : N, (H + 1)/2] = >(X[n, 2*y + j]), j < 2; "
COLUMNS = "O[n] = >(X[n, k]); "
COMPARED = {  # what compares elements with extrema otherwise than a gradient; shapes of X and W; whether bits are asked
    "the windows alone": (
        "O[n, y : N, H/2] = >(X[n, 2*y + j]), j < 2; "
        "Q[n, y : N, H/2] = +((X[n, 2*y + u] == O[n, y] ? 2. : 3.) * W[u]), u < 2;",
        (9, 8),
        (2,),
        True,
    ),
    "an element more": (
        EDGES + "Q[n, y : N, H/2] = +(X[n, 2*y + u] == O[n, y] ? W[u] : 0), u < 3;",
        (9, 8),
        (3,),
        False,
    ),
    "edges": (EDGES + "Q[n, y : N, H] = +((X[n, 2*y + u] == O[n, y] ? 2. : 3.) * W[u]), u < 2;", (9, 7), (2,), False),
    "which nothing else bounds": (COLUMNS + "Q[n] = sum[k]((X[n, k] == O[n] ? 2. : 3.) * W[n]);", (9, 4), (9,), False),
    "of more weights": (COLUMNS + "Q[n] = sum[k](X[n, k] == O[n] ? W[k]);", (9, 4), (7,), False),
    "large counts": (
        COLUMNS + "C[n] = +(X[n, k] == O[n]); Q[n] = +((X[n, k] == O[n] ? 2. : 3.) * W[k] * (C[n] * 200));",
        (9, 4),
        (4,),
        True,
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", COMPARED)
def test_comparisons_that_the_text_makes(name: str) -> None:
    text, shape, weights, asked = COMPARED[name]
    function = tilec.compile(f"function (X[{'N, H' if 'y' in text else 'N, K'}], W[J]) -> (Q) {{ {text} }}")
    x, w = tied(*shape), tied(*weights)
    y = function(x.detach(), w)
    (got,) = torch.autograd.grad(y, w, torch.ones_like(y))
    assert torch.allclose(got, function.grad("W")(x.detach(), w.detach(), torch.ones_like(y)))
    assert any(s.name.endswith("_where") for s in function.saved(x.detach(), w)) == asked
