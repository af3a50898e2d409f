"""What a program costs: operations, bytes moved, and the bytes that no program computing the same could avoid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilec.ir.program import Access, Call, Pad, Program, Statement, reads, walk
from tilec.ir.types import ITEM_BYTES, TensorType
from tilec.lattice.sets import bounds


@dataclass(frozen=True)
class Cost:
    """`flops`: scalar operations, one a function or operator and one an aggregation step, over the bounding box of the
    valid points of each statement. `bytes_moved`: every tensor a statement reads, once, and the one it writes; of
    statements marked `[[kernel(k)]]`, which share a kernel, what comes from outside and what goes there.
    `least_bytes`: the inputs that are read and the outputs, once each."""

    flops: int
    bytes_moved: int
    least_bytes: int


def cost(program: Program, types: Mapping[str, TensorType]) -> Cost:
    """Cost of a flat program whose tensors have these types."""
    shapes = {name: t.shape for name, t in types.items()}
    size = {name: size_in_bytes(t) for name, t in types.items()}
    flops = sum(operations(s, shapes) for s in program.statements)
    moved = sum(size[name] for unit in _units(program) for name in _touched(program, unit))
    read = {r for s in program.statements for r in reads(s)} & set(program.input_names())
    least = sum(size[name] for name in read) + sum(size[name] for name in dict.fromkeys(program.outputs))
    return Cost(flops, moved, least)


def _units(program: Program) -> list[list[Statement]]:
    """Statements by kernel."""
    units: dict[object, list[Statement]] = {}
    for s in program.statements:
        mark = next((a for a in s.attributes if a.name == "kernel"), s.output)
        units.setdefault(mark, []).append(s)
    return list(units.values())


def _touched(program: Program, unit: Sequence[Statement]) -> set[str]:
    """The tensors that a kernel reads or writes in memory."""
    own = {s.output for s in unit}
    outside = {r for s in program.statements if s.output not in own for r in reads(s)} | set(program.outputs)
    return {r for s in unit for r in reads(s)} - own | own & outside


def size_in_bytes(t: TensorType) -> int:
    return prod(t.shape) * ITEM_BYTES[t.dtype]


def operations(s: Statement, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Scalar operations of one statement."""
    return _operations(s) * _points(s, shapes)


def _points(s: Statement, shapes: Mapping[str, tuple[int, ...]]) -> int:
    box = bounds(s, dict(shapes))
    return 0 if box is None else prod(high - low + 1 for low, high in box.values())


def _operations(s: Statement) -> int:
    """Operations of one point: those of the body and the guard; index arithmetic is free."""
    values = [e for e in (s.guard, s.body) if e is not None]
    inside_indices = {id(x) for v in values for e in walk(v) if isinstance(e, Access) for i in e.index for x in walk(i)}
    calls = sum(1 for v in values for e in walk(v) if isinstance(e, (Call, Pad)) and id(e) not in inside_indices)
    return calls + (s.aggregation != "assign")
