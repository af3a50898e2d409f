"""Gradients in chunks of time as kernels, interpreted on the CPU, against those of whole recurrences."""

import os

import pytest
import torch
from support.chunks import CHUNKED, gradients, inputs_for, kept_states

import tilec

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)


FIRST = ("a shuffling network", "a Markov model", "down in time")


@pytest.mark.parametrize("name", [n if n in FIRST else pytest.param(n, marks=pytest.mark.slow) for n in CHUNKED])
@pytest.mark.one_in(4)
def test_the_same_gradients(name, monkeypatch):
    source, shapes = CHUNKED[name]
    inputs = inputs_for(shapes(17), torch.float32)
    wanted = gradients(tilec.compile(source), inputs)
    monkeypatch.setenv("TILEC_STATE_BUDGET", "1")
    function = tilec.compile(source, backend="triton")
    assert kept_states(function, *inputs)
    for got, right in zip(gradients(function, inputs), wanted, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-5)
