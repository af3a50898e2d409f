"""What the examples share: compare with torch, time both, exit non-zero on a mismatch."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch


class Checks:
    """Collects comparisons under a title; `finish` exits with 1 if one failed."""

    def __init__(self, title: str):
        self.failed = False
        print(title)

    def equal(self, what: str, ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
        """Compare shapes, and values relative to the largest of theirs."""
        ours, theirs = ours.detach(), theirs.detach()
        same_shape = ours.shape == theirs.shape
        scale = theirs.abs().max().clamp(min=1e-300) if theirs.numel() else torch.tensor(1.0)
        error = float((ours - theirs).abs().max() / scale) if same_shape and theirs.numel() else 0.0
        good = same_shape and error <= tolerance
        self.failed |= not good
        detail = (
            f"relative error {error:.1e}" if same_shape else f"shape {tuple(ours.shape)}, not {tuple(theirs.shape)}"
        )
        print(f"  {'ok      ' if good else 'MISMATCH'} {what}: {detail} (tolerance {tolerance:.0e})")

    def time(self, what: str, ours: Callable[[], object], theirs: Callable[[], object], rounds: int = 7) -> None:
        """Median times of both, taken in turn after a warm-up."""
        taken: tuple[list[float], list[float]] = ([], [])
        for f in (ours, theirs):
            f()
        for _ in range(rounds):
            for f, times in zip((ours, theirs), taken, strict=True):
                start = time.perf_counter()
                f()
                times.append(time.perf_counter() - start)
        a, b = map(statistics.median, taken)
        print(f"  {what}: tilec {a * 1e3:.2f} ms, torch {b * 1e3:.2f} ms ({b / a:.1f}x)")

    def finish(self) -> None:
        sys.exit(1 if self.failed else 0)
