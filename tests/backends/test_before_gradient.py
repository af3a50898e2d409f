"""Sums that are written otherwise before they are differentiated: values, gradients, and what these are made of."""

from __future__ import annotations

import pytest
import torch

import tilec
from tilec.backends.common.chains import sheared, spread, window_scores
from tilec.backends.common.chains.recognise import Chained, chained
from tilec.backends.common.operands import before_gradient, shared_operands
from tilec.ir.program import Program
from tilec.ir.types import TensorType
from tilec.language import show
from tilec.pipeline import lower
from tilec.saving import Partition, partition

SOFTMAX = "L[h, i] = logsumexp(S[h, i, j]); O[h, i, d] = sum(exp(S[h, i, j] - L[h, i]) * V[h, j, d]);"
QKV = "Q[H, N, D], K[H, N, D], V[H, N, D]"
RELATIVE = f"""function ({QKV}, R[P, D]) -> (O) {{
    S[h, i, j : H, N, N] = 0.5 * sum(Q[h, i, d] * (K[h, j, d] - R[i - j + N - 1, d])); {SOFTMAX} }}"""
CAUSAL = f"""function ({QKV}, R[H, N, D], U[H, D]) -> (O) {{
    S[h, i, j : H, N, N] = sum(Q[h, i, d] * K[h, j, d]) + sum((Q[h, i, d] + U[h, d]) * R[h, i - j, d]); {SOFTMAX} }}"""
BIAS = f"""function ({QKV}, T[P]) -> (O) {{
    S[h, i, j : H, N, N] = sum(Q[h, i, d] * K[h, j, d]) + T[clamp(i - j + 2, 0, 4)]; {SOFTMAX} }}"""
SCALED = "function (A[N, D], B[M, D], S[M], T[]) -> (Y) { Y[i, j : N, M] = +(A[i, k] * B[j, k] * S[j] / T[]); }"
GATED = "Y[n, o] = sum(gelu(sum[d](A[n, d] * B[f, d])) * sum[d](A[n, d] * C[f, d]) * U[f, o])"
KERNEL = "Y[n, o] = sum(exp(-sum[d]((A[n, d] - B[m, d]) * (A[n, d] - B[m, d])) / S[]) * U[m, o])"
CIRCULANT = "function (X[N, D], C[D]) -> (Y) { Y[n, i : N, D] = sum(X[n, j] * C[(i - j) % D]); }"
WINDOW = f"""function ({QKV}, P[W]) -> (O) {{
    S[h, i, w : H, N, 3] = 0.5 * sum(Q[h, i, d] * K[h, i + w - 1, d]) + P[w];
    L[h, i] = logsumexp((i + w >= 1) & (i + w - 1 < N) ? S[h, i, w]);
    O[h, i, d : H, N, D] = sum((i + w >= 1) & (i + w - 1 < N) ? exp(S[h, i, w] - L[h, i]) * V[h, i + w - 1, d]); }}"""
VALUES = f"""function ({QKV}, R[P, D]) -> (O) {{
    S[h, i, j : H, N, N] = sum(Q[h, i, d] * K[h, j, d]); L[h, i] = logsumexp(S[h, i, j]);
    O[h, i, d] = sum(exp(S[h, i, j] - L[h, i]) * (V[h, j, d] - R[clamp(j - i + 1, 0, 2), d])); }}"""
FAR = VALUES.replace("(V[h, j, d] - R[clamp(j - i + 1, 0, 2), d])", "R[j - i + 2, d]").replace("V[H, N, D]", "V[H]")
MASKED = f"""function ({QKV}) -> (O) {{
    S[h, i, w : H, N, 3] = i + w >= 2 ? sum(Q[h, i, d] * K[h, i + w - 2, d]) : -inf; M[h, i] = max(S[h, i, w]);
    P[h, i, w] = exp(S[h, i, w] - M[h, i]);
    O[h, i, d : H, N, D] = sum(P[h, i, w] * V[h, i + w - 2, d]) / sum(P[h, i, w]); }}"""
DIFFERENCES = """function (A[N, D], B[N, D], W[4, D, O]) -> (Y) {
    Y[n, o] = tanh(sum(A[n, d] * W[0, d, o]) - sum(W[1, e, o] * B[n, e]) + sum((B[n, d] - A[n, d]) * W[2, d, o])
        + sum(A[n, d] * B[n, d] * W[3, d, o])); }"""

