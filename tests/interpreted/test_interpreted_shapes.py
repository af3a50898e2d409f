"""One function called at many sizes gives what a fresh compilation for each of them gives, by generated kernels."""

from __future__ import annotations

import os
from random import Random

import pytest
import torch
from support.shapes import PROGRAMS, check_at, drawn

import tilec
from tilec import knobs, specialise
from tilec.backends.triton import TritonBackend
from tilec.backends.triton.plan.plan import TorchLines
from tilec.backends.triton.runtime.open_plans import OpenPlans
from tilec.bench.overheads import LENGTH_CASES, LengthCase
from tilec.ir import shape_class

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
SAMPLE = ("softmax", "product", "same", "transposed", "cumulative", "clamped", "attention")
TORCH_LINES = [c for c in LENGTH_CASES if c.name in ("product", "convolution")]


@pytest.mark.parametrize("name", SAMPLE)
@pytest.mark.one_in(3)
def test_programs_at_many_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(knobs.VERIFY.name, "1")  # what fails with open sizes is raised
    monkeypatch.setattr(shape_class, "SMALLEST_OPEN", 2)
    source, _ = PROGRAMS[name]
    f, random, sizes = tilec.compile(source, backend="triton"), Random(name), {"p": 4}
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        made = [torch.randn(s, generator=generator) for s in drawn(name, random, sizes, step)]
        check_at(source, f, made, 1 if step == 3 else None, "triton")


@pytest.mark.parametrize("case", TORCH_LINES, ids=lambda case: case.name)
def test_what_torch_computes_at_many_lengths(case: LengthCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of torch are given sizes, so that these stay open."""
    opened: list[TorchLines] = []
    make = OpenPlans.make

    def watched(self: OpenPlans, *given) -> None:
        make(self, *given)
        plans = [made.plan for made in self._made.values() if made is not None]
        opened.extend(s for plan in plans for s in plan.steps if isinstance(s, TorchLines) and s.numbers)

    monkeypatch.setenv(knobs.VERIFY.name, "1")
    monkeypatch.setattr(OpenPlans, "make", watched)
    monkeypatch.setattr(specialise, "choose_backend", lambda name, device, target=None: TritonBackend(target, True))
    f = tilec.compile(case.source)
    for step, n in enumerate((36, 44, 60, 56)):
        generator = torch.Generator().manual_seed(n)
        inputs = [torch.randn(s, generator=generator) for s in case.shapes(n)]
        check_at(case.source, f, inputs, 1 if step == 3 else None)
    assert opened
