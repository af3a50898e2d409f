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


@pytest.mark.parametrize("index, walked", [("2*x + 2*i + q", True), ("8*x + 2*i + q", False), ("2*x + i", True)])
def test_windows_that_overlap_along_memory_are_walked_point_by_point(index: str, walked: bool) -> None:
    """Of one summed variable or of two; those that do not overlap are read as memory runs."""
    source = f"function (X[N, W], K[Q, I]) -> (Y) {{ Y[n, x : N, 64] = +(X[n, {index}] * K[q, i]); }}"
    given = tilec.spec((4096, 520)), tilec.spec((2, 4))
    text = tilec.compile(source, backend="triton").lower(*given, target="sm_90").source()
    assert ("UNROLL=4" in text) == walked and ("BR=8" in text) != walked
