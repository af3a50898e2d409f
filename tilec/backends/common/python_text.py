"""Python's parser, called by several threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Parsed = TypeVar("Parsed")
ATTEMPTS = 10


def parsing(action: Callable[[], Parsed]) -> Parsed:
    """The result of an action that parses Python, again where Python 3.11 is in its own way: it counts the depth of the
    trees that all threads build together, and takes another thread's for a mistake."""
    for _ in range(ATTEMPTS - 1):
        try:
            return action()
        except SystemError as error:
            if "recursion depth mismatch" not in str(error):
                raise
    return action()
