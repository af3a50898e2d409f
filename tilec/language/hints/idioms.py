"""Idioms of Python, NumPy, torch, C and einsum, found in the text where the parser gave up."""

from __future__ import annotations

import re

from tilec.errors import Edit, Hint, Span, SyntaxMistake
from tilec.ir.aggregations import AGGREGATIONS, BY_SYMBOL
from tilec.ir.functions import FUNCTIONS
from tilec.language.hints.functions import LETTERS, einsum, replacement, subscripted
from tilec.language.hints.notation import AGGREGATION, NOTATION
from tilec.language.hints.operators import OPERATOR_IDIOMS
from tilec.language.hints.rewrites import (
    NAME,
    Idiom,
    Match,
    assigned_name,
    assigned_to,
    instead,
    offset_edits,
    operand_hint,
    rewritten,
    suggestion,
    whole_statement,
    written_hint,
)

WINDOW = 300  # characters before and after an error that are looked at


def explain_idiom(source: str, place: int) -> SyntaxMistake | None:
    """The diagnostic for an error at `place`, where the text around it is an idiom of another language."""
    start = source.rfind("\n", max(0, place - WINDOW), place) + 1 or max(0, place - WINDOW)
    stop = source.find("\n", place, place + WINDOW)
    line = source[start : place + WINDOW if stop < 0 else stop]
    if start and source[start - 1] != "\n":
        line = "\0" + line[1:]  # no beginning of a line
    for idiom in IDIOMS:
        for m in idiom.pattern.finditer(line):
            if start + m.start() <= place <= start + m.end():
                group = "at" if "at" in idiom.pattern.groupindex else 0
                span = Span(start + m.start(group), start + max(m.end(group), m.start(group) + 1))
                hint = offset_edits(idiom.hint(m, source), start)
                return SyntaxMistake(idiom.message.format(**m.groupdict()), span, hint=hint)
    return None


def comment_in_brackets(source: str, place: int, opener: int) -> SyntaxMistake | None:
    """`A[i//2]`: the `//` began a comment while the bracket at `opener` was open, and the text broke off after it."""
    stop = source.find("\n", opener, opener + WINDOW)
    line = source[opener : opener + WINDOW if stop < 0 else stop]
    found = re.search(r"(?P<a>\w+)\s*(?P<at>//)\s*(?P<b>\w+)?", line)
    if found is None or "#" in line[: found.start()] or opener + found.start() > place:
        return None
    span = Span(opener + found.start("at"), opener + found.end("at"))
    a, b = found["a"], found["b"] or "2"
    text = f"({a} - {a} % {b})/{b}"
    change = (Edit(Span(opener + found.start(), opener + found.end()), text),) if found["b"] else ()
    hint = Hint(f"`/` in an index is exact; the quotient rounded down is {text}", *change)
    return SyntaxMistake("`//` begins a comment, and this one is inside brackets", span, hint=hint)


def _arguments(text: str) -> list[str]:
    """The arguments between a call's parentheses."""
    found, depth, last = [], 0, 0
    for place, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if c == "," and not depth:
            found.append(text[last:place].strip())
            last = place + 1
    return [a for a in (*found, text[last:].strip()) if a]


def _call(m: Match, source: str, function: str, args: list[str]) -> str | None:
    """A hint for a call of another library's function."""
    text = replacement(function, args, source, assigned_to(m))
    return _proposal(m, text) if text else None


def _proposal(m: Match, text: str) -> Hint:
    """A hint that proposes an expression, or a statement; of one whose left side stands there, what is on its right."""
    text = text.removeprefix(f"{assigned_to(m)} = ")
    return whole_statement(m, f"write `{text}`", text) if "= " in text.replace("==", "") else operand_hint(m, text)


def _module(m: Match, source: str) -> str:
    hint = _call(m, source, m["f"], _arguments(m["args"])) if m["args"] is not None else None
    if hint is None and m["f"] in ("pi", "inf", "nan", *FUNCTIONS):
        hint = Hint(f"write `{m['f']}`", Edit(Span(m.start(), m.end("f")), m["f"]))
    return hint or "functions are named alone: exp(X), not torch.exp(X); there are no libraries inside Tile"


