"""A program as calls of smaller ones, piece by piece along an axis: slabs of rows, chunks of time.

A call says where each input comes from and what becomes of each output. Calls of one program whose places move on
evenly are one, with a count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from tilec.ir.program import Program
from tilec.ir.types import TensorType

# what a call reads; `at` is its place in the first call, `step` how far it moves on from call to call


@dataclass(frozen=True)
class Whole:
    tensor: str


@dataclass(frozen=True)
class Slice:
    """The `length` elements of an axis from `at` on; None: that one, without the axis. `copied`: in memory of their
    own, since some begin at an address that others do not have the alignment of."""

    tensor: str
    axis: int
    length: int | None
    at: int
    step: int = 0
    copied: bool = False


@dataclass(frozen=True)
class Carried:
    """What the call before has left."""

    tensor: str


@dataclass(frozen=True)
class Start:
    """The first row or time, as a number."""

    at: int
    step: int = 0


Source = Whole | Slice | Carried | Start


# what becomes of its results; `part`: of which axis, from and up to which element, where that is not all of them


@dataclass(frozen=True)
class Assign:
    tensor: str


@dataclass(frozen=True)
class Combine:
    """The part of an aggregation over the axis that this call gives. `in_place`: the tensor is there from the start,
    and holds the identity."""

    tensor: str
    aggregation: str
    in_place: bool = False


@dataclass(frozen=True)
class Into:
    """The elements of a tensor's axis that a `Slice` reads."""

    tensor: str
    axis: int
    length: int | None
    at: int = 0
    step: int = 0
    part: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class CarriedSlice:
    """What goes on to the next call."""

    tensor: str
    part: tuple[int, int, int]


Sink = Assign | Combine | Into | CarriedSlice
Moving = Slice | Start | Into
P = TypeVar("P")
_Place = TypeVar("_Place", bound=Source | Sink)


@dataclass(frozen=True)
class TiledCall(Generic[P]):
    """A program called `count` times in turn: where its inputs come from, and what becomes of its outputs, as pairs of
    an output's number and a sink."""

    program: P
    sources: tuple[Source, ...]
    sinks: tuple[tuple[int, Sink], ...]
    count: int = 1

    @property
    def places(self) -> tuple[Source | Sink, ...]:
        return (*self.sources, *(sink for _, sink in self.sinks))


def folded(calls: Iterable[TiledCall[P]]) -> tuple[TiledCall[P], ...]:
    """The calls, those of one program whose places move on evenly as one."""
    found: list[TiledCall[P]] = []
    for call in calls:
        joined = _joined(found[-1], call) if found else None
        found[-1 if joined else len(found) :] = [joined or call]
    return tuple(found)


def _joined(run: TiledCall[P], call: TiledCall[P]) -> TiledCall[P] | None:
    if [k for k, _ in run.sinks] != [k for k, _ in call.sinks] or len(run.sources) != len(call.sources):
        return None
    if run.program != call.program:
        return None
    sources = [_advanced(a, b, run.count) for a, b in zip(run.sources, call.sources, strict=True)]
    sinks = [(k, _advanced(a, b, run.count)) for (k, a), (_, b) in zip(run.sinks, call.sinks, strict=True)]
    if None in sources or None in [x for _, x in sinks]:
        return None
    return TiledCall(run.program, tuple(sources), tuple(sinks), run.count + 1)  # type: ignore[arg-type]


def _advanced(a: _Place, b: _Place, count: int) -> _Place | None:
    """The place that is `a` first and `b` after so many calls."""
    if not isinstance(a, Moving) or not isinstance(b, Moving):
        return a if a == b else None
    moved = replace(a, step=b.at - a.at if count == 1 else a.step)
    return moved if replace(b, at=b.at - count * moved.step, step=moved.step) == moved else None


# chunks of time

TypedProgram = tuple[Program, tuple[TensorType, ...]]  # a program and its inputs' types


@dataclass(frozen=True)
class Sweep:
    """Calls for chunks in turn. `made`: tensors that are there before the first, to be filled; `rounded`: sums that are
    rounded to these types after the last."""

    calls: tuple[TiledCall[TypedProgram], ...]
    made: tuple[tuple[str, TensorType], ...] = ()
    rounded: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Calls:
    """A program in chunks, sweep after sweep; a call of its own is a sweep as well."""

    steps: tuple[Sweep, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
