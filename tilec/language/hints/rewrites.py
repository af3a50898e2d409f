"""Hints that propose another text for what an idiom's pattern matched, with the edit that writes it.

Spans count from the string that was searched.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from tilec.errors import Edit, Hint, Span
from tilec.language.hints.functions import operand_text

Match = re.Match[str]
NAME = r"[A-Z]\w*'?"
LONGEST_HINT = 120  # characters of a statement that a hint writes out


@dataclass(frozen=True)
class Idiom:
    """`pattern` is looked for in the line of the error; the place of the error lies in what it matches, whose group
    `at` (or whole) gets the caret. `hint` gets the match and the source; the edits of a Hint count from the match's
    string."""

    text: str
    message: str
    hint: Callable[[Match, str], str]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Compiled at the first mistake: all patterns would take a tenth of each import."""
        return re.compile(self.text)


def rewritten(m: Match, text: str) -> str:
    """The statement that a match stands in, with `text` in the match's place."""
    line, (start, stop) = m.string, statement_of(m)
    whole = " ".join(f"{line[start : m.start()]}{text}{line[m.end() : stop]}".split())
    return whole if len(whole) <= LONGEST_HINT else text.strip()


def statement_of(m: Match) -> tuple[int, int]:
    """Where the statement that a match stands in begins and ends, within the line."""
    line = m.string
    start = max(line.rfind(mark, 0, m.start()) for mark in ";{") + 1
    return start, min([p for mark in ";}" if (p := line.find(mark, m.end())) >= 0], default=len(line))


def instead(m: Match, text: str, group: str | int = 0) -> Edit:
    return Edit(Span(m.start(group), m.end(group)), text)


def proposed(m: Match, text: str) -> Hint:
    """A hint: the whole statement, with `text` in the match's place."""
    return Hint(f"write `{rewritten(m, text)}`", instead(m, text))


def written_hint(text: Callable[[Match], str]) -> Callable[[Match, str], str]:
    return lambda m, source: proposed(m, text(m))


def suggestion(text: str) -> Callable[[Match, str], str]:
    return lambda m, source: text.format(**m.groupdict())


def assigned_to(m: Match) -> str:
    """The left side of the statement that a match stands in."""
    found = re.findall(rf"({NAME}(?:\[[^\]]*\])?)\s*=(?!=)", m.string[: m.start()])
    return found[-1] if found else "Y"


def assigned_name(m: Match) -> str:
    return assigned_to(m).partition("[")[0]


def stands_alone(m: Match) -> bool:
    """Is a match all that its statement has on the right side?"""
    line, (start, stop) = m.string, statement_of(m)
    left = re.fullmatch(rf"\s*{NAME}\s*(?:\[[^\[\]]*\]\s*)?=\s*", line[start : m.start()])
    return left is not None and not line[m.end() : stop].strip()


def operand_hint(m: Match, text: str) -> Hint:
    """As `proposed`, for an expression that operators may stand beside."""
    return proposed(m, text if stands_alone(m) else operand_text(text))


def whole_statement(m: Match, told: str, text: str) -> Hint:
    """A hint that proposes a statement; an edit where the match is all that the one it stands in has on its right."""
    line, (start, _), alone = m.string, statement_of(m), stands_alone(m)
    while alone and line[start].isspace():
        start += 1
    return Hint(told, *((Edit(Span(start, m.end()), text),) if alone else ()))


def offset_edits(hint: str, by: int) -> str:
    """The hint, its edits further on in a longer text."""
    if not isinstance(hint, Hint):
        return hint
    return Hint(hint, *(Edit(Span(e.span.start + by, e.span.stop + by), e.text) for e in hint.edits))
