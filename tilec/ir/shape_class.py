"""Calls whose sizes differ in nothing that was asked of them share what was made for the first of them.

The first call of a kind (types, ranks, device) is compiled for its sizes. From the second on, sizes that have changed
are left open (`symbolic`): what is made then serves every call that meets its guards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tilec.ir.at_sizes import value_at
from tilec.ir.symbolic import Monomial, Pinned, Polynomial, Real, Size, is_open_number, sum_of_terms

SMALLEST_OPEN = 8  # sizes below that are never left open: programs tell small numbers apart
MOST_TRIES = 64  # compilations with open sizes for one kind of call; each costs as much as one without

SizeTuple = tuple[int, ...]
Outcome = TypeVar("Outcome")


class Recorder:
    """What was asked of the sizes that are left open: `guards`, Python texts that were true, in the order asked."""

    def __init__(self) -> None:
        self.guards: dict[str, None] = {}
        self.hashed: dict[Polynomial, int] = {}
        self.pinned: set[str] = set()
        self.symbols_of: dict[str, frozenset[str]] = {}
        self._names: list[str] = []
        self._values: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The open sizes."""
        return tuple(self._names)

    def symbol(self, name: str, value: int) -> Size:
        self._names.append(name)
        return self.name(name, value, frozenset((name,)))

    def value(self, name: str) -> int:
        """What an open size is in the call that is compiled for."""
        return self._values[name]

    def polynomial(self, terms: Mapping[Monomial, int]) -> Any:
        """The size of these terms, a number where none is open."""
        return sum_of_terms(self, terms, sum(c * math.prod(self._values[a] for a in m) for m, c in terms.items()))

    def name(self, text: str, value: int, symbols: frozenset[str]) -> Size:
        """What stands in polynomials under one name."""
        self.symbols_of[text], self._values[text] = symbols, value
        return Size(self, (((text,), 1),), value)

    def called(self, function: Callable, args: Sequence[Any]) -> Any:
        """What a function, which texts name, gives for numbers of which some depend on open sizes."""
        texts = [a.text if is_open_number(a) else repr(a) for a in args]
        text = f"_{function.__name__.lstrip('_')}({', '.join(texts)})"  # which no tensor is called
        value = function(*[a.value if is_open_number(a) else a for a in args])
        if type(value) is bool:
            self.ask(text if value else f"not {text}")
            return value
        if isinstance(value, float):
            return Real(self, text, value)
        return self.name(text, value, frozenset(self._names))

    def ask(self, text: str) -> None:
        self.guards.setdefault(text)

    def pin(self, size: Size) -> Pinned:
        symbols = size.symbols()
        self.pinned |= symbols
        return Pinned(symbols)


@dataclass(frozen=True)
class Opening:
    """Sizes of a call of which some are left open: `symbols` are their names by position, `sizes` what stands there."""

    recorder: Recorder
    symbols: Mapping[int, str]
    sizes: tuple[int, ...]

    def places(self) -> dict[str, int]:
        """Where each open size stands first, by name."""
        found: dict[str, int] = {}
        for position, name in self.symbols.items():
            found.setdefault(name, position)
        return found

    def fixed(self) -> list[tuple[int, int]]:
        return [(k, n) for k, n in enumerate(self.sizes) if k not in self.symbols]


@dataclass(frozen=True)
class Made(Generic[Outcome]):
    """What was made with open sizes, and which calls it serves."""

    result: Outcome
    fits: Callable[[SizeTuple], bool]
    places: Mapping[str, int]

    def at(self, sizes: SizeTuple) -> tuple[Outcome, dict[str, int]]:
        """With the open sizes of a call."""
        return self.result, {name: sizes[position] for name, position in self.places.items()}


@dataclass
class ShapeClass(Generic[Outcome]):
    """Calls of one kind. `first`: sizes of the first; `changed`: positions of sizes that have been another; `pinned`:
    of those that cannot be left open."""

    first: SizeTuple
    changed: set[int] = field(default_factory=set)
    pinned: set[int] = field(default_factory=set)
    made: list[Made[Outcome]] = field(default_factory=list)
    tries: int = 0

    def find(self, sizes: SizeTuple) -> tuple[Outcome, dict[str, int]] | None:
        """What was made already and serves these sizes, and the open ones of these."""
        return next((m.at(sizes) for m in self.made if m.fits(sizes)), None)

    def make(self, sizes: SizeTuple, make: Callable[[Opening], Outcome]) -> tuple[Outcome, dict[str, int]] | None:
        """What `make` makes with the sizes open that have changed; None where that cannot be done."""
        self.changed |= {k for k, (n, first) in enumerate(zip(sizes, self.first, strict=True)) if n != first}
        while self.tries < MOST_TRIES:
            opening = self._opening(sizes)
            if opening is None:
                return None
            self.tries += 1
            try:
                result = make(opening)
                if opening.recorder.pinned:
                    raise Pinned(opening.recorder.pinned)
            except Pinned as pinned:
                self.pinned |= {k for k, name in opening.symbols.items() if name in pinned.symbols}
                continue
            fits = guard(opening)
            if not fits(sizes):  # an open size, or what was made of one, happens to equal another
                return None
            self.made.insert(0, Made(result, fits, opening.places()))
            return self.made[0].at(sizes)
        return None

    def _opening(self, sizes: SizeTuple) -> Opening | None:
        recorder = Recorder()
        names: dict[int, Size] = {}
        symbols: dict[int, str] = {}
        found = list(sizes)
        for k in sorted(self.changed - self.pinned):
            if sizes[k] >= SMALLEST_OPEN:
                if sizes[k] not in names:
                    names[sizes[k]] = recorder.symbol(f"size{len(names)}", sizes[k])
                found[k] = names[sizes[k]]  # type: ignore[call-overload]
                symbols[k] = names[sizes[k]].text
        return Opening(recorder, symbols, tuple(found)) if symbols else None


def guard(opening: Opening) -> Callable[[SizeTuple], bool]:
    """Whether sizes are as those of an opening in all that was asked."""
    places, fixed = opening.places(), opening.fixed()
    equal = [(k, places[name]) for k, name in opening.symbols.items() if places[name] != k]
    test = predicate(opening.recorder, tuple(places), [n for _, n in fixed])
    positions = tuple(places.values())

    def fits(given: SizeTuple) -> bool:
        for k, n in fixed:
            if given[k] != n:
                return False
        for k, other in equal:
            if given[k] != given[other]:
                return False
        return test(*[given[k] for k in positions])

    return fits


def predicate(recorder: Recorder, names: Sequence[str], fixed: Iterable[int]) -> Callable[..., bool]:
    """Of the open sizes in this order: do all guards hold, and then, since what was hashed may have no value elsewhere,
    are they and it apart from the sizes that are `fixed`?"""
    texts = [*(f"{name} >= {SMALLEST_OPEN}" for name in names), *recorder.guards]
    if numbers := sorted(set(fixed)):
        texts.append(
            f"{{{', '.join(map(str, numbers))}}}.isdisjoint(({', '.join(apart_from_fixed(recorder, names))},))"
        )
    return value_at(f"lambda {', '.join(names)}: {' and '.join(texts)}", {})


def apart_from_fixed(recorder: Recorder, names: Iterable[str]) -> list[str]:
    """Texts of the sizes that are apart from those that are fixed: the open ones, and what was hashed."""
    hashed = [Size(recorder, terms, value).text for terms, value in recorder.hashed.items()]
    return list(dict.fromkeys((*names, *hashed)))
