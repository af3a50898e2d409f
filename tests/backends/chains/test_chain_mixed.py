"""Float32 beside bfloat16 in the products of a chain: parts of bfloat16, exact as float32 is, by the NumPy interpreter
against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.block_interpreter import rounded
from support.chains import run

import tilec
from tilec.backends.common.blocks.ir import DotOp, Loop
from tilec.backends.common.chains.codegen.build import build_kernel
from tilec.backends.common.chains.codegen.places import Tiling
from tilec.backends.common.chains.recognise import chained
from tilec.ir.types import TensorType
from tilec.pipeline import lower

ATTENTION = """function (Q[N, E], K[M, E], V[M, F], T[M]) -> (L, O) {
    S[i, j : N, M] = sum(Q[i, e] * K[j, e]) * T[j];
    L[i : N] = logsumexp(S[i, j]);
    O[i, f : N, F] = sum(exp(S[i, j] - L[i]) * V[j, f]);
}"""
WEIGHTED = ATTENTION.replace("exp(S[i, j] - L[i])", "exp(S[i, j]) * T[j]")


def products(text, types, tiling):
    lowered = lower(tilec.compile(text).program, types, {})
    found = chained(lowered.stages["flat"], lowered.types)
    assert found.kernels
    bodies = [list(build_kernel("k", k, found.types, tiling).body) for k in found.kernels.values()]
    ops = [op for body in bodies for op in body]
    return [op for x in ops for op in (x.body if isinstance(x, Loop) else (x,)) if isinstance(op, DotOp)]


def test_chains_are_looked_for_once():
    """For the same statements; others may be equal but stand elsewhere in a text."""
    lowered = lower(tilec.compile(ATTENTION).program, given(())[0], {})
    flat, types = lowered.stages["flat"], lowered.types
    found = chained(flat, types)
    assert found.kernels and chained(replace(flat), dict(types)) is found
    assert chained(replace(flat, statements=tuple(map(replace, flat.statements))), types) is not found
    assert chained(flat, {**types, "T": TensorType((50,), "float16")}) is not found


def given(narrow, width=16):
    g = np.random.default_rng(0)
    shapes = {"Q": (40, 24), "K": (50, 24), "V": (50, width), "T": (50,)}
    types = {n: TensorType(s, "bfloat16" if n in narrow else "float32") for n, s in shapes.items()}
    return types, {n: rounded(g.standard_normal(s) / 3, types[n].dtype) for n, s in shapes.items()}


def exact(arrays, weighted):
    q, k, v, t = (x.astype(np.float64) for x in arrays.values())
    s = (q @ k.T) * t
    p = np.exp(s)
    return (p * t if weighted else p / p.sum(1, keepdims=True)) @ v


@pytest.mark.one_in(3)
@pytest.mark.parametrize("narrow", ["QKV", "V", "Q", "K", "QV"])
@pytest.mark.parametrize("text", [ATTENTION, WEIGHTED], ids=["softmax", "weighted"])
def test_as_exact_as_float32(text, narrow):
    types, arrays = given(narrow)
    tiling = Tiling(32, 16)
    ran = run(tilec.compile(text).program, types, arrays, tiling)
    wanted = exact(arrays, text is WEIGHTED)
    assert np.linalg.norm(ran.values["O"] - wanted) <= 1e-6 * np.linalg.norm(wanted)
    kinds = {(op.left.type.dtype, op.precision) for op in products(text, types, tiling)}
    assert kinds <= {("bfloat16", None), ("float32", "tf32x3")}
    assert (("float32", "tf32x3") in kinds) == (narrow in ("V", "Q", "K"))  # where neither operand is narrow


def test_as_many_parts_as_the_precision_has():
    types, _ = given("QKV")
    for precision, count in (("tf32x3", 3), ("tf32", 2)):
        found = products(ATTENTION, types, Tiling(32, 16, precision=precision))
        assert [op.axis == "j" for op in found].count(True) == 2 * count  # in whole blocks and in the last one
    types, _ = given("QKV", width=3)
    assert ("float32", "tf32x3") in {(op.left.type.dtype, op.precision) for op in products(ATTENTION, types, Tiling())}


def test_weights_that_are_not_finite():
    types, arrays = given("QKV")
    arrays["T"][:] = 1.0
    arrays["T"][3], arrays["T"][4] = np.inf, np.nan
    text = WEIGHTED.replace("sum(Q[i, e] * K[j, e]) * T[j]", "sum(Q[i, e] * K[j, e])")
    for last in (4, 5):
        arrays["V"][last:] = 0
        body = text.replace("sum(exp(S[i, j]) *", f"sum(j < {last} ? exp(S[i, j]) *")
        found = run(tilec.compile(body).program, types, arrays, Tiling(32, 16)).values["O"]
        assert (np.isinf(found) if last == 4 else np.isnan(found)).all()
        assert last == 5 or (np.sign(found) == np.sign(arrays["V"][3])).all()
