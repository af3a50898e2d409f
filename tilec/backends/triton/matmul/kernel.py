"""Family dot: matrix products on tensor cores, by `tl.dot`.

The factors of the body fall into a left operand, which holds the rows, and a right one, which holds the columns;
whatever stands in a factor beside a tensor's element is computed on the block that was read (a prologue). The reduction
is walked in blocks of its innermost variable, window by window, or, where that variable is short or none runs along
memory, in blocks of all summed variables together.

A point that is not valid is a zero of one operand, which is nothing only while the other is finite there: where such
points exist, an accumulator that comes out infinite or NaN is computed again point by point with masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tilec.backends.common.code import parenthesised, python_name, tuple_text
from tilec.backends.common.domain import Condition
from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.emit.epilogue import finish
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Axis, Kernel, Scope, all_text, triton_type, where_text
from tilec.backends.triton.emit.scalar import TritonScalars
from tilec.backends.triton.matmul.blocks import Config, inner_variables, output_tiles
from tilec.backends.triton.matmul.dot import MatrixProduct, Zeros, dot_is_whole, guards_among, variables_outside
from tilec.backends.triton.plan.lines import CodeLine, ForLoop, If, assign
from tilec.backends.triton.plan.source import PROGRAM
from tilec.ir.index import linear
from tilec.ir.program import Access, Call, Expr, Statement
from tilec.ir.types import CASTS, FLOATS, NARROW

BLOCKS = {"row": "BM", "red": "BK", "col": "BN"}
BLOCK_DOWN = "(group * GROUP + tile % (GROUP * across) % members)"  # the program's own among blocks of rows
BLOCK_ACROSS = "(tile % (GROUP * across) // members)"
WITHIN = "row_in[:, None] & col_in[None, :]"  # the test of the elements of a block that there are
SOME_NOT_FINITE = "tl.max(tl.max((tl.abs({}) < float('inf')).to(tl.int32) ^ 1, 1), 0) > 0"
RECOMPUTED_ROWS = 8  # rows of such a block that are computed again at a time
PRECISION = {"highest": "tf32x3", "high": "tf32", "medium": "tf32"}


@dataclass(frozen=True)
class DotTask:
    """What the kernel of a product is written from. `precision`: of products of float32, as Triton calls it."""

    product: MatrixProduct
    precision: str
    config: Config
    epilogue: tuple[Statement, ...] = ()


class DotWriter:
    suffix = "_dot"  # of the kernel's name
    reads_vectors = True  # memory is read in vectors along what the operands and the result say
    placed, row_end = "row", ""  # names of where the program's rows are among all, and of what they end at
    stored = WITHIN  # the test of the elements that are stored
    around: tuple[frozenset[str], ...] = ()  # what the scopes around the walk of the reduction bind
    walk_block = "BK"  # text of how many points of the reduction a block holds

    def __init__(self, task: DotTask):
        self.product, self.config, self.precision, self.epilogue = (
            task.product,
            task.config,
            task.precision,
            task.epilogue,
        )
        self.dot, self.space, self.view = task.product.dot, task.product.space, task.product.view
        name, types, strides = (
            python_name(self.space.statement.output) + self.suffix,
            self.view.types,
            self.view.strides,
        )
        vectors = self._along_memory() if self.reads_vectors else None
        self.kernel = Kernel(name, self.space, types, strides, self.view.int64_index, powers=True, vectors=vectors)
        self.accumulator = Accumulator("sum", {"float64": "float64", "int8": "int32"}.get(self.dot.dtype, "float32"))
        self.integer = "tl.int64" if self.view.int64_index else "tl.int32"

    def _along_memory(self) -> set[str]:
        """The variables along which memory runs in an operand or in the result."""
        s = self.space.statement
        return {
            v
            for a in (Access(s.output, s.index or ()), *self._read())
            for e, stride in zip(a.index, self.view.strides[a.tensor], strict=True)
            for v in linear(e).variables()
            if abs(linear(e).coefficient(v)) * stride == 1
        }

    def _read(self) -> list[Access]:
        """What blocks of the operands are read from."""
        return self.product.accesses()

    @cached_property
    def _reduction(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The variables that blocks of the reduction run through, and the windows that are walked one by one."""
        inner = inner_variables(self.product, self.config.bk)
        return inner, tuple(v for v in self.dot.summed if v not in inner)

    def tiles(self) -> int:
        return output_tiles(self.product, self.config)

    def programs(self) -> int:
        """How many there are of a class and a part of its sums."""
        return self.tiles()

    def write(self) -> None:
        k = self.kernel
        self._place()
        self._loop()
        if self._must_look():
            self._recompute()
        self._store()
        k.constants = {"BM": self.config.bm, "BN": self.config.bn, "BK": self.config.bk, **k.constants}

    def _must_look(self) -> bool:
        """Whether some point may be a zero beside an infinity."""
        return bool(self.dot.zero_left or self.dot.zero_right) and not dot_is_whole(self.dot)

    @property
    def _at_once(self) -> int:
        return min(RECOMPUTED_ROWS, self.config.bm)

    def _some_rows(self) -> Frame:
        """The frame of `_at_once` rows of the block, from `over` on, and all of its columns."""
        k, rows = self.kernel, self.dot.rows
        k.assign("part", f"{BLOCK_DOWN} * BM + over + tl.arange(0, {self._at_once})")
        k.assign("part_in", f"part < {k.count(rows)}")
        k.axis_of.pop("row.", None)  # the rows of all of the block stand together no more
        k.decode(Axis("part", rows, str(self._at_once)))
        own = frozenset(("part", *rows))
        return Frame(k, ("part", "col"), {"part": "part_in", "col": "col_in"}, *self.around, own)

    def _place(self, number: str = "") -> None:
        """The rows, columns and batch of a block, the program's own or that of this number; neighbours in time share
        rows and columns in the cache."""
        k, dot = self.kernel, self.dot
        k.residues()
        for v in (*self.space.outputs, *self.space.reductions):
            if self.space.single(v):
                k.value_of[v] = k.low(v)
        pid = number or k.program()
        k.assign("down", self._down())
        k.assign("across", f"tl.cdiv({k.count(dot.columns)}, BN)")
        tile = pid
        if dot.batch:
            k.assign("batch", f"{pid} // (down * across)")
            tile = f"{pid} % (down * across)"
            if len(self.space.classes) > 1:
                k.leave(f"batch >= {k.count(dot.batch)}")
        k.assign("tile", tile)
        if not dot.batch and len(self.space.classes) > 1:
            k.leave("tile >= down * across")
        k.constants["GROUP"] = self.config.group
        k.assign("group", "tile // (GROUP * across)")
        k.assign("members", "tl.minimum(down - group * GROUP, GROUP)")
        self._rows(BLOCK_DOWN)
        k.assign("col", f"{BLOCK_ACROSS} * BN + tl.arange(0, BN)")
        k.assign("row_in", f"{self.placed} < {self.row_end or k.count(dot.rows)}")
        k.assign("col_in", f"col < {k.count(dot.columns)}")
        for axis in (Axis("row", dot.rows, "BM"), Axis("col", dot.columns, "BN"), Axis("batch", dot.batch, None)):
            k.decode(axis)

    def _down(self) -> str:
        return f"tl.cdiv({self.kernel.count(self.dot.rows)}, BM)"

    def _rows(self, block: str) -> None:
        """The numbers of the program's rows, which are those of this block."""
        self.kernel.assign("row", f"{block} * BM + tl.arange(0, BM)")

    def _loop(self) -> None:
        k, config, (inner, windows) = self.kernel, self.config, self._reduction
        k.assign("steps", f"tl.cdiv({k.count(inner)}, BK)" + (f" * ({k.count(windows)})" if windows else ""))
        if config.parts > 1:
            parts = k.number("parts", "n_parts", config.parts, specialized=False)
            k.assign("steps_each", f"tl.cdiv(steps, {parts})")
            k.assign("start", f"{PROGRAM[2]} * steps_each")
            k.assign("end", "tl.minimum(start + steps_each, steps)")
        k.assign("acc", self._zeros)
        k.add(self._blocks(self._multiplied))

    def _multiplied(self, rows: Frame, columns: Frame) -> None:
        dot = self.dot
        left = self._operand(rows, dot.left, dot.zero_left)
        right = self._operand(columns, dot.right, dot.zero_right)
        self.kernel.assign("acc", f"tl.dot({left}, {right}, acc{self._options()})")

    def _options(self) -> str:
        """How tensor cores multiply what the operands are held in."""
        options = f', input_precision="{self.precision}"' if self.dot.dtype == "float32" else ""
        return options + {"float64": ", out_dtype=tl.float64", "int8": ", out_dtype=tl.int32"}.get(self.dot.dtype, "")

    def _blocks(self, body: Callable[[Frame, Frame], None], rare: bool = False) -> ForLoop:
        """A loop over blocks of the reduction: `body` emits its lines, given the frames of a left and a right block.
        `rare`: it is seldom entered, and shall ask for no more memory on the chip than the others."""
        k, config, (inner, windows) = self.kernel, self.config, self._reduction
        count = k.count(inner)
        even = not any(math.prod(e[v] for v in inner) % config.bk for e in self.space.extent)
        k.scopes.append(Scope())
        k.assign("at_step", f"tl.full((), 0, {self.integer}) + step")
        if windows:
            k.assign("window", f"at_step // tl.cdiv({count}, BK)")
            k.assign("red", f"at_step % tl.cdiv({count}, BK) * BK + tl.arange(0, BK)")
            k.decode(Axis("window", windows, None))
        else:
            k.assign("red", "at_step * BK + tl.arange(0, BK)")
        tails = {} if even else {"red": "red_in"}
        if not even:
            k.assign("red_in", f"red < {count}")
        k.decode(Axis("red", inner, "BK"))
        body(*self._frames(tails))
        lines = tuple(k.scopes.pop().lines)
        span = "start, end" if config.parts > 1 else "0, steps"
        walk = f"tl.range({span}, num_stages=1)" if rare else f"range({span})"
        return ForLoop("step", walk, lines)

    def _block(self, *inner: frozenset[str]) -> Frame:
        """The frame of the program's rows and columns."""
        return Frame(self.kernel, ("row", "col"), {"row": "row_in", "col": "col_in"}, *inner)

    @property
    def _zeros(self) -> str:
        """Text of a block of sums of nothing."""
        return f"tl.full((BM, BN), 0, {triton_type(self.accumulator.dtype)})"

    def _frames(self, tails: Mapping[str, str]) -> tuple[Frame, Frame]:
        """Those of a left and a right block, in the walk of the reduction."""
        loop = frozenset((*self.dot.summed, "red", "window"))
        return (
            Frame(self.kernel, ("row", "red"), {"row": "row_in", **tails}, *self.around, loop),
            Frame(self.kernel, ("red", "col"), {"col": "col_in", **tails}, *self.around, loop),
        )

    def _operand(self, frame: Frame, factors: tuple[Expr, ...], zeros, dtype: str | None = None) -> str:
        """A block of an operand, zero where it overhangs or its conditions fail."""
        k, dtype = self.kernel, dtype or self.dot.dtype
        evaluator = self._scalars(frame, factors, zeros)
        lone = factors[0] if len(factors) == 1 else None
        if isinstance(lone, Call) and lone.function in CASTS and dtype in (*NARROW, "int8"):
            inner = lone.args[0]
            stored = isinstance(inner, Access) and self.view.types[inner.tensor].dtype == dtype
            lone = inner if stored else lone
        own: set[str] = set()
        if isinstance(lone, Access) and self.view.types[lone.tensor].dtype == dtype:
            code = frame.read(lone, 0)
            compute_dtype = dtype
            own = set(frame.access_tests(lone))
        else:
            compute_dtype = {"float64": "float64", "int8": "int32"}.get(dtype, "float32")
            code = " * ".join([parenthesised(evaluator.text(f, compute_dtype)) for f in factors])
        tests = [t for t in self._tests(frame, evaluator, zeros) if t not in own]
        if not own or not isinstance(lone, Access):
            tests += [] if isinstance(lone, Access) else [frame.spread(t, a) for a, t in frame.tails.items()]
        axes = frame.dimensions(frozenset().union(*(variables_outside(f) for f in factors)))
        code = where_text(tests, code, "0")
        if isinstance(lone, Access) and frame.tails.keys() - axes:
            missing = [frame.spread(frame.tails[a], a) for a in frame.axes if a in frame.tails and a not in axes]
            code = where_text(missing, code, "0")
        if compute_dtype != dtype or tests:
            code = f"({code}).to({triton_type(dtype)})"
        if len(axes) < 2:
            code = f"tl.broadcast_to({code}, {tuple_text([BLOCKS[a] for a in frame.axes])})"
        name = k.names.fresh("left" if frame.axes[0] == "row" else "right")
        k.assign(name, code)
        return name

    def _scalars(self, frame: Frame, factors: Sequence[Expr], zeros: Zeros) -> TritonScalars:
        """What evaluates factors, and the guards among what zeroes them."""
        return TritonScalars(frame, *factors, *guards_among(zeros))

    def _tests(self, frame: Frame, evaluator: TritonScalars, zeros: Zeros) -> list[str]:
        conditions = [z for z in zeros if isinstance(z, Condition)]
        return [*frame.tests(conditions), *map(evaluator.test, guards_among(zeros))]

    def _recompute(self) -> None:
        """Lines that compute the block again, point by point, if some element is not finite."""
        self.kernel.add(If(SOME_NOT_FINITE.format("acc"), self._exact_sums()))

    def _exact_sums(self) -> tuple[CodeLine, ...]:
        start = assign("acc", self._zeros)
        return (start, self._points(self._added))

    def _added(self, values: list[str], valid: str) -> CodeLine:
        return assign("acc", f"tl.where({valid}, {' * '.join(values)}, 0.0)", "+=")

    def _points(
        self,
        step: Callable[[list[str], str], CodeLine],
        rows: str = "row",
        *around: frozenset[str],
        factors: Sequence[Expr] = (),
    ) -> CodeLine:
        """A loop over the program's own points of the reduction, one at a time: `step` makes its line of the values of
        `factors`, or else the product's, and the test that the point is valid."""
        k, dot, (inner, windows) = self.kernel, self.dot, self._reduction
        count = k.count(inner)
        block = self.walk_block
        steps = f"tl.cdiv({count}, {block})"
        k.scopes.append(Scope())
        k.assign("at_step", f"tl.full((), 0, {self.integer}) + step")
        if windows:
            k.assign("window", f"at_step // {steps}")
            k.decode(Axis("window", windows, None))
        turn = f" % {steps}" if windows else ""
        k.assign("red", f"at_step{turn} * {block} + lane")
        k.decode(Axis("red", inner, None))
        loop = frozenset((*dot.summed, "red", "window"))
        frame = Frame(k, (rows, "col"), {rows: f"{rows}_in", "col": "col_in"}, *around, loop)
        zeros, factors = (*dot.zero_left, *dot.zero_right), factors or (*dot.left, *dot.right)
        evaluator = self._scalars(frame, factors, zeros)
        values = [parenthesised(evaluator.text(f, self.accumulator.dtype)) for f in factors]
        tests = [f"(red < {count})", *self._tests(frame, evaluator, zeros)]
        k.add(step(values, all_text(tests)))
        lines = tuple(k.scopes.pop().lines)
        whole = f"{steps} * ({k.count(windows)})" if windows else steps
        span = "start, end" if self.config.parts > 1 else f"0, {whole}"
        left = f"{count} - step{turn} * {block}"  # behind the last point nothing may be read
        return ForLoop("step", f"range({span})", (ForLoop("lane", f"range(0, tl.minimum({left}, {block}))", lines),))

    def _finish(self, frame: Frame) -> None:
        """What is done to the sums before they are stored."""
        k, dot = self.kernel, self.dot
        evaluator = self._scalars(frame, (), dot.zero_result)
        tests = self._tests(frame, evaluator, dot.zero_result)
        if dot.scale != 1:
            k.assign("acc", f"acc * {float(dot.scale)!r}" if dot.dtype in FLOATS else f"acc.to(tl.int64) * {dot.scale}")
        if tests:
            k.assign("acc", where_text(tests, "acc", "0"))

    def _store(self) -> None:
        k, s = self.kernel, self.space.statement
        frame = self._block(*self.around)
        self._finish(frame)
        value, compute_dtype = finish(frame, self.space, "acc", self.accumulator.dtype, self.epilogue)
        output = self.epilogue[-1].output if self.epilogue else s.output
        dtype = self.view.types[output].dtype
        k.assign("result", value)
        cast = "" if dtype == compute_dtype else f".to({triton_type(dtype)})"
        if self.config.parts > 1:
            cast = ".to(tl.int64)" if dot_is_whole(self.dot) else ""
        k.store(self._stored_at(frame, output), f"result{cast}", self.stored)

    def _stored_at(self, frame: Frame, output: str) -> str:
        """Where an element is stored of an output, or of this program's part of its sums."""
        s = self.space.statement
        if self.config.parts == 1:
            return frame.element_address(s, output)
        index = [frame.form(e) for e in s.index or ()]
        return frame.part_address(output, f"{output}.parts", index, frozenset(frame.axes))
