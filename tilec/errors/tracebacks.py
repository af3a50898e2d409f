"""Tracebacks of a TileError: where the public API was called, and the message, without the frames in between."""

from __future__ import annotations

import functools
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tilec.errors import InputMistake, InternalMistake, TileError, listed
from tilec.knobs import FULL_TRACEBACK
from tilec.late import untraced

F = TypeVar("F", bound=Callable)
FOREIGN = ("tilec", "torch", "IPython", "ipykernel")  # packages whose frames are not the caller's


def hide_frames(error: TileError) -> None:
    """Forget the frames below the handler that calls this; a bare `raise` after it adds none of its own.

    A defect of tilec keeps its frames, and so does everything under TILEC_FULL_TRACEBACK=1.
    """
    if not isinstance(error, InternalMistake) and not FULL_TRACEBACK.value:
        error.__traceback__ = None


def public(function: F) -> F:
    """An entry of the API whose TileErrors show the caller's frame alone, and which raises one where it is given other
    arguments than it takes. Costs one call: not for hot paths."""

    @untraced
    @functools.wraps(function)
    def entry(*args, **named):
        try:
            return function(*args, **named)
        except TileError as error:
            hide_frames(error)
            raise
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:  # of the function's own
                raise
            mistake = _misfit(function, args, named)
            if mistake is None:
                raise
        raise mistake

    return entry  # type: ignore[return-value]


def _misfit(function: Callable, args: tuple, named: dict[str, object]) -> InputMistake | None:
    """What is wrong with the arguments of a call that Python refuses; None where nothing is."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **named)
    except TypeError as error:
        taken = {p.name: p for p in signature.parameters.values() if p.name != "self"}
        called = function.__qualname__.removesuffix(".__init__").removeprefix("Function.")
        unknown = next((n for n in named if n not in taken), None)
        if unknown is not None:
            return InputMistake(f"{called} has no argument `{unknown}`", hint=listed(unknown, taken, "arguments"))
        shown = (p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in taken.values())
        return InputMistake(f"{called}: {error}", hint=f"its arguments: {', '.join(shown)}")
    return None


def traceback_lines(error: TileError) -> list[str]:
    """What IPython prints for an error: the caller's own lines, and the message with its carets.

    Everything where frames are not hidden, see `hide_frames`.
    """
    if isinstance(error, InternalMistake) or FULL_TRACEBACK.value:
        return "".join(traceback.format_exception(error)).splitlines()
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.line and not _foreign(f)]
    return [*map(_place, frames), f"{type(error).__name__}: {error}"]


def _foreign(frame: traceback.FrameSummary) -> bool:
    """Is it code of tilec, of torch between it and its caller, or of what runs cells?"""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in FOREIGN]
    packages = [Path(file).parent for file in files if file]
    line = frame.line or ""
    return any(map(Path(frame.filename).is_relative_to, packages)) or line.startswith("get_ipython().run_cell_magic(")


def _place(frame: traceback.FrameSummary) -> str:
    where = f"line {frame.lineno}"
    if Path(frame.filename).is_file():
        where = f"{frame.filename}, {where}"
    return f"{where}{'' if frame.name == '<module>' else f', in {frame.name}'}: {frame.line}"
