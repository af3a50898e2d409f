"""logsumexp over sums of two operands, on tensor cores.

With a_i and b_j the greatest left and right term of a row and a column, log sum_k exp(l_ik + r_kj) is
a_i + b_j + log S where S = sum_k exp(l_ik - a_i) * exp(r_kj - b_j) is a product of matrices. What underflow loses of K
terms is a few K * 2^-126, so where S is at least K * 2^-99 the result is as accurate as the product (float64: 2^-966).
Rows and columns that are -inf throughout are exactly that, and no failure. A block in which some S is smaller, or not
finite, goes on in the same kernel: pairs of terms that are not -inf are counted, and what still is not certain is added
term by term. Elements that are certain keep what they have, so that none depends on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.code import literal, tuple_text
from tilec.backends.common.domain import Condition
from tilec.backends.common.scalars import LEAST_CERTAIN
from tilec.backends.common.terms import product_of, split_terms, sum_of
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import Axis, Scope, triton_type, where_text
from tilec.backends.triton.emit.scalar import TritonScalars
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.matmul.dot import Dot, MatrixProduct, guards_among, sides_of, worthwhile
from tilec.backends.triton.matmul.kernel import BLOCKS, DotTask
from tilec.backends.triton.matmul.split import SplitOperands, SplitWriter
from tilec.backends.triton.plan.lines import CodeLine, ForLoop, If, assign
from tilec.backends.triton.pointwise.semiring_matmul import NEVER, reads_first
from tilec.ir.constraining import constraining
from tilec.ir.index import Affine, linear
from tilec.ir.infer import expression_type
from tilec.ir.program import Access, Call, Constraint, Expr, Float, Int, Statement, index_variables
from tilec.ir.symbolic import gcd
from tilec.ir.types import FLOATS, TensorType, Types
from tilec.lattice.sets import sizes_of

CANCELLED = 31  # below 32 three roundings of a logarithm are 2.9e-6; beside a larger result they are of its last place
FINITE_LOWEST = "-1.0e38"  # stands for -inf among the greatest terms of blocks; three times as much is still finite
TOGETHER = 2  # points whose reads come first where single terms are added
LOG_ZERO = "float('-inf')"
WriteStep = Callable[[list[str], list[str]], Sequence[CodeLine]]


@dataclass(frozen=True)
class LogDot(MatrixProduct):
    """The product of the exponentials; `tops` are the statements of the greatest terms, left and right, `reads` how
    the kernel reads them; `left` and `right` the terms themselves; `added` a number that stands beside them."""

    tops: tuple[Statement, Statement]
    reads: tuple[Access, Access]
    left: Expr
    right: Expr
    added: float | int


def recognise_log(space: Space, view: StridedView) -> LogDot | None:
    """The statement as such a product, None where it is none or too small."""
    s = space.statement
    if s.aggregation != "logsumexp" or s.default is not None or space.stored or len(space.classes) != 1:
        return None
    element = expression_type(s.body, view.types).dtype
    terms, added = split_terms(s.body, view.types)
    if element not in FLOATS or len(terms) < 2:
        return None
    dtype = "float64" if element == "float64" else "float32"
    found = sides_of(terms, space, added=True)
    if found is None:
        return None
    left, right = (added_terms(side, dtype) for side in (found.left, found.right))
    outputs = (*found.batch, *found.rows), (*found.batch, *found.columns)
    tops = tuple(
        top_of(s, name, variables, side, dtype, space, view.types)
        for name, variables, side in zip(("left", "right"), outputs, (left, right), strict=True)
    )
    reads = tuple(Access(t.output, t.index or ()) for t in tops)
    operands = tuple(
        (Call("exp", (Call("sub", (side, finite_text(read))),)),)
        for side, read in zip((left, right), reads, strict=True)
    )
    dot = replace(found, left=operands[0], right=operands[1], dtype=dtype)
    if not worthwhile(dot, space):
        return None
    return LogDot(dot, space, view, (tops[0], tops[1]), (reads[0], reads[1]), left, right, added)


def added_terms(terms: Sequence[Expr], dtype: str) -> Expr:
    """The terms added in this type, whatever narrower ones they have themselves."""
    return sum_of([Call(dtype, (t,)) for t in terms])


def finite_text(read: Expr) -> Expr:
    infinite = Call("lt", (Call("abs", (read,)), Float(float("inf"))))
    return Call("select", (infinite, read, Float(0.0)))


def top_of(
    s: Statement, name: str, variables: tuple[str, ...], body: Expr, dtype: str, space: Space, types: Types
) -> Statement:
    """The greatest terms of one side as a statement over the side's own variables. What the other side alone confines
    the points to, as a kernel does a window, is written out."""
    low, extent = space.low[0], space.extent[0]
    index = tuple((Affine.variable(v) - low[v]).to_expr() for v in variables)
    sizes = tuple(Int(extent[v]) for v in variables)
    whole = {
        linear(e).bare
        for a in constraining(body)
        for e, n in zip(a.index, types[a.tensor].shape, strict=True)
        if n == extent.get(linear(e).bare or "") and low[linear(e).bare or ""] == 0
    }
    summed = [v for v in index_variables(body) if v in extent and v not in variables and v not in whole]
    constraints = tuple(Constraint((Affine.variable(v) - low[v]).to_expr(), Int(extent[v])) for v in summed)
    return Statement(
        f"{s.output}.top_{name}", index, sizes, Call(dtype, (body,)), "max", constraints=constraints, span=s.span
    )


def with_tops(tops: Sequence[Statement], view: StridedView) -> StridedView:
    """With the types and strides of the greatest terms' tensors."""
    for t in tops:
        shape = sizes_of(t)
        view = view.with_tensor(t.output, TensorType(shape, expression_type(t.body, view.types).dtype))
    return view


