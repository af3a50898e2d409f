"""Sums of three operands or more are divided into pairs before they are differentiated."""

from __future__ import annotations

import re

import pytest
import torch

import tilec
from tilec.backends.common import pairs
from tilec.ir.index import linear
from tilec.ir.program import Statement, value_accesses
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.saving import Partition, partition

TUCKER = """function (G[P, Q, R], A[I, P], B[J, Q], C[K, R]) -> (Y) {
    Y[i, j, k : I, J, K] = +(G[p, q, r] * A[i, p] * B[j, q] * C[k, r]);
}"""
TRAIN = """function (X[N, A, B], F[I, A, R], G[R, J, B]) -> (Y) {
    Y[n, i, j : N, I, J] = +(X[n, a, b] * F[i, a, r] * G[r, j, b] / 3);
}"""
BILINEAR = """function (X[B, I], W[K, I, J], Y[B, J], A[K]) -> (O) {
    P[b, k : B, K] = +(X[b, i] * exp(W[k, i, j]) * Y[b, j]);
    O = tanh(P + A);
}"""
KHATRI_RAO = "function (X[I, J, K], A[J, R]) -> (Y) { Y[i, r : I, R] = +(X[i, j, k] * A[j, r] * A[k, r]); }"
GATES = """function (X[M, H], G[M, E], W[E, H, J]) -> (Y) {
    P[m, e : M, E] = exp(G[m, e]) / sum(exp(G[m, d]));
    Y[m, j : M, J] = sum(P[m, e] * W[e, h, j] * X[m, h]);
}"""
ALONE = """function (X[N, A, B], F[A, R, S], G[R, B, J], V[S]) -> (Y) {
    Y[n, j : N, J] = +(X[n, a, b] * F[a, r, s] * G[r, b, j]);
}"""
CROSSED = """function (W[H, I, J], X[B, I, D], Y[B, J, D]) -> (Z) {
    Z[b, h, d : B, H, D] = +(W[h, i, j] * X[b, i, d] * Y[b, j, d]);
}"""
WINDOW = "I[n, y + j - 1, x + i - 1, c]"
SCALED = f"""function (I[N, H, W, C], S[C], K[3, 3, C, O]) -> (R) {{
    R[n, y, x, o : N, H, W, O] = +({WINDOW} * S[c] * K[j, i, c, o]);
}}"""
MODULATED = f"""function (I[N, H, W, C], M[N, C], D[O], K[3, 3, C, O]) -> (R) {{
    R[n, y, x, o : N, H, W, O] = +(2 * {WINDOW} * exp(M[n, c]) * D[o] * K[j, i, c, o]);
}}"""
FRAMES = """function (X[B, S], W[K], C[2, K, Q]) -> (Y) {
    Y[b, t, q : B, (S - K) / 2 + 1, Q] = +(X[b, 2*t + k] * W[k] * C[1, k, q]);
}"""
CASES = {
    "Tucker": (TUCKER, [(16, 16, 16), (64, 16), (48, 16), (80, 16)], torch.float64),
    "Tucker in bfloat16": (TUCKER, [(16, 16, 16), (64, 16), (48, 16), (80, 16)], torch.bfloat16),
    "an axis of one": (TUCKER, [(1, 16, 16), (64, 1), (80, 16), (256, 16)], torch.float64),
    "a train with a factor": (TRAIN, [(300, 16, 16), (16, 16, 16), (16, 16, 16)], torch.float64),
    "a computed operand": (BILINEAR, [(1024, 64), (64, 64, 64), (1024, 64), (64,)], torch.float64),
    "an operand twice": (KHATRI_RAO, [(256, 128, 128), (128, 64)], torch.float64),
    "gates": (GATES, [(2048, 128), (2048, 8), (8, 128, 128)], torch.float64),
    "an outer product first": (CROSSED, [(64, 24, 24), (512, 24, 16), (512, 24, 16)], torch.float64),
    "scaled channels": (SCALED, [(8, 24, 24, 16), (16,), (3, 3, 16, 32)], torch.float64),
    "scaled channels in bfloat16": (SCALED, [(8, 24, 24, 16), (16,), (3, 3, 16, 32)], torch.bfloat16),
    "modulated channels": (MODULATED, [(8, 24, 24, 16), (8, 16), (32,), (3, 3, 16, 32)], torch.float64),
    "windows of frames by a slice": (FRAMES, [(8, 1086), (64,), (2, 64, 64)], torch.float64),
    "a variable of one operand": (ALONE, [(300, 16, 16), (16, 16, 16), (16, 16, 32), (16,)], torch.float64),
}


