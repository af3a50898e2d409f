"""Operands of float32 products as three bfloat16 numbers each, made before the product: eight bits of a significand in
each. Six products of them, the three smallest left out, are as accurate as float32's, whatever the range.

Tensor cores multiply them in the time of the three tf32 products that they take the place of. They read them from
shared memory as they lie, whichever way that is: no pass through registers, which splits an operand anew in every
program, and no copies that lie along the reduction, so that a product and its gradients read the same tensors. Tensor
cores cut sums off where they should round, and sums over many points come out too small. So each block's sum of the
greatest products is added by itself. (It is multiplied by a 1 that the compiler does not know, or Triton would make one
sum of the two.) The others, which are 2^-8 of it or less, may be cut off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.matmul.blocks import LEAST_REUSE
from tilec.backends.triton.matmul.dot import Dot, OperandRewrite, variables_outside
from tilec.backends.triton.matmul.precompute_operands import Precomputed, operand_of
from tilec.backends.triton.plan.plan import Release
from tilec.ir.program import Access, Call, Expr

PART, COUNT = "bfloat16", 3
SPLIT_BYTES = 2 * COUNT  # of a term
SMALLER = ((0, 2), (1, 1), (2, 0), (0, 1), (1, 0))  # products of parts beside the greatest, the smallest first


@dataclass(frozen=True)
class SplitOperands:
    """How the parts of both operands are read."""

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
    dot: Dot, space: Space, view: StridedView, int64_index: bool
) -> tuple[OperandRewrite, SplitOperands] | None:
    """The product over both operands' parts, and how these are read. None where an operand is no tensor of its own, or
    too seldom used."""
    if dot.dtype != "float32" or len(space.classes) != 1:
        return None
    made = Precomputed(view, int64_index)
    found: list[tuple[Access, ...]] = []
    for side, factors, other, zeros, own in (
        ("left", dot.left, dot.columns, dot.zero_left, dot.rows),
        ("right", dot.right, dot.rows, dot.zero_right, dot.columns),
    ):
        if zeros or space.count(other) < LEAST_REUSE:
            return None
        whole = operand_of(side, factors, dot.dtype, space, made.view, None)
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
