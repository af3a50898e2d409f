"""Statements of a bound program that only copy a tensor: casts to the type that a value already has, and what gradients
sum over one point an element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir.program import Access, Index, Program, Statement, reads
from tilec.ir.types import TensorType
from tilec.transforms.simplify.simplify import rename_reads
from tilec.transforms.util.plain import is_pure, is_unmasked


def drop_copies(program: Program, types: Mapping[str, TensorType]) -> Program:
    """The program without statements that copy a tensor whole and in its own type: readers read the tensor itself, and
    one copied to an output takes its name, unless it is an input or an output already."""
    fixed = {*program.input_names(), *program.outputs}
    names: dict[str, str] = {}
    kept = []
    for s in program.statements:
        source = _copied(s)
        if source is not None and types[source] == types[s.output]:
            source = names.get(source, source)
            if s.output not in program.outputs:
                names[s.output] = source
                continue
            if source not in fixed:
                names[source] = s.output
                names.update((old, s.output) for old, new in names.items() if new == source)
                continue
        kept.append(s)
    if not names:
        return program
    return replace(program, statements=tuple(_renamed(s, names) for s in kept))


def _copied(s: Statement) -> str | None:
    """The tensor that a statement copies element by element."""
    plain = s.aggregation in ("assign", "sum") and is_pure(s) and is_unmasked(s)
    if not plain or s.attributes or not isinstance(s.body, Access) or s.body.index != s.index:
        return None
    distinct = all(isinstance(i, Index) for i in s.body.index) and len(set(s.body.index)) == len(s.body.index)
    return s.body.tensor if distinct else None


def _renamed(s: Statement, names: Mapping[str, str]) -> Statement:
    if s.output not in names and not any(name in names for name in reads(s)):
        return s
    return replace(rename_reads(s, names), output=names.get(s.output, s.output))
