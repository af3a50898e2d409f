"""Chains without products of matrices: kernel methods over points of few coordinates, in registers, forward and
backward, by the NumPy interpreter against torch in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support.chains import run

import tilec
from tilec.backends.common.blocks.ir import Loop, Reduce
from tilec.backends.common.chains import cost, recognise, rewrites
from tilec.backends.common.chains.codegen.build import build_kernel
from tilec.backends.common.chains.codegen.places import Tiling
from tilec.backends.triton.chains.tiling import choose_chain_tiling
from tilec.backends.triton.fusion.groups import grouped
from tilec.backends.triton.plan.plan import Setting
from tilec.ir.types import TensorType
from tilec.pipeline import lower
from tilec.saving import partition


@dataclass(frozen=True)
class Pairs:
    """`body` of S over points of X and Y, statements that reduce it, and their `formula` of float64 tensors."""

    body: str
    rest: str
    formula: object
    wide: bool = True  # B has a column for each feature


def squares(x, y):
    return (x[:, None] - y).square().sum(-1)


def softmax_of(s):
    return torch.softmax(s, -1)


PRODUCT = "O[i, f : N, F] = +({} * B[j, f]);"
REGRESSION = "L[i : N] = logsumexp({0}); O[i, f : N, F] = +(exp({0} - L[i]) * B[j, f]);"
DIVIDED = """T[i : N] = >(-S[i, j]); W[i, j : N, M] = exp(-S[i, j] - T[i]);
    O[i, f : N, F] = +(W[i, j] / sum(W[i, l]) * B[j, f]);"""
SQUARES = "(X[i, d] - Y[j, d]) * (X[i, d] - Y[j, d])"


def _seen(s):
    i, j = torch.arange(s.shape[0])[:, None], torch.arange(s.shape[1])
    return i + 3 >= j


CASES = {
    "gaussian": Pairs(SQUARES, PRODUCT.format("exp(-S[i, j])"), lambda x, y, b: torch.exp(-squares(x, y)) @ b),
    "laplacian": Pairs(
        "abs(X[i, d] - Y[j, d])",
        PRODUCT.format("exp(-S[i, j])"),
        lambda x, y, b: torch.exp(-(x[:, None] - y).abs().sum(-1)) @ b,
    ),
    "rational": Pairs(
        SQUARES, PRODUCT.format("exp(0 - S[i, j]) / (1 + S[i, j])"),
        lambda x, y, b: (torch.exp(-squares(x, y)) / (1 + squares(x, y))) @ b,
    ),
    "of products": Pairs("X[i, d] * Y[j, d]", PRODUCT.format("exp(S[i, j])"), lambda x, y, b: torch.exp(x @ y.T) @ b),
    "regression": Pairs(SQUARES, REGRESSION.format("-S[i, j]"), lambda x, y, b: softmax_of(-squares(x, y)) @ b),
    "divided": Pairs(SQUARES, DIVIDED, lambda x, y, b: softmax_of(-squares(x, y)) @ b),
    "masked": Pairs(
        SQUARES,
        "L[i : N] = logsumexp(i + 3 >= j ? -S[i, j]); O[i, f : N, F] = +(i + 3 >= j ? exp(-S[i, j] - L[i]) * B[j, f]);",
        lambda x, y, b: softmax_of((-squares(x, y)).masked_fill(~_seen(squares(x, y)), -torch.inf)) @ b,
    ),
}  # fmt: skip


def both_ways(case: Pairs, sizes: tuple[int, int, int, int], tiling: Tiling):
    """Value and gradients by interpreted kernels and by torch, and the kernels of each pass."""
    n, m, d, f = sizes
    text = f"""function (X[N, D], Y[M, D], B[M, F]) -> (O) {{
        S[i, j : N, M] = +({case.body});
        {case.rest}
    }}"""
    g = np.random.default_rng(0)
    arrays = {k: g.standard_normal(s).astype(np.float32) for k, s in (("X", (n, d)), ("Y", (m, d)), ("B", (m, f)))}
    types = {k: TensorType(x.shape, "float32") for k, x in arrays.items()}
    program = tilec.compile(text).program
    parts = partition(program, ("X", "Y", "B"), types, {}, True)
    forward = run(parts.forward or program, types, arrays, tiling)
    cotangent = g.standard_normal((n, f)).astype(np.float32)
    given = {k: forward.values[k] for k in parts.backward.values} | {k: arrays[k] for k in parts.backward.shapes}
    backward = run(parts.backward.program, dict(parts.backward.types), given | {"DO": cotangent}, tiling)
    mine = [forward.values["O"], *(backward.values[o] for o in parts.backward.program.outputs)]
    leaves = [torch.tensor(a).double().requires_grad_() for a in arrays.values()]
    value = case.formula(*leaves)  # type: ignore[operator]
    exact = [value, *torch.autograd.grad(value, leaves, torch.tensor(cotangent).double())]
    return mine, [x.detach().numpy() for x in exact], forward.kernels, backward.kernels


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sizes", [(50, 37, 3, 1), (33, 64, 2, 3)], ids=str)
@pytest.mark.covering
def test_values_and_gradients(name, sizes):
    """Matrices of pairs are in no kernel's outputs, forward or backward."""
    mine, exact, forward, backward = both_ways(CASES[name], sizes, Tiling(32, 16))
    for x, y in zip(mine, exact, strict=True):
        assert np.linalg.norm(x - y) <= 3e-6 * np.linalg.norm(y)
    stored = {o for kernel in (*forward, *backward) for o in kernel}
    assert {"O"} <= stored and {"DX", "DY", "DB"} <= stored and not stored & {"S", "DS"}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sizes", [(50, 37, 3, 1), (33, 64, 2, 3), (33, 40, 16, 12)], ids=str)
