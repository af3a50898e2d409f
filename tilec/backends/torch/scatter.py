"""Rule: an output index that is no change of variables (elements of tensors, `%`, `clamp`): values are added, or
combined otherwise, at computed positions. Deterministic on the CPU, where torch does it in order.

Output axes that are plain variables stay dimensions; the others make one position. Points that are not valid write to
an extra row that is dropped. Variables that the output index lacks are reduced first, by whichever rule does that best.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tilec.backends.common.code import part_text, permuted, tuple_text
from tilec.backends.common.domain import Domain, free, row_major
from tilec.backends.common.scalars import accumulation_dtype
from tilec.backends.torch.expr.access import TensorFrame
from tilec.backends.torch.expr.assured import assured, either
from tilec.backends.torch.expr.choices import identity_text
from tilec.backends.torch.expr.general import Loops, block_limit, blocks
from tilec.backends.torch.expr.scalar import TorchScalars
from tilec.backends.torch.expr.task import Task
from tilec.ir.index import Affine, linear
from tilec.ir.program import Access, Index, Int, Statement
from tilec.ir.types import TensorType

HOW = {"max": "amax", "min": "amin", "prod": "prod", "any": "amax", "all": "amin", "logsumexp": "amax"}

_FEWEST_BESIDE = 8  # elements of a row, below which a pass for each class is faster


@dataclass(frozen=True)
class ScatterPositions:
    """`plain`: output axes that are variables of their own; `rest`: the others, which make one position in row-major
    order among themselves."""

    plain: tuple[int, ...]
    rest: tuple[int, ...]
    rows: tuple[Affine, ...]

    def variables(self) -> tuple[str, ...]:
        """Those that the positions depend on."""
        found = [v for a in self.rest for v in sorted(free(self.rows[a]))]
        return tuple(dict.fromkeys(found))


def scatter_lines(task: Task, lines_for: Callable[[Task], list[str]]) -> list[str] | None:
    """Lines that compute the output, for any statement; `lines_for` carries out a reduction that comes first."""
    domain = task.flat_domain
    assert domain is not None
    positions = _positions(task.flat, domain)
    written = {*positions.variables(), *(v for a in positions.plain for v in positions.rows[a].variables())}
    others = [v for v in domain.low if v not in written and domain.extent[v] > 1]
    count = math.prod(domain.extent[v] for v in written)
    reduced = others and task.flat.aggregation != "assign" and _reaches_alike(task.flat, domain, positions)
    if reduced and 8 * count <= task.options.memory_budget:
        return _reduced_first(task, domain, tuple(v for v in domain.low if v in written), lines_for)
    return _scatter_lines(task, domain, positions)


def _reaches_alike(s: Statement, domain: Domain, positions: ScatterPositions) -> bool:
    """Whether reductions over what the output index lacks have points wherever that is inside, or it does not matter
    which have: an element that no point reaches holds the default."""
    return s.default is None or (s.guard is None and all(c.form in positions.rows for c in domain.conditions))


def _positions(s: Statement, domain: Domain) -> ScatterPositions:
    assert s.index is not None
    rows = tuple(map(linear, s.index))
    uses: dict[str, int] = {}
    for row in rows:
        for v in free(row):
            uses[v] = uses.get(v, 0) + 1
    plain = tuple(
        a
        for a, row in enumerate(rows)
        if row.is_affine and len(row.terms) == 1 and row.terms[0][1] == 1 and uses[row.variables()[0]] == 1
        and not any(c.form == row for c in domain.conditions)
    )  # fmt: skip
    return ScatterPositions(plain, tuple(a for a in range(len(rows)) if a not in plain), rows)


def _reduced_first(
    task: Task, domain: Domain, kept: tuple[str, ...], lines_for: Callable[[Task], list[str]]
) -> list[str]:
    """Two statements: the aggregation over what the output index lacks, then the scatter of its result."""
    s = task.flat
    name = task.unused("_parts")
    sizes = tuple(Int(domain.extent[v]) for v in kept)
    shifted = tuple((Affine.variable(v) - domain.low[v]).to_expr() for v in kept)
    first = replace(s, output=name, index=shifted, sizes=sizes, default=None)
    dtype = accumulation_dtype(s.aggregation, task.type.dtype)
    part = task.before(first, TensorType(tuple(n.value for n in sizes), dtype), "_parts")
    second = replace(s, body=Access(name, shifted), guard=None, constraints=())
    whole = replace(part, flat=second, defracted=second, returned=task.returned)
    rest = whole.flat_domain
    assert rest is not None
    return [*lines_for(part), *_scatter_lines(whole, rest, _positions(second, rest)), f"del {part.out}"]


def _scatter_lines(task: Task, domain: Domain, positions: ScatterPositions, into: bool = False) -> list[str]:
    certified = assured(domain, task.types, task.local)
    if certified is None:
        return _tested_lines(task, domain, positions, into)
    test, inside = certified
    fast = _tested_lines(task, inside, _positions(inside.statement, inside), into)
    return either(test, fast, _tested_lines(task, domain, positions, into))


def added_lines(task: Task) -> list[str]:
    """Lines that add the values of a sum to what its contiguous output holds."""
    domain = task.flat_domain
    assert domain is not None
    return _scatter_lines(task, domain, _positions(task.flat, domain), into=True)


def _tested_lines(task: Task, domain: Domain, positions: ScatterPositions, into: bool = False) -> list[str]:
    s = domain.statement
    shape = task.type.shape
    plain_variables = tuple(positions.rows[a].variables()[0] for a in positions.plain)
    order = (*(v for v in domain.low if v not in plain_variables), *plain_variables)
    count = math.prod(shape[a] for a in positions.rest)
    aggregation = s.aggregation
    dtype = accumulation_dtype(aggregation, task.type.dtype)
    compute_dtype = "uint8" if dtype == "bool" else dtype
    buffer = task.names.fresh(task.out.lower())
    rows = count + (1 if domain.masked else 0)
    buffer_shape = tuple_text([rows, *(shape[a] for a in positions.plain)])
    initial = (
        int(identity_text(aggregation, "bool") == "True") if dtype == "bool" else identity_text(aggregation, dtype)
    )
    axes = (*positions.rest, *positions.plain)
    direct = into and rows == count and axes == tuple(range(len(shape)))
    made = f"torch.full({buffer_shape}, {initial}, dtype=torch.{compute_dtype}, device=device)"
    lines = [f"{buffer} = " + (f"{task.out}.view({buffer_shape})" if direct else made)]
    seen = None
    if s.default is not None:
        seen = task.names.fresh("reached")
        lines.append(f"{seen} = torch.zeros({buffer_shape}, dtype=torch.bool, device=device)")
    part = _Pass(task, domain, positions, order, plain_variables, count, compute_dtype)
    lines += part.lines(buffer, aggregation, seen)
    if aggregation == "logsumexp":
        total = task.names.fresh("total")
        lines.append(f"{buffer} = {buffer}.nan_to_num(nan=float('nan'), posinf=float('inf'), neginf=0.0)")
        lines.append(f"{total} = torch.zeros_like({buffer})")
        lines += part.lines(total, "sum", None, shift=buffer)
        infinite = f"torch.isinf({buffer})"
        lines.append(f"{buffer} = torch.where({infinite}, {buffer}, {buffer} + torch.log({total}))")

    def in_order(rows_of: str) -> str:
        """The rows that stand for elements, as the output."""
        kept = rows_of if rows == count else f"{rows_of}[:{count}]"
        view = f"{kept}.view({tuple_text([shape[a] for a in axes])})"
        return permuted(view, [axes.index(a) for a in range(len(shape))])

    if direct:
        return lines
    result = in_order(buffer)
    if into:
        return [*lines, f"{task.out} += {result}"]
    if compute_dtype != task.type.dtype:
        result += f".to(torch.{task.type.dtype})"
    if s.default is not None and seen is not None:
        default = task.local[s.default]
        if task.types[s.default].dtype != task.type.dtype:
            default += f".to(torch.{task.type.dtype})"
        result = f"torch.where({in_order(seen)}, {result}, {default})"
    return [*lines, f"{task.out} = {result}"]


@dataclass(frozen=True)
class _Pass:
    """One walk over the points that combines their values into a buffer of rows."""

    task: Task
    domain: Domain
    positions: ScatterPositions
    order: tuple[str, ...]
    plain: tuple[str, ...]
    count: int
    compute_dtype: str

    def lines(self, buffer: str, aggregation: str, seen: str | None, shift: str | None = None) -> list[str]:
        task, domain, order, plain = self.task, self.domain, self.order, self.plain
        s = domain.statement
        width = math.prod(domain.extent[v] for v in plain)
        limit = math.prod(domain.extent.values()) if self._as_stored(width) else block_limit(task, domain)
        steps = blocks([(v, domain.extent[v]) for v in order], limit)
        loops = Loops(task, domain, order, steps)
        frame = TensorFrame(domain, order, task.types, task.local, task.names, loops.ends)
        evaluator = TorchScalars(frame, *s.roots)
        mask = frame.mask()
        if s.guard is not None:
            test = evaluator.condition(evaluator.value(s.guard))
            mask = test if mask is None else f"{mask} & {test}"
        value = evaluator.value(s.body)
        truth = task.type.dtype == "bool"
        code = f"{evaluator.condition(value)}.to(torch.uint8)" if truth else evaluator.tensor(value, self.compute_dtype)
        position = frame.index(self._row())
        if not self._row().terms:
            position = f"torch.full({tuple_text([1] * len(order))}, {position}, device=device)"
        if mask is not None:
            position = f"torch.where({mask}, {position}, {self.count})"
        lines = frame.lines
        sizes = [frame.size(v) for v in order]
        split = len(order) - len(plain)
        flat, tail = sizes[:split], sizes[split:]
        name = task.names.fresh("values")
        rows = split == 1 and value.number is None and value.variables >= {*order}
        spread = "" if rows else f".expand({tuple_text(sizes)}).reshape({tuple_text(['-1', *tail])})"
        lines.append(f"{name} = ({code}){spread}" if spread else f"{name} = {code}")
        at = task.names.fresh("at")
        masked_plain = (
            mask is not None
            and any(v in plain for c in domain.conditions for v in free(c.form))
            or s.guard is not None
            and bool(plain)
        )
        whole = [*flat, *(tail if masked_plain else ["1"] * len(tail))]
        lines.append(f"{at} = ({position}).expand({tuple_text(whole)}).reshape({tuple_text(['-1', *whole[split:]])})")
        lines += self._combine(buffer, name, at, aggregation, seen, loops, masked_plain, shift)
        return [*frame.prologue, *loops.wrap(lines)]

    def _as_stored(self, width: int) -> bool:
        """Whether values are elements of a tensor that nothing is computed of, in rows that are much larger than what
        is computed of their positions."""
        s = self.domain.statement
        stored = isinstance(s.body, Access) and self.task.types[s.body.tensor].dtype == self.compute_dtype
        forms = [linear(e) for e in s.body.index] if stored and isinstance(s.body, Access) else []
        moving = sorted(v for v, n in self.domain.extent.items() if n > 1)
        read = [f.terms[0][0].name for f in forms if len(f.terms) == 1 and isinstance(f.terms[0][0], Index)]
        return (
            stored and width >= _FEWEST_BESIDE and sorted(v for v in read if self.domain.extent.get(v, 1) > 1) == moving
        )

    def _row(self) -> Affine:
        rest = self.positions.rest
        shape = self.task.type.shape
        return row_major([self.positions.rows[a] for a in rest], [shape[a] for a in rest])

    def _combine(
        self,
        buffer: str,
        values: str,
        at: str,
        aggregation: str,
        seen: str | None,
        loops: Loops,
        full: bool,
        shift: str | None,
    ) -> list[str]:
        domain, shape = self.domain, self.task.type.shape
        parts = []
        for a, v in zip(self.positions.plain, self.plain, strict=True):
            low, n = domain.low[v] + int(self.positions.rows[a].constant), domain.extent[v]
            offset = f" + {low}" if low else ""
            if v in loops.ends:
                first, last = loops.ends[v]
                parts.append(f"{first}{offset}:{last}{offset}")
            else:
                parts.append(":" if low == 0 and n == shape[a] else f"{low}:{low + n}")
        part = part_text("", [":", *parts])
        target = buffer + part
        lines = []
        flat_at = at if full or not self.plain else f"{at}.reshape(-1)"
        spread_at = at if full or not self.plain else f"{at}.expand_as({values})"
        if shift is not None:
            lines.append(f"{values} = torch.exp({values} - torch.gather({shift}{part}, 0, {spread_at}))")
        if aggregation == "sum" and not full:
            lines.append(f"rt.add_rows({target}, {flat_at}, {values})")
        elif aggregation == "sum":
            lines.append(f"{target}.scatter_add_(0, {at}, {values})")
        elif aggregation == "assign":
            lines.append(f"{target}.scatter_(0, {spread_at}, {values})")
        else:
            lines.append(f"{target}.scatter_reduce_(0, {spread_at}, {values}, '{HOW[aggregation]}')")
        if seen is not None:
            lines.append(f"{seen}{part}.scatter_(0, {spread_at}, torch.ones_like({values}, dtype=torch.bool))")
        return lines
