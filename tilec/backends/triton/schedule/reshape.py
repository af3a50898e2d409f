"""Statements that give an intermediate another shape and leave its elements where they are: no kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilec.backends.common.code import python_name, tuple_text
from tilec.backends.triton.plan.plan import Step, TorchLines
from tilec.backends.triton.plan.sizes import contiguous
from tilec.ir.at_sizes import named_sizes
from tilec.ir.index import Affine, linear
from tilec.ir.program import Access, Index, Program, Statement, reads
from tilec.ir.types import TensorType


def reshape_steps(s: Statement, flat: Program, types: Mapping[str, TensorType]) -> list[Step] | None:
    """The steps of `s` where it is all elements, in order, of an intermediate that nobody else needs; else None."""
    source = s.body
    if s.aggregation not in ("assign", "sum") or s.guard is not None or s.default is not None or s.constraints:
        return None
    if not isinstance(source, Access) or s.index is None or types[source.tensor] == types[s.output]:
        return None
    wanted, there = types[s.output], types[source.tensor]
    same = wanted.dtype == there.dtype and math.prod(wanted.shape) == math.prod(there.shape)
    if not same or not all(isinstance(e, Index) for e in s.index) or len(set(s.index)) != len(s.index):
        return None
    made = [x.output for x in flat.statements]
    alone = sum(source.tensor in reads(x) for x in flat.statements) == 1 and source.tensor not in flat.outputs
    if source.tensor not in made or not alone or 0 in wanted.shape:
        return None
    single = {v: Affine() for e, n in zip(s.index, wanted.shape, strict=True) if n == 1 and (v := linear(e).bare)}
    places = [_place(index, t.shape).substitute(single) for index, t in ((source.index, there), (s.index, wanted))]
    if places[0] != places[1]:
        return None
    new, old = python_name(s.output), python_name(source.tensor)
    line = f"{new} = {old}.view({tuple_text([str(n) for n in wanted.shape])})"
    numbers = named_sizes(wanted.shape)
    return [TorchLines((line,), (source.tensor,), (s.output,), (s.output,), (wanted.dtype,), numbers)]


def _place(index: Sequence, shape: Sequence[int]) -> Affine:
    """Where an element stands in a contiguous tensor."""
    total = Affine()
    for e, step in zip(index, contiguous(shape), strict=True):
        total += linear(e) * step
    return total
