"""Grouped products of operands that Hopper's copy engine (TMA) brings in boxes.

The rows are copied in order of their keys first, so that a block of them is a box of the copy; statements that sort the
same rows share the copy. A program multiplies up to BM rows of one key: the blocks of a key begin where its rows do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilec.backends.common.code import python_name
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Kernel, triton_type
from tilec.backends.triton.grouped_matmul.copies import SortedCopy, SortedWriter
from tilec.backends.triton.grouped_matmul.products import GroupedProduct
from tilec.backends.triton.matmul.blocks import Config, output_tiles
from tilec.backends.triton.matmul.hopper.configs import TileWork, predicted_time
from tilec.backends.triton.matmul.hopper.form import HopperConfig
from tilec.backends.triton.matmul.hopper.steps import lone_access
from tilec.backends.triton.matmul.hopper.views import DESCRIPTOR_ALIGNMENT, MAX_RANK
from tilec.backends.triton.matmul.kernel import BLOCK_ACROSS, BLOCK_DOWN, DotTask
from tilec.backends.triton.matmul.pack import rows_aligned
from tilec.backends.triton.plan.device_info import HOPPER, MULTIPROCESSORS, TWO_A_MULTIPROCESSOR
from tilec.backends.triton.plan.lines import CodeLine, ForLoop, If, assign
from tilec.backends.triton.plan.plan import Allocate, Descriptor, Once, Setting, Step
from tilec.backends.triton.plan.sizes import contiguous, copied_row, power_of_two
from tilec.backends.triton.plan.source import PROGRAM
from tilec.backends.triton.scatter.sort import Sort
from tilec.ir.index import linear
from tilec.ir.program import Access, Expr, Index, Int, Statement
from tilec.ir.rational import as_int
from tilec.ir.types import ITEM_BYTES, NARROW

SHARE_STEPS = 8  # blocks of points of a program that has a share of a key's
FEWEST_KEYS, MOST_KEYS = 256, 4096  # among which a program looks for its own
FEWEST_POINTS = 2**29  # multiply-adds from which the work of the host on maps does not show
# operations a second of products that read rows through pointers, also unaligned ones, and of those of boxes
POINTER_RATE, UNALIGNED_RATE, BOX_RATE = 280e12, 30e12, 480e12
COPY_BYTES, COPY_SECONDS = 3.1e12, 1.5e-6  # a second, read or written; of a launch
# Sums over points gain by boxes, of the time that the model says: up to the first of these, of keys of so many points
# half of it; for each operand that pointers would compute or read unaligned.
SUM_GAIN, SUM_POINTS, COMPUTED_GAIN, UNALIGNED_GAIN = 0.6, 512, 0.3, 3.0


def boxes_possible(found: GroupedProduct, setting: Setting) -> bool:
    """Whether there may be boxes, on Hopper alone and of 16 bits, and enough work that the host's on maps is hidden."""
    dot = found.dot
    if setting.device.capability != HOPPER or dot.dtype not in NARROW or found.count >= MOST_KEYS:
        return False
    return {*dot.batch} <= {*found.group} and math.prod(found.counts) >= FEWEST_POINTS


def boxed_rows_pay(found: GroupedProduct, setting: Setting, copied: int) -> bool:
    """Whether products of boxes, with copies of so many elements, take less time than reading through pointers."""
    pointers = POINTER_RATE if _aligned(found, setting, found.dot.left, found.dot.right) else UNALIGNED_RATE
    return 2 * math.prod(found.counts) * (1 / pointers - 1 / BOX_RATE) > _copying(found, copied)


def boxed_sums_pay(found: GroupedProduct, setting: Setting, config: Config) -> bool:
    """The same of sums over the points of keys, whose operands are both copied."""
    dot, space = found.dot, found.space
    mean = found.points / found.count
    gain = SUM_GAIN * mean / (mean + SUM_POINTS)
    for side in (dot.left, dot.right):
        computed = lone_access(side, dot.dtype, found.view) is None
        gain += COMPUTED_GAIN if computed else 0.0 if _aligned(found, setting, side) else UNALIGNED_GAIN
    copied = found.points * (space.count(dot.rows) + space.count(dot.columns))
    return 1e-6 * gain * boxed_time(found, config) > COPY_SECONDS + _copying(found, copied)


