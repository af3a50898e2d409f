"""The plan of a divided program: which rank computes what, where results lie, what is communicated and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilec.distributed.placements import IndexBox, Mesh, Placements
from tilec.distributed.regions import Limit
from tilec.ir.index import Affine
from tilec.ir.program import Statement
from tilec.ir.types import TensorType


@dataclass(frozen=True)
class TensorCopy:
    """Elements of `tensor` that each rank has at hand under `name`: its box of `boxes`, from program `ready` on."""

    name: str
    tensor: str
    boxes: tuple[IndexBox, ...]
    ready: int


@dataclass(frozen=True)
class Communication:
    """What the ranks along a dimension of the mesh (`along`) do together before a statement. What they hold of a tensor
    under the name `source` (`have`) becomes what they `need`, as `result`; or its parts are put together
    (`reduction`); or they carry out a recurrence, each after the one that it has `states` of (see Parted). `received`:
    the bytes that each rank of the mesh receives, an all-reduce's as a ring; `bytes`: the most of these. `time`: the
    program before which it runs."""

    before: str
    tensor: str
    collective: str
    reason: str
    received: tuple[int, ...]
    source: str
    result: str
    time: int
    along: int = 0
    have: tuple[IndexBox, ...] = ()
    need: tuple[IndexBox, ...] = ()
    reduction: str | None = None
    states: int = 0

    @property
    def bytes(self) -> int:
        return max(self.received)


@dataclass(frozen=True)
class Parted:
    """How the ranks along a dimension of the mesh (`along`) divide the points of a statement: each computes those at
    which `form`, of values below `size`, lies in its one of `parts`, which are those of all ranks of the mesh. The
    form is that of the output's index `dim`, or (None) of the index `owner[1]` of an access to the tensor `owner[0]`.
    `states`: how many elements along `dim` a recurrence reads of the rank before, or (less than 0) of the rank after;
    `composes`: do its steps?"""

    form: Affine
    size: int
    along: int
    parts: tuple[tuple[int, int], ...] = ()
    dim: int | None = None
    owner: tuple[str, int] | None = None
    states: int = 0
    composes: bool = False

    def limit(self, rank: int) -> Limit:
        start, stop = self.parts[rank]
        return Limit(self.form, start, stop - 1)


@dataclass(frozen=True)
class ShardedStep:
    """How one statement is carried out, in program `time`: divided by `splits`, one at most for each dimension of the
    mesh; ranks along the others do the same. `reads`: of each tensor whose elements it reads, the name of the copy."""

    statement: Statement
    splits: tuple[Parted, ...]
    time: int
    reads: Mapping[str, str]

    @property
    def passing(self) -> Parted | None:
        """The split along which a recurrence steps."""
        return passing(self.splits)


@dataclass(frozen=True)
class Sharding:
    """Where the outputs lie, and what is communicated for that."""

    outputs: dict[str, Placements]
    communications: tuple[Communication, ...]
    steps: tuple[ShardedStep, ...]
    copies: Mapping[str, TensorCopy] = field(repr=False)
    results: Mapping[str, str] = field(repr=False)  # output -> the name under which the ranks have it
    types: Mapping[str, TensorType] = field(repr=False)
    mesh: Mesh = (1,)

    @property
    def ranks(self) -> int:
        return math.prod(self.mesh)

    @property
    def bytes(self) -> int:
        """Received by the rank that receives most."""
        return max((sum(c.received[r] for c in self.communications) for r in range(self.ranks)), default=0)

    def __str__(self) -> str:
        lines = [f"{name}: {p}" for name, p in self.outputs.items()]
        lines += [f"{c.collective} of {c.tensor}, {c.bytes} bytes a rank: {c.reason}" for c in self.communications]
        return "\n".join(lines)


def passing(splits: Sequence[Parted]) -> Parted | None:
    """The one along which a recurrence steps."""
    return next((s for s in splits if s.states), None)
