"""Chains with reads at computed positions: which kernels they are, and their values where positions lie outside."""

import numpy as np
import pytest
import torch
from support.chains import run
from support.kernel_cases import BUCKETS

import tilec
from tilec.backends.common.chains.codegen.places import Tiling
from tilec.ir.types import TensorType
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
@pytest.mark.one_in(3)
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