def with_guards(dot: Dot) -> Dot:
    """The product with guards in its factors rather than beside them, so that these can be computed beforehand."""
    sides = []
    for factors, zeros in ((dot.left, dot.zero_left), (dot.right, dot.zero_right)):
        guards = guards_among(zeros)
        if guards:
            whole = product_of(list(factors))
            for g in guards:
                whole = Call("select", (g, whole, Float(0.0)))
            factors = (whole,)
        sides.append((factors, tuple(z for z in zeros if isinstance(z, Condition))))
    (left, zero_left), (right, zero_right) = sides
    return replace(dot, left=left, right=right, zero_left=zero_left, zero_right=zero_right)


class ExponentialWriter(SplitWriter):
    """A product of exponentials, with other ways to compute the elements of a block that it does not make certain.

    `plain`: the product as it was recognised, with the conditions of its terms; its task's: as it is carried out, of
    operands that may be computed beforehand, `split` perhaps (`split.py`)."""

    def __init__(self, plain: Dot, task: DotTask, split: SplitOperands | None):
        super().__init__(task, split)
        self.plain = plain

    def _must_look(self) -> bool:
        return True

    def _in_turn(self, some_left: str, ways: Sequence[Sequence[CodeLine]]) -> None:
        """One way after the other, while some element of the block is left."""
        test, lines = f"tl.max(tl.max(({some_left}).to(tl.int32), 1), 0) > 0", tuple[CodeLine, ...]()
        for way in reversed(ways):
            lines = (If(test, (*way, *lines)),)
        self.kernel.add(*lines)

    def _terms(self, frame: Frame, side: Expr) -> str:
        """A name of a block of one operand's terms, -inf where they are not valid."""
        k, dtype = self.kernel, self.dot.dtype
        zeros = self.plain.zero_left if frame.axes[0] == "row" else self.plain.zero_right
        evaluator = self._scalars(frame, (side,), zeros)
        code = evaluator.text(side, dtype)
        tests = [*self._tests(frame, evaluator, zeros), *(frame.spread(t, a) for a, t in frame.tails.items())]
        shape = tuple_text([BLOCKS[a] for a in frame.axes])
        name = k.names.fresh("terms")
        k.assign(name, f"tl.broadcast_to({where_text(tests, code, LOG_ZERO)}, {shape})")
        return name

    def _each(self, factors: Sequence[Expr], step: WriteStep) -> CodeLine:
        """A loop over the program's own points of the reduction, few at a time: `step` makes its lines of the factors'
        values and the tests that the point is valid."""
        k, dot = self.kernel, self.dot
        together = gcd(TOGETHER, *(e[dot.summed[-1]] for e in self.space.extent))
        zeros = (*self.plain.zero_left, *self.plain.zero_right)
        windows, summed = dot.summed[:-1], dot.summed[-1:]
        scopes = [frozenset((*windows, "window"))] if windows else []
        if windows:
            k.scopes.append(Scope())
            k.assign("window", f"tl.full((), 0, {self.integer}) + at_window")
            k.decode(Axis("window", windows, None))

        def write(number: int) -> int:
            red = k.names.fresh(f"red_{number}")
            k.assign(red, f"tl.full((), 0, {self.integer}) + (at_red + {number})")
            k.decode(Axis(red, summed, None))
            bound = (*scopes, frozenset((*summed, red)))
            frame = self._block(*bound)
            evaluator = self._scalars(frame, factors, zeros)
            evaluator.read_first(*factors, *guards_among(zeros), always=True)
            last = len(k.scopes[-1].lines)
            values = [evaluator.text(f, dot.dtype) for f in factors]
            k.add(*step(values, self._tests(frame, evaluator, zeros)))
            return last

        lines = tuple(reads_first(k, together, write))
        loop = ForLoop("at_red", f"range(0, {k.count(summed)}, {together})", lines)
        if windows:
            loop = ForLoop("at_window", f"range(0, {k.count(windows)}, 1)", (*k.scopes.pop().lines, loop))
        return loop