def parts(source: str, shapes: list[tuple[int, ...]], dtype: str) -> Partition:
    program = parse(source)
    types = {i.name: TensorType(s, dtype) for i, s in zip(program.inputs, shapes, strict=True)}
    return partition(program, program.input_names(), types, {}, True)


def products(statements: tuple[Statement, ...]) -> list[int]:
    """How many elements each sum multiplies."""
    return [len(value_accesses(s)) for s in statements if s.aggregation == "sum"]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(4)
def test_gradient_is_torch_s(name: str) -> None:
    source, shapes, dtype = CASES[name]
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(s, generator=generator, dtype=torch.float64) / 4 for s in shapes]
    ours = [t.to(dtype).requires_grad_() for t in inputs]
    wide = [t.to(dtype).double().requires_grad_() for t in inputs]
    got, plain = tilec.compile(source)(*ours), FORMULAS[source](*wide)
    cotangent = torch.randn(plain.shape, generator=generator, dtype=torch.float64).to(dtype)
    tolerance = 1e-10 if dtype is torch.float64 else 0.03
    wanted = torch.autograd.grad(plain, wide, cotangent.double(), allow_unused=True)
    for g, w in zip(torch.autograd.grad(got, ours, cotangent), wanted, strict=True):
        w = torch.zeros(g.shape, dtype=torch.float64) if w is None else w
        assert (g.double() - w).abs().max() <= tolerance * w.abs().max()


def convolution(image: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    x, k = image.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1)
    return torch.nn.functional.conv2d(x, k, padding=1).permute(0, 2, 3, 1)


FORMULAS = {
    SCALED: lambda i, s, k: convolution(i * s, k),
    MODULATED: lambda i, m, d, k: 2 * d * convolution(i * m.exp()[:, None, None], k),
    TUCKER: lambda g, a, b, c: torch.einsum("pqr,ip,jq,kr->ijk", g, a, b, c),
    TRAIN: lambda x, f, g: torch.einsum("nab,iar,rjb->nij", x, f, g) / 3,
    BILINEAR: lambda x, w, y, a: torch.tanh(torch.einsum("bi,kij,bj->bk", x, w.exp(), y) + a),
    KHATRI_RAO: lambda x, a: torch.einsum("ijk,jr,kr->ir", x, a, a),
    GATES: lambda x, g, w: torch.einsum("me,ehj,mh->mj", torch.softmax(g, -1), w, x),
    CROSSED: lambda w, x, y: torch.einsum("hij,bid,bjd->bhd", w, x, y),
    FRAMES: lambda x, w, c: (x.unfold(1, 64, 2) * w) @ c[1],
    ALONE: lambda x, f, g, v: torch.einsum("nab,ars,rbj->nj", x, f, g),
}


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("a computed operand", "modulated channels")])
def test_no_sum_has_more_than_two_operands(name: str) -> None:
    source, shapes, dtype = CASES[name]
    found = products(parts(source, shapes, str(dtype).removeprefix("torch.")).backward.program.statements)
    assert found and max(found) <= 2


def test_pairs_are_shared() -> None:
    """Two products of the way forth, then two for each of its three products."""
    source, shapes, _ = CASES["Tucker"]
    assert len(products(parts(source, shapes, "float32").backward.program.statements)) == 8


