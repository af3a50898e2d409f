"""Comments that most likely were meant to be an integer quotient: `Y = X // 2;` is `Y = X`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tilec.errors import Span, SyntaxMistake

OPERAND = r"(?:\d[\w.]*|[A-Z]\w*(?:\[[^\[\]\n]*\])?|\([^()\n]*\))"
QUOTIENT = re.compile(
    rf"^[^#/\n]*[\w\])][ \t]*(?P<at>//)[ \t]*(?:{OPERAND}[ \t]*(?:[-+*/%][^;\n]*)?;|\d+)[ \t]*$", re.M
)


def quotients_in_comments(source: str) -> Iterator[SyntaxMistake]:
    """One for each comment that begins behind an operand, with an operand, and ends the statement."""
    for m in QUOTIENT.finditer(source):
        yield SyntaxMistake(
            "`//` begins a comment, and the statement ends before it",
            Span(m.start("at"), m.end("at")),
            hint="a quotient is written with `/`; between integers it rounds toward zero",
        )
