"""Every environment variable that tilec reads, typed, in one list. Each is read when needed, so tests may set it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
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


def _parse_switch(text: str) -> bool:
    return _TRUTH[text.strip().lower()]


def _cache_folder() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "tilec")


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


VERIFY = Knob("TILEC_VERIFY", False, _parse_switch, "check the IR's rules after every pass: 0 or 1")
MEMORY_BUDGET = Knob(
    "TILEC_MEMORY_BUDGET", 64 * 2**20, _parse_size, "bytes that one statement's temporaries may take, e.g. 64MiB"
)
BLOCK = Knob("TILEC_BLOCK", 2**17, _parse_size, "elements evaluated at a time, so that temporaries stay in cache")
LIBRARY = Knob("TILEC_LIBRARY", True, _parse_switch, "may torch's own convolutions serve where they are exact: 0 or 1")
CACHE = Knob("TILEC_CACHE", _cache_folder(), str, "folder of kernels' files and tuned choices")

KNOBS: tuple[Knob, ...] = (VERIFY, MEMORY_BUDGET, BLOCK, LIBRARY, CACHE)
