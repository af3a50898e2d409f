"""Random programs around recurrences, computed in chunks of time wherever they fall into any, against the oracle."""

from __future__ import annotations

import os
from unittest import mock

import numpy as np
import torch
from hypothesis import assume, given, settings
from support.programs import PHASES
from support.random_chunks import timed_programs
from support.scale import scaled

import tilec
from tilec.errors import TileError
from tilec.ir.evaluate import evaluate
from tilec.language import parse
from tilec.transforms.autodiff.grad import grad


@settings(max_examples=scaled(4), phases=PHASES)
@given(timed_programs())
def test_gradients_in_chunks(case) -> None:
    source, arrays = case
    try:
        program = parse(source)
    except TileError:  # a read of the wrong way round
        assume(False)
    inputs = [torch.tensor(a, requires_grad=True) for a in arrays]
    with mock.patch.dict(os.environ, {"TILEC_STATE_BUDGET": "1"}):
        function = tilec.compile(source)
        values = function(*inputs)
        values = values if isinstance(values, tuple) else (values,)
        d = [np.random.default_rng(k).normal(size=v.shape) for k, v in enumerate(values)]
        recorded = torch.autograd.grad(values, inputs, [torch.tensor(x) for x in d], allow_unused=True)
        with torch.no_grad():
            called = function.grad()(*inputs, *map(torch.tensor, d))
    wanted = evaluate(grad(program, program.input_names()), [*arrays, *d])
    for value, right in zip(values, evaluate(program, arrays), strict=True):
        np.testing.assert_allclose(value.detach().numpy(), right, rtol=1e-10, atol=1e-10)
    called = called if isinstance(called, tuple) else (called,)
    for r, c, w in zip(recorded, called, wanted, strict=True):
        np.testing.assert_allclose(np.zeros(w.shape) if r is None else r.numpy(), w, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(c.numpy(), w, rtol=1e-9, atol=1e-9)
