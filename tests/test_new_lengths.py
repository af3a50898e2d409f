"""Another length of a known kind of call is not lowered again, forward and backward, whatever is cut into slabs."""

from __future__ import annotations

from random import Random

import pytest
import torch
from support.shapes import check_at
from support.tiers import slow_but

import tilec
from tilec import knobs, specialise
from tilec.bench.overheads import LENGTH_CASES, LengthCase

FIRST = [c for c in LENGTH_CASES if c.name not in ("convolution", "log product", "bias + gelu")]


@pytest.mark.parametrize("first, others", [(24, 12), pytest.param(40, 100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", slow_but(LENGTH_CASES, FIRST), ids=lambda case: case.name)
@pytest.mark.one_in(3)
def test_many_lengths(case: LengthCase, first: int, others: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(knobs.VERIFY.name, "1")
    monkeypatch.setenv(knobs.BLOCK.name, "16384")  # elements of a slab, which the longer ones pass
    f = tilec.compile(case.source)
    lowered = []

    def counting(*given):
        lowered.append(given)
        return lower(*given)

    lower = specialise.lower
    monkeypatch.setattr(specialise, "lower", counting)

    def call(n: int) -> list[torch.Tensor]:
        inputs = [torch.randn(s, requires_grad=True) for s in case.shapes(n)]
        f(*[t.detach() for t in inputs])
        torch.autograd.grad(f(*inputs).sum(), inputs)
        return [t.detach() for t in inputs]

    lengths = [n for n in range(68, 324) if 2 < n % 64 < 62]  # which are no other size, nor beside one
    Random(case.name).shuffle(lengths)
    for n in lengths[:first]:
        call(n)
    before = len(lowered)
    for n in lengths[first : first + others]:
        call(n)
    assert len(lowered) - before <= 6  # of three a length: thresholds that the first ones were all on one side of
    for n in lengths[-2:]:
        check_at(case.source, f, call(n), 1)
