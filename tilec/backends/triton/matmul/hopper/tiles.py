"""Tile scheduling: which tile a program works on, and its walk of the reduction."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.backends.triton.matmul.hopper.design import Design, Lines, joined, spell
from tilec.backends.triton.matmul.hopper.views import BIAS, Dim, View
from tilec.backends.triton.plan.lines import CONSTEXPR, CodeLine, Effect, If, assign


def tile_extents(w: Lines, d: Design) -> None:
    for size, group in (("BM", d.problem.rows), ("BN", d.problem.columns), ("BK", d.problem.summed)):
        w.assign(size, joined([f"B_{v.name}" for v in group], "*", "1"), CONSTEXPR)


def counts(w: Lines, d: Design) -> None:
    """Tile extents, the accumulator's layout, how many tiles there are."""
    p = d.problem
    tile_extents(w, d)
    w.assign("DEPTH", "256 // left_map_0.dtype.primitive_bitwidth", CONSTEXPR)
    w.assign("mma", "gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BN, DEPTH])", CONSTEXPR)
    for v in p.rows + p.columns:
        w.assign(f"{v.name}_tiles", f"gl.cdiv({v.name}_n, {d.reach(v.name)})")
    w.assign("row_tiles", joined([f"{v.name}_tiles" for v in p.rows], "*", "1"))
    w.assign("column_tiles", joined([f"{v.name}_tiles" for v in p.columns], "*", "1"))
    if d.specialise:
        outer = [f"{v.name}_n" for v in p.batch] + ["SPLIT"] * d.split + [str(len(p.table))] * (len(p.table) > 1)
        w.assign("tiles", joined(["row_tiles", "column_tiles", *outer], "*", "1"))


def box_text(view: View) -> list[str]:
    return ["1" if dim.boxed is None else f"B_{dim.boxed}" for dim in view.dims]


def place(w: Lines, d: Design) -> None:
    """From the number `tile` to the class, the batch, the share of the sum, and the first row and column."""
    p = d.problem
    if len(p.table) > 1:
        w.add(assign("kind", f"tile % {len(p.table)}"), assign("tile", f"tile // {len(p.table)}"))
    for name in p.table[0]:
        values = [row[name] for row in p.table]
        w.assign(name, str(values[0]) if len(values) == 1 else f"kind * 0 + ({values[0]})")
        for k, value in enumerate(values[1:], 1):
            if value != values[0]:
                w.assign(name, f"gl.where(kind == {k}, {value}, {name})")
    if p.batch or d.split:
        w.add(
            assign("area", "row_tiles * column_tiles"), assign("outer", "tile // area"), assign("tile", "tile % area")
        )
    with w.branch("GROUP == 1"):
        w.add(assign("row", "tile // column_tiles"), assign("column", "tile % column_tiles"))
    with w.otherwise():
        w.add(assign("span", "GROUP * column_tiles"), assign("first_row", "tile // span * GROUP"))
        w.assign("height", "gl.minimum(row_tiles - first_row, GROUP)")
        w.add(assign("row", "first_row + tile % span % height"), assign("column", "tile % span // height"))
    for group, counter in ((p.rows, "row"), (p.columns, "column")):
        for v in reversed(group[1:]):
            w.add(
                assign(v.name, f"{counter} % {v.name}_tiles * {d.reach(v.name)}"),
                assign(counter, f"{counter} // {v.name}_tiles"),
            )
        if group:
            w.assign(group[0].name, f"{counter} * {d.reach(group[0].name)}")
    for v in reversed(p.batch):
        w.add(assign(v.name, f"outer % {v.name}_n"), assign("outer", f"outer // {v.name}_n"))
    for v in d.summed:
        w.assign(f"{v.name}_tiles", f"gl.cdiv({v.name}_n, B_{v.name})")
    total = joined([f"{v.name}_tiles" for v in d.summed], "*", "1")
    if d.split:
        w.add(
            assign("total", total),
            assign("share", "gl.cdiv(total, SPLIT)"),
            assign("first", "gl.minimum(outer * share, total)"),
        )
        w.assign("steps", "gl.minimum(share, total - first)")
    else:
        w.assign("steps", total)


def start(w: Lines, d: Design) -> None:
    """The first summed tile."""
    if not d.split:
        for v in d.summed:
            w.assign(v.name, "steps * 0")
        return
    w.assign("position", "first")
    for v in reversed(d.summed[1:]):
        w.add(
            assign(v.name, f"position % {v.name}_tiles * B_{v.name}"), assign("position", f"position // {v.name}_tiles")
        )
    w.assign(d.summed[0].name, f"position * B_{d.summed[0].name}")


def advance(w: Lines, d: Design, by: str = "{}") -> None:
    """The next summed tile, the last variable first. `by`: how far, of a tile's extent."""
    order = list(reversed(d.summed))
    w.assign(order[0].name, by.format(f"B_{order[0].name}"), "+=")
    for inner, outer in zip(order, order[1:], strict=False):
        w.add(assign("over", f"{inner.name} >= {inner.name}_n"), assign(inner.name, f"gl.where(over, 0, {inner.name})"))
        w.assign(outer.name, f"gl.where(over, {outer.name} + B_{outer.name}, {outer.name})")


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
    w.add(
        assign("whole", f"{spell(dim.rest)} + {BIAS * dim.step}"),
        assign(f"{side}_part_{dim.axis}", f"whole % {dim.step}"),
    )
    w.assign(f"{side}_at_{dim.axis}", f"{dim.boxed} + whole // {dim.step} - {BIAS}")
    return f"{side}_at_{dim.axis}"


def select_copy(w: Lines, side: str, view: View, copies: Sequence[str]) -> None:
    """The copy of the map that the residues choose."""
    lines: tuple[CodeLine, ...] = (Effect(copies[-1]),)
    for choice, copy in reversed(list(zip(view.choices, copies, strict=True))[:-1]):
        tests = [f"({side}_part_{dim.axis} == {r})" for dim, r in zip(view.split, choice, strict=True)]
        lines = (If(joined(tests, "&", ""), (Effect(copy),), lines),)
    w.add(*lines)
