"""What a point of a sweep is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

TimedRun = Callable[[], object]
MOST_BYTES = 40 * 2**30  # a candidate that needs more is left out


class TooLarge(Exception):
    """A candidate would need more memory than it is given."""


@dataclass(frozen=True)
class Point:
    """One place of a figure. `line`: which of its panels; `x`: the place. `make` gives, for a generator and a device,
    what each candidate builds and how to check it. `apart`: what tells it from another point of the same place, whose
    candidates must not wait for this one's."""

    figure: str
    line: str
    x: int
    make: Callable[[torch.Generator, str], Setup]
    apart: str = ""

    @property
    def name(self) -> str:
        return ", ".join(str(part) for part in (self.figure, self.line, self.x, self.apart) if part)


@dataclass(frozen=True)
class Setup:
    """`builds`: candidate -> what makes it ready to run. `check` gives the greatest error as a multiple of what is
    allowed; `facts` are figures of the point itself."""

    builds: dict[str, Callable[[], TimedRun]]
    check: Callable[[object], float]
    facts: dict[str, float]
