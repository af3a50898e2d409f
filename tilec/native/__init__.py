"""The part of a call that is done in C++: the look-up of calls like one before, torch's node of a recorded one, the
launches of a plan. Built by a C++ compiler, once for a version of torch; where there is none, Python does the same.

A call never waits for it: where the library is not there, a compiler starts in the background, and calls change over
when it is done. `tilec doctor --build` builds it at once; TILEC_NATIVE=0 does without.
"""

from __future__ import annotations

import contextlib
import threading
import time
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any

from tilec import knobs
from tilec.errors import Unsupported
from tilec.native import build

LIBRARY_NAME = "tilec_native"
LOOKED_FOR = 0.1  # seconds from one look for a library that is being built to the next


class _Loaded:
    """The library of this process, once it is there."""

    def __init__(self) -> None:
        self.module: Any = None
        self.failed = False
        self.awaited = 0.0  # while a compiler is at work, when to look again
        self.lock = threading.Lock()


_loaded = _Loaded()


def native() -> Any | None:
    """The library, or None where there is none yet, or none is wanted."""
    if _loaded.failed or not knobs.NATIVE.value:
        return None
    if _loaded.module is None:
        if time.monotonic() < _loaded.awaited:
            return None
        with _loaded.lock:
            if _loaded.module is None and not _loaded.failed:
                _load()
    return _loaded.module


def expected() -> bool:
    """Whether the library is not here yet, but may be later in this process."""
    return _loaded.module is None and not _loaded.failed and knobs.NATIVE.value


def built_native() -> Any | None:
    """The library, built first where that can be: for those who measure."""
    if knobs.NATIVE.value and build.compiler() and not build.library_path().exists():
        with contextlib.suppress(Unsupported):
            build.build_library()
    _loaded.awaited = 0.0
    return native()


def _load() -> None:
    path = build.library_path()
    if not path.exists():
        _loaded.failed = not build.start_build()
        _loaded.awaited = time.monotonic() + LOOKED_FOR
        return
    try:
        loader = ExtensionFileLoader(LIBRARY_NAME, str(path))
        spec = spec_from_loader(LIBRARY_NAME, loader)
        assert spec is not None
        module = module_from_spec(spec)
        loader.exec_module(module)
        _loaded.module = module
    except (ImportError, OSError):
        _loaded.failed = True
