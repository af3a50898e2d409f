"""Launches of a product: its kernel, the one that adds up the parts of split-K, the one that repairs infinities."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tilec.backends.common.domain import Condition
from tilec.backends.common.pairs import LEAST
from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.emit.kernel import Scope, all_text, triton_type
from tilec.backends.triton.matmul.blocks import Config, choose_config
from tilec.backends.triton.matmul.dot import MEMORY_BYTES, MatrixProduct, dot_is_whole
from tilec.backends.triton.matmul.kernel import PRECISION, SOME_NOT_FINITE, WITHIN, DotTask, DotWriter
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS, TWO_A_MULTIPROCESSOR
from tilec.backends.triton.plan.lines import CodeLine, ForLoop, If
from tilec.backends.triton.plan.plan import Allocate, Launch, Release, Setting, Step
from tilec.backends.triton.plan.sizes import power_of_two
from tilec.backends.triton.pointwise.pointwise import combine_parts, unwritten
from tilec.cost import size_in_bytes
from tilec.ir.index import Affine
from tilec.ir.program import Statement
from tilec.ir.symbolic import is_symbolic

REPAIRED, FEWEST_REPAIRED = 4096, 1024  # elements of a block that is looked through for values that are not finite
FOUR_A_MULTIPROCESSOR = 4 * MULTIPROCESSORS  # programs, with fewer of which blocks are smaller
CAUSE_BLOCK, CAUSE_WARPS = 4 * REPAIRED, 8  # elements of a factor that a program looks at in one go, and its warps
CAUSE_RATE = 2.2e10  # bytes of a factor a second that each multiprocessor reads while all others do


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
    if epilogue and not product.space.covers:
        return None
    on_sums, on_total = (tuple(epilogue), ()) if config.parts == 1 else ((), epilogue)
    return launched_in_parts(make(DotTask(product, PRECISION[setting.precision], config, on_sums)), flat, on_total)


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
    grid = (writer.programs(), len(writer.space.classes), parts)
    return writer.kernel.launches(grid, config.warps, config.stages, flat, *writer.epilogue)


def repair_steps(
    product: MatrixProduct, flat: Statement, causes: Sequence[str] = (), borders: bool = False
) -> list[Step]:
    """A launch that computes again, exactly, the blocks of a finished output that hold anything not finite. `causes`:
    all tensors that could be what made them so wrongly, if these are known. `borders`: none but elements of which some
    points lie outside can be wrong."""
    rows, columns, _ = product.counts
    inside = _inside(product) if borders else ()
    elements, block = rows * columns * product.repeated, 8 * REPAIRED if inside else REPAIRED
    programs = TWO_A_MULTIPROCESSOR if inside else FOUR_A_MULTIPROCESSOR
    while not is_symbolic(elements) and block > FEWEST_REPAIRED and elements < programs * block:
        block //= 2
    bn = min(64, power_of_two(columns))
    bm = min(block // bn, power_of_two(rows))
    bn = min(block // bm, power_of_two(columns))
    cause = _cause(product, causes)
    config = Config(bm, bn, LEAST, CAUSE_WARPS if cause is not None or block > REPAIRED else 4, 1)
    steps = launched(RepairWriter(DotTask(product, "ieee", config), cause, inside), flat)
    return [replace(s, horizontal=cause is None) if isinstance(s, Launch) else s for s in steps]


def _cause(product: MatrixProduct, causes: Sequence[str]) -> str | None:
    """The one tensor that is not finite where the result is wrong, if all programs together take less time to look at
    all of it than at the result."""
    types, strides, output = product.view.types, product.view.strides, product.space.statement.output
    (cause,) = {*causes} if len({*causes}) == 1 else (None,)
    if cause is None or cause not in types or not _is_dense(types[cause].shape, strides[cause]):
        return None
    if any(map(is_symbolic, (*types[cause].shape, *types[output].shape))) or len(product.space.classes) > 1:
        return None
    looked_at = size_in_bytes(types[cause]) / CAUSE_RATE
    return cause if 0 < looked_at < size_in_bytes(types[output]) / MEMORY_BYTES else None


def _inside(product: MatrixProduct) -> tuple[Condition, ...]:
    """What holds of exactly the elements all of whose points lie inside; empty where forms of bare variables do not say
    it."""
    dot, space = product.dot, product.space
    zeros = [z for z in (*dot.zero_left, *dot.zero_right) if isinstance(z, Condition) and z.form.is_affine]
    if len(zeros) < len((*dot.zero_left, *dot.zero_right)) or not all(z.form.is_integral for z in zeros):
        return ()
    if len(space.classes) > 1:
        return ()
    low, extent, found = space.low[0], space.extent[0], list[Condition]()
    for z, first in itertools.product(zeros, (True, False)):
        coefficients = {v: c for v in z.form.variables() if v in dot.summed and (c := z.form.coefficient(v))}
        ends = {v: low[v] + (0 if (c > 0) == first else extent[v] - 1) for v, c in coefficients.items()}
        form = z.form.substitute({v: Affine.of((), end) for v, end in ends.items()})
        found.append(replace(z, form=form))
    return tuple(dict.fromkeys(found))


class RepairWriter(DotWriter):
    """Computes the blocks of a finished output again that hold anything not finite. `cause`: the tensor that is not
    finite then, where it is known. Each of a few programs looks at all of that, and at its blocks if it must.
    `inside`: what holds of elements that cannot be wrong, which are not looked at; none where it is empty."""

    suffix = "_repair"
    reads_vectors = False
    walk_block = str(LEAST)

    def __init__(self, task: DotTask, cause: str | None = None, inside: Sequence[Condition] = ()):
        super().__init__(task)
        self.cause, self.inside = cause, inside
        if cause is not None:
            dot = self.dot
            self.around = (frozenset((*dot.batch, *dot.rows, *dot.columns, "batch", "row", "col")),)

    def programs(self) -> int:
        return super().programs() if self.cause is None else min(self.tiles(), MULTIPROCESSORS)

    def write(self) -> None:
        k = self.kernel
        if self.cause is None:
            self._look_at_block()
        else:
            self._look_at_cause(self.cause)
            k.scopes.append(Scope())
            self._look_at_block("place")
            lines = tuple(k.scopes.pop().lines)
            blocks = k.number("blocks", "blocks", self.tiles(), False)
            k.add(If("unsure", (ForLoop("place", f"range({k.program()}, {blocks}, tl.num_programs(0))", lines),)))
        k.constants = {"BM": self.config.bm, "BN": self.config.bn, **k.constants}

    def _look_at_cause(self, cause: str) -> None:
        k, count = self.kernel, math.prod(self.view.types[cause].shape)
        block = min(CAUSE_BLOCK, power_of_two(count))
        n = k.number("n_cause", "n_cause", count)
        k.assign("known", f"tl.full(({block},), False, tl.int1)")
        k.scopes.append(Scope())
        k.assign("element", f"chunk + tl.arange(0, {block})")
        k.assign("cause", f"tl.load({k.pointer(cause)} + element, mask=element < {n}, other=0)")
        k.assign("known", f"(tl.abs(cause.to({triton_type(self.accumulator.dtype)})) < float('inf')) ^ True", "|=")
        k.close("chunk", f"range(0, {n}, {block})")
        k.assign("unsure", "tl.max(known.to(tl.int32), 0) > 0")

    def _look_at_block(self, number: str = "") -> None:
        k, s = self.kernel, self.space.statement
        self._place(number)
        frame = self._block(*self.around)
        tests = frame.tests(self.inside)
        looked_at = f"{WITHIN} & (({all_text(tests)}) ^ True)" if tests else WITHIN
        value = f"tl.load({frame.element_address(s)}, mask={looked_at}, other=0)"
        k.assign("value", f"{value}.to({triton_type(self.accumulator.dtype)})")
        k.add(If(SOME_NOT_FINITE.format("value"), (self._recompute_rows(),)))

    def _recompute_rows(self) -> CodeLine:
        """A loop that computes some rows of the block again and stores them: few at a time, since what this holds in
        registers counts for programs that only look, too."""
        k, dot, s = self.kernel, self.dot, self.space.statement
        k.scopes.append(Scope())
        frame, own = self._some_rows(), (*self.around, frozenset(("part", *dot.rows)))
        address = frame.element_address(s)
        k.assign("acc", f"tl.full(({self._at_once}, BN), 0, {triton_type(self.accumulator.dtype)})")
        k.add(self._points(self._added, "part", *own))
        self._finish(frame)
        dtype = self.view.types[s.output].dtype
        cast = "" if dtype == self.accumulator.dtype else f".to({triton_type(dtype)})"
        k.store(address, f"acc{cast}", "part_in[:, None] & col_in[None, :]")
        return ForLoop("over", f"range(0, BM, {self._at_once})", tuple(k.scopes.pop().lines))


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements of a tensor lie one after the other, in some order of its axes."""
    expected = 1
    for stride, n in sorted((stride, n) for stride, n in zip(strides, shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= n
    return True
