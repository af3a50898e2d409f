"""Gradients of a function: by autograd, to second order, of some inputs alone, and called by hand."""

from __future__ import annotations

import pytest
import torch

import tilec

MATMUL = "function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = +(A[i, k] * B[k, j]); }"
CONVOLUTION = """
function (I[N, H, W, CI], K[KH, KW, CI, CO]) -> (O) {
    O[n, y, x, co : N, H/3, W/3, CO] = +(I[n, 3*y + 2*j, 3*x + 2*i, ci] * K[j, i, ci, co]);
}
"""


def double(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_autograd_to_second_order() -> None:
    f = tilec.compile(CONVOLUTION)
    inputs = double(1, 7, 7, 2), double(2, 2, 2, 2)
    assert torch.autograd.gradcheck(f, inputs)
    assert torch.autograd.gradgradcheck(f, inputs, fast_mode=True)


def test_only_needed_gradients_and_integer_inputs() -> None:
    f = tilec.compile("function (X[N, D], I[M]) -> (Y) { Y[m, d : M, D] = X[I[m], d]; }")
    x, i = double(4, 2), torch.tensor([1, 1, 3])
    f(x, i).sum().backward()
    assert x.grad is not None and x.grad.sum(1).tolist() == [0, 4, 0, 2]
    dx, di = f.grad()(x.detach(), i, torch.ones(3, 2, dtype=torch.float64))
    assert di is None and torch.equal(dx, x.grad)


def test_integer_outputs_carry_no_gradient() -> None:
    f = tilec.compile("function (X[N]) -> (Y, A) { Y = X * X; A[] = argmax(X[i]); }")
    x = double(5)
    y, a = f(x)
    assert a.dtype is torch.int64 and not a.requires_grad and y.requires_grad
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())
    torch.testing.assert_close(f.grad()(x.detach(), torch.ones(5, dtype=torch.float64), torch.tensor(0)), x.grad)


def test_a_gradient_that_no_longer_needs_a_size() -> None:
    f = tilec.compile("function (S, A[N]) -> (A, T) { T[i : S] = 3; }")
    a, d = torch.ones(3), torch.rand(3)
    assert torch.equal(f.grad("A")(2, a, d, torch.ones(2)), d)
    with pytest.raises(tilec.InputMistake, match="the output A has shape"):
        f.grad("A")(2, a, torch.ones(4), torch.ones(2))


def test_what_an_integer_output_is_given_is_ignored() -> None:
    f = tilec.compile("function (X, I) -> (Y) { Y = as_type(X, I); }")
    i, x = torch.ones(3, dtype=torch.int64), torch.ones(3)
    assert torch.equal(f.grad("X")(x, i, torch.tensor(7.0)), torch.zeros(3))


def test_second_order_beside_an_integer_input() -> None:
    f = tilec.compile("function (X[N, D], I[M]) -> (Y) { Y[m, d : M, D] = sin(X[I[m], d]); }")
    x, i = double(4, 2), torch.tensor([1, 1, 3])
    assert torch.autograd.gradgradcheck(lambda t: f(t, i), x)


def test_expanded_cotangent() -> None:
    a, b = double(3, 4), double(4, 2)
    tilec.compile(MATMUL)(a, b).sum().backward()
    torch.testing.assert_close(a.grad, b.detach().sum(1).expand(3, 4))


def test_mixed_types_give_each_input_its_own_gradient_type() -> None:
    a, b = torch.ones(2, 3, requires_grad=True), double(3, 4)
    c = tilec.compile(MATMUL)(a, b)
    assert c.dtype is torch.float64
    da, db = tilec.compile(MATMUL).grad()(a.detach(), b.detach(), torch.ones(2, 4, dtype=torch.float64))
    assert (da.dtype, db.dtype) == (torch.float32, torch.float64)
    c.sum().backward()
    assert a.grad is not None and a.grad.dtype is torch.float32


@pytest.mark.parametrize("exponent", ["C[i, j]", "j > i", "C[i, j] | j > i"])
def test_powers_whose_exponent_is_a_truth(exponent: str) -> None:
    x = torch.tensor([[-1.5, 0.0, 2.0], [0.0, 3.0, -0.7]], dtype=torch.float64, requires_grad=True)
    c = torch.tensor([[True, True, False], [False, True, True]])
    power = tilec.compile(f"function (X[I, J], C[I, J]) -> (Y) {{ Y[i, j : I, J] = pow(X[i, j], {exponent}); }}")
    truth = tilec.compile(f"function (C[I, J]) -> (Y) {{ Y[i, j : I, J] = C[i, j] & ({exponent}) | ({exponent}); }}")
    (found,) = torch.autograd.grad(power(x, c).sum(), x)
    torch.testing.assert_close(found, truth(c).to(torch.float64))


def test_wrt() -> None:
    f = tilec.compile(MATMUL)
    a, b, d = torch.randn(2, 3), torch.randn(3, 4), torch.randn(2, 4)
    torch.testing.assert_close(f.grad("B")(a, b, d), a.T @ d)
    db, da = f.grad(["B", "A"])(a, b, d)
    torch.testing.assert_close(da, d @ b.T)
    with pytest.raises(tilec.NameMistake, match="no input is called Q"):
        f.grad("Q")
    with pytest.raises(tilec.InputMistake, match="no input to differentiate by"):
        tilec.compile("O[i : 3] = i").grad()


def test_gradient_text_compiles_to_the_same() -> None:
    f = tilec.compile(CONVOLUTION)
    g = f.grad()
    again = tilec.compile(g.tile)
    assert again.program == g.program
    i, k = torch.randn(1, 8, 9, 2), torch.randn(2, 2, 2, 3)
    d = torch.randn_like(f(i, k))
    for ours, other in zip(g(i, k, d), again(i, k, d), strict=True):
        assert torch.equal(ours, other)
