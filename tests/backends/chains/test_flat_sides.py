"""Matrices whose sides lie along several axes: one chain, against torch in float64."""

import numpy as np
import pytest
import torch
from support.chains import run

import tilec
from tilec.backends.common.chains.codegen.places import Tiling
from tilec.backends.common.chains.recognise import chained
from tilec.ir.types import TensorType
from tilec.pipeline import lower

WINDOWS = """function (Q[W, H, Y, X, E], K[W, H, Y, X, E], V[W, H, Y, X, F], P[A, B, H], M[W, Y, X, Y, X]) -> (O, L) {
    S[w, h, y, x, v, u : W, H, Y, X, Y, X] = sum(Q[w, h, y, x, e] * K[w, h, v, u, e])BIAS;
    L[w, h, y, x : W, H, Y, X] = logsumexp(S[w, h, y, x, v, u]);
    O[w, h, y, x, f : W, H, Y, X, F] = sum(exp(S[w, h, y, x, v, u] - L[w, h, y, x]) * V[w, h, v, u, f]);
}"""
BIASES = {
    "": lambda p, m, y, x: 0,
    " + P[y - v + Y - 1, x - u + X - 1, h]": lambda p, m, y, x: p[
        y[:, None] - y + y.max(), x[:, None] - x + x.max()
    ].permute(2, 0, 1),
    " + M[w, y, x, v, u]": lambda p, m, y, x: m.flatten(3, 4).flatten(1, 2)[:, None],
    " * P[y, x, h]": None,
}


