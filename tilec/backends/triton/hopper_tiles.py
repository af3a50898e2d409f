"""Which tile a program works on, and its way through the sum."""

from __future__ import annotations

from tilec.backends.triton.hopper_design import Design, Lines, joined
from tilec.backends.triton.hopper_views import View


def extents(w: Lines, d: Design) -> None:
    for size, group in (("BM", d.problem.rows), ("BN", d.problem.columns), ("BK", d.problem.summed)):
        w(f"{size}: gl.constexpr = {joined([f'B_{v.name}' for v in group], '*', '1')}")


def counts(w: Lines, d: Design) -> None:
    """Tile extents, the accumulator's layout, how many tiles there are."""
    p = d.problem
    extents(w, d)
    w("mma: gl.constexpr = gl.NVMMADistributedLayout(")
    w(
        "    version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, BN, 256 // left_map_0.dtype.primitive_bitwidth]",
        ")",
    )
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
    w("area = row_tiles * column_tiles", "outer = tile // area", "tile = tile % area")
    w(
        "span = GROUP * column_tiles",
        "first_row = tile // span * GROUP",
        "height = gl.minimum(row_tiles - first_row, GROUP)",
    )
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
