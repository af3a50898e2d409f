"""Sums of exp(l + r - c) * w, such as the gradients of logsumexp, on tensor cores.

The exponent's terms fall into those that the sum does not reach (`beside`), those of one operand (`right`) and those of
the weight w and what it depends on. With the greatest of the first two along what the weight does not know, p and q,
the sum is exp(l - p) * sum w * exp(p + q - c) * exp(r - q): a product of matrices. The middle exponential may be large,
where what underflow loses beside it would count: such a weight is made NaN, and a block that comes out not finite is
computed again point by point from the statement's own terms, in the same kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilec.backends.common.code import literal
from tilec.backends.common.terms import product_of, split_factors, split_terms
from tilec.backends.triton.emit.contiguity import fastest_variable
from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.emit.kernel import where_text
from tilec.backends.triton.emit.scalar import TritonScalars
from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.matmul.dot import MatrixProduct, sides_of, variables_outside, worthwhile
from tilec.backends.triton.matmul.kernel import WITHIN, DotTask
from tilec.backends.triton.matmul.logsumexp_matmul import (
    FINITE_LOWEST,
    LOG_ZERO,
    ExponentialWriter,
    added_terms,
    finite_text,
    top_of,
)
from tilec.backends.triton.matmul.split import SplitOperands
from tilec.backends.triton.plan.lines import CodeLine, assign
from tilec.ir.index import linear
from tilec.ir.infer import expression_type
from tilec.ir.program import Access, Call, Expr, Float, Int, Statement, accesses_in, rebuild

FINITE = "(tl.abs(acc) < float('inf'))"
FEW_POINTS = 2**16  # sums over fewer are taken for as many, so that their weights are equal
LOST = {"float32": 99, "float64": 966}  # powers of two by which a weight may lift what underflow loses


@dataclass(frozen=True)
class Weighted(MatrixProduct):
    """The product of matrices; `tops` the statements of the greatest terms; `beside` what its result is
    multiplied by; `exact` the statement's own factors. The exponent is the sum of `near` (of the output's element),
    `far` (of the operand that is exponentials alone) and `inside` (of the weight); `weights` are the weight's factors
    without it, `first` says that it is the left operand, and `least` how far it may lift what underflow loses.
    `apart`: memory runs along different axes of the weight's tensors, or repeats what the sum reads."""

    tops: tuple[Statement, Statement]
    beside: Expr
    exact: tuple[Expr, ...]
    near: Expr
    far: Expr
    inside: Expr | None
    weights: tuple[Expr, ...]
    first: bool
    least: float
    apart: bool


def recognise_weighted(space: Space, view: StridedView) -> Weighted | None:
    """The statement as such a sum, None where it is none or too small."""
    s = space.statement
    if s.aggregation != "sum" or s.default is not None or space.stored or len(space.classes) != 1:
        return None
    split = split_factors(s.body, view.types)
    element = expression_type(s.body, view.types).dtype
    if split is None or element not in ("float16", "bfloat16", "float32", "float64"):
        return None
    exponentials = [f for f in split[0] if isinstance(f, Call) and f.function == "exp"]
    others = [f for f in split[0] if f not in exponentials]
    if len(exponentials) != 1 or not others:
        return None
    terms, added = split_terms(exponentials[0].args[0], view.types)
    varying = {v for v in (*space.outputs, *space.reductions) if not space.single(v)}
    weighing = [*others, *s.guards]
    known = frozenset().union(*(variables_outside(f) for f in weighing)) & varying
    beside = [
        t
        for t in terms
        if not variables_outside(t) & varying <= known and variables_outside(t) & varying <= set(space.outputs)
    ]
    right = [t for t in terms if t not in beside and not variables_outside(t) & varying <= known]
    weight = [t for t in terms if t not in beside and t not in right]
    if not beside or not right:
        return None
    if added:
        weight.append(Float(added) if added > 0 else Call("neg", (Float(-added),)))
    dtype = "float64" if element == "float64" else "float32"
    order = [v for v in (*space.outputs, *space.reductions) if v in known]
    tops = tuple(
        top_of(
            s,
            name,
            tuple(v for v in order if any(v in variables_outside(t) for t in side)),
            added_terms(side, dtype),
            dtype,
            space,
            view.types,
        )
        for name, side in (("beside", beside), ("right", right))
    )
    p, q = (Access(t.output, t.index or ()) for t in tops)
    # in an order that the sums of one exponent by its several terms have in common, so that their weights are equal
    (_, first_top), (_, second_top) = sorted(((repr(beside), p), (repr(right), q)), key=lambda pair: pair[0])
    lifted = added_terms([finite_text(first_top), finite_text(second_top), *weight], dtype)
    least = LOST[dtype] * math.log(2) - math.log(max(space.count(space.reductions), FEW_POINTS))
    certified = Call("le", (lifted, Float(least)))
    lift = Call("select", (certified, Call("exp", (lifted,)), Float(math.nan)))
    weights = tuple(Call(dtype, (read_once(f, space, view),)) for f in others)
    left = product_of([*weights, lift])
    if not known <= variables_outside(left):
        return None
    spread = Call("exp", (Call("sub", (added_terms(right, dtype), finite_text(q))),))
    found = sides_of([left, spread], space)
    if found is None:
        return None
    dot = replace(found, scale=split[1], dtype=dtype)
    if not worthwhile(dot, space):
        return None
    near, far = added_terms(beside, dtype), added_terms(right, dtype)
    factor = Call("exp", (Call("sub", (near, finite_text(p))),))
    inside = added_terms(weight, dtype) if weight else None
    first = found.left == (left,)
    exact = tuple(read_once(f, space, view) for f in split[0])
    transposed = len({v for a in accesses_in(*weights, inside) if (v := fastest_variable(a, view)) is not None}) > 1
    apart = transposed or any(repeats(a, view) for a in accesses_in(*exact, near, far, inside, *s.guards))
    return Weighted(
        dot, space, view, (tops[0], tops[1]), factor, exact, near, far, inside, weights, first, least, apart
    )


