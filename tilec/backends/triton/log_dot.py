"""logsumexp over sums of two operands, on tensor cores.

With a_i and b_j the greatest left and right term of a row and a column, log sum_k exp(l_ik + r_kj) is
a_i + b_j + log S where S = sum_k exp(l_ik - a_i) * exp(r_kj - b_j) is a product of matrices. What underflow loses of K
terms is a few K * 2^-126, so where S is at least K * 2^-99 the result is as accurate as the product (float64: 2^-966).
A block in which some S is smaller, or not finite, is computed again in the same kernel, term by term. Rows and columns
that are -inf throughout are exactly that, and no failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilec.backends.code import literal
from tilec.backends.terms import split_terms, sum_of
from tilec.backends.triton.accumulate import Accumulator
from tilec.backends.triton.coalesce import Viewed
from tilec.backends.triton.dot import Dot, sides_of, worthwhile
from tilec.backends.triton.dot_text import DotWriter
from tilec.backends.triton.kernel import Frame
from tilec.backends.triton.scalar import Evaluator
from tilec.backends.triton.sizes import contiguous
from tilec.backends.triton.space import Space
from tilec.ir.index import Affine
from tilec.ir.infer import expression_type
from tilec.ir.program import (
    Access,
    Call,
    Constraint,
    Expr,
    Float,
    Int,
    Pad,
    Statement,
    index_variables,
    walk,
)
from tilec.ir.types import FLOATS, TensorType

CERTAIN = {"float32": 2.0**-99, "float64": 2.0**-966}


@dataclass(frozen=True)
class LogDot:
    """`dot` multiplies the exponentials; `tops` are the statements of the greatest terms, left and right, `reads` how
    the kernel reads them; `left` and `right` the terms themselves; `added` a number that stands beside them."""

    dot: Dot
    tops: tuple[Statement, Statement]
    reads: tuple[Access, Access]
    left: Expr
    right: Expr
    added: float | int


def recognise_log(space: Space, seen: Viewed) -> LogDot | None:
    """The statement as such a product, None where it is none or too small."""
    s = space.statement
    if s.aggregation != "logsumexp" or s.default is not None or space.stored or len(space.classes) != 1:
        return None
    element = expression_type(s.body, seen.types).dtype
    terms, added = split_terms(s.body, seen.types)
    if element not in FLOATS or len(terms) < 2:
        return None
    dtype = "float64" if element == "float64" else "float32"
    found = sides_of(terms, space)
    if found is None:
        return None
    left, right = (joined(side, dtype) for side in (found.left, found.right))
    outputs = (*found.batch, *found.rows), (*found.batch, *found.columns)
    tops = tuple(
        top_of(s, name, variables, side, dtype, space)
        for name, variables, side in zip(("left", "right"), outputs, (left, right), strict=True)
    )
    reads = tuple(Access(t.output, t.index or ()) for t in tops)
    operands = tuple(
        (Call("exp", (Call("sub", (side, finite(read))),)),) for side, read in zip((left, right), reads, strict=True)
    )
    dot = replace(found, left=operands[0], right=operands[1], dtype=dtype)
    if not worthwhile(dot, space):
        return None
    return LogDot(dot, (tops[0], tops[1]), (reads[0], reads[1]), left, right, added)


def joined(terms: Sequence[Expr], dtype: str) -> Expr:
    """The terms added in this type, whatever narrower ones they have themselves."""
    return sum_of([Call(dtype, (t,)) for t in terms])


def finite(read: Expr) -> Expr:
    infinite = Call("lt", (Call("abs", (read,)), Float(float("inf"))))
    return Call("select", (infinite, read, Float(0.0)))


def top_of(s: Statement, name: str, variables: tuple[str, ...], body: Expr, dtype: str, space: Space) -> Statement:
    low, extent = space.low[0], space.extent[0]
    index = tuple((Affine.variable(v) - low[v]).to_expr() for v in variables)
    sizes = tuple(Int(extent[v]) for v in variables)
    constraints: tuple[Constraint, ...] = ()
    if any(isinstance(e, Pad) for e in walk(body)):  # a padded access bounds no variable
        summed = [v for v in index_variables(body) if v in extent and v not in variables]
        constraints = tuple(Constraint((Affine.variable(v) - low[v]).to_expr(), Int(extent[v])) for v in summed)
    return Statement(
        f"{s.output}.{name}", index, sizes, Call(dtype, (body,)), "max", constraints=constraints, span=s.span
    )


def viewed_with_tops(tops: Sequence[Statement], seen: Viewed) -> Viewed:
    """With the types and strides of the greatest terms' tensors."""
    types, strides = dict(seen.types), dict(seen.strides)
    for t in tops:
        shape = tuple(n.value for n in t.sizes or () if isinstance(n, Int))
        types[t.output] = TensorType(shape, expression_type(t.body, types).dtype)
        strides[t.output] = contiguous(shape)
    return Viewed(seen.statement, types, strides)


class LogWriter(DotWriter):
    def __init__(self, log: LogDot, space: Space, seen: Viewed, wide: bool, precision: str, config, riding):
        super().__init__(log.dot, space, seen, wide, precision, config, "_log_dot", riding)
        self.log = log

    def _must_look(self) -> bool:
        return True

    def _again(self) -> None:
        """The logarithm where it is certain, and all of the block again, term by term, if somewhere it is not."""
        k, log = self.kernel, self.log
        frame = Frame(k, ("row", "col"), {"row": "row_in", "col": "col_in"})
        evaluator = Evaluator(frame, *log.reads, *map(finite, log.reads))
        raw = [evaluator.tensor(evaluator.value(r), log.dot.dtype) for r in log.reads]
        left, right = (evaluator.tensor(evaluator.value(finite(r)), log.dot.dtype) for r in log.reads)
        bound = f"{literal(CERTAIN[log.dot.dtype])} * ({k.count(log.dot.summed)})"
        k.emit(f"sure = (acc >= {bound}) & (acc < float('inf'))")
        k.emit(f"sure = sure | ({raw[0]} == float('-inf')) | ({raw[1]} == float('-inf'))")
        k.emit("sure = sure | (row_in[:, None] & col_in[None, :] ^ True)")
        k.emit(f"acc = libdevice.log(acc) + {left} + {right}")
        k.emit("if tl.max(tl.max((sure ^ True).to(tl.int32), 1), 0) > 0:")
        exact = Accumulator("logsumexp", log.dot.dtype)
        whole, self.dot = self.dot, replace(self.dot, left=(log.left,), right=(log.right,))
        lines = [*exact.start("(BM, BN)"), *self._points(self._joined(exact))]
        self.dot = whole
        k.scopes[-1].lines += [f"    {line}" for line in (*lines, f"acc = {exact.result()}")]

    def _joined(self, exact: Accumulator):
        def step(values: list[str], valid: str) -> list[str]:
            return [f"value = tl.where({valid}, {' + '.join(values)}, float('-inf'))", *exact.step("value")]

        return step

    def _finish(self, frame: Frame) -> None:
        k, dot = self.kernel, self.dot
        evaluator = Evaluator(frame)
        tests = self._tests(frame, evaluator, dot.zero_result)
        if self.log.added:
            k.emit(f"acc = acc + {literal(float(self.log.added))}")
        if tests:
            k.emit(f"acc = tl.where({' & '.join(dict.fromkeys(tests))}, acc, float('-inf'))")
