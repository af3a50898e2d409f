"""Derivatives of derivatives of attention, and computed operands: plans for a device, and values of interpreted kernels
against torch."""

import numpy as np
import pytest
import torch
from support.allocated import allocated, shapes
from support.block_interpreter import rounded
from support.chains import COSINE, run

import tilec
from tilec.backends.common.chains.codegen.places import Tiling
from tilec.backends.triton.fusion.groups import grouped
from tilec.ir.types import TensorType
from tilec.pipeline import lower
from tilec.saving import partition

WRT = ("Q", "K", "V")
GUARDS = {"full": "", "causal": "i >= j ?"}
DERIVATIVES = {
    "jvp of grad": lambda f: f.grad(WRT).jvp(WRT),
    "grad of grad": lambda f: f.grad(WRT).grad(WRT),
    "grad of jvp": lambda f: f.jvp(WRT).grad(WRT),
    "jvp": lambda f: f.jvp(WRT),
}


def attention(guard, backend):
    text = f"""function (Q[B, N, E], K[B, M, E], V[B, M, F]) -> (O) {{
        S[b, i, j : B, N, M] = 0.25 * sum(Q[b, i, e] * K[b, j, e]);
        L[b, i] = logsumexp({GUARDS[guard]} S[b, i, j]);
        O[b, i, f] = sum({GUARDS[guard]} exp(S[b, i, j] - L[b, i]) * V[b, j, f]);
    }}"""
    return tilec.compile(text, backend=backend)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("name", DERIVATIVES)
@pytest.mark.covering
def test_derivatives_are_chains(name, guard, dtype):
    """They lower for a device, each kernel's statements stand together, its key first, and no matrix is stored."""
    f = DERIVATIVES[name](attention(guard, "triton"))
    given = {i.name: TensorType((8, 512, 64), dtype) for i in f.program.inputs}
    source = f.lower(*(tilec.spec(t.shape, t.dtype) for t in given.values()), target="sm_90").source()
    assert "_chain[" in source and (8, 512, 512) not in shapes(source)
    made = lower(f.program, given, {})
    found = grouped(made.stages["flat"], made.types)
    outputs = [s.output for s in found.program.statements]
    for key, kernel in found.chains.items():
        place = outputs.index(key)
        own = [s.output for s in kernel.statements]
        assert outputs[place : place + len(own)] == own


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("name", DERIVATIVES)
@pytest.mark.covering
@pytest.mark.one_in(5)
def test_values_of_derivatives(name, guard, dtype):
    derived = DERIVATIVES[name]
    f, g = derived(attention(guard, "triton")), np.random.default_rng(0)
    sizes = {"Q": (2, 40, 8), "K": (2, 33, 8), "V": (2, 33, 8), "O": (2, 40, 8)}
    shapes = {i.name: sizes[i.name.lstrip("DT")[-1]] for i in f.program.inputs}
    arrays = {n: rounded(g.standard_normal(s), dtype) for n, s in shapes.items()}
    types = {n: TensorType(s, dtype) for n, s in shapes.items()}
    ran = run(f.program, types, arrays, Tiling(16, 16))
    assert ran.kernels
    theirs = derived(attention(guard, "torch"))(*(torch.tensor(x).double() for x in arrays.values()))
    for output, y in zip(f.program.outputs, theirs, strict=True):
        x, y = ran.values[output], y.numpy()
        assert np.linalg.norm(x - y) <= (2e-2 if dtype == "bfloat16" else 1e-5) * np.linalg.norm(y)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_computed_operands_are_stored_once_as_typed(dtype):
    """Rows that are made unit vectors are operands, no statistics: they keep their type, and one kernel stores them
    although only matrix values of a chain read them."""
    f = tilec.compile(COSINE, backend="triton")
    source = f.lower(*[tilec.spec((8, 512, 64), dtype)] * 3, target="sm_90").source()
    for name in "AC":
        assert allocated(source)[name] == ((8, 512, 64), dtype)
    assert "O_chain[" in source and (8, 512, 512) not in shapes(source)
    assert allocated(source)["L"] == ((8, 512), "float32")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_values_of_computed_operands(dtype):
    f, g = tilec.compile(COSINE), np.random.default_rng(0)
    given = [torch.tensor(g.standard_normal(s)).to(getattr(torch, dtype)) for s in ((2, 40, 8), (2, 33, 8), (2, 33, 8))]
    types = {n: TensorType(tuple(x.shape), dtype) for n, x in zip("QKV", given, strict=True)}
    arrays = {n: x.float().numpy() for n, x in zip("QKV", given, strict=True)}
    ran = run(f.program, types, arrays, Tiling(16, 16))
    assert ran.kernels == [("L", "O")]
    q, k, v = (x.double() for x in given)
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    y = (torch.softmax(10 * q @ k.mT, -1) @ v).numpy()
    assert np.linalg.norm(ran.values["O"] - y) <= (2e-2 if dtype == "bfloat16" else 1e-5) * np.linalg.norm(y)


