"""The torch backend against the oracle, on one source and its inputs."""

from __future__ import annotations

import numpy as np
import torch

import tilec
from tilec.backends.base import Options
from tilec.backends.torch import TorchBackend
from tilec.ir.types import TensorType
from tilec.language import parse
from tilec.pipeline import lower
from tilec.transforms.bind.bind import size_inputs

SMALL = Options(block=24, memory_budget=4096)


def tensors(*shapes, dtype=torch.float64, seed=0):
    """Standard normal tensors, or small integers."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    low, high = (0, 2) if dtype is torch.bool else (0, 5) if dtype is torch.uint8 else (-4, 5)
    return [torch.randint(low, high, shape, generator=generator).to(dtype) for shape in shapes]


def run(source, inputs, options=None):
    """(outputs, generated source)."""
    program = parse(source)
    names = program.input_names()
    types = {
        n: TensorType(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in zip(names, inputs, strict=True)
    }
    values = {n: int(inputs[names.index(n)]) for n in size_inputs(program)}
    executable = TorchBackend().build(lower(program, types, values), options)
    return executable(inputs), executable.source()


def as_numpy(t):
    return t.to(torch.float64).numpy() if t.dtype is torch.bfloat16 else t.detach().numpy()


def agree(source, *inputs, options=None, tolerance=1e-12, contains=None):
    """Outputs equal the oracle's; `contains` must stand in the generated source. Returns the outputs."""
    got, text = run(source, list(inputs), options)
    if contains is not None:
        assert contains in text, text
    with np.errstate(all="ignore"):
        wanted = tilec.interpret(source, *map(as_numpy, inputs))
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted, strict=True):
        assert tuple(g.shape) == w.shape, text
        if g.dtype.is_floating_point:
            np.testing.assert_allclose(as_numpy(g), w, rtol=tolerance, atol=tolerance, err_msg=text)
        else:
            np.testing.assert_array_equal(as_numpy(g), w, err_msg=text)
    return got