def _attribute(m: Match, source: str) -> str:
    x, element, name = m["x"], m["x"] + (m["indices"] or ""), m["f"]
    args = _arguments(m["args"] or "")
    if name in ("T", "mT", "t"):
        return f"the indices say what is transposed: {x}[j, i] in the place of {x}[i, j]"
    if name in ("shape", "size"):
        axis = re.sub(r"\D", "", (m["args"] or "") + (m["item"] or "")) or "0"
        text = f"shape({x}, {axis})"
        further = f", or name the dimensions in the function's head: {x}[N, M]" if not m["args"] else ""
        return Hint(f"write {text}{further}", instead(m, text))
    hint = _call(m, source, name, [element, *args])
    if hint is not None and not (":" in element and element in hint):
        return hint
    told = _without_slices(element) if subscripted(element) is not None else x
    return f"functions take the tensor as an argument: {name}({told})"


def _einsum(m: Match, source: str) -> str:
    text = einsum(m["spec"], _arguments(m["args"]), assigned_name(m))
    if not text:
        return "write the indices at the tensors: C[i, j] = sum(A[i, k] * B[k, j])"
    return whole_statement(m, f"write `{text}`", text)


def _einsum_alone(m: Match, source: str) -> str:
    spec = m[0].strip()
    tensors = list("ABCDEFGH"[: spec.count(",") + 1])
    text = einsum(spec, tensors, "O")
    if not text:
        return "write a statement: O[i, j] = sum(A[i, k] * B[k, j])"
    return Hint(f"write `{text}`", Edit(Span(m.start() + m[0].index(spec), m.end()), f"{text};"))


def _ellipsis(m: Match, source: str) -> str:
    return "write an index for each dimension; a statement over whole tensors takes any rank: Y = exp(X)"


def _slice(m: Match, source: str) -> str:
    x, inner = m["x"], m["inner"]
    bounds = [b.strip() for b in inner.split(":")]
    if "," not in inner and len(bounds) == 2 and all(re.fullmatch(r"[A-Z0-9]\w*|", b) for b in bounds):
        low, high = bounds
        if high:
            size = high if low in ("", "0") else f"{high} - {low}"
            text = f"{assigned_name(m)}[i : {size}] = {x}[i{'' if low in ('', '0') else f' + {low}'}]"
            return whole_statement(m, f"write `{text}`", text)
    return f"write an index for each dimension, as in {_without_slices(f'{x}[{inner}]')}; sizes stand on the left side"


def _without_slices(element: str) -> str:
    """`X[b, :]` as `X[b, j]`."""
    name, bracket, inner = element.rstrip("]").partition("[")
    entries = [e.strip() for e in inner.split(",")]
    letters = [v for v in LETTERS if v not in entries]
    shown = ", ".join(letters[k] if ":" in e or "." in e else e for k, e in enumerate(entries[: len(letters)]))
    return f"{name}[{shown}]" if bracket else name


def _declaration(m: Match, source: str) -> str:
    rest = m["rest"].strip()
    text = f"{rest[0].upper()}{rest[1:]}"
    return Hint(f"write `{text}`", Edit(Span(m.start("at"), m.end("rest")), text))


def _named(m: Match) -> str:
    """The match with the aggregation's name in the place of its sign."""
    return m[0][: m.start("at") - m.start()] + BY_SYMBOL[m["at"]] + "("


def _reduction(m: Match, source: str) -> str:
    text = replacement(m["f"], [m["x"], m["at"]], source, assigned_to(m))
    told = "the indices say what is aggregated"
    if text is None:
        return told
    hint = _proposal(m, text)
    return Hint(f"{told}: {hint}", *hint.edits)


def _nested_aggregation(m: Match, source: str) -> str:
    told = f"inside an expression an aggregation has a name: write `{rewritten(m, _named(m))}`"
    return Hint(told, instead(m, BY_SYMBOL[m["at"]], "at"))