class LogWriter(ExponentialWriter):
    suffix = "_log_dot"

    def __init__(self, log: LogDot, task: DotTask, split: SplitOperands | None):
        super().__init__(log.dot, task, split)
        self.log = log

    def _recompute(self) -> None:
        """The logarithm where it is certain, NaN elsewhere; then one way after the other while some NaN is left."""
        k, log = self.kernel, self.log
        frame = self._block()
        evaluator = TritonScalars(frame, *log.reads, *map(finite_text, log.reads))
        raw = [evaluator.text(r, log.dot.dtype) for r in log.reads]
        left, right = (evaluator.text(finite_text(r), log.dot.dtype) for r in log.reads)
        none = [f"({r} == {LOG_ZERO})" for r in raw]
        outside = "(row_in[:, None] & col_in[None, :] ^ True)"
        k.assign("base", f"{left} + {right}")
        certified = f"{self._certain()} | {none[0]} | {none[1]} | {outside}"
        k.assign("acc", f"tl.where({certified}, acc, float('nan'))")
        self._in_turn("acc != acc", [self._absent(raw), self._exact(frame)])
        k.assign("acc", f"log_above_(acc, {left}, {right}, base)")

    def _certain(self) -> str:
        """Text of the test that a sum is accurate whose logarithm is added to `base`: nothing that counts was lost, and
        no two large numbers cancel to a small result, which would keep their rounding. (The exponent will do for the
        logarithm.)"""
        least = f"{literal(LEAST_CERTAIN[self.dot.dtype])} * ({self.kernel.count(self.dot.summed)})"
        test = f"(acc >= {least}) & (acc < float('inf'))"
        return test + (f" & beside_(acc, base, {CANCELLED})" if self.dot.dtype == "float32" else "")

    def _absent(self, tops: Sequence[str]) -> list[CodeLine]:
        """Elements that no pair of terms reaches are -inf: pairs are counted, unless an infinity of the other sign or
        NaN is about, which beside -inf gives NaN."""

        def count(rows: Frame, columns: Frame) -> None:
            left, right = self._terms(rows, self.log.left), self._terms(columns, self.log.right)
            there = [f"({side} != {LOG_ZERO}).to(tl.float16)" for side in (left, right)]
            self.kernel.assign("pairs", f"tl.dot({there[0]}, {there[1]}, pairs)")

        bounded = " & ".join(f"({t} < float('inf'))" for t in tops)
        return [
            assign("pairs", "tl.full((BM, BN), 0, tl.float32)"),
            self._blocks(count, rare=True),
            assign("acc", f"tl.where((pairs == 0) & {bounded}, 0.0, acc)"),
        ]

    def _exact(self, frame: Frame) -> list[CodeLine]:
        """Term by term: first the greatest of each element, then the sum relative to it. The block is laid out as its
        output is for that, by a read of it that reads nothing."""
        dtype = triton_type(self.dot.dtype)

        def with_value(line: CodeLine) -> WriteStep:
            return lambda values, tests: (assign("value", where_text(tests, " + ".join(values), LOG_ZERO)), line)

        s, sides = self.space.statement, (self.log.left, self.log.right)
        output = self.epilogue[-1].output if self.epilogue else s.output
        place = frame.element_address(s, output)
        return [
            assign("zeros", f"tl.load({place}, mask={NEVER}, other=0)"),
            assign(
                "top", f"tl.where(zeros == 0, tl.full((BM, BN), {LOG_ZERO}, {dtype}), tl.full((BM, BN), 0, {dtype}))"
            ),
            self._each(sides, with_value(assign("top", "maximum_(top, value)"))),
            assign("highest", "tl.where(tl.abs(top) < float('inf'), top, 0.0)"),
            assign("total", f"tl.where(zeros == 0, tl.full((BM, BN), 0, {dtype}), tl.full((BM, BN), 1, {dtype}))"),
            self._each(sides, with_value(assign("total", "share_exp_(value - highest)", "+="))),
            assign("base", "tl.where(acc != acc, highest, base)"),
            assign("acc", "tl.where(acc != acc, total, acc)"),
        ]

    def _finish(self, frame: Frame) -> None:
        k, dot = self.kernel, self.dot
        evaluator = TritonScalars(frame)
        tests = self._tests(frame, evaluator, dot.zero_result)
        if self.log.added:
            k.assign("acc", f"acc + {literal(float(self.log.added))}")
        if tests:
            k.assign("acc", where_text(tests, "acc", LOG_ZERO))
