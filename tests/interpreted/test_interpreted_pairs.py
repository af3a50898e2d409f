"""Products of three operands, pair by pair: by a library over tensors as they are, and by kernels."""

from __future__ import annotations

import os

import pytest
import torch

import tilec
from tilec.backends.common import pairs
from tilec.backends.triton import TritonBackend

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted where TRITON_INTERPRET=1 is set"
)
# rows of two axes that a kernel walks as one, which come first, last and apart in their tensor
CASES = {
    "first": ("xyj,jk,kl->xyl", (4, 4, 4), (4, 6), (6, 5)),
    "last": ("jxy,jk,kl->xyl", (4, 4, 4), (4, 6), (6, 5)),
    "other sizes": ("jxy,jk,kl->xyl", (16, 3, 7), (16, 18), (18, 20)),
    "batches": ("bcij,bcjk,kl->bcil", (2, 2, 4, 4), (2, 2, 4, 4), (4, 5)),
    "summed together": ("iab,abk,kl->il", (6, 4, 4), (4, 4, 3), (3, 7)),
}


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = TritonBackend.__init__
    monkeypatch.setattr(TritonBackend, "__init__", lambda self, target=None, **_: made(self, target, library))
    monkeypatch.setattr(pairs, "TERMS", 1.0)
    equation, *shapes = CASES[name]
    operands, output = equation.split("->")
    declared = ", ".join(f"T{n}[{', '.join(o.upper())}]" for n, o in enumerate(operands.split(",")))
    body = " * ".join(f"T{n}[{', '.join(o)}]" for n, o in enumerate(operands.split(",")))
    index = f"{', '.join(output)} : {', '.join(output.upper())}"
    f = tilec.compile(f"function ({declared}) -> (O) {{ O[{index}] = +({body}); }}", backend="triton")
    generator = torch.Generator().manual_seed(0)
    given = [torch.randint(-3, 4, shape, generator=generator).float() for shape in shapes]
    assert torch.equal(f(*given), torch.einsum(equation, *given))
