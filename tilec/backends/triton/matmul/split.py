"""Operands of float32 products as three bfloat16 numbers each, made before the product: eight bits of a significand in
each. Six products of them, the three smallest left out, are as accurate as float32's, of numbers from
1e-33 on: the parts of smaller ones have fewer digits.

Tensor cores multiply them in the time of the three tf32 products that they take the place of. They read them from
shared memory as they lie, whichever way that is: no pass through registers, which splits an operand anew in every
program, and no copies that lie along the reduction, so that a product and its gradients read the same tensors. Tensor
cores cut sums off where they should round, and sums over many points come out too small. So each block's sum of the
greatest products is added by itself. (It is multiplied by a 1 that the compiler does not know, or Triton would make one
sum of the two.) The others, which are 2^-8 of it or less, may be cut off.

A product of few columns reads each element of its other operand seldom: programs split it themselves, in registers,
from which tensor cores take a left operand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from tilec.backends.triton.emit.epilogue import finish
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Scope
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.matmul.blocks import LEAST_REUSE, Config, inner_variables
from tilec.backends.triton.matmul.dot import Dot, MatrixProduct, OperandRewrite, operand_accesses, variables_outside
from tilec.backends.triton.matmul.kernel import DotTask, DotWriter
from tilec.backends.triton.matmul.precompute_operands import Precomputed, operand_of
from tilec.backends.triton.matmul.steps import dot_steps
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.backends.triton.plan.lines import BARRIER, CodeLine, ForLoop, If, assign
from tilec.backends.triton.plan.plan import Release, Setting, Step
from tilec.backends.triton.plan.sizes import WHOLE_VECTOR
from tilec.ir.index import Affine, linear
from tilec.ir.program import Access, Call, Expr, Int, Statement

PART, COUNT = "bfloat16", 3
FEWEST_SPLIT_POINTS, FEWEST_SPLIT_TERMS = 2**31, 512  # of a product that a library would carry out otherwise
FEWEST_SMALL_POINTS = 2**29  # of one whose smaller operand's parts alone are made before
FEWEST_WINDOW_POINTS, FEWEST_WINDOW_TERMS = 2**28, 256  # of a convolution
FEWEST_USES = 128  # of each element that is read through windows
MOST_PARTS = 2**28  # bytes of parts that such a product may take
BOTH_WINDOW_COLUMNS = 64  # the same of a convolution
BOTH_COLUMNS = 1024  # from which both operands' parts are made before, if they may take so much
MOST_FILLED, MOST_WINDOW_FILLED = 1.25, 1.5  # columns of blocks over those that there are; of a convolution
SPLIT_BYTES = 2 * COUNT  # of a term
SMALLER = ((0, 2), (1, 1), (2, 0), (0, 1), (1, 0))  # products of parts beside the greatest, the smallest first


@dataclass(frozen=True)
class SplitBlock:
    """`beside`: programs that a multiprocessor runs side by side. `rate`: at which it multiplies then, beside that of
    the second block, as measured; `rate_across`: where the left operand lies in memory along its rows."""

    config: Config
    beside: int
    rate: float
    rate_across: float


ONE_SPLIT_BLOCK = SplitBlock(Config(128, 64, 32, 4, 3), 2, 1, 1)  # where programs split the left operand
SPLIT_BLOCKS = (
    SplitBlock(Config(128, 128, 32, 8, 3), 1, 1, 1.25),
    ONE_SPLIT_BLOCK,
    SplitBlock(Config(64, 64, 32, 4, 3), 3, 0.9, 1.25),
)


@dataclass(frozen=True)
class SplitOperands:
    """How the parts of both operands are read; none of the left one where programs split it themselves."""

    left: tuple[Access, ...]
    right: tuple[Access, ...]


def _thirds(e: Expr) -> list[Expr]:
    """The number to eight bits, what that leaves to eight bits, and once more."""
    found: list[Expr] = []
    rest = e
    for _ in range(COUNT):
        found.append(Call(PART, (rest,)))
        rest = Call("sub", (rest, Call("float32", (found[-1],))))
    return found


def _windowed(dot: Dot) -> set[str]:
    """The variables of which sums are places, as `x` and `i` are of `2*x + i`."""
    places = [linear(e) for f in (*dot.left, *dot.right) for a in operand_accesses(f) for e in a.index]
    return {v for e in places if e.bare is None for v in e.variables()}


def _order(a: Access, dot: Dot, view: StridedView) -> list[int]:
    """The axes of a tensor as its parts lie in memory: the last one is that along which blocks can be read in whole
    vectors, of such the one that lies so already, or nearly."""
    shape, strides, apart = view.types[a.tensor].shape, view.strides[a.tensor], {*_windowed(dot), *dot.batch}
    axes = sorted(range(len(shape)), key=lambda d: -strides[d])
    bare = [d for d in axes if (v := linear(a.index[d]).bare) is not None and v not in apart]
    last = next((d for d in reversed(bare) if shape[d] % WHOLE_VECTOR == 0), axes[-1])
    return [*(d for d in axes if d != last), last]


def _of_tensor(a: Access, output: str, dot: Dot, view: StridedView) -> tuple[Statement, tuple[Expr, ...]]:
    """All of a tensor as an assignment over its own axes, and where the access reads that."""
    shape, order = view.types[a.tensor].shape, _order(a, dot, view)
    places = [Affine.variable(f"x{d}").to_expr() for d in range(len(shape))]
    body = Call("float32", (Access(a.tensor, tuple(places)),))
    s = Statement(output, tuple(places[d] for d in order), tuple(Int(shape[d]) for d in order), body)
    return s, tuple(a.index[d] for d in order)


def split_operands(
    product: MatrixProduct, sides: tuple[str, ...] = ("left", "right"), last: str | None = None, windows: bool = False
) -> tuple[OperandRewrite, SplitOperands] | None:
    """The product over both operands' parts, or those of the sides, and how these are read. `last`:
    the variable along which parts shall lie. `windows`: of tensors that are read as they are, at any sums of variables,
    and with conditions. None where an operand is no tensor of its own, or too seldom used."""
    dot, space = product.dot, product.space
    if dot.dtype != "float32" or (len(space.classes) != 1 and not windows):
        return None
    made = Precomputed(product.view)
    found: list[tuple[Access, ...]] = []
    for side, factors, other, zeros, own in (
        ("left", dot.left, dot.columns, dot.zero_left, dot.rows),
        ("right", dot.right, dot.rows, dot.zero_right, dot.columns),
    ):
        if side not in sides:
            found.append(())
            continue
        used = frozenset().union(*map(variables_outside, factors))
        if space.count(other) < LEAST_REUSE or not (used & set(own) and used & set(dot.summed)):
            return None  # too seldom used, or a block that is the same along one of its axes
        if windows and isinstance(lone := factors[0], Access):
            whole, index = _of_tensor(lone, f"{space.statement.output}.{side}", dot, made.view)
        else:
            operand = None if zeros else operand_of(side, factors, dot.dtype, space, made.view, last)
            if operand is None:
                return None
            whole, index = operand, operand.index or ()
        reads = []
        for place, body in enumerate(_thirds(whole.body)):
            s = replace(whole, output=f"{whole.output}{place}_{COUNT}", body=body)
            if not made.take(s, PART, requested=True):
                return None
            reads.append(Access(s.output, index))
        found.append(tuple(reads))
    left, right = found
    after = (Release(tuple(a.tensor for a in (*left, *right))),)
    return OperandRewrite(made.view, space, tuple(made.before), after, dot), SplitOperands(left, right)


RECOMPUTED = 1024  # elements of a block that are computed again at a time
SOME = "tl.max(tl.max(({}).to(tl.int32), 1), 0)"


class SplitWriter(DotWriter):
    """A product over parts of its operands, where `split` says so."""

    suffix = "_split_dot"

    def __init__(self, task: DotTask, split: SplitOperands | None = None):
        self.split = split
        super().__init__(task)

    def _read(self) -> list[Access]:
        return super()._read() if self.split is None else [*super()._read(), *self.split.left, *self.split.right]

    @cached_property
    def _reduction(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Chosen by how the parts lie that are read."""
        if self.split is None:
            return super()._reduction
        read = replace(self.dot, left=self.split.left or self.dot.left, right=self.split.right)
        inner = inner_variables(replace(self.product, dot=read), self.config.bk)
        return inner, tuple(v for v in self.dot.summed if v not in inner)

    def _loop(self) -> None:
        if self.split is not None:
            self.kernel.assign("rest", "tl.full((BM, BN), 0, tl.float32)")
            self.kernel.assign("one", f"tl.where({self.kernel.count(self.dot.summed)} > 0, 1.0, 0.0)")
        super()._loop()
        if self.split is not None:
            self.kernel.assign("acc", "rest", "+=")

    def _multiplied(self, rows: Frame, columns: Frame) -> None:
        if self.split is None:
            super()._multiplied(rows, columns)
            return
        left, right = self._parts(rows, columns)
        for i, j in SMALLER:
            self.kernel.assign("rest", f"tl.dot({left[i]}, {right[j]}, rest)")
        self.kernel.assign("acc", f"tl.dot({left[0]}, {right[0]}) * one", "+=")

    def _parts(self, rows: Frame, columns: Frame) -> tuple[list[str], list[str]]:
        """The blocks of both operands' parts."""
        assert self.split is not None
        left, right = (
            [self._operand(frame, (read,), zeros, PART) for read in reads]
            for frame, reads, zeros in (
                (rows, self.split.left, self.dot.zero_left),
                (columns, self.split.right, self.dot.zero_right),
            )
        )
        return left or self._in_parts(self._operand(rows, self.dot.left, self.dot.zero_left)), right

    def _again(self, wrong: str, factors: Sequence[Expr], term: Callable[[list[str]], str]) -> None:
        """After the block is stored, where `unsure` says so: the elements of which the test of a `value` says that they
        are wrong are added up anew, some rows at a time, so that this takes no more registers than what programs need
        whose elements are all right. `term`: what is added of the factors' values."""
        k = self.kernel
        k.scopes.append(Scope())
        frame = self._some_rows()
        address, within = self._stored_at(frame, self.space.statement.output), "part_in[:, None] & col_in[None, :]"
        k.assign("value", f"tl.load({address}, mask={within}, other=0)")
        points = self._points(self._step(term), "part", frozenset(("part", *self.dot.rows)), factors=factors)
        k.scopes.append(Scope())
        k.assign("total", f"tl.where({wrong}, 0.0, value)")  # laid out as it is read and stored
        k.add(points)
        k.store(address, "total", f"{within} & ({wrong})")
        lines = tuple(k.scopes.pop().lines)
        k.add(If(f"{SOME.format(wrong)} > 0", lines))
        loop = ForLoop("over", f"range(0, BM, {self._at_once})", tuple(k.scopes.pop().lines))
        k.add(If("unsure > 0", (BARRIER, loop)))

    def _step(self, term: Callable[[list[str]], str]) -> Callable[[list[str], str], CodeLine]:
        """What adds a point to `total`."""
        whole = not (self.dot.zero_left or self.dot.zero_right)  # points beyond the last one are not walked
        return lambda values, valid: assign(
            "total", term(values) if whole else f"tl.where({valid}, {term(values)}, 0.0)", "+="
        )

    @property
    def _at_once(self) -> int:
        return min(self.config.bm, RECOMPUTED // self.config.bn)

    def _in_parts(self, rest: str) -> list[str]:
        """The parts of a block of a left operand, which tensor cores take from registers."""
        k, parts = self.kernel, list[str]()
        for place in range(COUNT):
            parts.append(k.names.fresh("left_part"))
            k.assign(parts[-1], f"{rest}.to(tl.{PART})")
            if place + 1 < COUNT:
                before, rest = rest, k.names.fresh("left_rest")
                k.assign(rest, f"{before} - {parts[-1]}.to(tl.float32)")
        return parts


class PartsWriter(SplitWriter):
    """A product whose sums are computed again, from the operands themselves, where they are not finite: an infinity has
    no parts."""

    def _must_look(self) -> bool:
        return True

    def _recompute(self) -> None:
        self.kernel.assign("unsure", SOME.format("(tl.abs(acc) < float('inf')) ^ True"))

    def _store(self) -> None:
        super()._store()
        factors = (*self.dot.left, *self.dot.right)
        scaled = [] if self.dot.scale == 1 else [repr(float(self.dot.scale))]
        again = self._all_again if self.epilogue else partial(self._again, "(tl.abs(value) < float('inf')) ^ True")
        again(factors, lambda values: " * ".join([*values, *scaled]))

    def _all_again(self, factors: Sequence[Expr], term: Callable[[list[str]], str]) -> None:
        """The same of all elements of such a block: what is stored does not tell which sums are not finite."""
        k = self.kernel
        k.scopes.append(Scope())
        frame = self._some_rows()
        k.assign("total", f"tl.full(({self._at_once}, BN), 0, tl.float32)")
        k.add(self._points(self._step(term), "part", frozenset(("part", *self.dot.rows)), factors=factors))
        value, _ = finish(frame, self.space, "total", "float32", self.epilogue)
        k.store(self._stored_at(frame, self.epilogue[-1].output), value, "part_in[:, None] & col_in[None, :]")
        loop = ForLoop("over", f"range(0, BM, {self._at_once})", tuple(k.scopes.pop().lines))
        k.add(If("unsure > 0", (BARRIER, loop)))


def _config(product: MatrixProduct, both: bool) -> Config:
    """The block of which most is done at a time, with the reduction in parts where blocks are few."""
    (rows, columns, terms), batch, dot = product.counts, product.repeated, product.dot

    def programs(c: Config) -> int:
        return batch * -(-rows // c.bm) * -(-columns // c.bn)

    (left,) = operand_accesses(dot.left[0])
    across = linear(left.index[_order(left, dot, product.view)[-1]]).bare in dot.rows

    def divided(block: SplitBlock) -> tuple[float, Config]:
        c, slots = block.config, block.beside * MULTIPROCESSORS
        c = replace(c, parts=max(1, min(slots // programs(c), terms // c.bk // 8)))
        rounds = -(-programs(c) * c.parts // slots)
        done = batch * rows * columns * c.parts / (rounds * slots * c.bm * c.bn)
        return done * (block.rate_across if across else block.rate), c

    return max(map(divided, SPLIT_BLOCKS if both else (ONE_SPLIT_BLOCK,)), key=lambda found: found[0])[1]


def _as_matrix(a: Access, view: StridedView) -> bool:
    """Whether it is read as a matrix is, not as windows of it, in whole vectors of 16 bits."""
    steps = zip(view.strides[a.tensor], view.types[a.tensor].shape, strict=True)
    aligned = all(step == 1 or step % WHOLE_VECTOR == 0 for step, n in steps if n > 1)
    return aligned and all(linear(e).bare is not None for e in a.index)


def _in_vectors(a: Access, dot: Dot, view: StridedView) -> bool:
    """Whether parts of all of its tensor are read in whole vectors."""
    last = _order(a, dot, view)[-1]
    bare = linear(a.index[last]).bare
    apart = bare is None or bare in (*_windowed(dot), *dot.batch)
    return view.types[a.tensor].shape[last] % WHOLE_VECTOR == 0 and not apart


def _lies_so(dot: Dot, view: StridedView) -> bool:
    """Whether the left operand lies in memory as its parts would."""
    (a,) = operand_accesses(dot.left[0])
    return view.strides[a.tensor][_order(a, dot, view)[-1]] == 1


def _along_parts(dot: Dot, sides: Sequence[Access], view: StridedView) -> Dot:
    """With the variables last, in each group of them, along which parts lie in memory."""
    last = {linear(a.index[_order(a, dot, view)[-1]]).bare for a in sides}
    rows, columns, summed = (tuple(sorted(v, key=last.__contains__)) for v in (dot.rows, dot.columns, dot.summed))
    return replace(dot, rows=rows, columns=columns, summed=summed)


def _swapped(dot: Dot) -> Dot:
    dot = replace(dot, left=dot.right, right=dot.left, rows=dot.columns, columns=dot.rows)
    return replace(dot, zero_left=dot.zero_right, zero_right=dot.zero_left)


def split_steps(
    product: MatrixProduct, flat: Statement, setting: Setting, epilogue: Sequence[Statement] = ()
) -> list[Step] | None:
    """Steps of a float32 product by parts of its operands: the right one's are made before, the left one's too where
    columns are many or where windows are read, else in the program. None where that is no faster than what would do it
    otherwise, or an epilogue has no place."""
    dot, space, view = product.dot, product.space, product.view
    stored = (space.statement.output, *(s.output for s in epilogue[-1:]))
    if setting.precision != "highest" or {dot.dtype, *(view.types[name].dtype for name in stored)} != {"float32"}:
        return None
    sides = [e for e in (*dot.left, *dot.right) if isinstance(e, Access)]
    if len(sides) != len(dot.left) + len(dot.right) or len(sides) != 2:
        return None
    if space.count(dot.rows) < space.count(dot.columns):
        dot = _swapped(dot)
    columns = space.count(dot.columns)
    whole = not product.is_plain or bool(_windowed(dot)) or len(space.classes) > 1
    filled = ONE_SPLIT_BLOCK.config.bn * -(-columns // ONE_SPLIT_BLOCK.config.bn)
    if columns < LEAST_REUSE or filled > (MOST_WINDOW_FILLED if whole else MOST_FILLED) * columns:
        return None
    pays = _windows_pay if whole else _matrices_pay
    product = replace(product, dot=dot)
    if whole:
        both = columns >= BOTH_WINDOW_COLUMNS or not _lies_so(dot, view)
    else:
        both = columns >= BOTH_COLUMNS and SPLIT_BYTES * _elements(product, True) <= MOST_PARTS
    if not pays(product, sides, both):
        return None
    product = replace(product, dot=_along_parts(dot, sides, view) if whole else dot)
    divided = split_operands(product, ("left", "right") if both else ("right",), windows=whole)
    if divided is None:
        return None
    over, split = divided
    config = _config(product, both)
    product = replace(product, view=replace(over.view, statement=view.statement))
    own = dot_steps(product, flat, setting, epilogue, config, partial(PartsWriter, split=split))
    return None if own is None else over.around(own)


def _matrices_pay(product: MatrixProduct, sides: Sequence[Access], both: bool) -> bool:
    (_, _, terms), points = product.counts, product.multiplications
    fewest = FEWEST_SPLIT_POINTS if both else FEWEST_SMALL_POINTS
    if not all(_as_matrix(a, product.view) for a in sides) or terms < FEWEST_SPLIT_TERMS or points < fewest:
        return False
    return SPLIT_BYTES * _elements(product, both) <= MOST_PARTS


def _elements(product: MatrixProduct, both: bool) -> int:
    """Of operands whose parts are made before."""
    (rows, columns, terms), batch = product.counts, product.space.count(product.dot.batch)
    return batch * terms * (columns + (rows if both else 0))


def _windows_pay(product: MatrixProduct, sides: Sequence[Access], both: bool) -> bool:
    """Of windows, and of matrices of which some points are left out."""
    dot, space, view = product.dot, product.space, product.view
    terms = product.counts[2]
    points = sum(math.prod(e[v] for v in (*dot.batch, *dot.rows, *dot.columns, *dot.summed)) for e in space.extent)
    if terms < FEWEST_WINDOW_TERMS or points < FEWEST_WINDOW_POINTS:
        return False
    made = [math.prod(view.types[a.tensor].shape) for a in sides]
    used = FEWEST_USES * max(made) <= points and SPLIT_BYTES * sum(made) <= MOST_PARTS
    affine = all(linear(e).is_affine for a in sides for e in a.index)
    return used and affine and all(_in_vectors(a, dot, view) for a in sides)
