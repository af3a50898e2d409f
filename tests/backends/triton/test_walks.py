"""Reductions of a pair of operands that are walked point by point, by their plans for an H200."""

from __future__ import annotations

import re

import pytest

import tilec

SOURCE = """function (X[B, G, N], Y[B, H, N]) -> (Z) {
    Z[g, h : G, H] = +(X[b, g, n] * bfloat16(Y[b, h, n])); }"""


@pytest.mark.parametrize("batch, length", [(1, 2**20), (2, 2**20), (3, 2**16), (256, 4096), (4096, 64)])
def test_few_outputs_are_computed_by_many_programs(batch: int, length: int) -> None:
    """Whichever of the summed variables is long."""
    given = tilec.spec((batch, 8, length), "bfloat16"), tilec.spec((batch, 8, length), "float32")
    lowered = tilec.compile(SOURCE, backend="triton").lower(*given, target="sm_90")
    (launched,) = re.findall(r"Z_kernel\[\((\d+), (\d+), (\d+)\)\]", lowered.source())
    assert int(launched[0]) * int(launched[2]) >= 128
