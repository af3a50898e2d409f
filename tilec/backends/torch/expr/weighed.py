"""Sums of tests by numbers, where a window's elements beyond a tensor are tested: each in the part that has them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilec.backends.common.domain import Domain, access_conditions
from tilec.backends.torch.expr.access import TensorFrame
from tilec.ir.program import Access, Call, Expr, Float, Pad, index_variables
from tilec.ir.types import promote

if TYPE_CHECKING:
    from tilec.backends.torch.expr.scalar import TorchScalars

Tests = Sequence[tuple[Call, int]]  # comparisons, each with the number that it counts as


@dataclass(frozen=True)
class TestPart:
    """The operands of a test without what they are beyond a tensor, the points inside, and the slices of these."""

    operands: tuple[Expr, ...]
    domain: Domain
    slices: str


def parts_of_tests(frame: TensorFrame, tests: Tests) -> Mapping[Call, TestPart]:
    """The tests that are false beyond a box of their points, where others are of all points."""
    if type(frame) is not TensorFrame:
        return {}
    found = {test: part for test, _ in tests if (part := _part(frame, test)) is not None}
    rest = {v for test, _ in tests if test not in found for v in index_variables(test)}
    return found if {v for v, n in frame.domain.extent.items() if n > 1} <= rest else {}


def _part(frame: TensorFrame, test: Call) -> TestPart | None:
    """Nothing equals NaN: `pad(X[i - 1], nan) == Y[i]` is true at no element before the first one."""
    padded = [a for a in test.args if isinstance(a, Pad) and isinstance(a.value, Float) and math.isnan(a.value.value)]
    if test.function != "eq" or len(padded) != 1 or not isinstance(padded[0].access, Access):
        return None
    domain, access = frame.domain, padded[0].access
    low, extent = dict(domain.low), dict(domain.extent)
    for c in access_conditions(access, frame.types):
        if domain.holds(c):
            continue
        names = c.form.variables()
        if not c.form.is_affine or not c.form.is_integral or len(names) != 1 or names[0] in frame.loops:
            return None
        (v,), step, first = names, c.form.coefficient(names[0]), c.form.constant
        ends = sorted((-first / step, (c.bound - 1 - first) / step))
        least, most = max(low[v], math.ceil(ends[0])), min(low[v] + extent[v] - 1, math.floor(ends[1]))
        low[v], extent[v] = least, most - least + 1
    if extent == domain.extent or any(n < 1 for n in extent.values()):
        return None
    moved = ((v, low[v] - domain.low[v]) for v in frame.order)
    slices = [f"slice({a}, {a + extent[v]})" if extent[v] < domain.extent[v] else "slice(None)" for v, a in moved]
    operands = tuple(access if a is padded[0] else a for a in test.args)
    return TestPart(operands, replace(domain, low=low, extent=extent), f"({', '.join(slices)},)")


def weighed_text(scalars: TorchScalars, dtype: str, tests: Tests) -> tuple[str, frozenset[str]]:
    """Text of the sum, several elements at a time, and the variables that it depends on."""
    frame, texts, variables = scalars.frame, list[str](), frozenset[str]()
    parts = parts_of_tests(frame, tests)
    for test, n in tests:
        part, writer, operands = parts.get(test), scalars, test.args
        if part is not None:
            inner = TensorFrame(part.domain, frame.order, frame.types, frame.local, frame.names, frame.loops)
            writer, operands = type(scalars)(inner, *part.operands), part.operands
        values = [writer.value(a) for a in operands]
        common = promote(*(v.type for v in values)).dtype
        text = ", ".join(writer.tensor(v, common) for v in values)
        if part is not None:
            frame.prologue += inner.prologue
            frame.lines += inner.lines
        texts.append(f"(torch.{test.function}, {text}, {n}, {'()' if part is None else part.slices})")
        variables |= frozenset().union(*(v.variables for v in values))
    return f"rt.weighed_tests(torch.{dtype}, {', '.join(texts)})", variables
