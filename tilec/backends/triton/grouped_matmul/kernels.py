"""Kernels of grouped products: tiles of a product whose rows, or whose points of the sum, are taken in order of keys.

A block of sorted rows is multiplied by the matrix of each key that it holds, and of each product the rows of that key
are stored: what other rows hold, infinities too, touches nothing. Nothing is padded or copied, and which rows share a
block depends on the keys alone, so that the bits are the same in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.pairs import LEAST
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Axis, Scope, all_text
from tilec.backends.triton.grouped_matmul.boxes import (
    BoxedSumWriter,
    BoxedWriter,
    boxed_rows_pay,
    boxed_sums_pay,
    boxed_time,
    boxes_fit,
    boxes_possible,
    key_bounds,
    matrix_boxes,
    padded_matrix,
    point_shares,
)
from tilec.backends.triton.grouped_matmul.copies import (
    SortedCopy,
    SortedOperand,
    SortedWriter,
    rows_in_place,
    sorted_copy,
)
from tilec.backends.triton.grouped_matmul.products import (
    GroupedProduct,
    group_sums_pay,
    grouped_pays,
    recognise_group_sums,
    recognise_grouped,
)
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.matmul.blocks import TILES, Config, choose_config, fitted, output_tiles
from tilec.backends.triton.matmul.dot import variables_outside
from tilec.backends.triton.matmul.kernel import PRECISION, DotTask
from tilec.backends.triton.matmul.steps import launched_in_parts
from tilec.backends.triton.plan.lines import CodeLine, ForLoop
from tilec.backends.triton.plan.plan import Once, Release, Setting, Step
from tilec.backends.triton.plan.sizes import power_of_two
from tilec.backends.triton.scatter.scatter import ScatterContext, sorted_points
from tilec.backends.triton.scatter.sort import Sort
from tilec.backends.triton.scatter.sort_text import KEY_SHIFT
from tilec.ir.at_sizes import least
from tilec.ir.program import Statement
from tilec.ir.types import ITEM_BYTES

# of 16 bits: the fastest of ten settings for rows, and for sums over points, at three sizes on an H100
ROW_TILE, SUM_TILE = Config(64, 128, 64, 4, 4), Config(128, 128, 64, 8, 4)
BOXED_TILES = (
    Config(128, 256, 64, 8, 4),
    Config(128, 128, 64, 8, 3),
    Config(64, 256, 64, 4, 4),
    Config(64, 128, 64, 4, 4),
    Config(128, 64, 64, 4, 4),
)


@dataclass(frozen=True)
class GroupedTask:
    """A grouped product and what it is planned with."""

    found: GroupedProduct
    config: Config
    flat: Statement
    setting: Setting
    context: ScatterContext
    epilogue: Sequence[Statement] = ()

    @property
    def sort(self) -> Sort:
        return Sort(self.found.space.statement.output, self.found.points, self.found.count, self.context.int64_index)

    @property
    def ordered(self) -> Once:
        """The points in order of their keys."""
        found = self.found
        return sorted_points(
            self.sort, found.places, (), replace(self.context, types=found.types, strides=found.strides)
        )

    @property
    def how(self) -> tuple[GroupedProduct, Sort, DotTask]:
        """What writers of kernels take."""
        epilogue = tuple(self.epilogue) if self.config.parts == 1 else ()
        task = DotTask(self.found, PRECISION[self.setting.precision], self.config, epilogue)
        return self.found, self.sort, task

    def rows(self) -> list[Step] | None:
        """Steps that sort the rows by key and multiply; None where they take no such epilogue."""
        if self.epilogue and not self.found.space.covers:
            return None
        return _boxed_rows(self) or self.steps(GroupedWriter(*self.how))

    def copy(self, operand: SortedOperand) -> SortedCopy:
        """A copy of an operand in order of the keys."""
        return sorted_copy(self.found, self.sort, self.ordered, operand)

    def steps(self, writer: SortedWriter, *copies: Once) -> list[Step]:
        """Steps that sort, copy, multiply and let go."""
        made = (self.ordered, *copies)
        own = launched_in_parts(writer, self.flat, self.epilogue)
        return [*made, *own, Release(tuple(n for m in made for n in m.makes))]


def grouped_product(space: Space, view: StridedView, setting: Setting) -> tuple[GroupedProduct, Config] | None:
    """The statement as a product of each row by its key's matrix, and the blocks, where that pays."""
    found = recognise_grouped(space, view)
    if found is None:
        return None
    config = _blocks(found, ROW_TILE, setting)
    mean = power_of_two(-(-found.points // found.count))
    config = replace(config, bm=min(config.bm, max(LEAST, mean)))
    return (found, config) if grouped_pays(found, config.bm) else None


def group_sum_steps(
    flat: Statement, context: ScatterContext, setting: Setting, epilogue: Sequence[Statement] = ()
) -> list[Step] | None:
    """Steps that sum a product over the points of each key, and its epilogue; None where the statement is none, or
    terms one by one take less time."""
    found = recognise_group_sums(flat, context.types, context.strides, context.int64_index)
    if found is None:
        return None
    config = _sum_blocks(found, setting)
    if not group_sums_pay(found, output_tiles(found, config) * config.parts):
        return None
    task = GroupedTask(found, config, flat, setting, context, epilogue)
    return _boxed_sums(task) or task.steps(GroupSumWriter(*task.how))


def _boxed_rows(task: GroupedTask) -> list[Step] | None:
    """Steps of a product whose operands come in boxes, None where these do not pay or fit."""
    found = task.found
    dot, space = found.dot, found.space
    if not boxes_possible(found, task.setting) or any({*found.group} & variables_outside(f) for f in dot.left):
        return None
    task = replace(task, config=_boxed_tile(found, task.setting))
    padded, matrix = None, matrix_boxes(found, task.config, task.setting)
    if matrix is None and (padded := padded_matrix(found, task.sort, task.context.carry)) is not None:
        matrix = matrix_boxes(found, task.config, task.setting, padded)
    in_place = rows_in_place(found, task.setting)
    copied = (0 if in_place else found.points * space.count(dot.summed)) + (0 if padded is None else padded.elements)
    if matrix is None or not boxed_rows_pay(found, task.setting, copied):
        return None
    before = () if padded is None else (padded.once,)
    if in_place:
        return task.steps(BoxedWriter(*task.how, matrix), *before)
    copy = task.copy(SortedOperand(dot.left, (), dot.rows, dot.summed))
    return task.steps(BoxedWriter(*task.how, matrix, copy), *before, copy.once)


def _boxed_sums(task: GroupedTask) -> list[Step] | None:
    """The same of sums over the points of each key."""
    found, dot = task.found, task.found.dot
    if not boxes_possible(found, task.setting):
        return None
    task = replace(task, config=_boxed_tile(found, task.setting))
    if not boxed_sums_pay(found, task.setting, task.config):
        return None
    left, right = (
        task.copy(SortedOperand(side, found.asked, dot.summed, columns))
        for side, columns in ((dot.left, dot.rows), (dot.right, dot.columns))
    )
    return task.steps(BoxedSumWriter(*task.how, left, right), left.once, right.once)


def _boxed_tile(found: GroupedProduct, setting: Setting) -> Config:
    """The blocks of a product of boxes that take least time by the model of Hopper's products."""
    fitting = [c for c in BOXED_TILES if boxes_fit(c, setting)]
    split = [replace(c, parts=n) for c in fitting if found.dot.batch and (n := point_shares(found, c)) > 1]
    return least([*fitting, *split], lambda c: boxed_time(found, c))


def _sum_blocks(found: GroupedProduct, setting: Setting) -> Config:
    """The blocks of sums over the points of each key. Where there are few of them, the points of a key are shared among
    programs, so that each of these has blocks as large as those of many."""
    rows, columns = (max(LEAST, power_of_two(found.space.count(v))) for v in (found.dot.rows, found.dot.columns))
    tiles = (Config(*t) for t in TILES[ITEM_BYTES[found.dot.dtype]])
    large = next(c for c in tiles if c.bm <= SUM_TILE.bm and c.bn <= SUM_TILE.bn)
    large = replace(large, bm=min(large.bm, rows), bn=min(large.bn, columns))
    parts = point_shares(found, large)
    if parts == 1:
        return _blocks(found, SUM_TILE, setting)
    return replace(fitted(large, ITEM_BYTES[found.dot.dtype], setting.device.shared), parts=parts)


def _blocks(found: GroupedProduct, largest: Config, setting: Setting) -> Config:
    """The blocks of a product, of 16-bit operands no larger than these: rows and points are read one by one."""
    config = replace(choose_config(found, setting.device.shared), parts=1)
    large = ITEM_BYTES[found.dot.dtype] == 2 and config.bm * config.bn > largest.bm * largest.bn
    return fitted(replace(largest, bk=config.bk), 2, setting.device.shared) if large else config


class GroupedWriter(SortedWriter):
    """Rows in order of their keys, each by the matrix of its own."""

    placed = "place"

    def __init__(self, found: GroupedProduct, sort: Sort, task: DotTask):
        super().__init__(found, sort, task)
        self.key = self.kernel.names.fresh("key")
        self.around = (frozenset((*found.group, *found.space.outputs, "row", "col")),)

    def _rows(self, block: str) -> None:
        k, sort = self.kernel, self.sort
        k.assign("place", f"{block} * BM + tl.arange(0, BM)")
        order, inside = k.pointer(sort.order), f"place < {k.count(self.dot.rows)}"
        keys = k.pointer(sort.moved[0])
        item = k.line("item", f"tl.load({order} + place, mask={inside}, other=0)")
        shift = f" >> {KEY_SHIFT}" if sort.packed else ""
        kind = self.integer
        own = item if sort.packed else k.line("item", f"tl.load({keys} + place, mask={inside}, other=0)")
        before = k.line("before", f"tl.load({keys} + place - 1, mask=({inside}) & (place > 0), other=0)")
        self.keys = k.line("keys", f"({own}{shift}).to({kind})")
        k.assign("row", f"{item}.to({kind})")
        # the first of a block may have its like in the block before
        head = f"(({before}{shift}).to({kind}) != {self.keys}) | (tl.arange(0, BM) == 0)"
        self.distinct = k.line("distinct", f"tl.sum((({inside}) & ({head})).to(tl.int32), 0)")

    def _loop(self) -> None:
        """A product for each key of the block, and the rows of that key stored; none for those that have no key."""
        k, key = self.kernel, self.key
        beyond = k.number("keys", "beyond", self.found.count + 1, False)
        k.assign(key, f"tl.min(tl.where(row_in, {self.keys}, {beyond}), 0)")
        k.scopes.append(Scope())
        k.value_of[self.found.group[0]] = k.line("matrix", f"tl.maximum({key} - 1, 0)")
        super()._loop()
        super()._store()
        k.assign(key, f"tl.min(tl.where({self.keys} > {key}, {self.keys}, {beyond}), 0)")
        lines = tuple(k.scopes.pop().lines)
        k.add(ForLoop("over", f"range({self.distinct})", lines))

    def _finish(self, frame: Frame) -> None:
        super()._finish(frame)
        self.kernel.assign("acc", f"tl.where({self.key} > 0, acc, 0)")
        self.stored = f"(row_in & ({self.keys} == {self.key}))[:, None] & col_in[None, :]"

    def _store(self) -> None:
        """In the walk."""


class GroupSumWriter(SortedWriter):
    """A product for each key, summed over the key's points."""

    def _loop(self) -> None:
        k = self.kernel
        self.begin, self.end = key_bounds(k, self.sort, self.found, self.integer, self.config.parts)
        k.assign("acc", self._zeros)
        k.add(self._points_of_key())

    def _points_of_key(self) -> CodeLine:
        k, order = self.kernel, self.kernel.pointer(self.sort.order)
        k.scopes.append(Scope())
        k.assign("place", "first + tl.arange(0, BK)")
        k.assign("red_in", f"place < {self.end}")
        k.assign("red", f"tl.load({order} + place, mask=red_in, other=0).to({self.integer})")
        k.decode(Axis("red", self.found.dot.summed, "BK"))
        self._ask()
        frames = self._frames({"red": "red_in"})
        self._multiplied(*frames)
        lines = tuple(k.scopes.pop().lines)
        return ForLoop("first", f"range({self.begin}, {self.end}, BK)", lines)

    def _ask(self) -> None:
        """Points at which a condition fails count as outside, for both operands."""
        k, asked = self.kernel, self.found.asked
        if not asked:
            return
        frame = Frame(k, ("red",), {"red": "red_in"}, frozenset((*self.found.dot.summed, "red")))
        tests = self._tests(frame, self._scalars(frame, (), asked), asked)
        k.assign("red_in", all_text(["red_in", *tests]))
