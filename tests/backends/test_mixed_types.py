"""Sums over elements of several types are as exact as their own type, whichever way they are carried out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import tilec
from tilec.ir.program import Access, walk

WIDTH = 33  # rows and columns from which sums are taken apart
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
EXACT = {torch.float64: 1e-13, torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}

# statements, the axes of their inputs, each of WIDTH elements, and of sums the inputs that may be wider than the others
QUOTIENTS = {
    "of a matrix": ("Y[i, j : I, J] = +(A[i, k] / B[k, j]);", "A ij B ij"),
    "of a row": ("Y[i : I] = +(A[i, k] / B[k]);", "A ij B i"),
    "and a product": ("Y[i, l : I, L] = +(A[i, k] / B[k, j] * C[j, l]);", "A ij B ij C ij"),
}
SUMS = {
    "a factor": ("Y[i, j : I, J] = +(A[i, k] * B[j]);", "A ij B i", "AB"),
    "a divisor": ("Y[i : I] = +(A[i, k] / B[i]);", "A ij B i", "AB"),
    "a mean": ("Y[i, j : I, J] = mean(A[i, k] * B[j]);", "A ij B i", "AB"),
    "several terms": ("Y[i, j : I, J] = +(A[i, k] * B[i, j] - C[i, k] * B[i, j]);", "A ij B ij C ij", "B"),
    "a scan": ("Y[i : K] = +(A[k] * B[i]), i - k < K;", "A i B i", "AB"),
    "a difference": ("Y[i, d : I, D] = +(G[i, j] * (X[i, d] - C[j, d]));", "G ij X ij C ij", "XC"),
    "three operands": ("Y[i : I] = sum(i >= j ? A[i, f] * V[j, f] * P[i, j]);", "A ij V ij P ij", "AVP"),
    "two products": ("P[i, d] = +(G[i, j]*X[j, d]); Q[i, d] = +(H[j, i]*X[j, d]); Y = P + Q;", "G ij H ij X ij", "X"),
}
KEYED = "function (G[16, 2], H[16, 2, 33], W[5, 33, 17], E[16, 2]) -> (Y) {{ Y[t, o : 16, 17] = +({}); }}"
SIZES = {"I": WIDTH, "J": WIDTH, "K": WIDTH, "L": WIDTH, "D": WIDTH}


def function(text: str, inputs: str) -> tuple[tilec.Function, list[list[int]]]:
    names, axes = inputs.split()[::2], inputs.split()[1::2]
    head = ", ".join(f"{n}[{', '.join([str(WIDTH)] * len(a))}]" for n, a in zip(names, axes, strict=True))
    for name, n in SIZES.items():
        text = text.replace(f", {name}]", f", {n}]").replace(f": {name}", f": {n}").replace(f"< {name}", f"< {n}")
    return tilec.compile(f"function ({head}) -> (Y) {{ {text} }}"), [[WIDTH] * len(a) for a in axes]


def error(f: tilec.Function, shapes: list[list[int]], dtypes: tuple[torch.dtype, ...], low: float) -> tuple:
    generator = torch.Generator().manual_seed(0)
    tensors = [
        (low + torch.rand(s, generator=generator, dtype=torch.float64)).to(t)
        for s, t in zip(shapes, dtypes, strict=True)
    ]
    y = f(*tensors)
    wanted = tilec.interpret(str(f.program), *[t.double().numpy() for t in tensors])
    return y.dtype, float(np.abs(y.double().numpy() - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("name", QUOTIENTS)
def test_divisors_of_another_type(name: str) -> None:
    """A reciprocal in a narrower type than the quotient's is rounded to it, or infinite."""
    f, shapes = function(*QUOTIENTS[name])
    for dtypes in [(torch.float64, t) for t in FLOATS[1:]] + [(torch.float32, t) for t in FLOATS[2:]]:
        given = (*dtypes, dtypes[0])[: len(shapes)]
        low = 2e-6 if torch.float16 in given else 0.5  # whose reciprocal float16 does not hold
        dtype, found = error(f, shapes, given, low)
        assert dtype is dtypes[0] and found < EXACT[dtype], (given, found)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", SUMS)