@pytest.mark.covering
def test_elements_laid_out_by_term(name, sizes, monkeypatch):
    """What a kernel reads term by term for the points that it walks lies along the walk; values are the same."""
    monkeypatch.setattr(rewrites, "BY_TERMS_GAIN", 0.0)
    monkeypatch.setattr(rewrites, "BY_TERMS_BYTES", 0)
    laid, exact, forward, backward = both_ways(CASES[name], sizes, Tiling(32, 16))
    monkeypatch.setattr(rewrites, "BY_TERMS_GAIN", np.inf)
    plain, *_ = both_ways(CASES[name], sizes, Tiling(32, 16))
    for x, y, z in zip(laid, plain, exact, strict=True):
        np.testing.assert_array_equal(x, y)
        assert np.linalg.norm(x - z) <= 3e-6 * np.linalg.norm(z)


def test_only_the_walk_is_laid_out_by_term(monkeypatch):
    """A program's rows are read once, and few points are read as they lie."""
    types = {n: TensorType(s, "float32") for n, s in (("X", (64, 3)), ("Y", (64, 3)), ("B", (64, 4)))}
    text = f"""function (X[N, D], Y[M, D], B[M, F]) -> (O) {{
        S[i, j : N, M] = +({SQUARES});
        O[i, f : N, F] = +(exp(-S[i, j]) * B[j, f]);
    }}"""

    def chained():
        lowered = lower(tilec.compile(text).program, types, {})
        return recognise.chained(lowered.stages["flat"], lowered.types)

    assert not chained().rewritten
    monkeypatch.setattr(rewrites, "BY_TERMS_GAIN", 0.0)
    assert not chained().rewritten, "few terms of a point"
    monkeypatch.setattr(rewrites, "BY_TERMS_BYTES", 0)
    found = chained()
    (kernel,) = found.kernels.values()
    assert set(kernel.reads) == {"X", "Y_terms", "B_terms"}
    assert found.rewritten >= {"Y_terms", "B_terms"}
    assert {n: found.types[n].shape for n in ("Y_terms", "B_terms")} == {"Y_terms": (3, 64), "B_terms": (4, 64)}


