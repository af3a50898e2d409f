"""Both gradients of a convolution as one call of torch, mended where it multiplies infinities by zeros."""

import os

import pytest
import torch

import tilec
from tilec.backends.base import Options
from tilec.backends.triton import TritonBackend
from tilec.ir.types import TensorType
from tilec.pipeline import lower

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
SOURCE = """function (X[N, C, H, W], K[O, C, 3, 3]) -> (Y) {
    Y[n, o, y, x : N, O, H, W] = +(X[n, c, y + j - 1, x + i - 1] * K[o, c, j, i]);
}"""


@pytest.mark.parametrize("where", range(3))
def test_infinities(where: int) -> None:
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(s, generator=generator) for s in ((1, 3, 5, 6), (17, 3, 3, 3), (1, 17, 5, 6))]
    given[where].view(-1)[0] = torch.inf
    gradient = tilec.compile(SOURCE).grad()
    types = {n: TensorType(tuple(t.shape), "float32") for n, t in zip(gradient.inputs, given, strict=True)}
    made = TritonBackend(library=True).build(lower(gradient.program, types, {}), Options(library=True))
    found = made(given)
    assert "rt.convolution_gradients(" in made.source()
    wanted = tilec.interpret(str(gradient.tile), *[t.numpy() for t in given])
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(f, torch.as_tensor(w).to(f.dtype), rtol=1e-4, atol=1e-4, equal_nan=True)
