"""Tokens of the grammar: which are brackets, operators and words, and what a message says of each and of characters."""

from __future__ import annotations

from collections.abc import Collection

from lark import Token

OPENING = {"LPAR": "RPAR", "LSQB": "RSQB", "LBRACE": "RBRACE"}
CLOSING = {close: open for open, close in OPENING.items()}
COMPARISON_TOKENS = frozenset(("EQEQ", "NOTEQ", "LESSTHAN", "MORETHAN", "LESSEQ", "MOREEQ"))
ARITHMETIC_TOKENS = frozenset("CIRCUMFLEX VBAR AMPERSAND SHL SHR PLUS MINUS STAR SLASH PERCENT".split())
RESERVED_TOKENS = frozenset(("FUNCTION", "DEFAULT", "INIT", "NO_DEFRACT"))
STARTS = frozenset(("INT", "FLOAT", "LPAR", "MINUS", "TILDE", "UPPER", "LOWER"))
CHARACTERS = {
    "!": "`!=` compares; a bitwise not is `~`",
    ".": "a value has no attributes or methods, and a number has a digit beside its point",
    "_": "names begin with a letter",
    "'": "an apostrophe may only end a name",
    "$": "quoted names are not part of the language",
    "\\": "a statement may go on in the next line as it is",
    '"': "there are no strings in the language",
}
SIGN_NAMES = {
    "EQEQ": "==", "NOTEQ": "!=", "LESSEQ": "<=", "MOREEQ": ">=", "SHL": "<<", "SHR": ">>", "LESSTHAN": "<",
    "MORETHAN": ">", "PLUS": "+", "MINUS": "-", "STAR": "*", "SLASH": "/", "PERCENT": "%", "CIRCUMFLEX": "^",
    "VBAR": "|", "AMPERSAND": "&", "TILDE": "~", "ARROW": "->", "EQUAL": "=", "COMMA": ",", "COLON": ":",
    "SEMICOLON": ";", "QMARK": "?", "LPAR": "(", "RPAR": ")", "LSQB": "[", "RSQB": "]", "LBRACE": "{", "RBRACE": "}",
}  # fmt: skip
WORDS = {
    "UPPER": "a tensor or dimension name",
    "LOWER": "a lower-case name",
    "INT": "an integer",
    "FLOAT": "a number",
    "FUNCTION": "`function`",
    "DEFAULT": "`default`",
    "INIT": "`init`",
    "NO_DEFRACT": "`no_defract`",
    "$END": "the end of the text",
    **{name: f"`{sign}`" for name, sign in SIGN_NAMES.items()},
}


def open_brackets(tokens: list[Token]) -> list[Token]:
    stack: list[Token] = []
    for t in tokens:
        if t.type in OPENING:
            stack.append(t)
        elif t.type in CLOSING and stack and stack[-1].type == CLOSING[t.type]:
            stack.pop()
    return stack


def in_words(accepted: Collection[str]) -> str:
    """The accepted kinds of token in words, those that begin or continue an expression as one."""
    rest, words = set(accepted), []
    if rest >= {"LPAR", "MINUS", "INT", "LOWER"}:
        words.append("an expression")
        rest -= STARTS
    if rest >= {"PLUS", "STAR", "EQUAL"}:
        words.append("an aggregation such as `+(...)`")
        rest -= {"PLUS", "STAR", "EQUAL", "LESSTHAN", "MORETHAN"}
    if rest >= {"PLUS", "STAR", "MINUS"}:
        words.append("an operator")
        rest -= ARITHMETIC_TOKENS | COMPARISON_TOKENS | {"QMARK"}
    words += [WORDS.get(name, name) for name in sorted(rest, key=_order)]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


def _order(name: str) -> tuple[int, str]:
    return (list(WORDS).index(name) if name in WORDS else len(WORDS), name)
