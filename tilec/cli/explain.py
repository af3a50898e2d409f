"""The command explain: what a program does, how it is lowered and what that costs, as a page of HTML."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilec.cli.options import add_source, add_types, argument_specs, compiled
from tilec.cli.progress import progress
from tilec.errors import InputMistake


def add(commands) -> None:
    explain = commands("explain", _explain, "write a page: formulas, indices, what tiles read, stages, code, cost")
    add_source(explain)
    add_types(explain)
    explain.add_argument("--html", metavar="FILE", default="explained.html", help="the page (default: explained.html)")
    explain.add_argument(
        "--target", metavar="ARCH", help="compile for a GPU's architecture, such as sm_90, without one"
    )


def _explain(args: argparse.Namespace) -> None:
    function = compiled(args)
    with progress(f"explaining {function!r}"):
        page = function.explain(*argument_specs(function, args), target=args.target)
    try:
        page.save(Path(args.html))
    except OSError as error:
        raise InputMistake(f"cannot write {args.html}: {error.strerror}") from error
    print(f"wrote {args.html}")
