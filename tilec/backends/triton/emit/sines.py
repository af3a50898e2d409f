"""Sines and cosines of float32: what is called instead of the device library's, whose reduction has branches."""

from __future__ import annotations

from tilec.ir.program import Call, Statement, walk
from tilec.ir.types import FLOATS

BLOCKWISE = {"sin": "sine_({0})", "cos": "cosine_({0})"}  # of blocks, which are looked at as a whole
OR_NAN = {"sin": "sine_or_nan_({0})", "cos": "cosine_or_nan_({0})"}  # of terms of sums, which are added up again then
KEEPING_NAN = {"add", "sub", "mul", "div", "neg", *OR_NAN, *FLOATS}


def adds_sines(s: Statement) -> bool:
    """Whether terms are made by arithmetic of sines, all of which counts: a sum is NaN where one of them is."""
    found = [e for e in walk(s.body) if isinstance(e, Call)]
    return (
        s.aggregation == "sum"
        and any(e.function in OR_NAN for e in found)
        and all(e.function in KEEPING_NAN for e in found)
    )
