"""Comprehensions, ranges and other notation of sums, found in the text where the parser gave up."""

from __future__ import annotations

import re

from tilec.errors import Hint
from tilec.ir.aggregations import AGGREGATIONS
from tilec.language.hints.functions import replacement
from tilec.language.hints.rewrites import NAME, Idiom, Match, instead, proposed, written_hint

AGGREGATION = "|".join(AGGREGATIONS)
RANGE = r"(?:0\s*\.\.+=?\s*|x?range\s*\(\s*(?:0\s*,\s*)?|\[\s*0\s*,\s*)?"
BINDS = "an aggregation binds by itself the index variables that do not stand on the left"


def _comprehension(m: Match, source: str) -> str:
    return Hint(f"{BINDS}: {proposed(m, '')}", instead(m, ""))


def _listed(m: Match, source: str) -> str:
    text = f"{m['f']}[{m['v'].strip()}]({m['x'] or ''}"
    return Hint(f"what an aggregation binds is listed in brackets: {proposed(m, text)}", instead(m, text))


def _listed_after(m: Match) -> str:
    text = f"{m['f']}[{m['v'].strip()}]{m['x']}"
    return Hint(f"what an aggregation binds is listed after its name: {proposed(m, text)}", instead(m, text))


def _ranged(m: Match, source: str) -> str:
    left = "=" not in m.string[: m.start()].rpartition(";")[2]
    if left:
        return proposed(m, f"{m['v']} : {m['n']}")
    text = f" {m['v']} < {m['n']}"
    return Hint(f"an index variable is bounded by a constraint: {proposed(m, text)}", instead(m, text))


def _latex(m: Match, source: str) -> str:
    word = LATEX.get(m["f"], m["f"])
    return f"write `{word}(...)`" if word.isalpha() else Hint(f"write `{word}`", instead(m, word))


def _without(m: Match, source: str) -> str:
    return Hint("leave it out; float32(X) in the body casts", instead(m, "", "at"))


def _size(m: Match) -> str:
    return f"sqrt(sum({m['x']}[i] * {m['x']}[i]))" if m["at"] == "||" else f"abs({m['x']})"


LATEX = {
    "cdot": "*", "times": "*", "le": "<=", "leq": "<=", "ge": ">=", "geq": ">=", "ne": "!=", "neq": "!=", "pi": "pi",
    "infty": "inf", "ln": "log", "mathrm": "exp",
}  # fmt: skip

ELEMENT_TYPES = r"(?:Tensor|tensor|float|double|half|int|long|bool|[bfiu]\w*(?:8|16|32|64))"
NO_TYPES = "an input has no element type: it is that of the tensor in a call"

