"""Statements that give an intermediate another shape and leave its elements where they are: no kernel."""

from __future__ import annotations

from collections.abc import Mapping

from tilec.backends.common.code import python_name, tuple_text
from tilec.backends.triton.fusion.read_through import is_reshape
from tilec.backends.triton.plan.plan import Step, TorchLines
from tilec.ir.at_sizes import named_sizes
from tilec.ir.program import Access, Program, Statement
from tilec.ir.types import TensorType


def reshape_steps(s: Statement, flat: Program, types: Mapping[str, TensorType]) -> list[Step] | None:
    """The steps of `s` where it is all elements, in order, of an intermediate that nobody else needs; else None."""
    if not is_reshape(s, flat, types):
        return None
    assert isinstance(s.body, Access)
    source, wanted = s.body, types[s.output]
    new, old = python_name(s.output), python_name(source.tensor)
    line = f"{new} = {old}.view({tuple_text([str(n) for n in wanted.shape])})"
    numbers = named_sizes(wanted.shape)
    return [TorchLines((line,), (source.tensor,), (s.output,), (s.output,), (wanted.dtype,), numbers)]
