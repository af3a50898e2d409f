"""The command fmt: sources laid out in one way."""

from __future__ import annotations

import argparse
import sys
from difflib import unified_diff
from pathlib import Path

from tilec.api import read
from tilec.cli.options import STDIN, add_source
from tilec.errors import InputMistake, TileError
from tilec.language.format import format_source


def add(commands) -> None:
    fmt = commands("fmt", _format, "lay sources out in one way, comments kept; files are rewritten")
    add_source(fmt, several=True, entry=False)
    fmt.add_argument("--check", action="store_true", help="change nothing; exit 1 where a file is laid out otherwise")
    fmt.add_argument("--diff", action="store_true", help="change nothing; print what would change")


def _format(args: argparse.Namespace) -> int:
    if args.text is not None:
        return _printed(args.text, args)
    return max([_printed(sys.stdin.read(), args) if f == STDIN else _rewritten(f, args) for f in args.file])


def _printed(source: str, args: argparse.Namespace) -> int:
    """A text that is no file's goes to standard output."""
    new = _formatted(source, "<tile>")
    if args.diff or args.check:
        return _compared(source, new, "<tile>", args)
    sys.stdout.write(new)
    return 0


def _rewritten(file: str, args: argparse.Namespace) -> int:
    try:
        source = read(file)
        new = _formatted(source, file)
    except TileError as error:
        print(f"tilec: {error}", file=sys.stderr)
        return 1
    if args.diff or args.check:
        return _compared(source, new, file, args)
    if new != source:
        try:
            Path(file).write_text(new, encoding="utf-8")
        except OSError as error:
            raise InputMistake(f"cannot write {file}: {error.strerror}") from None
        print(f"{file}: formatted")
    return 0


def _formatted(source: str, file: str) -> str:
    try:
        return format_source(source)
    except TileError as error:
        raise error.located(source, file) from None


def _compared(source: str, new: str, file: str, args: argparse.Namespace) -> int:
    if args.diff:
        lines = unified_diff(source.splitlines(True), new.splitlines(True), file, f"{file}, formatted")
        sys.stdout.writelines(line if line.endswith("\n") else f"{line}\n" for line in lines)
    if args.check and new != source:
        print(f"{file}: would be formatted")
    return int(args.check and new != source)
