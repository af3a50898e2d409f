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


_MATMUL = "-e 'C[i, j] = sum(A[i, k] * B[k, j])'"
FIRST_STEPS = """examples:
  tilec gallery                      # operations to start from
  tilec gallery softmax > softmax.tile
  tilec check softmax.tile           # its signature, or what is wrong
  tilec grad softmax.tile            # its gradient, as Tile
  tilec COMMAND --help               # options and an example of each command
"""
EXAMPLES = {  # by command
    "check": ("tilec check conv.tile pool.tile", "tilec check --watch conv.tile"),
    "show": (
        f"tilec show {_MATMUL} --latex",
        "tilec show conv.tile --stage defracted --shape I=8,57,57,16 K=3,3,16,32",
    ),
    "grad": (f"tilec grad {_MATMUL}", "tilec grad conv.tile --wrt I"),
    "run": (f"tilec run {_MATMUL} --input A=a.npy B=b.npy --output C=c.npy", "tilec run -e 'Y = X + 1' --input X=2.5"),
    "tune": ("tilec tune norm.tile --shape X=4096,1024 W=1024 --dtype X=bfloat16 W=bfloat16 --grad",),
    "bench": ("tilec bench norm.tile --shape X=4096,1024 W=1024 --vs norm.py:reference",),
    "explain": ("tilec explain norm.tile --shape X=4096,1024 W=1024 --target sm_90 --html norm.html",),
    "build": ("tilec build norm.tile --shape X=4096,1024 W=1024 --target sm_90 -o norm --grad",),
    "fmt": ("tilec fmt --diff conv.tile", "tilec fmt --check *.tile"),
    "opt": (f"tilec opt {_MATMUL} --shape A=3,4 B=4,5 -p bind,flatten",),
    "gallery": ("tilec gallery --find attention", "tilec gallery softmax --grad"),
    "doctor": ("tilec doctor --no-test",),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tilec",
        description="Compile, look at, differentiate and run Tile programs.",
        epilog=FIRST_STEPS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tilec {tilec.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int | None], text: str) -> argparse.ArgumentParser:
        shown = "\n".join(f"  {line}" for line in EXAMPLES.get(name, ()))
        sub = commands.add_parser(
            name,
            help=text,
            description=text,
            epilog=shown and f"example:\n{shown}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(run=run)
        return sub

    for group in (programs, build, explain, bench, fmt, doctor, opt, gallery, lsp):
        group.add(command)
    return parser
