"""Programs over the float32 values of 16-bit inputs: what casts before the call give, in values and gradients."""

from __future__ import annotations

import pytest
import torch

import tilec
from tilec.function import Function
from tilec.language import parse, show
from tilec.torch_op.autocast import computed_in_float32
from tilec.transforms.in_float32 import in_float32

PROGRAMS = {
    "elements": ("Y[i] = sum(exp(X[i, j]) * B[j]);", ((3, 4), (4,))),
    "whole tensors": ("Y = exp(X) / B;", ((3, 4), (4,))),
    "reshape": ("Z = reshape(X, 12); Y[i] = Z[i] * B[i] / 3;", ((3, 4), (12,))),
    "gather": ("function (X, B, I) -> (Y) { Z = gather(X, I); Y = Z / 3 + B; }", ((3, 4), (2, 4))),
    "default": ("function (X[N], B[M]) -> (Y) { Y[2*i : N] = B[i] / 3 default X; }", ((6,), (3,))),
    "pad with a number": ("function (X[N], B[N]) -> (Y) { Y[i : N] = pad(X[i + 1], 1) / B[i]; }", ((6,), (6,))),
    "pad with a value": ("function (X[N], B[N]) -> (Y) { Y[i : N] = pad(X[i + 1], 0.1) / B[i]; }", ((6,), (6,))),
    "pad with an element": ("function (X[N], B[N]) -> (Y) { Y[i : N] = pad(X[i + 1], B[i] / 3); }", ((6,), (6,))),
    "type of another": ("Y = as_type(B / 3, X) + X / 3;", ((6,), (6,))),
    "shapes and positions": ("Y = X / shape(X, 0) + index(X, 0) / B;", ((6,), (6,))),
    "recurrence": ("function (X[T], B[T]) -> (Y) { Y[t : T] = X[t] / 3 + B[t] * Y[t-1]; }", ((6,), (6,))),
    "an input that is an output": ("function (X, B) -> (X, Y) { Y = X / 3 + B; }", ((6,), (6,))),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_casts_before_the_call(name: str) -> None:
    text, shapes = PROGRAMS[name]
    f = tilec.compile(text)
    inside = Function.of(computed_in_float32(f.specialiser, ("X", "B")))
    generator = torch.Generator().manual_seed(0)
    given = [torch.rand(s, generator=generator).add(0.5).to(torch.bfloat16) for s in shapes]
    given += [torch.tensor([2, 0])] * (len(f.inputs) - len(given))
    found = []
    for call in (inside, lambda *t: f(*(x.float() if x.is_floating_point() else x for x in t))):
        inputs = [t.clone().requires_grad_(t.is_floating_point()) for t in given]
        outputs = call(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        assert all(y.dtype is torch.float32 for y in outputs)
        gradients = torch.autograd.grad(sum((y * y).sum() for y in outputs), inputs[:2])
        found.append((*outputs, *gradients))
    assert all(d.dtype is torch.bfloat16 for d in found[0][-2:])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def test_text() -> None:
    program = parse("function (X[N], B[N]) -> (Y) { Y[i : N] = pad(X[i + 1], 0.1) * X[i] + B[i]; }")
    wide = in_float32(program, ["X"])
    assert parse(show(wide)) == wide
    assert "float32(X[i])" in show(wide) and "B[i]" in show(wide) and "pad(X_1[i + 1]" in show(wide)
