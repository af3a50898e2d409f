"""Element types of a batch: those of a loop over its elements, with a batched number of rank 0 among the operands."""

from itertools import product

import pytest
import torch

import tilec

PROGRAMS = {
    "elementwise": "function (X, A) -> (Y) { Y = X + A; }",
    "indexed": "function (X[N], A[]) -> (Y) { Y[i : N] = X[i] * A; }",
    "compared": "function (X[N], A[]) -> (Y) { Y[i : N] = X[i] > A ? X[i] : A; }",
    "chained": "function (X[N], A[]) -> (Y) { T = A*2; S[] = +(X[k]); Y[i : N] = X[i] * (T + S); }",
    "an element counts as its tensor": "function (X[N], A[]) -> (Y) { T[] = X[0]; Y = T + A; }",
    "an assignment of a scalar is one": "function (X[N], A[]) -> (Y) { T[] = A; Y = X / T; }",
    "a cast scalar": "function (X[N], A[]) -> (Y) { Y = X * float64(A); }",
    "nested aggregation": "function (X[N], A[]) -> (Y) { Y[i : N] = X[i] * sum(X[k] * A); }",
    "two scalars": "function (X[N], A[]) -> (Y) { B = A * max(A, 2); Y = B - X; }",
    "a structural sum": "function (X[N], A[]) -> (Y) { T[i : 2] = A + A; S = simple_reduce(T, A); Y = X + S; }",
    "padded": "function (X[N], A[]) -> (Y) { Y[i : N + 1] = pad(X[i], A); }",
    "a number with padding": "function (X[N], A[]) -> (Y) { Y[i : N] = X[i] * pad(A[], X[i + 1]); }",
    "a recurrence": "function (X[N], A[]) -> (Y) { Y[t : N] = Y[t - 1] * A + X[t] init A; }",
    "aggregated": "function (X[N], A[]) -> (Y) { Y[] = +(X[i] * A); }",
    "a branch": "function (X[N], A[]) -> (Y) { Y = X * (A > 1 ? A : 2.5); }",
    "a view as a number": "function (X[N], A) -> (O) { S[i : 1] = X[i]; O = reshape(S, shape(A)); }",
}
DTYPES = (torch.float64, torch.float32, torch.float16, torch.int64, torch.int8)


def loop(f, dims, inputs):
    elements = [[x if d is None else x[k] for x, d in zip(inputs, dims, strict=True)] for k in range(2)]
    results = [f(*e) for e in elements]
    return (
        [torch.stack(r) for r in zip(*results, strict=True)] if isinstance(results[0], tuple) else torch.stack(results)
    )


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.one_in(9)
def test_a_batch_has_the_types_of_a_loop(source: str) -> None:
    f = tilec.compile(source)
    for wide, narrow in product(DTYPES, DTYPES):
        x, a = torch.tensor([[1, 3, 2], [4, 1, 5]]).to(narrow), torch.tensor([2, 3]).to(wide)
        for dims in ((None, 0), (0, None), (0, 0)):
            given = x if dims[0] == 0 else x[0], a if dims[1] == 0 else a[0]
            expected = loop(f, dims, given)
            for got in (torch.vmap(lambda *t: f(*t), dims)(*given), f.vmap(dims)(*given)):
                torch.testing.assert_close(got, expected, rtol=1e-3, atol=0)
    g = f.vmap((None, 0))
    text = (g.at(1, 1) if isinstance(g, tilec.derived.deferred.Deferred) else g).tile
    assert tilec.compile(text).tile == text


@pytest.mark.parametrize("dims", [(None, 0), (0, None), (0, 0)], ids=str)
@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.covering
@pytest.mark.one_in(7)
def test_derivatives(source: str, dims: tuple) -> None:
    f = tilec.compile(source)
    x, a = torch.tensor([[1.0, 3, 2], [4, 1, 5]]), torch.tensor([2.0, 3], dtype=torch.float64)
    given = x if dims[0] == 0 else x[0], a if dims[1] == 0 else a[0]
    grad = lambda *t: torch.func.grad(lambda *t: f(*t).double().sum(), (0, 1))(*t)  # noqa: E731
    jvp = lambda *t: torch.func.jvp(lambda *t: f(*t), t, t)  # noqa: E731
    for transformed in (grad, jvp):
        expected = loop(transformed, dims, given)
        torch.testing.assert_close(list(torch.vmap(transformed, dims)(*given)), expected, rtol=1e-5, atol=1e-5)
    leaves = [t.clone().requires_grad_() for t in given]
    loops = [t.clone().requires_grad_() for t in given]
    torch.vmap(lambda *t: f(*t), dims)(*leaves).double().sum().backward()
    loop(f, dims, loops).double().sum().backward()
    for got, expected in zip(leaves, loops, strict=True):
        torch.testing.assert_close(got.grad, expected.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.one_in(3)
def test_a_batch_of_batches(source: str) -> None:
    f = tilec.compile(source)
    x, a = torch.tensor([1.0, 3, 2]), torch.tensor([[2.0, 3, 1], [1, 2, 5]], dtype=torch.float64)
    inner = lambda x, a: torch.vmap(lambda *t: f(*t), (None, 0))(x, a)  # noqa: E731
    expected = torch.stack([torch.stack([f(x, a[j, k]) for k in range(3)]) for j in range(2)])
    torch.testing.assert_close(torch.vmap(inner, (None, 0))(x, a), expected)
    torch.testing.assert_close(f.vmap((None, 0)).vmap((None, 0))(x, a), expected)
