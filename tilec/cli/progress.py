"""A sign of life on standard error where something takes longer than two seconds."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

FIRST, NEXT = 2.0, 10.0  # seconds until the first line, and between the others


@contextlib.contextmanager
def progress(what: str, first: float = FIRST, following: float = NEXT) -> Iterator[None]:
    """Say on standard error that `what` goes on: after `first` seconds, then every `following` seconds."""
    done = threading.Event()
    start = time.perf_counter()

    def report() -> None:
        wait = first
        while not done.wait(wait):
            print(f"tilec: {what}, {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
            wait = following

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
