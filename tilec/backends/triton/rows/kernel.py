"""The text of a group's kernel, in each of its forms (see `rows`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.code import python_name, tuple_text
from tilec.backends.common.scalar_writer import ScalarValue
from tilec.backends.common.scalars import count_uses
from tilec.backends.triton.emit.contiguity import innermost_index
from tilec.backends.triton.emit.frame import Frame, free_of
from tilec.backends.triton.emit.kernel import Axis, Kernel, Scope, triton_type
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.plan.lines import Assignment, CodeLine, ForLoop, assign
from tilec.backends.triton.plan.plan import Launch
from tilec.backends.triton.plan.sizes import Strides
from tilec.backends.triton.rows.alignment_peeling import (
    AlignedFrame,
    Alignment,
    begin,
    position,
    rows_begin,
)
from tilec.backends.triton.rows.block_values import BlockValues
from tilec.backends.triton.rows.online_softmax import Rescaled
from tilec.backends.triton.rows.tiling import stay_in_cache
from tilec.backends.triton.rows.walks import (
    NOTHING,
    RowTiling,
    fills_blocks,
    levels,
    read_again,
    unrolls,
    width_of_block,
)
from tilec.ir.index import linear
from tilec.ir.program import Access, Statement, index_variables, value_accesses, variables_of
from tilec.ir.types import NARROW


@dataclass(frozen=True)
class RowWalk:
    """How a kernel goes through its rows. `heads`: see `levels`. `aligned`: where rows begin anywhere in vectors, and
    are walked. `padded`: see `Setting`."""

    tiling: RowTiling
    heads: Collection[str] = ()
    aligned: Alignment | None = None
    padded: Collection[str] = ()


def _along_rows(made: Rescaled, strides: Strides) -> Collection[str] | None:
    """The variables along which vectors may lie where no tensor runs along columns, as of partial sums of rows; None
    where one does. What divides the number of columns makes no difference then, and is asked of no open size."""
    group = made.group
    for s in group.statements:
        for a in (Access(s.output, s.index or ()), *value_accesses(s)):
            found = innermost_index(a, strides[a.tensor], group.extent.__getitem__) if a.tensor in strides else None
            if found is not None and not found[1].isdisjoint(group.columns):
                return None
    return [v for v in (*group.rows, *group.columns)[-2:] if v in group.rows]


class RowWriter(BlockValues):
    """The kernel of a group."""

    def __init__(self, made: Rescaled, walk: RowWalk, strides: Strides, int64_index: bool):
        group = made.group
        self.tiling, self.heads, self.aligned = walk.tiling, walk.heads, walk.aligned
        zero = dict.fromkeys(group.extent, 0)
        last = group.statements[-1]
        outputs = (*group.rows, *group.columns)
        space = Space(last, outputs, (), (), ({},), (zero,), (group.extent,), (), (), True)
        name, vectors = python_name(last.output) + "_rows", _along_rows(made, strides)
        k = Kernel(name, space, made.types, strides, int64_index, powers=True, vectors=vectors)
        k.blockwise = True
        k.padded = walk.padded if self.tiling.vectors else ()  # where threads have single elements tests of these do
        self.width = width_of_block(group, walk.tiling, 0 if self.aligned is None else self.aligned.vector - 1)
        k.constants |= {"WIDTH": self.width} if self.width else {}
        super().__init__(k, made, self.aligned is None and fills_blocks(group, walk.tiling))

    def launch(self, flat: tuple[Statement, ...]) -> Launch:
        k, t, group = self.k, self.tiling, self.group
        {"whole": self._whole, "looped": self._looped, "tiled": self._tiled}[t.form]()
        k.constants = {"BM": t.rows, "BN": t.columns, **k.constants}
        alike = 1 if self.aligned is None else self.aligned.vector
        tiles = t.parts or -(-group.count(group.rows) // (t.rows * alike)) * alike
        tiles *= group.count(group.kept) if group.totals else 1
        if t.form == "tiled":
            tiles *= -(-(group.count(group.columns) + alike - 1) // t.columns)
        outputs = tuple(s.output for s in group.statements)
        return replace(k.launch((tiles, 1, 1), t.warps, t.stages, *flat), statements=outputs)

    # forms

    def _whole(self) -> None:
        k = self.k
        k.assign("down", self.k.program())
        if self.aligned is None:
            self._position("col", self.group.columns, "0")
        else:
            begin(k, self.aligned, k.count(self.group.columns))
            position(k, self.aligned, "0", limit="WIDTH" if self.width else "")
            k.decode(Axis("col", self.group.columns, "BN"))
        self._walk_rows(self._all_at_once)

    def _tiled(self) -> None:
        k = self.k
        k.assign("tile", self.k.program())
        count, aligned = k.count(self.group.columns), self.aligned
        k.assign("across", f"tl.cdiv({count if aligned is None else f'{count} + {aligned.vector - 1}'}, BN)")
        k.assign("down", "tile // across")
        k.assign("over", "tile % across")
        if aligned is None:
            self._position("col", self.group.columns, "over * BN")
        else:
            begin(k, aligned, count)
            position(k, aligned, "over * BN")
            k.decode(Axis("col", self.group.columns, "BN"))
        self._walk_rows(self._all_at_once)

    def _walk_rows(self, body: Callable[[Frame], None]) -> None:
        """The rows of this program: one block, or one after the other, as where outputs add up over them."""
        k, group = self.k, self.group
        if not self.tiling.parts:
            self._rows_at_once()
            body(self._frame())
            return
        alike = 1 if self.aligned is None else self.aligned.vector
        step = self.tiling.rows * alike
        rows = tuple(v for v in group.rows if not group.totals or v not in group.kept)
        blocks = -(-group.count(rows) // step)
        share = -(-blocks // (self.tiling.parts // alike)) * step
        part, count = k.number("part", "part_size", share), k.count(rows)
        if self.aligned is not None:  # rows that begin alike, so many of them
            k.assign("start", f"down // {alike} * {part}")
            k.assign("end", f"tl.minimum(start + {part}, {count})")
            k.assign("start", f"down % {alike}", "+=")
        elif len(rows) < len(group.rows):
            parts = k.number("parts", "parts", self.tiling.parts)
            k.assign("batch", f"down // {parts}")
            k.assign("start", f"batch * ({count}) + down % {parts} * {part}")
            k.assign("end", f"tl.minimum(start + {part}, (batch + 1) * ({count}))")
        else:
            k.assign("start", f"down * {part}")
            k.assign("end", f"tl.minimum(start + {part}, {count})")
        if group.totals:  # a loop that is unrolled is wrong where its end is before its start
            k.assign("end", "tl.maximum(start, end)")
        for s in group.statements:
            if s.output in group.sums:
                accumulator = self.running.accumulators[s.output] = self._accumulator(s)
                k.scopes[0].lines += accumulator.start("(BM, BN)")
        before, ahead = self._read_ahead("start")
        k.scopes[0].lines += before
        k.scopes.append(Scope())
        if self.aligned is None:
            self._position("row", group.rows, "first", "end")
        else:
            self._rows_alike("first", "end")
        frame = self._frame(frozenset(("row", *group.rows)))
        for a, name in ahead.items():
            t = self.types[a.tensor]
            self.values[a] = ScalarValue(f"{name}.to(tl.float32)", t.element(), "float32", free_of(a), exact=True)
        body(frame)
        lines = k.scopes.pop().lines
        after, there = self._read_ahead("first + BM")
        lines = [*after, *lines, *(assign(name, there[a]) for a, name in ahead.items())]
        stages, by = self.tiling.stages, "BM" if alike == 1 else str(step)
        how = f", num_stages={stages}" if stages > 1 else ", loop_unroll_factor=4" if group.totals else ""
        walk = f"tl.range(start, end, {by}{how})" if how else f"range(start, end, {by})"
        k.scopes[0].lines.append(ForLoop("first", walk, tuple(lines)))
        for s in group.statements:
            if s.output in group.sums:
                self._store_part(s)

    def _read_ahead(self, start: str) -> tuple[list[CodeLine], dict[Access, str]]:
        """Lines that read what rows from `start` on have beside their columns, and names by access. Loads of less than
        four bytes are not under way before their row's turn by themselves."""
        k, group = self.k, self.group
        members = {s.output for s in group.statements}
        values = count_uses([r for s in group.statements for r in (s.body, *s.guards)])
        small = [
            a for a in values
            if isinstance(a, Access) and a.tensor not in members and self.types[a.tensor].dtype in NARROW
            and a.index and all(linear(e).bare in group.rows for e in a.index)
        ]  # fmt: skip
        if self.tiling.stages == 1 or self.aligned is not None:
            return [], {}
        k.scopes.append(Scope())
        self._position("row", group.rows, start, "end")
        frame = self._frame(frozenset(("row", *group.rows)))
        names = {a: frame.read(a, None) for a in small}
        lines = k.scopes.pop().lines  # what stays as it was while the rows go on
        lines = [replace(line, shared=False) if isinstance(line, Assignment) else line for line in lines]
        return (lines, names) if names else ([], {})

    def _looped(self) -> None:
        """Rows stay, columns pass once for each level of statistics."""
        k, group = self.k, self.group
        k.assign("down", self.k.program())
        end = "span"
        if self.aligned is None:
            end = self._count(group.columns)
        else:
            begin(k, self.aligned, self._count(group.columns))
        self._rows_at_once()
        found = levels(group, {**self.maxima, **self.places}, self.heads)
        again = read_again(group, found)
        again = again if stay_in_cache(again, self.tiling, group, k.types) else set()
        for level in range(found.depth):
            policy = "evict_first" if level == found.depth - 1 else "evict_last"
            hints = dict.fromkeys(again, f', eviction_policy="{policy}"')
            here = [s for s in group.statements if found.of[s.output] == level]
            statistics = [s for s in here if group.reductions(s)]
            heads = [s for s in statistics if s.output in self.heads]
            if heads:
                self._pass(heads, [], "range(0, 1, BN)", True)
            stored = [s for s in here if s.output in group.stored and self._walks(s, written=True)]
            walked = [s for s in statistics if s not in heads]
            times = 4 if self.tiling.columns == 1 else 2 if self.filled and unrolls(group, self.tiling) else 1
            walk = f"tl.range(0, {end}, BN, loop_unroll_factor={times})" if times > 1 else f"range(0, {end}, BN)"
            self._pass(walked, stored, walk, hints=hints)
        frame = self._frame()
        self._evaluate(frame, [s for s in group.statements if not self._walks(s) and not group.reductions(s)])
        for s in group.statements:
            if s.output in group.stored and not self._walks(s, written=True):
                self._store(frame, s)

    def _walks(self, s: Statement, written: bool = False) -> bool:
        """Whether a member's value, or with `written` what it writes, depends on the column."""
        names = index_variables(*(s.index or ())) if written else variables_of(s)
        return any(v in self.group.columns and self.group.extent[v] > 1 for v in names)

    def _pass(
        self,
        statistics: Sequence[Statement],
        stored: Sequence[Statement],
        walk: str,
        head: bool = False,
        hints: Mapping[str, str] = NOTHING,
    ) -> None:
        """A walk over blocks of columns, or a look at the first, that finds some statistics and stores some values.
        `hints`: see `Frame`."""
        k, group = self.k, self.group
        k.scopes.append(Scope())
        if self.aligned is not None:
            position(k, self.aligned, "first", str(self.aligned.vector) if head else "head")
            k.decode(Axis("col", group.columns, "BN"))
        else:
            self._position("col", group.columns, "first")
        frame = self._frame(frozenset(("col", *group.columns)))
        frame.hints = hints
        wanted = self._with_operands([*statistics, *stored])
        self._evaluate(frame, wanted, {s.output for s in statistics})
        for s in stored:
            self._store(frame, s)
        k.close("first", walk, 0)
        k.scopes[0].lines += self.running.ended([s.output for s in statistics])
        for s in statistics:
            accumulator = self.running.accumulators[s.output]
            self._give_statistic(frame, s, accumulator, accumulator.result())
        for s in wanted:
            if self._walks(s, written=True):
                del self.values[Access(s.output, s.index or ())]

    def _with_operands(self, statements: Sequence[Statement]) -> list[Statement]:
        """These, and the members whose values they need and that are not at hand, in order."""
        by_name = {s.output: s for s in self.group.statements}
        wanted: set[str] = set()
        pending = list(statements)
        while pending:
            s = pending.pop()
            wanted.add(s.output)
            pending += [
                by_name[a.tensor] for a in value_accesses(s)
                if a.tensor in by_name and a.tensor not in wanted and a not in self.values
            ]  # fmt: skip
        return [s for s in self.group.statements if s.output in wanted]

    def _all_at_once(self, frame: Frame) -> None:
        group = self.group
        known = levels(group).of  # what waits for the same exchanges stands together, so that these are few
        self._evaluate(frame, sorted(group.statements, key=lambda s: known[s.output]))
        for s in group.statements:
            if s.output in group.stored and s.output not in group.sums:
                self._store(frame, s)

    # positions

    def _rows_at_once(self) -> None:
        """Where this program's only block of rows is."""
        k, rows = self.k, self.group.rows
        if self.aligned is None:
            self._position("row", rows, "down * BM")
            return
        v = self.aligned.vector
        k.assign("start", f"down // {v} * (BM * {v}) + down % {v}")
        self._rows_alike("start", k.count(rows))

    def _rows_alike(self, start: str, end: str) -> None:
        """Where a block's rows are that begin alike: a vector's elements apart."""
        k, aligned = self.k, self.aligned
        assert aligned is not None
        k.assign("row", f"{start} + {aligned.vector} * tl.arange(0, BM)")
        k.assign("row_in", f"row < {end}")
        k.decode(Axis("row", self.group.rows, "BM"))
        rows_begin(k, aligned)

    def _position(self, name: str, variables: tuple[str, ...], start: str, end: str | None = None) -> None:
        k, block = self.k, {"row": "BM", "col": "BN"}[name]
        place = f"{start} + tl.arange(0, {block})"
        k.assign(name, place if name == "row" or self.tiling.vectors else f"tl.multiple_of({place}, 1)")
        if self.aligned is None:
            k.starts[name] = start, end or k.count([v for v in variables if self.group.extent[v] > 1]), block
        if name != "col" or not self.filled:
            inside = f"{name} < {end or k.count([v for v in variables if self.group.extent[v] > 1])}"
            k.assign(f"{name}_in", f"({inside}) & ({name} < WIDTH)" if name == "col" and self.width else inside)
        if name == "col" and self.tiling.columns >= 4:
            k.quarters[name] = f"{start} // 4 + tl.arange(0, BN // 4)"
        k.decode(Axis(name, variables, block))

    def _count(self, variables: Sequence[str]) -> str:
        return self.k.count([v for v in variables if self.group.extent[v] > 1])

    def _frame(self, *inner: frozenset[str]) -> Frame:
        places = ["row", "col"], {"row": "row_in"} if self.filled else {"row": "row_in", "col": "col_in"}
        if self.aligned is None:
            return Frame(self.k, *places, *inner)
        return AlignedFrame(self.tiling.form, self.aligned, "WIDTH" if self.width else "", self.k, *places, *inner)

    # stores

    def _store(self, frame: Frame, s: Statement) -> None:
        k, group = self.k, self.group
        written = {v for v in index_variables(*(s.index or ())) if group.extent[v] > 1}
        axes = [a for a, names in (("row", group.rows), ("col", group.columns)) if written & set(names)]
        shape = tuple_text([{"row": "BM", "col": "BN"}[a] if a in axes else "1" for a in ("row", "col")])
        instead = frame.vector_tests(s.output, s.index or ())
        tests = [instead.get(t := frame.spread(frame.tails[a], a), t) for a in axes if a in frame.tails]
        tests += ["(down == 0)"] if "row" not in axes else []
        tests += ["(over == 0)"] if "col" not in axes and self.tiling.form == "tiled" else []
        shared = [v for v in group.rows if "row" in axes and v not in written and group.extent[v] > 1]
        tests += [f"({frame.variable(v)} == 0)" for v in shared]  # rows that have the element in common
        value = self.values[Access(s.output, s.index or ())]
        dtype = self.types[s.output].dtype
        cast = "" if value.compute_dtype == dtype else f".to({triton_type(dtype)})"
        if isinstance(frame, AlignedFrame) and s.output in frame.aligned.tensors:
            frame.store(s.output, f"tl.broadcast_to({value.code}, {shape}){cast}")
            return
        address = frame.address(s.output, [frame.form(e) for e in s.index or ()], frozenset(axes))
        address += "" if axes else f" + tl.full({shape}, 0, tl.int32)"
        mask = " & ".join(tests)
        k.store(address, f"tl.broadcast_to({value.code}, {shape}){cast}", f"tl.broadcast_to({mask}, {shape})")

    def _store_part(self, s: Statement) -> None:
        k = self.k
        accumulator = self.running.accumulators[s.output]
        parts = k.pointer(f"{s.output}.parts")
        if self.group.totals:
            k.scopes[0].lines += [*accumulator.reduce(1), *accumulator.reduce(0)]
            k.store(f"{parts} + tile", accumulator.result())
            return
        k.scopes[0].lines += accumulator.reduce(0)
        count = k.count(self.group.columns)
        k.store(f"{parts} + down.to(tl.int64) * ({count}) + col", accumulator.result(), "col_in")
