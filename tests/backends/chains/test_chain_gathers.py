"""Chains with reads at computed positions: which kernels they are, and their values where positions lie outside."""

import numpy as np
import pytest
import torch
from support.block_interpreter import rounded
from support.chains import run
from support.kernel_cases import BUCKETS

import tilec
from tilec.backends.common.chains.codegen.places import Tiling
from tilec.backends.common.chains.recognise import chained
from tilec.ir.types import TensorType
from tilec.pipeline import lower
from tilec.saving import partition

SIZES = {"B": 2, "H": 3, "N": 40, "M": 33, "E": 16, "F": 24, "U": 6, "P": 32}
PAGED = BUCKETS.replace("Bucket[N, M])", "Bucket[N, M], At[P])").replace("K[b, h, j, e]", "K[b, h, At[j], e]")
PAGED = PAGED.replace("H, N, M]", "H, N, P]").replace("V[b, h, j, f]", "V[b, h, At[j], f]")
TEXTS = {
    "a bias": BUCKETS,
    "a bias of each": BUCKETS.replace("Bucket[N, M]", "Bucket[B, N, M]").replace("Bucket[i, j]", "Bucket[b, i, j]"),
    "a factor": BUCKETS.replace("+ Table", "* Table"),
    "rows": PAGED,
}


@pytest.mark.parametrize("high", [0, 3], ids=["inside", "some outside"])
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.one_in(8)
def test_values_and_gradients(name: str, high: int) -> None:
    program = tilec.compile(TEXTS[name]).program
    g = np.random.default_rng(0)
    arrays = {}
    for i in program.inputs:
        shape = [SIZES[str(d)] for d in i.dims or ()]
        most = {"Bucket": SIZES["U"], "At": SIZES["M"]}.get(i.name)
        arrays[i.name] = (
            g.standard_normal(shape).astype(np.float32) if most is None else g.integers(-high, most + high, shape)
        )
    types = {n: TensorType(x.shape, x.dtype.name) for n, x in arrays.items()}
    parts = partition(program, ("Q", "K", "V", "Table"), types, {}, True)
    forward = run(parts.forward or program, types, arrays, Tiling(16, 16))
    exact = {n: torch.tensor(x) for n, x in arrays.items()}
    exact = {n: x.double().requires_grad_() if x.is_floating_point() else x for n, x in exact.items()}
    value = tilec.compile(TEXTS[name], backend="torch")(*exact.values())
    cotangent = g.standard_normal(value.shape).astype(np.float32)
    given = {n: forward.values[n] for n in parts.backward.values}
    given |= {n: arrays[n] for n in parts.backward.shapes} | {"DO": cotangent}
    backward = run(parts.backward.program, dict(parts.backward.types), given, Tiling(16, 16))
    assert "O" in {o for k in forward.kernels for o in k}
    made_in_chains = {o for k in backward.kernels for o in k}
    assert name == "rows" or {"DQ", "DK", "DV"} <= made_in_chains  # rows: the sum over scores and features is stored
    wrt = [exact[n] for n in ("Q", "K", "V", "Table")]
    wanted = [value, *torch.autograd.grad(value, wrt, torch.tensor(cotangent).double())]
    made = [forward.values["O"], *(backward.values[o] for o in parts.backward.program.outputs)]
    for x, y in zip(made, wanted, strict=True):
        assert np.linalg.norm(x - y.detach().numpy()) <= 1e-5 * torch.linalg.norm(y).item()


