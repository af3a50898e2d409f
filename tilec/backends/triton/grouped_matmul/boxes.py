"""Grouped products of operands that Hopper's copy engine (TMA) brings in boxes.

The rows are copied in order of their keys first, so that a block of them is a box of the copy; statements that sort the
same rows share the copy. A program multiplies up to BM rows of one key: the blocks of a key begin where its rows do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.code import python_name
from tilec.backends.common.domain import Condition
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Axis, Kernel, triton_type
from tilec.backends.triton.grouped_matmul.products import GroupedProduct
from tilec.backends.triton.matmul.blocks import Config
from tilec.backends.triton.matmul.dot import Zeros, operand_accesses
from tilec.backends.triton.matmul.hopper.steps import lone_access
from tilec.backends.triton.matmul.kernel import BLOCK_ACROSS, BLOCK_DOWN, DotWriter
from tilec.backends.triton.plan.device_info import HOPPER
from tilec.backends.triton.plan.lines import ForLoop, If, assign
from tilec.backends.triton.plan.plan import Allocate, Descriptor, Launch, Once, Setting
from tilec.backends.triton.plan.sizes import power_of_two
from tilec.backends.triton.scatter.sort import KEY_SHIFT, Sort
from tilec.ir.index import linear
from tilec.ir.program import Access, Expr, Index, Int, Statement, substitute
from tilec.ir.types import ITEM_BYTES, NARROW

ALIGNMENT = 16  # bytes: of a map's strides
RANK = 5
FEWEST_KEYS, MOST_KEYS = 256, 4096  # among which a program looks for its own
COPIED = Config(16, 256, 16, 4, 1)  # rows and columns of a program that copies
FEWEST_POINTS = 2**32  # multiply-adds from which the host's work on maps does not show
# operations and bytes a second: of products that read through pointers, of those of boxes, and of copies
POINTER_RATE, BOX_RATE, COPY_BYTES, COPY_SECONDS = 280e12, 480e12, 2.2e12, 4e-6


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


def boxes_pay(found: GroupedProduct, setting: Setting, copies: int) -> bool:
    """Whether the copies of `copies` elements and products of boxes take less time than products through pointers.
    They are for 16-bit operands on Hopper alone."""
    dot, space = found.dot, found.space
    if setting.device.capability != HOPPER or dot.dtype not in NARROW or found.count >= MOST_KEYS:
        return False
    beside = tuple(v for v in dot.batch if v not in found.group)
    points = math.prod(space.count(v) for v in (dot.rows, dot.columns, dot.summed))
    if beside or points < FEWEST_POINTS:
        return False
    copying = COPY_SECONDS + 2 * ITEM_BYTES[dot.dtype] * copies / COPY_BYTES if copies else 0.0
    return 2 * points / POINTER_RATE > copying + 2 * points / BOX_RATE


# rows in order


def rows_in_place(found: GroupedProduct) -> bool:
    """Whether rows are read where they are as fast as from a copy: lone elements, along which memory runs."""
    a = lone_access(found.dot.left, found.dot.dtype, found.view)
    last = found.dot.summed[-1]
    steps = () if a is None else zip(a.index, found.view.strides[a.tensor], strict=True)
    return any(linear(e).bare == last and step == 1 for e, step in steps)


def sorted_copy(
    found: GroupedProduct,
    sort: Sort,
    ordered: Once,
    factors: tuple[Expr, ...],
    zeros: Zeros,
    points: tuple[str, ...],
    columns: tuple[str, ...],
    int64_index: bool,
) -> SortedCopy:
    """A copy of an operand with the points, sorted, as rows; others that want the same one share it."""
    space, view, dtype = found.space, found.view, found.dot.dtype
    rows, width = space.count(points), space.count(columns)
    aligned = ALIGNMENT // ITEM_BYTES[dtype]
    stride = -(-width // aligned) * aligned
    copied = "_".join(map(python_name, dict.fromkeys(a.tensor for f in factors for a in operand_accesses(f))))
    name = sort.name(f"{copied}_sorted")
    writer = CopyWriter(found, sort, factors, zeros, points, columns, name, f"_{copied}_in_order", stride, int64_index)
    launch = writer.launch(rows, width)
    key = ("copy", ordered.key, *_canonical(found, factors, zeros, points, columns), dtype, int64_index)
    once = Once(key, (name,), (Allocate(name, (rows, stride), dtype), launch))
    return SortedCopy(name, rows, width, stride, dtype, once)


def _canonical(
    found: GroupedProduct, factors: Sequence[Expr], zeros: Zeros, points: Sequence[str], columns: Sequence[str]
) -> tuple[object, ...]:
    """Equal for equal operands, whatever their variables are called."""
    space = found.space
    lone = lone_access(tuple(factors), found.dot.dtype, found.view)
    factors = factors if lone is None else (lone,)
    low, extent = space.low[0], space.extent[0]
    number: dict[str, Expr] = {v: Int(low[v]) for v in (*space.outputs, *space.reductions) if space.single(v)}
    number |= {v: Index(f"p{k}") for k, v in enumerate(points)} | {v: Index(f"c{k}") for k, v in enumerate(columns)}
    ranges = tuple((low[v], extent[v]) for v in (*points, *columns))
    tests = tuple(
        (substitute(z.form.to_expr(), number), z.bound) if isinstance(z, Condition) else substitute(z, number)
        for z in zeros
    )
    read = {a.tensor for f in factors for a in operand_accesses(f)}
    lie = tuple((n, found.view.types[n], tuple(found.view.strides[n])) for n in sorted(read))
    return tuple(substitute(f, number) for f in factors), tests, ranges, lie


class CopyWriter(DotWriter):
    """Rows of an operand, stored in order of their keys."""

    def __init__(
        self,
        found: GroupedProduct,
        sort: Sort,
        factors: tuple[Expr, ...],
        zeros: Zeros,
        points: tuple[str, ...],
        columns: tuple[str, ...],
        copy: str,
        suffix: str,
        stride: int,
        int64_index: bool,
    ):
        super().__init__(found.dot, found.space, found.view, int64_index, "ieee", COPIED, suffix)
        self.sort, self.factors, self.zeros = sort, factors, zeros
        self.points, self.across, self.copy, self.stride = points, columns, copy, stride

    def launch(self, rows: int, width: int) -> Launch:
        k, space = self.kernel, self.space
        bn = min(COPIED.bn, max(16, power_of_two(width)))
        bm = COPIED.bm * (COPIED.bn // bn)
        for v in (*space.outputs, *space.reductions):
            if space.single(v):
                k.value_of[v] = k.low(v)
        k.assign("across", f"tl.cdiv({k.count(self.across)}, BN)")
        k.assign("place", f"{k.program()} // across * BM + tl.arange(0, BM)")
        k.assign("row_in", f"place < {k.count(self.points)}")
        k.assign("row", f"tl.load({k.pointer(self.sort.order)} + place, mask=row_in, other=0).to({self.integer})")
        k.assign("col", f"{k.program()} % across * BN + tl.arange(0, BN)")
        k.assign("col_in", f"col < {k.count(self.across)}")
        k.decode(Axis("row", self.points, "BM"))
        k.decode(Axis("col", self.across, "BN"))
        value = self._operand(Frame(k, ("row", "col"), {"row": "row_in", "col": "col_in"}), self.factors, self.zeros)
        stride = k.number("stride", "stride", self.stride)
        address = f"{k.pointer(self.copy)} + place.to(tl.int64)[:, None] * {stride} + col[None, :]"
        k.store(address, value, "row_in[:, None] & col_in[None, :]")
        k.constants = {"BM": bm, "BN": bn, **k.constants}
        grid = (-(-rows // bm) * -(-width // bn), 1, 1)
        return k.launch(grid, COPIED.warps, COPIED.stages, self.space.statement)


# the matrix of a key


@dataclass(frozen=True)
class MatrixBoxes:
    """How a matrix is brought: its map, where each dimension of the box begins, and whether it lies columns first."""

    map: Descriptor
    starts: tuple[str, ...]
    transposed: bool


def matrix_boxes(found: GroupedProduct, config: Config, setting: Setting) -> MatrixBoxes | None:
    """The matrices' boxes of terms and columns; None where no map has them: they must be lone elements at bare
    variables, one of them summed, one of columns, one of which memory runs along."""
    dot, space, view = found.dot, found.space, found.view
    a = lone_access(dot.right, dot.dtype, view)
    if a is None or a.tensor in setting.misaligned or dot.batch or len(dot.columns) != 1 or len(dot.summed) != 1:
        return None
    ((column,), (term,)) = dot.columns, dot.summed
    box = {column: config.bn, term: config.bk}
    at = {column: f"{BLOCK_ACROSS} * BN", term: "step * BK", found.group[0]: "matrix"}
    dims: list[tuple[int, int, int, str, str]] = []  # size, stride, box, start, variable
    low, extent = space.low[0], space.extent[0]
    for e, n, stride in zip(a.index, view.types[a.tensor].shape, view.strides[a.tensor], strict=True):
        form = linear(e)
        v = form.bare
        if v in at:
            if low[v] or (v == term and extent[v] != n):
                return None
            dims.append((n, stride, box.get(v, 1), at[v], v))
        elif not form.terms or (v is not None and space.single(v)):
            value = form.constant if not form.terms else low[v]
            dims.append((n, stride, 1, str(int(value)), ""))
        else:
            return None
    names = [v for *_, v in dims if v]
    if sorted(names) != sorted(at) or len(dims) > RANK or 0 in [n for n, *_ in dims]:
        return None
    dims.sort(key=lambda d: d[1] == 1 and d[4] in box)
    size = ITEM_BYTES[dot.dtype]
    last = dims[-1]
    if last[1] != 1 or last[4] not in box or any(d[1] <= 0 or d[1] * size % ALIGNMENT for d in dims[:-1]):
        return None
    boxed = [d for d in dims if d[4] in box]
    shape, strides, block = (tuple(d[k] for d in dims) for k in range(3))
    made = Descriptor(a.tensor, 0, shape, strides, block, "")
    return MatrixBoxes(made, tuple(d[3] for d in dims), boxed[0][4] == column)


def parameter(k: Kernel, d: Descriptor) -> str:
    """The kernel's argument of this map."""
    name = k.names.fresh(f"{python_name(d.tensor)}_map")
    k.parameters[name] = d
    return name


