"""Which tile a program works on, and its way through the sum."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.backends.triton.matmul.hopper.design import Design, Lines, joined, spell
from tilec.backends.triton.matmul.hopper.views import BIAS, Dim, View


def tile_extents(w: Lines, d: Design) -> None:
    for size, group in (("BM", d.problem.rows), ("BN", d.problem.columns), ("BK", d.problem.summed)):
        w(f"{size}: gl.constexpr = {joined([f'B_{v.name}' for v in group], '*', '1')}")


def counts(w: Lines, d: Design) -> None:
    """Tile extents, the accumulator's layout, how many tiles there are."""
    p = d.problem
    tile_extents(w, d)
    w("DEPTH: gl.constexpr = 256 // left_map_0.dtype.primitive_bitwidth")
    w("mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BN, DEPTH])")
    for v in p.rows + p.columns:
        w(f"{v.name}_tiles = gl.cdiv({v.name}_n, B_{v.name})")
    w(f"row_tiles = {joined([f'{v.name}_tiles' for v in p.rows], '*', '1')}")
    w(f"column_tiles = {joined([f'{v.name}_tiles' for v in p.columns], '*', '1')}")
    if d.specialise:
        outer = [f"{v.name}_n" for v in p.batch] + ["SPLIT"] * d.split + [str(len(p.table))] * (len(p.table) > 1)
        w(f"tiles = {joined(['row_tiles', 'column_tiles', *outer], '*', '1')}")


def box_text(view: View) -> list[str]:
    return ["1" if dim.boxed is None else f"B_{dim.boxed}" for dim in view.dims]


def place(w: Lines, d: Design) -> None:
    """From the number `tile` to the class, the batch, the share of the sum, and the first row and column."""
    p = d.problem
    if len(p.table) > 1:
        w(f"kind = tile % {len(p.table)}", f"tile = tile // {len(p.table)}")
    for name in p.table[0]:
        values = [row[name] for row in p.table]
        w(f"{name} = {values[0]}" if len(values) == 1 else f"{name} = kind * 0 + ({values[0]})")
        for k, value in enumerate(values[1:], 1):
            if value != values[0]:
                w(f"{name} = gl.where(kind == {k}, {value}, {name})")
    if p.batch or d.split:
        w("area = row_tiles * column_tiles", "outer = tile // area", "tile = tile % area")
    with w.block("if GROUP == 1:"):
        w("row = tile // column_tiles", "column = tile % column_tiles")
    with w.block("else:"):
        w("span = GROUP * column_tiles", "first_row = tile // span * GROUP")
        w("height = gl.minimum(row_tiles - first_row, GROUP)")
        w("row = first_row + tile % span % height", "column = tile % span // height")
    for group, counter in ((p.rows, "row"), (p.columns, "column")):
        for v in reversed(group[1:]):
            w(f"{v.name} = {counter} % {v.name}_tiles * B_{v.name}", f"{counter} = {counter} // {v.name}_tiles")
        if group:
            w(f"{group[0].name} = {counter} * B_{group[0].name}")
    for v in reversed(p.batch):
        w(f"{v.name} = outer % {v.name}_n", f"outer = outer // {v.name}_n")
    for v in d.summed:
        w(f"{v.name}_tiles = gl.cdiv({v.name}_n, B_{v.name})")
    total = joined([f"{v.name}_tiles" for v in d.summed], "*", "1")
    if d.split:
        w(f"total = {total}", "share = gl.cdiv(total, SPLIT)", "first = gl.minimum(outer * share, total)")
        w("steps = gl.minimum(share, total - first)")
    else:
        w(f"steps = {total}")


def start(w: Lines, d: Design) -> None:
    """The first summed tile."""
    if not d.split:
        for v in d.summed:
            w(f"{v.name} = steps * 0")
        return
    w("position = first")
    for v in reversed(d.summed[1:]):
        w(f"{v.name} = position % {v.name}_tiles * B_{v.name}", f"position = position // {v.name}_tiles")
    w(f"{d.summed[0].name} = position * B_{d.summed[0].name}")


def advance(w: Lines, d: Design) -> None:
    """The next summed tile, the last variable first."""
    order = list(reversed(d.summed))
    w(f"{order[0].name} += B_{order[0].name}")
    for inner, outer in zip(order, order[1:], strict=False):
        w(f"over = {inner.name} >= {inner.name}_n", f"{inner.name} = gl.where(over, 0, {inner.name})")
        w(f"{outer.name} = gl.where(over, {outer.name} + B_{outer.name}, {outer.name})")


def coordinate(w: Lines, side: str, dim: Dim) -> str:
    """Where a tile begins at a dimension of a map; which residue it has there is left in `<side>_part_<axis>`."""
    if dim.step == 1:
        return spell(dim.form)
    if len(dim.residues) == 1:
        whole = dim.rest - dim.residues[0]
        return (
            f"{dim.boxed} + ({spell(whole)}) // {dim.step}"
            if whole.terms
            else f"{dim.boxed} + {int(whole.constant) // dim.step}"
        )
    w(f"whole = {spell(dim.rest)} + {BIAS * dim.step}", f"{side}_part_{dim.axis} = whole % {dim.step}")
    w(f"{side}_at_{dim.axis} = {dim.boxed} + whole // {dim.step} - {BIAS}")
    return f"{side}_at_{dim.axis}"


def select_copy(w: Lines, side: str, view: View, copies: Sequence[str]) -> None:
    """The copy of the map that the residues choose."""
    for k, (choice, copy) in enumerate(zip(view.choices, copies, strict=True)):
        tests = [f"({side}_part_{dim.axis} == {r})" for dim, r in zip(view.split, choice, strict=True)]
        if len(copies) == 1:
            w(copy)
            continue
        with w.block("else:" if k == len(copies) - 1 else f"{'elif' if k else 'if'} {joined(tests, '&', '')}:"):
            w(copy)
