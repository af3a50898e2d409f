"""Inputs of 16 bits that a program reads as float32 values alone: cast first, where torch's routines serve then."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tilec.backends.base import Lowering
from tilec.backends.torch.library.calls import library_parts
from tilec.ir.program import Access, Call, Expr, Program, accesses_in, expressions, map_expressions, rebuild, walk
from tilec.ir.types import NARROW, Types

_LOWERED = ("flat", "reduced", "defracted")


def with_cast_inputs(lowering: Lowering) -> tuple[Lowering, tuple[str, ...]]:
    """The same over such inputs in float32, and their names; what it was, and none, where no more of torch's routines
    serve then."""
    flat, types = lowering.stages["flat"], lowering.types
    names = _read_cast(flat, types)
    cast = {**types, **{name: replace(types[name], dtype="float32") for name in names}}
    stages = {stage: _uncast(lowering.stages[stage], names) for stage in _LOWERED if names}
    if not names or _calls(stages["flat"], cast) <= _calls(flat, types):
        return lowering, ()
    return replace(lowering, stages={**lowering.stages, **stages}, types=cast), names


def _read_cast(program: Program, types: Types) -> tuple[str, ...]:
    """The 16-bit inputs that are read, and only as float32 values."""
    roots = [e for s in program.statements for e in expressions(s)]
    read = Counter(a.tensor for a in accesses_in(*roots))
    read.update(s.default for s in program.statements if s.default is not None)
    cast = Counter(a.tensor for a in map(_cast_element, walk(*roots)) if a is not None)
    inputs = [n for n in program.input_names() if n not in program.outputs and types[n].dtype in NARROW]
    return tuple([n for n in inputs if read[n] and read[n] == cast[n]])


def _cast_element(e: Expr) -> Access | None:
    return e.args[0] if isinstance(e, Call) and e.function == "float32" and isinstance(e.args[0], Access) else None


def _uncast(program: Program, names: tuple[str, ...]) -> Program:
    def of(e: Expr) -> Expr:
        e = rebuild(e, of)
        element = _cast_element(e)
        return e if element is None or element.tensor not in names else element

    return replace(program, statements=tuple([map_expressions(s, of) for s in program.statements]))


def _calls(program: Program, types: Types) -> int:
    return sum(part.call is not None for part in library_parts(program, types))
