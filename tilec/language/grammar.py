"""The parser, made from grammar/tile.lark at the first text and kept from run to run."""

from __future__ import annotations

import contextlib
import hashlib
import os
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, cast

from lark import Lark, Token
from lark.exceptions import UnexpectedInput
from lark.lexer import LexerThread

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


@cache
def _actions() -> tuple[list[dict[str, Any]], int]:
    """By state and name, the state that follows, or of what is reduced the builder, the length and the name; and the
    first state. lark compares and hashes rules in Python, which takes a third of the time."""
    driver = parser().parser.parser.parser
    table, build = driver.parse_table, driver.callbacks
    states = [
        {
            name: to if isinstance(to, int) else (build[to], len(to.expansion), to.origin.name)
            for name, (_, to) in table.states[state].items()
        }
        for state in range(len(table.states))
    ]
    states[table.end_states["source"]]["$END"] = 0  # nothing follows
    return states, table.start_states["source"]


def _parsed(source: str) -> list[FunctionSyntax] | None:
    """None where there is a mistake, which lark then finds."""
    states, first = _actions()
    stack, values = [first], list[Any]()
    stream = LexerThread.from_text(parser().parser.lexer, source).lex(None)
    try:
        for token in chain(stream, (None,)):
            name = "$END" if token is None else token.type
            while not isinstance(action := states[stack[-1]][name], int):
                build, size, made = action
                at = len(values) - size
                values[at:] = [build(values[at:])]
                stack[at + 1 :] = [states[stack[at]][made]]
            stack.append(action)
            values.append(token)
    except (KeyError, UnexpectedInput):
        return None
    return values[0]


def parse_text(source: str) -> list[FunctionSyntax]:
    """The functions of a source text, in order. Raises SyntaxMistake."""
    found = _parsed(source)
    if found is not None:
        return found
    try:
        return cast(list[FunctionSyntax], parser().parse(source))
    except UnexpectedInput as error:
        mistake = explain(error, source, tokens(source))
    raise mistake
