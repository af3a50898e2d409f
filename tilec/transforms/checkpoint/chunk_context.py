"""What the programs of all chunks have in common, and what one of them is given."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.ir.types import NARROW, TensorType
from tilec.transforms.checkpoint.chunks import CheckpointSchedule, Chunks, TimeRange
from tilec.transforms.checkpoint.timeline import TimedStatement
from tilec.transforms.util.naming import Names
from tilec.transforms.util.tiled import Source


class ChunkContext:
    """What the chunks of a program have in common. `types`: of all tensors, the kept states among them; `local`: names
    of a chunk's own tensors, which are the same in every chunk."""

    def __init__(self, schedule: CheckpointSchedule, chunks: Chunks, outputs: tuple[str, ...]):
        self.schedule, self.chunks, self.outputs = schedule, chunks, outputs
        self.types: dict[str, TensorType] = dict(schedule.line.types)
        self.states = {s.recurrence: s for s in chunks.states}
        for s in chunks.states:
            self.types[s.kept] = chunks.kept_type(s, self.types[s.recurrence])
        self._names = Names((*self.types, *(p.output for p in schedule.line.parts)))
        self._local: dict[object, str] = {}

    def local(self, key: object, base: str) -> str:
        if key not in self._local:
            self._local[key] = self._names.fresh(base)
        return self._local[key]

    def is_whole(self, name: str) -> bool:
        """Is all of a part along time put into one tensor?"""
        return name in self.outputs or name in self.schedule.stored

    def summed_up(self, p: TimedStatement) -> bool:
        """Are parts of this sum to be kept in float32?"""
        rounds = p.statement.aggregation in ("sum", "logsumexp")
        return p.axis is None and rounds and self.types[p.output].dtype in NARROW

    def cut(self, p: TimedStatement, k: int) -> TimeRange:
        """The times at which a part is computed in a chunk that is computed whether or not it is read."""
        a, b = self.chunks.times(k)
        lag = self.schedule.lag[p.output]
        low = p.low if k == 0 else a + lag
        high = p.high if k == self.chunks.count - 1 else b + lag
        if p.axis is None:
            return max(low, p.low), min(high, p.high)
        n = self.schedule.extent(p)
        return (0 if k == 0 else a + lag), (n if k == self.chunks.count - 1 else min(b + lag, n))


@dataclass
class ChunkInputs:
    """A chunk program's inputs."""

    names: list[str] = field(default_factory=list)
    types: list[TensorType] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)

    def add(self, name: str, t: TensorType, source: Source) -> None:
        if name not in self.names:
            self.names.append(name)
            self.types.append(t)
            self.sources.append(source)
