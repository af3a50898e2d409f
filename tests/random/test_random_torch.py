"""Random programs under torch's transforms, compiled and exported: as in eager mode."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from support.programs import PHASES, Case, Options, programs
from support.random_recurrences import recurrences
from support.scale import scaled
from torch import func
from torch.fx.experimental.proxy_tensor import make_fx

import tilec

FAMILIES = {"mixed": programs(Options()), "smooth": programs(Options(smooth=True)), "recurrences": recurrences()}


class Called:
    """A program as a function of its floating inputs, with a value and an answer in eager mode."""

    def __init__(self, source: str, arrays: list[np.ndarray]):
        function = tilec.compile(source)
        given = [torch.from_numpy(np.array(a)) for a in arrays]
        sizes = function._specialiser.size_positions
        self.whole = [int(t) if p in sizes else t for p, t in enumerate(given)]
        self.places = [p for p, t in enumerate(self.whole) if isinstance(t, torch.Tensor) and t.is_floating_point()]
        self.inputs = [self.whole[p] for p in self.places]
        self.function, self.source = function, source
        self.expected = self(*self.inputs)

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = list(self.whole)
        for place, t in zip(self.places, inputs, strict=True):
            given[place] = t
        results = self.function(*given)
        return tuple(r for r in (results if isinstance(results, tuple) else (results,)) if r is not None)

    def gradient(self, f, inputs):
        asking = [t.clone().requires_grad_() for t in inputs]
        ys = [y for y in f(*asking) if y.requires_grad]
        weights = [torch.arange(1.0, 1 + y.numel(), dtype=y.dtype).reshape(y.shape).cos() for y in ys]
        return torch.autograd.grad(ys, asking, weights, allow_unused=True, materialize_grads=True) if ys else ()


def same(found, expected) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)


def batched(case: Called) -> bool:
    batch = [torch.stack([t, t.flip(0) if t.dim() else -t]) for t in case.inputs]
    loop = [case(*t) for t in zip(*batch, strict=True)]
    same(func.vmap(case)(*batch), [torch.stack(p) for p in zip(*loop, strict=True)])
    return True


def paired(left, right) -> torch.Tensor:
    """The inner product, in float64 whatever the types."""
    terms = [(a.double() * b.double()).sum() for a, b in zip(left, right, strict=False)]
    return torch.stack([torch.zeros((), dtype=torch.float64), *terms]).sum()


def tangents(case: Called) -> bool:
    """A tangent is the gradient's transpose."""
    directions = tuple(torch.arange(1.0, 1 + t.numel(), dtype=t.dtype).reshape(t.shape).sin() for t in case.inputs)
    values, forward = func.jvp(case, tuple(case.inputs), directions)
    same(values, case.expected)
    floating = [y for y in forward if y.is_floating_point()]
    weights = [torch.arange(1.0, 1 + y.numel(), dtype=y.dtype).reshape(y.shape).cos() for y in floating]
    pushed, pulled = paired(weights, floating), paired(case.gradient(case, case.inputs), directions)
    rounded = any(t.dtype is not torch.float64 for t in (*floating, *case.inputs))
    if rounded or not torch.isfinite(pushed) or not torch.isfinite(pulled):
        return False
    torch.testing.assert_close(pushed, pulled, rtol=1e-7, atol=1e-7)
    return bool(pushed != 0)


def compiled(case: Called) -> bool:
    torch._dynamo.reset()
    whole = torch.compile(lambda *t: case(*t), backend="aot_eager", fullgraph=True)
    same(whole(*case.inputs), case.expected)
    same(case.gradient(whole, case.inputs), case.gradient(case, case.inputs))
    return True


def compiled_openly(case: Called) -> bool:
    torch._dynamo.reset()
    whole = torch.compile(lambda *t: case(*t), backend="aot_eager", fullgraph=True, dynamic=True)
    same(whole(*case.inputs), case.expected)
    same(case.gradient(whole, case.inputs), case.gradient(case, case.inputs))
    return True


def exported(case: Called) -> bool:
    class Module(torch.nn.Module):
        def forward(self, *inputs):
            return case(*inputs)

    same(torch.export.export(Module(), tuple(case.inputs)).module()(*case.inputs), case.expected)
    return True


def traced(case: Called) -> bool:
    graph = make_fx(lambda *t: case.gradient(case, t))(*case.inputs)
    same(graph(*case.inputs), case.gradient(case, case.inputs))
    return True


WAYS = {"vmap": batched, "jvp": tangents, "compile": compiled, "compile with open sizes": compiled_openly}
WAYS |= {"export": exported, "make_fx of a gradient": traced}


@pytest.mark.covering
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", WAYS)
def test_as_in_eager_mode(way: str, family: str) -> None:
    count = 6 if way in ("vmap", "jvp") else 2
    compared = []

    @settings(max_examples=scaled(count), phases=PHASES)
    @given(FAMILIES[family])
    def agree(drawn):
        source, arrays = (drawn.source, list(drawn.inputs.values())) if isinstance(drawn, Case) else drawn
        try:
            case = Called(source, arrays)
        except tilec.TileError:
            return  # refused for its sizes or writers: the other tests look at those
        if case.inputs:
            compared.append(WAYS[way](case))

    agree()
    assert any(compared), "nothing was compared"
