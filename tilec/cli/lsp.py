"""The command lsp: the language server that editors start."""

from __future__ import annotations

import argparse

from tilec.errors import Unsupported


def add(commands) -> None:
    commands("lsp", _lsp, "run the language server on standard input and output, for editors")


def _lsp(args: argparse.Namespace) -> None:
    try:
        from tilec.lsp.server import main
    except ImportError as error:
        told = f"the language server needs pygls, which is not installed ({error.name})"
        raise Unsupported(told, hint="pip install tilec[lsp]") from error
    main()
