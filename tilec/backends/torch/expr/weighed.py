"""Sums of tests by numbers, where a window's elements beyond a tensor are tested: each in the part that has them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilec.backends.common.domain import Domain, access_conditions
from tilec.backends.torch.expr.access import TensorFrame
from tilec.backends.torch.expr.parts import access_slice, part_slices
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
    part = replace(domain, low=low, extent=extent)
    operands = tuple(access if a is padded[0] else a for a in test.args)
    return TestPart(operands, part, part_slices(domain, part, frame.order))


def weighed_text(scalars: TorchScalars, dtype: str, tests: Tests) -> tuple[str, frozenset[str]]:
    """Text of the sum, several elements at a time, and the variables that it depends on."""
    frame, texts, variables = scalars.frame, list[str](), frozenset[str]()
    parts = parts_of_tests(frame, tests)
    for test, n in tests:
        part = parts.get(test)
        own, operands, slices = frame, test.args, "()"
        if part is not None:
            own = TensorFrame(part.domain, frame.order, frame.types, frame.local, frame.names, frame.loops)
            operands, slices = part.operands, part.slices
        values = _sliced(own, operands)
        if values is None:
            writer = scalars if part is None else type(scalars)(own, *operands)
            read = [writer.value(a) for a in operands]
            common = promote(*(v.type for v in read)).dtype
            values = [writer.tensor(v, common) for v in read]
        if part is not None:
            frame.prologue += own.prologue
            frame.lines += own.lines
        texts.append(f"({slices}, torch.{test.function}, {n}, {', '.join(values)})")
        variables |= frozenset().union(*map(index_variables, operands))
    return f"rt.weighed_tests(torch.{dtype}, {', '.join(texts)})", variables


def _sliced(frame: TensorFrame, operands: Sequence[Expr]) -> list[str] | None:
    """Text of each operand as a tensor and slices of it, where all are of one type."""
    found = [a.access if isinstance(a, Pad) else a for a in operands]
    read = [a for a in found if isinstance(a, Access)]
    if len(read) < len(found) or len({frame.types[a.tensor].dtype for a in read}) > 1:
        return None
    texts = [access_slice(frame, a) for a in read]
    return [t for t in texts if t is not None] if None not in texts else None
