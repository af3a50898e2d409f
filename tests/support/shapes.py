"""Programs that are called at many sizes; dimensions are letters or numbers."""

from __future__ import annotations

from random import Random

import torch

import tilec

PROGRAMS = {
    "elementwise": ("Y = exp(X) * 2.0 + Z", ("n m", "m")),
    "softmax": ("Y[i, j] = exp(X[i, j] - max(X[i, k])) / sum(exp(X[i, k] - max(X[i, l])))", ("n m",)),
    "product": ("function (A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = +(A[i, k] * B[k, j]); }", ("n m", "m p")),
    "product of three": (
        "function (A[M, K], B[K, N], D[N]) -> (C) { C[i : M] = +(A[i, k] * B[k, j] * D[j]); }",
        ("n m", "m p", "p"),
    ),
    "convolution": (
        "function (I[N, C], K[M, C]) -> (O) { O[n : N - M + 1] = +(I[n + j, c] * K[j, c]); }",
        ("n m", "p m"),
    ),
    "same": (
        "function (I[N, C], K[M, C, D]) -> (O) { O[n, d : N, D] = +(I[n + j - 1, c] * K[j, c, d]); }",
        ("n m", "3 m p"),
    ),
    "strided": ("function (I[N], K[M]) -> (O) { O[n : (N + 1)/2] = +(I[2*n + j - 1] * K[j]); }", ("n", "p")),
    "transposed": ("function (I[N], K[M]) -> (O) { O[2*n + j : 2*N + M] = +(I[n] * K[j]); }", ("n", "p")),
    "fractional": ("function (I[N]) -> (O) { O[n : 2*N] = +(I[n/2]); }", ("n",)),
    "pooling": ("function (I[N]) -> (O) { O[n : N/2] = >(I[2*n + j]), j < 2; }", ("n",)),
    "windows": ("function (I[N]) -> (O) { O[n : N] = +(I[n + j - 2]), j < 5; }", ("n",)),
    "cumulative": ("function (X[N, T]) -> (Y) { Y[n, t : N, T] = +(s <= t ? X[n, s]); }", ("p n",)),
    "recurrence": ("function (B[T, D]) -> (H) { H[t, i : T, D] = tanh(B[t, i] + H[t - 1, (i - 1) % D]); }", ("p n",)),
    "lanes": (
        "function (A[T, D], X[T, D]) -> (H) { H[t, d : T, D] = A[t, d] * H[t - 1, d] + X[t, d]; }",
        ("p n", "p n"),
    ),
    "steps": ("function (X[T, D]) -> (H) { H[t, d : T, D] = 0.5 * H[t - 1, d] + X[t, d]; }", ("n 3",)),
    "distance": (
        "function (C[N, M]) -> (D) { D[i, j : N, M] = C[i, j] + min(D[i-1, j], min(D[i, j-1], D[i-1, j-1])); }",
        ("n m",),
    ),
    "groups": (
        """function (X[N, H, W]) -> (Y) {
            G = reshape(X, N/4, 4, H, W); M[g : N/4] = mean(G[g, c, h, w]); Y[g, c, h, w] = G[g, c, h, w] - M[g];
        }""",
        ("8 n m",),
    ),
    "roll": ("function (X[N]) -> (Y) { Y[i : N] = X[(i + 3) % N]; }", ("n",)),
    "reversed": ("function (X[N, M]) -> (Y) { Y[i, j : N, M] = X[N - 1 - i, j]; }", ("n m",)),
    "transpose": ("function (X[N, M]) -> (Y, Z) { Y[j, i : M, N] = X[i, j]; Z[i : N] = X[i, i]; }", ("n n",)),
    "reshape": ("function (X[N, M]) -> (Y) { Y = reshape(X, N * M); }", ("n m",)),
    "flattened": ("function (X[N, M]) -> (Y) { Y[i*M + j : N * M] = X[i, j]; }", ("n m",)),
    "quarters": ("function (X[N]) -> (Y) { Y[i, j : N/4, 4] = X[4*i + j]; }", ("n",)),
    "log product": (
        "function (A[M, K], B[K, N]) -> (C) { C[i, j : M, N] = logsumexp(A[i, k] + B[k, j]); }".replace(
            "logsumexp(A", "logsumexp(A"
        ),
        ("n m", "m p"),
    ),
    "triangle": ("function (A[N, N]) -> (C) { C[i : N] = +(i <= j ? A[i, j] * N : 0.5), j < N; }", ("n n",)),
    "mean": (
        "function (A[N, M]) -> (C, V) { C[i : N] = +(A[i, j] / M); V = A - C[i] ; }".replace(
            "V = A - C[i] ;", "V[i, j : N, M] = A[i, j] - C[i];"
        ),
        ("n m",),
    ),
    "argmax": ("function (A[N, M]) -> (C) { C[i : N] = argmax(A[i, j]); }", ("n m",)),
    "random": ("function (A[N, M]) -> (C) { C = A + rand(5); }", ("n m",)),
    "indices": ("function (A[N, M]) -> (C) { C[i, j : N, M] = A[i, j] * (i*M + j) + N; }", ("n m",)),
    "clamped": ("function (A[N]) -> (C) { C[i : N] = A[clamp(2*i - 3, 0, N - 1)]; }", ("n",)),
    "attention": (
        """function (Q[N, D], K[M, D], V[M, D]) -> (O) {
            S[i, j : N, M] = +(Q[i, d] * K[j, d]);
            P[i, j] = exp(S[i, j] - max(S[i, k]));
            O[i, d : N, D] = +(P[i, j] * V[j, d] / sum(P[i, k]));
        }""",
        ("n p", "m p", "m p"),
    ),
}


