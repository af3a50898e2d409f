"""Gradients in chunks of time as kernels, interpreted on the CPU, against those of whole recurrences."""

import os

import pytest
import torch
from support.chunks import CHUNKED, inputs_for, kept_states

import tilec

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)


@pytest.mark.parametrize("name", CHUNKED)
def test_the_same_gradients(name, monkeypatch):
    source, shapes = CHUNKED[name]
    inputs = inputs_for(shapes(27), torch.float32)
    wanted = _gradients(tilec.compile(source), inputs)
    monkeypatch.setenv("TILEC_STATE_BUDGET", "1")
    function = tilec.compile(source, backend="triton")
    assert kept_states(function, *inputs)
    for got, right in zip(_gradients(function, inputs), wanted, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-5)


def _gradients(function, inputs):
    values = function(*inputs)
    values = values if isinstance(values, tuple) else (values,)
    d = [torch.linspace(0.5, 1.5, v.numel()).reshape(v.shape) for v in values]
    recorded = torch.autograd.grad(values, inputs, d)
    with torch.no_grad():
        called = function.grad()(*inputs, *d)
    return [*values, *recorded, *(called if isinstance(called, tuple) else (called,))]
