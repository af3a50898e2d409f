"""What the parser's complaints mean: from a token it cannot take to a message, a place and a hint."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator

from lark import Token
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from tilec.errors import Edit, Hint, Span, SyntaxMistake
from tilec.ir.aggregations import AGGREGATIONS, BY_SYMBOL
from tilec.ir.functions import FUNCTIONS
from tilec.language.hints.complaint import Complaint
from tilec.language.hints.constraints import chained_hint
from tilec.language.hints.equals import compound_assignment, double_equals, joined_operators, single_equals
from tilec.language.hints.idioms import comment_in_brackets, explain_idiom
from tilec.language.hints.tokens import (
    ARITHMETIC_TOKENS,
    CHARACTERS,
    CLOSING,
    COMPARISON_TOKENS,
    RESERVED_TOKENS,
    STARTS,
    in_words,
    open_brackets,
)
from tilec.language.scope import nearest
from tilec.language.syntax import token_span

CHAIN = r",\s*([^,;<>=]+)(<=?)([^,;<>=]+)(<=?)([^,;<>={}]+)"  # among constraints: low <= e < high


def explain(error: UnexpectedInput, source: str, tokens: list[Token]) -> SyntaxMistake:
    """The diagnostic for an error of the parser; `tokens` are those of the text, up to a character that fits none."""
    if isinstance(error, UnexpectedCharacters):
        place = error.pos_in_stream or 0
        if (mistake := explain_idiom(source, place)) is not None:
            return mistake
        character = source[place]
        name = f"`{character}`" if character.isprintable() else repr(character)
        span, hint = Span(place, place + 1), CHARACTERS.get(character)
        if hint is None and character.isalpha():
            hint = f"names are made of the letters a to z, digits and `_`: write {_spelled(character)}"
        if hint is not None and character == "\\":
            hint = Hint(hint, Edit(span, ""))
        return SyntaxMistake(f"unexpected character {name}", span, hint=hint)
    assert isinstance(error, UnexpectedToken)
    token = error.token
    before = tokens
    if token.type != "$END":
        before = [t for t in tokens if (t.start_pos or 0) < (token.start_pos or 0)]
    complaint = Complaint(token, frozenset(error.accepts or error.expected), before, open_brackets(before), source)
    if complaint.open and (mistake := _commented_out(complaint)) is not None:
        return mistake
    if token.type != "$END" and (mistake := explain_idiom(source, token.start_pos or 0)) is not None:
        return mistake
    for rule in COMPLAINT_RULES:
        mistake = rule(complaint)
        if mistake is not None:
            return mistake
    message = f"unexpected `{token}`, expected {in_words(complaint.accepted)}"
    return SyntaxMistake(message, complaint.span, hint=_keyword(complaint) or _still_open(complaint))


def _spelled(letter: str) -> str:
    """A letter without its accent, or of another alphabet by its name: `e`, `alpha`."""
    plain = unicodedata.normalize("NFD", letter)[0]
    word = plain.lower() if plain.isascii() else unicodedata.name(letter, "a name").split()[-1].lower()
    return f"`{word.capitalize() if letter.isupper() else word}`"


def _keyword(c: Complaint) -> Hint | None:
    """The keyword that could stand here and that the token is most like."""
    words = [name.lower() for name in c.accepted if name in ("FUNCTION", "DEFAULT", "INIT", "NO_DEFRACT")]
    return nearest(str(c.token), words, c.span) if c.token.type == "LOWER" else None


def _still_open(c: Complaint) -> str | None:
    """Where a bracket is open that the token cannot stand in."""
    if c.token.type != "SEMICOLON" or not c.open or c.open[-1].type == "LBRACE":
        return None
    opener = c.open[-1]
    return f"the `{opener}` on line {opener.line}, column {opener.column} is still open"


def _empty(c: Complaint) -> SyntaxMistake | None:
    if c.before or c.token.type != "$END":
        return None
    return SyntaxMistake(
        "the source is empty", Span(0, 0), hint="write function (A[N]) -> (O) { ... } or a list of statements"
    )


def _commented_out(c: Complaint) -> SyntaxMistake | None:
    """The rest of a line with an open bracket is a comment."""
    opener = next((t for t in c.open if t.type in ("LSQB", "LPAR")), None)
    if opener is None:
        return None
    place = len(c.source) if c.token.type == "$END" else c.span.start
    return comment_in_brackets(c.source, place, opener.start_pos or 0)


def _end(c: Complaint) -> SyntaxMistake | None:
    if c.token.type != "$END":
        return None
    last = c.before[-1]
    if c.open:
        opener = c.open[-1]
        hint = f"the text ends where {in_words(c.accepted)} is expected"
        return SyntaxMistake(f"`{opener}` is never closed", token_span(opener), hint=hint)
    message = f"the text ends after `{last}`, where {in_words(c.accepted)} is expected"
    return SyntaxMistake(message, Span(token_span(last).stop, token_span(last).stop + 1))


def _trailing_comma(c: Complaint) -> SyntaxMistake | None:
    if c.token.type not in CLOSING or c.previous is None or c.previous.type != "COMMA":
        return None
    hint = Hint("leave the comma before it out", Edit(token_span(c.previous), ""))
    return SyntaxMistake(f"unexpected `{c.token}`, expected {in_words(c.accepted)}", c.span, hint=hint)


def _closer(c: Complaint) -> SyntaxMistake | None:
    if c.token.type not in CLOSING:
        return None
    if not c.open:
        return SyntaxMistake(f"`{c.token}` closes nothing", c.span, hint=Hint("leave it out", Edit(c.span, "")))
    opener = c.open[-1]
    if opener.type == CLOSING[c.token.type]:
        return None
    return SyntaxMistake(
        f"`{c.token}` cannot close the `{opener}` on line {opener.line}, column {opener.column}",
        c.span,
        hint=f"the `{opener}` must be closed first",
    )


def _reserved(c: Complaint) -> SyntaxMistake | None:
    if c.token.type not in RESERVED_TOKENS or not {"UPPER", "LOWER"} & set(c.accepted):
        return None
    nested = c.open and re.match(r"function\s+\w*\s*\(|function\(", c.source[c.span.start :])
    hint = "define it before this one, and call it by its name" if nested else "choose another name"
    return SyntaxMistake(f"`{c.token}` is a reserved word", c.span, hint=hint)


def _no_left_side(c: Complaint) -> SyntaxMistake | None:
    """`exp(X)`, `X[i] + 1`: an expression by itself."""
    start = next((k + 1 for k, t in reversed(list(enumerate(c.before))) if t.type in ("SEMICOLON", "LBRACE")), 0)
    begun = c.before[start] if start < len(c.before) else c.token
    known = begun.type == "LOWER" and (str(begun) in FUNCTIONS or str(begun) in AGGREGATIONS)
    first = begun is c.token and "UPPER" in c.accepted and (known or begun.type in STARTS - {"UPPER", "LOWER"})
    later = "EQUAL" in c.accepted and c.token.type in ARITHMETIC_TOKENS | COMPARISON_TOKENS | {"QMARK"}
    place = token_span(begun).start
    written = re.split(r"[;}\n]", c.source[place:], maxsplit=1)[0].rstrip()
    if not (first or later) or _in_head(c) or re.search(r"(?<![=<>!])=(?!=)", written):
        return None
    change = Hint(f"write `Y = {written}`", Edit(Span(place, place), "Y = "))
    indexed = "write what is computed on the left, with its indices, as in `Y[i] = X[i] + 1`"
    span = Span(place, place + len(written))
    return SyntaxMistake("a statement names what it computes", span, hint=indexed if "[" in written else change)


def _lower_case_tensor(c: Complaint) -> SyntaxMistake | None:
    """`x[i]` and `sum[i]`: an aggregation over i, without what it aggregates."""
    if set(c.accepted) != {"LPAR"} or c.previous is None or c.previous.type != "RSQB":
        return None
    opening = max((k for k, t in enumerate(c.before) if t.type == "LSQB"), default=0)
    name = c.before[opening - 1]
    if not opening or name.type != "LOWER":
        return None
    span = Span(token_span(name).start, token_span(c.previous).stop)
    written = c.source[span.start : span.stop]
    return _needs_parentheses(written, span) if name in AGGREGATIONS else _upper_case(name)


def _needs_parentheses(written: str, span: Span, more: str = "") -> SyntaxMistake:
    hint = f"write {written}(...), with all that is aggregated inside{more}"
    return SyntaxMistake(f"the aggregation `{written}` needs parentheses", span, hint=hint)


def _around_aggregation(c: Complaint) -> SyntaxMistake | None:
    """`= +A[i]` and `= +(A[i], B[i])`."""
    if set(c.accepted) == {"LPAR"} and c.previous is not None and not _in_head(c):
        unary = c.token.type in ("UPPER", "INT", "FLOAT") and c.previous.type == "PLUS"
        return _needs_parentheses(c.previous, c.span, "; there is no unary `+`" if unary else "")
    if c.token.type == "COMMA" and "RPAR" in c.accepted and "SEMICOLON" not in c.accepted:
        hint = "combine the operands with an operator; constraints stand after the closing parenthesis"
        return SyntaxMistake("an aggregation takes one expression", c.span, hint=hint)
    return None


def _after_aggregation(c: Complaint) -> SyntaxMistake | None:
    """`O[i : N] = +(A[i]) * B[i]`: where an expression had ended, the operator would have been taken."""
    if (
        c.token.type not in ARITHMETIC_TOKENS | COMPARISON_TOKENS | {"QMARK"}
        or c.previous is None
        or c.previous.type != "RPAR"
    ):
        return None
    if not set(c.accepted) <= {"COMMA", "SEMICOLON", "DEFAULT", "INIT", "NO_DEFRACT", "RBRACE", "$END"}:
        return None
    hint = "move it inside the parentheses, use a named aggregation such as sum(A[i]) * B[i], or a second statement"
    return SyntaxMistake(
        f"nothing can follow an aggregation's parentheses, but here is `{c.token}`",
        c.span,
        hint=Hint(hint, *_named_aggregation(c)),
    )


def _named_aggregation(c: Complaint) -> Iterator[Edit]:
    """The sign before the parentheses that were closed last as a name."""
    opener = open_brackets(c.before[:-1])[-1]
    sign = c.before[next(k for k, t in enumerate(c.before) if t is opener) - 1]
    if str(sign) in BY_SYMBOL and BY_SYMBOL[str(sign)] != "assign":
        yield Edit(token_span(sign), BY_SYMBOL[str(sign)])


def _chained(c: Complaint) -> SyntaxMistake | None:
    if c.token.type not in COMPARISON_TOKENS or not {"AMPERSAND", "VBAR"} & set(c.accepted):
        return None
    hint: str = "write (a < b) & (b < c)"
    if not c.open or c.open[-1].type == "LBRACE":  # among a statement's constraints
        start = max(0, c.span.start - 100)
        found = re.search(CHAIN, c.source[start : c.span.stop + 100])
        if found is not None:
            parts = [part.strip() for part in found.groups()]
            span = Span(start + found.start(1), start + found.start(5) + len(found[5].rstrip()))
            hint = chained_hint(span, *parts)
    return SyntaxMistake("comparisons do not chain", c.span, hint=hint)


def _name_case(c: Complaint) -> SyntaxMistake | None:
    if c.token.type != "LOWER" or "UPPER" not in c.accepted or "LOWER" in c.accepted:
        return None
    if (hint := _keyword(c)) is not None:
        return SyntaxMistake(f"unexpected `{c.token}`", c.span, hint=hint)
    return _upper_case(c.token)


def _upper_case(token: Token) -> SyntaxMistake:
    name, span = str(token[0].upper() + token[1:]), token_span(token)
    return SyntaxMistake(
        f"names of tensors and dimensions begin with an upper-case letter, and `{token}` does not",
        span,
        hint=Hint(f"index variables and functions are lower-case; write `{name}`", Edit(span, name)),
    )


def _missing_semicolon(c: Complaint) -> SyntaxMistake | None:
    if (
        c.token.type not in ("UPPER", "LSQB")
        or "SEMICOLON" not in c.accepted
        or c.open[-1:]
        and c.open[-1].type != "LBRACE"
    ):
        return None
    if c.previous is None:
        return None
    between = c.source[c.previous.end_pos : c.token.start_pos]
    assigns = re.match(r"[A-Z]\w*'?\s*(\[[^\[\];]*(\[[^\[\]]*\][^\[\];]*)*\]\s*)?=(?!=)", c.source[c.span.start :])
    if "\n" not in between and assigns is None:
        return None
    hint = "statements are separated by semicolons"
    if (found := re.match(r"[ \t]*//(?=[ \t]*(?:\d|[A-Z]\w*(?:\[[^\[\]\n]*\])?[ \t]*(?:\n|;)))", between)) is not None:
        begun = (c.previous.end_pos or 0) + found.end()
        told = "`//` begins a comment: a quotient is written with `/`, and rounds toward zero between integers"
        return SyntaxMistake(f"expected `;` before `{c.token}`", Span(begun - 2, begun), hint=told)
    if "\n" not in between:
        hint += f": write `; {assigns[0] if assigns else c.token} ...`"
    end = token_span(c.previous).stop
    return SyntaxMistake(f"expected `;` before `{c.token}`", c.span, hint=Hint(hint, Edit(Span(end, end), ";")))


def _multiplication(c: Complaint) -> SyntaxMistake | None:
    if c.previous is None or "STAR" not in c.accepted or c.token.type not in ("UPPER", "LOWER", "INT", "FLOAT", "LPAR"):
        return None
    words = [w for w in (str(c.previous), str(c.token)) if len(w) > 2 and w.islower() and w not in FUNCTIONS]
    if words:
        hint = _keyword(c) or f"expected {in_words(c.accepted)}"
        return SyntaxMistake(f"there is no word `{words[0]}` here", c.span, hint=hint)
    product = f"{c.previous}*{c.token}"
    if not (str(c.previous)[-1].isalnum() and str(c.token)[0].isalnum()):
        product = f"`...{c.previous} * {c.token}...`"
    hint = f"a product is written {product}; only 2i, an integer and an index variable, may go without"
    change = Edit(Span(token_span(c.previous).stop, c.span.start), "*" if "`" not in product else " * ")
    return SyntaxMistake(
        f"expected an operator between `{c.previous}` and `{c.token}`", c.span, hint=Hint(hint, change)
    )


def _in_head(c: Complaint) -> bool:
    words = [t.type for t in c.before]
    return "FUNCTION" in words and "LBRACE" not in words[len(words) - 1 - words[::-1].index("FUNCTION") :]


def _header(c: Complaint) -> SyntaxMistake | None:
    """Between `function` and its body."""
    words = [t.type for t in c.before]
    if not _in_head(c):
        return None
    if c.token.type == "COLON" and c.previous is not None and c.previous.type == "RPAR":
        hint = "the statements of a function stand in braces: function (X[N]) -> (Y) { Y[i : N] = X[i]; }"
        return SyntaxMistake("unexpected `:`", c.span, hint=hint)
    if c.accepted == {"LPAR"}:
        hint = "write function (X[N]) -> (Y) { ... }; a name comes before the parentheses"
        return SyntaxMistake("a function's inputs stand in parentheses", c.span, hint=hint)
    if c.token.type == "LSQB" and "ARROW" in words:
        found = re.match(r"\[[^\[\](){}]*\]", c.source[c.span.start :])
        change = () if found is None else (Edit(Span(c.span.start, c.span.start + found.end()), ""),)
        hint = Hint("outputs are names: -> (O, P)", *change)
        return SyntaxMistake("an output has no dimensions here", c.span, hint=hint)
    if c.open and c.open[-1].type == "LSQB":
        return SyntaxMistake(
            f"a dimension of an input is a name or an integer, but here is `{c.token}`",
            c.span,
            hint=Hint(f"write `{c.token.upper()}`", Edit(c.span, c.token.upper()))
            if c.token.type == "LOWER"
            else f"expected {in_words(c.accepted)}; sizes are computed in the body",
        )
    if c.accepted == {"ARROW"}:
        told = "outputs are named before the body: function (X[N]) -> (Y) { ... }"
        return SyntaxMistake(f"unexpected `{c.token}`, expected `->`", c.span, hint=told)
    return None


def _empty_statement(c: Complaint) -> SyntaxMistake | None:
    if c.token.type != "SEMICOLON" or c.previous is not None and c.previous.type not in ("SEMICOLON", "LBRACE"):
        return None
    return SyntaxMistake("there is no statement before this `;`", c.span, hint=Hint("leave it out", Edit(c.span, "")))


def _braces(c: Complaint) -> SyntaxMistake | None:
    if c.token.type != "LBRACE" or c.before:
        return None
    hint = "write function (X) -> (Y) { Y = X; }, or the statements without braces"
    return SyntaxMistake("a function's braces come after its head", c.span, hint=hint)


def _colon(c: Complaint) -> SyntaxMistake | None:
    if c.token.type != "COLON":
        return None
    hint = "sizes stand on the left side only, after its indices: O[i, j : N, M]"
    return SyntaxMistake("unexpected `:`", c.span, hint=f"{hint}; a conditional is `c ? a : b`")


COMPLAINT_RULES: tuple[Callable[[Complaint], SyntaxMistake | None], ...] = (
    _empty,
    _empty_statement,
    _braces,
    _lower_case_tensor,
    _end,
    _reserved,
    _trailing_comma,
    _closer,
    single_equals,
    double_equals,
    compound_assignment,
    _after_aggregation,
    _chained,
    joined_operators,
    _no_left_side,
    _header,
    _around_aggregation,
    _name_case,
    _missing_semicolon,
    _multiplication,
    _colon,
)