def drawn(name: str, random: Random, sizes: dict[str, int], step: int) -> list[list[int]]:
    """Shapes of the inputs; `sizes` of the letters change, that of p rarely."""
    for letter in "nm":
        sizes[letter] = random.choice((random.randint(5, 30), random.randint(0, 6), 8, 16))
    sizes["p"] = random.choice((3, 4, 9)) if step % 3 == 0 else sizes["p"]
    return [[int(d) if d.isdigit() else sizes[d] for d in shape.split()] for shape in PROGRAMS[name][1]]


def result(f: tilec.Function, inputs: list[torch.Tensor]) -> tuple | str:
    try:
        found = f(*inputs)
    except tilec.TileError as error:
        return type(error).__name__ + error.message
    return found if isinstance(found, tuple) else (found,)


def gradients(f: tilec.Function, inputs: list[torch.Tensor], which: int) -> tuple | str:
    """Gradients by the floating inputs, of all outputs or of the last alone; by every third, gradients of these."""
    given = [t.clone().requires_grad_(t.is_floating_point()) for t in inputs]
    found = result(f, given)
    if isinstance(found, str):
        return found
    outputs = [y for y in found if y.requires_grad][which % 2 * -1 :]
    sources = [t for t in given if t.requires_grad]
    if not outputs or not sources:
        return ()
    seeds = [
        torch.linspace(-1, 2, y.numel(), dtype=torch.float64, device=y.device).to(y.dtype).reshape(y.shape)
        for y in outputs
    ]
    twice = which % 3 == 0
    made = torch.autograd.grad(outputs, sources, seeds, allow_unused=True, create_graph=twice)
    if twice and (again := [g for g in made if g is not None and g.requires_grad]):
        more = torch.autograd.grad(again, sources, [torch.ones_like(g) for g in again], allow_unused=True)
        made = (*made, *more)
    return tuple(g for g in made if g is not None)


def check_at(
    source: str, f: tilec.Function, inputs: list[torch.Tensor], which: int | None = None, backend: str | None = None
) -> None:
    """Outputs, and gradients where `which` is given, beside those of a fresh compilation."""
    fresh = tilec.compile(source, backend=backend)
    pairs = [(result(f, inputs), result(fresh, inputs))]
    if which is not None:
        pairs.append((gradients(f, inputs, which), gradients(fresh, inputs, which)))
    where = f"{source}{[tuple(t.shape) for t in inputs]}"
    for found, wanted in pairs:
        if isinstance(wanted, str) or isinstance(found, str):
            assert found == wanted, where
            continue
        for a, b in zip(found, wanted, strict=True):
            assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()), where
            assert torch.equal(bits(a), bits(b)), where


def bits(t: torch.Tensor) -> torch.Tensor:
    """The elements as bytes: zeros of either sign are told apart, and NaN equals itself."""
    return t.detach().reshape(-1).contiguous().view(torch.uint8)  # a view of one axis may have a stride
