"""Every environment variable that tilec reads, typed, in one list. Each is read when needed, so tests may set it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from tilec.errors import InputMistake

T = TypeVar("T")
_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_TRUTH = {"0": False, "false": False, "off": False, "no": False, "1": True, "true": True, "on": True, "yes": True}


def _parse_size(text: str) -> int:
    number = text.rstrip("BGKMi")
    size = int(number.strip()) * _UNITS[text[len(number) :].strip()]
    if size <= 0:
        raise ValueError(text)
    return size


def _parse_count(text: str) -> int:
    count = int(text)
    if count <= 0:
        raise ValueError(text)
    return count


def _parse_switch(text: str) -> bool:
    return _TRUTH[text.strip().lower()]


def _parse_directory(text: str) -> Path:
    if not text.strip():
        raise ValueError(text)
    return _path(text if os.path.isabs(text) else os.path.abspath(os.path.expanduser(text)))


@functools.cache
def _path(text: str) -> Path:
    """One object, whose hash is known, since calls at new sizes ask for it."""
    return Path(os.path.normpath(text))


@dataclass(frozen=True)
class Knob(Generic[T]):
    """One variable: its default, how its text is read, what it does. `value` raises InputMistake where it cannot."""

    name: str
    default: T
    parse: Callable[[str], T]
    meaning: str

    @property
    def value(self) -> T:
        text = os.environ.get(self.name)
        if text is None:
            return self.default
        try:
            return self.parse(text)
        except (KeyError, ValueError):
            raise InputMistake(f"{self.name}={text!r} cannot be read", hint=self.meaning) from None


VERIFY = Knob(
    "TILEC_VERIFY", False, _parse_switch, "check the IR's rules after every pass, and of every kernel: 0 or 1"
)
MEMORY_BUDGET = Knob(
    "TILEC_MEMORY_BUDGET", 64 * 2**20, _parse_size, "bytes that one statement's temporaries may take, e.g. 64MiB"
)
BLOCK = Knob("TILEC_BLOCK", 2**17, _parse_size, "elements evaluated at a time, so that temporaries stay in cache")
FULL_TRACEBACK = Knob(
    "TILEC_FULL_TRACEBACK", False, _parse_switch, "show the frames inside tilec when a TileError is raised: 0 or 1"
)
WARNINGS_ARE_ERRORS = Knob(
    "TILEC_WARNINGS_ARE_ERRORS", False, _parse_switch, "raise what would be a TileWarning: 0 or 1"
)
LIBRARY = Knob(
    "TILEC_LIBRARY",
    True,
    _parse_switch,
    "may torch's own convolutions, softmax, norms and attention serve where they are exact: 0 or 1",
)
CACHE: Knob[Path | None] = Knob(
    "TILEC_CACHE", None, _parse_directory, "directory of what is kept from run to run (default ~/.cache/tilec)"
)

DUMP: Knob[Path | None] = Knob(
    "TILEC_DUMP", None, _parse_directory, "directory for the stages, text and kernels of whatever is compiled by a call"
)
PARTIAL_ROWS: Knob[int | None] = Knob(
    "TILEC_PARTIAL_ROWS",
    None,
    _parse_count,
    "rows of partial sums, at most, where kernels add up over rows (default: as measured)",
)
DEVICE_BUDGET: Knob[int | None] = Knob(
    "TILEC_DEVICE_BUDGET",
    None,
    _parse_size,
    "bytes of intermediates beyond which kernels go through a program slab by slab, e.g. 256MiB (default: 512MiB, or "
    "what its inputs and outputs take if that is more)",
)

STATE_BUDGET = Knob(
    "TILEC_STATE_BUDGET",
    256 * 2**20,
    _parse_size,
    "bytes of states that a gradient may compute again at once; beyond them it does so in chunks of time, e.g. 256MiB",
)

FUSE_NEIGHBOURS = Knob(
    "TILEC_FUSE_NEIGHBOURS",
    True,
    _parse_switch,
    "under torch.compile, may operations next to a call on a GPU become part of its kernels: 0 or 1",
)

NATIVE = Knob(
    "TILEC_NATIVE", True, _parse_switch, "may what a call costs the host be done in C++, where a compiler is: 0 or 1"
)

KNOBS: tuple[Knob, ...] = (
    VERIFY, FULL_TRACEBACK, WARNINGS_ARE_ERRORS,
    MEMORY_BUDGET, BLOCK, LIBRARY, CACHE, DUMP, PARTIAL_ROWS, DEVICE_BUDGET, STATE_BUDGET,
    FUSE_NEIGHBOURS, NATIVE,
)  # fmt: skip


def cache_directory() -> Path:
    """Where things are kept from run to run: TILEC_CACHE, or tilec under XDG_CACHE_HOME, or ~/.cache/tilec. It need not
    exist. A relative XDG_CACHE_HOME is ignored, as its specification asks."""
    if (chosen := CACHE.value) is not None:
        return chosen
    shared = os.environ.get("XDG_CACHE_HOME", "")
    return _path(os.path.join(shared if os.path.isabs(shared) else os.path.expanduser("~/.cache"), "tilec"))
