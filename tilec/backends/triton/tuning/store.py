"""Tuned choices on disk, kept from run to run: one small JSON file a key.

Processes that tune at the same time write different files, or replace a file whole, so nothing is lost and nothing is
read half-written. A file that cannot be understood counts as absent. Trouble with the directory never stops a
program: it is one warning, and choices then last as long as the process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import tempfile
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from tilec import knobs
from tilec.backends.triton.schedule.candidates import Choice
from tilec.version import __version__

FORMAT = 1  # of the files; another one counts as absent


@dataclass(frozen=True)
class Environment:
    """What a measurement is good for: versions, and the device by name and capability ("9.0")."""

    tilec: str
    torch: str
    triton: str
    device: str
    capability: str

    @staticmethod
    @functools.cache
    def of(device: int = 0) -> Environment:
        """Of this process and a CUDA device; without CUDA the device is "cpu"."""
        try:
            from triton import __version__ as triton
        except ImportError:
            triton = "none"
        if not torch.cuda.is_available():
            return Environment(__version__, torch.__version__, triton, "cpu", "")
        major, minor = torch.cuda.get_device_capability(device)
        name = torch.cuda.get_device_name(device)
        return Environment(__version__, torch.__version__, triton, name, f"{major}.{minor}")


@dataclass(frozen=True)
class TuningKey:
    """One choice: where it was measured, the kernel family, a hash of the kernel's text, the class of its shapes."""

    environment: Environment
    family: str
    text: str
    shape_class: str

    @staticmethod
    def of(environment: Environment, family: str, text: str, shape_class: str) -> TuningKey:
        """`text` is the kernel's source in full; the key keeps its hash."""
        return TuningKey(environment, family, hashlib.sha256(text.encode()).hexdigest(), shape_class)

    @functools.cached_property
    def file_name(self) -> str:
        canonical = json.dumps(asdict(self), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest() + ".json"


@dataclass(frozen=True)
class Tuned:
    """The fastest choice found, and its microseconds."""

    choice: Choice
    microseconds: float


class TuningStore:
    """Tuned choices by key. `directory` is made when something is first written; None: `tuned` in the cache
    directory that the knobs name."""

    def __init__(self, directory: Path | None = None):
        self.directory = knobs.cache_directory() / "tuned" if directory is None else directory
        self._known: dict[TuningKey, Tuned] = {}
        self._warned = False

    def get(self, key: TuningKey) -> Tuned | None:
        """What was kept for a key, by this process or another; None where there is nothing that can be read."""
        if (known := self._known.get(key)) is not None:
            return known
        try:
            text = (self.directory / key.file_name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._warn("read", error)
            return None
        tuned = _read(text, key)
        if tuned is not None:
            self._known[key] = tuned
        return tuned

    def empty(self) -> bool:
        """Is nothing kept, by this process or another?"""
        if self._known:
            return False
        try:
            with os.scandir(self.directory) as found:
                return next(found, None) is None
        except OSError:
            return True

    def put(self, key: TuningKey, tuned: Tuned) -> None:
        """Keep a choice, in place of an earlier one. Raises ValueError for a choice that JSON would not give back."""
        text = json.dumps(
            {"format": FORMAT, "key": asdict(key), "choice": dict(tuned.choice), "microseconds": tuned.microseconds},
            indent=1,
        )
        if _read(text.encode(), key) != Tuned(dict(tuned.choice), tuned.microseconds):
            raise ValueError(f"a choice holds integers and strings by name, and a time in microseconds; got {tuned}")
        self._known[key] = tuned
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            _replace(self.directory / key.file_name, text)
        except OSError as error:
            self._warn("written", error)

    def _warn(self, what: str, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            reason = error.strerror or error
            warnings.warn(
                f"tuned choices in {self.directory} cannot be {what}: {reason}; those found now last for this process. "
                f"{knobs.CACHE.name} names another directory",
                stacklevel=3,
            )


@functools.cache
def _store_at(directory: Path) -> TuningStore:
    return TuningStore(directory / "tuned")


def default_store() -> TuningStore:
    """The process's store in the directory that the knobs name now."""
    return _store_at(knobs.cache_directory())


def _replace(path: Path, text: str) -> None:
    """Write a file whole: readers see the old one or the new one."""
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _read(text: bytes, key: TuningKey) -> Tuned | None:
    """The entry in a file's text; None where the text is damaged, of another format or of another key."""
    try:
        entry = json.loads(text)
        if entry["format"] != FORMAT or entry["key"] != asdict(key):
            return None
        choice, microseconds = entry["choice"], entry["microseconds"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    sound = isinstance(choice, dict) and all(isinstance(value, int | str) for value in choice.values())
    timed = type(microseconds) in (int, float) and math.isfinite(microseconds) and microseconds >= 0
    return Tuned(choice, float(microseconds)) if sound and timed else None
