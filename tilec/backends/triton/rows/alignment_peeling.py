"""Rows of odd widths in vectors.

Where a row's length is no multiple of a vector, its rows begin anywhere in one, and hardware can only read element by
element. So a walk over columns begins where the vector does that the row's first element lies in: positions are counted
from there, whole vectors are read (with neighbours' elements, which nothing uses), and vectors that lie in the row
entirely are stored as such. What is left at either end of a row is stored element by element.

The tensor's last vector may reach over its end, by less than the 16 bytes that it lies in and that no allocation
splits: this needs tensors that begin at a multiple of 16 bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilec.backends.common.code import python_name
from tilec.backends.triton.emit.frame import Frame, free_of
from tilec.backends.triton.emit.kernel import Kernel
from tilec.backends.triton.fusion.groups import Group
from tilec.backends.triton.plan.lines import If, StoreLine
from tilec.backends.triton.plan.sizes import VECTOR_BYTES, Strides
from tilec.ir.functions import draws
from tilec.ir.index import linear
from tilec.ir.program import Access, value_accesses
from tilec.ir.symbolic import gcd
from tilec.ir.types import TensorType, Types

ENDS = {  # whether a block holds ends of its rows that are no whole vectors, by form
    "looped": "(first == 0) | (first + BN >= span)",
    "tiled": "(over == 0) | ((over + 1) * BN >= span)",
    "whole": "(head != 0) | (span % {0} != 0)",
}
READ_IN_PLACE = 4  # that a thread reads of a row at once, of two elements or more: blocks of rows are read so
FEWEST_VECTORS = 64  # of a row that a block holds: shorter ones are mostly ends


@dataclass(frozen=True)
class Alignment:
    """`tensors` have one element at each point, all with this `step` in memory from row to row and neighbouring columns
    side by side; `vector` elements, a power of two, are a whole number of vectors of each."""

    tensors: frozenset[str]
    step: int
    vector: int


def alignment(
    group: Group, strides: Strides, types: Types, block: int, misaligned: Collection[str] = (), whole: bool = False
) -> Alignment | None:
    """What can be read in vectors where rows begin anywhere; None where rows begin with vectors as they are, where they
    have few blocks of columns, or rows or columns of several variables, or where random numbers count columns by
    fours. `misaligned`: tensors that do not begin at a multiple of 16 bytes. `whole`: a block has all columns, which it
    must have with a vector's more, and many vectors."""
    rows, columns = ([v for v in names if group.extent[v] > 1] for names in (group.rows, group.columns))
    drawn = draws(*(r for s in group.statements for r in s.roots))
    if len(rows) != 1 or len(columns) != 1 or drawn or (not whole and group.extent[columns[0]] < 2 * block):
        return None
    count = group.extent[columns[0]]
    found: dict[str, set[int | None]] = {}
    members = {s.output for s in group.statements}
    read = [a for s in group.statements for a in value_accesses(s) if a.tensor not in members]
    for a in (*(Access(s.output, s.index or ()) for s in group.statements if s.output in group.stored), *read):
        step = _step_between(a, group, strides[a.tensor], types[a.tensor], rows[0], columns[0])
        found.setdefault(a.tensor, set()).add(step)
    alike = {name: steps for name, steps in found.items() if len(steps) == 1 and name not in misaligned}
    one = {name: step for name, steps in alike.items() for step in steps if step}
    if not one:
        return None
    (step, _), *_ = Counter(one.values()).most_common()
    tensors = frozenset(name for name, n in one.items() if n == step)
    vector = max(VECTOR_BYTES // getattr(torch, types[name].dtype).itemsize for name in tensors)
    if step % vector == 0 or block < 2 * vector:
        return None
    at_once, least = gcd(step, vector), min(getattr(torch, types[name].dtype).itemsize for name in tensors)
    if whole and at_once > 1 and at_once * least >= READ_IN_PLACE:
        return None
    if whole and not FEWEST_VECTORS * vector <= count <= block - vector + 1:
        return None
    return Alignment(tensors, step, vector)


def _step_between(
    a: Access, group: Group, strides: tuple[int, ...], t: TensorType, row: str, column: str
) -> int | None:
    """The step from row to row, of an access to neighbours along the columns; None where it is something else."""
    steps: dict[str, int] = {}
    for e, step, n in zip(a.index, strides, t.shape, strict=True):
        v = linear(e).bare
        if n == 1:
            continue
        if v is None or v in steps or step < 0 or group.extent[v] > n:
            return None
        if group.extent[v] > 1:
            steps[v] = step
    return steps.get(row) if steps.get(column) == 1 else None


class AlignedFrame(Frame):
    """Reads and writes of rows that begin alike: positions (`place`) count from where a vector begins, which is
    `origin` in each row, up to `limit`, a number of the text, where that is not empty."""

    def __init__(self, form: str, aligned: Alignment, limit: str, kernel: Kernel, *rest: Any):
        super().__init__(kernel, *rest)
        self.aligned, self.limit = aligned, limit
        self.ends = ENDS[form].format(aligned.vector)

    def read(self, access: Access, other: float | int | None, wanted: Sequence[str] = ()) -> str:
        if access.tensor not in self.aligned.tensors:
            return super().read(access, other)
        own = VECTOR_BYTES // getattr(torch, self.kernel.types[access.tensor].dtype).itemsize
        begins = "vector" if own == self.aligned.vector else f"(place // {own} * {own})"  # a 16 bytes' first place
        within = f"({begins} < span)" + (f" & ({begins} < {self.limit})" if self.limit else "")
        mask = f"row_in[:, None] & ({within})[None, :]" if self.limit else f"row_in[:, None] & {within}[None, :]"
        told = f"mask={mask}, other={0 if other is None else other}{self.hints.get(access.tensor, '')}"
        text = f"tl.load({self.aligned_address(access.tensor)}, {told})"
        return self.assign(python_name(access.tensor).lower(), text, free_of(access))

    def aligned_address(self, tensor: str) -> str:
        return f"{self.kernel.pointer(tensor)} + origin[:, None] + place[None, :]"

    def store(self, tensor: str, value: str) -> None:
        """Vectors that the row fills, then, where the row begins or ends, the elements beside them."""
        address = self.aligned_address(tensor)
        self.kernel.store(address, value, "row_in[:, None] & filled[None, :]")
        rest = StoreLine(address, value, "row_in[:, None] & (col_in & (filled == 0))[None, :]")
        self.kernel.add(If(self.ends, (rest,)))


def begin(k: Kernel, aligned: Alignment, columns: str) -> None:
    """Lines that say where in a vector the rows of program `down` begin, and how many places they take from there."""
    k.assign("head", f"down % {aligned.vector} * {_step(k, aligned)} % {aligned.vector}")
    k.assign("span", f"{columns} + head")


def rows_begin(k: Kernel, aligned: Alignment) -> None:
    """The line that says where rows are."""
    k.assign("origin", f"row * {_step(k, aligned)} // {aligned.vector} * {aligned.vector}")


def _step(k: Kernel, aligned: Alignment) -> str:
    return k.number("step", "step", aligned.step)


def position(k: Kernel, aligned: Alignment, start: str, first: str = "head", limit: str = "") -> None:
    """Lines that say which columns a block has. `first`: the first place that counts. `limit`: a number of the text
    that no place of a row reaches, if any."""
    v = aligned.vector
    k.assign("place", f"{start} + tl.arange(0, BN)")
    k.assign("col", "place - head")
    below = f" & (place < {limit})" if limit else ""
    k.assign("col_in", f"(place >= {first}) & (place < span){below}")
    k.assign("vector", f"place // {v} * {v}")
    k.assign("filled", f"(vector >= head) & (vector + {v} <= span){below}")