N, D = 5, 4
CASES = {  # text, shapes, statements of the gradient that the rule makes
    "relative keys": (RELATIVE, ((2, N, D), (2, N, D), (2, N, D), (2 * N - 1, D)), "S_sum_all[h, i, u : 2, 5, 16]"),
    "relative keys, causal": (CAUSAL, ((2, N, D),) * 4 + ((2, D),), "S_sum_1_all[h, i, u : 2, 5, 8]"),
    "bias by distance": (BIAS, ((2, N, D),) * 3 + ((5,),), "S_read[i, j : 5, 5]"),
    "scales": (SCALED, ((N, D), (N + 1, D), (N + 1,), ()), "Y_unscaled[i, j : 5, 6]"),
    "gated unit": (GATED, ((N, D), (6, D), (6, D), (6, 3)), "Y_operand[n, f : 5, 6]"),
    "circulant": (CIRCULANT, ((2 * N, D), (D,)), "Y_read[i, j : 4, 4]"),
    "window": (WINDOW, ((2, N, D),) * 3 + ((3,),), "S[h, i, j : 2, 5, 5]"),
    "relative values": (VALUES, ((2, N, D),) * 3 + ((3, D),), "O_at[h, i, u : 2, 5, 3]"),
    "values at differences": (FAR, ((2, N, D), (2, N, D), (2,), (6, D)), "O_at[h, i, u : 2, 5, 6]"),
    "window, masked": (MASKED, ((2, N, D),) * 3, "P[h, i, j : 2, 5, 5]"),
    "features and their differences": (DIFFERENCES, ((9, D), (9, D), (4, D, 6)), "Y_matrix_1[k, o : 4, 6]"),
    "kernel": (KERNEL, ((N, D), (6, D), (), (6, 3)), "Y_operand[n, m : 5, 6]"),
}


@pytest.fixture
def always(monkeypatch) -> None:
    """Sums of any size are written so."""
    for module in (before_gradient, sheared, spread):
        monkeypatch.setattr(module, "LEAST_STACKED", 0)
        monkeypatch.setattr(module, "LEAST", 2)
    monkeypatch.setattr(shared_operands, "FEWER_POINTS", 0)
    monkeypatch.setattr(shared_operands, "LEAST_USES", 1)
    monkeypatch.setattr(sheared, "_MOST_WIDER", 4)
    monkeypatch.setattr(window_scores, "FEWEST_SCORES", 0)
    monkeypatch.setattr(window_scores, "FEWEST_OF_A_WINDOW", 2)
    monkeypatch.setattr(before_gradient, "chained", lambda program, types: Chained(program, types, {"": None}))
    for name in ("_FEWEST_READS", "_LEAST_REUSE", "_LEAST_TENSOR"):
        monkeypatch.setattr(before_gradient, name, 0)


def parts_of(text: str, shapes: tuple, dtype: str = "float32") -> tuple[Program, Partition]:
    f = tilec.compile(text)
    inputs = f.program.input_names()
    types = {n: TensorType(shape, dtype) for n, shape in zip(inputs, shapes, strict=True)}
    return f.program, partition(f.program, inputs, types, {}, True)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.one_in(6)
def test_gradients_are_what_they_were(case, always):
    text, shapes, made = CASES[case]
    _, parts = parts_of(text, shapes)
    assert made in show(parts.backward.program) + show(parts.forward or parts.backward.program)
    r = torch.Generator().manual_seed(0)
    inputs = [(0.5 + torch.rand(s, generator=r)).double().requires_grad_() for s in shapes]
    f = tilec.compile(text)
    y = f(*inputs)
    c = torch.rand(y.shape, generator=r).double()
    mine = torch.autograd.grad(y, inputs, c)
    by_hand = f.grad()(*[x.detach() for x in inputs], c)
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-13) for a, b in zip(mine, by_hand, strict=True))


def test_a_band_that_is_partly_outside(always):
    """Next to another term it constrains that term too: it stays as it is."""
    text = RELATIVE.replace("N - 1, d", "N - 2, d")
    _, parts = parts_of(text, CASES["relative keys"][1])
    assert "S_sum_all" not in show(parts.backward.program) and "S_sum_read" not in show(parts.backward.program)


