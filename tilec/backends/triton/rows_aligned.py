"""Rows of odd widths in vectors.

Where a row's length is no multiple of a vector, its rows begin anywhere in one, and hardware can only read element by
element. So a walk over columns begins where the vector does that the row's first element lies in: positions are counted
from there, whole vectors are read (neighbouring rows' elements among them, which nothing uses, but none outside the
tensor), and vectors that lie in the row entirely are stored as such. What is left at either end of a row goes element
by element.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tilec.backends.triton.grouping import accesses
from tilec.backends.triton.groups import Group
from tilec.backends.triton.kernel import Frame, Kernel
from tilec.backends.triton.plan import python_name
from tilec.ir.functions import FUNCTIONS
from tilec.ir.index import linear
from tilec.ir.program import Access, Call, walk
from tilec.ir.types import TensorType

VECTOR = 16  # bytes


@dataclass(frozen=True)
class Alignment:
    """`tensors` have one element at each point, all with these `steps` in memory from row to row (by variable) and
    neighbouring columns side by side; `vector` elements are a whole number of vectors of each. `size`: elements from
    the first to the last."""

    tensors: frozenset[str]
    steps: Mapping[str, int]
    vector: int
    size: int


def alignment(
    group: Group, strides: Mapping[str, tuple[int, ...]], types: Mapping[str, TensorType], block: int
) -> Alignment | None:
    """What can be read in vectors where rows begin anywhere; None where rows begin with vectors as they are, where they
    have few blocks of columns, or columns of several variables, or where random numbers count columns by fours."""
    columns = [v for v in group.columns if group.extent[v] > 1]
    roots = [r for s in group.statements for r in (s.body, s.guard) if r is not None]
    draws = any(isinstance(e, Call) and FUNCTIONS[e.function].result == "random" for r in roots for e in walk(r))
    if len(columns) != 1 or draws or group.extent[columns[0]] < 2 * block:
        return None
    found: dict[str, tuple[tuple[str, int], ...]] = {}
    other: set[str] = set()
    stored = [Access(s.output, s.index or ()) for s in group.statements if s.output in group.stored]
    members = {s.output for s in group.statements}
    for a in (*stored, *(a for s in group.statements for a in accesses(s) if a.tensor not in members)):
        steps = _steps(a, group, strides[a.tensor], types[a.tensor], columns[0])
        if steps is None or found.setdefault(a.tensor, steps) != steps:
            other.add(a.tensor)
    counts = Counter(steps for name, steps in found.items() if name not in other)
    if not counts:
        return None
    steps = max(counts, key=lambda x: counts[x])
    tensors = frozenset(name for name, x in found.items() if x == steps and name not in other)
    vector = max(VECTOR // getattr(torch, types[name].dtype).itemsize for name in tensors)
    if all(step % vector == 0 for _, step in steps) or vector == 1:
        return None
    size = group.extent[columns[0]] + sum((group.extent[v] - 1) * step for v, step in steps)
    return Alignment(tensors, dict(steps), vector, size)


def _steps(
    a: Access, group: Group, strides: tuple[int, ...], t: TensorType, column: str
) -> tuple[tuple[str, int], ...] | None:
    """Steps from row to row, of an access to neighbours along the columns; None where it is something else."""
    steps: dict[str, int] = {}
    for e, step, n in zip(a.index, strides, t.shape, strict=True):
        v = linear(e).bare
        if n == 1:
            continue
        if v is None or v in steps or step < 0 or group.extent[v] > n:
            return None
        if group.extent[v] > 1:
            steps[v] = step
    if steps.pop(column, None) != 1:
        return None
    return tuple(sorted(steps.items()))


class AlignedFrame(Frame):
    """Reads and writes in a walk over one row that counts positions (`place`) from where a vector begins (`origin`)."""

    def __init__(self, aligned: Alignment, kernel: Kernel, *rest: Any):
        super().__init__(kernel, *rest)
        self.aligned = aligned

    def read(self, access: Access, other: float | int | None) -> str:
        if access.tensor not in self.aligned.tensors:
            return super().read(access, other)
        k, key = self.kernel, ("aligned", access.tensor)
        lines = k.scopes[-1]
        if key not in lines.made:
            name = lines.made[key] = k.names.fresh(python_name(access.tensor).lower())
            load = f"tl.load({self.aligned_address(access.tensor)}, mask={{}}, other={0 if other is None else other})"
            vectors, rest = (
                load.format(f"({mask})[None, :]") for mask in ("vector < whole", "col_in & (place >= whole)")
            )
            lines.lines += [
                f"{name} = {vectors}",
                "if whole < span:",  # the tensor's last row
                f"    {name} = tl.where((place < whole)[None, :], {name}, {rest})",
            ]
        return lines.made[key]

    def aligned_address(self, tensor: str) -> str:
        return f"{self.kernel.pointer(tensor)} + (origin + place)[None, :]"

    def store(self, tensor: str, value: str) -> None:
        """Vectors that the row fills, then, where the row begins or ends, the elements beside them."""
        address = self.aligned_address(tensor)
        self.kernel.scopes[-1].lines += [
            f"tl.store({address}, {value}, mask=filled[None, :])",
            "if (first == 0) | (first + BN >= span):",
            f"    tl.store({address}, {value}, mask=(col_in & (filled == 0))[None, :])",
        ]


def begin(k: Kernel, aligned: Alignment, columns: str) -> None:
    """Lines that say where this program's row lies in its vectors."""
    steps = (f"{k.value_of[v]} * {k.number(('step', v), 'step', n)}" for v, n in aligned.steps.items())
    size, v = k.number("size", "size", aligned.size, False), aligned.vector
    k.emit(f"offset = tl.max({' + '.join(steps)}, 0)")
    k.emit(f"origin = offset // {v} * {v}")
    k.emit("head = offset - origin")
    k.emit(f"span = {columns} + head")
    k.emit(f"whole = tl.minimum(span, ({size} - origin) // {v} * {v})")  # whole vectors of the tensor


def position(k: Kernel, aligned: Alignment, head: bool) -> None:
    """Lines that say which columns a block has. `head`: those of the row's first vector do not count."""
    v = aligned.vector
    k.emit("place = first + tl.arange(0, BN)")
    k.emit("col = place - head")
    k.emit(f"col_in = (place >= {v if head else 'head'}) & (place < span)")
    k.emit(f"vector = place // {v} * {v}")
    k.emit(f"filled = (vector >= head) & (vector + {v} <= span)")
