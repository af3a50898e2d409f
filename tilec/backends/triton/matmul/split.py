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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Scope
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.matmul.blocks import LEAST_REUSE, Config
from tilec.backends.triton.matmul.dot import MatrixProduct, OperandRewrite, variables_outside
from tilec.backends.triton.matmul.kernel import DotTask, DotWriter
from tilec.backends.triton.matmul.precompute_operands import Precomputed, operand_of
from tilec.backends.triton.matmul.steps import dot_steps
from tilec.backends.triton.plan.device_info import MULTIPROCESSORS
from tilec.backends.triton.plan.lines import BARRIER, CodeLine, ForLoop, If, assign
from tilec.backends.triton.plan.plan import Release, Setting, Step
from tilec.ir.index import linear
from tilec.ir.program import Access, Call, Expr, Statement

PART, COUNT = "bfloat16", 3
FEWEST_SPLIT_POINTS, FEWEST_SPLIT_TERMS = 2**33, 512  # of a product that a library would carry out otherwise
MOST_PARTS = 2**28  # bytes of parts that such a product may take
BOTH_COLUMNS = 1024  # from which both operands' parts are made before
MOST_SMALL_SIDE = 128  # of those whose smaller operand's parts alone are; the library keeps what lies between
PART_VECTOR = 8  # elements of a part that are read at once
SMALL_BLOCK, BOTH_BLOCK = Config(128, 64, 32, 4, 3), Config(128, 128, 32, 8, 3)
SPLIT_BYTES = 2 * COUNT  # of a term
SMALLER = ((0, 2), (1, 1), (2, 0), (0, 1), (1, 0))  # products of parts beside the greatest, the smallest first


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


def split_operands(
    product: MatrixProduct,
    int64_index: bool,
    sides: tuple[str, ...] = ("left", "right"),
    last: str | None = None,
) -> tuple[OperandRewrite, SplitOperands] | None:
    """The product over both operands' parts, or those of the sides, and how these are read. `last`:
    the variable along which parts shall lie. None where an operand is no tensor of its own, or too seldom used."""
    dot, space = product.dot, product.space
    if dot.dtype != "float32" or len(space.classes) != 1:
        return None
    made = Precomputed(product.view, int64_index)
    found: list[tuple[Access, ...]] = []
    for side, factors, other, zeros, own in (
        ("left", dot.left, dot.columns, dot.zero_left, dot.rows),
        ("right", dot.right, dot.rows, dot.zero_right, dot.columns),
    ):
        if side not in sides:
            found.append(())
            continue
        if zeros or space.count(other) < LEAST_REUSE:
            return None
        whole = operand_of(side, factors, dot.dtype, space, made.view, last)
        if whole is None:
            return None
        if not (variables_outside(whole.body) & set(own) and variables_outside(whole.body) & set(dot.summed)):
            return None  # a block that is the same along one of its axes
        reads = []
        for place, body in enumerate(_thirds(whole.body)):
            s = replace(whole, output=f"{whole.output}{place}_{COUNT}", body=body)
            if not made.take(s, PART, requested=True):
                return None
            reads.append(Access(s.output, s.index or ()))
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
        super().__init__(task)
        self.split = split

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
            [self._operand(frame, (read,), (), PART) for read in reads]
            for frame, reads in ((rows, self.split.left), (columns, self.split.right))
        )
        return left or self._in_parts(self._operand(rows, self.dot.left, self.dot.zero_left)), right

    def _again(self, wrong: str, factors: Sequence[Expr], term: Callable[[list[str]], str]) -> None:
        """After the block is stored, where `unsure` says so: the elements of which the test of a `value` says that they
        are wrong are added up anew, some rows at a time, so that this takes no more registers than what programs need
        whose elements are all right. `term`: what is added of the factors' values."""
        k, s = self.kernel, self.space.statement
        k.scopes.append(Scope())
        frame = self._some_rows()
        address, within = frame.element_address(s), "part_in[:, None] & col_in[None, :]"
        k.assign("value", f"tl.load({address}, mask={within}, other=0)")

        def step(values: list[str], valid: str) -> CodeLine:
            return assign("total", f"tl.where({valid}, {term(values)}, 0.0)", "+=")

        points = self._points(step, "part", frozenset(("part", *self.dot.rows)), factors=factors)
        k.scopes.append(Scope())
        k.assign("total", f"tl.full(({self._at_once}, BN), 0, tl.float32)")
        k.add(points)
        k.store(address, "total", f"{within} & ({wrong})")
        lines = tuple(k.scopes.pop().lines)
        k.add(If(f"{SOME.format(wrong)} > 0", lines))
        loop = ForLoop("over", f"range(0, BM, {self._at_once})", tuple(k.scopes.pop().lines))
        k.add(If("unsure > 0", (BARRIER, loop)))

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
        if self.config.parts > 1:
            super()._recompute()
        else:
            self.kernel.assign("unsure", SOME.format("(tl.abs(acc) < float('inf')) ^ True"))

    def _store(self) -> None:
        super()._store()
        if self.config.parts == 1:
            factors = (*self.dot.left, *self.dot.right)
            scaled = [] if self.dot.scale == 1 else [repr(float(self.dot.scale))]
            self._again("(tl.abs(value) < float('inf')) ^ True", factors, lambda values: " * ".join([*values, *scaled]))


