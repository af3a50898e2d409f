"""Family rows: the statements of a group in one kernel, what only they read staying on the chip.

Three forms. `whole`: a program sees all columns of its rows at once, so that each outside element is read once; where
outputs add up over rows it walks a part of the rows and keeps the sums. `looped`: rows too long for that are walked
block by block, once for each level of statistics. `tiled`: nothing is aggregated over columns, and programs share rows
and columns alike. Sums over rows are two-stage: partial sums a program, combined in order by a second launch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.fusion.groups import Group
from tilec.backends.triton.iteration.coalesce import StridedView, merges
from tilec.backends.triton.plan.plan import Launch
from tilec.backends.triton.plan.sizes import Strides
from tilec.backends.triton.rows.alignment_peeling import Alignment, alignment
from tilec.backends.triton.rows.kernel import RowWalk, RowWriter
from tilec.backends.triton.rows.online_softmax import Rescaled, rescaled
from tilec.backends.triton.rows.shifted_variance import centred
from tilec.backends.triton.rows.tiling import choose_row_tiling, odd
from tilec.backends.triton.rows.walks import NOTHING, RowTiling, levels
from tilec.ir.program import Access, Call, Expr, Index, Int, Statement
from tilec.ir.types import TensorType, Types
from tilec.transforms.util.naming import unlike


@dataclass(frozen=True)
class Rows:
    """What a group becomes: the launch, the partial sums that it makes and the group that combines them, if any."""

    launch: Launch
    partial: Types
    second: Group | None


def row_launch(
    group: Group,
    types: Types,
    strides: Strides,
    int64_index: bool,
    tiling: RowTiling | None = None,
    misaligned: Collection[str] = (),
    told: tuple[Statement, ...] | None = None,
    padded: Collection[str] = (),
) -> Rows:
    """The launch that carries out a group. Its statements, or those `told`, head the kernel. `misaligned`, `padded`:
    see `Setting`."""
    merged, merged_types, merged_strides = _coalesced(group, types, strides)
    tiling = tiling or choose_row_tiling(merged, merged_strides, merged_types)
    made = Rescaled(merged, merged_types, NOTHING, NOTHING)
    heads: frozenset[str] = frozenset()
    aligned: Alignment | None = None
    if tiling.form == "looped":
        made = rescaled(merged, merged_types)
        aligned = alignment(merged, merged_strides, merged_types, tiling.columns, misaligned)
        first = (
            min(tiling.columns, merged.count(merged.columns)) if aligned is None else tiling.columns - aligned.vector
        )
        about = centred(made.group, made.types, first)
        kept = {**made.maxima, **made.places}
        if levels(about.group, kept, about.heads).depth < levels(made.group, kept).depth:
            made, heads = replace(made, group=about.group, types=about.types), about.heads
    elif tiling.form == "whole" or (merged.sums and not merged.totals):
        aligned = alignment(merged, merged_strides, merged_types, tiling.columns, misaligned, tiling.form == "whole")
        tiling, aligned = _by_vectors(tiling, aligned, merged, merged_types)
    writer = RowWriter(made, RowWalk(tiling, heads, aligned, padded), merged_strides, int64_index)
    across = -(-merged.count(merged.columns) // tiling.columns) if merged.totals else 1
    partial, second = _second_stage(group, types, tiling.parts * across)
    return Rows(writer.launch(group.statements if told is None else told), partial, second)


def _by_vectors(
    tiling: RowTiling, aligned: Alignment | None, group: Group, types: Types
) -> tuple[RowTiling, Alignment | None]:
    """Rows that begin alike in their vectors share a program: so many parts, at least, as a vector has elements."""
    if aligned is None:
        return tiling, None
    if tiling.form == "whole":
        tiling = odd(tiling, group, types)
        if not tiling.parts:
            return tiling, aligned
    if tiling.parts < aligned.vector or (tiling.form == "tiled" and tiling.rows != 1):
        return tiling, None
    parts = tiling.parts // aligned.vector * aligned.vector
    if tiling.form == "whole":
        return replace(tiling, parts=parts), aligned
    return replace(tiling, columns=min(tiling.columns, 1024), parts=parts, stages=1), aligned


def _second_stage(group: Group, types: Types, parts: int) -> tuple[dict[str, TensorType], Group | None]:
    """Partial sums, one row a program, or one column of totals, and the group that combines them: what they keep are
    its rows."""
    partial: dict[str, TensorType] = {}
    statements: list[Statement] = []
    columns = group.kept
    part = unlike("p", group.extent)
    for s in group.statements:
        if s.output in group.sums:
            name = f"{s.output}.parts"
            names = (*columns, part) if group.totals else (part, *columns)
            shape = tuple(parts if v == part else group.extent[v] for v in names)
            partial[name] = TensorType(shape, Accumulator.of(s.aggregation, types[s.output].dtype).dtype)
            body = Access(name, tuple(map(Index, names)))
            statements.append(replace(s, body=body, guard=None, constraints=()))
    if not statements:
        return partial, None
    left = {v: n for v, n in group.extent.items() if v in columns or n == 1}
    extent = {part: parts, **left}
    rows = tuple(v for v in extent if v != part)
    return partial, Group((*statements, *group.after), rows, (part,), extent, group.stored, frozenset())


def _coalesced(group: Group, types: Types, strides: Strides) -> tuple[Group, Types, Mapping[str, tuple[int, ...]]]:
    """The group with neighbouring variables that all its tensors walk as one merged."""
    parts: list[Expr] = []
    for s in group.statements:
        parts += [Access(s.output, s.index or ()), s.body, *s.guards]
    constraints = tuple(c for s in group.statements for c in s.constraints)
    all_of_it = Statement("", (), (), Call("tuple", tuple(parts)), constraints=constraints)
    view = StridedView(all_of_it, {**types, "": TensorType((), "float32")}, {**strides, "": ()})
    extent, rows, columns = dict(group.extent), list(group.rows), list(group.columns)
    statistics = bool(group.scans) or any(map(group.reductions, group.statements))
    alike = group.totals or not statistics  # rows and columns are all the same to it

    def wanted(pair: set[str]) -> bool:
        return (alike or len(pair & {*rows}) != 1) and len(pair & {*group.kept}) != 1

    for outer, inner, merged in merges(view, wanted):
        view = merged
        extent[inner] *= extent.pop(outer)
        (rows if outer in rows else columns).remove(outer)
    assert isinstance(view.statement.body, Call)
    left = iter(view.statement.body.args)
    statements = []
    for s in group.statements:
        target = next(left)
        assert isinstance(target, Access)
        body, guard = next(left), None if s.guard is None else next(left)
        sizes = tuple(map(Int, view.types[s.output].shape))
        statements.append(replace(s, index=target.index, sizes=sizes, body=body, guard=guard))
    if group.totals and not any(extent[v] > 1 and v not in group.kept for v in rows):
        rows, columns = [*rows, *columns], []  # programs share these
    found = replace(group, statements=tuple(statements), rows=tuple(rows), columns=tuple(columns), extent=extent)
    return found, view.types, view.strides
