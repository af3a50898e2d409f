"""Elementwise statements that a Hopper kernel computes on its sums, in their registers, before it stores them.

They are a function of the kernel's file, which is given sums and the positions of their rows and columns in whatever
layout these have, and loads what else it reads in that layout. Their text is that of the pointer kernels' epilogue.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilec.backends.common.code import FreshNames, python_name
from tilec.backends.common.scalars import rounds_each
from tilec.backends.triton.emit.device_text import kernel_file
from tilec.backends.triton.emit.epilogue import epilogue_over, finish
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import RESERVED, Axis, Kernel, heading
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.matmul.hopper.form import HopperProblem, Variable
from tilec.backends.triton.plan.lines import Return, assign, expression_texts, names_read
from tilec.backends.triton.plan.source import Heading, KernelFile, KernelFunction
from tilec.ir.index import linear
from tilec.ir.program import Statement, accesses_in
from tilec.ir.types import ITEM_BYTES

FINISHED = "finished"  # of the function
OWN = "e_"  # what its parameters begin with in the kernel
SWIZZLED = 128  # bytes of a row of shared memory
LONG_TEXT = 2048  # instructions for all elements of a thread from which on a loop takes a few of them at a time
PIECE_BITS = 2  # of an element, for a row that each warp has of a piece: a thread has 16 elements or 32 bytes


@dataclass(frozen=True)
class Epilogue:
    """Statements that follow the product whose points are `space`, each reading the one before it at its own element.
    `view`: of all tensors; `told`: all statements as written, the product first; `instructions`: of an element, about;
    `bytes_read`: of further tensors; `stored`: the product's own output is stored too."""

    space: Space
    statements: tuple[Statement, ...]
    view: StridedView
    told: tuple[Statement, ...] = ()
    instructions: float = 0
    bytes_read: int = 0
    stored: bool = False

    @property
    def output(self) -> str:
        return self.statements[-1].output

    @property
    def sums(self) -> str:
        """The product's own output."""
        return self.space.statement.output

    @property
    def outputs(self) -> tuple[str, ...]:
        """Of the product and of all statements after it."""
        return (self.sums, *(s.output for s in self.statements))


@dataclass(frozen=True)
class EpilogueText:
    """The function in its file; its parameters behind the positions, of the kernel then; those whose divisibility makes
    no difference. `contracts`: as a KernelFunction's."""

    file: KernelFile
    arguments: Mapping[str, object]
    unspecialized: tuple[str, ...]
    heading: Heading
    contracts: bool

    @property
    def function(self) -> KernelFunction:
        return self.file.kernel


def is_epilogue(e: Epilogue) -> bool:
    """Whether these kernels can compute it: of one class of elements."""
    return len(e.space.classes) == 1


def by_pieces(e: Epilogue, rows: Iterable[int], columns: Iterable[int], warps: int) -> bool:
    """Whether a tile of these boxes has its epilogue in a loop over swizzled rows of shared memory: where its text
    would be long, and the sums lie there as they are rounded."""
    dtype, height = e.view.types[e.output].dtype, math.prod(rows)
    size = ITEM_BYTES[dtype]
    across = [n for n in columns if n > 1]
    if len(across) != 1 or dtype != e.view.types[e.sums].dtype:
        return False
    whole = across[0] * size % SWIZZLED == 0 and height % (8 * size // PIECE_BITS * warps) == 0
    return whole and height * across[0] // (32 * warps) * e.instructions >= LONG_TEXT


def epilogue_text(e: Epilogue, problem: HopperProblem, split: bool = False) -> EpilogueText | None:
    """The function `finished(sums, row_in, col_in, *positions, *further)` for the problem's variables, whose value is
    what is stored, in float32; None where it is of another type. `split`: of sums that another kernel adds up, all
    elements in one row, `finished(sums, row_in, *positions, *further)`."""
    positions = [v.name for v in (*problem.rows, *problem.columns, *problem.batch)]
    view, vectors = e.view, _along_memory(e)
    kernel = Kernel(FINISHED, e.space, view.types, view.strides, view.int64_index, powers=True, vectors=vectors)
    kernel.names = FreshNames((*RESERVED, "sums", *positions))
    groups: list[tuple[str, str | None, tuple[Variable, ...]]] = [
        ("row", "BM", problem.rows),
        ("col", "BN", problem.columns),
        ("", None, problem.batch),
    ]
    if split:
        groups = [("row", "BLOCK", (*problem.rows, *problem.columns, *problem.batch))]
    axes = {axis: f"{axis}_in" for axis, block, _ in groups if block is not None}
    for axis, block, group in groups:
        for v in group:
            low = e.space.low[0][v.source]
            place = f"{v.name}.to(tl.int64)" if view.int64_index else v.name
            place += f" + {low}" if low else ""
            kernel.value_of[v.source] = v.name if place == v.name else kernel.line(python_name(v.source), place)
            if block is not None:
                kernel.axis_of[v.source] = Axis(axis, (v.source,), block)
    for name in e.space.outputs:
        kernel.value_of.setdefault(name, kernel.low(name))
    frame = Frame(kernel, tuple(axes), axes)
    value, dtype = finish(frame, e.space, "sums", "float32", e.statements, stored=e.stored)
    if dtype != "float32" or kernel.columns or kernel.constants:
        return None
    kernel.add(Return(value))
    given = ("sums", *axes.values(), *positions, *kernel.parameters)
    read = {name for line in kernel.lines for text in expression_texts(line) for name in names_read(text)}
    first = [(axis, group[0].name) for axis, _, group in groups if axis in read]
    body = (*(assign(*pair) for pair in first), *kernel.lines)
    file = kernel_file(KernelFunction(FINISHED, given, (), body, dialect="triton" if split else "gluon"))
    own = {f"{OWN}{name}": value for name, value in kernel.parameters.items()}
    return EpilogueText(
        file,
        own,
        tuple(f"{OWN}{name}" for name in kernel.unspecialized),
        heading(*e.told),
        not rounds_each((e.space.statement, *e.statements)),
    )


def _along_memory(e: Epilogue) -> set[str]:
    """The variables along which memory runs in what is read."""
    return {
        v
        for s in epilogue_over(e.space, e.statements)
        for a in accesses_in(s.body)
        for index, stride in zip(a.index, e.view.strides[a.tensor], strict=True)
        for v in linear(index).variables()
        if abs(linear(index).coefficient(v)) * stride == 1
    }