def test_a_bias_that_is_computed_keeps_its_type():
    """A matrix beside the scores is as large as they are: it is stored in the type that the text gives it."""
    text = """function (Q[B, N, E], K[B, M, E], V[B, M, F], P[B, N, M, C]) -> (O) {
        R[b, i, j : B, N, M] = max(P[b, i, j, c]);
        S[b, i, j : B, N, M] = sum(Q[b, i, e] * K[b, j, e]) + R[b, i, j];
        L[b, i : B, N] = logsumexp(S[b, i, j]);
        O[b, i, f : B, N, F] = sum(exp(S[b, i, j] - L[b, i]) * V[b, j, f]);
    }"""
    given = [tilec.spec(s, "bfloat16") for s in ((8, 512, 64), (8, 512, 64), (8, 512, 64), (8, 512, 512, 3))]
    source = tilec.compile(text, backend="triton").lower(*given, target="sm_90").source()
    assert "O_chain[" in source and allocated(source)["R"] == ((8, 512, 512), "bfloat16")


def test_products_of_two_statistics_are_products_of_matrices():
    """Statistics are held wide; a product that mixes two of them casts each, not the product of both."""
    text = """function (Q[B, N, E], K[B, M, E], V[B, M, E]) -> (O, T) {
        S[b, i, j : B, N, M] = sum(Q[b, i, e] * K[b, j, e]);
        R[b, i, j : B, N, M] = sum(V[b, j, e] * K[b, i, e]);
        L[b, i : B, N] = logsumexp(S[b, i, j]);
        D[b, i : B, N] = logsumexp(R[b, i, j]);
        O[b, i, f : B, N, E] = sum((exp(S[b, i, j] - L[b, i]) + exp(R[b, i, j] - D[b, i])) * V[b, j, f]);
        T[i, k : N, N] = sum(L[b, i] * D[b, k]);
    }"""
    f = tilec.compile(text, backend="triton")
    source = f.lower(*[tilec.spec((64, 256, 64), "bfloat16")] * 3, target="sm_90").source()
    assert "_chain[" in source and allocated(source)["L"] == ((64, 256), "float32")
    assert "T_dot[" in source


@pytest.mark.parametrize("scores", ["sigmoid({} - 5)", "{}"])
def test_gradients_without_exponentials(scores):
    """Two matrices would be stored, which are together much larger than what is read and made."""
    score = scores.format("0.125 * sum(Q[b, i, e] * K[b, j, e])")
    text = f"""function (Q[B, N, E], K[B, M, E], V[B, M, F]) -> (O) {{
        S[b, i, j : B, N, M] = {score};
        O[b, i, f : B, N, F] = sum(i >= j ? S[b, i, j] * V[b, j, f]);
    }}"""
    f = tilec.compile(text, backend="triton").grad(WRT)
    large, small = (f.lower(*[tilec.spec((64, n, 64), "bfloat16")] * 4, target="sm_90").source() for n in (2048, 128))
    assert "_chain[(" in large and "2048, 2048)" not in large
    assert "_chain[" not in small