def _juxtaposed(m: Match) -> str:
    return f"{m['f'].split('_')[0]}({m['x']})"


CALLABLE_PATTERN = "|".join(name for name, row in FUNCTIONS.items() if not row.precedence and name not in AGGREGATIONS)
NO_LOOPS = "index variables range over all valid points, so one statement says it for all: O[i : N] = A[i] + B[i]"
NO_STATEMENTS = "a text is a list of assignments, or function (A[N], B[N]) -> (O) {{ O = A + B; }}"
IDIOMS: tuple[Idiom, ...] = (
    # statements of other languages
    Idiom(
        r"^\s*(?P<at>for|while|foreach|do)\b.*", "there are no loops in Tile, but here is `{at}`", suggestion(NO_LOOPS)
    ),
    Idiom(
        r"(?:^|[;{])\s*(?P<at>let|var|const|auto|float|int|tensor|Tensor)\s+(?P<rest>[A-Za-z][^;}]*)",
        "an assignment has no keyword, but here is `{at}`",
        _declaration,
    ),
    Idiom(
        r"(?:^|=)\s*(?P<at>def|fn|func|fun|lambda|void|kernel)\b.*",
        "a function begins with `function`, not with `{at}`",
        suggestion("write `function f(A[N]) -> (O) {{ O = exp(A); }}`"),
    ),
    Idiom(
        rf"(?:^|[;{{])\s*(?P<at>return)\b\s*(?P<x>{NAME})?",
        "there is no `return`: a function's head names its outputs",
        lambda m, source: f"write -> ({m['x'] or 'O'}) after the inputs, and assign {m['x'] or 'O'} in the body",
    ),
    Idiom(
        rf"(?:^|[;{{])\s*(?P<at>print|printf|echo|assert)\b\s*\(?\s*(?P<x>{NAME})?",
        "there is no `{at}`: a statement assigns a tensor",
        suggestion("make the tensor an output, and print it where the function is called"),
    ),
    Idiom(
        r"^\s*(?P<at>import|from|class|using|include|type|module|with|try|struct)\b.*",
        "this is no statement of Tile",
        suggestion(NO_STATEMENTS),
    ),
    # einsum and einops
    Idiom(
        rf"(?:[a-z]+\.)?(?:einsum|rearrange|reduce|repeat|contract)\(\s*[\"'](?P<spec>[^\"']*)[\"']\s*,\s*(?P<args>{NAME}(?:\s*,\s*{NAME})*)(?:\s*\))?",
        "there are no strings in the language: indices stand at the tensors",
        _einsum,
    ),
    Idiom(r"^\s*[a-z]+(?:\s*,\s*[a-z]+)*\s*->\s*[a-z]*\s*;?\s*$", "this is an einsum string, not Tile", _einsum_alone),
    Idiom(
        r"^\s*[a-z(][a-z0-9 ()]*->[a-z0-9 ()]*$",
        "this is an einops pattern, not Tile",
        suggestion("write a statement with an index for each dimension: O[i, j, k : N, M, K] = A[i, K*j + k]"),
    ),
    Idiom(
        r"(?P<at>[\"'][^\"']*[\"']?)",
        "there are no strings in the language",
        suggestion("indices and sizes stand at the tensors: X[i, j]"),
    ),
    # attributes, methods, modules
    Idiom(
        r"\b(?:torch|np|numpy|math|jnp|jax|tf|tl|nn|F|cupy|scipy|libdevice|cmath)(?P<at>(?:\.\w+)*\.)(?P<f>\w+)"
        r"(?:\((?P<args>[^()]*(?:\([^()]*\)[^()]*)*)\))?",
        "there are no modules in Tile",
        _module,
    ),
    Idiom(
        rf"(?P<x>{NAME})(?P<indices>\[[^\[\]]*\])?(?P<at>\.(?P<f>[A-Za-z_]\w*))"
        r"(?:\((?P<args>[^()]*(?:\([^()]*\)[^()]*)*)\))?(?P<item>\[[^\]]*\])?",
        "a tensor has no attributes or methods, but here is `{at}`",
        _attribute,
    ),
    Idiom(r"(?P<at>\.\.\.).*?", "there is no `...`: every dimension has its index", _ellipsis),
    Idiom(
        rf"\b(?P<f>[a-z]\w*)\(\s*(?P<x>{NAME}(?:\[[^\[\]]*:[^\[\]]*\])?)\s*,\s*(?P<at>(?:axis|dim)\s*=\s*[^()]*(?:\([^()]*\))?)\)",
        "an aggregation has no axis",
        _reduction,
    ),
    *NOTATION,
    Idiom(
        r"\)\s*,\s*(?P<at>(?P<v>[a-z]\w*)\s*=(?!=)\s*(?P<c>\w+))\s*(?=[,;}]|$)",
        "a constraint has the form `e < c`",
        lambda m, source: Hint(f"write `{m['v']} - {m['c']} < 1`", instead(m, f"{m['v']} - {m['c']} < 1", "at")),
    ),
    Idiom(
        rf"(?:^|[;{{])\s*(?P<x>{NAME})(?P<at>\()(?P<a>[^()]*)\)\s*=(?!=)",
        "the indices of a tensor stand in brackets",
        lambda m, source: f"write `{m['x']}[{m['a']}] = ...`",
    ),
    Idiom(
        r"[(,]\s*(?P<at>[a-z_]\w*\s*=)(?!=)",
        "the arguments of a function have no names",
        lambda m, source: Hint(f"give them by position, without `{m['at']}`", instead(m, "", "at")),
    ),
    # indexing
    Idiom(
        rf"(?P<x>{NAME})\[(?P<a>[^\[\]:]*)\]\s*(?P<at>\[)(?P<b>[^\[\]:]*)\]",
        "all indices of an element stand in one pair of brackets",
        written_hint(lambda m: f"{m['x']}[{m['a'].strip()}, {m['b'].strip()}]"),
    ),
    Idiom(
        rf"(?P<x>{NAME})\[(?P<inner>[^\[\]=]*(?P<at>:)[^\[\]=]*)\](?!\s*=[^=])",
        "there are no slices: every dimension has its index",
        _slice,
    ),
    Idiom(
        rf"\b(?P<f>{CALLABLE_PATTERN})(?P<at>\[)(?P<x>[^\[\]]*(?:\[[^\[\]]*\])?[^\[\]]*)\]",
        "the arguments of `{f}` stand in parentheses",
        written_hint(lambda m: f"{m['f']}({m['x']})"),
    ),
    *OPERATOR_IDIOMS,
    # aggregations
    Idiom(
        r"(?:[-*/%(,?:&|^]|[^=\s]\s*\+)\s*(?P<at>[+*<>])\(",
        "the sign of an aggregation stands right after `=`, before all else",
        _nested_aggregation,
    ),
    Idiom(
        rf"\b(?P<f>(?:{AGGREGATION})(?:_\w*)?|{CALLABLE_PATTERN})\s*(?P<at>(?:_?\{{\w+\}}\s*)?(?P<x>{NAME}(?:\[[^\[\]]*\])?))",
        "the argument of a function stands in parentheses",
        written_hint(_juxtaposed),
    ),
    # the head of a function, comments, other brackets
    Idiom(
        rf"->\s*(?P<at>{NAME}(?:\s*,\s*{NAME})*)",
        "the outputs of a function stand in parentheses",
        lambda m, source: Hint(f"write `-> ({m['at']})`", instead(m, f"({m['at']})", "at")),
    ),
    Idiom(
        r"(?P<at>/\*).*",
        "comments begin with // or #",
        suggestion("a comment goes to the end of its line; there is no /* ... */"),
    ),
    Idiom(r"=\s*(?P<at>\[)[^\]]*\]?", "there are no lists of values", suggestion("pass a tensor as an input")),
    Idiom(
        r"(?P<a>\d+)(?P<at>_)(?P<b>\d+)",
        "a number has no `_` between its digits",
        written_hint(lambda m: m["a"] + m["b"]),
    ),
)
