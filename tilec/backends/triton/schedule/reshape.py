"""Reshapes of intermediates that leave elements where they are: views, without a kernel."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tilec.backends.common.code import python_name, tuple_text
from tilec.backends.triton.fusion.read_through import is_reshape, keeps_order
from tilec.backends.triton.plan.plan import Step, TorchLines
from tilec.ir.at_sizes import named_sizes
from tilec.ir.index import Affine, linear
from tilec.ir.program import Access, Program, Statement, reads
from tilec.ir.rational import as_int
from tilec.ir.types import TensorType


def reshape_steps(s: Statement, flat: Program, types: Mapping[str, TensorType]) -> list[Step] | None:
    """The steps of `s` where it is all elements, in order, of an intermediate, whose memory it takes; else None."""
    if not is_reshape(s, flat, types):
        return None
    assert isinstance(s.body, Access)
    source, wanted = s.body, types[s.output]
    new, old = python_name(s.output), python_name(source.tensor)
    line = f"{new} = {old}.view({tuple_text([str(n) for n in wanted.shape])})"
    numbers = named_sizes(wanted.shape)
    return [TorchLines((line,), (source.tensor,), (s.output,), (s.output,), (wanted.dtype,), numbers)]


def reshaped_inputs(
    flat: Program, types: Mapping[str, TensorType], strides: Mapping[str, tuple[int, ...]], members: Collection[str]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The statements that give an input another shape for kernels of `members` alone, where strides say how to read it:
    the input and these."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    others = {n for s in flat.statements if s.output not in members for n in reads(s)}
    for s in flat.statements:
        if s.output in {*members, *flat.outputs, *others} or not keeps_order(s, types):
            continue
        assert isinstance(s.body, Access)
        if s.body.tensor in flat.input_names():
            steps = zip(s.body.index, strides[s.body.tensor], strict=True)
            place = sum((linear(e) * step for e, step in steps), Affine())
            if place.is_affine and place.is_integral and not place.constant:
                own = (linear(e).bare for e in s.index or ())
                found[s.output] = s.body.tensor, tuple(as_int(place.coefficient(v or "")) for v in own)
    return found