def arrays_of(y, x):
    g = np.random.default_rng(0)
    shapes = {"Q": (2, 3, y, x, 12), "K": (2, 3, y, x, 12), "V": (2, 3, y, x, 9), "P": (2 * y - 1, 2 * x - 1, 3),
              "M": (2, y, x, y, x)}  # fmt: skip
    return {n: g.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


@pytest.mark.parametrize("sides", [(7, 7), (5, 4), (1, 17)], ids=str)
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.covering
def test_windows(bias, sides):
    arrays = arrays_of(*sides)
    types = {n: TensorType(a.shape, "float32") for n, a in arrays.items()}
    ran = run(tilec.compile(WINDOWS.replace("BIAS", bias)).program, types, arrays, Tiling(16, 64))
    assert len(ran.kernels) == 1 and len(ran.kernels[0]) == 2
    t = {n: torch.tensor(a).double() for n, a in arrays.items()}
    i = torch.arange(sides[0] * sides[1])
    s = t["Q"].flatten(2, 3) @ t["K"].flatten(2, 3).mT
    if bias == " * P[y, x, h]":
        s = s * t["P"][: sides[0], : sides[1]].flatten(0, 1).mT[..., None]
    else:
        s = s + BIASES[bias](t["P"], t["M"], i // sides[1], i % sides[1])
    o = torch.softmax(s, -1) @ t["V"].flatten(2, 3)
    np.testing.assert_allclose(ran.values["O"], o.reshape(ran.values["O"].shape), rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(ran.values["L"], torch.logsumexp(s, -1).reshape(ran.values["L"].shape), rtol=2e-5)


@pytest.mark.parametrize("bias", [" + y * u", " + (y >= v ? 1.0 : 2.0)", " + in(P[y - v, x, h])"])
def test_numbers_of_places_stay_apart(bias):
    """Values of index variables, which have no place of their own once they are one."""
    types = {n: TensorType(a.shape, "float32") for n, a in arrays_of(7, 7).items()}
    lowered = lower(tilec.compile(WINDOWS.replace("BIAS", bias)).program, types, {})
    found = chained(lowered.stages["flat"], lowered.types)
    assert not found.kernels and found.program == lowered.stages["flat"]


def test_rows_of_two_axes_and_columns_of_one():
    source = """function (Q[B, Y, X, E], K[B, M, E], V[B, M, F]) -> (O) {
        S[b, y, x, j : B, Y, X, M] = sum(Q[b, y, x, e] * K[b, j, e]);
        L[b, y, x : B, Y, X] = logsumexp(S[b, y, x, j]);
        O[b, y, x, f : B, Y, X, F] = sum(exp(S[b, y, x, j] - L[b, y, x]) * V[b, j, f]);
    }"""
    g = np.random.default_rng(0)
    shapes = {"Q": (2, 9, 11, 10), "K": (2, 37, 10), "V": (2, 37, 9)}
    arrays = {n: g.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    types = {n: TensorType(a.shape, "float32") for n, a in arrays.items()}
    ran = run(tilec.compile(source).program, types, arrays, Tiling(16, 16))
    assert len(ran.kernels) == 1
    q, k, v = (torch.tensor(a).double() for a in arrays.values())
    want = (torch.softmax(q.flatten(1, 2) @ k.mT, -1) @ v).unflatten(1, (9, 11))
    np.testing.assert_allclose(ran.values["O"], want, rtol=2e-5, atol=2e-5)


SEEN = {
    "": lambda i, j, t: j >= 0,
    "i + 30 - j >= 0": lambda i, j, t: j <= i + 30,
    "2 * i + 9 > j": lambda i, j, t: j < 2 * i + 9,
    "j <= T[b] + i": lambda i, j, t: j <= t[:, None, None] + i,
    "j < T[b] & i + 8 >= j": lambda i, j, t: (j < t[:, None, None]) & (j <= i + 8),
}


@pytest.mark.parametrize("shape", [(5, 4), (3, 6), (1, 16)], ids=str)
@pytest.mark.parametrize("guard", SEEN)
@pytest.mark.covering
def test_few_queries_of_heads_that_share_keys(guard, shape):
    """Side by side in one block: bounds ask for the query in the place of both, and memory that none of them sees may
    hold anything."""
    seen = f"{guard} ? " if guard else ""
    source = f"""function (Q[B, R, N, E], K[B, M, E], V[B, M, F], T[B]) -> (O) {{
        S[b, r, i, j : B, R, N, M] = sum(Q[b, r, i, e] * K[b, j, e]);
        L[b, r, i : B, R, N] = logsumexp({seen}S[b, r, i, j]);
        O[b, r, i, f : B, R, N, F] = sum({seen}exp(S[b, r, i, j] - L[b, r, i]) * V[b, j, f]);
    }}"""
    g = np.random.default_rng(0)
    shapes = {"Q": (2, *shape, 10), "K": (2, 45, 10), "V": (2, 45, 9)}
    arrays = {n: g.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    arrays["T"] = np.array([3, 20], np.int64)
    i, j, t = torch.arange(shape[1])[:, None], torch.arange(45), torch.tensor(arrays["T"])
    visible = SEEN[guard](i, j, t).expand(2, shape[1], 45)
    hidden = ~visible.any(1).numpy()
    arrays["K"][hidden], arrays["V"][hidden] = np.inf, np.nan
    types = {n: TensorType(a.shape, str(a.dtype)) for n, a in arrays.items()}
    ran = run(tilec.compile(source).program, types, arrays, Tiling(16, 16))
    assert len(ran.kernels) == 1
    q, k, v = (torch.tensor(np.nan_to_num(arrays[n], posinf=0.0)).double() for n in "QKV")
    scores = (q.flatten(1, 2) @ k.mT).unflatten(1, shape).masked_fill(~visible[:, None], -torch.inf)
    want = torch.softmax(scores, -1) @ v[:, None]
    np.testing.assert_allclose(ran.values["O"], want, rtol=2e-5, atol=2e-5)


def test_bounds_of_the_heads_that_share_keys_stay_apart():
    """Of the number of a head in the place of head and query no integer is made."""
    source = """function (Q[B, R, N, E], K[B, M, E], V[B, M, F]) -> (O) {
        S[b, r, i, j : B, R, N, M] = sum(Q[b, r, i, e] * K[b, j, e]);
        L[b, r, i : B, R, N] = logsumexp(i + r >= j ? S[b, r, i, j]);
        O[b, r, i, f : B, R, N, F] = sum(i + r >= j ? exp(S[b, r, i, j] - L[b, r, i]) * V[b, j, f]);
    }"""
    types = {n: TensorType(s, "float32") for n, s in {"Q": (2, 5, 4, 10), "K": (2, 45, 10), "V": (2, 45, 9)}.items()}
    lowered = lower(tilec.compile(source).program, types, {})
    assert not chained(lowered.stages["flat"], lowered.types).kernels
