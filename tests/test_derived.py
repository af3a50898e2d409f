"""Function.jvp and Function.vmap: what they take and give, in any nesting, also of inputs of any rank."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import tilec
from tilec.errors import InputMistake, NameMistake, RankMistake, SizeMistake

MATMUL = "function (A[I, K], B[K, J]) -> (C) { C[i, j : I, J] = +(A[i, k] * B[k, j]); }"
SNAKE = "function (X, A) -> (Y) { Y = X + sin(A * X) * sin(A * X) / A; }"
SOFTMAX = """function (X[N, D], W[D]) -> (Y) {
    E[i, j] = exp(X[i, j] - max(X[i, k]));
    Y[i, j] = E[i, j] / sum(E[i, k]) * W[j];
}"""


def double(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def softmax(x, w):
    return torch.softmax(x, -1) * w


def test_tangents() -> None:
    f, x, w = tilec.compile(SOFTMAX), double(2, 3), double(3)
    value, tangent = f.jvp()(x, w, x, w)
    torch.testing.assert_close((value, tangent), torch.func.jvp(softmax, (x, w), (x, w)))
    assert f.jvp("W").inputs == ("X", "W", "TW") and f.jvp("W") is f.jvp(["W"])
    assert tilec.compile(f.jvp().tile).tile == f.jvp().tile
    d = f.jvp("W")(X=x, W=w, TW=w)[1]
    torch.testing.assert_close(d, value)


def test_what_is_not_floating_has_no_tangent() -> None:
    f = tilec.compile("function (X, I, N) -> (Y, K) { Y = gather(X, I) * N; K = I + N; }")
    x, i = torch.tensor([1.0, 2.0]), torch.tensor([1, 0, 1])
    y, k, dy, dk = f.jvp()(x, i, 3, 10 * x, i, 7)
    assert y.tolist() == [6, 3, 6] and dy.tolist() == [60, 30, 60]
    assert k.dtype is dk.dtype is torch.int64 and dk.tolist() == [0, 0, 0]


def test_a_tangent_has_its_inputs_shape() -> None:
    f = tilec.compile(SNAKE).jvp("X")
    with pytest.raises(InputMistake, match="TX has shape"):
        f(torch.ones(3), torch.ones(()), torch.ones(2, 3))
    assert torch.equal(
        f(torch.ones(3), 1.0, torch.ones(3, dtype=torch.int64))[1], f(torch.ones(3), 1.0, torch.ones(3))[1]
    )
    with pytest.raises(NameMistake):
        f.jvp("Q")


def test_torch_differentiates_through_tangents() -> None:
    f, x, w = tilec.compile(SOFTMAX), double(2, 3).requires_grad_(), double(3)
    (mine,) = torch.autograd.grad(f.jvp()(x, w, w.expand(2, 3), w)[1].square().sum(), x)
    theirs = torch.func.grad(lambda x: torch.func.jvp(softmax, (x, w), (w.expand(2, 3), w))[1].square().sum())(x)
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))], ids=["deepcopy", "pickle"])
def test_copies(make) -> None:
    f, x = tilec.compile(SNAKE), double(2, 3)
    a = double(1)[0]
    for g, inputs in ((f.jvp("X"), (x, a, x)), (f.vmap((0, None)), (x, a)), (f.vmap(0), (x, x[:, 0]))):
        again, results = make(g), g(*inputs)
        torch.testing.assert_close(again(*inputs), results)
    with pytest.raises(InputMistake, match="TX has shape"):
        make(f.jvp("X"))(x, a, x[0])


@pytest.mark.parametrize("in_dims, out_dims", [(0, 0), ((1, None), 2), ({"A": -1}, -1), ((None, 1), (1,))])
def test_batches(in_dims, out_dims) -> None:
    f, a, b = tilec.compile(MATMUL), double(3, 3, 3), double(3, 3, 3)
    dims = in_dims if not isinstance(in_dims, dict) else (-1, None)
    dims = (dims, dims) if isinstance(dims, int) else dims
    given = [t if d is not None else t[0] for t, d in zip((a, b), dims, strict=True)]
    g = f.vmap(in_dims, out_dims)
    where = out_dims if isinstance(out_dims, int) else out_dims[0]
    torch.testing.assert_close(g(*given), torch.vmap(torch.matmul, dims, where)(*given))
    assert tilec.compile(g.tile).tile == g.tile


def test_ranks_that_are_known_at_the_call() -> None:
    f = tilec.compile(SNAKE)
    g = f.vmap(0)
    for shape in ((4,), (2, 3), ()):
        x, a = double(5, *shape), double(5)
        torch.testing.assert_close(g(x, a), torch.stack([f(x[k], a[k]) for k in range(5)]))
    with pytest.raises(RankMistake, match="text depends"):
        _ = g.tile
    assert "Batch" in g.at(3, 1).tile
    assert isinstance(f.vmap((0, None)), tilec.Function) is False
    assert isinstance(tilec.compile("Y = X * sigmoid(X);").vmap(), tilec.Function)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("order", ["vmap grad", "grad vmap", "jvp vmap", "vmap jvp", "vmap vmap", "grad jvp vmap"])
@pytest.mark.parametrize("source", [SNAKE, SOFTMAX], ids=["snake", "softmax"])
def test_nested(source: str, order: str) -> None:
    """Each is what the same transforms of torch.func make of torch's function, written from the outermost on."""
    f = tilec.compile(source)
    x, w = double(2, 4, 3), double(2, 3)
    d = double(2, 4, 3)

    def whole(x, w):
        return x + torch.sin(w * x) ** 2 / w if source == SNAKE else softmax(x, w)

    batch = torch.vmap(whole)
    tangents = (double(2, 4, 3), double(2, 3))
    match order:
        case "vmap grad":
            got, expected = f.grad().vmap()(x, w, d), torch.func.vjp(batch, x, w)[1](d)
        case "grad vmap":
            got, expected = f.vmap().grad()(x, w, d), torch.func.vjp(batch, x, w)[1](d)
        case "jvp vmap":
            got, expected = f.vmap().jvp()(x, w, *tangents), torch.func.jvp(batch, (x, w), tangents)
        case "vmap jvp":
            got, expected = f.jvp().vmap()(x, w, *tangents), torch.func.jvp(batch, (x, w), tangents)
        case "vmap vmap":
            g = f.vmap((0, None)).vmap((None, 0))
            got, expected = g(x, w), torch.vmap(torch.vmap(whole, (0, None)), (None, 0))(x, w)
        case _:
            g = f.vmap().jvp().grad(f.inputs)
            forward = lambda x, w: torch.func.jvp(batch, (x, w), tangents)  # noqa: E731
            got, expected = g(x, w, *tangents, d, d), torch.func.vjp(forward, x, w)[1]((d, d))
    torch.testing.assert_close(got, expected)


