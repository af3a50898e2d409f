"""What the parser's complaints mean: from a token it cannot take to a message, a place and a hint."""

from __future__ import annotations

from lark import Token
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from tilec.errors import Span, SyntaxMistake


def explain(error: UnexpectedInput, source: str, tokens: list[Token]) -> SyntaxMistake:
    """The diagnostic for an error of the parser; `tokens` are those of the text, up to a character that fits none."""
    if isinstance(error, UnexpectedCharacters):
        character = source[error.pos_in_stream]
        return SyntaxMistake(f"unexpected character {character!r}", Span(error.pos_in_stream, error.pos_in_stream + 1))
    assert isinstance(error, UnexpectedToken)
    token = error.token
    return SyntaxMistake(f"unexpected `{token}`", Span(token.start_pos or 0, token.end_pos or 0))
