"""Random programs of chains, value and gradients: by the interpreter of block programs, and on a device where there is
one, against torch in float64."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.chains import run
from support.random_attention import close, draw, reference
from support.scale import scaled

import tilec
from tilec.backends.common.chains import cost
from tilec.backends.common.chains.codegen.places import Tiling
from tilec.backends.triton.chains import launch
from tilec.ir.types import TensorType
from tilec.saving import partition

TILINGS = (Tiling(16, 16), Tiling(32, 16), Tiling(16, 32), Tiling(32, 32))


@pytest.mark.parametrize("seed", range(scaled(12)))
@pytest.mark.one_in(3)
def test_interpreted(seed, monkeypatch):
    monkeypatch.setattr(cost, "LARGE", 0)
    rng = random.Random(seed)
    drawn, tiling = draw(rng), rng.choice(TILINGS)
    narrow = {n: x.astype(np.float32) if x.dtype == np.float64 else x for n, x in drawn.arrays.items()}
    types = {n: TensorType(x.shape, x.dtype.name) for n, x in narrow.items()}
    program = tilec.compile(drawn.text).program
    parts = partition(program, drawn.wrt, types, {}, True)
    forward = run(parts.forward or program, types, narrow, tiling)
    (value,) = reference(drawn)
    assert close(forward.values["O"], value, 1e-4), drawn.text
    cotangent = np.random.default_rng(seed).standard_normal(value.shape).astype(np.float32)
    given = {n: forward.values[n] for n in parts.backward.values}
    given |= {n: narrow[n] for n in parts.backward.shapes} | {"DO": cotangent}
    backward = run(parts.backward.program, dict(parts.backward.types), given, tiling)
    assert forward.kernels and backward.kernels
    for name, exact in zip(parts.backward.program.outputs, reference(drawn, cotangent), strict=True):
        assert close(backward.values[name], exact, 1e-4), (name, drawn.text)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(scaled(20)))
def test_on_a_device(seed, dtype, monkeypatch):
    """The gradient by slopes is a sum of terms of both signs, too little of which is left for 16 bits."""
    monkeypatch.setattr(cost, "LARGE", 0)
    monkeypatch.setattr(launch, "_MANY", 0)
    monkeypatch.setattr(launch, "_MUCH", 0)
    drawn = draw(random.Random(1000 + seed), 400)
    wrt = tuple(n for n in drawn.wrt if n != "Slope" or dtype is torch.float32)
    given = {n: torch.tensor(x, device="cuda") for n, x in drawn.arrays.items()}
    given = {n: x.to(dtype) if x.is_floating_point() else x for n, x in given.items()}
    rounded = {n: x.double().cpu().numpy() if x.is_floating_point() else x.cpu().numpy() for n, x in given.items()}
    drawn = replace(drawn, arrays=rounded, wrt=wrt)
    for n in wrt:
        given[n].requires_grad_()
    value = tilec.compile(drawn.text, backend="triton")(*given.values())
    cotangent = torch.randn_like(value)
    made = torch.autograd.grad(value, [given[n] for n in wrt], cotangent)
    exact = [*reference(drawn), *reference(drawn, cotangent.double().cpu().numpy())]
    for name, x, y in zip(("O", *wrt), (value, *made), exact, strict=True):
        x = x.detach().double().cpu().numpy()
        assert close(x, y, 3e-2 if dtype is torch.bfloat16 else 1e-4), (name, drawn.text)
