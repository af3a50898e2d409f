"""Two operands as a matrix product: which variables are batch, rows, columns and reduction, and in which layout.

The product is laid out so that its result has the output's own order where possible: the trailing output variables of
one operand are the columns, those of the other before them the rows, whatever is left the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tilec.backends.common.code import tuple_text
from tilec.backends.common.domain import Domain
from tilec.backends.torch.expr.general import Loops, blocks
from tilec.backends.torch.expr.task import Task
from tilec.backends.torch.matmul.factors import LOG, Operand, TorchSemiring, emit
from tilec.ir.types import NARROW

COPY_BLOCKS = 2  # a matrix copied out of windows holds at most this many blocks' worth of elements


@dataclass
class Block:
    """Generated text: `before` the loops, `lines` inside them, `code` of a result with dimensions `order`."""

    before: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    code: str = ""
    order: tuple[str, ...] = ()


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
    if any(v in left.variables for v in outer) and any(v in right.variables for v in outer):
        rows, columns = [v for v in rest if v in left.variables], [v for v in rest if v in right.variables]
        outer = []
    return Layout(batch, tuple(outer), tuple(rows), tuple(columns), summed, left, right)


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
    limit = min(COPY_BLOCKS * task.options.block, task.options.memory_budget // 16)
    copied = [o for o in (layout.left, layout.right) if o.copied(domain, task.types)]
    if not copied:
        return {}
    largest = max(copied, key=lambda o: o.size(domain))
    kept = [v for v in layout.order if v in largest.variables]
    summed = list(layout.summed)
    count = math.prod(domain.extent[v] for v in kept)
    inner_kept = count < math.prod(domain.extent[v] for v in summed)
    order = [*summed, *kept] if inner_kept else [*kept, *summed]
    return blocks([(v, domain.extent[v]) for v in order], limit)


def contraction_lines(
    task: Task,
    domain: Domain,
    a: Operand,
    b: Operand,
    kept: Sequence[str],
    dtype: str,
    loops: Loops | None,
    semiring: TorchSemiring,
) -> Block:
    """The contraction of two operands to `kept`, or one block of it inside `loops`."""
    first, second = (_only(task, domain, o, kept, other, dtype, semiring) for o, other in ((a, b), (b, a)))
    block = Block()
    for summed in (first, second):
        block.before += summed.before
    layout = lay_out(first.operand, second.operand, kept, domain)
    if not layout.summed:
        return _elementwise(task, domain, layout, kept, dtype, loops, block, semiring)
    left = _matrix(task, domain, layout, layout.left, layout.rows, dtype, loops, block, semiring, swapped=False)
    right = _matrix(task, domain, layout, layout.right, layout.columns, dtype, loops, block, semiring, swapped=True)
    in_16_bits = dtype in NARROW
    accumulated = loops is not None and any(v in loops.ends for v in layout.summed)
    if in_16_bits:
        block.code = f"rt.multiply({left}, {right}{', float32_result=True' if accumulated else ''})"
    else:
        template = semiring.matrix[2 if layout.outer else 1 if layout.batch else 0]
        block.code = template.format(left, right, task.options.memory_budget)
    groups = [layout.batch, layout.outer, layout.rows, layout.columns]
    if layout.batch or layout.outer:
        lead = [g for g in groups[:2] if g]
        groups = [*lead, *groups[2:]]
    else:
        groups = groups[2:]
    if any(len(g) != 1 for g in groups):
        sizes = [loops.size(v, domain) if loops else str(domain.extent[v]) for v in layout.order]
        block.code += f".reshape({tuple_text(sizes)})"
    if layout.order != tuple(kept):
        block.code += f".permute({', '.join(str(layout.order.index(v)) for v in kept)})"
    block.order = tuple(kept)
    return block


@dataclass
class _Summed:
    operand: Operand
    before: list[str]


def _only(
    task: Task, domain: Domain, o: Operand, kept: Sequence[str], other: Operand, dtype: str, semiring: TorchSemiring
) -> _Summed:
    """The operand with the variables that stand nowhere else summed away."""
    alone = [v for v in o.variables if v not in kept and v not in other.variables]
    if not alone:
        return _Summed(o, [])
    before, lines, code = emit(o, o.variables, domain, task.types, task.local, task.names, {}, dtype, semiring)
    name = task.names.fresh("s")
    dims = tuple_text([o.variables.index(v) for v in alone])
    rest = tuple(v for v in o.variables if v not in alone)
    return _Summed(Operand(rest, code=name), [*before, *lines, f"{name} = {semiring.total.format(code, dims)}"])


def _matrix(
    task: Task,
    domain: Domain,
    layout: Layout,
    o: Operand,
    own: tuple[str, ...],
    dtype: str,
    loops: Loops | None,
    block: Block,
    semiring: TorchSemiring,
    swapped: bool,
) -> str:
    """Text of one factor: [lead..., own, summed], the last two swapped for the right one. The variable whose neighbours
    are nearest in memory comes last, so that copies run along memory."""
    batch = tuple(v for v in layout.batch if v in o.variables)
    outer = tuple(v for v in layout.outer if v in o.variables)
    nearest_is_own = bool(o.variables) and o.variables[-1] in own
    first, last = (layout.summed, own) if nearest_is_own else (own, layout.summed)
    ends = loops.ends if loops is not None else {}
    order = (*batch, *outer, *first, *last)
    before, lines, code = emit(o, order, domain, task.types, task.local, task.names, ends, dtype, semiring)
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
    if any(v in ends for v in o.variables):
        block.before += before
        block.lines += lines
        return code
    block.before += [*before, *lines]
    if code.isidentifier():
        return code
    if loops is None or not ends:
        return code
    name = task.names.fresh("m")
    block.before.append(f"{name} = {code}")
    return name


def _merge(place: int, count: int) -> str:
    """Text that makes `count` dimensions from `place` on into one."""
    if count == 0:
        return f".unsqueeze({place})"
    return "" if count == 1 else f".flatten({place}, {place + count - 1})"


def _elementwise(
    task: Task,
    domain: Domain,
    layout: Layout,
    kept: Sequence[str],
    dtype: str,
    loops: Loops | None,
    block: Block,
    semiring: TorchSemiring,
) -> Block:
    """A product without a sum: both operands broadcast over `kept`."""
    texts = []
    for o in (layout.left, layout.right):
        order = tuple(v for v in kept if v in o.variables)
        ends = loops.ends if loops is not None else {}
        before, lines, code = emit(o, order, domain, task.types, task.local, task.names, ends, dtype, semiring)
        block.before += before
        block.lines += lines
        if len(order) < len(kept):
            code += "[" + ", ".join(":" if v in order else "None" for v in kept) + "]"
        texts.append(code)
    block.code = f"({semiring.times.format(*texts)})"
    block.order = tuple(kept)
    return block
