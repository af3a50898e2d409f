"""Tracebacks of a TileError: where the public API was called, and the message, without the frames in between."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from tilec.errors import InternalMistake, TileError
from tilec.knobs import FULL_TRACEBACK

F = TypeVar("F", bound=Callable)


def hide_frames(error: TileError) -> None:
    """Forget the frames below the handler that calls this; a bare `raise` after it adds none of its own.

    A defect of tilec keeps its frames, and so does everything under TILEC_FULL_TRACEBACK=1.
    """
    if not isinstance(error, InternalMistake) and not FULL_TRACEBACK.value:
        error.__traceback__ = None


def public(function: F) -> F:
    """An entry of the API whose TileErrors show the caller's frame alone. Costs one call: not for hot paths."""

    @functools.wraps(function)
    def entry(*args, **named):
        try:
            return function(*args, **named)
        except TileError as error:
            hide_frames(error)
            raise

    return entry  # type: ignore[return-value]