def read_once(e: Expr, space: Space, view: StridedView) -> Expr:
    """With elements that stride 0 repeats, as the cotangent of a sum has them, read at their first place."""
    if not isinstance(e, Access):
        return rebuild(e, lambda child: read_once(child, space, view))
    shape, strides, box = view.types[e.tensor].shape, view.strides[e.tensor], space.box(0)

    def inside(i: Expr, n: int) -> bool:
        low, high = box.interval(linear(i))
        return 0 <= low and high < n

    axes = zip(e.index, shape, strides, strict=True)
    return replace(e, index=tuple(Int(0) if step == 0 and inside(i, n) else i for i, n, step in axes))


def repeats(access: Access, view: StridedView) -> bool:
    """Does memory repeat elements that a block reads each at its own place (stride 0)?"""
    axes = zip(access.index, view.strides[access.tensor], view.types[access.tensor].shape, strict=True)
    return any(step == 0 and n > 1 and i != Int(0) for i, step, n in axes)


class WeightedWriter(ExponentialWriter):
    suffix = "_weighted_dot"

    def __init__(self, found: Weighted, task: DotTask, split: SplitOperands | None):
        super().__init__(found.dot, task, split)
        self.found = found

    def _recompute(self) -> None:
        k, found = self.kernel, self.found
        frame = self._block()
        factor = TritonScalars(frame, found.beside).text(found.beside, found.dot.dtype)
        k.assign("acc", f"tl.where({WITHIN}, acc * {factor}, 0.0)")
        self._in_turn(f"{FINITE} ^ True", [self._levelled(frame), self._exact()])

    def _levelled(self, frame: Frame) -> list[CodeLine]:
        """The product with the greatest terms of this block of outputs and of each block of the reduction."""
        k, found, dtype = self.kernel, self.found, self.dot.dtype
        axis, ours, theirs = (1, "[:, None]", "[None, :]") if found.first else (0, "[None, :]", "[:, None]")
        near = TritonScalars(frame, found.near).text(found.near, dtype)

        def multiply(rows: Frame, columns: Frame) -> None:
            weighing, spreading = (rows, columns) if found.first else (columns, rows)
            far = self._terms(spreading, found.far)
            k.assign("far_top", f"tl.maximum(tl.max({far}, {axis}), {FINITE_LOWEST})")
            spread = f"exp_({far} - far_top{ours})"
            weight = self._weight(weighing, f"near_top{ours} + far_top{theirs}")
            if found.apart:
                # Triton 3.6 does not compile these in an operand's layout, which a sum over one element keeps away
                weight = f"tl.sum(tl.expand_dims({weight}, 2), 2)"
            operands = (weight, spread) if found.first else (spread, weight)
            k.assign("total", f"tl.dot({operands[0]}, {operands[1]}, total{self._options()})")

        return [
            assign("near_top", f"tl.maximum(tl.max(tl.where({WITHIN}, {near}, {LOG_ZERO}), {axis}), {FINITE_LOWEST})"),
            assign("total", self._zeros),
            self._blocks(multiply, rare=True),
            assign("total", f"tl.where({WITHIN}, total * exp_({near} - near_top{ours}), 0.0)"),
            assign("acc", f"tl.where({FINITE}, acc, total)"),
        ]

    def _weight(self, frame: Frame, tops: str) -> str:
        """A name of a block of weights that holds exp of the exponent with these greatest terms."""
        k, found, dtype = self.kernel, self.found, self.dot.dtype
        zeros = self.plain.zero_left if found.first else self.plain.zero_right
        inside = () if found.inside is None else (found.inside,)
        evaluator = self._scalars(frame, (*found.weights, *inside), zeros)
        exponent = " + ".join([tops, *(evaluator.text(e, dtype) for e in inside)])
        factors = [f"({evaluator.text(f, dtype)})" for f in found.weights]
        tests = [*self._tests(frame, evaluator, zeros), *(frame.spread(t, a) for a, t in frame.tails.items())]
        k.assign("lifted", exponent)
        lift = f"tl.where(lifted <= {literal(found.least)}, exp_(lifted), float('nan'))"
        code = " * ".join([*factors, lift])
        k.assign("weight", where_text(tests, code, "0.0"))
        return "weight"

    def _exact(self) -> list[CodeLine]:
        """Point by point, by the statement's own factors."""

        def step(values: list[str], tests: list[str]) -> Sequence[CodeLine]:
            return (assign("total", where_text(tests, " * ".join(f"({v})" for v in values), "0.0"), "+="),)

        return [
            assign("total", self._zeros),
            self._each(self.found.exact, step),
            assign("acc", f"tl.where({FINITE}, acc, total)"),
        ]
