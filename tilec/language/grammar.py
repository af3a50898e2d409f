"""The parser, made once from grammar/tile.lark when this module is imported."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from lark import Lark, Token
from lark.exceptions import UnexpectedInput

from tilec.language.hints.syntax_errors import explain
from tilec.language.syntax import FunctionSyntax, TreeBuilder


def grammar_text() -> str:
    """The grammar: inside the package when it was installed from a wheel, beside the package in a source checkout."""
    package, checkout = (Path(__file__).parents[level] / "grammar" / "tile.lark" for level in (1, 2))
    return (package if package.is_file() else checkout).read_text(encoding="utf-8")


PARSER = Lark(
    grammar_text(),
    parser="lalr",
    lexer="basic",
    start="source",
    transformer=TreeBuilder(),
    keep_all_tokens=True,
    maybe_placeholders=False,
)


def tokens(source: str) -> list[Token]:
    """The tokens up to the first character that belongs to none."""
    found: list[Token] = []
    try:
        for token in PARSER.lex(source):
            found.append(token)
    except UnexpectedInput:
        pass
    return found


def parse_text(source: str) -> list[FunctionSyntax]:
    """The functions of a source text, in order. Raises SyntaxMistake."""
    try:
        return cast(list[FunctionSyntax], PARSER.parse(source))
    except UnexpectedInput as error:
        mistake = explain(error, source, tokens(source))
    raise mistake
