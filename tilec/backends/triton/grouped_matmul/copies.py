"""Rows of an operand in order of their keys, so that a block of them is a box that the copy engine (TMA) brings."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.backends.common.code import python_name
from tilec.backends.common.domain import Condition
from tilec.backends.triton.emit.kernel import Axis
from tilec.backends.triton.grouped_matmul.products import GroupedProduct
from tilec.backends.triton.matmul.blocks import Config
from tilec.backends.triton.matmul.dot import operand_accesses
from tilec.backends.triton.matmul.hopper.steps import lone_access
from tilec.backends.triton.matmul.kernel import WITHIN, DotTask, DotWriter
from tilec.backends.triton.matmul.pack import rows_aligned
from tilec.backends.triton.plan.plan import Allocate, Descriptor, Launch, Once, Setting
from tilec.backends.triton.plan.sizes import copied_row, power_of_two
from tilec.backends.triton.scatter.sort import Sort
from tilec.ir.index import linear
from tilec.ir.program import Expr, Index, Int, substitute
from tilec.ir.types import ITEM_BYTES

COPIED = Config(16, 256, 16, 4, 1)  # rows and columns of a program that copies


class SortedWriter(DotWriter):
    """A product whose rows, or whose points of the sum, are taken as they are sorted."""

    suffix = "_grouped"

    def __init__(self, found: GroupedProduct, sort: Sort, task: DotTask):
        super().__init__(task)
        self.found, self.sort = found, sort


@dataclass(frozen=True)
class SortedOperand:
    """The factors of an operand, what zeroes it, the variables of its rows, which are sorted, and of its columns."""

    factors: tuple[Expr, ...]
    zeros: tuple[Condition | Expr, ...]
    points: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def label(self) -> str:
        """The names of the tensors that it reads."""
        return "_".join(map(python_name, dict.fromkeys(a.tensor for f in self.factors for a in operand_accesses(f))))


@dataclass(frozen=True)
class SortedCopy:
    """Rows of an operand in order of their keys, `rows` x `width`, `stride` elements from one to the next."""

    name: str
    rows: int
    width: int
    stride: int
    dtype: str
    once: Once

    def map(self, rows: int, columns: int) -> Descriptor:
        return Descriptor(self.name, 0, (self.rows, self.width), (self.stride, 1), (rows, columns), "")


def rows_in_place(found: GroupedProduct, setting: Setting) -> bool:
    """Whether rows are read where they are as fast as from a copy: lone elements, in whole vectors along what is
    summed."""
    a = lone_access(found.dot.left, found.dot.dtype, found.view)
    if a is None or not rows_aligned(a.tensor, found.view, setting):
        return False
    last, strides = found.dot.summed[-1], found.view.strides[a.tensor]
    return any(linear(e).bare == last and step == 1 for e, step in zip(a.index, strides, strict=True))


def sorted_copy(found: GroupedProduct, sort: Sort, ordered: Once, operand: SortedOperand) -> SortedCopy:
    """A copy of an operand with the points, sorted, as rows; others that want the same one share it."""
    dtype = found.dot.dtype
    rows, width = found.space.count(operand.points), found.space.count(operand.columns)
    stride = copied_row(width, ITEM_BYTES[dtype])
    name = sort.name(f"{operand.label}_sorted")
    writer = CopyWriter(found, sort, DotTask(found, "ieee", COPIED), operand)
    launch = writer.launch(name, stride)
    key = ("copy", ordered.key, *_canonical(found, operand), dtype, found.view.int64_index)
    once = Once(key, (name,), (Allocate(name, (rows, stride), dtype), launch))
    return SortedCopy(name, rows, width, stride, dtype, once)


def _canonical(found: GroupedProduct, operand: SortedOperand) -> tuple[object, ...]:
    """Equal for equal operands, whatever their variables are called."""
    space, points, columns = found.space, operand.points, operand.columns
    lone = lone_access(operand.factors, found.dot.dtype, found.view)
    factors = operand.factors if lone is None else (lone,)
    low, extent = space.low[0], space.extent[0]
    number: dict[str, Expr] = {v: Int(low[v]) for v in (*space.outputs, *space.reductions) if space.single(v)}
    number |= {v: Index(f"p{k}") for k, v in enumerate(points)} | {v: Index(f"c{k}") for k, v in enumerate(columns)}
    ranges = tuple((low[v], extent[v]) for v in (*points, *columns))
    tests = tuple(
        (substitute(z.form.to_expr(), number), z.bound) if isinstance(z, Condition) else substitute(z, number)
        for z in operand.zeros
    )
    read = {a.tensor for f in factors for a in operand_accesses(f)}
    lie = tuple((n, found.view.types[n], tuple(found.view.strides[n])) for n in sorted(read))
    return tuple(substitute(f, number) for f in factors), tests, ranges, lie


class CopyWriter(SortedWriter):
    """Rows of an operand, stored in order of their keys."""

    def __init__(self, found: GroupedProduct, sort: Sort, task: DotTask, operand: SortedOperand):
        self.suffix = f"_{operand.label}_in_order"
        super().__init__(found, sort, task)
        self.operand = operand

    def launch(self, copy: str, row_stride: int) -> Launch:
        """Of the copy, a tensor of that name, whose rows lie so many elements apart."""
        k, space, operand = self.kernel, self.space, self.operand
        rows, width = space.count(operand.points), space.count(operand.columns)
        bn = min(COPIED.bn, max(16, power_of_two(width)))
        bm = COPIED.bm * (COPIED.bn // bn)
        for v in (*space.outputs, *space.reductions):
            if space.single(v):
                k.value_of[v] = k.low(v)
        k.assign("across", f"tl.cdiv({k.count(operand.columns)}, BN)")
        k.assign("place", f"{k.program()} // across * BM + tl.arange(0, BM)")
        k.assign("row_in", f"place < {k.count(operand.points)}")
        k.assign("row", f"tl.load({k.pointer(self.sort.order)} + place, mask=row_in, other=0).to({self.integer})")
        k.assign("col", f"{k.program()} % across * BN + tl.arange(0, BN)")
        k.assign("col_in", f"col < {k.count(operand.columns)}")
        k.decode(Axis("row", operand.points, "BM"))
        k.decode(Axis("col", operand.columns, "BN"))
        frame = self._block()
        value = self._operand(frame, operand.factors, operand.zeros)
        stride = k.number("stride", "stride", row_stride)
        address = f"{k.pointer(copy)} + place.to(tl.int64)[:, None] * {stride} + col[None, :]"
        k.store(address, value, WITHIN)
        k.constants = {"BM": bm, "BN": bn, **k.constants}
        grid = (-(-rows // bm) * -(-width // bn), 1, 1)
        return k.launch(grid, COPIED.warps, COPIED.stages, self.space.statement)
