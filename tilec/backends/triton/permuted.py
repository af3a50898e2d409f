"""Programs whose tensors memory holds in another order than their indices': planned as programs over tensors whose
axes stand as they lie, which are row-major, with views at both ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from tilec.backends.base import Lowering
from tilec.backends.common.code import python_name
from tilec.backends.triton.plan.plan import Plan, Setting, TorchLines
from tilec.backends.triton.schedule.reshape import over_sources
from tilec.ir.aggregations import NUMBERED
from tilec.ir.at_sizes import named_sizes
from tilec.ir.program import Aggregate, Name, Program, expressions, walk
from tilec.ir.types import TensorType
from tilec.transforms.axis_orders import (
    AxisOrder,
    AxisOrders,
    axes_back,
    axis_order,
    axis_orders,
    in_order,
    lowered_axis_orders,
    with_orders,
)
from tilec.transforms.util.naming import Names

PERMUTED_STAGES = ("flat", "reduced", "defracted")


@dataclass(frozen=True)
class PermutedLowering:
    """A lowered program over tensors whose axes stand as memory holds them. `orders`: of inputs and outputs, by their
    own names; `names`: those that they have in it."""

    lowering: Lowering
    orders: AxisOrders
    names: Mapping[str, str]

    def strides(self, strides: Sequence[tuple[int, ...]]) -> Sequence[tuple[int, ...]]:
        own = {new: old for old, new in self.names.items()}
        names = self.lowering.stages["flat"].input_names()
        return [in_order(s, self.orders.get(own.get(n, n))) for n, s in zip(names, strides, strict=True)]

    def setting(self, setting: Setting) -> Setting:
        return replace(setting, misaligned=tuple([self.names.get(n, n) for n in setting.misaligned]))

    def tensors(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        turned = ((n, t.permute(self.orders[n]) if n in self.orders else t) for n, t in tensors.items())
        return {self.names.get(n, n): t for n, t in turned}

    def plan(self, plan: Plan, outputs: Sequence[str]) -> Plan:
        """The plan, which is given tensors and gives them under their own names and with their own axes."""
        own = {new: old for old, new in self.names.items()}
        types = self.lowering.types

        def view(name: str, source: str) -> TorchLines:
            return _permuted(name, source, self.orders[source], types[name])

        steps = [*over_sources(plan.steps, {n: o for n, o in own.items() if o not in outputs}, view)]
        for new in (n for n in plan.outputs if n in own):
            steps.append(_permuted(own[new], new, axes_back(self.orders[own[new]]), types[new]))
        return Plan(tuple(steps), tuple(outputs))


def _permuted(name: str, source: str, order: AxisOrder, t: TensorType) -> TorchLines:
    """A view, a step for each combination of sizes."""
    line = f"{python_name(name)} = {python_name(source)}.permute({order}).detach()"
    return TorchLines((line,), (source,), (name,), (), (t.dtype,), named_sizes(t.shape))


def orders_given(lowering: Lowering, strides: Sequence[tuple[int, ...]]) -> dict[str, AxisOrder]:
    named = zip(lowering.stages["flat"].input_names(), strides, strict=True)
    found = ((name, axis_order(lowering.types[name].shape, s)) for name, s in named)
    return {name: order for name, order in found if order is not None}


def permuted_lowering(lowering: Lowering, given: AxisOrders) -> PermutedLowering | None:
    """The program over tensors as memory holds them, for inputs of these orders; None where there is none, and
    where no output has an order: kernels read tensors of any strides."""
    flat, bound = lowering.stages["flat"], lowering.stages["bound"]
    if not given or not all(_may_be_permuted(lowering.stages[stage]) for stage in PERMUTED_STAGES):
        return None
    outputs = {name: order for name, order in axis_orders(bound, given).items() if name in bound.outputs}
    orders = lowered_axis_orders(flat, given, outputs)
    if not outputs or any(
        orders.get(s.default) != orders.get(s.output) for s in flat.statements if s.default is not None
    ):
        return None
    fresh = Names.of(flat)
    names = {name: fresh.fresh(f"{name}_laid") for name in (*flat.input_names(), *flat.outputs) if name in orders}
    types = {names.get(n, n): replace(t, shape=in_order(t.shape, orders.get(n))) for n, t in lowering.types.items()}
    stages = {stage: with_orders(lowering.stages[stage], orders, names) for stage in PERMUTED_STAGES}
    kept = {name: order for name, order in orders.items() if name in names}
    return PermutedLowering(replace(lowering, stages=stages, types=types), kept, names)


def _may_be_permuted(program: Program) -> bool:
    """Whether nothing in a program depends on the order of axes: numbers of points do, and what names a tensor as a
    whole."""
    if any(s.aggregation in NUMBERED for s in program.statements):
        return False
    nodes: Iterator[object] = (e for s in program.statements for e in walk(*expressions(s)))
    return not any(isinstance(e, Name) or (isinstance(e, Aggregate) and e.aggregation in NUMBERED) for e in nodes)
