"""Sums of squared differences of two operands, such as distances between points, on tensor cores.

With both operands relative to the first column's, l and r, the sum over k of (l_ik - r_jk)^2 is
|l_i|^2 + |r_j|^2 - 2 l_i . r_j, of which the last is a product of matrices. What cancels is rounded relative to the
first two terms, so the result is accurate where it is not small beside them. Elements that are (of points near each
other, and far from the first), not finite, or out of range are computed again in the same kernel, difference by
difference, and no other element depends on them. Both operands and their squares are made before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tilec.backends.common.code import python_name
from tilec.backends.triton.emit.accumulate import REDUCE_TEXT, Accumulator
from tilec.backends.triton.emit.epilogue import as_read
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import triton_type, where_text
from tilec.backends.triton.emit.scalar import TritonScalars
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space, build_space
from tilec.backends.triton.matmul.blocks import LEAST_REUSE, Config, choose_config, fitted
from tilec.backends.triton.matmul.dot import (
    Dot,
    MatrixProduct,
    operand_accesses,
    sides_of,
    variables_outside,
    worthwhile,
)
from tilec.backends.triton.matmul.kernel import BLOCK_ACROSS, BLOCK_DOWN, DotTask, DotWriter
from tilec.backends.triton.matmul.logsumexp_matmul import ExponentialWriter, top_of, with_tops
from tilec.backends.triton.matmul.precompute_operands import Precomputed, operand_of
from tilec.backends.triton.matmul.split import SMALLER, SOME, SPLIT_BYTES, SplitOperands, split_operands
from tilec.backends.triton.matmul.steps import launched
from tilec.backends.triton.plan.lines import CodeLine, assign
from tilec.backends.triton.plan.plan import Release, Request, Setting, Step
from tilec.backends.triton.plan.sizes import WHOLE_VECTOR, rounded_up
from tilec.ir.index import Affine, distinct_variables, linear, replace_indices
from tilec.ir.infer import expression_type
from tilec.ir.program import Access, Call, Expr, Index, Int, Statement
from tilec.ir.types import TensorType
from tilec.lattice.sets import sizes_of

_FEWEST_TERMS = 32  # of a sum; fewer are added up as quickly as they are multiplied
LEAST_POINTS = 2**26  # rows x columns x terms for which four launches more pay
_KEPT = 1 / 32  # the least share of |l|^2 + |r|^2 that a result keeps its accuracy with: errors stay below 1e-5
_LEAST_SQUARES, _MOST_SQUARES = "1.0e-28", "5.0e37"  # between which products of parts neither vanish nor overflow
DISTANCE_BLOCK = Config(64, 64, 32, 4, 2)
EXTREMA_BLOCK = Config(128, 128, 16, 8, 3)  # of many tiles whose extrema are asked for, and not where they are
CarrySteps = Callable[[Statement, StridedView], list[Step]]


@dataclass(frozen=True)
class Distances(MatrixProduct):
    """The product of the operands, both relative to the first column's; `difference`: what is squared. `filled`: what
    makes operands of whole vectors, where they are read in these."""

    difference: Expr
    filled: tuple[Statement, ...] = ()


@dataclass(frozen=True)
class TileExtremum:
    """What the tiles of distances are asked for: `statement` writes its element `[t, ...]`, of which t is the number of
    a tile along the dimension `axis` of the distances, and the others are their dimensions `places`. What it aggregates
    is `value` of each distance, `read` there at variables of that expression, or the number of the first point that
    holds an extremum, where that is the output of `extremum`. `block`: the tiles, as many rows as columns. Without an
    `axis` the value of each distance is stored."""

    statement: Statement
    axis: int | None
    places: tuple[int, ...]
    block: Config
    value: Expr
    read: Access
    extremum: str = ""


def recognise_distances(space: Space, view: StridedView) -> Distances | None:
    """The statement as such a sum over all points of a box, None where it is none or too small."""
    s = space.statement
    whole = s.guard is None and s.default is None and not space.valid and not space.stored
    if s.aggregation != "sum" or not whole or len(space.classes) != 1:
        return None
    match s.body:
        case Call("mul", (Call("sub", (x, y)) as difference, again)) if difference == again:
            pass
        case _:
            return None
    if expression_type(difference, view.types).dtype != "float32":
        return None
    found = sides_of([x, y], space)
    if found is None or len(found.left) != 1 or len(found.right) != 1 or not worthwhile(found, space):
        return None
    points = space.count((*found.batch, *found.rows, *found.columns, *found.summed))
    fewest = min(space.count(found.rows), space.count(found.columns))
    terms = space.count(found.summed)
    if terms < _FEWEST_TERMS or fewest < LEAST_REUSE or points < LEAST_POINTS:
        return None
    (left,), (right,) = found.left, found.right
    own = {*found.batch, *found.summed}
    if not variables_outside(left) - own <= {*found.rows} or not variables_outside(right) - own <= {*found.columns}:
        return None
    if terms % WHOLE_VECTOR:
        return _of_whole_vectors(found, space, view)
    first = replace_indices(right, {v: Affine() + space.low[0][v] for v in found.columns})
    operands = ((Call("sub", (left, first)),), (Call("sub", (right, first)),))
    dot = replace(found, left=operands[0], right=operands[1], dtype="float32")
    return Distances(dot, space, view, difference)


def _of_whole_vectors(dot: Dot, space: Space, view: StridedView) -> Distances | None:
    """The same over operands with as many zeros after their terms as make whole vectors. Of parts whose rows begin
    between vectors single elements would be read, for twice as long as terms take that are added up."""
    last = dot.summed[-1]
    made: list[Statement] = []
    for label, side in (("left", dot.left), ("right", dot.right)):
        s = operand_of(f"{label}_filled", side, "float32", space, view, last)
        if s is None or s.index is None or linear(s.index[-1]).coefficient(last) != 1:
            return None
        *outer, terms = sizes_of(s)
        shape = (*outer, rounded_up(terms, WHOLE_VECTOR))
        made.append(replace(s, sizes=tuple(map(Int, shape)), aggregation="sum"))  # of nothing, where there are no terms
        view = view.with_tensor(s.output, TensorType(shape, "float32"))
    left, right = (Access(s.output, s.index or ()) for s in made)
    difference = Call("sub", (left, right))
    view = replace(view, statement=replace(view.statement, body=Call("mul", (difference, difference))))
    whole = build_space(view.statement, view.types)
    found = None if whole is None else recognise_distances(whole, view)
    return None if found is None else replace(found, filled=tuple(made))


def config_of(found: Distances, setting: Setting) -> Config:
    """The block; smaller where there are few pairs."""
    smaller = replace(choose_config(found, setting.device.shared), parts=1)
    return DISTANCE_BLOCK if smaller.bm * smaller.bn >= DISTANCE_BLOCK.bm * DISTANCE_BLOCK.bn else smaller


def squares_of(product: MatrixProduct) -> tuple[Statement, Statement]:
    """The sums of squares of both operands, which are elements of tensors, as statements."""
    dot, space = product.dot, product.space
    s = space.statement
    made = []
    for side, (operand,), variables in (("left", dot.left, dot.rows), ("right", dot.right, dot.columns)):
        body = Call("mul", (operand, operand))
        total = top_of(s, side, (*dot.batch, *variables), body, "float32", space, product.view.types)
        made.append(replace(total, output=f"{s.output}.{side}_squares", aggregation="sum"))
    return made[0], made[1]


def distance_steps(
    found: Distances,
    flat: Statement,
    setting: Setting,
    carry: CarrySteps,
    epilogue: Sequence[Statement] = (),
    tiles: Sequence[TileExtremum] = (),
) -> list[Step] | None:
    """Parts of both operands and their squares, then the product; None where an operand is no tensor of its own.
    `carry`: the steps of a statement into a tensor that they allocate. `tiles`: what is stored in the product's
    place."""
    divided = split_operands(found, last=found.dot.summed[-1])
    if divided is None:
        return None
    over, split = divided
    copies = Precomputed(over.view)
    difference = _along_results(found, copies)
    squares = squares_of(replace(found, view=copies.view))
    view = with_tops(squares, replace(copies.view, statement=found.view.statement))
    steps = [Request(s, view.types, view.strides, view.int64_index, partial(carry, s, view)) for s in squares]
    config = fitted(tiles[0].block, SPLIT_BYTES, setting.device.shared) if tiles else config_of(found, setting)
    after = tuple(t.statement for t in tiles) or tuple(epilogue)
    task = DotTask(replace(found, view=view), "highest", config, after)
    make = partial(TileExtremaWriter, tiles) if tiles else DistanceWriter
    writer: DistanceWriter = make(difference, squares, task, split)
    own = [*copies.before, *steps, *launched(writer, flat), *copies.after]
    filled = [step for s in found.filled for step in carry(s, replace(found.view, statement=s))]
    return [*filled, *over.around(own), Release(tuple(s.output for s in (*squares, *found.filled)))]


def _along_results(found: Distances, made: Precomputed) -> Expr:
    """The difference, of operands that lie along rows and along columns: programs that add up a block of them one
    coordinate at a time read whole vectors."""
    assert isinstance(found.difference, Call)
    sides = []
    dot = found.dot
    for x, name, own in zip(found.difference.args, ("rows", "columns"), (dot.rows, dot.columns), strict=True):
        copy = operand_of(f"along_{name}", (x,), "float32", found.space, made.view, own[-1])
        lies_so = isinstance(x, Access) and _steps_by_one(x, own[-1], made.view)
        if copy is None or lies_so or not made.take(copy, "float32", requested=True):
            sides.append(x)
        else:
            sides.append(Access(copy.output, copy.index or ()))
    return replace(found.difference, args=tuple(sides))


def _steps_by_one(a: Access, v: str, view: StridedView) -> bool:
    places = zip(a.index, view.strides[a.tensor], strict=True)
    return any(linear(e).bare == v and stride == 1 for e, stride in places)


class DistanceWriter(ExponentialWriter):
    """The product is of parts of the operands that are there, as are their `squares`; `difference`: what is squared
    where that is not certain."""

    suffix = "_distances"

    def __init__(
        self, difference: Expr, squares: tuple[Statement, Statement], task: DotTask, split: SplitOperands | None
    ):
        self.difference = difference
        super().__init__(task.product.dot, task, split)
        self.squares = [Access(s.output, s.index or ()) for s in squares]

    def _read(self) -> list[Access]:
        return [*super()._read(), *operand_accesses(self.difference)]

    def _loop(self) -> None:
        self.kernel.assign("rest", "tl.full((BM, BN), 0, tl.float32)")
        DotWriter._loop(self)
        self.kernel.assign("acc", "rest", "+=")

    def _multiplied(self, rows: Frame, columns: Frame) -> None:
        """The greatest products by themselves: few additions, which tensor cores cut off, are to a large sum."""
        left, right = self._parts(rows, columns)
        for i, j in SMALLER:
            self.kernel.assign("rest", f"tl.dot({left[i]}, {right[j]}, rest)")
        self.kernel.assign("acc", f"tl.dot({left[0]}, {right[0]}, acc)")

    def _recompute(self) -> None:
        k = self.kernel
        frame = self._block()
        evaluator = TritonScalars(frame, *self.squares)
        left, right = (evaluator.text(a, "float32") for a in self.squares)
        for side, text, inside in (("rows_base", left, "row_in[:, None]"), ("columns_base", right, "col_in[None, :]")):
            k.assign(side, f"tl.where({inside}, tl.where({text} < {_MOST_SQUARES}, {text}, float('nan')), 1.0)")
        k.assign("acc", "rows_base + columns_base - 2 * acc")
        k.assign("least", f"tl.maximum({_KEPT} * rows_base, {_LEAST_SQUARES}) + {_KEPT} * columns_base")
        k.assign("sure", "acc >= least")
        k.assign("acc", "tl.where(sure, acc, float('nan'))")
        if self.epilogue:
            self._in_turn("acc != acc", [self._exact()])
        else:
            k.assign("unsure", SOME.format("sure ^ True"))

    def _store(self) -> None:
        super()._store()
        if not self.epilogue:
            self._again("value != value", (self.difference,), lambda values: f"{values[0]} * {values[0]}")

    @property
    def _at_once(self) -> int:
        """All rows: where elements of a block are not certain, points are near each other, and many are not."""
        return self.config.bm

    def _exact(self) -> list[CodeLine]:
        def step(values: list[str], tests: list[str]) -> Sequence[CodeLine]:
            assert not tests
            return (assign("difference", values[0]), assign("total", "difference * difference", "+="))

        return [
            assign("total", "tl.full((BM, BN), 0, tl.float32)"),
            self._each((self.difference,), step),
            assign("acc", "tl.where(acc != acc, total, acc)"),
        ]


class TileExtremaWriter(DistanceWriter):
    """The same, of which the aggregates of each tile are stored alone."""

    suffix = "_extrema"

    def __init__(self, tiles: Sequence[TileExtremum], *given: Any):
        self.tiled = tiles
        super().__init__(*given)

    def _store(self) -> None:
        k, block = self.kernel, self._block(*self.around)
        self._finish(block)
        names = distinct_variables(self.space.statement.index) or ()
        made: dict[str, str] = {}
        for t in self.tiled:
            s = t.statement
            if t.axis is None:
                k.store(self._stored_at(block, s.output), self._value(t, names, block), self.stored)
                continue
            v = names[t.axis]
            kept, taken, number = ("row", "col", BLOCK_ACROSS)
            if v in self.dot.rows:
                kept, taken, number = ("col", "row", BLOCK_DOWN)
            dtype = self.view.types[s.output].dtype
            accumulator = Accumulator.of(s.aggregation, dtype)
            tests = [block.spread(f"{taken}_in", taken)]
            value = "acc" if t.value == t.read else self._value(t, names, block)
            if t.extremum:
                tests.append(f"((acc == {block.spread(made[t.extremum], kept)}) | (acc != acc))")
                place = f"tl.broadcast_to({block.variable(v)}, (BM, BN)).to({triton_type(dtype)})"
                value = "1.0" if s.aggregation == "sum" else place
            k.assign("value", where_text(tests, value, accumulator.identity_text))
            made[s.output] = k.names.fresh(python_name(s.output).lower())
            axis = block.axes.index(taken)
            k.assign(made[s.output], REDUCE_TEXT[s.aggregation].format("value", axis))
            lines = Frame(k, (kept,), {kept: f"{kept}_in"}, *self.around)
            tile = k.names.fresh("tile_number")
            k.value_of[tile] = k.line("at_tile", number)
            index = [lines.form(Index(w)) for w in (tile, *(names[p] for p in t.places))]
            k.store(lines.address(s.output, index, frozenset((kept,))), made[s.output], f"{kept}_in")

    def _value(self, t: TileExtremum, names: Sequence[str], block: Frame) -> str:
        """What is aggregated of a block of distances."""
        own = {linear(i).bare or "": Affine.variable(v) for i, v in zip(t.read.index, names, strict=True)}
        value = replace_indices(t.value, own)
        evaluator = TritonScalars(block, value, given=as_read(block, self.space, t.read.tensor, "acc", "float32"))
        return evaluator.tensor(evaluator.value(value), "float32")


def extremum_steps(
    flat: Statement, view: StridedView, tiles: Sequence[TileExtremum], carry: CarrySteps, setting: Setting
) -> list[Step] | None:
    """Steps that compute extrema of tiles of distances; None where their kernel does not: these would be stored."""
    space = build_space(view.statement, view.types)
    found = None if space is None else recognise_distances(space, view)
    names = distinct_variables(view.statement.index)
    if found is None or names is None:
        return None
    if any((names[t.axis],) not in (found.dot.rows, found.dot.columns) for t in tiles if t.axis is not None):
        return None
    return distance_steps(found, flat, setting, carry, tiles=tiles)
