"""Kernels that combine runs of sorted points, each into an element (or a row of columns) of the output.

A program takes a few runs, whose points it reads side by side. A run of more points than a piece is cut at multiples
of that number among all points: programs of their own, one a piece, combine these first, so that neither few runs nor
one run of most points keeps the device waiting. A piece belongs to at most two such runs, that of its first point and
that of its last. Which points are combined in which order depends on the indices alone.

Where few of the output's places occur (a sparse sort), a run is taken for each point, those of points that begin one;
the other elements are there before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilec.backends.common.code import literal, python_name
from tilec.backends.common.scalar_writer import ScalarValue
from tilec.backends.common.scalars import identity
from tilec.backends.triton.emit.epilogue import as_read, finish
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Axis, Kernel, Scope, all_text, triton_type
from tilec.backends.triton.emit.scalar import TritonScalars
from tilec.backends.triton.iteration.space import elements_of
from tilec.backends.triton.plan.device_info import TWO_A_MULTIPROCESSOR
from tilec.backends.triton.plan.lines import assign, in_versions
from tilec.backends.triton.plan.plan import Allocate, Launch, Release, Step
from tilec.backends.triton.plan.sizes import contiguous
from tilec.backends.triton.plan.source import PROGRAM
from tilec.backends.triton.scatter.runs import LARGE_BLOCK_TERMS, RunBlocks, Runs
from tilec.backends.triton.scatter.sort_text import KEY_SHIFT
from tilec.ir.program import Expr, Statement

PIECE_TERMS = 1024  # at a time, of a piece's narrow rows: a program has more of them to wait for


def segment_steps(members: Sequence[Runs], epilogue: Sequence[Statement] = ()) -> list[Step]:
    """Steps that combine each run into the allocated output: of one scatter, or of several whose values the epilogue
    takes together."""
    runs = members[-1]
    blocks = RunBlocks.of(runs)
    across = -(-runs.width // blocks.columns)
    # one run of all points keeps the device busy by its columns alone where there are many
    split = runs.points > runs.piece and across < TWO_A_MULTIPROCESSOR
    whole = _Writer(members, blocks).whole(split, epilogue)
    launch = whole.launch((-(-runs.walked // blocks.runs), across, 1), blocks.warps, epilogue)
    if not split:
        return [launch]
    terms = LARGE_BLOCK_TERMS if blocks.columns >= 256 else PIECE_TERMS
    alone = RunBlocks(1, min(runs.piece, max(8, terms // blocks.columns)), blocks.columns, blocks.vector)
    pieces = -(-runs.points // runs.piece)
    parts = [Allocate(m.name("parts"), (2 * pieces, m.width), m.accumulator.dtype) for m in members]
    steps: list[Step] = []
    for sort in dict.fromkeys(m.sort for m in members):
        writer = _Writer([m for m in members if m.sort == sort], alone).pieces()
        steps.append(writer.launch((pieces, across, 2), alone.warps))
    return [*parts, *steps, launch, Release(tuple(p.tensor for p in parts))]


class _RunFrame(Frame):
    """Blocks of points and columns, where what depends on the run of a point alone stands with the points."""

    def __init__(self, kernel: Kernel, run: str, tails: Mapping[str, str], inner: frozenset[str]):
        super().__init__(kernel, ["red", "col"], tails, inner)
        self.run = run

    def spread(self, text: str, axis: str) -> str:
        return super().spread(text, "red" if axis == self.run else axis)

    def tail_tests(self, variables: frozenset[str]) -> list[str]:
        own = self.run in self.dimensions(variables) & set(self.tails)
        return [*([self.spread(self.tails[self.run], self.run)] if own else []), *super().tail_tests(variables)]

    def _zeros(self, spread_over: frozenset[str]) -> str:
        zeros = super()._zeros(spread_over)
        return f" + {self.spread(self.run, self.run)} * 0{zeros}" if self.run in spread_over else zeros


class _Writer:
    """One kernel: lanes are runs x points, beside columns. It walks the runs of its members one after the other."""

    def __init__(self, members: Sequence[Runs], blocks: RunBlocks):
        self.members, self.blocks = members, blocks
        self.runs = runs = members[-1]
        self.types = {n: t for m in members for n, t in m.view.types.items()}
        strides = {n: s for m in members for n, s in m.view.strides.items()}
        self.integer = "tl.int64" if runs.int64_index else "tl.int32"
        self.k = Kernel("", runs.space, self.types, strides, runs.int64_index, powers=True)
        self.k.constants = {"BM": blocks.runs, "BR": blocks.points, "BN": blocks.columns, "PIECE": runs.piece}
        self.shape = "(BM * BR, BN)"

    def launch(self, grid: tuple[int, int, int], warps: int, epilogue: Sequence[Statement] = ()) -> Launch:
        return self.k.launch(grid, warps, 2, *(m.statement for m in self.members), *epilogue)

    def whole(self, split: bool, epilogue: Sequence[Statement]) -> _Writer:
        """Every run; of long ones the parts that `pieces` has made."""
        runs, k = self.runs, self.k
        s, out = runs.statement, runs.view.types[runs.statement.output]
        k.name = k.names.fresh(python_name(s.output) + "_segments")
        count = k.number("count", "count", runs.walked, False)
        program = self.k.program()
        self._columns()
        run = k.line("run", f"{program} * BM + tl.arange(0, BM * BR) // BR")
        inside = f"row < {count}"
        given: dict[str, str] = {}
        for m in self.members:
            self._combine(m, split, run, f"{run} < {count}")
            if m is not runs:
                given[m.statement.output] = k.names.fresh("combined")
                k.assign(given[m.statement.output], m.accumulator.result())
        k.assign("row", f"{program} * BM + tl.arange(0, BM)")
        if runs.sparse:
            own = k.line("own", self._key(runs, "row", inside))
            begins = f"tl.load({k.pointer(runs.starts)} + row, mask={inside}, other=0)"
            inside = k.line("begins", f"({own} > 0) & ({begins} == row)")
            k.assign("row", f"tl.where({inside}, {own} - 1, 0)")
        k.assign("value", runs.accumulator.result())
        place, mask = self._place(), f"({inside})[:, None] & col_in[None, :]"
        if s.default is not None:
            other = f"tl.load({k.pointer(runs.name('default'))} + {place}, mask={mask}, other=0)"
            starts, at = k.pointer(runs.starts), self._sorted_run(runs, "row")
            bounds = [f"tl.load({starts} + {at}{more}, mask=row < {count}, other=0)" for more in (" + 1", "")]
            kind = triton_type(runs.accumulator.dtype)
            k.assign("reached", f"{bounds[0]} > {bounds[1]}")
            k.assign("value", f"tl.where(reached[:, None], value, {other}.to({kind}))")
        text, output = "value", s.output
        if epilogue:
            text, output = self._finished(inside, epilogue, given), epilogue[-1].output
            out = self.types[output]
        k.store(f"{k.pointer(output)} + {place}", f"({text}).to({triton_type(out.dtype)})", mask)
        self._in_strips()
        return self

    def _in_strips(self) -> None:
        """The lines for each strip of columns."""
        k, strips = self.k, self.blocks.strips
        if not strips:
            return
        blocks = {"BN" if n == 0 else k.names.fresh("BN"): strip for n, strip in enumerate(strips)}
        k.constants = {**k.constants, **blocks}
        versions = [{"BN": name, "STRIP": str(sum(strips[:n]))} for n, name in enumerate(blocks)]
        k.scopes[0].lines[:] = in_versions(k.scopes[0].lines, versions, k.names.fresh)

    def _combine(self, runs: Runs, split: bool, run: str, mask: str) -> None:
        """Lines that combine the member's runs, a row of columns each."""
        k = self.k
        begin, end = self._bounds(runs, mask, self._sorted_run(runs, run))
        if runs.sparse:
            own = k.line("key", self._key(runs, run, mask))
            end = k.line("end", f"tl.where(({own} > 0) & ({begin} == {run}), {end}, {begin})")
            run = k.line("at", f"tl.maximum({own} - 1, 0)")
        last = end
        if split:
            long = k.line("long", f"{end} - {begin} > PIECE")
            last = k.line("last", f"tl.where({long}, {begin}, {end})")
        k.scopes[0].lines += runs.accumulator.start(self.shape)
        self._walk(runs, run, mask, begin, last, k.line("longest", f"tl.max({last} - {begin}, 0)"))
        if split:
            self._parts(runs, begin, end, long)
        names = runs.accumulator.state
        k.scopes[0].lines += [assign(n, f"tl.reshape({n}, (BM, BR, BN))") for n in names]
        k.scopes[0].lines += runs.accumulator.reduce(1)

    def _finished(self, inside: str, epilogue: Sequence[Statement], given: Mapping[str, str]) -> str:
        """The epilogue's value, also of the members `given`; its variables are the output's axes."""
        k, s = self.k, self.runs.statement
        variables, space = elements_of(s, self.types)
        k.space = space
        k.assign("row_in", inside)
        k.decode(Axis("row", tuple(variables[a] for a in self.runs.run_axes), "BM"))
        k.decode(Axis("col", tuple(variables[a] for a in self.runs.column_axes), "BN"))
        frame = Frame(k, ["row", "col"], {"row": "row_in", "col": "col_in"})
        read: dict[Expr, ScalarValue] = {}
        for m in self.members[:-1]:
            name = m.statement.output
            read |= as_read(frame, space, name, given[name], m.accumulator.dtype)
        return finish(frame, space, "value", self.runs.accumulator.dtype, epilogue, read)[0]

    def _place(self) -> str:
        """Where the elements of rows and columns are in memory."""
        runs = self.runs
        if runs.in_order:
            return f"row[:, None] * {self.width} + col[None, :]"
        strides = contiguous(runs.shape)
        row, column = self._offset("row", runs.run_axes, strides), self._offset("col", runs.column_axes, strides)
        return f"({row})[:, None] + ({column})[None, :]"

    def _offset(self, name: str, axes: Sequence[int], strides: Sequence[int]) -> str:
        """The text of what positions along some axes, those that memory walks as one taken together, add up to."""
        whole = [n for n, a in enumerate(axes) if n + 1 == len(axes) or axes[n + 1] != a + 1]
        first = [0, *(n + 1 for n in whole[:-1])]
        rest = f"{name}.to(tl.int64)" if self.runs.int64_index else name
        terms: list[str] = []
        for n in range(len(whole) - 1, -1, -1):
            together = axes[first[n] : whole[n] + 1]
            size = self.k.number((together, "size"), "size", math.prod(self.runs.shape[a] for a in together))
            stride = self.k.number((together, "stride"), "stride", strides[together[-1]])
            terms.append(f"{rest} * {stride}" if n == 0 else f"{rest} % {size} * {stride}")
            if n:
                rest = self.k.line(f"{name}_rest", f"{rest} // {size}")
        return " + ".join(terms)

    def pieces(self) -> _Writer:
        """Parts of long runs: in row 2 * p what those points of piece p add to the run of its first point, in the next
        row to that of its last, where that is another."""
        runs, k = self.runs, self.k
        k.name = k.names.fresh(python_name(runs.statement.output) + "_pieces")
        self._columns()
        points = k.number("points", "points", runs.points, False)
        origin = k.line("origin", f"{k.program()} * PIECE")
        limit = k.line("limit", f"tl.minimum({origin} + PIECE, {points})")
        k.assign("part", PROGRAM[2])
        place = f"tl.where(part == 0, {origin}, {limit} - 1)"
        key = k.line("key", self._key(runs, place))
        begin, end = self._bounds(runs, f"{key} > 0", f"({place})" if runs.sparse else f"({key} - 1)")
        wanted = k.line("wanted", f"({key} > 0) & ({end} - {begin} > PIECE) & ((part == 0) | ({begin} > {origin}))")
        k.leave(f"{wanted} == 0")
        run = (
            k.line("run", f"{key} - 1 + tl.zeros((BM * BR,), {self.integer})")
            if any(m.along for m in self.members)
            else ""
        )
        begin, end = k.line("lower", f"tl.maximum({begin}, {origin})"), k.line("upper", f"tl.minimum({end}, {limit})")
        for m in self.members:
            k.scopes[0].lines += m.accumulator.start(self.shape)
            self._walk(m, run, None, begin, end, f"{end} - {begin}")
            k.scopes[0].lines += m.accumulator.reduce(0)
            place = f"({PROGRAM[0]}.to(tl.int64) * 2 + part) * {self.width} + col"
            k.store(f"{k.pointer(m.name('parts'))} + {place}", m.accumulator.result(), "col_in")
        return self

    # parts of both

    @property
    def width(self) -> str:
        return self.k.number("columns", "width", self.runs.width)

    def _columns(self) -> None:
        k = self.k
        k.assign("col", f"{'STRIP' if self.blocks.strips else f'{PROGRAM[1]} * BN'} + tl.arange(0, BN)")
        k.assign("col_in", f"col < {self.width}")

    def _key(self, runs: Runs, place: str, mask: str = "") -> str:
        """The sorted key at a place."""
        sort = runs.sort
        assert sort is not None
        shift = f" >> {KEY_SHIFT}" if sort.packed else ""
        there = f", mask={mask}, other=0" if mask else ""
        return f"(tl.load({self.k.pointer(sort.moved[0])} + {place}{there}){shift}).to({self.integer})"

    def _sorted_run(self, runs: Runs, run: str) -> str:
        """The number of a run of the output among the positions that the sort knows."""
        k = self.k
        if not any(map(any, runs.margins)):
            return run
        rest, stride = run, 1
        terms: list[str] = []
        for place in range(len(runs.run_axes) - 1, -1, -1):
            size, (before, after) = runs.shape[runs.run_axes[place]], runs.margins[place]
            at = rest
            if place:
                length = k.number(("length", place), "length", size, False)
                at, rest = f"{rest} % {length}", k.line("run_rest", f"{rest} // {length}")
            at = f"({at} + {before})" if before else at
            terms.append(at if stride == 1 else f"{at} * {k.number(('apart', place), 'apart', stride, False)}")
            stride *= size + before + after
        return k.line("sorted_run", " + ".join(reversed(terms)))

    def _bounds(self, runs: Runs, mask: str, run: str) -> tuple[str, str]:
        """Names of where the runs begin and end; if sparse, those of the points at `run`."""
        k, starts = self.k, self.k.pointer(runs.starts)
        points = k.number("points", "points", runs.points, False) if runs.sparse else ""
        read = "tl.load({} + {}{}, mask={}, other=0)" + f".to({self.integer})"
        return (
            k.line("begin", read.format(starts, run, "", mask)),
            k.line("stop", read.format(starts, run, f" + {points}" if runs.sparse else " + 1", mask)),
        )

    def _walk(self, runs: Runs, run: str, inside: str | None, begin: str, end: str, longest: str) -> None:
        """Lines that combine the points of the runs, a block of each at a time. `inside`: which lanes of `run` are."""
        k, a = self.k, runs.accumulator
        s, k.space = runs.space.statement, runs.space
        k.decode(Axis("col", runs.columns, "BN"))
        if runs.along:
            k.decode(Axis(run, runs.along, "BM * BR"))
        k.scopes.append(Scope())
        k.assign("place", f"{begin} + first + tl.arange(0, BM * BR) % BR")
        k.assign("red_in", f"place < {end}")
        k.assign("red", f"tl.load({k.pointer(runs.order)} + place, mask=red_in, other=0).to({self.integer})")
        k.decode(Axis("red", runs.keyed, "BM * BR"))
        tails = {"red": "red_in", "col": "col_in", **({} if inside is None else {run: f"({inside})"})}
        frame = _RunFrame(k, run, tails, frozenset((*runs.keyed, "red")))
        evaluator = TritonScalars(frame, *s.roots)
        tests = [frame.spread("red_in", "red"), *frame.tests(runs.space.valid)]
        tests += map(evaluator.test, s.guards)
        code = evaluator.text(s.body, a.term_dtype)
        k.assign("valid", all_text(tests))
        k.assign("value", f"tl.where(valid, {code}, {a.identity_text})")
        k.add(*a.step("value"))
        k.close("first", f"range(0, {longest}, BR)")

    def _parts(self, runs: Runs, begin: str, end: str, long: str) -> None:
        """Lines that combine the parts of long runs."""
        k, a = self.k, runs.accumulator
        count = k.line("pieces", f"tl.where({long}, ({end} - 1) // PIECE - {begin} // PIECE + 1, 0)")
        most = k.line("most", f"tl.max({count}, 0)")
        k.scopes.append(Scope())
        k.assign("part", "first + tl.arange(0, BM * BR) % BR")
        k.assign("other", f"(part == 0) & ({begin} % PIECE != 0)")
        k.assign("place", f"(({begin} // PIECE + part) * 2 + other.to(tl.int32)).to(tl.int64)")
        mask = f"(part < {count})[:, None] & col_in[None, :]"
        absent = literal(identity(a.aggregation, a.dtype))
        read = f"tl.load({k.pointer(runs.name('parts'))} + place[:, None] * {self.width} + col[None, :], mask={mask}"
        if a.dtype == "bool":
            k.assign("value", f"tl.where({mask}, {read}, other=0) != 0, {absent})")
        else:
            k.assign("value", f"tl.where({mask}, {read}, other=0), {absent})")
        k.add(*a.step("value"))
        k.close("first", f"range(0, {most}, BR)")