def _config(product: MatrixProduct, both: bool) -> Config:
    """A large block, where that gives every multiprocessor one; else a small one, and the reduction in parts."""
    (rows, columns, terms), batch = product.counts, product.repeated

    def programs(c: Config) -> int:
        return batch * -(-rows // c.bm) * -(-columns // c.bn)

    large, small = BOTH_BLOCK, SMALL_BLOCK
    filled = 4 * large.bn * -(-columns // large.bn) <= 5 * columns
    if both and columns > large.bn and filled and programs(large) >= MULTIPROCESSORS:
        return large
    return replace(small, parts=max(1, min(2 * MULTIPROCESSORS // programs(small), terms // small.bk // 8)))


def _as_matrix(a: Access, view: StridedView) -> bool:
    """Whether it is read as a matrix is, not as windows of it, in whole vectors of 16 bits."""
    steps = zip(view.strides[a.tensor], view.types[a.tensor].shape, strict=True)
    aligned = all(step == 1 or step % PART_VECTOR == 0 for step, n in steps if n > 1)
    return aligned and all(linear(e).bare is not None for e in a.index)


def split_steps(product: MatrixProduct, flat: Statement, int64_index: bool, setting: Setting) -> list[Step] | None:
    """Steps of a float32 product by parts of its operands: the right one's are made before, the left one's too where
    columns are many, else in the program. None where that is no faster than what a library does."""
    dot, space, view = product.dot, product.space, product.view
    plain = product.is_plain and len(space.classes) == 1
    types = dot.dtype, view.types[space.statement.output].dtype
    if setting.precision != "highest" or types != ("float32", "float32") or not plain:
        return None
    sides = [e for e in (*dot.left, *dot.right) if isinstance(e, Access)]
    if len(sides) != len(dot.left) + len(dot.right) or len(sides) != 2 or not all(_as_matrix(a, view) for a in sides):
        return None
    if space.count(dot.rows) < space.count(dot.columns):
        dot = replace(dot, left=dot.right, right=dot.left, rows=dot.columns, columns=dot.rows)
        product = replace(product, dot=dot)
    (_, columns, terms), points = product.counts, product.multiplications
    filled = 4 * SMALL_BLOCK.bn * -(-columns // SMALL_BLOCK.bn) <= 5 * columns
    if columns < LEAST_REUSE or not filled or terms < FEWEST_SPLIT_TERMS or points < FEWEST_SPLIT_POINTS:
        return None
    both = columns >= BOTH_COLUMNS
    if not both and columns > MOST_SMALL_SIDE:
        return None
    made = [space.count((*dot.batch, *dot.summed, *v)) for v in (dot.columns, *((dot.rows,) if both else ()))]
    if SPLIT_BYTES * sum(made) > MOST_PARTS:
        return None
    divided = split_operands(product, int64_index, ("left", "right") if both else ("right",))
    if divided is None:
        return None
    over, split = divided
    config = _config(product, both)
    product = replace(product, view=replace(over.view, statement=view.statement))
    own = dot_steps(product, flat, int64_index, setting, (), config, partial(PartsWriter, split=split))
    return None if own is None else over.around(own)