NOT_DIVIDED = {
    "few points": (TUCKER, [(2, 2, 2), (4, 2), (4, 2), (4, 2)]),
    "two sides": (
        "function (X[M, K], S[K], W[K, N]) -> (Y) { Y[m, n : M, N] = +(X[m, k] * S[k] * W[k, n]); }",
        [(512, 512), (512,), (512, 512)],
    ),
    "shifted places": (
        "function (X[N, T], F[T, R], G[R, T]) -> (Y) { Y[n : N] = +(X[n, t] * F[t - 1, r] * G[r, s]); }",
        [(512, 64), (64, 64), (64, 64)],
    ),
    "few scaled channels": (SCALED, [(2, 9, 9, 16), (16,), (3, 3, 16, 32)]),
    "a scale of more channels": (
        SCALED.replace("S[C]", "S[B]"),
        [(8, 24, 24, 16), (17,), (3, 3, 16, 32)],
    ),
    "part of an axis": (
        "function (X[N, A], F[B, R], G[R, J]) -> (Y) { Y[n, j : N, J] = +(X[n, a] * F[a, r] * G[r, j]); }",
        [(512, 64), (128, 64), (64, 512)],
    ),
    "a guard": (
        "function (X[N, A], F[A, R], G[R, J]) -> (Y) { Y[n, j : N, J] = +(n > j ? X[n, a] * F[a, r] * G[r, j]); }",
        [(512, 64), (64, 64), (64, 512)],
    ),
}


@pytest.mark.parametrize("name", NOT_DIVIDED)
def test_what_is_not_divided(name: str) -> None:
    source, shapes = NOT_DIVIDED[name]
    found = parts(source, shapes, "float32")
    program = found.backward.program if found.forward is None else found.forward
    assert not any(
        "_pair" in s.output or "_joined" in s.output for p in (program, found.backward.program) for s in p.statements
    )


ORDERS = {  # products that are taken as outer products first, and how these are stored
    "what is kept around what is summed": ("Z[b, h, d] = +(W[h, i, j] * X[b, i, d] * Y[b, j, d])", "bdij"),
    "summed last": ("Z[b, h] = +(W[h, i, j] * X[b, i] * Y[b, j])", "bij"),
    "summed first": ("Z[h, b] = +(W[i, j, h] * X[i, b] * Y[j, b])", "ijb"),
    "a batch before": ("Z[n, b, h, d] = +(W[n, h, i, j] * X[n, b, i, d] * Y[n, b, j, d])", "nbdij"),
}


@pytest.mark.parametrize("name", ORDERS)
def test_an_outer_product_is_stored_as_matrices(name: str) -> None:
    source, order = ORDERS[name]
    sizes = dict(n=3, b=2**12, d=16, i=24, j=24, h=64)
    tensors = re.findall(r"[WXY]\[[^]]*\]", source)
    shapes = [tuple(sizes[v] for v in t[2:-1].split(", ")) for t in tensors]
    found = parts(source, shapes, "float32").backward.program.statements
    (pair,) = [s for s in found if s.output == "Z_pair"]
    assert "".join(linear(e).bare or "" for e in pair.index or ()) == order


def test_what_no_point_reads_has_no_gradient_by_an_infinite_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "_LEAST_JOINED", 0)
    source = (
        "function (X[N, L, C], S[N, C], K[T, C]) -> (Y) { Y[n, x : N, L/2] = +(X[n, 2*x, c] * S[n, c] * K[t, c]); }"
    )
    inputs = torch.ones(2, 6, 3), torch.full((2, 3), torch.inf), torch.ones(1, 3)
    x = inputs[0].requires_grad_()
    (gradient,) = torch.autograd.grad(tilec.compile(source)(*inputs).sum(), x)
    assert gradient[:, ::2].isinf().all() and not gradient[:, 1::2].any()


def test_second_derivatives_are_torch_s() -> None:
    shapes = [(16, 16, 16), (32, 16), (32, 16), (32, 16)]
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]
    found = []
    for call in (tilec.compile(TUCKER), FORMULAS[TUCKER]):
        (first,) = torch.autograd.grad((call(*inputs) ** 2).sum(), inputs[:1], create_graph=True)
        found.append(torch.autograd.grad((first**2).sum(), inputs))
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9 * float(wanted.abs().max()))


def test_other_lengths() -> None:
    """A class of shapes has its pairs in common."""
    f = tilec.compile(TUCKER)
    for length in (64, 72, 88):
        generator = torch.Generator().manual_seed(length)
        shapes = [(16, 16, 16), (length, 16), (48, 16), (80, 16)]
        inputs = [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]
        got = torch.autograd.grad(f(*inputs).sin().sum(), inputs)
        wanted = torch.autograd.grad(FORMULAS[TUCKER](*inputs).sin().sum(), inputs)
        for g, w in zip(got, wanted, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-9, atol=1e-9 * float(w.abs().max()))