def test_points_of_16_coordinates_have_few_rows():
    """A thread's rows leave registers for their coordinates and sums, forward and backward; what is laid out by term
    stays where statements beside it share a kernel."""
    text = f"""function (X[N, D], Y[M, D], G[M]) -> (P) {{
        S[i, j : N, M] = +({SQUARES});
        P[i : N] = logsumexp(G[j] - S[i, j]);
    }}"""
    types = {n: TensorType(s, "float32") for n, s in (("X", (8192, 16)), ("Y", (8192, 16)), ("G", (8192,)))}
    backward = partition(tilec.compile(text).program, ("X", "Y", "G"), types, {}, True).backward
    lowered = lower(backward.program, dict(backward.types), {})
    found = grouped(lowered.stages["flat"], lowered.types)
    stored = {s.output for s in found.program.statements}
    for kernel in found.chains.values():
        assert kernel.elementwise and choose_chain_tiling(kernel, found.types, Setting()).block == 16
        assert set(kernel.reads) <= stored | set(lowered.types)
    assert {"X_terms", "Y_terms"} <= stored


EXTREMA = {
    "nearest": ("<(S[i, j])", lambda s: s.amin(1)),
    "farthest": (">(sqrt(S[i, j] + 1))", lambda s: (s + 1).sqrt().amax(1)),
    "nearest of those seen": ("<(i + 3 >= j ? S[i, j])", lambda s: s.masked_fill(~_seen(s), torch.inf).amin(1)),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", EXTREMA)
@pytest.mark.parametrize("many", [False, True], ids=["single", "ties"])
def test_gradients_through_extrema(name, many, monkeypatch):
    """Values are computed again and compared; ties, which points on a grid have, share the gradient."""
    monkeypatch.setattr(cost, "LARGE", 0)
    statement, formula = EXTREMA[name]
    g = np.random.default_rng(0)
    arrays = {k: g.standard_normal(s).astype(np.float32) for k, s in (("X", (50, 3)), ("Y", (37, 3)))}
    arrays = {k: a.round() for k, a in arrays.items()} if many else arrays
    types = {k: TensorType(a.shape, "float32") for k, a in arrays.items()}
    text = f"function (X[N, D], Y[M, D]) -> (O) {{ S[i, j : N, M] = +({SQUARES}); O[i : N] = {statement}; }}"
    backward = partition(tilec.compile(text).program, ("X", "Y"), types, {}, True).backward
    cotangent = g.standard_normal(50).astype(np.float32)
    ran = run(backward.program, dict(backward.types), arrays | {"DO": cotangent}, Tiling(32, 16))
    leaves = [torch.tensor(a).double().requires_grad_() for a in arrays.values()]
    exact = torch.autograd.grad(formula(squares(*leaves)), leaves, torch.tensor(cotangent).double())
    for output, wanted in zip(backward.program.outputs, exact, strict=True):
        assert np.linalg.norm(ran.values[output] - wanted.numpy()) <= 3e-6 * wanted.norm()
    assert not {"S", "DS"} & {o for kernel in ran.kernels for o in kernel} and len(ran.kernels) == 4


def test_gradients_through_extrema_both_ways(monkeypatch):
    """Each side's share of ties is read by both gradients: neither kernel computes it for the other."""
    monkeypatch.setattr(cost, "LARGE", 0)
    g = np.random.default_rng(0)
    arrays = {k: g.standard_normal(s).astype(np.float32) for k, s in (("X", (50, 3)), ("Y", (37, 3)))}
    types = {k: TensorType(a.shape, "float32") for k, a in arrays.items()}
    text = f"""function (X[N, D], Y[M, D]) -> (A, B) {{
        S[i, j : N, M] = +({SQUARES});
        A[i : N] = <(S[i, j]);
        B[j : M] = <(S[i, j]);
    }}"""
    backward = partition(tilec.compile(text).program, ("X", "Y"), types, {}, True).backward
    cotangents = {n: g.standard_normal(s).astype(np.float32) for n, s in (("DA", 50), ("DB", 37))}
    ran = run(backward.program, dict(backward.types), arrays | cotangents, Tiling(32, 16))
    leaves = [torch.tensor(a).double().requires_grad_() for a in arrays.values()]
    s = squares(*leaves)
    given = [torch.tensor(c).double() for c in cotangents.values()]
    exact = torch.autograd.grad((s.amin(1), s.amin(0)), leaves, given)
    for output, wanted in zip(backward.program.outputs, exact, strict=True):
        assert np.linalg.norm(ran.values[output] - wanted.numpy()) <= 3e-6 * wanted.norm()
    assert len(ran.kernels) == 6


def test_each_point_has_its_own_sums():
    """What is added up along the walk is combined after it."""
    types = {n: TensorType(s, "float32") for n, s in (("X", (64, 3)), ("Y", (64, 3)), ("B", (64,)))}
    text = f"""function (X[N, D], Y[M, D], B[M]) -> (O) {{
        S[i, j : N, M] = +({SQUARES});
        O[i : N] = +(exp(-S[i, j]) * B[j]);
    }}"""
    lowered = lower(tilec.compile(text).program, types, {})
    found = recognise.chained(lowered.stages["flat"], lowered.types)
    (kernel,) = found.kernels.values()
    body = build_kernel("k", kernel, found.types, Tiling(32, 16)).body
    (loop,) = (op for op in body if isinstance(op, Loop))
    assert not any(isinstance(op, Reduce) for op in loop.body) and any(isinstance(op, Reduce) for op in body)


def test_rows_without_points_and_infinities():
    """Lanes that see nothing, rows that see nothing, greatest values that are infinite."""
    text = f"""function (X[N, D], Y[M, D], A[M]) -> (L, O) {{
        S[i, j : N, M] = +({SQUARES});
        L[i : N] = logsumexp(2 * i >= j + 20 ? A[j] - S[i, j]);
        O[i : N] = +(2 * i >= j + 20 ? exp(A[j] - S[i, j] - L[i]) * X[i, 0]);
    }}"""
    g = np.random.default_rng(2)
    arrays = {k: g.standard_normal(s).astype(np.float32) for k, s in (("X", (40, 3)), ("Y", (37, 3)), ("A", (37,)))}
    arrays["A"][30] = np.inf
    arrays["A"][:4] = -np.inf
    types = {k: TensorType(x.shape, "float32") for k, x in arrays.items()}
    ran = run(tilec.compile(text).program, types, arrays, Tiling(16, 16))
    x, y, a = (torch.tensor(v).double() for v in arrays.values())
    s = a - squares(x, y)
    i, j = torch.arange(40)[:, None], torch.arange(37)
    s = s.masked_fill(2 * i < j + 20, -torch.inf)
    np.testing.assert_allclose(ran.values["L"], torch.logsumexp(s, 1).numpy(), rtol=1e-5)
    usual = torch.isfinite(torch.logsumexp(s, 1)).numpy()
    np.testing.assert_allclose(ran.values["O"][usual], x[:, 0].numpy()[usual], rtol=1e-4)
    assert (ran.values["O"][:10] == 0).all()


@pytest.mark.parametrize("body, wanted, output", [
    ("L[] = sum(exp(-S[i, j]))", lambda s: np.exp(-s).sum(), "L_rows"),
    ("L[] = max(S[i, j])", lambda s: s.max(), "L_rows"),
    ("L[i : N] = sum(S[i, j] < 1)", lambda s: (s < 1).sum(1), "L"),
])  # fmt: skip
def test_both_sides_at_once_and_counts(body, wanted, output, monkeypatch):
    """What is reduced over rows and columns is so row by row first; points at which a condition holds are counted."""
    monkeypatch.setattr(recognise, "chains_pay", lambda *how: True)
    g = np.random.default_rng(4)
    arrays = {k: g.standard_normal(s).astype(np.float32) for k, s in (("X", (50, 3)), ("Y", (37, 3)))}
    types = {k: TensorType(x.shape, "float32") for k, x in arrays.items()}
    program = tilec.compile(f"function (X[N, D], Y[M, D]) -> (L) {{ S[i, j : N, M] = +({SQUARES}); {body}; }}").program
    ran = run(program, types, arrays, Tiling(32, 16))
    exact = ((arrays["X"][:, None].astype(float) - arrays["Y"]) ** 2).sum(2)
    np.testing.assert_allclose(ran.values["L"], wanted(exact), rtol=1e-5)
    assert ran.kernels == [(output,)]


def test_features_beside_products_are_mixed_by_products(monkeypatch):
    """Where a kernel multiplies matrices, no point has sums of its own: one for each feature would be combined in every
    block. One of both reads distances alone."""
    monkeypatch.setattr(cost, "LARGE", 0)
    text = f"""function (X[N, D], Y[M, D], B[M, F]) -> (O, P) {{
        S[i, j : N, M] = +({SQUARES});
        A[i, j : N, M] = +(X[i, d] * Y[j, d]);
        O[i, f : N, F] = +(exp(-S[i, j]) * B[j, f]);
        P[i, f : N, F] = +(exp(-S[i, j]) * A[i, j] * B[j, f]);
    }}"""
    g = np.random.default_rng(0)
    arrays = {k: g.standard_normal(s).astype(np.float32) for k, s in (("X", (50, 12)), ("Y", (37, 12)), ("B", (37, 5)))}
    arrays = {k: a / 4 for k, a in arrays.items()}
    types = {k: TensorType(a.shape, "float32") for k, a in arrays.items()}
    program = tilec.compile(text).program
    lowered = lower(program, types, {})
    found = recognise.chained(lowered.stages["flat"], lowered.types)
    (kernel,) = found.kernels.values()
    assert {r.target.output: (r.unrolled, r.operand) for r in kernel.targets} == dict.fromkeys("OP", (None, "float32"))
    ran = run(program, types, arrays, Tiling(32, 16))
    x, y, b = (torch.tensor(a).double() for a in arrays.values())
    weights = torch.exp(-squares(x, y))
    np.testing.assert_allclose(ran.values["O"], weights @ b, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ran.values["P"], (weights * (x @ y.T)) @ b, rtol=1e-5, atol=1e-6)


DIFFERENCES = {
    "forces": ("R[j] * (1.5 + S[i, j])", "O[i, d : N, 3] = +(D[i, j, d] * W[i, j]);"),
    "energy": ("exp(-S[i, j])", "O = sum[i, j](i < j ? W[i, j]);"),
    "energy of each": ("rsqrt(S[i, j] + 0.5)", "O[i : N] = +(W[i, j] * R[j]);"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_differences_with_a_name_are_computed_where_they_are_read(name):
    """Nothing is stored for each pair: neither differences nor distances, forward and backward."""
    weights, rest = DIFFERENCES[name]
    text = f"""function (X[N, 3], R[N], L[]) -> (O) {{
        D[i, j, d : N, N, 3] = X[i, d] - X[j, d] - L * round((X[i, d] - X[j, d]) / L);
        S[i, j : N, N] = +(D[i, j, d] * D[i, j, d]);
        W[i, j : N, N] = {weights};
        {rest}
    }}"""
    forward = tilec.compile(text).program
    g = np.random.default_rng(0)
    x, r, length = (g.standard_normal(s).astype(np.float32) for s in ((50, 3), (50,), ()))
    arrays = {"X": x, "R": r, "L": np.abs(length) + 1}
    large = {n: TensorType(tuple(4096 if k == 50 else k for k in a.shape), "float32") for n, a in arrays.items()}
    backward = partition(forward, ("X",), large, {}, True).backward
    for program, types in ((forward, large), (backward.program, backward.types)):
        lowered = lower(program, dict(types), {})
        made = grouped(lowered.stages["flat"], lowered.types)
        kept = [s.output for s in made.program.statements if made.types[s.output].numel >= 4096**2]
        assert made.chains and not kept
    types = {n: TensorType(a.shape, "float32") for n, a in arrays.items()}
    ran = run(forward, types, arrays, Tiling(32, 16))
    x, r, length = (torch.tensor(a).double() for a in arrays.values())
    d = x[:, None] - x
    d = d - length * torch.round(d / length)
    s = d.square().sum(-1)
    exact = {
        "forces": lambda: (d * (r * (1.5 + s))[..., None]).sum(1),
        "energy": lambda: torch.exp(-s).triu(1).sum(),
        "energy of each": lambda: torch.rsqrt(s + 0.5) @ r,
    }
    np.testing.assert_allclose(ran.values["O"], exact[name](), rtol=1e-4, atol=1e-4)