def test_different_random_numbers_of_batches_of_batches() -> None:
    """No two elements draw the same, and a gradient draws what the value does."""
    f = tilec.compile("function (X[N], S) -> (Y) { Y[i] = rand(S, i) * X[i]; }")
    x = torch.ones(3, 4, 2, 6)
    nested = f
    for _ in range(3):
        nested = nested.vmap({"X": 0}, randomness="different")
    assert nested(x, 5).reshape(24, 6).unique(dim=0).shape[0] == 24
    one = lambda x: f(x, 5)  # noqa: E731
    derivative = torch.func.grad(lambda x: f(x, 5).sum())
    for inner in (one, derivative):
        for _ in range(3):
            inner = torch.vmap(inner, randomness="different")
        assert torch.equal(inner(x), nested(x, 5))


def test_random_numbers_of_a_batch() -> None:
    f = tilec.compile(
        "function (X[N, M], S[], T) -> (Y, Z) { Y = X * (rand(S) < 0.5); Z[i : N] = X[i, 0] + rand(S, i) * T; }"
    )
    x, t = torch.ones(4, 5, 6), torch.ones(4)
    loop = [f(x[k], 3, t[k]) for k in range(4)]
    same = f.vmap((0, None, 0))(x, 3, t)
    different = f.vmap((0, None, 0), randomness="different")(x, 3, t)
    for k in range(2):
        assert torch.equal(same[k], torch.stack([r[k] for r in loop]))
        assert not torch.equal(different[k][0], different[k][1]) and torch.equal(different[k][0], loop[0][k])
    seeds = torch.tensor([3, 5, 7, 3])
    seeded = f.vmap()(x, seeds, t)
    for k in range(2):
        assert torch.equal(seeded[k], torch.stack([f(x[j], int(seeds[j]), t[j])[k] for j in range(4)]))
    with pytest.raises(InputMistake, match="random"):
        f.vmap(randomness="error")


def test_refused() -> None:
    f = tilec.compile("function (X[N], K) -> (Y) { Y[i : N - K] = X[i + K]; }")
    assert torch.equal(f.vmap()(torch.arange(6.0).reshape(2, 3), 1), torch.tensor([[1.0, 2], [4, 5]]))
    for how, error in [
        ({"in_dims": (0, 0)}, SizeMistake),
        ({"in_dims": None}, InputMistake),
        ({"in_dims": (0,)}, InputMistake),
        ({"in_dims": {"Q": 0}}, NameMistake),
        ({"in_dims": 2}, InputMistake),
        ({"out_dims": 3}, InputMistake),
        ({"out_dims": None}, InputMistake),
        ({"randomness": "some"}, InputMistake),
    ]:
        with pytest.raises(error):
            f.vmap(**how)
    with pytest.raises(SizeMistake):
        tilec.compile(MATMUL).vmap()(torch.ones(2, 3, 3), torch.ones(4, 3, 3))


def test_arrays() -> None:
    x = np.arange(6.0).reshape(2, 3)
    assert isinstance(tilec.compile(SNAKE).vmap((0, None))(x, 1.0), np.ndarray)
    assert tilec.compile("Y = X * X;").jvp()(x, x)[1].tolist() == (2 * x * x).tolist()
