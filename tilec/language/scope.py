"""Names: what each upper-case name of a function stands for, and the mistakes one can make with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tilec.errors import AssignmentMistake, Edit, Hint, NameMistake, RankMistake, Span, closest
from tilec.ir.program import Access, Name, Statement
from tilec.language.syntax import plural


def nearest(name: str, known: Iterable[str], span: Span | None, cutoff: float = 0.6) -> Hint | None:
    """A hint that proposes the known name most like a mistaken one, which stands at `span`."""
    close = closest(name, known, cutoff)
    if close is None:
        return None
    return Hint(f"did you mean `{close}`?", *(() if span is None else (Edit(span, close),)))


@dataclass(slots=True)
class Symbol:
    """`rank` None while unknown, `size` whether it may stand in size arithmetic, `elements` those of a tuple,
    `dims` those of a declared input."""

    name: str
    kind: str  # input, dimension, statement or tuple
    span: Span | None
    rank: int | None = None
    size: bool = False
    rank_span: Span | None = None
    elements: tuple[str, ...] = ()
    dims: tuple[str | int, ...] | None = None


@dataclass(slots=True)
class FunctionScope:
    """The names of one function while its statements are worked through, and the statements made of them so far."""

    source: str
    current: str | None = None
    symbols: dict[str, Symbol] = field(default_factory=dict)
    later: dict[str, Span] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    left: frozenset[str] = frozenset()  # index variables on the left of the statement at hand
    sizes: tuple[str, ...] = ()  # after the colon there, as they are written

    def line(self, span: Span | None) -> str:
        return "" if span is None else f" on line {self.source.count(chr(10), 0, span.start) + 1}"

    def fresh(self, base: str) -> str:
        """A name like `base` that the function does not have."""
        name = base
        while name in self.symbols or name in self.later:
            self.counters[base] = number = self.counters.get(base, 0) + 1
            name = f"{base}_{number}"
        return name

    def declare(self, symbol: Symbol) -> None:
        self.symbols[symbol.name] = symbol

    def find(
        self, name: str, span: Span | None, hint: str = "a tensor is an input or assigned by a statement above"
    ) -> Symbol:
        """The symbol of a name that is read; `hint` is for one unlike all that are known.

        Raises NameMistake or AssignmentMistake.
        """
        symbol = self.symbols.get(name)
        if symbol is not None:
            return symbol
        if name == self.current:
            raise AssignmentMistake(
                f"`{name}` is read in its own statement",
                span,
                hint=f"a recurrence reads elements and has indices on the left: {name}[t : T] = ... {name}[t - 1] ...",
            )
        if name in self.later:
            raise AssignmentMistake(
                f"`{name}` is read before it is assigned",
                span,
                hint=f"it is assigned{self.line(self.later[name])}; statements run in order",
            )
        close = nearest(name, [*self.symbols, *self.later], span)
        raise NameMistake(f"nothing here is named `{name}`", span, hint=close or hint)

    def tensor(self, e: Access) -> Symbol:
        """The symbol of an access, its rank checked; the first access settles a rank that is not declared."""
        span = None if e.span is None else Span(e.span.start, e.span.start + len(e.tensor))
        symbol = self.find(e.tensor, span)
        if symbol.kind == "dimension":
            hint = "a dimension stands alone, without brackets"
            raise NameMistake(f"`{e.tensor}` is a dimension{self.line(symbol.span)}, not a tensor", span, hint=hint)
        if symbol.kind == "tuple":
            raise NameMistake(
                f"`{e.tensor}` is a tuple", span, hint=f"take one of its elements: element({e.tensor}, 0)"
            )
        if symbol.rank is None:
            symbol.rank, symbol.rank_span = len(e.index), e.span
        elif symbol.rank != len(e.index):
            raise RankMistake(
                f"`{e.tensor}` has rank {symbol.rank} but is given {plural(len(e.index), 'index', 'indices')}",
                e.span,
                hint=self.rank_reason(symbol),
            )
        return symbol

    def rank_reason(self, symbol: Symbol) -> str:
        if symbol.rank_span is not None:
            return f"`{symbol.name}` was first used with rank {symbol.rank}{self.line(symbol.rank_span)}"
        verb = "declared" if symbol.kind == "input" else "assigned"
        return f"`{symbol.name}` is {verb} with rank {symbol.rank}{self.line(symbol.span)}"

    def whole(self, e: Name) -> Symbol:
        """The symbol of a name that stands alone as a value."""
        symbol = self.find(e.name, e.span)
        if symbol.kind == "tuple":
            raise NameMistake(f"`{e.name}` is a tuple", e.span, hint=f"take one of its elements: element({e.name}, 0)")
        return symbol
