"""Programs whose outputs might share memory, and the check that they do not."""

from __future__ import annotations

import torch

from tilec.language import parse

SHAPES = ({"N": 3, "M": 4}, {"N": 1, "M": 1}, {"N": 0, "M": 4})

PROGRAMS = {
    "a cast to its own type": "function (X[N, M]) -> (Y) { Y = float64(X); }",
    "as_float": "function (X[N, M]) -> (Y) { Y = as_float(X, 64); }",
    "as_bool of bool": "function (X[N, M]) -> (B, Y) { B = X > 0; Y = as_bool(B); }",
    "reverse_grad": "function (X[N, M]) -> (Y) { Y = reverse_grad(X, 1.0); }",
    "ident": "function (X[N, M]) -> (Y) { Y = ident(X); }",
    "an input": "function (X[N, M]) -> (X) { Y = X + 1; }",
    "all of it twice": "function (X[N, M]) -> (X, X, Y, Y) { Y = X + 1; }",
    "two names": "function (X[N, M]) -> (Y, Z) { Y = X + 1; Z = Y; }",
    "two names of an input": "function (X[N, M]) -> (Y, Z) { Y = X; Z = X; }",
    "an indexed cast": "function (X[N, M]) -> (Y) { Y[i, j : N, M] = float64(X[i, j]); }",
    "transposed": "function (X[N, M]) -> (Y) { Y[j, i : M, N] = float64(X[i, j]); }",
    "a part": "function (X[N, M]) -> (Y) { Y[i : N] = float64(X[i, 0]); }",
    "one element": "function (X[N, M]) -> (Y) { Y[] = X[0, 0]; }",
    "a sum of one term": "function (X[N, M]) -> (Y) { Y[i, j : N, M] = +(X[i, j]); }",
    "a maximum of one element": "function (X[N, M]) -> (Y) { Y[i : N] = >(X[i, k]), k < 1; }",
    "a mean of one element": "function (X[N, M]) -> (Y) { Y[i, j : N, M] = mean(X[i, j]); }",
    "reshaped there and back": "function (X[N, M]) -> (Y, Z) { Y = reshape(X, N, 1, M); Z = reshape(Y, N, M); }",
    "a value reshaped": "function (X[N, M]) -> (Y, Z) { Y = X + 1; Z = reshape(Y, N, 1, M); }",
    "a pad that reads all": "function (X[N, M]) -> (Y) { Y[i, j : N, M] = pad(X[i, j], 0); }",
    "wrapped by nothing": "function (X[N, M]) -> (Y) { Y[i, j : N, M] = X[i % N, j]; }",
    "a default alone": "function (X[N, M]) -> (Y) { Y[i, j : N, M] = X[i + N + 9, j] default X; }",
    "a recurrence and its end": (
        "function (X[N, M]) -> (Y, Z) { Y[t, i : N, M] = Y[t - 1, i] + X[t, i]; Z[i : M] = Y[N - 1, i]; }"
    ),
    "a recurrence cast": "function (X[N, M]) -> (Y, Z) { Y[t, i : N, M] = Y[t - 1, i] + X[t, i]; Z = float64(Y); }",
    "a scan": "function (X[N, M]) -> (Y) { Y[i, j : N, M] = +(X[k, j]), i - k < N; }",
    "a product": "function (X[N, M], W[M, N]) -> (Y) { Y[i, j : N, N] = +(X[i, k] * W[k, j]); }",
    "a product by numbers": "function (X[N, M]) -> (Y) { Y[i, j : N, M] = +(X[i, j] * 1.0); }",
    "simple_reduce to its own shape": "function (X[N, M], Z[N, M]) -> (Y) { Y = simple_reduce(X, Z); }",
    "broadcast": "function (X[N, M]) -> (Y) { Y[a, i, j : 2, N, M] = X[i, j]; }",
    "numbers": "function (X[N, M]) -> (Y, Z, W) { Y = shape(X); Z = shape(X); W = 3.0; }",
    "rank 0": "function (S[]) -> (Y, Z) { Y = S; Z = S; }",
    "a convolution": (
        "function (X[N, M, 2], K[3, 2, 2]) -> (Y) { Y[n, x, o : N, M, 2] = +(X[n, x + k - 1, c] * K[k, c, o]); }"
    ),
}


def extent(t: torch.Tensor) -> range:
    """The addresses from the first element to the last."""
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return range(t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()) if t.numel() else range(0)


def owned(outputs, others) -> None:
    """No output overlaps another tensor, and writing into one changes nothing else."""
    tensors = [*outputs, *others]
    for k, output in enumerate(outputs):
        rest = tensors[:k] + tensors[k + 1 :]
        assert not any(output is t for t in rest)
        a = extent(output)
        assert not any(max(a.start, b.start) < min(a.stop, b.stop) for b in map(extent, rest) if a and b)
        before = [t.detach().clone() for t in rest]
        with torch.no_grad():
            output.fill_(1) if output.dtype is torch.bool else output.mul_(2).add_(1)
        assert all(torch.equal(t, b) for t, b in zip(rest, before, strict=True))


def called(f, inputs) -> list[torch.Tensor]:
    results = f(*inputs)
    return [r for r in (results if isinstance(results, tuple) else (results,)) if r is not None]


def drawn(source: str, sizes, dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [
        torch.rand([sizes[d] if isinstance(d, str) else d for d in i.dims], dtype=torch.float64).to(dtype) + 1
        for i in parse(source).inputs
    ]
