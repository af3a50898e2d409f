"""A plan as what a launcher does without a compiler: fills, copies and launches over addresses that are known up to
where inputs, outputs and the workspace begin."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from tilec.backends.triton.plan.plan import (
    Allocate,
    Launch,
    Plan,
    Release,
    Repeat,
    Step,
    SubPlan,
    Table,
    TiledLoop,
    TorchLines,
)
from tilec.backends.triton.plan.sizes import contiguous
from tilec.cost import size_in_bytes
from tilec.errors import Unsupported
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import TensorType

ALIGNMENT = 512  # bytes, as torch's allocator has it


@dataclass(frozen=True)
class MemoryPlace:
    """Where a tensor begins: `offset` bytes from the start of an input, an output or a table of that number, or of the
    workspace."""

    space: str
    number: int
    offset: int = 0


@dataclass(frozen=True)
class Fill:
    """All elements hold a number."""

    to: MemoryPlace
    type: TensorType
    value: float | int | bool


@dataclass(frozen=True)
class Copy:
    """The bytes of one tensor in another."""

    to: MemoryPlace
    source: MemoryPlace
    bytes: int


@dataclass(frozen=True)
class KernelRun:
    """A kernel, launched `repeat` times; the argument `counter` counts. `places` and `dtypes` of its tensors."""

    launch: Launch
    places: Mapping[str, MemoryPlace]
    dtypes: Mapping[str, str]
    repeat: int = 1
    counter: str | None = None


@dataclass(frozen=True)
class Resolved:
    """A plan over addresses. `workspace`: bytes; `tables`: integers that are uploaded once."""

    steps: tuple[Fill | Copy | KernelRun, ...]
    workspace: int
    tables: tuple[tuple[tuple[int, ...], ...], ...]


@dataclass
class _Tensor:
    """A tensor of the plan. It lives from step `start` to step `end`."""

    type: TensorType
    place: MemoryPlace | None
    start: int = 0
    end: int = -1


def resolve_plan(
    plan: Plan, inputs: Mapping[str, TensorType], outputs: Sequence[str], zero: Collection[str] = (), tables: int = 0
) -> Resolved:
    """The plan over addresses. `inputs` in order, contiguous; `zero`: those that are zeros, which nobody gives;
    `outputs` are the plan's, as the caller numbers them; `tables`: how many there are already. Raises Unsupported for
    what only torch does."""
    found = _Resolver(inputs, outputs, tables)
    for name in zero:
        found.step(Allocate(name, inputs[name].shape, inputs[name].dtype, 0))
    for step in plan.steps:
        found.step(step)
    return found.done()


class _Resolver:
    def __init__(self, inputs: Mapping[str, TensorType], outputs: Sequence[str], tables: int):
        self.tensors = {n: _Tensor(t, MemoryPlace("input", k)) for k, (n, t) in enumerate(inputs.items())}
        self.outputs = {n: k for k, n in enumerate(outputs)}
        self.first_table = tables
        self.tables: list[tuple[tuple[int, ...], ...]] = []
        self.made: list[_Tensor] = []
        self.steps: list[tuple[Step, dict[str, _Tensor]]] = []

    def step(self, step: Step) -> None:
        match step:
            case Allocate(name, shape, dtype, fill):
                source = self.tensors[fill] if isinstance(fill, str) else None
                self.tensors[name] = self._allocated(name, TensorType(shape, dtype))
                if fill is not None:
                    self._add(step, {name: self.tensors[name], **({} if source is None else {"fill": source})})
            case Table(name, rows):
                place = MemoryPlace("table", self.first_table + len(self.tables))
                self.tables.append(rows)
                self.tensors[name] = _Tensor(TensorType((len(rows), len(rows[0]) if rows else 0), "int32"), place)
            case Launch() | Repeat():
                self._add(step, {n: self.tensors[n] for n in step.tensors})
            case Release():
                pass
            case SubPlan():
                self._part(step)
            case TorchLines(statements=statements):
                raise Unsupported(
                    f"a package holds generated kernels alone, and {', '.join(statements)} needs torch: "
                    + "; ".join(line.strip() for line in step.lines),
                    hint="call the function itself, or make that statement's output an input of what is built",
                )
            case TiledLoop():
                raise Unsupported("a package goes through no program slab by slab")
            case _:
                raise AssertionError(f"no step: {step!r}")

    def _allocated(self, name: str, t: TensorType) -> _Tensor:
        if name in self.outputs:
            return _Tensor(t, MemoryPlace("output", self.outputs[name]))
        made = _Tensor(t, None, len(self.steps), len(self.steps))
        self.made.append(made)
        return made

    def _part(self, part: SubPlan) -> None:
        """A program of its own: it knows its inputs, and the plan around it what it makes."""
        outer = self.tensors
        self.tensors = {n: outer[n] for n in part.inputs}
        for step in part.plan.steps:
            self.step(step)
        self.tensors = {**outer, **{n: self.tensors[n] for n in part.plan.outputs}}

    def _add(self, step: Step, tensors: dict[str, _Tensor]) -> None:
        for t in tensors.values():
            t.end = len(self.steps)
        self.steps.append((step, tensors))

    def done(self) -> Resolved:
        requests = [(max(size_in_bytes(t.type), 1), t.start, t.end) for t in self.made]
        offsets, size = pack_workspace(requests)
        for t, offset in zip(self.made, offsets, strict=True):
            t.place = MemoryPlace("workspace", 0, offset)
        return Resolved(tuple(s for step, t in self.steps for s in _resolved(step, t)), size, tuple(self.tables))


def pack_workspace(requests: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Offsets for (bytes, first step, last step), each at the lowest place that is free for so long, and their end."""
    taken: list[tuple[int, int, int, int]] = []
    offsets = []
    if any(is_symbolic(size) for size, _, _ in requests):  # one after the other, so that nothing is asked of sizes
        ends = [0, *accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size, _, _ in requests)]
        return ends[:-1], ends[-1]
    for size, start, end in requests:
        size = -(-size // ALIGNMENT) * ALIGNMENT
        offset = 0
        for low, other, first, last in sorted(taken):
            if first <= end and start <= last and low < offset + size and offset < low + other:
                offset = low + other
        taken.append((offset, size, start, end))
        offsets.append(offset)
    return offsets, max((o + n for o, n, _, _ in taken), default=0)


def _resolved(step: Step, tensors: Mapping[str, _Tensor]) -> Iterator[Fill | Copy | KernelRun]:
    places = {n: t.place for n, t in tensors.items() if t.place is not None}
    dtypes = {n: t.type.dtype for n, t in tensors.items()}
    match step:
        case Allocate(name, fill=str(source)):
            wanted, given = tensors[name].type, tensors["fill"].type
            if replace(given, weak=False) != wanted:
                raise Unsupported(
                    f"a package cannot begin {name}, {wanted.dtype}{list(wanted.shape)}, as a copy of {source}, "
                    f"{given.dtype}{list(given.shape)}",
                    hint="give the default the shape and type of the output",
                )
            yield Copy(places[name], places["fill"], size_in_bytes(wanted))
        case Allocate(name, fill=fill) if math.prod(tensors[name].type.shape):
            assert isinstance(fill, bool | int | float)
            yield Fill(places[name], tensors[name].type, fill)
        case Launch() if math.prod(step.grid):
            yield KernelRun(step, places, dtypes)
        case Repeat(launches, counters, count):
            runs = [(x, c) for x, c in zip(launches, counters, strict=True) if math.prod(x.grid)]
            if count and len(runs) == 1:
                yield KernelRun(runs[0][0], places, dtypes, count, runs[0][1])
            elif count:
                yield from (KernelRun(_at(x, c, t), places, dtypes) for t in range(count) for x, c in runs)


def _at(launch: Launch, counter: str, value: int) -> Launch:
    """The launch with that value of an argument."""
    return replace(launch, arguments=tuple((n, value if n == counter else v) for n, v in launch.arguments))


def strides_of(t: TensorType) -> tuple[int, ...]:
    """The strides that the plan is made for."""
    return contiguous(t.shape)
