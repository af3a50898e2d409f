"""Highlighting of Tile: one table of rules, as a Pygments lexer and as a TextMate grammar for editors.

Importing this module needs Pygments, which tilec itself does not. Where both are installed, Pygments knows `TileLexer`
by the name "tile" (an entry point). The TextMate grammar is `editors/vscode/syntaxes/tile.tmLanguage.json`;
`python -m tilec.display.highlight` writes it anew.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from pygments.lexer import RegexLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, Text, _TokenType

from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.functions import FUNCTIONS, NAMED_LITERALS
from tilec.language.desugar import EXPANSIONS

KEYWORDS = ("function", "default", "init", "no_defract")
OPERATOR_TOKENS = "-> == != <= >= << >> = < > + - * / % ^ | & ~ ? :".split()
PUNCTUATION = (",", ";", "(", ")", "[", "]", "{", "}")
CALLABLE = sorted({*EXPANSIONS, *(n for n, row in FUNCTIONS.items() if not row.precedence)} - set(AGGREGATIONS))
FILE = Path(__file__).parents[2] / "editors" / "vscode" / "syntaxes" / "tile.tmLanguage.json"


def _words(words: tuple[str, ...] | list[str], then: str = "") -> str:
    """One of these words, whole."""
    return rf"(?:{'|'.join(sorted(words, key=len, reverse=True))})(?![A-Za-z0-9_']){then}"


# pattern, token of Pygments, scope of TextMate; the first that matches wins
TOKEN_RULES: tuple[tuple[str, _TokenType, str], ...] = (
    (r"(?://|#)[^\n]*", Comment.Single, "comment.line.tile"),
    (_words(KEYWORDS), Keyword, "keyword.control.tile"),
    (_words(list(AGGREGATIONS), r"(?=\s*[(\[])"), Name.Builtin, "support.function.aggregation.tile"),
    (_words(CALLABLE, r"(?=\s*\()"), Name.Function, "support.function.tile"),
    (_words(list(NAMED_LITERALS)), Keyword.Constant, "constant.language.tile"),
    (r"[A-Za-z][A-Za-z0-9_]*'?(?=\s*\()", Name.Function, "entity.name.function.tile"),
    (r"[A-Z][A-Za-z0-9_]*'?", Name.Class, "variable.other.tensor.tile"),
    (r"[a-z][A-Za-z0-9_]*'?", Name.Variable, "variable.parameter.index.tile"),
    (
        r"[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+",
        Number.Float,
        "constant.numeric.float.tile",
    ),
    (r"[0-9]+", Number.Integer, "constant.numeric.integer.tile"),
    ("|".join(map(re.escape, OPERATOR_TOKENS)), Operator, "keyword.operator.tile"),
    ("|".join(map(re.escape, PUNCTUATION)), Punctuation, "punctuation.tile"),
)


class TileLexer(RegexLexer):
    """Tile, for Pygments: `pygmentize -l tile`, Sphinx's `.. code-block:: tile`."""

    name = "Tile"
    aliases = ["tile", "tilec"]
    filenames = ["*.tile"]
    tokens = {"root": [(r"[\s\ufeff]+", Text.Whitespace), *((pattern, token) for pattern, token, _ in TOKEN_RULES)]}


def textmate() -> dict:
    """The TextMate grammar of the same rules."""
    return {
        "name": "Tile",
        "scopeName": "source.tile",
        "fileTypes": ["tile"],
        "patterns": [{"match": pattern, "name": scope} for pattern, _, scope in TOKEN_RULES],
    }


if __name__ == "__main__":
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(textmate(), indent=2) + "\n", encoding="utf-8")
