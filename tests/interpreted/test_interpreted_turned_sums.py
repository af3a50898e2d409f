"""Sums of few elements that read along an axis which is not their last: made in that order, and turned."""

from __future__ import annotations

import os

import pytest
import torch

import tilec

CONVOLUTION = """function (X[B, H, W, C], K[C, 7, 7]) -> (Y) {
    Y[b, y, x, c : B, H, W, C] = sum(X[b, y + j - 3, x + i - 3, c] * K[c, j, i]);
}"""


def test_the_gradient_of_depthwise_weights_reads_whole_lines() -> None:
    """By the kernel that has them in channels-last order."""
    specs = tilec.spec((32, 28, 28, 192), "bfloat16"), tilec.spec((192, 7, 7), "bfloat16")
    found = [k.name for k in tilec.compile(CONVOLUTION).grad("K").lower(*specs, specs[0], target="sm_90").kernels]
    assert any("taps" in name for name in found), found


@pytest.mark.parametrize(
    "text",
    [
        "G[c, j, i : 32, 3, 3] = sum(D[b, y, x, c] * X[b, y + j - 1, x + i - 1, c])",
        "G[c, b : 32, 2] = sum(D[b, y, x, c] * X[b, y, x, c] * sin(A[c]))",
        "G[c, b : 32, 2] = sum(D[b, y, x, c] > 0 ? X[b, y, x, c] * c), x < 9",
        "G[b, c, y : 2, 32, 12] = sum(D[b, y, x, c] * X[b, y, x, c])",
        "G[c, b : 32, 2] = sum(D[b, y, x, c] * X[b, y, c - 2, x])",
    ],
)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="interpreted where TRITON_INTERPRET=1 is set")
def test_values(text: str) -> None:
    random = torch.Generator().manual_seed(0)
    d, x = (torch.randn((2, 12, 12, 32), generator=random) for _ in range(2))
    given = {"D": d, "X": x} | ({"A": torch.randn(32, generator=random)} if "A[" in text else {})
    f = tilec.compile(text, backend="triton")
    wanted = tilec.compile(text)(**{n: t.double() for n, t in given.items()})
    assert torch.allclose(f(**given).double(), wanted, atol=1e-4)
