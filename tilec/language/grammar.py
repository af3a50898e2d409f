"""The parser, made from grammar/tile.lark at the first text and kept from run to run."""

from __future__ import annotations

import contextlib
import hashlib
import os
from functools import cache
from pathlib import Path
from typing import cast

from lark import Lark, Token
from lark.exceptions import UnexpectedInput

from tilec.knobs import cache_directory
from tilec.language.hints.syntax_errors import explain
from tilec.language.syntax import FunctionSyntax, TreeBuilder


def grammar_text() -> str:
    """The grammar: inside the package when it was installed from a wheel, beside the package in a source checkout."""
    package, checkout = (Path(__file__).parents[level] / "grammar" / "tile.lark" for level in (1, 2))
    return (package if package.is_file() else checkout).read_text(encoding="utf-8")


@cache
def parser() -> Lark:
    """The parser, whose tables lie in the cache directory where that can be written."""
    text, folder = grammar_text(), cache_directory()
    kept = folder / f"grammar-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return Lark(
        text,
        parser="lalr",
        lexer="basic",
        start="source",
        transformer=TreeBuilder(),
        keep_all_tokens=True,
        maybe_placeholders=False,
        cache=str(kept) if os.access(folder, os.W_OK) else False,
    )


def tokens(source: str) -> list[Token]:
    """The tokens up to the first character that belongs to none."""
    found: list[Token] = []
    try:
        for token in parser().lex(source):
            found.append(token)
    except UnexpectedInput:
        pass
    return found


def parse_text(source: str) -> list[FunctionSyntax]:
    """The functions of a source text, in order. Raises SyntaxMistake."""
    try:
        return cast(list[FunctionSyntax], parser().parse(source))
    except UnexpectedInput as error:
        mistake = explain(error, source, tokens(source))
    raise mistake
