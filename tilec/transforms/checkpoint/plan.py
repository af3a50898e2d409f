"""What a program in chunks of time is made of: calls of smaller programs, where each of their inputs comes from, and
what becomes of their outputs."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.program import Program
from tilec.ir.types import TensorType

# what a call reads


@dataclass(frozen=True)
class Whole:
    tensor: str


@dataclass(frozen=True)
class TimeSlice:
    """The times `low .. high - 1` of a tensor."""

    tensor: str
    axis: int
    low: int
    high: int


@dataclass(frozen=True)
class Kept:
    """The states from which a recurrence starts in this chunk, the k-th of those that are kept."""

    tensor: str
    k: int


@dataclass(frozen=True)
class Carried:
    """What the chunk before has left of a late part."""

    tensor: str


@dataclass(frozen=True)
class Start:
    """The chunk's first time, as a number."""

    time: int


Source = Whole | TimeSlice | Kept | Carried | Start


# what becomes of its results


@dataclass(frozen=True)
class Assign:
    tensor: str


@dataclass(frozen=True)
class Combine:
    """The part of a sum over time (`aggregation` says of which kind) that this chunk gives."""

    tensor: str
    aggregation: str


@dataclass(frozen=True)
class Into:
    """Elements `low .. high - 1` of the result along the axis are those from time `at` on of a tensor."""

    tensor: str
    axis: int
    low: int
    high: int
    at: int


@dataclass(frozen=True)
class Keep:
    """Elements `low .. high - 1` along the axis are the k-th states to be kept."""

    tensor: str
    k: int
    axis: int
    low: int
    high: int


@dataclass(frozen=True)
class CarriedSlice:
    """Elements `low .. high - 1` along the axis go on to the next chunk."""

    tensor: str
    axis: int
    low: int
    high: int


Sink = Assign | Combine | Into | Keep | CarriedSlice


@dataclass(frozen=True)
class ChunkCall:
    """A program, where its inputs come from, and what becomes of its outputs: pairs of an output's place and a sink.
    `types` are its inputs'."""

    program: Program
    types: tuple[TensorType, ...]
    sources: tuple[Source, ...]
    sinks: tuple[tuple[int, Sink], ...]


@dataclass(frozen=True)
class Sweep:
    """Calls for chunks in turn. `made`: tensors that are there before the first, to be filled; `rounded`: sums that are
    rounded to these types after the last."""

    calls: tuple[ChunkCall, ...]
    made: tuple[tuple[str, TensorType], ...]
    rounded: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Calls:
    """A program in chunks: single calls and sweeps, in order."""

    steps: tuple[ChunkCall | Sweep, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