@pytest.mark.parametrize("function, n", [("exp", 4), ("log", 9)])
def test_what_a_function_makes_of_zeros_beside_a_band_does_not_count(function, n, always):
    text = f"function (Q[N, D], R[P, D]) -> (S) {{ S[i, j : N, N] = sum(Q[i, d] * {function}(R[i - j + N - 1, d])); }}"
    _, parts = parts_of(text, ((5, 4), (n, 4)))
    assert "S_all" in show(parts.backward.program)
    q, r = (torch.rand(s).double().add(0.5).requires_grad_() for s in ((5, 4), (n, 4)))
    f = tilec.compile(text)
    y = f(q, r)
    assert torch.allclose(y, torch.from_numpy(tilec.interpret(text, q.detach().numpy(), r.detach().numpy())))
    mine = torch.autograd.grad(y, (q, r), torch.ones_like(y))
    by_hand = f.grad()(q.detach(), r.detach(), torch.ones_like(y))
    assert all(torch.allclose(a, b) for a, b in zip(mine, by_hand, strict=True))


def test_small_sums_stay_as_they_are():
    for case, made in {"gated unit": "Y_operand", "features and their differences": "Y_matrix"}.items():
        _, parts = parts_of(*CASES[case][:2])
        assert made not in show(parts.backward.program)


@pytest.mark.parametrize(
    "text",
    [
        "sum(A[n, d] * W[0, d, o]) + sum(A[n, d] * W[1, d, o]) * sum(A[n, e] * W[2, e, o])",  # not added up
        "sum(A[n, d] * W[0, d, o]) + sum(B[n, d] * W[1, d, o])",  # of two operands
        "sum(A[n, d] * W[0, d, o]) + sum(A[n, d] * W[1, d, n])",  # by matrices of other axes
        "sum(A[n, d] * W[0, d, o]) + sum(A[n, d] * W[1, d, o]), d < 3",  # of some terms
    ],
)
def test_products_that_stay_apart(text, always):
    _, parts = parts_of(
        f"function (A[N, D], B[N, D], W[4, D, O]) -> (Y) {{ Y[n, o] = {text}; }}", ((N, D), (N, D), (4, D, N))
    )
    assert "Y_product" not in show(parts.backward.program) + show(parts.forward or parts.backward.program)


def test_what_a_softmax_weighs_is_no_operand(always):
    """Chains recompute it beside its statistic."""
    text = f"function ({QKV}) -> (O) {{ S[h, i, j : H, N, N] = sum(Q[h, i, d] * K[h, j, d]); {SOFTMAX} }}"
    _, parts = parts_of(text, ((2, N, D),) * 3)
    assert "O_operand" not in show(parts.backward.program)


def test_nothing_is_rounded_that_was_not(always):
    """A wide scale of narrow operands: the product in between would have 16 bits."""
    f = tilec.compile(SCALED)
    dtypes = ("bfloat16", "bfloat16", "float32", "float32")
    types = {n: TensorType(s, d) for n, s, d in zip("ABST", CASES["scales"][1], dtypes, strict=True)}
    parts = partition(f.program, tuple("ABST"), types, {}, True)
    assert "Y_unscaled" not in show(parts.backward.program)


def test_what_is_scaled_down_may_be_beyond_float16(always):
    _, parts = parts_of(SCALED, CASES["scales"][1], "float16")
    assert "Y_unscaled" not in show(parts.backward.program)


def chains_of(program: Program, types: dict) -> tuple[set[str], set[str]]:
    """The outputs of chains, and of other statements."""
    lowered = lower(program, types, {})
    found = chained(lowered.stages["flat"], lowered.types)
    return set(found.members()), {s.output for s in found.program.statements} - found.members()


def test_relative_keys_are_chains_forward_and_backward():
    shapes = ((8, 512, 64), (8, 512, 64), (8, 512, 64), (1023, 64))
    program, parts = parts_of(RELATIVE, shapes, "bfloat16")
    types = {n: TensorType(s, "bfloat16") for n, s in zip(program.input_names(), shapes, strict=True)}
    assert chains_of(program, types) == ({"L", "O"}, {"R_wide", "S_sum_all"})
    inside, outside = chains_of(parts.backward.program, dict(parts.backward.types))
    assert {"DK", "DV"} <= inside and not outside & {"S_sum", "S", "DS"}


