"""Runs of sorted points, each of which is combined into an element or a row of columns."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.backends.triton.emit.accumulate import Accumulator
from tilec.backends.triton.emit.contiguity import bytes_at_once
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.plan.sizes import power_of_two
from tilec.backends.triton.scatter.places import Margins
from tilec.backends.triton.scatter.sort import Sort
from tilec.ir.program import Statement, index_variables, value_accesses
from tilec.ir.symbolic import is_symbolic
from tilec.ir.types import ITEM_BYTES

FEWEST_OF_PIECE, MOST_OF_PIECE = 32, 512  # points of a run that one program combines
BLOCK_TERMS, LARGE_BLOCK_TERMS = 512, 2048  # elements of a program's block, of narrow rows and of wide ones
LARGEST_BLOCK, UNDER_WAY = 4096, 2**21  # of a program's block of few long runs; of all programs, at least
APART = 8  # columns of a program where memory walks runs first
# of a block's columns, at most, that a row fills which is held in strips; elements of all rows from which on
FILLED_BY_ROW, LEAST_IN_STRIPS = 0.8, 2**18
MOST_STRIPS, COLUMNS_OF_STRIP = 8, 8  # of rows that begin anywhere: so a warp reads four of them at a time
FILLED_WITHOUT_STRIPS = 0.6  # of a block's columns, at most, that wider such rows fill, in strips twice as wide
ROWS_IN_STRIPS, POINTS_IN_STRIPS = 32, 8  # of their blocks: each lane reads where one is; points of a run
ROWS_OF_VECTORS = 4  # of a block in strips of whole vectors, which serve the widest rows
WIDEST_OF_RUNS = 256  # columns of a block


@dataclass(frozen=True)
class Runs:
    """`statement` as written. The terms of `space` are those of one point, which `keyed` number in order, in a row of
    `columns`. `points` in all, `count` runs of them. `run_axes` and `column_axes` are the output's; with `margins`, the
    sort knows positions beyond the output's along the former. `along`: variables of the terms that are a run's place.
    `sort`: what puts the points in order."""

    statement: Statement
    space: Space
    view: StridedView
    keyed: tuple[str, ...]
    columns: tuple[str, ...]
    points: int
    count: int
    width: int
    accumulator: Accumulator
    int64_index: bool
    run_axes: tuple[int, ...] = ()
    column_axes: tuple[int, ...] = ()
    along: tuple[str, ...] = ()
    margins: Margins = ()
    sort: Sort | None = None

    @property
    def order(self) -> str:
        """The points that are there."""
        assert self.sort is not None
        return self.sort.order

    @property
    def starts(self) -> str:
        """Where each run begins."""
        assert self.sort is not None
        return self.sort.starts

    def joins(self, other: Runs) -> bool:
        """Whether one kernel can combine the runs of both: of equal elements, from equally many points, where what is
        called alike is alike."""
        forms = [(r.points, r.count, r.width, r.run_axes, r.column_axes, r.int64_index) for r in (self, other)]
        views = [{n: (r.view.types[n], r.view.strides.get(n)) for n in r.view.types} for r in (self, other)]
        ranges = [{v: (r.space.low[0][v], r.space.extent[0][v]) for v in r.space.low[0]} for r in (self, other)]
        alike = all(a[n] == b[n] for a, b in (views, ranges) for n in a.keys() & b.keys())
        single = all(len(r.space.classes) == 1 and r.statement.default is None for r in (self, other))
        return forms[0] == forms[1] and alike and single

    @property
    def sparse(self) -> bool:
        """Whether few of the runs have points."""
        return self.sort is not None and self.sort.sparse

    @property
    def walked(self) -> int:
        """Runs that are looked at: if sparse, one for each point."""
        return self.points if self.sparse else self.count

    @property
    def shape(self) -> tuple[int, ...]:
        """The output's."""
        return self.view.types[self.statement.output].shape

    @property
    def in_order(self) -> bool:
        """Whether memory walks the columns of a run before the next run."""
        axes = (*self.run_axes, *self.column_axes)
        return axes == tuple(range(len(axes)))

    def name(self, what: str) -> str:
        return f"{self.statement.output}.{what}"

    @property
    def piece(self) -> int:
        """Points of a run that one program combines: about as many as there are pieces where all points are of one run,
        since both are walked by one program."""
        root = 1 << (self.points.bit_length() - 1) // 2
        return min(MOST_OF_PIECE, max(FEWEST_OF_PIECE, root))


