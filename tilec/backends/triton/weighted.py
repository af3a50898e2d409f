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

from tilec.backends.terms import product_of, split_factors, split_terms
from tilec.backends.triton.coalesce import Viewed
from tilec.backends.triton.dot import Dot, sides_of, variables_of, worthwhile
from tilec.backends.triton.dot_blocks import Config
from tilec.backends.triton.dot_text import DotWriter
from tilec.backends.triton.kernel import Frame, triton_type
from tilec.backends.triton.log_dot import finite, joined, top_of
from tilec.backends.triton.scalar import Evaluator
from tilec.backends.triton.space import Space
from tilec.ir.infer import expression_type
from tilec.ir.program import Access, Call, Expr, Float, Statement

LOST = {"float32": 99, "float64": 966}  # powers of two by which a weight may lift what underflow loses


@dataclass(frozen=True)
class Weighted:
    """`dot` is the product of matrices; `tops` the statements of the greatest terms; `beside` what its result is
    multiplied by; `exact` the statement's own factors."""

    dot: Dot
    tops: tuple[Statement, Statement]
    beside: Expr
    exact: tuple[Expr, ...]


def recognise_weighted(space: Space, seen: Viewed) -> Weighted | None:
    """The statement as such a sum, None where it is none or too small."""
    s = space.statement
    if s.aggregation != "sum" or s.default is not None or space.stored or len(space.classes) != 1:
        return None
    split = split_factors(s.body, seen.types)
    element = expression_type(s.body, seen.types).dtype
    if split is None or element not in ("float16", "bfloat16", "float32", "float64"):
        return None
    exponentials = [f for f in split[0] if isinstance(f, Call) and f.function == "exp"]
    others = [f for f in split[0] if f not in exponentials]
    if len(exponentials) != 1 or not others:
        return None
    terms, added = split_terms(exponentials[0].args[0], seen.types)
    wide = {v for v in (*space.outputs, *space.reductions) if not space.single(v)}
    weighing = [*others, *(() if s.guard is None else (s.guard,))]
    known = frozenset().union(*(variables_of(f) for f in weighing)) & wide
    beside = [t for t in terms if not variables_of(t) & wide <= known and variables_of(t) & wide <= set(space.outputs)]
    right = [t for t in terms if t not in beside and not variables_of(t) & wide <= known]
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
            tuple(v for v in order if any(v in variables_of(t) for t in side)),
            joined(side, dtype),
            dtype,
            space,
        )
        for name, side in (("beside", beside), ("right", right))
    )
    p, q = (Access(t.output, t.index or ()) for t in tops)
    lifted = joined([finite(p), finite(q), *weight], dtype)
    least = LOST[dtype] * math.log(2) - math.log(max(space.count(space.reductions), 1))
    sure = Call("le", (lifted, Float(least)))
    lift = Call("select", (sure, Call("exp", (lifted,)), Float(math.nan)))
    left = product_of([*(Call(dtype, (f,)) for f in others), lift])
    spread = Call("exp", (Call("sub", (joined(right, dtype), finite(q))),))
    found = sides_of([left, spread], space)
    if found is None:
        return None
    dot = replace(found, scale=split[1], dtype=dtype)
    if not worthwhile(dot, space):
        return None
    factor = Call("exp", (Call("sub", (joined(beside, dtype), finite(p))),))
    return Weighted(dot, (tops[0], tops[1]), factor, tuple(split[0]))


class WeightedWriter(DotWriter):
    def __init__(
        self,
        found: Weighted,
        space: Space,
        seen: Viewed,
        wide: bool,
        precision: str,
        config: Config,
        riding: Sequence[Statement],
    ):
        super().__init__(found.dot, space, seen, wide, precision, config, "_weighted_dot", riding)
        self.found = found

    def _must_look(self) -> bool:
        return True

    def _again(self) -> None:
        k, found = self.kernel, self.found
        frame = Frame(k, ("row", "col"), {"row": "row_in", "col": "col_in"})
        evaluator = Evaluator(frame, found.beside)
        k.emit(f"acc = acc * {evaluator.tensor(evaluator.value(found.beside), found.dot.dtype)}")
        k.emit("sure = (tl.abs(acc) < float('inf')) | (row_in[:, None] & col_in[None, :] ^ True)")
        k.emit("if tl.max(tl.max((sure ^ True).to(tl.int32), 1), 0) > 0:  # some sum is not sure")
        whole, self.dot = self.dot, replace(self.dot, left=found.exact, right=())
        kind_ = triton_type(self.accumulator.dtype)
        lines = [f"acc = tl.full((BM, BN), 0, {kind_})", *self._points(self._added)]
        self.dot = whole
        k.scopes[-1].lines += [f"    {line}" for line in lines]
