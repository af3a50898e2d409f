"""What an editor asks of a text: mistakes, what a name is, where it comes from, the layout. Places are offsets."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilec.api import compile as compile_source
from tilec.errors import Edit, Span, TileError, TileWarning, edited
from tilec.ir.aggregations import AGGREGATIONS
from tilec.ir.functions import FUNCTIONS
from tilec.ir.program import Index, Program, Statement, accesses_in, expressions, index_variables
from tilec.language import parse, show_statement
from tilec.language.grammar import tokens
from tilec.language.hints.misspelt import nothing_reads

TITLE = 60  # characters of a text that a title shows


@dataclass(frozen=True)
class Mistake:
    """`severity` is "error" or "warning"; `span` may be empty where a text as a whole is meant. `edits` do what the
    hint in the message says, where they can."""

    span: Span
    message: str
    severity: str
    edits: tuple[Edit, ...] = ()


def mistakes(source: str) -> list[Mistake]:
    """The error that the text holds, or what in it is legal and rarely meant."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", TileWarning)
        try:
            compile_source(source)
        except TileError as error:
            return [_mistake(error, "error")]
    if not any(issubclass(w.category, TileWarning) for w in told):
        return [_mistake(error, "warning") for error in nothing_reads(parse(source))]
    try:  # once more, since an error has a place
        compile_source(source, warnings="error")
    except TileError as error:
        return [_mistake(error, "warning")]
    return [Mistake(Span(0, 0), str(w.message), "warning") for w in told if issubclass(w.category, TileWarning)]


def _mistake(error: TileError, severity: str) -> Mistake:
    text = error.message + (f"\n{error.hint}" if error.hint else "")
    return Mistake(error.span or Span(0, 0), text, severity, error.edits)


def title(source: str, edits: Sequence[Edit]) -> str:
    """What edits do, in a few words."""
    first, last = edits[0].span.start, edits[-1].span.stop
    old = source[first:last]
    new = edited(source, edits)[first : len(source) + sum(len(e.text) - e.span.stop + e.span.start for e in edits)]
    new = new[: len(new) - (len(source) - last)]
    old, new = map(_short, (old, new))
    return f"Insert `{new}`" if not old else f"Replace `{old}` with `{new}`" if new else f"Remove `{old}`"


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= TITLE else f"{words[: TITLE - 3]}..."


def word_at(source: str, offset: int) -> tuple[str, Span] | None:
    """The name that stands at an offset, or ends there."""
    try:
        found = tokens(source)
    except TileError:
        return None
    for token in found:
        start = token.start_pos or 0
        if start <= offset <= start + len(token) and (token[:1].isalpha()):
            return str(token), Span(start, start + len(token))
    return None


def hover(source: str, offset: int) -> str | None:
    """What the name at an offset is, as Markdown."""
    found = word_at(source, offset)
    program = _program(source)
    if found is None or program is None:
        return None
    return "\n\n".join(_about(found[0], offset, program)) or None


def _about(name: str, offset: int, program: Program) -> Iterator[str]:
    for given in program.inputs:
        if given.name == name:
            dims = "any rank" if given.dims is None else f"`[{', '.join(map(str, given.dims))}]`"
            yield f"**{name}**: input, {dims}"
    for s in program.statements:
        if s.output == name:
            yield f"**{name}**: assigned by\n```tile\n{show_statement(s)}\n```"
    holders = [f"dimension {g.dims.index(name)} of `{g.name}`" for g in program.inputs if g.dims and name in g.dims]
    if holders:
        yield f"**{name}**: {', '.join(holders)}"
    statement = _statement_at(offset, program)
    if name[:1].islower() and statement is not None and name in _variables(statement):
        yield f"**{name}**: {_role(name, statement)}"
    elif name in AGGREGATIONS:
        yield f"**{name}**: aggregation"
    elif name in FUNCTIONS:
        yield f"**{name}**: function"


def _statement_at(offset: int, program: Program) -> Statement | None:
    inside = (s for s in program.statements if s.span is not None and s.span.start <= offset <= s.span.stop)
    return min(inside, key=lambda s: s.span.stop - s.span.start if s.span else 0, default=None)


def _variables(s: Statement) -> tuple[str, ...]:
    return index_variables(*(s.index or ()), *expressions(s))


def _role(name: str, s: Statement) -> str:
    """Whether it is of the output or aggregated over, and where it stands."""
    left = s.index or ()
    if any(isinstance(i, Index) and i.name == name for i in left):
        role = "index of the output"
    elif name in index_variables(*left):
        role = "index of the output, in an expression"
    else:
        role = f"bound by `{s.aggregation}`"
    read = ((a.tensor, d, e) for a in accesses_in(*expressions(s)) for d, e in enumerate(a.index))
    places = (f"dimension {d} of `{tensor}`" for tensor, d, e in read if name in index_variables(e))
    return ", ".join([role, *dict.fromkeys(places)])


def definition(source: str, offset: int) -> Span | None:
    """Where a tensor or dimension is declared or assigned: the first place in the text at which its name stands so."""
    found = word_at(source, offset)
    program = _program(source)
    if found is None or program is None:
        return None
    name = found[0]
    for s in program.statements:
        if s.output == name and s.span is not None:
            return Span(s.span.start, s.span.start + len(name))
    return next((_span(t) for t in tokens(source) if t == name), None) if name[:1].isupper() else None


def _span(token: object) -> Span:
    start = getattr(token, "start_pos", 0) or 0
    return Span(start, start + len(str(token)))


def _program(source: str) -> Program | None:
    try:
        return parse(source)
    except TileError:
        return None
