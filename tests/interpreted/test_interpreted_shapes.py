"""One function called at many sizes gives what a fresh compilation for each of them gives, by generated kernels."""

from __future__ import annotations

import os
from random import Random

import pytest
import torch
from support.shapes import PROGRAMS, check_at, drawn

import tilec
from tilec import knobs
from tilec.ir import shape_class

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
SAMPLE = ("softmax", "product", "same", "transposed", "cumulative", "clamped", "attention")


@pytest.mark.parametrize("name", SAMPLE)
def test_programs_at_many_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(knobs.VERIFY.name, "1")  # what fails with open sizes is raised
    monkeypatch.setattr(shape_class, "SMALLEST_OPEN", 2)
    source, _ = PROGRAMS[name]
    f, random, sizes = tilec.compile(source, backend="triton"), Random(name), {"p": 4}
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        made = [torch.randn(s, generator=generator) for s in drawn(name, random, sizes, step)]
        check_at(source, f, made, 1 if step == 3 else None, "triton")