@dataclass(frozen=True)
class RunBlocks:
    """Runs, points of each, and columns of a program, of which a thread reads `vector` at once. `strips`: columns of
    blocks side by side that hold a row which fills no single one."""

    runs: int
    points: int
    columns: int
    vector: int = 1
    strips: tuple[int, ...] = ()

    @staticmethod
    def of(runs: Runs) -> RunBlocks:
        across = len(runs.shape) - 1 in runs.column_axes
        columns = min(power_of_two(runs.width), WIDEST_OF_RUNS if across else APART)
        if across and runs.in_order and runs.count * runs.width >= LEAST_IN_STRIPS:
            strips = _in_strips(runs, columns)
            if strips is not None:
                return strips
        mean = -(-runs.points // max(runs.count, 1))
        terms = LARGE_BLOCK_TERMS if columns >= WIDEST_OF_RUNS else BLOCK_TERMS
        points = min(power_of_two(mean), max(4, min(terms // (2 * columns), runs.piece)))
        at_once = runs.count * -(-runs.width // columns) * columns  # elements under way for each point of a run
        while points < min(mean // 2, runs.piece) and points * columns < LARGEST_BLOCK and at_once * points < UNDER_WAY:
            points *= 2
        beside = max(1, terms // (points * columns))
        return RunBlocks(min(beside, power_of_two(runs.count)), points, columns, _vector(runs))

    @property
    def warps(self) -> int:
        """One in strips. Else no more than share a row that fills some: the points of a run are then combined in each
        thread, and none waits for others."""
        if self.strips:
            return 1
        warps = max(1, min(8, self.runs * self.points * self.columns // 512))
        return min(warps, self.columns // (32 * self.vector) or warps)


def _in_strips(runs: Runs, columns: int) -> RunBlocks | None:
    """Blocks of one warp with a row in strips of columns: narrow ones of rows that begin anywhere, of which a warp then
    reads several at a time; two of whole vectors where a row fills too little of one block. None for other rows."""
    width, vector = runs.width, _vector(runs)
    if width > columns or is_symbolic(width) or is_symbolic(runs.points):
        return None
    if vector == 1:
        twice = MOST_STRIPS * COLUMNS_OF_STRIP < width <= FILLED_WITHOUT_STRIPS * columns
        strip, most = (2 * COLUMNS_OF_STRIP, 2 * MOST_STRIPS) if twice else (COLUMNS_OF_STRIP, MOST_STRIPS)
        count = -(-width // strip)
        if not 1 < count <= most:
            return None
        points = min(power_of_two(-(-runs.points // runs.count)), POINTS_IN_STRIPS)
        return RunBlocks(ROWS_IN_STRIPS // points, points, columns, vector, (strip,) * count)
    first = power_of_two(width + 1) // 2
    second = max(vector, power_of_two(width - first))
    if columns < WIDEST_OF_RUNS or width % vector or width == first or first + second > FILLED_BY_ROW * columns:
        return None
    points = min(power_of_two(max(1, runs.points // runs.count)), ROWS_OF_VECTORS)
    return RunBlocks(ROWS_OF_VECTORS // points, points, columns, vector, (first, second))


def _vector(runs: Runs) -> int:
    """How many columns of a point's terms a thread reads at once, at most."""
    types, strides = runs.view.types, runs.view.strides
    read = {a.tensor for a in value_accesses(runs.space.statement) if {*index_variables(*a.index)} & {*runs.columns}}
    return max([1, *(bytes_at_once(types[n], strides[n]) // ITEM_BYTES[types[n].dtype] for n in read)])
