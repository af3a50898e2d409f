"""Fields of points: what points a side weigh is a vector, so that the gradient by the weights adds up its coordinates
beside the points. Matrices of pairs are stored nowhere, forward and backward."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from support.chains import run

import tilec
from tilec.backends.common.chains import cost
from tilec.backends.common.chains.codegen.places import Tiling
from tilec.ir.types import TensorType
from tilec.saving import partition

STATED = "S[i, j : N, M] = sum((Y[j, d] - X[i, d]) * (Y[j, d] - X[i, d])) + 0.1;"
FIELDS = {
    "gravity": (
        "+(G[j] * (Y[j, d] - X[i, d]) / (S[i, j] * sqrt(S[i, j])))",
        lambda v, s, g, y: (g / (s * s.sqrt()))[..., None] * v,
    ),
    "gaussian": (
        "+(G[j] * (Y[j, d] - X[i, d]) * exp(-S[i, j]))",
        lambda v, s, g, y: (g * torch.exp(-s))[..., None] * v,
    ),
    "two terms": (
        "+((G[j] * Y[j, d] - X[i, d]) / (1 + S[i, j]))",
        lambda v, s, g, y: (g[:, None] * y + v - y) / (1 + s)[..., None],
    ),
    "by directions": (
        "+((d + 1) * G[j] * (Y[j, d] - X[i, d]) * rsqrt(S[i, j]))",
        lambda v, s, g, y: torch.arange(1, 4) * (g * s.rsqrt())[..., None] * v,
    ),
    "masked": (
        "+(i + 3 >= j ? G[j] * (Y[j, d] - X[i, d]) / S[i, j])",
        lambda v, s, g, y: torch.tril(g / s, 3)[..., None] * v,
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", FIELDS)
def test_gradients_of_fields(name, monkeypatch):
    monkeypatch.setattr(cost, "LARGE", 0)
    body, formula = FIELDS[name]
    text = f"function (X[N, D], Y[M, D], G[M]) -> (O) {{ {STATED} O[i, d : N, D] = {body}; }}"
    g = np.random.default_rng(0)
    shapes = {"X": (50, 3), "Y": (37, 3), "G": (37,)}
    arrays = {k: g.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    types = {k: TensorType(s, "float32") for k, s in shapes.items()}
    backward = partition(tilec.compile(text).program, tuple(shapes), types, {}, True).backward
    cotangent = g.standard_normal((50, 3)).astype(np.float32)
    ran = run(backward.program, dict(backward.types), arrays | {"DO": cotangent}, Tiling(32, 16))
    x, y, w = leaves = [torch.tensor(a).double().requires_grad_() for a in arrays.values()]
    v = y - x[:, None]
    value = formula(v, v.square().sum(-1) + 0.1, w, y).sum(1)
    exact = torch.autograd.grad(value, leaves, torch.tensor(cotangent).double())
    for output, wanted in zip(backward.program.outputs, exact, strict=True):
        assert np.linalg.norm(ran.values[output] - wanted.numpy()) <= 3e-6 * wanted.norm()
    assert len(ran.kernels) == 2 and not {"S", "DS"} & {o for kernel in ran.kernels for o in kernel}


def test_coordinates_beside_other_factors():
    """Terms of coordinates are added up before what they share is multiplied."""
    text = f"""function (X[N, D], Y[M, D], G[M], DO[N, D]) -> (DG) {{
        {STATED} DG[j : M] = +(DO[i, d] * (Y[j, d] - X[i, d]) / (S[i, j] * sqrt(S[i, j])));
    }}"""
    specs = [tilec.spec(s, "float32") for s in ((8192, 3), (8192, 3), (8192,), (8192, 3))]
    (kernel,) = tilec.compile(text, backend="triton").lower(*specs, target="sm_90").kernels
    reciprocals = re.findall(r"(\w+) = \(1\.0 / ", kernel.source)
    assert len(reciprocals) == 2 and all(kernel.source.count(f"* {r})") == 1 for r in reciprocals)
