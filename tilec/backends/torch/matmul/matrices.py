"""Two operands as a matrix product: which variables are batch, rows, columns and reduction, and in which layout.

The product is laid out so that its result has the output's own order where possible: the trailing output variables of
one operand are the columns, those of the other before them the rows, whatever is left the batch. A result that is no
larger than either operand is reordered instead: as a batch, it would read one operand once for each entry, and leave
each entry a small matrix whose long sum the library does not split. So is one whose entries would have few columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilec.backends.common.code import permuted, tuple_text
from tilec.backends.common.domain import Domain
from tilec.backends.torch.expr.general import blocks
from tilec.backends.torch.expr.task import Task
from tilec.backends.torch.matmul.factors import LOG, Operand, TorchSemiring, emit
from tilec.ir.types import NARROW

FEW_OF_A_BATCH, MUCH_SMALLER = 32, 8  # rows or columns of a matrix; and so many times a result is reordered for them
COPY_BLOCKS = 2  # a matrix copied out of windows holds at most this many blocks' worth of elements


@dataclass(frozen=True)
class Layout:
    """`batch` is common to both operands and kept, `summed` common and not; `rows` are the left one's, `columns` the
    right one's, `outer` what of one side stands before both in the output."""

    batch: tuple[str, ...]
    outer: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    summed: tuple[str, ...]
    left: Operand
    right: Operand

    @property
    def order(self) -> tuple[str, ...]:
        return (*self.batch, *self.outer, *self.rows, *self.columns)


def lay_out(a: Operand, b: Operand, kept: Sequence[str], domain: Domain) -> Layout:
    """The layout in which two operands are contracted to a tensor over `kept`, whose order is the wanted one."""
    both = set(a.variables) & set(b.variables)
    batch = tuple(v for v in kept if v in both)
    rest = [v for v in kept if v not in both]
    larger = a if a.size(domain) >= b.size(domain) else b
    summed = tuple(v for v in larger.variables if v in both and v not in kept)
    right = b if not rest or rest[-1] in b.variables else a
    left = a if right is b else b
    split = len(rest)
    while split and rest[split - 1] in right.variables:
        split -= 1
    start = split
    while start and rest[start - 1] in left.variables:
        start -= 1
    outer, rows, columns = rest[:start], rest[start:split], rest[split:]
    mixed = any(v in left.variables for v in outer) and any(v in right.variables for v in outer)
    if mixed or outer and _reordered(left, right, batch, outer, (*rows, *columns), summed, domain):
        rows, columns = [v for v in rest if v in left.variables], [v for v in rest if v in right.variables]
        outer = []
    return Layout(batch, tuple(outer), tuple(rows), tuple(columns), summed, left, right)


def _reordered(
    left: Operand,
    right: Operand,
    batch: Sequence[str],
    outer: Sequence[str],
    inner: Sequence[str],
    summed: Sequence[str],
    domain: Domain,
) -> bool:
    """Whether to join `outer`, of one side, to that side's rows or columns, and reorder the result. Applies where
    something is summed, the result is no larger than either operand, or much smaller than that side where a batch would
    have few rows or columns of it, and the side is copied no more than as a batch."""
    side = left if outer[0] in left.variables else right
    own = [v for v in inner if v in side.variables]
    result = math.prod(domain.extent[v] for v in (*batch, *outer, *inner))
    few = math.prod(domain.extent[v] for v in own) < FEW_OF_A_BATCH and MUCH_SMALLER * result <= side.size(domain)
    if not summed or not (few or result <= min(left.size(domain), right.size(domain))):
        return False
    apart = _in_runs(side, (batch, outer, own, summed), domain)
    return not apart or _in_runs(side, (batch, [*outer, *own], summed), domain)


def _in_runs(o: Operand, groups: Sequence[Sequence[str]], domain: Domain) -> bool:
    """Whether each group stands together, in its order, among the variables of more than one point: a contiguous
    operand is then read as it lies."""
    order = [v for v in o.variables if domain.extent[v] > 1]
    for group in groups:
        within = [v for v in group if v in order]
        if within and order[order.index(within[0]) :][: len(within)] != within:
            return False
    return True


def plan_steps(task: Task, domain: Domain, layout: Layout, semiring: TorchSemiring) -> dict[str, int]:
    """Loops that keep the larger of the copied matrices small, and in the log semiring, which needs copies of all
    three matrices, the operands and the result within the budget."""
    steps = _copy_steps(task, domain, layout)
    if semiring is LOG:
        limit = task.options.memory_budget // 32
        for variables in (layout.order, *((*o.variables,) for o in (layout.left, layout.right))):
            kept = [v for v in variables if v in layout.order]
            summed = [v for v in variables if v not in layout.order]
            for v, step in blocks([(v, domain.extent[v]) for v in (*kept, *summed)], limit).items():
                steps[v] = min(step, steps.get(v, step))
    return steps


