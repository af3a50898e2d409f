"""Signs of other languages around `=`: comparisons, assignments and those of Tile in each other's place."""

from __future__ import annotations

from tilec.errors import Edit, Hint, Span, SyntaxMistake
from tilec.ir.aggregations import BY_SYMBOL
from tilec.language.hints.complaint import Complaint
from tilec.language.syntax import token_span


def double_equals(c: Complaint) -> SyntaxMistake | None:
    if c.token.type != "EQEQ" or "EQUAL" not in c.accepted:
        return None
    hint = "write `=`"
    if c.source[c.span.stop :].lstrip().startswith("("):
        hint = "the operator is `=` followed by the aggregation: write `= =(...)` for assign, or plain `= ...`"
    return SyntaxMistake("`==` compares, and here a statement assigns", c.span, hint=Hint(hint, Edit(c.span, "=")))


def single_equals(c: Complaint) -> SyntaxMistake | None:
    """`X[i] = 0 ? 1 : 2`, and `Y[i = X[i]`."""
    if c.token.type != "EQUAL" or c.previous is None:
        return None
    if c.open and c.open[-1].type == "LSQB":
        hint = Hint("write `]` before this `=`", Edit(Span(*[token_span(c.previous).stop] * 2), "]"))
        return SyntaxMistake(f"the `[` in column {c.open[-1].column} is not closed", c.span, hint=hint)
    if "EQEQ" not in c.accepted:
        return None
    return SyntaxMistake("a comparison is written with `==`", c.span, hint=Hint("write `==`", Edit(c.span, "==")))


def compound_assignment(c: Complaint) -> SyntaxMistake | None:
    assert c.token.end_pos is not None
    if "EQUAL" not in c.accepted or "LPAR" in c.accepted or c.source[c.token.end_pos : c.token.end_pos + 1] != "=":
        return None
    span = Span(c.span.start, c.span.stop + 1)
    if c.previous is not None and c.previous.type == "UPPER":
        hint = f"a name is assigned once: write {c.previous}1 = {c.previous} {c.token} ... under a name of its own"
        return SyntaxMistake(f"there is no operator `{c.token}=`", span, hint=hint)
    hint = f"the operator is `=` followed by the aggregation, as in `= {c.token}(...)`"
    return SyntaxMistake(f"there is no operator `{c.token}=`", span, hint=Hint(hint, *_compound(c, span, str(c.token))))


def _compound(c: Complaint, span: Span, sign: str) -> tuple[Edit, ...]:
    """`+=` as `= +`, with parentheses around what follows up to a constraint or the statement's end."""
    start = span.stop + len(c.source[span.stop :]) - len(c.source[span.stop :].lstrip(" \t"))
    stop = _extent(c.source, start)
    body = c.source[start:stop].rstrip()
    if sign not in BY_SYMBOL or not body:
        return ()
    enclosed = body.startswith("(") and _extent(c.source, start + 1) == start + len(body) - 1
    return (Edit(Span(span.start, start + len(body)), f"= {sign}{body if enclosed else f'({body})'}"),)


def _extent(source: str, start: int) -> int:
    """Where an expression that begins there has its end: before what stands outside of its brackets and cannot be in
    it, or a comment, or a line break."""
    depth = 0
    for place in range(start, len(source)):
        here = source[place]
        depth += (here in "([") - (here in ")]")
        if depth < 0 or here in ";{}#\n" or (here == "," and not depth) or source.startswith("//", place):
            return place
    return len(source)


def joined_operators(c: Complaint) -> SyntaxMistake | None:
    """Two operators of another language."""
    if c.previous is None or c.previous.end_pos != c.token.start_pos:
        return None
    hints = {"+=": "write `= +(...)` for a sum", "*=": "write `= *(...)` for a product", "++": "there is no `++`"}
    hint = hints.get(f"{c.previous}{c.token}")
    if hint is None:
        return None
    change = _compound(c, Span(token_span(c.previous).start, c.span.stop), str(c.previous)) if c.token == "=" else ()
    return SyntaxMistake(f"unexpected `{c.token}` after `{c.previous}`", c.span, hint=Hint(hint, *change))
