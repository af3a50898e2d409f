"""Tile in notebooks: `%load_ext tilec`, and cells that begin with `%%tile`."""

from __future__ import annotations

import argparse
import keyword
import shlex
from collections.abc import Mapping
from typing import NoReturn, Protocol

from tilec.api import compile as compile_source
from tilec.backends import NAMES
from tilec.errors import InputMistake, NameMistake, TileError
from tilec.errors.tracebacks import public
from tilec.function import Function
from tilec.language.grammar import parse_text

USAGE = "%%tile [NAME] [--entry FUNCTION] [--backend torch|triton] [--exact] [--warnings error] [--quiet]"


class Shell(Protocol):
    """What of IPython's shell is used here."""

    def register_magic_function(self, function, magic_kind: str, magic_name: str) -> None: ...

    def push(self, variables: Mapping[str, object]) -> None: ...


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputMistake(f"%%tile: {message}", hint=USAGE)


def load_ipython_extension(shell: Shell) -> None:
    """Give a notebook the cell magic `%%tile`; `%load_ext tilec` calls this.

    Args:
        shell: IPython's shell.
    """

    def tile(line: str, cell: str) -> Function | None:
        return _defined(shell, line, cell)

    tile.__doc__ = _parser().format_help()
    shell.register_magic_function(public(tile), "cell", "tile")


def _parser() -> _Parser:
    text = "Compile a cell of Tile: each named function becomes a variable, and the last one is shown."
    parser = _Parser(prog="%%tile", description=text, add_help=False, usage=USAGE)
    parser.add_argument("name", nargs="?", help="the variable for the function that is compiled, whatever its own name")
    parser.add_argument("--entry", metavar="FUNCTION", help="the function to take where the cell has several")
    parser.add_argument("--backend", choices=NAMES, help="as in tilec.compile (default: by the inputs' device)")
    parser.add_argument("--exact", action="store_true", help="no re-association in recurrences")
    parser.add_argument("--warnings", choices=("default", "error"), default="default", help="as in tilec.compile")
    parser.add_argument("--quiet", "-q", action="store_true", help="show nothing")
    return parser


def _defined(shell: Shell, line: str, cell: str) -> Function | None:
    """Compile the functions of a cell and put them among the notebook's variables."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise InputMistake(f"%%tile: {error}", hint=USAGE) from None
    args = _parser().parse_args(words)
    options = {"backend": args.backend, "exact": args.exact, "warnings": args.warnings}
    try:
        named = [f.name for f in parse_text(cell) if f.name is not None]
    except TileError as error:
        raise error.located(cell) from None
    wanted: dict[str, str | None] = {name: name for name in named if args.entry in (None, name)}
    if args.name is not None:
        wanted[args.name] = args.entry
    if not wanted and args.entry is None:
        raise InputMistake("nothing names this function", hint="%%tile NAME, or function NAME(...) -> (...) { ... }")
    for name in wanted:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise NameMistake(f"`{name}` cannot name a variable of Python", hint="%%tile NAME gives it another name")
    functions = {n: compile_source(cell, entry=e, **options) for n, e in (wanted or {"": args.entry}).items()}
    shell.push(functions)
    return None if args.quiet else functions[args.name or list(functions)[-1]]
