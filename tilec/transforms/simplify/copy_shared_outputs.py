"""Outputs that are inputs, or are returned twice, as copies: every output of an executable has memory of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir.infer import infer
from tilec.ir.program import Access, Index, Int, Program, Statement
from tilec.ir.types import TensorType
from tilec.transforms.util.naming import Names


def copy_shared_outputs(program: Program, inputs: Mapping[str, TensorType]) -> Program:
    """The flat program with a copy for each output that is an input or stands among the outputs before; `inputs` are
    the types of its inputs."""
    taken = set(program.input_names())
    if len({*program.outputs} - taken) == len(program.outputs):
        return program
    types, names = infer(program, inputs), Names.of(program)
    outputs, copies = [], []
    for name in program.outputs:
        if name in taken:
            copies.append(_copy(name, names.fresh(name), types[name].shape))
            name = copies[-1].output
        taken.add(name)
        outputs.append(name)
    return replace(program, outputs=tuple(outputs), statements=(*program.statements, *copies))


def _copy(source: str, name: str, shape: tuple[int, ...]) -> Statement:
    index = tuple(Index(f"i{d}") for d in range(len(shape)))
    return Statement(name, index, tuple(map(Int, shape)), Access(source, index))
