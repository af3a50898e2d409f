"""What a call is warned of: what is legal and most likely not meant."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator

from tilec import knobs
from tilec.errors import TileError, TileWarning
from tilec.ir.program import Program
from tilec.transforms.bind.lint_branches import unreachable
from tilec.transforms.bind.lint_points import gaps, pointless
from tilec.transforms.bind.lint_sizes import mismatches


def warnings_of(program: Program, bound: Program) -> Iterator[TileError]:
    """What is legal in a program, bound to inputs, and most likely not meant."""
    yield from pointless(bound)
    yield from gaps(bound)
    yield from unreachable(bound)
    yield from mismatches(program, bound)


def say(mistake: TileError, source: str, filename: str, strict: bool) -> None:
    """Warn of what is most likely not meant, or raise it: where `strict`, or by TILEC_WARNINGS_ARE_ERRORS."""
    located = mistake.located(source, filename)
    if strict or knobs.WARNINGS_ARE_ERRORS.value:
        raise located
    warnings.warn(str(located), TileWarning, outside())


def outside() -> int:
    """How many calls up, for a warning of the caller's, the first line outside this package is."""
    package = os.path.dirname(os.path.dirname(__file__))
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    return level
