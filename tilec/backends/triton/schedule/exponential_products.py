"""The family of products of exponentials: a log product, or weights that are exponentials of a sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tilec.backends.triton.iteration.coalesce import StridedView
from tilec.backends.triton.matmul.blocks import LEAST_REUSE, choose_config, fitted, inner_variables
from tilec.backends.triton.matmul.dot import MatrixProduct
from tilec.backends.triton.matmul.exp_weighted_matmul import Weighted, WeightedWriter
from tilec.backends.triton.matmul.kernel import PRECISION, DotTask
from tilec.backends.triton.matmul.logsumexp_matmul import LogDot, LogWriter, with_guards, with_tops
from tilec.backends.triton.matmul.pack import LEAST_WORK
from tilec.backends.triton.matmul.precompute_operands import hoisted
from tilec.backends.triton.matmul.split import SPLIT_BYTES, SplitOperands, split_operands
from tilec.backends.triton.matmul.steps import launched
from tilec.backends.triton.plan.plan import Launch, Release, Request, Setting, Step
from tilec.backends.triton.schedule.problem import Problem
from tilec.ir.program import Statement


def exponential_steps(
    p: Problem, found: LogDot | Weighted, carry: Callable[[Statement, StridedView, Setting], list[Step]]
) -> list[Step] | None:
    """Steps of the greatest terms of each operand, by `carry`, then of the product; None where it takes no epilogue."""
    if p.epilogue and not p.space.covers:
        return None
    setting = p.setting
    view = with_tops(found.tops, p.view)
    head = [
        Request(s, view.types, view.strides, view.int64_index, partial(carry, s, view, setting)) for s in found.tops
    ]
    product = MatrixProduct(with_guards(found.dot), p.space, view)
    inner = inner_variables(product, LEAST_REUSE)
    last = inner[0] if len(inner) == 1 and product.dot.dtype == "float32" else None
    much = product.multiplications >= LEAST_WORK
    divisible = isinstance(found, Weighted) and much and setting.precision == "highest"
    divided = split_operands(product) if divisible else None
    computed = hoisted(product, last, True) if much and divided is None else None
    config = choose_config(product, setting.device.shared, whole=True)
    split: SplitOperands | None = None
    over = product.as_it_is if computed is None else computed
    if divided is not None:
        over, split = divided
        config = fitted(config, SPLIT_BYTES, setting.device.shared)
    product = MatrixProduct(over.product.dot, p.space, replace(over.view, statement=view.statement))
    task = DotTask(product, PRECISION[setting.precision], config, p.epilogue)
    writer = LogWriter(found, task, split) if isinstance(found, LogDot) else WeightedWriter(found, task, split)
    steps = [replace(s, horizontal=True) if isinstance(s, Launch) else s for s in launched(writer, p.flat)]
    return [*head, *over.around(steps), Release(tuple(s.output for s in found.tops))]