NOTATION: tuple[Idiom, ...] = (
    Idiom(rf"[(,]\s*(?P<at>{ELEMENT_TYPES}\s+){NAME}", NO_TYPES, _without),
    Idiom(
        rf"[(,]\s*{NAME}(?:\[[^\[\]:]*(?:\])?)?(?P<at>\s*:\s*{ELEMENT_TYPES}\b)(?:\[[^\[\]]*\])?", NO_TYPES, _without
    ),
    Idiom(
        r"(?<![\w.])(?:\d+[FLU]|(?:\d*\.\d+|\d+\.|\d+(?=e))(?:e[+-]?\d+)?[fFlLdh])\b",
        "a number has no suffix",
        lambda m, source: Hint(f"write `{m[0][:-1]}`", instead(m, m[0][:-1])),
    ),
    Idiom(
        r"=\s*(?P<at>\[)[^\]]*\bfor\b[^\]]*\]?",
        "there are no comprehensions",
        lambda m, source: "one statement says it for all points: Y[i : N] = 2 * X[i]",
    ),
    Idiom(
        r"(?<=[\])\w])\s+(?P<at>for\s+[a-z]\w*(?:\s*,\s*[a-z]\w*)*(?:\s+in\b[^;,()\[\]}]*(?:\([^()]*\)|\[[^\[\]]*\])?)?)",
        "there is no `for`: a statement holds for all valid points",
        _comprehension,
    ),
    Idiom(
        rf"\b(?P<f>{AGGREGATION})(?P<at>\s+over\s+)(?P<v>[a-z]\w*(?:\s*,\s*[a-z]\w*)*)\s+(?:of\s+)?(?P<x>{NAME}(?:\[[^\[\]]*\])?)",
        "there is no `over`",
        lambda m, source: proposed(m, f"{m['f']}[{m['v']}]({m['x']})"),
    ),
    Idiom(
        rf"\b(?P<f>{AGGREGATION})(?P<at>_?\{{)(?P<v>[a-z]\w*(?:\s*,\s*[a-z]\w*)*)\}}\s*\((?P<x>)",
        "braces hold the statements of a function",
        _listed,
    ),
    Idiom(
        rf"\b(?P<f>{AGGREGATION})\((?P<v>[a-z]\w*(?:\s*,\s*[a-z]\w*)*)\)\s*(?P<at>\()(?P<x>)",
        "a call has one pair of parentheses",
        _listed,
    ),
    Idiom(
        rf"\b(?P<f>{AGGREGATION})(?P<x>\((?:[^()]|\([^()]*\))*\))\s*(?P<at>\[(?P<v>[a-z]\w*(?:\s*,\s*[a-z]\w*)*)\])",
        "nothing is read of an aggregation by an index",
        lambda m, source: _listed_after(m),
    ),
    Idiom(
        rf"\b(?P<f>{AGGREGATION})\((?P<at>(?P<v>[a-z]\w*)\s+in\s+{RANGE}(?P<n>[A-Z0-9]\w*)[)\]]?)\s*,\s*(?P<x>(?:[^()]|\([^()]*\))+)\)",
        "there is no operator `in`",
        lambda m, source: f"a constraint bounds an index variable: `{m['f']}[{m['v']}]({m['x']}), {m['v']} < {m['n']}`",
    ),
    Idiom(
        rf"\b(?P<f>{AGGREGATION})\[(?P<v>[^\[\]]*)\]\s*(?P<at>{NAME}(?:\[[^\[\]]*\])?)",
        "the argument of an aggregation stands in parentheses",
        written_hint(lambda m: f"{m['f']}[{m['v']}]({m['at']})"),
    ),
    Idiom(
        rf"(?<=[,\[])\s*(?P<v>\b[a-z]\w*'?)\s+(?P<at>in)\s+{RANGE}(?P<n>[A-Z0-9]\w*)[)\]]?(?=\s*[,;}}\]]|\s*$)",
        "there is no operator `in`",
        _ranged,
    ),
    Idiom(
        r"(?P<v>\b[a-z]\w*'?)\s*:\s*(?P<at>0\s*\.\.+=?\s*)(?P<n>[A-Z0-9]\w*)",
        "there are no ranges: an index variable begins at 0",
        written_hint(lambda m: f"{m['v']} : {m['n']}"),
    ),
    Idiom(
        r"(?<=\[)(?P<v>[a-z]\w*'?)\s*(?P<at>=)\s*(?P<n>[A-Z0-9]\w*)\s*(?=\])",
        "sizes stand after a colon",
        written_hint(lambda m: f"{m['v']} : {m['n']}"),
    ),
    Idiom(
        rf"(?P<x>{NAME})(?P<at>\{{)(?P<i>[^{{}};=]*)\}}",
        "the indices of an element stand in brackets",
        written_hint(lambda m: f"{m['x']}[{m['i']}]"),
    ),
    Idiom(
        rf"(?<=[=(,+\-*/])\s*(?P<at>\|\|?)\s*(?P<x>{NAME}(?:\[[^\[\]]*\])?)\s*\|\|?",
        "`|` is the bitwise or of two values",
        written_hint(lambda m: " " + _size(m)),
    ),
    Idiom(r"(?P<at>\\(?P<f>[A-Za-z]+))", "this is LaTeX, not Tile", _latex),
    Idiom(r"(?P<at>⊤|ᵀ)", "`{at}` is no character of the language", lambda m, source: TRANSPOSED_HINT),
    Idiom(r"(?P<at>⊗)", "`{at}` is no character of the language", lambda m, source: OUTER_HINT),
    Idiom(r"^\s*(?P<at>--|%|;;)(?=\s)", "comments begin with // or #", lambda m, source: f"write `//` for `{m['at']}`"),
    Idiom(
        rf"(?:^|[;{{])\s*(?P<at>\(?\s*{NAME}(?:\[[^\[\]]*\])?(?:\s*,\s*{NAME}(?:\[[^\[\]]*\])?)+(?:\s*\))?)\s*=(?!=)",
        "a statement assigns one name",
        lambda m, source: (
            "write a statement for each: "
            + " ".join(f"{x} = ...;" for x in re.findall(rf"{NAME}(?:\[[^\[\]]*\])?", m["at"]))
        ),
    ),
    Idiom(
        rf"\b(?:clamp|clip)\((?P<x>{NAME}(?:\[[^\[\]]*\])?),\s*(?P<at>(?:a_)?(?:min|max)\s*=\s*)(?P<a>[^,()]*)"
        r"(?:,\s*(?P<b>[^,()]+))?\)",
        "the arguments of a function have no names",
        written_hint(lambda m: str(replacement("clamp", [m["x"], m["at"] + m["a"], *([m["b"]] if m["b"] else [])]))),
    ),
    Idiom(
        rf"\b(?P<f>{AGGREGATION})\([^()]*?(?:\([^()]*\)[^()]*?)*,\s*(?P<at>(?:axis|dim|keepdims?)\s*=)",
        "an aggregation has no axis",
        lambda m, source: BINDS,
    ),
)
TRANSPOSED_HINT = "the indices say what is transposed: X[j, i] in the place of X[i, j]"
OUTER_HINT = "an outer product is Y[i, j] = A[i] * B[j]"