def _copy_steps(task: Task, domain: Domain, layout: Layout) -> dict[str, int]:
    copied = [o for o in (layout.left, layout.right) if o.copied(domain, task.types)]
    if not copied:
        return {}
    largest = max(copied, key=lambda o: o.size(domain))
    once = largest.size(domain) == math.prod(domain.extent[v] for v in (*layout.order, *layout.summed))
    limit = (
        task.options.block if once else COPY_BLOCKS * task.options.block
    )  # each element is read once: it is in cache
    limit = min(limit, task.options.memory_budget // 16)
    kept = [v for v in layout.order if v in largest.variables]
    summed = list(layout.summed)
    count = math.prod(domain.extent[v] for v in kept)
    inner_kept = count < math.prod(domain.extent[v] for v in summed)
    order = largest.variables if once else [*summed, *kept] if inner_kept else [*kept, *summed]
    return blocks([(v, domain.extent[v]) for v in order], limit)


class ContractionWriter:
    """Writes the contraction of two operands, or one block of it inside loops (`ends`: their variables, and the ends of
    a block): lines `before` the loops, and `lines` inside them."""

    def __init__(
        self, task: Task, domain: Domain, dtype: str, semiring: TorchSemiring, ends: Mapping[str, tuple[str, str]]
    ):
        self.task, self.domain, self.dtype, self.semiring, self.ends = task, domain, dtype, semiring, ends
        self.before: list[str] = []
        self.lines: list[str] = []

    def text(
        self, a: Operand, b: Operand, kept: tuple[str, ...], scale: str | None = None, bias: str | None = None
    ) -> str:
        """Text of the result, over `kept`. `scale`: of a matrix product times a number; `bias`: of one of 16 bits with
        what is added to each column."""
        a, b = self._only(a, kept, b), self._only(b, kept, a)
        layout = lay_out(a, b, kept, self.domain)
        if not layout.summed:
            return self._elementwise(layout, kept)
        left = self._matrix(layout, layout.left, layout.rows, swapped=False)
        right = self._matrix(layout, layout.right, layout.columns, swapped=True)
        if scale is not None:
            code = f"rt.scaled_product({left}, {right}, {scale})"
        elif self.dtype in NARROW:
            accumulated = any(v in self.ends for v in layout.summed)
            more = f", bias={bias}" if bias else ", float32_result=True" if accumulated else ""
            code = f"rt.multiply({left}, {right}{more})"
        else:
            template = self.semiring.matrix[2 if layout.outer else 1 if layout.batch else 0]
            code = template.format(left, right, self.task.options.memory_budget)
        groups = [*(g for g in (layout.batch, layout.outer) if g), layout.rows, layout.columns]
        if any(len(g) != 1 for g in groups):
            sizes = [
                f"{self.ends[v][1]} - {self.ends[v][0]}" if v in self.ends else self.domain.extent[v]
                for v in layout.order
            ]
            code += f".reshape({tuple_text(sizes)})"
        return permuted(code, [layout.order.index(v) for v in kept])

    def _emit(self, o: Operand, order: tuple[str, ...], blocked: bool = True) -> tuple[list[str], list[str], str]:
        ends = self.ends if blocked else {}
        return emit(self.task, o, order, self.domain, ends, self.dtype, self.semiring)

    def _only(self, o: Operand, kept: Sequence[str], other: Operand) -> Operand:
        """The operand with the variables that stand nowhere else summed away."""
        alone = [v for v in o.variables if v not in kept and v not in other.variables]
        if not alone:
            return o
        before, lines, code = self._emit(o, o.variables, blocked=False)
        name = self.task.names.fresh("s")
        dims = tuple_text([o.variables.index(v) for v in alone])
        self.before += [*before, *lines, f"{name} = {self.semiring.total.format(code, dims)}"]
        return Operand(tuple(v for v in o.variables if v not in alone), code=name)

    def _matrix(self, layout: Layout, o: Operand, own: tuple[str, ...], swapped: bool) -> str:
        """Text of one factor: [lead..., own, summed], the last two swapped for the right one. The variable whose
        neighbours are nearest in memory comes last, so that copies run along memory."""
        batch = tuple(v for v in layout.batch if v in o.variables)
        outer = tuple(v for v in layout.outer if v in o.variables)
        nearest_is_own = bool(o.variables) and o.variables[-1] in own
        first, last = (layout.summed, own) if nearest_is_own else (own, layout.summed)
        order = (*batch, *outer, *first, *last)
        before, lines, code = self._emit(o, order)
        place = len(order)
        for group in (last, first):
            place -= len(group)
            code += _merge(place, len(group))
        if layout.outer:
            place -= len(outer)
            code += _merge(place, len(outer)) if outer or layout.batch else ""
        if layout.batch:
            code += _merge(0, len(batch))
        if nearest_is_own != swapped:
            code += ".mT"
        self.before += before
        if any(v in self.ends for v in o.variables):
            self.lines += lines
            return code
        self.before += lines
        if code.isidentifier() or not self.ends:
            return code
        name = self.task.names.fresh("m")
        self.before.append(f"{name} = {code}")
        return name

    def _elementwise(self, layout: Layout, kept: Sequence[str]) -> str:
        """A product without a sum: both operands broadcast over `kept`."""
        texts = []
        for o in (layout.left, layout.right):
            order = tuple(v for v in kept if v in o.variables)
            before, lines, code = self._emit(o, order)
            self.before += before
            self.lines += lines
            if len(order) < len(kept):
                code += "[" + ", ".join(":" if v in order else "None" for v in kept) + "]"
            texts.append(code)
        return f"({self.semiring.times.format(*texts)})"


def _merge(place: int, count: int) -> str:
    """Text that makes `count` dimensions from `place` on into one."""
    if count == 0:
        return f".unsqueeze({place})"
    return "" if count == 1 else f".flatten({place}, {place + count - 1})"
