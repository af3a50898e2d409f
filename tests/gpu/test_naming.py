"""Naming an intermediate changes neither a value nor a type, of kernels on a CUDA device too."""

from __future__ import annotations

import pytest
import torch
from support.naming import agree

import tilec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("indexed", [False, True], ids=["elementwise", "bodies"])
def test_named_parts(indexed: bool, part: int) -> None:
    def run(source, arrays):
        return tilec.compile(source, backend="triton")(*(torch.from_numpy(a).cuda() for a in arrays)).cpu().numpy()

    assert agree(run, indexed, range(part, 80, 4)) > 2