def test_windows_by_place_are_chains_forward_and_backward():
    shapes = ((32, 512, 64),) * 3 + ((17,),)
    text = WINDOW.replace("H, N, 3]", "H, N, 17]").replace("- 1", "- 8").replace(">= 1", ">= 8")
    program, parts = parts_of(text, shapes, "bfloat16")
    types = {n: TensorType(s, "bfloat16") for n, s in zip(program.input_names(), shapes, strict=True)}
    assert chains_of(program, types) == ({"L", "O"}, set())
    inside, outside = chains_of(parts.backward.program, dict(parts.backward.types))
    assert {"DQ", "DK", "DV"} <= inside and not outside & {"S_sum", "S", "DS"}


@pytest.mark.parametrize("bound", ["i + w >= 1", "i + w - 1 < N"])
def test_windows_over_an_end_stay_as_they_are(bound, always):
    """What is outside of the keys has a score of 0 there, which counts."""
    _, parts = parts_of(WINDOW.replace("(i + w >= 1) & (i + w - 1 < N) ? S", f"{bound} ? S"), CASES["window"][1])
    assert "S[h, i, j" not in show(parts.backward.program)


def test_rows_without_a_column_of_their_own_stay_as_they_are(always):
    """The greatest of no score is -inf, and exp(-inf - -inf) NaN."""
    text = MASKED.replace("i + w >= 2", "i + w >= 4").replace("i + w - 2", "i + w - 4")
    _, parts = parts_of(text, CASES["window, masked"][1])
    assert "P[h, i, j" not in show(parts.backward.program)


def test_keys_and_values_made_of_latents_leave_scores_to_a_chain():
    text = """function (Q[N, H, D], C[M, R], WK[R, H, D], WV[R, H, D]) -> (O) {
        K[j, h, d : M, H, D] = sum(C[j, r] * WK[r, h, d]); V[j, h, d : M, H, D] = sum(C[j, r] * WV[r, h, d]);
        S[h, i, j : H, N, M] = sum(Q[i, h, d] * K[j, h, d]); L[h, i] = logsumexp(S[h, i, j]);
        O[i, h, d] = sum(exp(S[h, i, j] - L[h, i]) * V[j, h, d]); }"""
    shapes = {"Q": (1024, 8, 64), "C": (1024, 128), "WK": (128, 8, 64), "WV": (128, 8, 64)}
    types = {n: TensorType(s, "bfloat16") for n, s in shapes.items()}
    assert chains_of(tilec.compile(text).program, types) == ({"L", "O"}, {"K", "V"})


def agree_by_hand(text: str, shapes: tuple, scale: float) -> None:
    r = torch.Generator().manual_seed(0)
    inputs = [(scale * torch.randn(s, generator=r)).double().requires_grad_() for s in shapes]
    f = tilec.compile(text)
    y = f(*inputs)
    mine = torch.autograd.grad(y.sum(), inputs)
    by_hand = f.grad()(*[x.detach() for x in inputs], torch.ones_like(y))
    assert all(x.isfinite().all() for x in by_hand)
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in zip(mine, by_hand, strict=True))


@pytest.mark.parametrize("before, scale", [(1, 40.0), (3, 1.0)])
def test_columns_outside_of_a_window_add_nothing(before, scale, always):
    """Where their exponentials are infinite, or the first row has no column."""
    text = f"""function ({QKV}) -> (O) {{
        S[h, i, w : H, N, 3] = sum(Q[h, i, d] * K[h, i + w - {before}, d]);
        L[h, i] = logsumexp((i + w >= {before}) & (i + w - {before} < N) ? S[h, i, w]);
        P[h, i, w] = exp(S[h, i, w] - L[h, i]);
        O[h, i, d : H, N, D] = sum(P[h, i, w] * V[h, i + w - {before}, d]); }}"""
    _, parts = parts_of(text, ((2, N, D),) * 3)
    assert "S[h, i, j : 2, 5, 5]" in show(parts.backward.program) + show(parts.forward)
    agree_by_hand(text, ((2, N, D),) * 3, scale)


def test_scores_of_a_window_that_are_a_default_keep_their_shape(always):
    text = WINDOW.replace("P[W])", "P[W], Z[Y])").replace("; }", "; T[h, i, w : H, N, 3] = +(Z[w]) default S; }")
    text = text.replace("-> (O)", "-> (O, T)")
    f = tilec.compile(text)
    shapes = (*CASES["window"][1], (1,))
    q, k, v, p, z = (torch.randn(s, generator=torch.Generator().manual_seed(1)).requires_grad_() for s in shapes)
    o, t = f(q, k, v, p, z)
    assert t.shape == (2, N, 3) and len(torch.autograd.grad(o.sum() + t.sum(), (q, k, v, p, z))) == 5
