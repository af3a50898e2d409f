"""Every way a program, a call or a machine can be wrong: one class per mistake, each pointing at its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True, slots=True)
class Span:
    """Half-open range of character offsets in a source text."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a source: `text` in the place of what `span` holds."""

    span: Span
    text: str


class Hint(str):
    """What to do about a mistake, in words; where that is to write something else, `edits` do it, in the order of the
    text and apart from each other."""

    edits: tuple[Edit, ...]

    def __new__(cls, text: str, *edits: Edit) -> Hint:
        hint = super().__new__(cls, text)
        hint.edits = edits
        return hint


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name most like a mistaken one; None where none is as like as that."""
    names = list(known)
    return next(
        iter(get_close_matches(name, names, 1, cutoff) or (n for n in names if n.lower() == name.lower())), None
    )


def listed(name: object, known: Iterable[str], what: str = "inputs") -> str:
    """A hint for a name that is none of the known ones: the one most like it, and all."""
    names = list(known)
    close = closest(name, names) if isinstance(name, str) else None
    told = f"{what}: {', '.join(names)}" if names else f"the function has no {what}"
    return f"did you mean `{close}`? {told}" if close else told


def edited(source: str, edits: Sequence[Edit]) -> str:
    """The source with the changes made that an error's `edits` hold."""
    for e in reversed(edits):
        source = source[: e.span.start] + e.text + source[e.span.stop :]
    return source


class TileError(Exception):
    """Base of all errors that tilec raises on purpose.

    `message` says what is wrong, `hint` what to do about it, `span` where it stands in `source` (named `filename`),
    `others` further places that have a part in it. `str()` gives all of it, each line with carets under its spans.
    Where the hint is to write something else, `edits` change the source so (`tilec.errors.edited`).
    """

    def __init__(
        self,
        message: str,
        span: Span | None = None,
        *,
        hint: str | None = None,
        source: str | None = None,
        filename: str = "<tile>",
        others: tuple[Span, ...] = (),
    ):
        super().__init__(message)
        self.message = message
        self.span = span
        self.others = others
        self.hint = hint
        self.source = source
        self.filename = filename

    def located(self, source: str, filename: str = "<tile>") -> TileError:
        """The same error, told which text its span points into; passes raise without knowing it."""
        if self.source is None:
            self.source, self.filename = source, filename
        return self

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Changes of `source` that do what the hint says; empty where it says no more than the words."""
        return self.hint.edits if isinstance(self.hint, Hint) else ()

    def __repr__(self) -> str:
        """One line, for those who quote an error inside of theirs, as torch.compile does."""
        place = "" if self.position is None else f"{self.filename}:{self.position[0]}:{self.position[1]}: "
        told = f"; hint: {self.hint}" if self.hint else ""
        return f"{type(self).__name__}({place + self.message + told!r})"

    @property
    def position(self) -> tuple[int, int] | None:
        """One-based line and column of the span's start, where both the span and the source are known."""
        return None if self.span is None or self.source is None else _position(self.source, self.span)

    def __str__(self) -> str:
        lines = [self.message]
        if self.position is not None:
            assert self.span is not None and self.source is not None
            line, column = self.position
            lines = [f"{self.filename}:{line}:{column}: {self.message}"]
            places: dict[int, str] = {}  # number of a line -> the carets under it
            texts = self.source.split("\n")
            for span in (self.span, *self.others):
                line, column = _position(self.source, span)
                width = max(1, min(span.stop - span.start, len(texts[line - 1]) - column + 1))
                under = places.get(line, "").ljust(column - 1)
                places[line] = under[: column - 1] + "^" * width + under[column - 1 + width :]
            for line, carets in places.items():
                gutter = f"{line:>5} | "
                lines.append(gutter + texts[line - 1].replace("\t", " "))
                lines.append(" " * (len(gutter) - 2) + "| " + carets)
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


def _position(source: str, span: Span) -> tuple[int, int]:
    before = source[: span.start]
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


class TileWarning(UserWarning):
    """Legal, and most likely not what was meant. The text points as an error's does."""


class SyntaxMistake(TileError):
    """The text is not Tile."""


class NameMistake(TileError):
    """An unknown or misused name: tensor, dimension, function, index variable, entry point."""


class ArityMistake(TileError):
    """A function called with the wrong number of arguments."""


class AffineMistake(TileError):
    """An index or constraint that is not affine in the index variables."""


class UnboundIndex(TileError):
    """Index variables that nothing bounds, or that stand in constraints alone."""


class AssignmentMistake(TileError):
    """A name assigned twice, read before it is assigned, or an input assigned."""


class WriteConflict(TileError):
    """An assign aggregation with two valid points for one output element."""


class NoSchedule(TileError):
    """A recurrence in which no order of the elements has every one computed before it is read."""


class AggregationMistake(TileError):
    """A missing, misplaced or unknown aggregation, or a constraint that mixes two."""


class RankMistake(TileError):
    """A tensor used with another number of dimensions than it has."""


class SizeMistake(TileError):
    """Sizes that disagree, come out negative or fractional, or cannot be known."""


class DividesByZero(SizeMistake):
    """A division by zero among sizes; as a value it may still be legal, so a size statement postpones it."""


class TypeMistake(TileError):
    """An element type that an operation, or tilec, does not support."""


class InputMistake(TileError):
    """Wrong number or kind of arguments in a call."""


class Unsupported(TileError):
    """Legal Tile, or a legal request, that this version does not carry out."""


class OutOfMemory(TileError, RuntimeError):
    """A tensor that the machine has no memory for: which one, and how much it takes. `__cause__` is torch's own error;
    like that it is a RuntimeError that says "out of memory"."""


class InternalMistake(TileError):
    """A pass produced a program that breaks the rules of the IR: a defect of tilec, never of the caller."""
