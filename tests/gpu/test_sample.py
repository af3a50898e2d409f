"""A sample of the runner's cases on a CUDA device; `run.py` does them all."""

from __future__ import annotations

import pytest
import torch
from gpu_cases import plan
from gpu_examine import Settings
from run import DTYPES, GOOD, check

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("kind", ["table", "sized", "random"])
def test_a_sample(kind: str) -> None:
    names = [name for name in plan(0, DTYPES) if name.startswith(kind)][:36]
    lines: list[str] = []
    counts = check(names, Settings(), jobs=4, told=lines.append)
    assert counts.total() == len(names)
    assert not [status for status in counts if status not in (*GOOD, "unsupported")], "\n".join(lines)
    assert counts["ok"] > len(names) / 2, "\n".join(lines)
