"""compile, load, interpret: text in, something that runs out."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import numpy as np
import torch

from tilec.arguments import to_tensors
from tilec.backends import NAMES
from tilec.errors import InputMistake, TileError, Unsupported
from tilec.function import Function
from tilec.ir.evaluate import evaluate
from tilec.language import parse


def compile(source: str, *, entry: str | None = None, backend: str | None = None, exact: bool = False) -> Function:
    """Compile Tile text to a Function.

    `entry` names the function to compile where the text holds several (default: the last). `backend` is "torch",
    "triton" or None: chosen by the inputs' device. `exact` forbids re-association in recurrences: every state is then
    computed from the one before it by the operations in the text, in their order, as an eager loop would; otherwise a
    step that is affine in a semiring (`a*h + b`, `max(c, d + h)`, `logaddexp(c, d + h)`) may be composed with others
    where that is faster, which rounds differently. It holds for gradients too. Raises TileError subclasses.
    """
    return _compile(source, "<tile>", entry, backend, exact)


def load(
    path: str | PathLike[str], *, entry: str | None = None, backend: str | None = None, exact: bool = False
) -> Function:
    """Compile the Tile text in a file (UTF-8); errors name the file. Raises InputMistake if it cannot be read."""
    return _compile(read(path), str(path), entry, backend, exact)


def read(path: str | PathLike[str]) -> str:
    """Text of a Tile file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputMistake(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise InputMistake(f"cannot read {path}: {error.strerror}") from None


def _compile(source: str, filename: str, entry: str | None, backend: str | None, exact: bool) -> Function:
    if not isinstance(source, str):
        raise InputMistake(f"the source must be a string of Tile; got {type(source).__name__}")
    if backend not in (None, *NAMES):
        raise InputMistake(f"no backend is called {backend!r}", hint="backends: " + ", ".join(NAMES))
    try:
        return Function(parse(source, filename=filename, entry=entry), source, filename, backend, exact=exact)
    except TileError as error:
        raise error.located(source, filename) from None


def interpret(source: str, *arrays: object) -> np.ndarray | tuple[np.ndarray, ...]:
    """The slow exact meaning of a program: every point enumerated in float64 and int64, sharing no code with a backend.

    Takes NumPy arrays, CPU tensors or numbers; returns NumPy arrays, one output bare, several as a tuple.
    """
    try:
        program = parse(source)
        tensors = to_tensors(program.input_names(), arrays).tensors
        if any(t.dtype is torch.bfloat16 for t in tensors):
            raise Unsupported("NumPy has no bfloat16", hint="pass float64: the oracle computes in it")
        results = evaluate(program, [t.detach().cpu().numpy() for t in tensors])
    except TileError as error:
        raise error.located(source) from None
    return results[0] if len(results) == 1 else results
