"""Layout of a source text: spaces and line breaks as `show` writes them, with the text's own tokens and comments.

Products and quotients are tight in indices, sizes and constraints (`3*y + 2*j`), spaced in values. A statement is one
line; one longer than WIDTH keeps the line breaks it has. Comments stay with the token that they follow on its line, or
on lines of their own. Formatting what is formatted changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from lark import Token

from tilec.errors import InternalMistake
from tilec.language.grammar import parse_text, tokens

WIDTH = 100
INDENT = "    "
COMMENT = re.compile(r"(?://|#)[^\n]*")
SPACED_TOKENS = frozenset("+ - * / % == != < > <= >= & | ^ << >> ? : = ->".split())
TIGHT_TOKENS = frozenset("*/")
OPEN, CLOSE = frozenset("([{"), frozenset(")]}")


@dataclass
class CommentedToken:
    """A token with the comments around it: those on lines before it, and the one that ends its line. `blank`: an empty
    line stands before it; `broken`: it begins a line."""

    token: Token
    before: list[str] = field(default_factory=list)
    after: str | None = None
    blank: bool = False
    broken: bool = False


def format_source(source: str) -> str:
    """The source laid out. Raises SyntaxMistake where it is no Tile."""
    parse_text(source)
    pieces, rest = _pieces(source)
    lines: list[str] = []
    depth, before = 0, ""  # braces that are open, and the token before the statement
    for statement in _statements(pieces):
        first = statement[0]
        if first.token == "}":
            depth -= 1
            if before == "{" and not first.before and not "{" != lines[-1][-1]:
                lines[-1] += _laid_out(statement, "")[0]
                before = "}"
                continue
        if lines and (first.blank and first.token != "}" and before != "{" or before == "}"):
            lines.append("")
        before = str(statement[-1].token)
        inner = depth + (first.token == "}")  # what stands before a closing brace is inside
        lines += [INDENT * inner + comment for comment in first.before]
        lines += _laid_out(statement, INDENT * depth)
        depth += statement[-1].token == "{"
    lines += rest
    text = "\n".join(lines) + "\n"
    if [str(t) for t in tokens(text)] != [str(t) for t in tokens(source)]:
        raise InternalMistake("formatting changed the text")
    return text


def _pieces(source: str) -> tuple[list[CommentedToken], list[str]]:
    """Tokens with their comments, and the comments after the last."""
    pieces: list[CommentedToken] = []
    place = 0
    for token in tokens(source):
        assert token.start_pos is not None and token.end_pos is not None
        piece = CommentedToken(token)
        _gap(source[place : token.start_pos], pieces, piece)
        pieces.append(piece)
        place = token.end_pos
    last = CommentedToken(Token("END", ""))
    _gap(source[place:], pieces, last)
    return pieces, last.before


def _gap(gap: str, pieces: list[CommentedToken], piece: CommentedToken) -> None:
    """Note what stands between the last piece and this one."""
    lines = gap.split("\n")
    piece.broken = len(lines) > 1
    for number, line in enumerate(lines):
        comment = COMMENT.search(line)
        if comment is None:
            continue
        if number == 0 and pieces:
            pieces[-1].after = comment[0].rstrip()
        else:
            piece.before.append(comment[0].rstrip())
    first = lines[1:] if pieces else lines
    piece.blank = bool(pieces) and any(not line.strip() for line in first[:-1])


def _statements(pieces: list[CommentedToken]) -> Iterator[list[CommentedToken]]:
    """Runs of pieces that share a line: up to a semicolon, an opening brace or a closing one."""
    run: list[CommentedToken] = []
    for piece in pieces:
        if piece.token == "}" and run:
            yield run
            run = []
        run.append(piece)
        if piece.token in (";", "{", "}"):
            yield run
            run = []
    if run:
        yield run


def _laid_out(statement: list[CommentedToken], indent: str) -> list[str]:
    whole = indent + _line(statement)
    comments = any(p.after for p in statement[:-1]) or any(p.before for p in statement[1:])
    if comments or len(whole) > WIDTH:
        gaps = _gaps(statement)
        lines, line = [], indent
        for number, (piece, gap) in enumerate(zip(statement, gaps, strict=True)):
            if number and (piece.broken or statement[number - 1].after):
                lines += [line, *(indent + INDENT + comment for comment in piece.before)]
                line = indent + INDENT + str(piece.token)
            else:
                line += gap + str(piece.token)
            if piece.after:
                line += f"  {piece.after}"
        return [*lines, line]
    last = statement[-1]
    return [whole + (f"  {last.after}" if last.after else "")]


def _line(statement: list[CommentedToken]) -> str:
    return "".join(gap + str(p.token) for gap, p in zip(_gaps(statement), statement, strict=True))


def _gaps(statement: list[CommentedToken]) -> list[str]:
    """What stands before each token: nothing or a space."""
    words = [str(p.token) for p in statement]
    kinds = [p.token.type for p in statement]
    constraints = _constraints_from(words)
    gaps = [""]
    brackets: list[str] = []
    for k in range(1, len(words)):
        if words[k - 1] in OPEN:
            brackets.append(words[k - 1])
        elif words[k - 1] in CLOSE and brackets:
            brackets.pop()
        tight = "[" in brackets or k >= constraints
        gaps.append(" " if _spaced(words, kinds, k, tight) else "")
    return gaps


def _constraints_from(words: list[str]) -> int:
    """Where the constraints of a statement begin: after the first comma outside all brackets."""
    depth = 0
    for k, word in enumerate(words):
        depth += (word in OPEN) - (word in CLOSE)
        if word == "," and not depth and "=" in words[:k]:
            return k
    return len(words)


def _spaced(words: list[str], kinds: list[str], k: int, tight: bool) -> bool:
    """Is there a space before the k-th token?"""
    before, here = words[k - 1], words[k]
    if here == "]" and before == ":" or here == ":" and before == "[":
        return True
    if here in (",", ";", ")", "]") or before in ("(", "["):
        return before == "[" and here == "[" and k > 1
    if before == ",":
        return True
    if here in ("{", "}") or before in ("{", "}", ";"):
        return True
    if before == "]" and k > 1 and words[k - 2] == "]" and words[:2] == ["[", "["] and here not in SPACED_TOKENS:
        return True  # after an attribute
    if here == "(":
        return before in SPACED_TOKENS and not _sign(words, k - 1) or kinds[k - 1] in ("FUNCTION", "INIT")
    if here == "[":
        return before in SPACED_TOKENS and not _sign(words, k - 1)
    if _sign(words, k - 1):
        return False
    if before == "~":
        return False
    if here in SPACED_TOKENS and not _sign(words, k):
        return not (tight and here in TIGHT_TOKENS)
    if before in SPACED_TOKENS:
        return not (tight and before in TIGHT_TOKENS)
    return not (kinds[k - 1] == "INT" and kinds[k] == "LOWER")


def _sign(words: list[str], k: int) -> bool:
    """Is the k-th token a sign: unary, or the aggregation's after `=`?"""
    if words[k] not in ("+", "-", "*", "<", ">", "=") or k == 0:
        return False
    before = words[k - 1]
    if words[k] == "-":
        return before in SPACED_TOKENS or before in ("(", "[", ",", "~", "init")
    return before == "=" and k + 1 < len(words) and words[k + 1] == "("
