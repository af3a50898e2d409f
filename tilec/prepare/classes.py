"""Calls by classes of shapes: which sizes are left open, and what is made so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic

from tilec import knobs
from tilec.errors import TileError
from tilec.ir.at_sizes import with_numbers
from tilec.ir.shape_class import MOST_TRIES, Opening, Outcome, Recorder, ShapeClass, predicate
from tilec.ir.symbolic import Pinned, gcd, is_symbolic
from tilec.ir.types import TensorType, Types
from tilec.prepare.prepared import Prepared


@dataclass(frozen=True)
class Opened:
    """Types of inputs, of which some sizes are left open."""

    recorder: Recorder
    types: dict[str, TensorType]

    @property
    def symbols(self) -> tuple[str, ...]:
        return self.recorder.names


class Classes(Generic[Outcome]):
    """What was made for classes of shapes, by kind of call."""

    def __init__(self) -> None:
        self._classes: dict[object, ShapeClass[Outcome]] = {}

    def known(self, kind: tuple, types: Types) -> ShapeClass[Outcome] | None:
        """The class of inputs of these types, if there is one."""
        return self._classes.get(_key(kind, types))

    def get(
        self, kind: tuple, types: Types, values: tuple[int, ...], divisor: int, make: Callable[[Opened], Outcome]
    ) -> tuple[Outcome, dict[str, int]] | None:
        """What serves inputs of these types, and sizes of these values, which stay as they are: made by `make` where
        it is not there yet. None where sizes cannot be left open, and for the first of a kind."""
        sizes = (*[n for t in types.values() for n in t.shape], *values)
        known = self.known(kind, types)
        if known is None:
            self._classes[_key(kind, types)] = ShapeClass(sizes)
            return None
        found = known.find(sizes)
        if found is not None:
            return found
        count = len(sizes) - len(values)

        def opened(opening: Opening) -> Outcome:
            if late := [name for position, name in opening.symbols.items() if position >= count]:
                raise Pinned(late)
            for n in opening.sizes:
                if is_symbolic(n) and divisor > 1:
                    gcd(n, divisor)
            rest = iter(opening.sizes)
            shapes = {name: tuple(next(rest) for _ in t.shape) for name, t in types.items()}
            return make(Opened(opening.recorder, {n: replace(t, shape=shapes[n]) for n, t in types.items()}))

        try:
            return known.make(sizes, opened)
        except TileError:  # of the call, which says so in its own numbers
            return None
        except Exception:  # something that does not compute with open sizes does so with numbers
            if knobs.VERIFY.value:
                raise
            known.tries = MOST_TRIES
            return None


def _key(kind: tuple, types: Types) -> tuple:
    return *kind, *[(t.dtype, t.weak, len(t.shape)) for t in types.values()]


class OpenProgram(Generic[Outcome]):
    """A program whose inputs' types leave sizes open, derived from another in the same compilation. `lower` makes what
    runs of types and symbols on a device; where what it asked of the sizes does not hold, it is made once more."""

    def __init__(
        self, opened: Opened, program: Outcome, lower: Callable[[Opened, Mapping[str, int], str], Prepared | None]
    ):
        self.opened, self.program = opened, program
        self._lower = lower
        self._made: dict[object, _MadePrograms] = {}

    def find(self, sizes: Mapping[str, int], key: tuple) -> Prepared | None:
        """What was made already and serves these sizes. `key`: the device, and each input's type and whether it is a
        Python number."""
        made = self._made.get(key)
        if made is None:
            return None
        numbers = [sizes[name] for name in self.opened.symbols]
        return next((prepared for prepared, holds in made.found if holds(*numbers)), None)

    def prepared(self, sizes: Mapping[str, int], types: Types, device: str) -> Prepared | None:
        """What runs for these sizes and inputs; None where sizes cannot be left open."""
        key = device, *[(t.dtype, t.weak) for t in types.values()]
        known = self.find(sizes, key)
        if known is not None:
            return known.at(sizes)
        made = self._made.setdefault(key, _MadePrograms())
        numbers = [sizes[name] for name in self.opened.symbols]
        if made.tries >= MOST_TRIES:
            return None
        made.tries += 1
        found = self._make(sizes, types, device)
        if found is None:
            made.tries = MOST_TRIES
            return None
        if not found[1](*numbers):  # an open size happens to equal a fixed one
            return None
        made.found.insert(0, found)
        return found[0].at(sizes)

    def _make(self, sizes: Mapping[str, int], types: Types, device: str) -> tuple[Prepared, Callable[..., bool]] | None:
        recorder = Recorder()
        symbols: dict[str, Any] = {name: recorder.symbol(name, sizes[name]) for name in self.opened.symbols}
        given = {
            n: replace(t, shape=with_numbers(t.shape, symbols), dtype=types[n].dtype, weak=types[n].weak)
            for n, t in self.opened.types.items()
        }
        try:
            prepared = self._lower(Opened(recorder, given), symbols, device)
            if prepared is None or recorder.pinned:
                return None
            fixed = [n for t in given.values() for n in t.shape if not is_symbolic(n)]
            return prepared, predicate(recorder, self.opened.symbols, fixed)
        except (TileError, Pinned):
            return None
        except Exception:
            if knobs.VERIFY.value:
                raise
            return None


@dataclass
class _MadePrograms:
    """What was made with open sizes, the latest first, each with the sizes that it serves; and how often that was
    tried."""

    found: list[tuple[Prepared, Callable[..., bool]]] = field(default_factory=list)
    tries: int = 0
