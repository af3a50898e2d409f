"""Names that look like something else: inputs of a bare list that may be a misspelt tensor of it, index variables that
other languages read as a part of a number, a constant or a function; and names that nothing reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tilec.errors import Edit, Hint, NameMistake, Span
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.functions import FUNCTIONS
from tilec.ir.program import Access, Name, Program, Statement, expressions, walk
from tilec.language.grammar import tokens
from tilec.language.scope import nearest
from tilec.language.syntax import token_span

TRUTH = "comparisons give truth values, and 1 and 0 serve in their place"
CONSTANTS = {  # names that Python and NumPy give a meaning, and what to write
    "True": TRUTH,
    "False": TRUTH,
    "None": "an input that is not needed is left out of the text",
    "NaN": "write `nan`",
    "NAN": "write `nan`",
    "Inf": "write `inf`",
    "INF": "write `inf`",
    "PI": "write `pi`",
}
_DIGITS = re.compile(r"x[0-9a-fA-F]+|o[0-7]+|b[01]+")  # after a 0, of numbers that are not decimal
_POWER = re.compile(r"\s*\^\s*(?P<x>\([^()]*\)|-?[A-Za-z]\w*(?:\[[^\[\]]*\])?)")
LITERALS = {"True": "1", "False": "0", "NaN": "nan", "NAN": "nan", "Inf": "inf", "INF": "inf", "PI": "pi"}


def misspelt(program: Program, source: str) -> Iterator[NameMistake]:
    """One for each input that is first read after a tensor of nearly its name was assigned, or whose name is a constant
    of Python's. Inputs that a function's head declares are meant."""
    if "function" in source:
        return
    assigned = {s.output: position for position, s in enumerate(program.statements)}
    names = program.input_names()
    for i in program.inputs:
        read = next((p for p, s in enumerate(program.statements) if i.name in _read(s)), len(assigned))
        if i.name in CONSTANTS:
            hint = Hint(CONSTANTS[i.name], *_renamed(i.name, LITERALS.get(i.name), source))
            yield NameMistake(f"`{i.name}` is an input, not a constant of the language", i.span, hint=hint)
            continue
        close = [name for name, position in assigned.items() if position < read and alike(i.name, name)]
        if close:
            told = f"the inputs are {', '.join(names)}; with function (...) -> (...) {{ ... }} they are declared"
            yield NameMistake(
                f"`{i.name}` is an input, for no statement assigns it; was `{close[0]}` meant?",
                i.span,
                hint=Hint(told, *_renamed(i.name, close[0], source)),
            )


def nothing_reads(program: Program) -> Iterator[NameMistake]:
    """One for each input, and each tensor that is no output, which nothing reads; of an input not even a size."""
    used = set(program.outputs).union(*map(_read, program.statements))
    for i in program.inputs:
        if i.name not in used and used.isdisjoint(i.dims or ()):
            yield NameMistake(
                f"nothing reads the input `{i.name}`", i.span, hint="read it, or leave it out of the head"
            )
    for s in program.statements:
        if s.output not in used:
            hint = f"make it an output, `-> ({', '.join((*program.outputs, s.output))})`, or leave the statement out"
            yield NameMistake(f"nothing reads `{s.output}`", s.span, hint=hint)


def no_variable(name: str, span: Span | None, source: str) -> NameMistake | None:
    """What an index variable that nothing binds was most likely meant for; None for a plain name."""
    if span is None:
        return None
    before = re.search(r"(?<![\w.])\d+$", source[: span.start])
    if name in ("true", "false", "none"):
        return NameMistake(f"there is no constant `{name}`", span, hint=TRUTH)
    if before is not None and before[0] == "0" and _DIGITS.fullmatch(name):
        whole, number = Span(before.start(), span.stop), str(int(f"0{name}", 0))
        return NameMistake("numbers are decimal", whole, hint=Hint(f"write `{number}`", Edit(whole, number)))
    if before is not None and name == "j" and source.count("[", 0, span.start) == source.count("]", 0, span.start):
        hint = "complex numbers are not supported: keep real and imaginary parts in two tensors"
        return NameMistake(
            f"`{before[0]}j` is {before[0]} * j, and nothing binds the index variable `j`", span, hint=hint
        )
    power = _POWER.match(source[span.stop :])
    if name == "e" and power is not None:
        text = f"exp{power['x']}" if power["x"].startswith("(") else f"exp({power['x']})"
        edit = Edit(Span(span.start, span.stop + power.end()), text)
        return NameMistake("there is no constant `e`", span, hint=Hint(f"write `{text}`", edit))
    if name in FUNCTIONS:
        return NameMistake(f"`{name}` is a function", span, hint=f"write `{name}(...)`")
    if name in AGGREGATIONS:
        return NameMistake(f"`{name}` is an aggregation", span, hint=f"write `{name}(...)`, with what it aggregates")
    return None


def alike_hint(name: str, known: Iterable[str], span: Span | None) -> Hint | None:
    """A hint that proposes a known name almost like one that stands at `span`."""
    return nearest(name, [n for n in known if alike(name, n)], span)


def _renamed(old: str, new: str | None, source: str) -> Iterator[Edit]:
    """A name replaced wherever it stands."""
    return (Edit(token_span(t), new) for t in tokens(source) if new is not None and t == old)


def alike(a: str, b: str) -> bool:
    """Do two names differ in the case of letters, or by one letter that is missing, wrong or in its neighbour's place?
    Names of less than four letters, and those that differ in a digit or an apostrophe, are names of their own."""
    if a.casefold() == b.casefold():
        return a != b
    if len(a) > len(b):
        a, b = b, a
    if len(a) < 4 or len(b) - len(a) > 1:
        return False
    start = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    if len(b) > len(a):
        return b[start].isalpha() and a[start:] == b[start + 1 :]
    if not (a[start].isalpha() and b[start].isalpha()):
        return False
    swapped = a[start : start + 2] == b[start : start + 2][::-1] and a[start + 2 :] == b[start + 2 :]
    return swapped or (len(a) > 4 and a[start + 1 :] == b[start + 1 :])


def _read(s: Statement) -> set[str]:
    nodes = list(walk(*expressions(s)))
    tensors = {e.tensor for e in nodes if isinstance(e, Access)}
    return tensors | {e.name for e in nodes if isinstance(e, Name)} | ({s.default} if s.default else set())
