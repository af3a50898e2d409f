"""How many random programs a test draws: a third of the number that it names by default, ten times that number in
the long tier (`sh tests/run slow`)."""

from __future__ import annotations

import os

SCALE = float(os.environ.get("TILEC_RANDOM_SCALE", "0.33"))


def scaled(count: int) -> int:
    return max(1, round(count * SCALE))