def box_load(map_: str, starts: Sequence[str], int64_index: bool) -> str:
    """The text that brings a box; its places are 32-bit numbers."""
    narrow = "tl.cast(tl.full((), 0, tl.int64) + {}, tl.int32)" if int64_index else "{}"
    return f"{map_}.load([{', '.join(narrow.format(t) for t in starts)}])"


class BoxedWriter(DotWriter):
    """Rows of a copy in order of their keys, by the matrix of their key."""

    placed, row_end = "place", "stop"

    def __init__(
        self,
        found: GroupedProduct,
        sort: Sort,
        int64_index: bool,
        precision: str,
        config: Config,
        epilogue: Sequence[Statement],
        matrix: MatrixBoxes,
        copy: SortedCopy | None = None,
    ):
        super().__init__(found.dot, found.space, found.view, int64_index, precision, config, "_grouped", epilogue)
        self.found, self.sort, self.copy, self.matrix = found, sort, copy, matrix

    @property
    def blocks(self) -> int:
        """Blocks of rows, one more for each key than its rows may fill: the first of a key is that of its first row
        among all, and a block further for each key before."""
        return self.found.points // self.config.bm + self.found.count + 1

    def tiles(self) -> int:
        return self.blocks * -(-self.space.count(self.dot.columns) // self.config.bn)

    def _down(self) -> str:
        return self.kernel.number("blocks", "blocks", self.blocks, False)

    def _rows(self, block: str) -> None:
        k, kind = self.kernel, self.integer
        starts = k.pointer(self.sort.starts)
        keys = k.number("keys", "keys", self.found.count, False)
        k.constants["KEYS"] = max(FEWEST_KEYS, power_of_two(self.found.count))
        own = k.line("block", block)
        lane = k.line("lane", "tl.arange(0, KEYS)")
        begins = k.line("begins", f"tl.load({starts} + {lane}, mask={lane} < {keys}, other=0).to({kind})")
        self.key = k.line(
            "key", f"tl.sum((({lane} < {keys}) & ({begins} // BM + {lane} + 1 <= {own})).to(tl.int32), 0)"
        )
        key = self.key
        begin = k.line("begin", f"tl.load({starts} + {key} - 1, mask={key} > 0, other=0).to({kind})")
        k.assign("stop", f"tl.load({starts} + {key}).to({kind})")
        self.first = k.line("at", f"{begin} + ({own} - {begin} // BM - {key}) * BM")
        k.leave(f"{self.first} >= stop")
        k.assign("place", f"{self.first} + tl.arange(0, BM)")
        k.assign("row", f"tl.load({k.pointer(self.sort.order)} + place, mask=place < stop, other=0).to({kind})")

    def _loop(self) -> None:
        k, dot = self.kernel, self.dot
        matrix = k.line("matrix", f"tl.maximum({self.key} - 1, 0)")
        k.value_of[self.found.group[0]] = matrix
        k.assign("steps", f"tl.where({self.key} > 0, tl.cdiv({k.count(dot.summed)}, BK), 0)")
        k.assign("acc", f"tl.full((BM, BN), 0, {triton_type(self.accumulator.dtype)})")
        if self.copy is None:
            k.add(self._blocks(self._multiplied))
            return
        rows = parameter(k, self.copy.map(self.config.bm, self.config.bk))
        left = box_load(rows, (self.first, "step * BK"), k.int64_index)
        body = (assign("left", left), assign("right", self._right()), assign("acc", "tl.dot(left, right, acc)"))
        k.add(ForLoop("step", "range(0, steps)", body))

    def _multiplied(self, rows: Frame, columns: Frame) -> None:
        """Rows are read where they are."""
        left = self._operand(rows, self.dot.left, ())
        self.kernel.assign("right", self._right())
        self.kernel.assign("acc", f"tl.dot({left}, right, acc)")

    def _right(self) -> str:
        k, boxed = self.kernel, "(BN, BK)" if self.matrix.transposed else "(BK, BN)"
        matrix = k.value_of[self.found.group[0]]
        at = [matrix if t == "matrix" else t for t in self.matrix.starts]
        right = f"{box_load(parameter(k, self.matrix.map), at, k.int64_index)}.reshape{boxed}"
        return f"tl.trans({right})" if self.matrix.transposed else right


class BoxedSumWriter(DotWriter):
    """A product for each key, summed over the key's points, which are rows of copies of both operands."""

    def __init__(
        self,
        found: GroupedProduct,
        sort: Sort,
        int64_index: bool,
        precision: str,
        config: Config,
        epilogue: Sequence[Statement],
        left: SortedCopy,
        right: SortedCopy,
    ):
        super().__init__(found.dot, found.space, found.view, int64_index, precision, config, "_grouped", epilogue)
        self.found, self.sort, self.copies = found, sort, (left, right)

    def _loop(self) -> None:
        k, config = self.kernel, self.config
        kind = triton_type(self.dot.dtype)
        begin, stop = key_bounds(k, self.sort, self.found, self.integer)
        maps = [parameter(k, c.map(config.bk, n)) for c, n in zip(self.copies, (config.bm, config.bn), strict=True)]
        at = (k.line("down_at", f"{BLOCK_DOWN} * BM"), k.line("across_at", f"{BLOCK_ACROSS} * BN"))
        k.assign("acc", f"tl.full((BM, BN), 0, {triton_type(self.accumulator.dtype)})")
        whole = k.line("whole", f"{begin} + ({stop} - {begin}) // BK * BK")

        def boxes(first: str) -> list[str]:
            return [box_load(m, (first, a), k.int64_index) for m, a in zip(maps, at, strict=True)]

        left, right = boxes("first")
        body = (assign("left", f"tl.trans({left})"), assign("right", right), assign("acc", "tl.dot(left, right, acc)"))
        k.add(ForLoop("first", f"range({begin}, {whole}, BK)", body))
        # rows of the next key are none of this one's, whatever they hold
        left, right = (f"tl.where(red_in[:, None], {b}, 0.0).to({kind})" for b in boxes(whole))
        rest = (
            assign("red_in", f"{whole} + tl.arange(0, BK) < {stop}"),
            assign("left", f"tl.trans({left})"),
            assign("right", right),
            assign("acc", "tl.dot(left, right, acc)"),
        )
        k.add(If(f"{whole} < {stop}", rest))


def key_bounds(k: Kernel, sort: Sort, found: GroupedProduct, integer: str) -> tuple[str, str]:
    """Where the points of the program's own key begin and end."""
    number = "0"  # of several axes, as the output has them
    for v in found.group:
        value = k.value_of[v]
        number = value if number == "0" else f"({number}) * {k.extent(v)} + {value}"
    at = k.line("run", number)
    starts = k.pointer(sort.starts)
    begin, end = (
        k.line(stem, f"tl.load({starts} + {at}{more}).to({integer})")
        for stem, more in (("begin", ""), ("stop", " + 1"))
    )
    return begin, end
