"""Axes indexed by numbers of several digits: written in one pass over the digits, whatever else is read there."""

from __future__ import annotations

import pytest
import torch

import tilec

PROGRAMS = {
    "scaled": (
        """function (X[N, G, K, L], W[C], B[C]) -> (Y) {
            Y[n, (C/G)*g + k, l : N, C, L] = X[n,g,k,l] * W[(C/G)*g + k] + B[(C/G)*g + k]; }""",
        lambda x, w, b: x.flatten(1, 2) * w[:, None] + b[:, None],
        ((2, 3, 4, 9), (12,), (12,)),
    ),
    "summed": (
        """function (X[N, G, K, L], W[C]) -> (Y) {
            Y[(C/G)*g + k, l : C, L] = +(X[n,g,k,l] * X[n,g,k,l] * W[(C/G)*g + k]); }""",
        lambda x, w: (x * x).sum(0).flatten(0, 1) * w[:, None],
        ((3, 2, 5, 11), (10,)),
    ),
    "two axes": (
        "function (X[A, B, K, L]) -> (Y) { Y[K*a + k, L*b + l : A*K, B*L] = X[a,b,k,l] * 2 + X[a,b,0,l]; }",
        lambda x: (2 * x + x[:, :, :1]).transpose(1, 2).flatten(2, 3).flatten(0, 1),
        ((3, 2, 4, 9),),
    ),
    "guarded": (
        "function (X[G, K, L]) -> (Y) { Y[K*g + k, l : G*K, L] = +(X[g,k,l] > 0 ? X[g,k,l] * X[g,k,l]); }",
        lambda x: torch.where(x > 0, x * x, 0).flatten(0, 1),
        ((2, 3, 8),),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_axes_of_digits(name: str) -> None:
    source, expected, shapes = PROGRAMS[name]
    torch.manual_seed(0)
    tensors = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    f = tilec.compile(source)
    y, wanted = f(*tensors), expected(*tensors)
    torch.testing.assert_close(y, wanted)
    assert y.is_contiguous()
    c = torch.randn_like(wanted)
    for a, b in zip(torch.autograd.grad(y, tensors, c), torch.autograd.grad(wanted, tensors, c), strict=True):
        torch.testing.assert_close(a, b)
    given = [t.detach() for t in tensors]
    kept = [t.clone() for t in given]
    f(*given).zero_()  # memory of its own
    assert all(map(torch.equal, given, kept))
    assert f.lower(*given).source().count("torch.empty(") == 0


@pytest.mark.parametrize("shape", [(0, 3, 4, 9), (2, 1, 4, 8), (2, 3, 1, 8), (1, 1, 1, 16), (2, 3, 4, 1), (2, 3, 4, 0)])
def test_sizes(shape: tuple[int, ...]) -> None:
    source, expected, _ = PROGRAMS["scaled"]
    channels = shape[1] * shape[2]
    tensors = [torch.randn(s, dtype=torch.float64) for s in (shape, (channels,), (channels,))]
    tensors[0] = tensors[0].transpose(1, 2).contiguous().transpose(1, 2)
    torch.testing.assert_close(tilec.compile(source)(*tensors), expected(*tensors))


def test_what_the_digits_do_not_fill() -> None:
    """Places that no point reaches hold zeros."""
    x = torch.randn(2, 3, 9)
    y = tilec.compile("function (X[G, K, L], Z[C]) -> (Y) { Y[4*g + k, l : C, L] = X[g,k,l] * 2; }")(x, torch.zeros(8))
    assert torch.equal(y.view(2, 4, 9)[:, :3], 2 * x) and not y.view(2, 4, 9)[:, 3].any()


@pytest.mark.parametrize("size", [16, 24, 40])
def test_a_copy_with_more_rows_than_the_axis_it_reads(size: int) -> None:
    """Its rows beyond the end hold zeros, and are no elements of that axis."""
    source = """function (X[N], V[M, J, C]) -> (Y, P, Q) {
        Y[i, j : 5, 8] = X[8*i + j];
        P[8*i + j, c : 40, C] = V[i, j, c] * 2;
        Q[i, j : 5, 8] = exp(X[8*i + j]);
    }"""
    x, v = torch.randn(size, dtype=torch.float64), torch.randn(5, 8, 9, dtype=torch.float64)
    y, _, q = tilec.compile(source)(x, v)
    assert torch.equal(y.flatten()[:size], x) and not y.flatten()[size:].any()
    torch.testing.assert_close(q.flatten()[:size], x.exp())
    assert not q.flatten()[size:].any()