def test_exponentials_over_what_is_walked_alone():
    """A kernel has blocks of rows and columns, and goes through the parts of a mixture one by one."""
    text = """function (H[N, K, D], W[V, D], Pi[N, K]) -> (P) {
        S[n, k, v] = sum(H[n, k, d] * W[v, d]); A[n, k] = logsumexp(S[n, k, v]);
        P[n, v] = logsumexp(Pi[n, k] + S[n, k, v] - A[n, k]);
    }"""
    program = tilec.compile(text).program
    shapes = {"H": (32, 3, 16), "W": (48, 16), "Pi": (32, 3)}
    g = np.random.default_rng(0)
    arrays = {n: g.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    parts = partition(program, tuple(shapes), {n: TensorType(s, "float32") for n, s in shapes.items()}, {}, False)
    inputs = [torch.tensor(x).double().requires_grad_() for x in arrays.values()]
    value = tilec.compile(text)(*inputs)
    given = {n: arrays[n] if n in arrays else value.detach().numpy() for n in parts.backward.values}
    given |= {n: arrays[n] for n in parts.backward.shapes} | {"DP": g.standard_normal((32, 48)).astype(np.float32)}
    ran = run(parts.backward.program, dict(parts.backward.types), given, Tiling(16, 16))
    assert ("P_wide",) in ran.kernels or ("P",) in ran.kernels
    wanted = torch.autograd.grad(value, inputs, torch.tensor(given["DP"]).double())
    for name, gradient in zip(parts.backward.program.outputs, wanted, strict=True):
        np.testing.assert_allclose(ran.values[name], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("widths", [(16, 24), (24, 16)])
def test_widths_of_one_name(widths):
    """Features of different counts are different ones, whatever a text calls them."""
    text = """function (Q[B, N, E], K[B, M, E], V[B, M, F]) -> (O) {
        S[b, i, j : B, N, M] = sum(Q[b, i, d] * K[b, j, d]); L[b, i] = logsumexp(S[b, i, j]);
        O[b, i, d : B, N, F] = sum(exp(S[b, i, j] - L[b, i]) * V[b, j, d]);
    }"""
    program = tilec.compile(text).program
    e, f = widths
    g = np.random.default_rng(0)
    arrays = {n: g.standard_normal((2, 40, w)).astype(np.float32) for n, w in (("Q", e), ("K", e), ("V", f))}
    parts = partition(program, WRT, {n: TensorType(x.shape, "float32") for n, x in arrays.items()}, {}, True)
    forward = run(parts.forward or program, dict(parts.backward.types), arrays, Tiling(16, 16))
    cotangent = g.standard_normal((2, 40, f)).astype(np.float32)
    given = {n: forward.values[n] for n in parts.backward.values} | {"DO": cotangent}
    given |= {n: arrays[n] for n in parts.backward.shapes}
    backward = run(parts.backward.program, dict(parts.backward.types), given, Tiling(16, 16))
    inputs = [torch.tensor(x).double().requires_grad_() for x in arrays.values()]
    wanted = torch.autograd.grad(tilec.compile(text)(*inputs), inputs, torch.tensor(cotangent).double())
    for name, gradient in zip(parts.backward.program.outputs, wanted, strict=True):
        np.testing.assert_allclose(backward.values[name], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name, guard, kernels",
    [("jvp", "full", 1), ("jvp", "causal", 1), ("grad of grad", "full", 3), ("grad of grad", "causal", 4)],
)
def test_kernels_of_derivatives(name, guard, kernels):
    """Whether a row has a point is asked after the walk, so that statistics are made beside the sums that they are of;
    what products' derivatives add up is one sum."""
    f = DERIVATIVES[name](attention(guard, "triton"))
    given = [tilec.spec((16, 2048, 64), "bfloat16")] * len(f.program.inputs)
    assert f.lower(*given, target="sm_90").source().count("_chain[") == kernels


A = "A[b, i]"
SUMS = {
    "two operands": ("sum(w V[b, j, f]) + sum(w S[b, i, j] * W[b, j, f])", 1),
    "an operand": ("sum(w V[b, j, f]) + sum(w S[b, i, j] * V[b, j, f])", 1),
    "a factor of rows": ("sum(w V[b, j, f]) + sum(w A[b, i] * W[b, j, f])", 1),
    "twice a factor": (f"sum(w {A} * {A} * V[b, j, f]) + sum(w {A} * S[b, i, j] * V[b, j, f])", 1),
    "three": (f"sum(w {A} * V[b, j, f]) + sum(w S[b, i, j] * V[b, j, f]) + sum(w W[b, j, f])", 1),
    "something else": ("sum(w V[b, j, f]) + sum(w S[b, i, j] * W[b, j, f]) + C[f]", 1),
    "a factor of features": ("sum(w V[b, j, f]) + sum(w C[f] * W[b, j, f])", 2),
    "a statistic": ("sum(w V[b, j, f]) + sum(w L[b, i] * W[b, j, f])", 2),
    "a difference": ("sum(w V[b, j, f]) - sum(w S[b, i, j] * W[b, j, f])", 2),
    "other points": ("sum(w V[b, j, f]) + sum(j > 3 ? w W[b, j, f])", 2),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SUMS)
@pytest.mark.covering
def test_sums_that_are_added_up(name, dtype):
    """Of one kernel they are one sum, unless that needs what is there after the walk alone, or other points."""
    body, sums = SUMS[name]
    text = f"""function (Q[B, N, E], K[B, M, E], V[B, M, F], W[B, M, F], A[B, N], C[F]) -> (O) {{
        S[b, i, j : B, N, M] = 0.25 * sum(Q[b, i, e] * K[b, j, e]);
        L[b, i] = logsumexp(S[b, i, j]);
        O[b, i, f : B, N, F] = {body.replace("w ", "exp(S[b, i, j] - L[b, i]) * ")};
    }}"""
    g, shapes = np.random.default_rng(0), {"Q": (2, 40, 24), "A": (2, 40), "C": (24,)}
    arrays = {n: rounded(g.standard_normal(shapes.get(n, (2, 33, 24))), dtype) for n in "QKVWAC"}
    types = {n: TensorType(x.shape, dtype) for n, x in arrays.items()}
    ran = run(tilec.compile(text).program, types, arrays, Tiling(16, 16))
    (kernel,) = ran.kernels
    assert len(kernel) == 1 + sums
    y = tilec.compile(text, backend="torch")(*(torch.tensor(x).double() for x in arrays.values())).numpy()
    assert np.linalg.norm(ran.values["O"] - y) <= (2e-2 if dtype == "bfloat16" else 1e-5) * np.linalg.norm(y)
