"""Which cases of a test run by default."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_but(cases: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """Parameters of a test: those that are kept, and the others marked slow."""
    return [case if case in kept else pytest.param(case, marks=pytest.mark.slow) for case in cases]
