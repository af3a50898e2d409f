"""Launches of a product: its kernel, the one that adds up the parts of split-K, the one that repairs infinities."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.matmul.blocks import Config, choose_config
from tilec.backends.triton.matmul.dot import LEAST, MatrixProduct, dot_is_whole
from tilec.backends.triton.matmul.kernel import PRECISION, REPAIRED, DotTask, DotWriter, RepairWriter
from tilec.backends.triton.plan.plan import Allocate, Launch, Release, Setting, Step
from tilec.backends.triton.plan.sizes import power_of_two
from tilec.backends.triton.pointwise.pointwise import combine_parts, unwritten
from tilec.ir.program import Statement


def dot_steps(
    product: MatrixProduct,
    flat: Statement,
    setting: Setting,
    epilogue: Sequence[Statement] = (),
    config: Config | None = None,
    make: Callable[[DotTask], DotWriter] = DotWriter,
) -> list[Step] | None:
    """Steps that compute the statement into its output; with an epilogue, its last one's. None where it takes none.
    `make`: another writer of the kernel."""
    config = config or choose_config(product, setting.device.shared)
    if epilogue and (config.parts > 1 or not product.space.covers):
        return None
    task = DotTask(product, PRECISION[setting.precision], config, tuple(epilogue))
    return launched_in_parts(make(task), flat)


def launched_in_parts(writer: DotWriter, flat: Statement, epilogue: Sequence[Statement] = ()) -> list[Step]:
    """The launch of a kernel, and, where its sums are split, one that adds them up in order and has the epilogue."""
    count, space, view = writer.config.parts, writer.space, writer.view
    steps = launched(writer, flat, count)
    if count == 1:
        return steps
    parts, shape = f"{space.statement.output}.parts", (count, math.prod(view.types[space.statement.output].shape))
    accumulator = Accumulator("sum", "int64") if dot_is_whole(writer.dot) else writer.accumulator
    return [
        Allocate(parts, shape, accumulator.dtype, unwritten(space, accumulator)),
        *steps,
        *combine_parts(space, view, count, accumulator, epilogue),
        Release((parts,)),
    ]


def launched(writer: DotWriter, flat: Statement, parts: int = 1) -> list[Step]:
    """The launch of a written kernel, and the table of its classes."""
    writer.write()
    config = writer.config
    grid = (writer.tiles(), len(writer.space.classes), parts)
    return writer.kernel.launches(grid, config.warps, config.stages, flat, *writer.epilogue)


def repair_steps(product: MatrixProduct, flat: Statement) -> list[Step]:
    """A launch that computes again, exactly, the blocks of a finished output that hold anything not finite."""
    rows, columns, _ = product.counts
    bn = min(64, power_of_two(columns))
    bm = min(REPAIRED // bn, power_of_two(rows))
    steps = launched(RepairWriter(DotTask(product, "ieee", Config(bm, bn, LEAST, 4, 1))), flat)
    return [replace(s, horizontal=True) if isinstance(s, Launch) else s for s in steps]
