"""Operators of other languages, as signs and as words, found in the text where the parser gave up."""

from __future__ import annotations

import re

from tilec.errors import Hint
from tilec.ir.aggregations import AGGREGATIONS, BY_SYMBOL
from tilec.ir.types import CASTS
from tilec.language.hints.functions import assigned_element, subscripted
from tilec.language.hints.rewrites import (
    NAME,
    Idiom,
    Match,
    assigned_name,
    assigned_to,
    instead,
    operand_hint,
    suggestion,
    whole_statement,
    written_hint,
)

ATOM = rf"(?:{NAME}|[a-z]\w*|\d[\w.]*)(?:\[[^\[\]]*\]|\([^()]*\))?"
COMPARES = re.compile(r"==|!=|<|>")
PRODUCT = "a matrix product is a sum over the shared index: C[i, j] = sum(A[i, k] * B[k, j])"
UNICODE_SIGNS = {
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "×": "*",
    "·": "*",
    "÷": "/",
    "−": "-",
    "→": "->",
    "⋅": "*",
    "∙": "*",
    "∘": "*",
    "⊙": "*",
    "∞": "inf",
    "π": "pi",
}
UNICODE_WORDS = {
    "²": "write X * X, or pow(X, 2)", "³": "write pow(X, 3)", "∑": "write sum(...)", "Σ": "write sum(...)",
    "∏": "write prod(...)", "Π": "write prod(...)", "√": "write sqrt(...)",
}  # fmt: skip


def _conditional(c: str, a: str, b: str | None) -> str:
    return f"{c.strip()} ? {a.strip()}" + ("" if b is None else f" : {b.strip()}")


def _conditioned(m: Match) -> str:
    """The value under a condition, which goes into an aggregation that is all of it: there its variables are."""
    whole = re.fullmatch(
        r"\s*(?P<aggregation>[a-z]+(?:\[[^\]]*\])?|[+*<>=])\((?P<body>[^()]*(?:\([^()]*\)[^()]*)*)\)", m["a"]
    )
    if whole is None or whole["aggregation"].partition("[")[0] not in (*AGGREGATIONS, *BY_SYMBOL):
        return f" {_conditional(m['c'], m['a'], None)}"
    return f" {whole['aggregation']}({_conditional(m['c'], whole['body'], None)})"


def _negated(m: Match) -> str:
    x = m["x"].strip()
    if not COMPARES.search(x):
        return f"{x} == 0"
    return f"~{x}" if x.startswith("(") else f"~({x})"


def _matrix_product(m: Match, source: str) -> str:
    if m["a"].endswith("]") and m["b"].endswith("]"):
        text = f"{assigned_to(m)} = sum({m['a']} * {m['b']})"
        return whole_statement(m, f"{PRODUCT.partition(':')[0]}: {text}", text)
    _, indices = subscripted(assigned_element(assigned_to(m))) or ("", [])
    i, j = indices if len(indices) == 2 else "ij"
    k = next(v for v in "klm" if v not in (i, j))
    text = f"{assigned_name(m)}[{i}, {j}] = sum({m['a']}[{i}, {k}] * {m['b']}[{k}, {j}])"
    told = f"{PRODUCT.partition(':')[0]}: {text}"
    return whole_statement(m, told, text) if re.fullmatch(NAME, m["a"]) and re.fullmatch(NAME, m["b"]) else told


def _among(m: Match, source: str) -> str:
    text = f"any({m['a']} == {m['b']}[k])"
    return Hint(f"whether a value is among a tensor's elements is {text}", instead(m, text))


def _unicode(m: Match, source: str) -> str:
    sign = UNICODE_SIGNS.get(m["at"])
    return UNICODE_WORDS[m["at"]] if sign is None else Hint(f"write `{sign}`", instead(m, sign))


