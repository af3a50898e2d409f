"""A statement to carry out, as the families look at it: its points, the views that they walk, its product; and what
carries out one or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tilec.backends.triton.iteration.coalesce import StridedView, coalesce
from tilec.backends.triton.iteration.space import Space, build_space
from tilec.backends.triton.matmul.dot import MatrixProduct, pairwise, recognise_dot, variables_outside
from tilec.backends.triton.matmul.precompute_operands import products_before_sums
from tilec.backends.triton.plan.plan import Setting, Step
from tilec.backends.triton.plan.sizes import NARROWEST, Strides, needs_int64_positions
from tilec.ir.program import Statement, reads
from tilec.ir.types import Types


@dataclass(frozen=True)
class Problem:
    """A statement to carry out into its allocated output: in its two forms, over the views of `view`, whose points
    are `space`. `epilogue`: elementwise statements of the same launch."""

    defracted: Statement
    flat: Statement
    types: Types
    strides: Strides
    setting: Setting
    view: StridedView
    space: Space
    epilogue: tuple[Statement, ...] = ()

    @cached_property
    def product(self) -> MatrixProduct | None:
        dot = recognise_dot(self.space, self.view)
        return None if dot is None else MatrixProduct(dot, self.space, self.view)


def stages_of(p: Problem) -> list[Statement] | None:
    """The statement as several, over tensors with the axes that they have: a library may multiply these."""
    if p.product is not None:
        exact = p.setting.library and p.setting.precision == "highest"
        return products_before_sums(p.flat, p.defracted, p.types, p.product) if exact else None
    space = build_space(p.defracted, p.types)
    return None if space is None else pairwise(space, p.types, variables_outside)


@dataclass(frozen=True)
class Unit:
    """Statements that are carried out together, the tensors that are made for them, the steps, and what these read
    beside what the statements say."""

    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]
    steps: tuple[Step, ...]
    reads: tuple[str, ...] = ()

    def touched(self) -> tuple[str, ...]:
        return (*self.reads, *(n for s in self.statements for n in (s.output, *reads(s))))


def problem_of(
    defracted: Statement,
    flat: Statement,
    types: Types,
    strides: Strides,
    setting: Setting,
    epilogue: Sequence[Statement] = (),
) -> Problem | None:
    """None where the statement's points are no space: where its output index is data."""
    as_stored = StridedView(defracted, types, strides, padded=setting.padded)
    view = as_stored if epilogue else coalesce(as_stored)
    space = build_space(view.statement, view.types)
    if space is None:
        return None
    view = replace(view, int64_index=needs_int64_index((flat, *epilogue), types, strides, space))
    return Problem(defracted, flat, types, strides, setting, view, space, tuple(epilogue))


def product_task(
    defracted: Statement, flat: Statement, types: Types, strides: Strides, setting: Setting
) -> Problem | None:
    """A statement as a product that there are several ways to carry out, None where it is none."""
    p = problem_of(defracted, flat, types, strides, setting)
    return p if p is not None and p.space.classes and p.product is not None else None


def needs_int64_index(statements: Sequence[Statement], types: Types, strides: Strides, space: Space | None) -> bool:
    """Whether some tensor that the statements touch, or the reduction, needs 64-bit positions."""
    many = space is not None and bool(space.classes) and space.count(space.reductions) > NARROWEST
    return many or needs_int64_positions(statements, types, strides)