def test_intermediate_sums(name: str) -> None:
    """Parts of a sum have its type, which the wide input gives it; the others are narrower."""
    text, inputs, wide = SUMS[name]
    f, shapes = function(text, inputs)
    for own, other in itertools.combinations(FLOATS, 2):
        if other is torch.bfloat16 and own is torch.float16:
            continue  # float32
        for w in wide:
            given = tuple(own if n == w else other for n in inputs.split()[::2])
            dtype, found = error(f, shapes, given, 0.2)
            assert dtype is own and found < EXACT[own], (given, found)


def test_products_by_matrices_that_elements_name() -> None:
    f = tilec.compile(KEYED.format("G[t, k] * H[t, k, f] * W[E[t, k], f, o]"))
    generator = torch.Generator().manual_seed(0)
    shapes = [(16, 2), (16, 2, 33), (5, 33, 17)]
    places = torch.randint(-1, 6, (16, 2), generator=generator)
    for given in itertools.product(FLOATS, repeat=3):
        own = min(given, key=FLOATS.index)
        if given[0] is own and len({*given}) == 2 and given[1] is given[2] and {*given} != {*FLOATS[2:]}:
            g, h, w = ((0.2 + torch.rand(s, generator=generator)).to(t) for s, t in zip(shapes, given, strict=True))
            y = f(g, h, w, places)
            wanted = tilec.interpret(f.tile, *[t.double().numpy() for t in (g, h, w)], places.numpy())
            assert y.dtype is own and np.abs(y.double().numpy() - wanted).max() < EXACT[own] * np.abs(wanted).max()


def test_pairs_of_three_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are divided whatever that gains; what two of the operands make has the type of the sum."""
    monkeypatch.setattr("tilec.backends.common.pairs.GAIN", 0.0)
    f = tilec.compile("D[i, l] = +(A[i, k] * B[k, j] * C[j, l])")
    generator = torch.Generator().manual_seed(0)
    a, b, c, d = (0.2 + torch.rand(WIDTH, WIDTH, generator=generator) for _ in range(4))
    given = [a.bfloat16(), b.bfloat16(), c.requires_grad_()]
    (found,) = torch.autograd.grad(f(*given), c, d)
    wanted = (given[0].double() @ given[1].double()).T @ d.double()
    assert (found - wanted).abs().max() < EXACT[torch.float32] * wanted.max()


NORMED = """function (X[N, K], W[J, K], G[J]) -> (Y) {
    H[n, j] = sum(X[n, k] * W[j, k]);
    Y[n, j] = H[n, j] * rsqrt(mean(float32(H[n, l] * H[n, l])) + 0.001) * G[j];
}"""
UNNORMED = (
    "function (X[N, K], W[J, K], G[J]) -> (Y) { H[n, j] = sum(X[n, k] * W[j, k]); Y[n, j] = tanh(H[n, j]) * G[j]; }"
)


def normed(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    h = x @ w.T
    return h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 0.001) * g


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "text, formula", [(NORMED, normed), (UNNORMED, lambda x, w, g: torch.tanh(x @ w.T) * g)], ids=["normed", "not"]
)
@pytest.mark.parametrize("by_hand", [False, True])
def test_weights_of_float32_leave_products_narrow(text, formula, by_hand: bool) -> None:
    """The cotangent of a 16-bit product is rounded to its type, as torch's is, so that its gradients multiply 16 bits;
    those by float32 have no part in that."""
    g = torch.Generator().manual_seed(0)
    x, w, s, d = (torch.randn(n, generator=g) for n in ((64, 96), (48, 96), (48,), (64, 48)))
    given = [x.bfloat16().requires_grad_(), (w / 10).bfloat16().requires_grad_(), s.requires_grad_()]
    f = tilec.compile(text)
    gradient = f.grad()
    flat = gradient.lower(*given, d).stages["flat"]
    read = {s.output: {a.tensor for a in walk(s.body) if isinstance(a, Access)} for s in flat.statements}
    assert {"DH", "W"} <= read["DX"] and {"DH", "X"} <= read["DW"], "added up as 16 bits, from these"
    found = gradient(*given, d) if by_hand else torch.autograd.grad(f(*given), given, d)
    wide = [t.detach().double().requires_grad_() for t in given]
    exact = torch.autograd.grad(formula(*wide), wide, d.double())
    torchs = torch.autograd.grad(formula(*given), given, d)
    for own, other, e in zip(found, torchs, exact, strict=True):
        assert own.dtype is other.dtype
        assert (own - e).norm() <= 1.5 * (other - e).norm()