OPERATOR_IDIOMS: tuple[Idiom, ...] = (
    Idiom(rf"(?P<a>{ATOM})\s*(?P<at>@)\s*(?P<b>{ATOM})", "there is no operator `@`", _matrix_product),
    Idiom(
        r"(?P<at>\bif\b)\s*(?P<c>.+?)\s*\bthen\b\s*(?P<a>.+?)\s*\belse\b\s*(?P<b>[^;}]+)",
        "there is no `if`: a conditional is `c ? a : b`",
        lambda m, source: operand_hint(m, _conditional(m["c"], m["a"], m["b"])),
    ),
    Idiom(
        r"(?<==)(?P<a>[^;=]+?)\s*(?P<at>\bif\b)\s*(?P<c>[^;]+?)\s*\belse\b\s*(?P<b>[^;}]+)",
        "there is no `if`: a conditional is `c ? a : b`",
        written_hint(lambda m: " " + _conditional(m["c"], m["a"], m["b"])),
    ),
    Idiom(
        r",\s*(?P<at>\b(?:if|where|when|with|for)\b)\s*",
        "a constraint stands after its comma without a word",
        written_hint(lambda m: ", "),
    ),
    Idiom(
        r"(?<==)(?P<a>[^;=]*[^;=\s])\s*(?P<at>\b(?:if|where|when)\b)\s*(?P<c>[^;}]+)",
        "there is no `{at}`: a condition stands before `?`",
        written_hint(_conditioned),
    ),
    Idiom(
        r"(?P<at>\b(?:if|else|elif|then|endif|where|when|such that)\b)\s*",
        "there is no `{at}`: a conditional is `c ? a : b`",
        suggestion(
            "write `condition ? value : other`; a constraint on the points stands after the statement: `, i < N`"
        ),
    ),
    Idiom(
        rf"(?P<x>{ATOM})\s+(?P<at>as)\s+(?P<type>{'|'.join(CASTS)})\b",
        "there is no `as`: a cast is a function",
        written_hint(lambda m: f"{m['type']}({m['x']})"),
    ),
    Idiom(r"(?P<at>\band\b)\s*", "there is no `and`: the operator is `&`", written_hint(lambda m: "& ")),
    Idiom(r"(?P<at>\bor\b)\s*", "there is no `or`: the operator is `|`", written_hint(lambda m: "| ")),
    Idiom(r"(?P<at>\bxor\b)\s*", "there is no `xor`: the operator is `^`", written_hint(lambda m: "^ ")),
    Idiom(r"(?P<at>\bmod\b)\s*", "there is no operator `mod`: it is `%`", written_hint(lambda m: "% ")),
    Idiom(r"(?P<at>\bis\s+not\b)\s*", "there is no `is not`: the operator is `!=`", written_hint(lambda m: "!= ")),
    Idiom(r"(?P<at>\bis\b)\s*", "there is no `is`: the operator is `==`", written_hint(lambda m: "== ")),
    Idiom(
        rf"(?P<at>\bnot\b)\s*(?P<x>\([^()]*\)|{ATOM}(?:\s*(?:[=!]=|[<>]=?)\s*{ATOM})?)",
        "there is no `not`",
        written_hint(_negated),
    ),
    Idiom(rf"(?P<a>{ATOM})\s+(?P<at>\bin\b)\s+(?P<b>{NAME})", "there is no operator `in`", _among),
    Idiom(r"(?P<at>!)(?P<x>\([^()]*\)|[A-Z]\w*(?:\[[^\[\]]*\])?)", "there is no `!`", written_hint(_negated)),
    Idiom(r"(?P<at><>)", "there is no operator `<>`", written_hint(lambda m: "!=")),
    Idiom(r"(?P<at>===)", "there is no operator `===`", written_hint(lambda m: "==")),
    Idiom(r"(?P<at>!==)", "there is no operator `!==`", written_hint(lambda m: "!=")),
    Idiom(
        rf"(?:^|[;{{])\s*{NAME}(?:\[[^\[\]]*\])?\s*(?P<at>=>)\s*(?!\()",
        "there is no operator `=>`",
        lambda m, source: Hint("an assignment is written with `=`", instead(m, "=", "at")),
    ),
    Idiom(r"(?P<at>=>)", "there is no operator `=>`", written_hint(lambda m: ">=")),
    Idiom(r"(?P<at>=<)", "there is no operator `=<`", written_hint(lambda m: "<=")),
    Idiom(r"(?P<at><-)", "there is no operator `<-`", written_hint(lambda m: "=")),
    Idiom(r"(?P<at>:=)", "there is no operator `:=`", written_hint(lambda m: "=")),
    Idiom(
        rf"(?P<a>{ATOM})\s*(?P<at>\*\*)\s*(?P<b>{ATOM})",
        "there is no operator `**`",
        written_hint(lambda m: f"pow({m['a']}, {m['b']})"),
    ),
    Idiom(r"(?P<at>&&)", "there is no operator `&&`", written_hint(lambda m: "&")),
    Idiom(r"(?P<at>\|\|)", "there is no operator `||`", written_hint(lambda m: "|")),
    Idiom(
        rf"(?P<at>[{''.join([*UNICODE_SIGNS, *UNICODE_WORDS])}])", "`{at}` is no character of the language", _unicode
    ),
)
