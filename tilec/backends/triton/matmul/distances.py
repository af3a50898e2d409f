"""Sums of squared differences of two operands, such as distances between points, on tensor cores.

With both operands relative to the first column's, l and r, the sum over k of (l_ik - r_jk)^2 is
|l_i|^2 + |r_j|^2 - 2 l_i . r_j, of which the last is a product of matrices. What cancels is rounded relative to the
first two terms, so the result is accurate where it is an eighth of these or more. Elements that are smaller (points
that are near each other beside their distance from the first), not finite, or out of range are computed again in the
same kernel, difference by difference, and no other element depends on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilec.backends.triton.emit.frame import Frame
from tilec.backends.triton.iteration.coalesce import Viewed
from tilec.backends.triton.iteration.space import Space
from tilec.backends.triton.matmul.blocks import Config, choose_config
from tilec.backends.triton.matmul.dot import Dot, sides_of, variables_outside, worthwhile
from tilec.backends.triton.matmul.logsumexp_matmul import ExponentialWriter
from tilec.backends.triton.plan.plan import Setting
from tilec.ir.index import Affine, replace_indices
from tilec.ir.infer import expression_type
from tilec.ir.program import Call, Expr

FEWEST_TERMS = 32  # of a sum; fewer are added up as quickly as they are multiplied
FEWEST_PAIRS = 2**16
KEPT = 0.125  # the least share of |l|^2 + |r|^2 that a result keeps its accuracy with
LEAST_SQUARES, MOST_SQUARES = "1.0e-28", "1.0e38"  # between which products of parts neither vanish nor overflow
BLOCK = Config(64, 128, 32, 4, 3)  # measured on an H200; 128 x 128 takes a tenth longer


@dataclass(frozen=True)
class Distances:
    """`dot`: the product of the operands, both relative to the first column's; `difference`: what is squared."""

    dot: Dot
    difference: Expr


def recognise_distances(space: Space, seen: Viewed) -> Distances | None:
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
    if expression_type(difference, seen.types).dtype != "float32":
        return None
    found = sides_of([x, y], space)
    if found is None or len(found.left) != 1 or len(found.right) != 1 or not worthwhile(found, space):
        return None
    if space.count(found.summed) < FEWEST_TERMS or space.count(found.rows) * space.count(found.columns) < FEWEST_PAIRS:
        return None
    (left,), (right,) = found.left, found.right
    own = {*found.batch, *found.summed}
    if not variables_outside(left) - own <= {*found.rows} or not variables_outside(right) - own <= {*found.columns}:
        return None
    first = replace_indices(right, {v: Affine() + space.low[0][v] for v in found.columns})
    operands = ((Call("sub", (left, first)),), (Call("sub", (right, first)),))
    return Distances(replace(found, left=operands[0], right=operands[1], dtype="float32"), difference)


def config_of(found: Distances, space: Space, setting: Setting) -> Config:
    """The block; smaller where there are few pairs."""
    smaller = replace(choose_config(found.dot, space, setting.device.shared), parts=1)
    return BLOCK if smaller.bm * smaller.bn >= BLOCK.bm * BLOCK.bn else smaller


class DistanceWriter(ExponentialWriter):
    def __init__(self, found: Distances, space: Space, seen: Viewed, wide: bool, config: Config, riding: Sequence):
        super().__init__("_distances", found.dot, found.dot, space, seen, wide, "tf32x3", config, riding, None)
        self.found = found

    def _loop(self) -> None:
        self.kernel.emit("squares = tl.full((BM,), 0, tl.float32)")
        self.kernel.emit("others = tl.full((BN,), 0, tl.float32)")
        super()._loop()

    def _multiplied(self, rows: Frame, columns: Frame) -> None:
        k, dot = self.kernel, self.dot
        left, right = self._operand(rows, dot.left, ()), self._operand(columns, dot.right, ())
        k.emit(f"squares += tl.sum({left} * {left}, 1)")
        k.emit(f"others += tl.sum({right} * {right}, 0)")
        k.emit(f"acc = tl.dot({left}, {right}, acc{self._options()})")

    def _again(self) -> None:
        k = self.kernel
        k.emit("base = squares[:, None] + others[None, :]")
        k.emit("acc = base - 2 * acc")
        within = f"(base > {LEAST_SQUARES}) & (base < {MOST_SQUARES})"
        k.emit(f"sure = (acc >= {KEPT} * base) & {within}")
        self._in_turn("sure & row_in[:, None] & col_in[None, :] ^ (row_in[:, None] & col_in[None, :])", [self._exact()])

    def _exact(self) -> list[str]:
        def step(values: list[str], tests: list[str]) -> Sequence[str]:
            assert not tests
            return (f"difference = {values[0]}", "total += difference * difference")

        return [
            "total = tl.full((BM, BN), 0, tl.float32)",
            *self._each((self.found.difference,), step),
            "acc = tl.where(sure, acc, total)",
        ]
