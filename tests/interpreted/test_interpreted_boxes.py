"""Grouped products whose operands the copy engine brings in boxes: keys that are outside, missing or many, layouts,
ends of tensors, what stands in other rows."""

import os

import pytest
import torch

import tilec
from tilec.backends.triton.grouped_matmul import boxes, products

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
ROWS = "function (X[T, C], W[E, C, O], Ix[T]) -> (Y) { Y[t, o : T, O] = +(X[t, c] * W[Ix[t], c, o]); }"


@pytest.fixture(autouse=True)
def wherever_it_fits(monkeypatch):
    """In the interpreter as on a Hopper, whatever it takes."""
    monkeypatch.setattr(products, "GAIN", 0.0)
    monkeypatch.setattr(boxes, "HOPPER", 0)
    monkeypatch.setattr(boxes, "FEWEST_POINTS", 0)
    monkeypatch.setattr(boxes, "COPY_SECONDS", -1.0)


def normal(*shape, dtype=torch.float16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def keys(*shape, below):
    """From -1 to `below`: the ends are outside."""
    return torch.randint(-1, below + 1, shape, generator=torch.Generator().manual_seed(below))


def agree(source, *inputs, boxed=(1, 2), copies=(1, 2), wrt=("X", "W")):
    """Values, and gradients, as the torch backend's in float64; `boxed`: products by boxes forward and backward."""
    f, g = (tilec.compile(source, backend=b) for b in ("triton", "torch"))
    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    wanted = g(*wide)
    cotangent = normal(*wanted.shape, dtype=inputs[0].dtype)
    lowered = f.lower(*inputs), f.grad(list(wrt)).lower(*inputs, cotangent)
    for made, n, m in zip(lowered, boxed, copies, strict=True):
        grouped = [k for k in made.source().splitlines() if "_grouped[" in k]
        assert sum("TensorDescriptor" in k for k in grouped) == n
        assert made.source().count("_sorted[") == m
    found = f(*inputs), *f.grad(list(wrt))(*inputs, cotangent)
    for a, b in zip(found, (wanted, *g.grad(list(wrt))(*wide, cotangent.double())), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=4e-3, atol=4e-2, equal_nan=True)


@pytest.mark.parametrize(
    ("t", "c", "o", "e"), [(70, 40, 24, 3), (300, 72, 136, 5), (17, 16, 16, 40), (256, 128, 64, 1)]
)
def test_each_row_by_the_matrix_of_its_key(t, c, o, e):
    agree(ROWS, normal(t, c), normal(e, c, o), keys(t, below=e))
