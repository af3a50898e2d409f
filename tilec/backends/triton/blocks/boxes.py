"""Loads of block programs that are boxes of a tensor: Hopper's copy engine (TMA) brings these by tensor maps, without
the registers and instructions that an address for each element takes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tilec.backends.common.blocks.ir import (
    Apply,
    BlockProgram,
    Load,
    Number,
    Op,
    Positions,
    SizeArgument,
    Value,
    every_operation,
    results,
)
from tilec.backends.common.code import python_name
from tilec.backends.triton.plan.plan import Descriptor
from tilec.ir.types import NARROW

_ALIGNMENT = 16  # bytes: of addresses and of the distances of a map, and the least of a box's innermost dimension
_LONGEST = 256  # elements of a box along one dimension
RANK = 5


@dataclass(frozen=True)
class BoxLoad:
    """A load by a map: the kernel's argument, where the box begins, and which axis each of its dimensions is."""

    parameter: str
    offsets: tuple[Value | None, ...]
    axes: tuple[str, ...]


def box_loads(
    kernel: BlockProgram,
    shapes: Mapping[str, Sequence[int]],
    strides: Mapping[str, Sequence[int]],
    misaligned: Collection[str],
    least: int = 0,
) -> tuple[dict[Value, BoxLoad], dict[str, Descriptor]]:
    """The loads that can be boxes, by their value, and the maps by the kernel's argument. Operands of
    products in 16 bits alone: maps of float32 round to tf32. `least`: bytes that rows of a box have."""
    made: dict[Value, Op] = {v: op for op in every_operation(kernel.body) for v in results(op)}
    found: dict[Value, BoxLoad] = {}
    maps: dict[str, Descriptor] = {}
    for op in made.values():
        if not isinstance(op, Load) or op.tensor in misaligned or len(op.out.type.axes) != 2:
            continue
        shape, steps = shapes[op.tensor], strides[op.tensor]
        places = _places(op, made)
        if places is None or not _fits(op, kernel, shape, steps, least) or not _implied(op, kernel, shape, made):
            continue
        axes = tuple(v.type.axes[0] for v in op.index if v.type.axes)
        block = tuple(kernel.axes[v.type.axes[0]] if v.type.axes else 1 for v in op.index)
        parameter = f"{python_name(op.tensor)}_map_{'_'.join(str(n) for n in block)}"
        maps[parameter] = Descriptor(op.tensor, 0, tuple(shape), tuple(steps), block, "")
        found[op.out] = BoxLoad(parameter, places, axes)
    return found, maps


def _places(op: Load, made: Mapping[Value, Op]) -> tuple[Value | None, ...] | None:
    """Where each dimension of the box begins; None for 0. None where the positions are no box."""
    found: list[Value | None] = []
    for v in op.index:
        match made.get(v) if v.type.axes else None:
            case None if not v.type.axes:
                found.append(v)
            case Positions():
                found.append(None)
            case Apply(_, "add", (x, y)) if not (x.type.axes and y.type.axes):
                start, along = (x, y) if y.type.axes else (y, x)
                if not isinstance(made.get(along), Positions):
                    return None
                found.append(start)
            case _:
                return None
    return tuple(found)


def _fits(op: Load, kernel: BlockProgram, shape: Sequence[int], strides: Sequence[int], least: int) -> bool:
    """Whether the tensor has a map and the box is one of it."""
    size = {"float16": 2, "bfloat16": 2}.get(op.out.type.dtype, 0)
    blocks = [kernel.axes[v.type.axes[0]] if v.type.axes else 1 for v in op.index]
    if op.out.type.dtype not in NARROW or not 2 <= len(shape) <= RANK or 0 in shape or op.other:
        return False
    if (
        len({v.type.axes for v in op.index if v.type.axes}) != sum(bool(v.type.axes) for v in op.index)
        or max(blocks) > _LONGEST
    ):
        return False
    outer = [n for n, s in zip(strides[:-1], shape[:-1], strict=True) if s > 1]
    aligned = all(n > 0 and n * size % _ALIGNMENT == 0 for n in outer) and all(
        n * size % _ALIGNMENT == 0 for n in strides[:-1]
    )
    return strides[-1] == 1 and aligned and blocks[-1] * size >= max(least, _ALIGNMENT) and math.prod(shape) < 2**62


def _implied(op: Load, kernel: BlockProgram, shape: Sequence[int], made: Mapping[Value, Op]) -> bool:
    """Whether the condition holds for all elements inside of the tensor: a box is 0 outside of it, as `other` is."""
    if op.condition is None:
        return True
    length = {v: n for v, n in zip(op.index, shape, strict=True)}

    def number(v: Value) -> int | None:
        match made.get(v):
            case Number(_, value):
                return int(value)
            case SizeArgument(_, name):
                return kernel.sizes[name]
        return None

    def holds(v: Value) -> bool:
        match made.get(v):
            case Apply(_, "and", (x, y)):
                return holds(x) and holds(y)
            case Apply(_, "lt", (x, y)):
                limit = number(y)
                return x in length and limit is not None and limit >= length[x]
        return False

    return holds(op.condition)
