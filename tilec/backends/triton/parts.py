"""Operands of float32 products as several 16-bit numbers each, made before the product.

*Thirds*: eight bits of a significand in each of three bfloat16 numbers. Six products of them, the three smallest left
out, are as accurate as float32's, whatever the range. *Halves*, of numbers from 0 to 1: eleven bits in each of two
float16 numbers, the second times 2^11, and three products. What is below 2^-29 has fewer bits; nothing is off by more
than 2^-51.

Tensor cores multiply thirds in the time of the three tf32 products that they take the place of, and halves in half of
it. They read them from shared memory as they lie, whichever way that is: no pass through registers, which splits an
operand anew in every program, and no copies that lie along the reduction, so that a product and its gradients read the
same tensors. Tensor cores cut sums off where they should round, and sums over many points come out too small. So each
block's sum of the greatest products is added by itself. (It is multiplied by a 1 that the compiler does not know, or
Triton would make one sum of the two.) The others, which are 2^-8 of it or less, may be cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilec.backends.triton.coalesce import Viewed
from tilec.backends.triton.dot import Dot, variables_of
from tilec.backends.triton.dot_blocks import Config
from tilec.backends.triton.hoist import LEAST_REUSE, assignment, operand_of
from tilec.backends.triton.plan import Prepared, Release, Step
from tilec.backends.triton.sizes import contiguous
from tilec.backends.triton.space import Space, build_space
from tilec.ir.program import Access, Call, Expr, Float
from tilec.ir.types import TensorType

RAISED = 2.0**15  # halves' numbers are stored times that
BEYOND = 2.0**11  # and what the first half leaves of them times that again


@dataclass(frozen=True)
class Scheme:
    """`parts` makes the parts of a number, `count` of them of type `dtype`; `multiply` makes a block's lines of their
    names, and `end` comes after all blocks."""

    dtype: str
    count: int
    parts: Callable[[Expr], list[Expr]]
    multiply: Callable[[Sequence[str], Sequence[str]], list[str]]
    end: str


@dataclass(frozen=True)
class Parts:
    """How the parts of both operands are read."""

    scheme: Scheme
    left: tuple[Access, ...]
    right: tuple[Access, ...]


def _thirds(e: Expr) -> list[Expr]:
    """The number to eight bits, what that leaves to eight bits, and once more."""
    found: list[Expr] = []
    rest = e
    for _ in range(3):
        found.append(Call("bfloat16", (rest,)))
        rest = Call("sub", (rest, Call("float32", (found[-1],))))
    return found


def _of_thirds(left: Sequence[str], right: Sequence[str]) -> list[str]:
    pairs = ((0, 2), (1, 1), (2, 0), (0, 1), (1, 0))  # the smallest first
    return [
        *(f"rest = tl.dot({left[i]}, {right[j]}, rest)" for i, j in pairs),
        f"acc += tl.dot({left[0]}, {right[0]}) * one",
    ]


def _halves(e: Expr) -> list[Expr]:
    raised = Call("mul", (e, Float(RAISED)))
    first = Call("float16", (raised,))
    rest = Call("sub", (raised, Call("float32", (first,))))
    return [first, Call("float16", (Call("mul", (rest, Float(BEYOND))),))]


def _of_halves(left: Sequence[str], right: Sequence[str]) -> list[str]:
    return [
        f"rest = tl.dot({left[0]}, {right[1]}, rest)",
        f"rest = tl.dot({left[1]}, {right[0]}, rest)",
        f"acc += tl.dot({left[0]}, {right[0]}) * one",
    ]


THIRDS = Scheme("bfloat16", 3, _thirds, _of_thirds, "acc += rest")
HALVES = Scheme("float16", 2, _halves, _of_halves, f"acc = (acc + rest * {1 / BEYOND!r}) * {1 / RAISED**2!r}")


def in_parts(
    scheme: Scheme, dot: Dot, space: Space, seen: Viewed, wide: bool
) -> tuple[list[Step], Viewed, Parts, list[Step]] | None:
    """Steps that make both operands' parts, the tensors known then, how the parts are read, and steps afterwards. None
    where an operand is no tensor of its own, or too seldom used."""
    if dot.dtype != "float32" or len(space.classes) != 1:
        return None
    steps: list[Step] = []
    found: list[tuple[Access, ...]] = []
    names: list[str] = []
    for side, factors, other, zeros, own in (
        ("left", dot.left, dot.columns, dot.zero_left, dot.rows),
        ("right", dot.right, dot.rows, dot.zero_right, dot.columns),
    ):
        if zeros or space.count(other) < LEAST_REUSE:
            return None
        operand = operand_of(side, factors, dot.dtype, space, seen, None)
        if operand is None:
            return None
        whole, shape, _ = operand
        if not (variables_of(whole.body) & set(own) and variables_of(whole.body) & set(dot.summed)):
            return None  # a block that is the same along one of its axes
        reads = []
        for place, body in enumerate(scheme.parts(whole.body)):
            s = replace(whole, output=f"{whole.output}{place}_{scheme.count}", body=body)
            types = {**seen.types, s.output: TensorType(shape, scheme.dtype)}
            seen = Viewed(seen.statement, types, {**seen.strides, s.output: contiguous(shape)})
            alone = build_space(s, seen.types)
            if alone is None or alone.valid or not alone.covers:
                return None
            steps.append(Prepared(s, seen.types, seen.strides, wide, partial(assignment, alone, seen, s, wide)))
            reads.append(Access(s.output, s.index or ()))
            names.append(s.output)
        found.append(tuple(reads))
    return steps, seen, Parts(scheme, found[0], found[1]), [Release(tuple(names))]


def fitted(config: Config, scheme: Scheme, shared: int) -> Config:
    """With as many stages as the on-chip memory holds; halves in twice as large blocks, which take as much."""
    if scheme.count == 2 and config.bk == 32:
        config = replace(config, bk=64)
    while config.stages > 1 and config.stages * (config.bm + config.bn) * config.bk * 2 * scheme.count > shared:
        config = replace(config, stages=config.stages - 1)
    return config
