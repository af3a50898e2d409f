"""One function called at many sizes on a CUDA device gives what a fresh compilation for each of them gives."""

from __future__ import annotations

from random import Random

import pytest
import torch
from support.shapes import PROGRAMS, check_at, drawn

import tilec
from tilec import knobs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_at_many_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(knobs.VERIFY.name, "1")  # what fails with open sizes is raised
    source, _ = PROGRAMS[name]
    f, random, sizes = tilec.compile(source, backend="triton"), Random(name), {"p": 4}
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        made = [torch.randn(s, generator=generator).cuda() for s in drawn(name, random, sizes, step)]
        check_at(source, f, made, 1 if step in (1, 3) else None, "triton")