def _copying(found: GroupedProduct, elements: int) -> float:
    return COPY_SECONDS + 2 * ITEM_BYTES[found.dot.dtype] * elements / COPY_BYTES if elements else 0.0


def _aligned(found: GroupedProduct, setting: Setting, *sides: tuple[Expr, ...]) -> bool:
    """Whether lone elements are read in whole vectors."""
    lone = [a for side in sides if (a := lone_access(side, found.dot.dtype, found.view)) is not None]
    return all(rows_aligned(a.tensor, found.view, setting) for a in lone)


def boxes_fit(config: Config, setting: Setting) -> bool:
    """Whether on-chip memory holds the boxes."""
    return config.stages * (config.bm + config.bn) * config.bk * 2 <= setting.device.shared


def boxed_time(found: GroupedProduct, config: Config) -> float:
    """Microseconds, about, of a product with these blocks; of a key, half of the last block is rows of others."""
    dot, space = found.dot, found.space
    size = ITEM_BYTES[dot.dtype]
    out_size = ITEM_BYTES[found.view.types[space.statement.output].dtype]
    rows, columns, summed = found.counts
    if dot.batch:
        down, summed = found.count * -(-rows // config.bm), -(-summed // found.count)
    else:
        down = rows // config.bm + (found.count + 1) // 2
    tile = TileWork(
        config.bm,
        config.bn,
        config.bk,
        size,
        out_size,
        down * -(-columns // config.bn),
        -(-summed // config.bk),
        elements=math.prod(found.view.types[space.statement.output].shape),
        memory=0,
        maps=0,
    )
    return predicted_time(HopperConfig((), config.warps, config.stages, config.parts), tile)


# the matrix of a key


@dataclass(frozen=True)
class MatrixBoxes:
    """How a matrix is brought: its map, where each dimension of the box begins, and whether it lies columns first."""

    map: Descriptor
    starts: tuple[str, ...]
    transposed: bool


@dataclass(frozen=True)
class PaddedMatrix:
    """A copy of the matrices of which each row begins where vectors do."""

    name: str
    strides: tuple[int, ...]
    elements: int
    once: Once


def padded_matrix(found: GroupedProduct, sort: Sort, carry: Callable[..., list[Step]]) -> PaddedMatrix | None:
    """Steps that copy the matrices, None where these are computed; others that want the same copy share it."""
    a = lone_access(found.dot.right, found.dot.dtype, found.view)
    if a is None:
        return None
    t = found.view.types[a.tensor]
    shape = (*t.shape[:-1], copied_row(t.shape[-1], ITEM_BYTES[t.dtype]))
    name, places = sort.name(f"{python_name(a.tensor)}_padded"), tuple(Index(f"i{k}") for k in range(len(shape)))
    copied = Statement(name, places, tuple(map(Int, t.shape)), Access(a.tensor, places), "assign")
    types, strides = {**found.view.types, name: t}, {**found.view.strides, name: contiguous(shape)}
    steps = (Allocate(name, shape, t.dtype), *carry(copied, copied, types, strides))
    key = ("padded", a.tensor, t, tuple(found.view.strides[a.tensor]))
    return PaddedMatrix(name, strides[name], math.prod(shape), Once(key, (name,), steps))


def matrix_boxes(
    found: GroupedProduct, config: Config, setting: Setting, copy: PaddedMatrix | None = None
) -> MatrixBoxes | None:
    """The matrices' boxes of terms and columns, or of a copy's; None where no map has them: they must be lone elements
    at bare variables, one of them summed, one of columns, one of which memory runs along."""
    dot, space, view = found.dot, found.space, found.view
    a = lone_access(dot.right, dot.dtype, view)
    if a is None or dot.batch or len(dot.columns) != 1 or len(dot.summed) != 1:
        return None
    if copy is None and a.tensor in setting.misaligned:
        return None
    name, strides = (a.tensor, view.strides[a.tensor]) if copy is None else (copy.name, copy.strides)
    ((column,), (term,)) = dot.columns, dot.summed
    box = {column: config.bn, term: config.bk}
    start = {column: f"{BLOCK_ACROSS} * BN", term: "step * BK", found.group[0]: "matrix"}
    dims: list[_Dim] = []
    low, extent = space.low[0], space.extent[0]
    for e, n, stride in zip(a.index, view.types[a.tensor].shape, strides, strict=True):
        form = linear(e)
        v = form.bare
        if v is not None and v in start and not low[v] and (v != term or extent[v] == n):
            dims.append(_Dim(n, stride, box.get(v, 1), start[v], v))
        elif not form.terms or (v is not None and space.single(v)):
            dims.append(_Dim(n, stride, 1, str(as_int(form.constant) if v is None else low[v])))
        else:
            return None
    inner = [d for d in dims if d.variable in box and d.stride == 1]
    if sorted(d.variable for d in dims if d.variable) != sorted(start) or len(dims) > MAX_RANK or len(inner) != 1:
        return None
    dims = [*(d for d in dims if d is not inner[0]), *inner]
    size = ITEM_BYTES[dot.dtype]
    if any(d.stride <= 0 or d.stride * size % DESCRIPTOR_ALIGNMENT for d in dims[:-1]) or 0 in [d.size for d in dims]:
        return None
    shape, steps, block = (tuple(getattr(d, n) for d in dims) for n in ("size", "stride", "box"))
    first = next(d for d in dims if d.variable in box)
    return MatrixBoxes(
        Descriptor(name, 0, shape, steps, block, ""), tuple(d.start for d in dims), first.variable == column
    )


@dataclass(frozen=True)
class _Dim:
    """A dimension of a map: elements, their distance, the box's extent, where it begins, and the variable along it."""

    size: int
    stride: int
    box: int
    start: str
    variable: str = ""


def parameter(k: Kernel, d: Descriptor) -> str:
    """The kernel's argument of this map."""
    name = k.names.fresh(f"{python_name(d.tensor)}_map")
    k.parameters[name] = d
    return name


def box_load(map_: str, starts: Sequence[str], int64_index: bool) -> str:
    """The text that brings a box; its places are 32-bit numbers."""
    narrow = "tl.cast(tl.full((), 0, tl.int64) + {}, tl.int32)" if int64_index else "{}"
    return f"{map_}.load([{', '.join(narrow.format(t) for t in starts)}])"


class BoxedWriter(SortedWriter):
    """Rows of a copy in order of their keys, by the matrix of their key."""

    placed = "place"

    def __init__(
        self, found: GroupedProduct, sort: Sort, task: DotTask, matrix: MatrixBoxes, copy: SortedCopy | None = None
    ):
        super().__init__(found, sort, task)
        self.copy, self.matrix = copy, matrix

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
        self.row_end = k.line("stop", f"tl.load({starts} + {key}).to({kind})")
        self.first = k.line("at", f"{begin} + ({own} - {begin} // BM - {key}) * BM")
        k.leave(f"{self.first} >= {self.row_end}")
        k.assign("place", f"{self.first} + tl.arange(0, BM)")
        k.assign(
            "row", f"tl.load({k.pointer(self.sort.order)} + place, mask=place < {self.row_end}, other=0).to({kind})"
        )

    def _loop(self) -> None:
        k, dot = self.kernel, self.dot
        matrix = k.line("matrix", f"tl.maximum({self.key} - 1, 0)")
        k.value_of[self.found.group[0]] = matrix
        k.assign("steps", f"tl.where({self.key} > 0, tl.cdiv({k.count(dot.summed)}, BK), 0)")
        k.assign("acc", self._zeros)
        if self.copy is None:
            k.add(self._blocks(self._multiplied))
            return
        rows = parameter(k, self.copy.map(self.config.bm, self.config.bk))
        left = box_load(rows, (self.first, "step * BK"), k.int64_index)
        k.add(ForLoop("step", "range(0, steps)", multiplied(k, left, self._right())))

    def _multiplied(self, rows: Frame, columns: Frame) -> None:
        """Rows are read where they are."""
        self.kernel.add(*multiplied(self.kernel, self._operand(rows, self.dot.left, ()), self._right()))

    def _right(self) -> str:
        k, boxed = self.kernel, "(BN, BK)" if self.matrix.transposed else "(BK, BN)"
        matrix = k.value_of[self.found.group[0]]
        at = [matrix if t == "matrix" else t for t in self.matrix.starts]
        right = f"{box_load(parameter(k, self.matrix.map), at, k.int64_index)}.reshape{boxed}"
        return f"tl.trans({right})" if self.matrix.transposed else right


class BoxedSumWriter(SortedWriter):
    """A product for each key, summed over the key's points, which are rows of copies of both operands."""

    def __init__(self, found: GroupedProduct, sort: Sort, task: DotTask, left: SortedCopy, right: SortedCopy):
        super().__init__(found, sort, task)
        self.copies = left, right

    def _loop(self) -> None:
        k, config = self.kernel, self.config
        kind = triton_type(self.dot.dtype)
        begin, stop = key_bounds(k, self.sort, self.found, self.integer, config.parts)
        maps = [parameter(k, c.map(config.bk, n)) for c, n in zip(self.copies, (config.bm, config.bn), strict=True)]
        at = (k.line("down_at", f"{BLOCK_DOWN} * BM"), k.line("across_at", f"{BLOCK_ACROSS} * BN"))
        k.assign("acc", self._zeros)
        whole = k.line("whole", f"{begin} + ({stop} - {begin}) // BK * BK")

        def boxes(first: str) -> list[str]:
            return [box_load(m, (first, a), k.int64_index) for m, a in zip(maps, at, strict=True)]

        left, right = boxes("first")
        k.add(ForLoop("first", f"range({begin}, {whole}, BK)", multiplied(k, f"tl.trans({left})", right)))
        # rows of the next key are none of this one's, whatever they hold
        left, right = (f"tl.where(red_in[:, None], {b}, 0.0).to({kind})" for b in boxes(whole))
        own = assign("red_in", f"{whole} + tl.arange(0, BK) < {stop}")
        k.add(If(f"{whole} < {stop}", (own, *multiplied(k, f"tl.trans({left})", right))))


def multiplied(k: Kernel, left: str, right: str) -> tuple[CodeLine, ...]:
    """Lines that add the product of two blocks."""
    a, b = (k.names.fresh(n) for n in ("left", "right"))
    return assign(a, left), assign(b, right), assign("acc", f"tl.dot({a}, {b}, acc)")


def key_bounds(k: Kernel, sort: Sort, found: GroupedProduct, integer: str, parts: int) -> tuple[str, str]:
    """Where the points of the program's own key begin and end, or of its part of them."""
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
    if parts == 1:
        return begin, end
    count = k.number("parts", "n_parts", parts, specialized=False)
    share = k.line("share", f"tl.cdiv(tl.cdiv({end} - {begin}, {count}), BK) * BK")
    own = k.line("begin", f"tl.minimum({begin} + {PROGRAM[2]} * {share}, {end})")
    return own, k.line("stop", f"tl.minimum({own} + {share}, {end})")


def point_shares(found: GroupedProduct, config: Config) -> int:
    """Among how many programs the points of a key are shared: as many as there are multiprocessors for, where sums of
    few blocks would leave most of them idle."""
    tiles = output_tiles(found, config)
    if 2 * tiles > MULTIPROCESSORS:
        return 1
    return max(1, min(TWO_A_MULTIPROCESSOR // tiles, found.points // (found.count * SHARE_STEPS * config.bk)))