def test_a_constraint_of_the_inner_sum_that_always_holds() -> None:
    """It goes with the sum: what reads that one does not have its variable."""
    text = """function (Q[N, D], K[M, D], V[N, E]) -> (O) {
        S[i, j : N, N] = sum(Q[i, k] * K[j, k]), i - k + 63 < 191;
        L[i] = logsumexp(S[i, j]);
        O[i, e : N, E] = sum(exp(S[i, j] - L[i]) * V[j, e]); }"""
    g = np.random.default_rng(0)
    shapes = {"Q": (32, 64), "K": (40, 64), "V": (32, 16)}
    arrays = {n: g.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    types = {n: TensorType(x.shape, "float32") for n, x in arrays.items()}
    ran = run(tilec.compile(text).program, types, arrays, Tiling(16, 16))
    q, k, v = (torch.tensor(x).double() for x in arrays.values())
    np.testing.assert_allclose(ran.values["O"], torch.softmax(q @ k[:32].T, 1) @ v, rtol=1e-4, atol=1e-5)
    assert ran.kernels == [("L", "O")]


DECODING = """function (Q[B, H, D], K[P, S, G, D], V[P, S, G, D], Table[B, T], Len[B]) -> (O) {
    A[b, g, r, t, s : B, G, H/G, T, S] = sum(Q[b, g*(H/G) + r, d] * K[Table[b, t], s, g, d]);
    L[b, g, r] = logsumexp(t*S + s < Len[b] ? A[b, g, r, t, s]);
    O[b, g, r, d] = sum(t*S + s < Len[b] ? exp(A[b, g, r, t, s] - L[b, g, r]) * V[Table[b, t], s, g, d]);
}"""
TWO_TABLES = DECODING.replace("Table[b, t]", "Table[b, Second[t]]").replace("Len[B])", "Len[B], Second[T])")


@pytest.mark.parametrize("batch", [4, 64], ids=["parts of the columns", "whole walks"])
def test_pages_are_read_in_place(batch: int) -> None:
    """One walk over what the table names, as far as a length says, and no copy of it."""
    shapes = ((batch, 32, 128), (8192, 16, 8, 128), (8192, 16, 8, 128))
    specs = [tilec.spec(s, "bfloat16") for s in shapes]
    specs += [tilec.spec((batch, 512), "int64"), tilec.spec((batch,), "int32")]
    lowered = tilec.compile(DECODING, backend="triton").lower(*specs, target="sm_90")
    assert len(lowered.kernels) == (2 if batch == 4 else 1)
    assert len(lowered.stages["grouped"].statements) == 2


@pytest.mark.parametrize("text", [DECODING, TWO_TABLES], ids=["a table", "a table of a table"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.covering
def test_what_pages_hold_beyond_lengths_counts_nothing(dtype: type, text: str) -> None:
    """Places outside of the table's pages have a score of 0 and no value; pages that no place reads may be NaN."""
    g = np.random.default_rng(0)
    shapes = {"Q": (2, 4, 16), "K": (9, 16, 2, 16), "V": (9, 16, 2, 16)}
    arrays = {n: rounded(g.standard_normal(s), "bfloat16") for n, s in shapes.items()}
    arrays["K"][8] = arrays["V"][8] = np.nan
    arrays["V"][7] = np.inf
    table = g.integers(0, 7, (2, 80)).astype(dtype)
    table[:, 40] = -1, 9
    table[0, 79], table[1, 2:4] = 8, (7, 8)
    arrays |= {"Table": table, "Len": np.array([79 * 16 - 3, 0], dtype)}
    if text is TWO_TABLES:
        arrays["Table"] = table[:, ::-1].copy()
        arrays["Second"] = np.arange(80)[::-1].copy()
        arrays["Second"][50] = 80
    types = {n: TensorType(x.shape, "bfloat16" if n in shapes else x.dtype.name) for n, x in arrays.items()}
    ran = run(tilec.compile(text).program, types, arrays, Tiling(16, 32))
    given = (torch.tensor(x).double() if x.dtype.kind == "f" else torch.tensor(x) for x in arrays.values())
    wanted = tilec.compile(text, backend="torch")(*given).numpy()
    assert len(ran.kernels) == 1 and not wanted[1].any()
    assert np.linalg.norm(ran.values["O"] - wanted) <= 5e-3 * np.linalg.norm(wanted)


BRANCHES = """function (Q[B, N, E], K[B, N, E], V[B, N, F], P[N, E]) -> (O) {
    U[b, i, r : B, N, N] = sum(Q[b, i, e] * P[r, e]);
    S[b, i, j : B, N, N] = i >= j ? sum(Q[b, i, e] * K[b, j, e]) + U[b, i, i - j] : -inf;
    L[b, i] = logsumexp(S[b, i, j]);
    O[b, i, f] = sum(exp(S[b, i, j] - L[b, i]) * V[b, j, f]);
}"""


@pytest.mark.parametrize(("seen", "hidden"), [("i >= j", True), ("i - j < 9 & i >= j", True), ("i > j", False)])
def test_what_a_branch_hides_is_not_visited(seen: str, hidden: bool) -> None:
    """Unless a row may have no point: its weights are no numbers, and that has to come out."""
    types = {n: TensorType((2, 64, 16), "float32") for n in "QKV"} | {"P": TensorType((64, 16), "float32")}
    lowered = lower(tilec.compile(BRANCHES.replace("i >= j", seen)).program, types, {})
    (kernel,) = chained(lowered.stages["flat"], lowered.types).kernels.values()
    assert kernel.outputs == ("L", "O")
    assert all(bool(r.target.bounds) == hidden for r in kernel.targets)
