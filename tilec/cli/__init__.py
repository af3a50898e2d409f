"""The command line: check, show, grad, run, tune, build, explain, bench, fmt, doctor, opt, gallery, lsp.

Bad input ends in exit code 1 with the diagnostic on standard error, wrong usage in exit code 2 (argparse's), Ctrl-C in
130.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence

import tilec
from tilec.cli import bench, build, doctor, explain, fmt, gallery, lsp, opt, programs
from tilec.cli.options import check_source
from tilec.errors import TileError, TileWarning

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    given = sys.argv[1:] if argv is None else argv
    if not given:
        _parser().print_help(sys.stderr)
        return 2
    args = _parser().parse_args(given)
    if "text" in args:
        check_source(args)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", TileWarning)
            warnings.showwarning = _warn
            return args.run(args) or 0
    except TileError as error:
        print(f"tilec: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        print("tilec: interrupted", file=sys.stderr)
        return INTERRUPTED


def _warn(message: Warning | str, category: type[Warning], filename: str, lineno: int, file=None, line=None) -> None:
    """A TileWarning has its own place; those of other libraries say where in Python they come from."""
    if issubclass(category, TileWarning):
        print(f"tilec: warning: {message}", file=sys.stderr)
    else:
        print(warnings.formatwarning(message, category, filename, lineno, line), end="", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tilec", description="Compile, look at, differentiate and run Tile programs.")
    parser.add_argument("--version", action="version", version=f"tilec {tilec.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int | None], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    for group in (programs, build, explain, bench, fmt, doctor, opt, gallery, lsp):
        group.add(command)
    return parser
